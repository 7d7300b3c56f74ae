"""From envelope to envelope: decode, ask the service, answer; concurrent-safe, because it keeps nothing (Host protocol §5).

What the client got wrong is answered before the service is asked; whatever the service raises is told as `internal`,
without a word of it.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from api.host import encoding, envelope
from api.host.encoding import Answer, EventPage, Result, Submission
from api.host.failures import INTERNAL, Failure
from api.host.requests import (
    Call,
    CancelRun,
    CreateRun,
    GetRun,
    ListEvents,
    Request,
    ResolveApproval,
    ResumeRun,
)
from projections.views import HostView

Noted: TypeAlias = Callable[[BaseException, str], None]
"""Told of what should not have happened, and where."""


class Service(Protocol):
    """What stands behind the six operations, for one principal; safe to be asked by many at once."""

    async def create_run(self, call: Call, asked: CreateRun) -> Submission | Failure:
        """Begin a run."""
        ...

    async def get_run(self, call: Call, asked: GetRun) -> HostView | Failure:
        """Look at a run."""
        ...

    async def cancel_run(self, call: Call, asked: CancelRun) -> Submission | Failure:
        """End a run."""
        ...

    async def resolve_approval(self, call: Call, asked: ResolveApproval) -> Submission | Failure:
        """Decide about the call that a run waits for."""
        ...

    async def resume_run(self, call: Call, asked: ResumeRun) -> Submission | Failure:
        """Claim the approved call."""
        ...

    async def list_events(self, call: Call, asked: ListEvents) -> EventPage | Failure:
        """Read events after a cursor."""
        ...


def nothing_noted(_error: BaseException, _where: str) -> None:
    """Note nothing."""


async def answered(text: bytes, service: Service, noted: Noted = nothing_noted) -> Answer:
    """Answer the envelope that the JSON *text* is, whatever it is and whatever happens."""
    return await dispatched(envelope.decoded(text), service, noted)


async def dispatched(asked: Request | envelope.Refusal, service: Service, noted: Noted = nothing_noted) -> Answer:
    """Answer an envelope that was decoded."""
    if isinstance(asked, envelope.Refusal):
        return encoding.failed(asked.request_id, asked.operation, asked.failure)
    request_id, operation = asked.call.request_id, asked.operation
    try:
        result = await _asked(service, asked)
        if isinstance(result, Failure):
            return encoding.failed(request_id, operation, result)
        return encoding.succeeded(request_id, operation, encoding.told(result, asked.body))
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a typed answer
        noted(error, operation)
        return encoding.failed(request_id, operation, INTERNAL)


async def _asked(service: Service, asked: Request) -> Result | Failure:
    match asked.body:
        case CreateRun() as body:
            return await service.create_run(asked.call, body)
        case GetRun() as body:
            return await service.get_run(asked.call, body)
        case CancelRun() as body:
            return await service.cancel_run(asked.call, body)
        case ResolveApproval() as body:
            return await service.resolve_approval(asked.call, body)
        case ResumeRun() as body:
            return await service.resume_run(asked.call, body)
        case ListEvents() as body:
            return await service.list_events(asked.call, body)
