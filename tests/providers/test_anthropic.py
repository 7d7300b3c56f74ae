"""The codec of Anthropic's Messages, by value."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from actors.ports import AssistantMessage, Media, ModelRequest, ToolCall, ToolDefinition, ToolMessage, UserMessage
from providers.anthropic import Messages
from tests.providers.folding import MALFORMED, code, folded, whole_code

CODEC = Messages()
TOOL = ToolDefinition("lookup", "Looks up.", Raw(b'{"type":"object"}'))
START = {"type": "message_start", "message": {"type": "message", "content": [], "usage": {"input_tokens": 5}}}
STOP = {"type": "message_stop"}


def begin(block: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(kind: str, index: int = 0, **members: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **members}}


def end(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ends(reason: str | None = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


TEXT = begin({"type": "text", "text": ""})


def tool(index: int = 0, **members: Any) -> dict[str, Any]:
    return begin({"type": "tool_use", "id": f"t{index}", "name": "lookup", "input": {}, **members}, index)


def body(request: ModelRequest, codec: Messages = CODEC) -> Any:
    return msgspec.json.decode(codec.body(request))


def test_neighbours_of_one_role_are_one_message_and_nothing_is_empty() -> None:
    native = Raw(b'[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"tool_use","id":"t1"}]')
    call = ToolCall("t1", "lookup", Raw(b'{"n":1}'))
    messages = (
        UserMessage(""),
        UserMessage("one"),
        UserMessage("two"),
        AssistantMessage(""),
        AssistantMessage("three", (call,), native),
        ToolMessage("t1", "lookup", '{"r":1}'),
        ToolMessage("t2", "lookup", '{"r":2}'),
        AssistantMessage("four", (call,)),
    )
    request = ModelRequest(model="m", messages=messages, instructions="Be kind.", tools=(TOOL,))
    assert body(request) == {
        "model": "m",
        "stream": True,
        "max_tokens": 4096,
        "system": "Be kind.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": msgspec.json.decode(native)},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": '{"r":1}'},
                    {"type": "tool_result", "tool_use_id": "t2", "content": '{"r":2}'},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "four"},
                    {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"n": 1}},
                ],
            },
        ],
        "tools": [{"name": "lookup", "description": "Looks up.", "input_schema": {"type": "object"}}],
    }


def test_a_text_without_words_does_not_go_back() -> None:
    words = b'{"type":"text","text":"Hm.","citations":null}'
    thought = b'{"type":"thinking","thinking":"","signature":"x"}'
    native = Raw(b'[{"type":"text","text":"","citations":null},{"type":"text","text":" \\n"},%b,%b]' % (thought, words))
    messages = (UserMessage("one"), AssistantMessage("Hm.", (), native), UserMessage("two"))
    assert b'"content":[%b,%b]' % (thought, words) in CODEC.body(ModelRequest(model="m", messages=messages))


def test_attachments_are_blocks_after_their_labels() -> None:
    media = (Media("image/png", b"\x89", Raw(b'{"id":"s1"}')), Media("application/pdf", b"%", Raw(b'{"id":"s2"}')))
    blocks = body(ModelRequest(model="m", messages=(UserMessage("look", media),)))["messages"][0]["content"]
    assert [block["type"] for block in blocks] == ["text", "text", "image", "text", "document"]
    assert blocks[2]["source"] == {"type": "base64", "media_type": "image/png", "data": "iQ=="}
    assert '{"id":"s2"}' in blocks[3]["text"]


CLOSED = '{"type":"object","properties":{"n":%s},"required":["n"],"additionalProperties":false}'


@pytest.mark.parametrize(
    ("schema", "goes"),
    [
        (CLOSED % '{"type":"integer"}', True),
        (CLOSED % '{"anyOf":[{"type":"string","enum":["a"]},{"type":"null"}]}', True),
        (CLOSED % ('{"type":"array","items":%s}' % (CLOSED % '{"const":1}')), True),
        ('{"type":"object"}', False),
        (CLOSED % '{"type":"integer","minimum":1}', False),
        (CLOSED % '{"type":["string","null"]}', False),
        (CLOSED % '{"type":"array","items":[{"type":"string"}]}', False),
        (CLOSED % '{"type":"object","properties":{}}', False),
        (CLOSED % "true", False),
        ('{"type":"array","items":{"type":"string"}}', False),
        ('{"$ref":"#/definitions/a","definitions":{"a":{"type":"object"}}}', False),
    ],
)
def test_a_schema_goes_to_the_vendor_if_its_own_mode_knows_every_word(schema: str, goes: Any) -> None:
    request = ModelRequest(model="m", messages=(UserMessage("hi"),), output_schema=Raw(schema.encode()))
    told = body(request).get("output_config")
    assert told == ({"format": {"type": "json_schema", "schema": msgspec.json.decode(schema)}} if goes else None)
    assert "output_config" not in body(request, Messages(structured=False))


def test_blocks_grow_and_come_back_as_they_were() -> None:
    told = folded(
        CODEC,
        {"type": "ping"},
        START,
        begin({"type": "thinking", "thinking": "", "signature": ""}),
        delta("thinking_delta", thinking="Let me "),
        delta("thinking_delta", thinking="see"),
        delta("signature_delta", signature="sig"),
        end(),
        begin({"type": "redacted_thinking", "data": "xyz"}, 1),
        end(1),
        begin({"type": "text", "text": "He", "citations": []}, 2),
        delta("text_delta", 2, text="llo"),
        delta("citations_delta", 2, citation={"cited_text": "c"}),
        delta("new_delta", 2, what="ever"),
        end(2),
        {"type": "new_event"},
        begin({"type": "tool_use", "id": "t", "name": "lookup", "input": {}}, 3),
        delta("input_json_delta", 3, partial_json=""),
        delta("input_json_delta", 3, partial_json='{"n": 12345678901234567890123'),
        delta("input_json_delta", 3, partial_json="}"),
        end(3),
        ends(None, output_tokens=2),
        ends("tool_use", output_tokens=7, cache_read_input_tokens=3, cache_creation_input_tokens=2),
        ends(None),
        STOP,
        {"type": "error"},
    )
    assert (told.turn.text, told.texts, told.progress) == ("Hello", ["He", "llo"], 7)
    assert bytes(told.turn.tool_calls[0].arguments) == b'{"n": 12345678901234567890123}'
    assert told.turn.usage == {"inputTokens": 10, "outputTokens": 7, "cachedInputTokens": 3}
    native = bytes(told.turn.native or b"")
    assert b'"input":{"n": 12345678901234567890123}' in native
    assert msgspec.json.decode(native)[:3] == [
        {"type": "thinking", "thinking": "Let me see", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Hello", "citations": [{"cited_text": "c"}]},
    ]


def test_what_the_vendor_calls_itself_goes_back_with_its_input() -> None:
    search = begin({"type": "server_tool_use", "id": "s", "name": "search", "input": {}})
    told = folded(CODEC, START, search, delta("input_json_delta", partial_json='{"q":1}'), end(), ends(), STOP).turn
    assert told.tool_calls == ()
    assert msgspec.json.decode(told.native or b"")[0]["input"] == {"q": 1}


def test_a_call_without_arguments_has_none() -> None:
    told = folded(CODEC, START, tool(), end(), tool(1, input={"n": 1}), end(1), ends("tool_use"), STOP).turn
    assert [bytes(call.arguments) for call in told.tool_calls] == [b"{}", b'{"n":1}']


@pytest.mark.parametrize(
    ("first", "later", "told"),
    [
        (None, {}, None),
        ({"input_tokens": 5}, {"output_tokens": 2}, {"outputTokens": 2}),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
            {"output_tokens": 2, "input_tokens": None},
            {"inputTokens": 5, "outputTokens": 2, "cachedInputTokens": 0},
        ),
    ],
)
def test_what_was_read_is_told_only_if_every_part_is_known(first: Any, later: Any, told: Any) -> None:
    start = {"type": "message_start", "message": {"content": [], "usage": first}}
    assert folded(CODEC, start, {**ends(), "usage": later or None}, STOP).turn.usage == told


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([{"type": "error", "error": {"message": "private"}}], "PROVIDER_FAILED"),
        ([START, {"type": "error"}], "PROVIDER_FAILED"),
        ([TEXT], "INVALID_PROVIDER_RESPONSE"),
        ([START, START], "INVALID_PROVIDER_RESPONSE"),
        ([{"type": "message_start"}], "INVALID_PROVIDER_RESPONSE"),
        ([START, begin({"type": "text"}, 1)], "INVALID_PROVIDER_RESPONSE"),
        ([START, {"type": "content_block_start", "index": 0}], "INVALID_PROVIDER_RESPONSE"),
        ([START, delta("text_delta", text="x")], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, delta("text_delta", 1, text="x")], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, end(), delta("text_delta", text="x")], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, delta("text_delta", text=7)], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, delta("thinking_delta", thinking="x")], "INVALID_PROVIDER_RESPONSE"),
        ([START, begin({"type": "thinking"}), delta("text_delta", text="x")], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, end(), end()], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, end(-1)], "INVALID_PROVIDER_RESPONSE"),
        ([START, TEXT, ends(), STOP], "INVALID_PROVIDER_RESPONSE"),
        ([START, STOP], "INVALID_PROVIDER_RESPONSE"),
        ([START, {"type": "message_delta"}], "INVALID_PROVIDER_RESPONSE"),
        ([START, ends(output_tokens=-1)], "INVALID_PROVIDER_RESPONSE"),
        ([START, ends("refusal"), STOP], "PROVIDER_FAILED"),
        ([START, ends("pause_turn"), STOP], "PROVIDER_FAILED"),
        (
            [START, tool(), delta("input_json_delta", partial_json='{"n'), end(), ends("max_tokens"), STOP],
            "TRUNCATED_TOOL_CALL",
        ),
        (
            [START, tool(), delta("input_json_delta", partial_json='{"n'), end(), ends("tool_use"), STOP],
            "INVALID_TOOL_ARGUMENTS",
        ),
        ([], "INCOMPLETE_STREAM"),
        ([b"[DONE]"], "INCOMPLETE_STREAM"),
        ([START, TEXT, end(), ends()], "INCOMPLETE_STREAM"),
    ],
)
def test_what_is_no_answer_has_its_code(events: list[Any], expected: str) -> None:
    assert code(CODEC, *events) == expected


def test_blocks_have_a_bound() -> None:
    blocks = [event for index in range(1_026) for event in (begin({"type": "text", "text": ""}, index), end(index))]
    assert code(CODEC, START, *blocks) == "INVALID_PROVIDER_RESPONSE"
    assert folded(CODEC, START, *blocks[:-2], ends(), STOP).turn.text == ""


@pytest.mark.parametrize("wrong", MALFORMED)
def test_malformed_data_is_told_as_such(wrong: bytes) -> None:
    assert code(CODEC, START, wrong) == "INVALID_PROVIDER_RESPONSE"
    assert whole_code(CODEC, wrong) == "INVALID_PROVIDER_RESPONSE"


def test_a_document_that_is_an_error_is_a_failure() -> None:
    assert whole_code(CODEC, {"type": "error", "error": {"message": "private"}}) == "PROVIDER_FAILED"
    assert whole_code(CODEC, {"hello": "world"}) == "INVALID_PROVIDER_RESPONSE"
