"""What Anthropic's Messages API answers: blocks that grow one after the other (providers §6.3).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.ports import ToolCall, Turn
from providers.codec import DONE, Said
from providers.failures import failed
from providers.vendor_json import Count, arguments, decoded, encoded, given, is_given

BLOCKS_MAX = 1_025

_ENDS: Mapping[str, bool] = {"end_turn": False, "stop_sequence": False, "tool_use": False, "max_tokens": True}
"""Whether an end says that the output limit cut the answer; any other, `refusal` among them, is a failure (providers §6.3)."""
_GROWING = ("text", "thinking", "signature")
"""The members of a block that come in pieces as they are; the arguments of a call come as pieces of JSON."""


class _Usage(Struct):
    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None

    def with_later(self, later: "_Usage | None") -> "_Usage":
        """The counts, as *later* ones have them where they are known."""
        told = {} if later is None else {name: getattr(later, name) for name in later.__struct_fields__}
        return msgspec.structs.replace(self, **{name: count for name, count in told.items() if count is not None})


class _Message(Struct, rename={"kind": "type"}):
    kind: str = "message"
    content: list[dict[str, Raw]] = []
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Delta(Struct, rename={"kind": "type"}):
    kind: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: Raw = Raw()
    stop_reason: str | None = None


class _Event(Struct, rename={"kind": "type"}):
    kind: str
    message: _Message | None = None
    index: int = -1
    content_block: dict[str, Raw] | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Names(Struct, rename={"kind": "type"}):
    """What is read of a block: its kind, its text, and what a call says of itself."""

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)
_NAMES = msgspec.json.Decoder(_Names)
_TEXT = msgspec.json.Decoder(str)


class _Block:
    """A part of the answer: as it began, and what was added to it."""

    def __init__(self, members: Mapping[str, Raw]) -> None:
        self._members = {name: value.copy() for name, value in members.items()}
        self._added: dict[str, list[str]] = {}
        self._citations: list[Raw] = []
        self.names = decoded(_NAMES, encoded(self._members))
        self.is_open = True

    def add(self, delta: _Delta) -> Said:
        match delta:
            case _Delta("text_delta", text=text):
                return self._more("text", text, Said(text))
            case _Delta("input_json_delta", partial_json=piece):
                return self._more("input", piece, Said(progress=True))
            case _Delta("thinking_delta", thinking=piece):
                return self._more("thinking", piece, Said(progress=True))
            case _Delta("signature_delta", signature=piece):
                return self._more("signature", piece, Said(progress=True))
            case _Delta("citations_delta", citation=citation) if is_given(citation):
                self._citations.append(citation.copy())
                return Said(progress=True)
            case _:
                return Said()

    def _more(self, member: str, piece: str, said: Said) -> Said:
        self._added.setdefault(member, []).append(piece)
        return said

    @property
    def text(self) -> str:
        """The visible text."""
        return self.names.text + "".join(self._added.get("text", ())) if self.names.kind == "text" else ""

    @property
    def input(self) -> Raw:
        """The arguments of a call: what was streamed, else what it began with."""
        streamed = "".join(self._added.get("input", ()))
        return arguments(encoded(streamed) if streamed else self._members.get("input", Raw(b"{}")))

    @property
    def native(self) -> Mapping[str, Any]:
        """The block as the vendor wants it back."""
        grown: dict[str, Raw] = {name: self._grown(name) for name in _GROWING if name in self._added}
        if self.names.kind == "tool_use":
            grown["input"] = self.input
        if self._citations:
            grown["citations"] = encoded(self._citations)
        return {**self._members, **grown}

    def _grown(self, member: str) -> Raw:
        began = decoded(_TEXT, self._members.get(member, Raw(b'""')))
        return encoded(began + "".join(self._added[member]))


class Reader:
    """Folds the events of one answer."""

    def __init__(self) -> None:
        self._begun = False
        self._ended = False
        self._blocks: list[_Block] = []
        self._reason: str | None = None
        self._usage: _Usage | None = None

    def read(self, data: bytes) -> Said:
        """What one event says; see `providers.codec`."""
        if data == DONE:
            return Said(ended=True)
        event = decoded(_EVENT, data)
        if event.kind == "ping":
            return Said()
        if event.kind == "error":
            raise failed("PROVIDER_FAILED")
        if self._begun == (event.kind == "message_start"):
            raise failed("INVALID_PROVIDER_RESPONSE")
        return self._told(event)

    def _told(self, event: _Event) -> Said:
        match event:
            case _Event("message_start", message=_Message() as message):
                self._begun = True
                self._usage = message.usage
                return Said()
            case _Event("content_block_start", index=index, content_block=dict() as members):
                return self._start(index, members)
            case _Event("content_block_delta", index=index, delta=_Delta() as delta):
                return self._open(index).add(delta)
            case _Event("content_block_stop", index=index):
                self._open(index).is_open = False
                return Said()
            case _Event("message_delta", delta=_Delta(stop_reason=reason)):
                self._reason = reason or self._reason
                self._usage = (self._usage or _Usage()).with_later(event.usage) if event.usage else self._usage
                return Said()
            case _Event("message_stop"):
                return self._stop()
            case _Event("message_start" | "content_block_start" | "content_block_delta" | "message_delta"):
                raise failed("INVALID_PROVIDER_RESPONSE")
            case _:
                return Said()

    def _start(self, index: int, members: Mapping[str, Raw]) -> Said:
        if index != len(self._blocks) or index >= BLOCKS_MAX:
            raise failed("INVALID_PROVIDER_RESPONSE")
        block = _Block(members)
        self._blocks.append(block)
        return Said(block.text)

    def _open(self, index: int) -> _Block:
        if not 0 <= index < len(self._blocks) or not self._blocks[index].is_open:
            raise failed("INVALID_PROVIDER_RESPONSE")
        return self._blocks[index]

    def _stop(self) -> Said:
        if self._reason is None or any(block.is_open for block in self._blocks):
            raise failed("INVALID_PROVIDER_RESPONSE")
        self._ended = True
        return Said(ended=True)

    def turn(self) -> Turn:
        """The turn that the events add up to; see `providers.codec`."""
        if not self._ended:
            raise failed("INCOMPLETE_STREAM")
        return _turn(self._blocks, self._reason, self._usage)


def whole(data: bytes) -> Turn:
    """The turn of a message object."""
    message = decoded(_MESSAGE, data)
    if message.kind == "error":
        raise failed("PROVIDER_FAILED")
    return _turn([_Block(members) for members in message.content], message.stop_reason, message.usage)


def _turn(blocks: list[_Block], reason: str | None, told: _Usage | None) -> Turn:
    cut = _ENDS.get(reason or "")
    if cut is None:
        raise failed("PROVIDER_FAILED")
    calls = [block for block in blocks if block.names.kind == "tool_use"]
    if cut and calls:
        raise failed("TRUNCATED_TOOL_CALL")
    return Turn(
        text="".join(block.text for block in blocks),
        tool_calls=tuple(ToolCall(block.names.id, block.names.name, block.input) for block in calls),
        usage=_counted(told),
        native=encoded([block.native for block in blocks]),
        finish_reason="length" if cut else "stop",
    )


def _counted(told: _Usage | None) -> Mapping[str, Any] | None:
    if told is None:
        return None
    parts = (told.input_tokens, told.cache_read_input_tokens, told.cache_creation_input_tokens)
    known = [part for part in parts if part is not None]
    return given(
        inputTokens=sum(known) if len(known) == len(parts) else None,
        outputTokens=told.output_tokens,
        cachedInputTokens=told.cache_read_input_tokens,
    )
