"""What a run's event writes beside it, in the same append: the logs of its approvals, tickets and session, and the audit.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from actors import calls, codec, run, session
from actors.decider import Companion
from actors.events import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalUnaudited,
    ReviewAsked,
    ReviewSettled,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    SessionTurn,
    TicketClosed,
    TicketOffered,
    TicketOpened,
    ToolCall,
    timestamp,
)
from eventstore.store import Reason

APPROVALS_POOL = "approvals"
TICKETS_POOL = "tickets"
SESSIONS_POOL = "sessions"
HOST_KEYS_POOL = "host-keys"
KEYS_POOL = "keys"
KEPT_MS = 7 * 24 * 3_600 * 1_000
"""How long the log of an approval or a ticket is kept after its end."""
_POOLS = {
    b'{"type":"approval.': APPROVALS_POOL,
    b'{"type":"ticket.': TICKETS_POOL,
    b'{"type":"session.': SESSIONS_POOL,
    b'{"type":"host_key.': HOST_KEYS_POOL,
}


def pool_of(log: Sequence[bytes]) -> str | None:
    """The ledger's pool that counts the actor with this *log*, unless it is a run."""
    return next((pool for begin, pool in _POOLS.items() if log and log[0].startswith(begin)), None)


def inbox(subject: str) -> str:
    """The list of what waits for a decision of *subject*."""
    return f"inbox:{subject}"


def companions(run_id: str, before: run.State, event: RunEvent, after: run.State) -> Iterator[Companion]:
    """The writes that belong to *event* of the run *run_id*, which was *before* and is *after*."""
    if isinstance(before, run.Live) and (open_call := before.open or _asked_about(event, after)) is not None:
        yield from _of_call(run_id, before, open_call, event, after)
    if isinstance(event, RunAccepted) and event.session is not None:
        yield session.reserved(event.session, run_id, event.at_ms)
    elif isinstance(before, run.Live) and before.accepted.session is not None:
        yield from _of_turn(run_id, before, before.accepted.session, event)


def _asked_about(event: RunEvent, after: run.State) -> calls.OpenCall | None:
    """The call of a Host run that *event* asks a person about, and that has not come up."""
    return after.open if isinstance(event, ReviewAsked) and isinstance(after, run.Live) else None


def _of_call(
    run_id: str, before: run.Live, open_call: calls.OpenCall, event: RunEvent, after: run.State
) -> Iterator[Companion]:
    accepted = before.accepted
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
            # What a Host run waits for is decided through the Host alone (Host mapping §9, C7).
            listed = () if event.call_id else ((inbox(accepted.subject), event.at_ms),)
            yield Companion(event.approval_id, 0, codec.encode(requested), listed=listed, audit=audit)
        case ReviewSettled(outcome="approved" | "denied" | "cancelled" as outcome):
            yield _settled(run_id, before, event, ApprovalDecided(event.at_ms, outcome, event.by))
        case ReviewSettled():
            yield _settled(run_id, before, event, ApprovalExpired(event.at_ms))
        case RunFailed(problem=calls.UNAUDITED) if open_call.stage == "settling":
            over = _over(open_call.approval_id, ApprovalUnaudited(event.at_ms))
            yield over._replace(listed=((inbox(accepted.subject), None),))
        case TicketOffered(execution_id=execution_id):
            opened = TicketOpened(
                event.at_ms, run_id, accepted.subject, accepted.provider, open_call.call.id, open_call.call.name
            )
            yield Companion(execution_id, 0, codec.encode(opened))
        case _ if open_call.stage == "offered" and not _holds(after, open_call.execution_id):
            yield _over(open_call.execution_id, TicketClosed(event.at_ms))
        case _:
            pass


def _of_turn(run_id: str, before: run.Live, turn: SessionTurn, event: RunEvent) -> Iterator[Companion]:
    """What the end of a turn's run writes to its session (sessions §5)."""
    match event:
        case RunCompleted(at_ms=at_ms):
            yield session.committed(turn, run_id, before.request.input, tuple(before.turns), at_ms)
        case RunCancelled(at_ms=at_ms, cause="deleted"):
            yield session.deleted(turn, at_ms)
        case RunFailed(at_ms=at_ms) | RunCancelled(at_ms=at_ms):
            yield session.released(turn, run_id, at_ms, interrupted=before.step > 0)
        case _:
            pass


def _settled(
    run_id: str, before: run.Live, event: ReviewSettled, written: ApprovalDecided | ApprovalExpired
) -> Companion:
    audit = msgspec.json.encode(resolved_record(run_id, before, event))
    return _over(event.approval_id, written)._replace(audit=audit, listed=((inbox(before.accepted.subject), None),))


def _over(actor: str, written: ApprovalDecided | ApprovalExpired | ApprovalUnaudited | TicketClosed) -> Companion:
    """The last event of an approval or a ticket, which leaves its permit and, one day, its payload to be taken care of."""
    due: tuple[tuple[Reason, int | None], ...] = (("permit", written.at_ms), ("retention", written.at_ms + KEPT_MS))
    return Companion(actor, 1, codec.encode(written), ended=True, due=due)


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
