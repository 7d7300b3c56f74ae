"""What a server of chat completions answers: chunks that add up to one message (providers §6.2).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from actors.ports import ToolCall, Turn
from providers.codec import DONE, Said
from providers.failures import failed
from providers.finish import Finish, finish
from providers.openai_usage import ChatUsage
from providers.vendor_json import arguments, decoded, encoded

CALLS_MAX = 32
_ENDS: Mapping[str, Finish] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: Raw = Raw()


class _Call(Struct):
    id: str = ""
    function: _Function = _Function()


class _Message(Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _FunctionPiece(Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPiece(Struct):
    index: Annotated[int, Meta(ge=0, lt=CALLS_MAX)]
    id: str | None = None
    function: _FunctionPiece | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(Struct):
    error: Any = None
    choices: list[_Choice] | None = None
    usage: ChatUsage | None = None


class _WholeChoice(Struct):
    message: Raw
    finish_reason: str | None = None


class _Completion(Struct):
    error: Any = None
    choices: list[_WholeChoice] | None = None
    usage: ChatUsage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_COMPLETION = msgspec.json.Decoder(_Completion)
_MESSAGE = msgspec.json.Decoder(_Message)


class _Growing:
    """A call whose pieces are still coming."""

    def __init__(self) -> None:
        self.id: list[str] = []
        self.name: list[str] = []
        self.arguments: list[str] = []

    def add(self, piece: _CallPiece) -> None:
        function = piece.function or _FunctionPiece()
        self.id.append(piece.id or "")
        self.name.append(function.name or "")
        self.arguments.append(function.arguments or "")

    @property
    def written(self) -> dict[str, Any]:
        """The call as the vendor would have written it whole."""
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"id": "".join(self.id), "type": "function", "function": function}


class Reader:
    """Folds the chunks of one answer."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "reasoning": [], "refusal": []}
        self._calls: list[_Growing] = []
        self._reason: str | None = None
        self._usage: ChatUsage | None = None
        self._done = False

    def read(self, data: bytes) -> Said:
        """What one chunk says; see `providers.codec`."""
        if data == DONE:
            self._done = True
            return Said(ended=True)
        chunk = decoded(_CHUNK, data)
        if chunk.error is not None:
            raise failed("PROVIDER_FAILED")
        if chunk.choices is None or len(chunk.choices) > 1:
            raise failed("INVALID_PROVIDER_RESPONSE")
        self._usage = chunk.usage or self._usage
        said = [self._choice(choice) for choice in chunk.choices]
        return said[0] if said else Said()

    def _choice(self, choice: _Choice) -> Said:
        self._reason = choice.finish_reason or self._reason
        delta = choice.delta or _Delta()
        for name, texts in self._texts.items():
            texts.append(getattr(delta, name) or "")
        for piece in delta.tool_calls or ():
            self._call(piece)
        worked = bool(delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls)
        return Said(delta.content or "", progress=worked)

    def _call(self, piece: _CallPiece) -> None:
        if piece.index > len(self._calls):
            raise failed("INVALID_PROVIDER_RESPONSE")
        if piece.index == len(self._calls):
            self._calls.append(_Growing())
        self._calls[piece.index].add(piece)

    def turn(self) -> Turn:
        """The turn that the chunks add up to; see `providers.codec`."""
        if not self._done or self._reason is None:
            raise failed("INCOMPLETE_STREAM")
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        calls = [call.written for call in self._calls]
        native = encoded(_native(texts, calls)) if calls else None
        told = [_Call(call["id"], _function(call["function"])) for call in calls]
        return _turn(_Message(texts["content"], texts["refusal"], told), self._reason, self._usage, native)


def whole(data: bytes) -> Turn:
    """The turn of a completion object."""
    completion = decoded(_COMPLETION, data)
    if completion.error is not None:
        raise failed("PROVIDER_FAILED")
    if completion.choices is None or len(completion.choices) != 1:
        raise failed("INVALID_PROVIDER_RESPONSE")
    choice = completion.choices[0]
    message = decoded(_MESSAGE, choice.message)
    native = choice.message.copy() if message.tool_calls else None
    return _turn(message, choice.finish_reason, completion.usage, native)


def _function(written: Mapping[str, str]) -> _Function:
    return _Function(written["name"], encoded(written["arguments"]))


def _native(texts: Mapping[str, str], calls: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message as it must come back with the results of its calls."""
    thought = {name: texts[name] for name in ("reasoning_content", "reasoning") if texts[name]}
    return {"role": "assistant", "content": texts["content"] or None, "tool_calls": calls} | thought


def _turn(message: _Message, reason: str | None, told: ChatUsage | None, native: Raw | None) -> Turn:
    calls = message.tool_calls or []
    ended = finish(reason, _ENDS, calls=bool(calls), refused=bool(message.refusal))
    return Turn(
        text=message.content or "",
        tool_calls=tuple(_tool_call(call) for call in calls),
        usage=told.counted if told else None,
        native=native,
        finish_reason=ended,
    )


def _tool_call(call: _Call) -> ToolCall:
    return ToolCall(call.id, call.function.name or "", arguments(call.function.arguments))
