"""The codec of chat completions, by value."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from actors.ports import AssistantMessage, Media, ModelRequest, ToolCall, ToolDefinition, ToolMessage, UserMessage
from providers.chat_completions import ChatCompletions
from tests.providers.folding import MALFORMED, code, folded, whole_code

CHAT = ChatCompletions()
DONE = b"[DONE]"
SCHEMA = Raw(b'{"type":"object"}')
TOOL = ToolDefinition("lookup", "Looks up.", SCHEMA)


def chunk(delta: Any = None, reason: str | None = None, **members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason}], **members}


def piece(index: int, arguments: str = "", **members: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}, **members}]})


STOP = chunk(reason="stop")


def body(request: ModelRequest, codec: ChatCompletions = CHAT) -> Any:
    return msgspec.json.decode(codec.body(request))


def test_a_request_is_what_servers_take() -> None:
    native = Raw(b'{"role":"assistant","content":null,"tool_calls":[{"id":"c1"}],"reasoning_content":"hm"}')
    call = ToolCall("c1", "lookup", Raw(b'{"n":1}'))
    messages = (
        UserMessage("hi"),
        AssistantMessage("", (call,), native),
        ToolMessage("c1", "lookup", '{"r":1}'),
        AssistantMessage("done"),
        AssistantMessage("more", (call,)),
    )
    request = ModelRequest(model="m", messages=messages, instructions="Be kind.", tools=(TOOL,))
    written = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"n":1}'}}
    function = {"name": "lookup", "description": "Looks up.", "parameters": {"type": "object"}}
    assert body(request) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 4096,
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "hi"},
            msgspec.json.decode(native),
            {"role": "tool", "tool_call_id": "c1", "content": '{"r":1}'},
            {"role": "assistant", "content": "done"},
            {"role": "assistant", "content": "more", "tool_calls": [written]},
        ],
        "tools": [{"type": "function", "function": function}],
    }


def test_pictures_are_taken_and_documents_are_not() -> None:
    picture = Media("image/webp", b"RIFF", Raw(b'{"id":"s1"}'))
    parts = body(ModelRequest(model="m", messages=(UserMessage("look", (picture,)),)))["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "text", "image_url"]
    assert parts[2]["image_url"] == {"url": "data:image/webp;base64,UklGRg=="}
    document = Media("application/pdf", b"%PDF", Raw(b'{"id":"s1"}'))
    with pytest.raises(Exception, match="UNSUPPORTED_MODALITY"):
        CHAT.body(ModelRequest(model="m", messages=(UserMessage("look", (document,)),)))


def test_a_schema_goes_to_the_server_only_where_that_is_wanted() -> None:
    request = ModelRequest(model="m", messages=(UserMessage("hi"),), output_schema=SCHEMA)
    assert "response_format" not in body(request)
    told = body(request, ChatCompletions(structured=True))["response_format"]
    assert told == {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}


def test_chunks_add_up() -> None:
    told = folded(
        CHAT,
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "hm"}),
        chunk({"content": "Hel"}),
        {"choices": [{"finish_reason": None}]},
        chunk({"content": "lo"}, usage={"prompt_tokens": 1}),
        STOP,
        chunk({"content": None}),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 1}}},
        {"choices": [], "usage": None},
        DONE,
        b"what follows is not read",
    )
    assert (told.turn.text, told.texts, told.progress) == ("Hello", ["Hel", "lo"], 2)
    assert told.turn.usage == {"inputTokens": 5, "reasoningTokens": 1}
    assert told.turn.native is None


@pytest.mark.parametrize(
    ("total", "wrote"),
    [(18, 13), (14, 9), (None, 9), (18.5, 9)],
)
def test_reasoning_is_part_of_the_output_even_where_it_is_counted_beside(total: Any, wrote: int) -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": total}
    usage = {**counts, "completion_tokens_details": {"reasoning_tokens": 4}}
    told = folded(CHAT, STOP, {"choices": [], "usage": usage}, DONE).turn.usage
    assert told == {"inputTokens": 5, "outputTokens": wrote, "reasoningTokens": 4}


def test_calls_grow_by_their_index() -> None:
    named = {"name": "lookup", "arguments": ""}
    told = folded(
        CHAT,
        chunk({"content": "Wait. ", "reasoning_content": "hm"}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": named}, {"index": 1, "id": "b", "function": named}]}),
        piece(1, '{"n"'),
        piece(0, '{"n": 1'),
        piece(1, ":2}"),
        piece(0, "}"),
        chunk({"tool_calls": [{"index": 2, "id": "c", "function": {"name": "lookup", "arguments": "{}"}}]}),
        chunk(reason="tool_calls"),
        DONE,
    ).turn
    assert [(call.id, bytes(call.arguments)) for call in told.tool_calls] == [
        ("a", b'{"n": 1}'),
        ("b", b'{"n":2}'),
        ("c", b"{}"),
    ]
    native = msgspec.json.decode(told.native or b"")
    assert (native["role"], native["content"], native["reasoning_content"]) == ("assistant", "Wait. ", "hm")
    assert native["tool_calls"][0] == {
        "id": "a",
        "type": "function",
        "function": {"name": "lookup", "arguments": '{"n": 1}'},
    }


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([{"error": {"message": "private"}}], "PROVIDER_FAILED"),
        ([{"error": "private", "choices": None}], "PROVIDER_FAILED"),
        ([{}], "INVALID_PROVIDER_RESPONSE"),
        ([{"choices": None}], "INVALID_PROVIDER_RESPONSE"),
        ([{"choices": {}}], "INVALID_PROVIDER_RESPONSE"),
        ([{"choices": [{}, {}]}], "INVALID_PROVIDER_RESPONSE"),
        ([chunk({"content": 7})], "INVALID_PROVIDER_RESPONSE"),
        ([piece(1)], "INVALID_PROVIDER_RESPONSE"),
        ([piece(-1)], "INVALID_PROVIDER_RESPONSE"),
        ([*map(piece, range(33))], "INVALID_PROVIDER_RESPONSE"),
        ([chunk(usage={"prompt_tokens": -1})], "INVALID_PROVIDER_RESPONSE"),
        ([chunk(reason="content_filter"), DONE], "PROVIDER_FAILED"),
        ([chunk(reason="function_call"), DONE], "PROVIDER_FAILED"),
        ([chunk({"refusal": "no"}), STOP, DONE], "PROVIDER_REFUSAL"),
        ([piece(0, '{"n":', id="a"), chunk(reason="length"), DONE], "TRUNCATED_TOOL_CALL"),
        ([piece(0, "", id="a"), STOP, DONE], "INVALID_TOOL_ARGUMENTS"),
        ([piece(0, "[]", id="a"), STOP, DONE], "INVALID_TOOL_ARGUMENTS"),
        ([piece(0, '{"n":1}x', id="a"), STOP, DONE], "INVALID_TOOL_ARGUMENTS"),
        ([], "INCOMPLETE_STREAM"),
        ([DONE], "INCOMPLETE_STREAM"),
        ([STOP], "INCOMPLETE_STREAM"),
        ([chunk({"content": "Hel"}), DONE], "INCOMPLETE_STREAM"),
    ],
)
def test_what_is_no_answer_has_its_code(events: list[Any], expected: str) -> None:
    assert code(CHAT, *events) == expected


@pytest.mark.parametrize("wrong", MALFORMED)
def test_malformed_data_is_told_as_such(wrong: bytes) -> None:
    assert code(CHAT, wrong) == "INVALID_PROVIDER_RESPONSE"
    assert whole_code(CHAT, wrong) == "INVALID_PROVIDER_RESPONSE"


def whole(message: Any, reason: str = "stop", **members: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": reason}], **members}


def test_an_answer_may_come_as_one_document() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "lookup", "arguments": {"n": 1}}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls, "extra": 12345678901234567890123}
    turn = CHAT.whole(msgspec.json.encode(whole({"content": "Hi"}, usage={"prompt_tokens": 2})))
    assert (turn.text, turn.usage, turn.native) == ("Hi", {"inputTokens": 2}, None)
    turn = CHAT.whole(msgspec.json.encode(whole(message, "tool_calls")))
    assert bytes(turn.tool_calls[0].arguments) == b'{"n":1}'
    assert msgspec.json.decode(turn.native or b"") == message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"error": {"message": "private"}}, "PROVIDER_FAILED"),
        ({"choices": []}, "INVALID_PROVIDER_RESPONSE"),
        (whole({"content": "Hi"}, "odd"), "PROVIDER_FAILED"),
        (whole({"content": "Hi", "refusal": "no"}), "PROVIDER_REFUSAL"),
        (whole({"content": None, "tool_calls": [{"id": "a"}]}, "length"), "TRUNCATED_TOOL_CALL"),
        (whole({"content": None, "tool_calls": [{"id": "a"}]}), "INVALID_TOOL_ARGUMENTS"),
    ],
)
def test_a_document_that_is_no_answer_has_its_code(document: Any, expected: str) -> None:
    assert whole_code(CHAT, document) == expected


def test_text_that_no_utf_8_can_carry_is_malformed() -> None:
    lone = b'{"choices":[{"delta":{"reasoning_content":"\\ud800","tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}]}'
    assert code(CHAT, lone, DONE) == "INVALID_PROVIDER_RESPONSE"
    arguments = b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\\ud800}"}}]},"finish_reason":"stop"}]}'
    assert code(CHAT, arguments, DONE) in {"INVALID_PROVIDER_RESPONSE", "INVALID_TOOL_ARGUMENTS"}
