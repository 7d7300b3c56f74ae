"""What the Responses API answers: events, of which the last holds the whole (providers §6.1).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.ports import ToolCall, Turn
from providers.codec import DONE, Said
from providers.failures import failed
from providers.finish import Finish, finish
from providers.openai_usage import ResponsesUsage
from providers.vendor_json import arguments, decoded

_BEGUN = frozenset(f"response.{part}.{when}" for part in ("output_item", "content_part") for when in ("added", "done"))
_ENDS: Mapping[str, Finish] = {"completed": "stop", "max_output_tokens": "length"}


class Reader:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self._response: Raw | None = None

    def read(self, data: bytes) -> Said:
        """What one event says; see `providers.codec`."""
        if data == DONE:
            return Said(ended=True)
        match decoded(_EVENT, data):
            case _Event("error" | "response.failed"):
                raise failed("PROVIDER_FAILED")
            case _Event("response.completed" | "response.incomplete", response=response):
                self._response = response
                return Said(ended=True)
            case _Event("response.output_text.delta", delta=str(text)):
                return Said(text)
            case _Event("response.output_text.delta"):
                raise failed("INVALID_PROVIDER_RESPONSE")
            case _Event(kind, delta=delta):
                work = kind in _BEGUN or (kind.endswith(".delta") and isinstance(delta, str) and delta != "")
                return Said(progress=work)

    def turn(self) -> Turn:
        """The turn that the last event holds; see `providers.codec`."""
        if self._response is None:
            raise failed("INCOMPLETE_STREAM")
        return whole(self._response)


class _Event(Struct, rename={"kind": "type"}):
    kind: str
    delta: Any = None
    response: Raw = Raw()


class _Part(Struct, rename={"kind": "type"}):
    kind: str
    text: str = ""


class _Item(Struct, rename={"kind": "type"}):
    kind: str
    content: list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: Raw = Raw(b"null")


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    status: str
    output: Raw
    incomplete_details: _Incomplete | None = None
    usage: ResponsesUsage | None = None


_EVENT = msgspec.json.Decoder(_Event)
_RESPONSE = msgspec.json.Decoder(_Response)
_OUTPUT = msgspec.json.Decoder(list[_Item])


def whole(data: bytes | Raw) -> Turn:
    """The turn of a final response object, which has the last word over what was streamed."""
    response = decoded(_RESPONSE, data)
    items = decoded(_OUTPUT, response.output)
    parts = [part for item in items for part in item.content or ()]
    calls = [item for item in items if item.kind == "function_call"]
    refused = any(part.kind == "refusal" for part in parts)
    ended = finish(_end(response), _ENDS, calls=bool(calls), refused=refused)
    return Turn(
        text="".join(part.text for part in parts if part.kind == "output_text"),
        tool_calls=tuple(ToolCall(call.call_id, call.name, arguments(call.arguments)) for call in calls),
        usage=response.usage.counted if response.usage else None,
        native=response.output.copy(),
        finish_reason=ended,
    )


def _end(response: _Response) -> str | None:
    """The word for how it ended; an incomplete one says why."""
    match response:
        case _Response("incomplete", incomplete_details=_Incomplete(reason)):
            return reason
        case _:
            return response.status
