"""`POST /v1/tool-executions/progress` and `/results`: what an application tells of its ticket (application-tools §4)."""

from collections.abc import Callable
from typing import Literal, TypeVar

import anyio
from litestar.types import Receive
from msgspec import UNSET, Raw, Struct, UnsetType

from actors import values
from actors.errors import Refused
from actors.jsontext import encoded
from actors.shapes import Check, Misshapen, one_of, record, text
from api.answers import Call
from api.bodies import QUICK_BODY_BYTES, parsed
from api.grants import Principal, caller_of
from api.parts import Parts
from api.posts import served

FAILED = "APPLICATION_TOOL_FAILED"
_INVALID = "INVALID_TOOL_EXECUTION"

T = TypeVar("T")


class Report(Struct, frozen=True):
    """Which ticket is worked on."""

    execution_id: str
    run_id: str
    call_id: str


class Delivery(Struct, frozen=True):
    """What came of a ticket: an output, or that there is none."""

    execution_id: str
    run_id: str
    call_id: str
    output: Raw | UnsetType = UNSET
    error: Literal["APPLICATION_TOOL_FAILED"] | UnsetType = UNSET


def _output(value: object) -> Raw:
    if not values.lossless(value):
        raise Misshapen("must not lose anything in any reader")
    return Raw(encoded(value))


def _single(value: object) -> Delivery:
    """A delivery with one of its forms; presence tells them apart, because null is an output too."""
    delivery = _DELIVERY(value)
    if (delivery.output is UNSET) is (delivery.error is UNSET):
        raise Misshapen("must have either an output or an error")
    return delivery


_ID = text(1, 256)
_IDS: dict[str, Check[str]] = {"execution_id": _ID, "run_id": _ID, "call_id": _ID}
_REPORT = record(Report, _IDS, {})
_DELIVERY = record(Delivery, _IDS, {"output": _output, "error": one_of(FAILED)})


async def report(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one report of progress."""
    await served(parts, call, receive, _reported)


async def deliver(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one result."""
    await served(parts, call, receive, _delivered)


def read(body: bytes, check: Check[T]) -> T:
    """The value in *body*, if *check* lets it pass.

    Raises:
        Refused: INVALID_REQUEST if it is not JSON, else INVALID_TOOL_EXECUTION.
    """
    try:
        return check(parsed(body, out_of_range=_INVALID))
    except Misshapen as fault:
        raise Refused(_INVALID, str(fault)) from None


async def _reported(parts: Parts, principal: Principal, body: bytes) -> dict[str, str]:
    asked = await _read(parts, lambda: read(body, _REPORT), len(body))
    await parts.answers.report(caller_of(principal), asked.execution_id, asked.run_id, asked.call_id)
    return _receipt(asked, "progress")


async def _delivered(parts: Parts, principal: Principal, body: bytes) -> dict[str, str]:
    asked = await _read(parts, lambda: read(body, _single), len(body))
    output = None if isinstance(asked.output, UnsetType) else asked.output
    await parts.answers.deliver(caller_of(principal), asked.execution_id, asked.run_id, asked.call_id, output)
    return _receipt(asked, "accepted")


async def _read(parts: Parts, reading: Callable[[], T], size: int) -> T:
    """Read a body of *size* bytes; a host without application tools has no tickets either."""
    asked = await anyio.to_thread.run_sync(reading) if size > QUICK_BODY_BYTES else reading()
    if not parts.catalog.features.application_tools:
        raise Refused("TOOL_EXECUTION_NOT_FOUND", "This host runs no application tools.")
    return asked


def _receipt(asked: Report | Delivery, status: str) -> dict[str, str]:
    return {
        "executionId": asked.execution_id,
        "runId": asked.run_id,
        "callId": asked.call_id,
        "status": status,
    }
