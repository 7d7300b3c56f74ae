"""What Google's Gemini API answers: chunks of parts that add up to one content (providers §6.4).

Nothing here waits, reads a clock or rolls a die; the ids of calls that came without one are made outside.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.ports import ToolCall, Turn
from providers.codec import DONE, Said
from providers.failures import failed
from providers.finish import Finish, finish
from providers.vendor_json import Count, arguments, decoded, encoded, given, is_given

_ENDS: Mapping[str, Finish] = {"STOP": "stop", "MAX_TOKENS": "length"}


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


class Reader:
    """Folds the chunks of one answer; *new_id* names a call to which the vendor gave no id."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._parts: list[Raw] = []
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._reason: str | None = None
        self._usage: _Usage | None = None

    def read(self, data: bytes) -> Said:
        """What one chunk says; see `providers.codec`."""
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
        """The turn that the chunks add up to; see `providers.codec`."""
        if self._reason is None:
            raise failed("INCOMPLETE_STREAM")
        ended = finish(self._reason, _ENDS, calls=bool(self._calls))
        return Turn(
            text="".join(self._text),
            tool_calls=tuple(self._calls),
            usage=_counted(self._usage),
            native=encoded(self._parts),
            finish_reason=ended,
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
