"""The codec of Gemini, by value."""

from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from actors.ports import AssistantMessage, Media, ModelRequest, ToolCall, ToolDefinition, ToolMessage, UserMessage
from providers.gemini import GenerateContent
from tests.providers.folding import MALFORMED, code, folded, whole_code

NUMBERS = count(1)
CODEC = GenerateContent(new_id=lambda: f"made-{next(NUMBERS)}")
TOOL = ToolDefinition("lookup", "Looks up.", Raw(b'{"type":"object"}'))


def chunk(*parts: dict[str, Any], reason: str | None = None, **members: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": reason}
    return {"candidates": [candidate], **members}


STOP = chunk(reason="STOP")


def body(request: ModelRequest, codec: GenerateContent = CODEC) -> Any:
    return msgspec.json.decode(codec.body(request))


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-x", "models/gemini-x:streamGenerateContent?alt=sse"),
        ("models/gemini-x", "models/gemini-x:streamGenerateContent?alt=sse"),
        ("a/b:c[d]", "models/a%2Fb%3Ac%5Bd%5D:streamGenerateContent?alt=sse"),
    ],
)
def test_the_model_is_part_of_the_path(model: str, path: str) -> None:
    assert CODEC.path(model) == path


def test_a_request_is_what_the_vendor_takes() -> None:
    native = Raw(b'[{"text":"hm","thought":true},{"functionCall":{"name":"lookup"},"thoughtSignature":"x"}]')
    call = ToolCall("t1", "lookup", Raw(b'{"n":1}'))
    messages = (
        UserMessage("one"),
        UserMessage("two"),
        AssistantMessage("", (call,), native),
        ToolMessage("t1", "lookup", '{"r":12345678901234567890123}'),
        AssistantMessage("", (), Raw(b"[]")),
        ToolMessage("t2", "lookup", "null"),
        AssistantMessage("three", (call,)),
    )
    request = ModelRequest(model="m", messages=messages, instructions="Be kind.", tools=(TOOL,))
    assert body(request) == {
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "generationConfig": {"maxOutputTokens": 4096},
        "contents": [
            {"role": "user", "parts": [{"text": "one"}, {"text": "two"}]},
            {"role": "model", "parts": msgspec.json.decode(native)},
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "t1",
                            "name": "lookup",
                            "response": {"result": {"r": 12345678901234567890123}},
                        }
                    },
                    {"functionResponse": {"id": "t2", "name": "lookup", "response": {"result": None}}},
                ],
            },
            {
                "role": "model",
                "parts": [{"text": "three"}, {"functionCall": {"id": "t1", "name": "lookup", "args": {"n": 1}}}],
            },
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "lookup", "description": "Looks up.", "parametersJsonSchema": {"type": "object"}}
                ]
            }
        ],
    }


def test_attachments_are_parts_after_their_labels() -> None:
    media = (Media("application/pdf", b"%", Raw(b'{"id":"s2"}')),)
    parts = body(ModelRequest(model="m", messages=(UserMessage("look", media),)))["contents"][0]["parts"]
    assert parts[0] == {"text": "look"}
    assert '{"id":"s2"}' in parts[1]["text"]
    assert parts[2] == {"inlineData": {"mimeType": "application/pdf", "data": "JQ=="}}


def test_a_schema_goes_to_the_vendor_unless_there_are_functions() -> None:
    request = ModelRequest(model="m", messages=(UserMessage("hi"),), output_schema=Raw(b'{"type":"object"}'))
    told = {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}}
    assert body(request)["generationConfig"] == {"maxOutputTokens": 4096, **told}
    with_tools = msgspec.structs.replace(request, tools=(TOOL,))
    assert body(with_tools)["generationConfig"] == {"maxOutputTokens": 4096}
    assert body(request, GenerateContent(new_id=str, structured=False))["generationConfig"] == {"maxOutputTokens": 4096}


