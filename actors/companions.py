"""What a run's event writes beside it: the logs of its approvals and tickets, and the audit, in the same append.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from actors import calls, codec, run
from actors.decider import Companion
from actors.events import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalUnaudited,
    ReviewAsked,
    ReviewSettled,
    RunAccepted,
    RunEvent,
    RunFailed,
    TicketClosed,
    TicketOffered,
    TicketOpened,
    ToolCall,
    timestamp,
)

APPROVALS_POOL = "approvals"
TICKETS_POOL = "tickets"
_POOLS = {b'{"type":"approval.': APPROVALS_POOL, b'{"type":"ticket.': TICKETS_POOL}


def pool_of(log: Sequence[bytes]) -> str | None:
    """The ledger's pool that counts the actor with this *log*, unless it is a run."""
    return next((pool for begin, pool in _POOLS.items() if log and log[0].startswith(begin)), None)


def companions(run_id: str, before: run.State, event: RunEvent, after: run.State) -> Iterator[Companion]:
    """The writes that belong to *event* of the run *run_id*, which was *before* and is *after*."""
    if not isinstance(before, run.Live) or before.open is None:
        return
    accepted, open_call = before.accepted, before.open
    match event:
        case ReviewAsked():
            requested = ApprovalRequested(
                event.at_ms,
                run_id,
                accepted.subject,
                accepted.provider,
                open_call.call,
                event.idle_policy,
                event.expires_ms,
            )
            audit = msgspec.json.encode(requested_record(run_id, accepted, open_call.call, event))
            yield Companion(event.approval_id, 0, codec.encode(requested), audit=audit)
        case ReviewSettled(outcome="approved" | "denied" | "cancelled" as outcome):
            yield _settled(run_id, before, event, ApprovalDecided(event.at_ms, outcome, event.by))
        case ReviewSettled():
            yield _settled(run_id, before, event, ApprovalExpired(event.at_ms))
        case RunFailed(problem=calls.UNAUDITED) if open_call.stage == "settling":
            yield Companion(open_call.approval_id, 1, codec.encode(ApprovalUnaudited(event.at_ms)), ended=True)
        case TicketOffered(execution_id=execution_id):
            opened = TicketOpened(
                event.at_ms, run_id, accepted.subject, accepted.provider, open_call.call.id, open_call.call.name
            )
            yield Companion(execution_id, 0, codec.encode(opened))
        case _ if open_call.stage == "offered" and not _holds(after, open_call.execution_id):
            yield Companion(open_call.execution_id, 1, codec.encode(TicketClosed(event.at_ms)), ended=True)
        case _:
            pass


def _settled(
    run_id: str, before: run.Live, event: ReviewSettled, written: ApprovalDecided | ApprovalExpired
) -> Companion:
    audit = msgspec.json.encode(resolved_record(run_id, before, event))
    return Companion(event.approval_id, 1, codec.encode(written), ended=True, audit=audit)


def _holds(state: run.State, execution_id: str) -> bool:
    """Whether the ticket may still be used."""
    return isinstance(state, run.Live) and state.open is not None and state.open.execution_id == execution_id


def requested_record(run_id: str, accepted: RunAccepted, call: ToolCall, asked: ReviewAsked) -> dict[str, Any]:
    """The audit record of a question (approvals §9)."""
    approval = _approval(run_id, call, asked.approval_id, asked.at_ms, asked.idle_policy, asked.expires_ms)
    return _record("approval.requested", accepted) | {"approval": approval}


def resolved_record(run_id: str, live: run.Live, settled: ReviewSettled) -> dict[str, Any]:
    """The audit record of a settlement; *live* is the run before it."""
    if (open_call := live.open) is None:
        raise ValueError("no call is open that could have been reviewed")
    call, idle_policy = open_call.call, open_call.idle_policy
    resolution = {
        "approvalId": settled.approval_id,
        "runId": run_id,
        "callId": call.id,
        "outcome": settled.outcome,
        "decidedAt": timestamp(settled.at_ms),
    }
    return _record("approval.resolved", live.accepted) | {
        "approval": _approval(run_id, call, settled.approval_id, open_call.asked_ms, idle_policy, open_call.expires_ms),
        "resolution": resolution,
    }


def _record(kind: str, accepted: RunAccepted) -> dict[str, Any]:
    return {"type": kind, "subject": accepted.subject, "provider": accepted.provider}


def _approval(
    run_id: str, call: ToolCall, approval_id: str, asked_ms: int, idle_policy: str, expires_ms: int | None
) -> dict[str, Any]:
    approval = {
        "approvalId": approval_id,
        "runId": run_id,
        "call": call,
        "requestedAt": timestamp(asked_ms),
        "idlePolicy": idle_policy,
    }
    return approval if expires_ms is None else approval | {"expiresAt": timestamp(expires_ms)}
