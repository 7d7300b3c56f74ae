"""The codec of the Responses API, by value."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from actors.ports import AssistantMessage, Media, ModelRequest, ToolCall, ToolDefinition, ToolMessage, UserMessage
from providers.openai_responses import Responses
from providers.vendors import VENDORS
from tests.providers.folding import MALFORMED, code, folded, whole_code

OPENAI = VENDORS["openai"].codec(True)
XAI = VENDORS["xai"].codec(True)
SCHEMA = Raw(b'{"type":"object","properties":{"n":{"type":"integer"}}}')
TOOL = ToolDefinition("lookup", "Looks up.", SCHEMA)
PNG = Media("image/png", b"\x89PNG", Raw(b'{"id":"s1","title":"A"}'))
PDF = Media("application/pdf", b"%PDF-1", Raw(b'{"id":"s2"}'))


def body(request: ModelRequest, codec: Any = OPENAI) -> Any:
    return msgspec.json.decode(codec.body(request))


def final(output: list[Any], **members: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": output, **members}}


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


def text(said: str) -> dict[str, Any]:
    return {"type": "output_text", "text": said}


def call(arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "lookup", "arguments": arguments}


def test_a_request_says_everything_and_stores_nothing() -> None:
    request = ModelRequest(model="m", messages=(UserMessage("hi"),), instructions="Be kind.", tools=(TOOL,))
    assert body(request) == {
        "model": "m",
        "instructions": "Be kind.",
        "input": [{"role": "user", "content": "hi"}],
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 4096,
        "tools": [
            {
                "type": "function",
                "name": "lookup",
                "description": "Looks up.",
                "parameters": msgspec.json.decode(SCHEMA),
                "strict": False,
            }
        ],
    }
    assert "strict" not in body(request, XAI)["tools"][0]
    assert (
        body(ModelRequest(model="m", messages=(UserMessage("hi"),)))
        .keys()
        .isdisjoint({"instructions", "tools", "text"})
    )


def test_what_was_said_before_comes_in_its_order_and_the_vendors_own_items_as_they_were() -> None:
    native = Raw(
        b'[{"type":"reasoning","encrypted_content":"x", "big":12345678901234567890123},{"type":"function_call"}]'
    )
    asked = ToolCall("c0", "lookup", Raw(b'{"n":1}'))
    messages = (
        UserMessage("one"),
        AssistantMessage("two"),
        UserMessage("three"),
        AssistantMessage("four", (asked,), native),
        ToolMessage("c0", "lookup", '{"r":1}'),
        AssistantMessage("", (asked,)),
    )
    request = ModelRequest(model="m", messages=messages)
    assert body(request)["input"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        *msgspec.json.decode(native),
        {"type": "function_call_output", "call_id": "c0", "output": '{"r":1}'},
        {"type": "function_call", "call_id": "c0", "name": "lookup", "arguments": '{"n":1}'},
    ]
    assert b"12345678901234567890123" in OPENAI.body(request)


def test_an_attachment_follows_its_label() -> None:
    request = ModelRequest(model="m", messages=(UserMessage("look", (PNG, PDF)),))
    parts = body(request)["input"][0]["content"]
    assert parts[0] == {"type": "input_text", "text": "look"}
    assert "untrusted" in parts[1]["text"]
    assert '{"id":"s1","title":"A"}' in parts[1]["text"]
    assert parts[2] == {"type": "input_image", "image_url": "data:image/png;base64,iVBORw==", "detail": "auto"}
    assert parts[4] == {
        "type": "input_file",
        "filename": "s2.pdf",
        "file_data": "data:application/pdf;base64,JVBERi0x",
    }
    with pytest.raises(Exception, match="UNSUPPORTED_MODALITY"):
        XAI.body(request)


def test_a_schema_goes_to_the_vendor_if_its_own_mode_can_take_it() -> None:
    request = ModelRequest(model="m", messages=(UserMessage("hi"),), output_schema=SCHEMA)
    told = {"type": "json_schema", "name": "output", "schema": msgspec.json.decode(SCHEMA), "strict": False}
    assert body(request)["text"] == {"format": told}
    assert "text" not in body(request, Responses(structured=False))
    listed = msgspec.structs.replace(request, output_schema=Raw(b'{"type":"array"}'))
    assert "text" not in body(listed)


def test_the_final_object_has_the_last_word() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    other = {"type": "custom_tool_call", "call_id": "c9", "name": "shell", "input": "ls"}
    output = [thought, message(text("Hel"), text("lo")), other, message(text("!"))]
    told = folded(
        OPENAI,
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_item.added"},
        {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "Hello!"},
        {"type": "response.something.new"},
        {"type": "response.empty.delta", "delta": ""},
        final(output, usage={"input_tokens": 5, "output_tokens": 3}),
        {"type": "error"},
    )
    assert (told.turn.text, told.texts, told.progress, told.turn.tool_calls) == ("Hello!", ["Hello!"], 2, ())
    assert told.turn.usage == {"inputTokens": 5, "outputTokens": 3}
    assert msgspec.json.decode(told.turn.native or b"") == output


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (None, None),
        ({}, {}),
        ({"input_tokens": 5, "input_tokens_details": None}, {"inputTokens": 5}),
        ({"input_tokens_details": {"cached_tokens": 2}}, {"cachedInputTokens": 2}),
        (
            {"output_tokens": 3.0, "output_tokens_details": {"reasoning_tokens": 1}},
            {"outputTokens": 3.0, "reasoningTokens": 1},
        ),
    ],
)
def test_usage_is_what_the_vendor_tells(usage: Any, told: Any) -> None:
    assert folded(OPENAI, final([], usage=usage)).turn.usage == told


@pytest.mark.parametrize("tokens", [-1, "4", True, [], -0.5])
def test_a_count_that_is_none_is_malformed(tokens: Any) -> None:
    assert code(OPENAI, final([], usage={"input_tokens": tokens})) == "INVALID_PROVIDER_RESPONSE"


@pytest.mark.parametrize("tokens", [b"1e999", b"NaN", b"-1e-9"])
def test_a_count_that_is_not_finite_is_malformed(tokens: bytes) -> None:
    whole = b'{"status":"completed","output":[],"usage":{"input_tokens":%b}}' % tokens
    assert whole_code(OPENAI, whole) == "INVALID_PROVIDER_RESPONSE"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([{"type": "error", "message": "private"}], "PROVIDER_FAILED"),
        ([{"type": "response.failed", "response": {}}], "PROVIDER_FAILED"),
        ([{"type": "response.completed", "response": {"status": "failed", "output": []}}], "PROVIDER_FAILED"),
        ([{"type": "response.completed", "response": {"status": "cancelled", "output": []}}], "PROVIDER_FAILED"),
        ([{"type": "response.incomplete", "response": {"status": "incomplete", "output": []}}], "PROVIDER_FAILED"),
        (
            [
                {
                    "type": "response.incomplete",
                    "response": {
                        "status": "incomplete",
                        "output": [],
                        "incomplete_details": {"reason": "content_filter"},
                    },
                }
            ],
            "PROVIDER_FAILED",
        ),
        ([final([message(text("no"), {"type": "refusal", "refusal": "never"})])], "PROVIDER_REFUSAL"),
        ([final([call("{")])], "INVALID_TOOL_ARGUMENTS"),
        ([final([call("")])], "INVALID_TOOL_ARGUMENTS"),
        ([final([call("[1]")])], "INVALID_TOOL_ARGUMENTS"),
        ([final([call(None)])], "INVALID_TOOL_ARGUMENTS"),
        ([final([call("7")])], "INVALID_TOOL_ARGUMENTS"),
        ([{"type": "response.completed"}], "INVALID_PROVIDER_RESPONSE"),
        ([{"type": "response.completed", "response": None}], "INVALID_PROVIDER_RESPONSE"),
        ([{"type": "response.completed", "response": {"status": "completed"}}], "INVALID_PROVIDER_RESPONSE"),
        ([final([{"content": []}])], "INVALID_PROVIDER_RESPONSE"),
        ([{"type": "response.output_text.delta", "delta": 7}], "INVALID_PROVIDER_RESPONSE"),
        ([], "INCOMPLETE_STREAM"),
        ([b"[DONE]"], "INCOMPLETE_STREAM"),
        ([{"type": "response.output_text.delta", "delta": "Hel"}], "INCOMPLETE_STREAM"),
    ],
)
def test_what_is_no_answer_has_its_code(events: list[Any], expected: str) -> None:
    assert code(OPENAI, *events) == expected


@pytest.mark.parametrize("wrong", MALFORMED)
def test_malformed_data_is_told_as_such(wrong: bytes) -> None:
    assert code(OPENAI, wrong) == "INVALID_PROVIDER_RESPONSE"
    assert whole_code(OPENAI, wrong) == "INVALID_PROVIDER_RESPONSE"


def test_arguments_may_be_an_object_or_its_text() -> None:
    told = folded(OPENAI, final([call('{"n": 1}', "a"), call({"n": 2}, "b")])).turn
    assert [(one.id, bytes(one.arguments)) for one in told.tool_calls] == [("a", b'{"n": 1}'), ("b", b'{"n":2}')]


def test_a_cut_answer_says_so_and_never_calls() -> None:
    limit = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    cut = {"type": "response.incomplete", "response": {"output": [message(text("Half"))], **limit}}
    assert folded(OPENAI, cut).turn.finish_reason == "length"
    calling = {"type": "response.incomplete", "response": {"output": [call('{"n":')], **limit}}
    assert code(OPENAI, calling) == "TRUNCATED_TOOL_CALL"


def test_the_state_of_another_adapter_is_no_request() -> None:
    request = ModelRequest(model="m", messages=(AssistantMessage("x", (), Raw(b'{"role":"assistant"}')),))
    with pytest.raises(Exception, match="INTERNAL_ERROR"):
        OPENAI.body(request)
