"""Google's Gemini API (providers §6.4).

Nothing here waits, reads a clock or rolls a die; the ids of calls that came without one are made outside.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from actors.ports import AssistantMessage, Media, Message, ModelRequest, ToolCall, ToolMessage, Turn, UserMessage
from providers.codec import DONE, Said
from providers.failures import failed
from providers.vendor_json import (
    Count,
    arguments,
    base64,
    decoded,
    encoded,
    given,
    is_given,
    is_object_schema,
    label,
    stored,
)

_REASONS: Mapping[str, bool] = {"STOP": False, "MAX_TOKENS": True}
"""Whether an end says that the output limit cut the answer; any other end is a failure."""


class GenerateContent(Struct, frozen=True, kw_only=True):
    """The codec; *new_id* names a call to which the vendor gave no id."""

    new_id: Callable[[], str]
    structured: bool = True

    def path(self, model: str) -> str:
        """Where requests for *model* go."""
        return f"models/{quote(model.removeprefix('models/'), safe='')}:streamGenerateContent?alt=sse"

    def body(self, request: ModelRequest) -> bytes:
        """The JSON of *request*."""
        system = None if request.instructions is None else {"parts": [{"text": request.instructions}]}
        functions = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.input_schema}
            for tool in request.tools
        ]
        members = {
            "contents": _merged(request.messages),
            "generationConfig": {"maxOutputTokens": request.max_output_tokens, **self._format(request)},
            **given(
                systemInstruction=system,
                tools=[{"functionDeclarations": functions}] if functions else None,
            ),
        }
        return msgspec.json.encode(members)

    def _format(self, request: ModelRequest) -> dict[str, Any]:
        """The vendor's own mode for JSON, which many of its models refuse beside functions."""
        schema = request.output_schema
        if schema is None or not self.structured or request.tools or not is_object_schema(schema):
            return {}
        return {"responseMimeType": "application/json", "responseJsonSchema": schema}

    def reader(self) -> "_Reader":
        """What reads the chunks of one answer."""
        return _Reader(self.new_id)

    def whole(self, data: bytes) -> Turn:
        """The turn of an answer in one piece, which looks like a chunk."""
        reader = self.reader()
        reader.read(data)
        return reader.turn()


class _Call(Struct):
    name: str
    id: str = ""
    args: Raw = Raw(b"{}")


class _Part(Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    thought_signature: Raw = Raw()
    function_call: _Call | None = None


class _Content(Struct):
    parts: list[Raw] = []


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class _Usage(Struct, rename="camel"):
    prompt_token_count: Count = None
    candidates_token_count: Count = None
    thoughts_token_count: Count = None
    cached_content_token_count: Count = None
    total_token_count: Count = None


class _Chunk(Struct, rename="camel"):
    error: Any = None
    prompt_feedback: _Feedback | None = None
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_PART = msgspec.json.Decoder(_Part)
_PARTS = msgspec.json.Decoder(list[Raw])


class _Reader:
    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._parts: list[Raw] = []
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._reason: str | None = None
        self._usage: _Usage | None = None

    def read(self, data: bytes) -> Said:
        if data == DONE:
            return Said(ended=True)
        chunk = decoded(_CHUNK, data)
        blocked = chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None
        if chunk.error is not None or blocked:
            raise failed("PROVIDER_FAILED")
        candidates = chunk.candidates or []
        if len(candidates) > 1:
            raise failed("INVALID_PROVIDER_RESPONSE")
        self._usage = chunk.usage_metadata or self._usage
        said = [self._candidate(candidate) for candidate in candidates]
        return said[0] if said else Said()

    def _candidate(self, candidate: _Candidate) -> Said:
        self._reason = candidate.finish_reason or self._reason
        said = [self._part(part) for part in candidate.content.parts] if candidate.content else []
        return Said("".join(one.text for one in said), progress=any(one.progress for one in said))

    def _part(self, raw: Raw) -> Said:
        part = decoded(_PART, raw)
        self._parts.append(raw.copy())
        if part.function_call is not None:
            call = part.function_call
            self._calls.append(ToolCall(call.id or self._new_id(), call.name, arguments(call.args)))
        text = "" if part.thought else part.text
        self._text.append(text)
        worked = part.thought or part.function_call is not None or is_given(part.thought_signature)
        return Said(text, progress=worked)

    def turn(self) -> Turn:
        if self._reason is None:
            raise failed("INCOMPLETE_STREAM")
        cut = _REASONS.get(self._reason)
        if cut is None:
            raise failed("PROVIDER_FAILED")
        if cut and self._calls:
            raise failed("TRUNCATED_TOOL_CALL")
        return Turn(
            text="".join(self._text),
            tool_calls=tuple(self._calls),
            usage=_counted(self._usage),
            native=encoded(self._parts),
            finish_reason="length" if cut else "stop",
        )


def _counted(told: _Usage | None) -> Mapping[str, Any] | None:
    if told is None:
        return None
    return given(
        inputTokens=told.prompt_token_count,
        outputTokens=_output(told),
        cachedInputTokens=told.cached_content_token_count,
        reasoningTokens=told.thoughts_token_count,
    )


def _output(told: _Usage) -> Count:
    """All that was written, thoughts included: their sum, else what the total leaves."""
    match told:
        case _Usage(candidates_token_count=int() | float() as said, thoughts_token_count=int() | float() as thought):
            return said + thought
        case _Usage(total_token_count=int() | float() as total, prompt_token_count=int() | float() as asked):
            return total - asked
        case _:
            return None


def _merged(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages as the vendor takes them: neighbours of one role are one, and none is without parts."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        role = "model" if isinstance(message, AssistantMessage) else "user"
        parts = list(_parts(message))
        if merged and merged[-1]["role"] == role:
            merged[-1]["parts"].extend(parts)
        elif parts:
            merged.append({"role": role, "parts": parts})
    return merged


def _parts(message: Message) -> Iterator[Any]:
    match message:
        case UserMessage(content, attachments):
            yield {"text": content}
            for media in attachments:
                yield from _media(media)
        case AssistantMessage(native=Raw() as native):
            yield from stored(_PARTS, native)
        case AssistantMessage(content, calls):
            if content or not calls:
                yield {"text": content}
            for call in calls:
                yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        case ToolMessage(call_id, name, content):
            response = {"result": Raw(content.encode())}
            yield {"functionResponse": {"id": call_id, "name": name, "response": response}}


def _media(media: Media) -> Iterator[dict[str, Any]]:
    yield {"text": label(media)}
    yield {"inlineData": {"mimeType": media.media_type, "data": base64(media)}}
