"""What an approval binds: values equal as every reader of JSON sees them, and calls that can be repeated to the letter."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jsontext import encoded, strict_json
from actors.values import CALL_BYTES_MAX, as_doubles, lossless, representable, same

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
NUMBERS = st.one_of(
    st.integers(-(10**320), 10**320), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False)
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, NAMES)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.just("__proto__"), inner, max_size=3),
    max_leaves=8,
)
LOSSLESS = VALUES.filter(lossless)


def anyhow_ordered(value: object) -> Any:
    """The value with members in reverse order at every depth."""
    if isinstance(value, dict):
        return {name: anyhow_ordered(each) for name, each in reversed(value.items())}
    return [anyhow_ordered(each) for each in value] if isinstance(value, list) else value


def canonical(value: object) -> str:
    return json.dumps(as_doubles(value), sort_keys=True)


@given(VALUES)
def test_a_value_is_the_same_as_itself_in_any_order_of_members(value: object) -> None:
    assert same(value, value)
    assert same(value, anyhow_ordered(value))


@given(VALUES, VALUES)
def test_being_the_same_goes_both_ways(one: object, other: object) -> None:
    assert same(one, other) is same(other, one)


@given(LOSSLESS)
def test_a_value_is_the_same_as_its_doubles_and_they_change_no_more(value: object) -> None:
    doubles = as_doubles(value)
    assert same(value, doubles)
    assert encoded(as_doubles(doubles)) == encoded(doubles)


@given(LOSSLESS)
def test_a_value_survives_a_reader_that_knows_only_doubles(value: object) -> None:
    echo = json.loads(encoded(value), parse_int=float)
    assert same(value, echo)
    assert same(as_doubles(value), strict_json(json.dumps(echo)))


@given(LOSSLESS, LOSSLESS)
def test_the_text_of_the_doubles_tells_exactly_what_is_the_same(one: object, other: object) -> None:
    assert same(one, other) is (canonical(one) == canonical(other))


@given(VALUES, VALUES)
def test_another_element_or_member_makes_another_value(value: object, more: object) -> None:
    assert not same([value], [value, more])
    assert not same({"a": value}, {"a": value, "b": more})
    assert not same({"a": value}, {"b": value})
    assert not same([value], value)
    assert not same({"a": value}, value)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1.0"), ("1", "1e0"), ("-0", "0"), ("-0.0", "0"), ("9007199254740993", "9007199254740992"), ("1e2", "100")],
)
def test_numbers_are_doubles(one: str, other: str) -> None:
    assert same(json.loads(one), json.loads(other))
    assert canonical(json.loads(one)) == canonical(json.loads(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (False, 0),
        (None, 0),
        (None, False),
        ("1", 1),
        ("é", "e\u0301"),
        ([1, 2], [2, 1]),
        ([], {}),
        ("", None),
        (9007199254740992, 9007199254740994),
        (10**400, 1),
    ],
)
def test_what_only_looks_alike_is_not_the_same(one: object, other: object) -> None:
    assert not same(one, other)
    assert not same([{"a": one}], [{"a": other}])


def test_doubles_without_a_fraction_are_written_as_integers_where_ecmascript_does() -> None:
    written = encoded(as_doubles([1.0, -0.0, 1e20, 1e21, 2**53 + 1, 0.1, 10**22, True]))
    assert written == b"[1,0,100000000000000000000,1e+21,9007199254740992,0.1,1e+22,true]"


LARGEST = 2**1024 - 2**970 - 1


@pytest.mark.parametrize(
    ("number", "kept"), [(LARGEST, True), (-LARGEST, True), (LARGEST + 1, False), (-LARGEST - 1, False)]
)
def test_a_number_is_lossless_as_long_as_it_rounds_to_a_finite_double(number: int, kept: bool) -> None:  # noqa: FBT001 - the answer
    assert lossless(number) is kept
    assert lossless({"a": [number]}) is kept


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, [math.nan], {"a": {"__proto__": 1}}, [{"__proto__": {}}]]
)
def test_what_a_reader_would_bend_is_lossy(value: object) -> None:
    assert not lossless(value)


def test_proto_is_lossy_only_as_a_member() -> None:
    assert lossless({"a": "__proto__", "proto": ["__proto__"], "__Proto__": 1})


@pytest.mark.parametrize("call_id", ["c", "x" * 256, "\U0001f600" * 128, "\x00"])
def test_a_call_id_has_up_to_256_units(call_id: str) -> None:
    assert representable(call_id, "look", {})


@pytest.mark.parametrize("call_id", ["", "x" * 257, "\U0001f600" * 128 + "x", "\ud800"])
def test_a_call_id_of_another_size_or_without_a_text_cannot_be_shown(call_id: str) -> None:
    assert not representable(call_id, "look", {})


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a" * 65, "a\n", "é"])
def test_a_call_by_a_name_that_no_tool_can_have_cannot_be_shown(name: str) -> None:
    assert not representable("c", name, {})


@pytest.mark.parametrize(
    "arguments", [None, [], "a", {"a": 10**400}, {"a": math.nan}, {"__proto__": 1}, {"a": "\udc00"}, {"a": {1}}]
)
def test_arguments_that_are_no_lossless_object_cannot_be_shown(arguments: object) -> None:
    assert not representable("c", "look", arguments)


def test_a_call_may_have_128000_bytes_and_its_numbers_count_as_doubles() -> None:
    empty = len(encoded({"id": "c", "name": "look", "arguments": {"a": ""}}))
    assert representable("c", "look", {"a": "é" * ((CALL_BYTES_MAX - empty) // 2)})
    assert not representable("c", "look", {"a": "x" * (CALL_BYTES_MAX - empty + 1)})
    assert representable("c", "look", {"a": [10**300] * 15_000})
    assert representable("c", "look", {"a": [1.0] * 63_000})


def test_a_call_as_deep_as_a_decision_may_repeat_it_can_be_shown_and_a_deeper_one_cannot() -> None:
    def nested(levels: int) -> object:
        return {"a": nested(levels - 1)} if levels else {}

    deepest = nested(61)
    assert representable("c", "look", deepest)
    strict_json(json.dumps({"call": {"id": "c", "name": "look", "arguments": deepest}}))
    assert not representable("c", "look", nested(62))


@given(NAMES, NAMES, VALUES)
def test_whatever_is_representable_is_the_same_after_any_reader(call_id: str, name: str, arguments: object) -> None:
    if representable(call_id, name, arguments):
        echo = json.loads(json.dumps(arguments), parse_int=float)
        assert same(echo, as_doubles(arguments))
