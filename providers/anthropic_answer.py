"""What Anthropic's Messages API answers: blocks that grow one after the other (providers §6.3).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.ports import ToolCall, Turn
from providers.anthropic_block import Block, Delta
from providers.codec import DONE, Said
from providers.failures import failed
from providers.finish import Finish, finish
from providers.vendor_json import Count, decoded, encoded, given

BLOCKS_MAX = 1_025

_ENDS: Mapping[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
}
"""Any other, `refusal` among them, is a failure (providers §6.3)."""


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
    content: list[dict[str, Raw]] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Event(Struct, rename={"kind": "type"}):
    kind: str
    message: _Message | None = None
    index: int = -1
    content_block: dict[str, Raw] | None = None
    delta: Delta | None = None
    usage: _Usage | None = None


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)


class Reader:
    """Folds the events of one answer."""

    def __init__(self) -> None:
        self._begun = False
        self._ended = False
        self._blocks: list[Block] = []
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
            case _Event("content_block_delta", index=index, delta=Delta() as delta):
                return self._open(index).add(delta)
            case _Event("content_block_stop", index=index):
                self._open(index).is_open = False
                return Said()
            case _Event("message_delta", delta=Delta(stop_reason=reason)):
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
        block = Block(members)
        self._blocks.append(block)
        return Said(block.text)

    def _open(self, index: int) -> Block:
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
    if message.content is None:
        raise failed("INVALID_PROVIDER_RESPONSE")
    return _turn([Block(members) for members in message.content], message.stop_reason, message.usage)


def _turn(blocks: list[Block], reason: str | None, told: _Usage | None) -> Turn:
    calls = [block for block in blocks if block.names.kind == "tool_use"]
    ended = finish(reason, _ENDS, calls=bool(calls))
    return Turn(
        text="".join(block.text for block in blocks),
        tool_calls=tuple(ToolCall(block.names.id, block.names.name, block.input) for block in calls),
        usage=_counted(told),
        native=encoded([block.native for block in blocks]),
        finish_reason=ended,
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
