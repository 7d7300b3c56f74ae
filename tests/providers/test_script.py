"""Scripts are read strictly, and what is wrong is named with its place."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers import ready
from providers.failures import FAILURES
from providers.script import InvalidScript, ScriptTurn, scripts

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
turns = st.dictionaries(
    st.sampled_from(ScriptTurn.__struct_encode_fields__),
    json_values | st.fixed_dictionaries({"code": st.just("CODE"), "after": json_values}) | st.just(["a"]),
    max_size=4,
)


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        ({"strem": ["a"]}, "unknown field `strem` - at `$.turns[0]`"),
        ({"stream": ["a", 3]}, "at `$.turns[0].stream[1]`"),
        ({"stream": [""]}, "at `$.turns[0].stream[0]`"),
        ({"stream": ["a"], "echo": True}, "only one of stream, echo can be the text - at `$.turns[0]`"),
        ({"hang": True, "raise": "x"}, "only one of hang, fail, raise can be the end - at `$.turns[0]`"),
        ({"text": "\ud800"}, "lone surrogate - at `$.turns[0]`"),
        ({"tool_calls": [{"name": "f", "arguments": {"a": "\udfff"}}]}, "lone surrogate - at `$.turns[0]`"),
        ({"tool_calls": [{"name": "f", "arguments": []}]}, "at `$.turns[0].tool_calls[0].arguments`"),
        ({"delay_ms": -1}, "at `$.turns[0].delay_ms`"),
        ({"fail": {"code": "no code"}}, "at `$.turns[0].fail.code`"),
        ({"fail": {"code": "CODE\n"}}, "at `$.turns[0].fail.code`"),
        ({"fail": {"retryable": True}}, "at `$.turns[0].fail`"),
        ({"repeat": {"text": "a", "times": 100_001}}, "at `$.turns[0].repeat.times`"),
        ({"finish_reason": "tool"}, "at `$.turns[0].finish_reason`"),
    ],
)
def test_a_fault_is_named_with_its_model_and_place(turn: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidScript) as caught:
        scripts({"demo": {"turns": [turn]}})
    assert str(caught.value).startswith("model demo: ")
    assert fault in str(caught.value)


@pytest.mark.parametrize("script", [{}, {"turns": []}, {"turns": [{}], "more": 1}, [], None, "text"])
def test_a_script_needs_turns_and_nothing_else(script: Any) -> None:
    with pytest.raises(InvalidScript):
        scripts({"demo": script})


@pytest.mark.parametrize("name", ["", " demo", "demo\n", "-demo", "a" * 201, "dé"])
def test_a_model_needs_a_name_that_a_request_can_carry(name: str) -> None:
    with pytest.raises(InvalidScript, match="no model id"):
        scripts({name: {"turns": [{}]}})


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.fixed_dictionaries({"turns": st.lists(turns)}) | json_values))
def test_whatever_is_configured_is_a_script_or_a_stated_fault(data: dict[str, Any]) -> None:
    try:
        read = scripts(data)
    except InvalidScript:
        return
    again = scripts(msgspec.json.decode(msgspec.json.encode(read)))
    assert again.keys() == read.keys()


def test_every_failure_of_a_vendor_has_a_ready_model() -> None:
    models = ready.models()
    assert {model.turns[0].fail.code for model in models.values() if model.turns[0].fail} == set(FAILURES)
    assert {"demo", "echo", "words", "json-good", "json-bad", "hang", "tool", "burst", "slow"} <= models.keys()