def test_chunks_add_up_until_the_stream_ends() -> None:
    told = folded(
        CODEC,
        {"usageMetadata": {"promptTokenCount": 1}},
        chunk({"text": "hm", "thought": True}),
        chunk({"text": "Hel"}, {"text": "lo"}),
        chunk({"text": "", "thoughtSignature": "sig"}),
        {"candidates": [{"finishReason": None}]},
        STOP,
        {"candidates": [], "usageMetadata": {"promptTokenCount": 5, "totalTokenCount": 9}},
        chunk(),
    )
    assert (told.turn.text, told.texts, told.progress) == ("Hello", ["Hello"], 2)
    assert told.turn.usage == {"inputTokens": 5, "outputTokens": 4}
    assert msgspec.json.decode(told.turn.native or b"") == [
        {"text": "hm", "thought": True},
        {"text": "Hel"},
        {"text": "lo"},
        {"text": "", "thoughtSignature": "sig"},
    ]


def test_a_call_without_an_id_gets_one_of_ours() -> None:
    called = {"functionCall": {"name": "lookup", "args": {"n": 1}}}
    told, _, progress = folded(CODEC, chunk(called, {"functionCall": {"name": "lookup", "id": "theirs"}}), STOP)
    assert progress == 1
    assert [(call.id.split("-")[0], bytes(call.arguments)) for call in told.tool_calls] == [
        ("made", b'{"n":1}'),
        ("theirs", b"{}"),
    ]
    assert msgspec.json.decode(told.native or b"")[0] == called


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"candidatesTokenCount": 3, "thoughtsTokenCount": 2}, {"outputTokens": 5, "reasoningTokens": 2}),
        ({"candidatesTokenCount": 3}, {}),
        ({"cachedContentTokenCount": 2, "promptTokenCount": 4}, {"inputTokens": 4, "cachedInputTokens": 2}),
        ({}, {}),
    ],
)
def test_usage_is_what_the_vendor_tells(usage: Any, told: Any) -> None:
    assert folded(CODEC, {**STOP, "usageMetadata": usage}).turn.usage == told


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([{"error": {"message": "private"}}], "PROVIDER_FAILED"),
        ([{"promptFeedback": {"blockReason": "SAFETY"}}], "PROVIDER_FAILED"),
        ([{"candidates": [{}, {}]}], "INVALID_PROVIDER_RESPONSE"),
        ([{"candidates": {}}], "INVALID_PROVIDER_RESPONSE"),
        ([chunk({"text": 7})], "INVALID_PROVIDER_RESPONSE"),
        ([chunk({"functionCall": {}})], "INVALID_PROVIDER_RESPONSE"),
        ([chunk({"functionCall": {"name": "f", "args": [1]}})], "INVALID_TOOL_ARGUMENTS"),
        ([{**STOP, "usageMetadata": {"promptTokenCount": -1}}], "INVALID_PROVIDER_RESPONSE"),
        ([chunk(reason="SAFETY")], "PROVIDER_FAILED"),
        ([chunk(reason="MALFORMED_FUNCTION_CALL")], "PROVIDER_FAILED"),
        ([chunk({"functionCall": {"name": "f"}}, reason="MAX_TOKENS")], "TRUNCATED_TOOL_CALL"),
        ([], "INCOMPLETE_STREAM"),
        ([b"[DONE]"], "INCOMPLETE_STREAM"),
        ([chunk({"text": "Hel"})], "INCOMPLETE_STREAM"),
    ],
)
def test_what_is_no_answer_has_its_code(events: list[Any], expected: str) -> None:
    assert code(CODEC, *events) == expected


@pytest.mark.parametrize("wrong", [one for one in MALFORMED if one != b'{"type":7}'])
def test_malformed_data_is_told_as_such(wrong: bytes) -> None:
    assert code(CODEC, wrong) == "INVALID_PROVIDER_RESPONSE"
    assert whole_code(CODEC, wrong) == "INVALID_PROVIDER_RESPONSE"
