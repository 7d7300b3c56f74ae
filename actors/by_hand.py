"""Host runs, and what the Host may ask of any run: the batch is reviewed before the first call runs, and resumed by hand.

Every command names the revision it was meant for (Host runtime §9). Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from actors import calls
from actors.decider import Decision, Receipt, Refusal
from actors.errors import Problem
from actors.events import ReviewAsked, RunCancelled, RunEvent, RunFailed, RunResumed, ToolCall, ToolCalled
from actors.request_parts import ApprovalsOption
from actors.revisions import DEADLINE_REACHED, Status

if TYPE_CHECKING:
    from actors.run import Live

HOST_REVIEWS = ApprovalsOption(mode="interactive", idle_policy="pause")
"""How the calls of a Host run are reviewed: by a person, for as long as the run's deadline allows."""
DEADLINE = Problem(DEADLINE_REACHED, "The run's deadline was reached.")
CANCELLED = Problem("CANCELLED", "The run was cancelled.")
CONFLICT = Problem("HOST_CONFLICT", "The run is not at that revision, or not in a state for this.")
NO_APPROVAL = Problem("HOST_APPROVAL_NOT_FOUND", "There is no such approval of this run.")


class Cancel(Struct, frozen=True, tag="host_cancel"):
    """End the run that stands at revision *expected*."""

    expected: int
    reason: str


class Resolve(Struct, frozen=True, tag="host_resolve", kw_only=True):
    """A person answered about the call that is under review."""

    expected: int
    approval_id: str
    outcome: Literal["approved", "denied"]
    by: str
    reason: str = ""
    metadata: Mapping[str, str] = {}
    awaits_audit: bool = False


class Resume(Struct, frozen=True, tag="host_resume"):
    """Claim the approved call, for the first time or again."""

    expected: int
    approval_id: str
    by: str
    input: Raw | UnsetType = UNSET


class TimeOut(Struct, frozen=True, tag="host_time_out"):
    """The deadline has passed, if that is so by now."""


Command: TypeAlias = Cancel | Resolve | Resume
"""What names a revision."""


def is_by_hand(state: "Live") -> bool:
    """Whether the run waits to be resumed once a call of it was approved."""
    return state.accepted.host is not None


def is_late(state: "Live", now_ms: int) -> bool:
    """Whether the run's deadline has passed."""
    host = state.accepted.host
    return host is not None and host.context.deadline_ms is not None and now_ms >= host.context.deadline_ms


def timed_out(now_ms: int) -> RunFailed:
    """The end of a run whose deadline has passed."""
    return RunFailed(now_ms, DEADLINE, "deadline")


def status(state: "Live") -> Status:
    """How a run that has not ended stands (Host mapping §5)."""
    if not state.started:
        return "created"
    return "running" if under_review(state) is None else "waiting_for_approval"


def under_review(state: "Live") -> ToolCall | None:
    """The call whose approval the run waits for, or whose claim."""
    open_call = state.open
    waits = open_call is not None and open_call.stage in {"reviewed", "settling", "approved"}
    return open_call.call if open_call is not None and waits else None


def reviewer(state: "Live") -> ApprovalsOption | None:
    """How the run wants its calls reviewed, if it does."""
    return HOST_REVIEWS if is_by_hand(state) else state.request.approvals


def next_review(state: "Live") -> ToolCall | None:
    """The call that a person is to be asked about next: a Host run has its whole batch reviewed before any call runs."""
    if not is_by_hand(state) or state.open is not None:
        return None
    return _unreviewed(state, state.reviewed)


def first_call(state: "Live", reviewed: tuple[str, ...], now_ms: int) -> list[RunEvent]:
    """The turn's first call coming up, unless some call of it is still to be *reviewed*."""
    if not state.proposed or _unreviewed(state, reviewed) is not None:
        return []
    return [ToolCalled(now_ms, state.proposed[0])]


def question(state: "Live", command: calls.AskReview, now_ms: int) -> ReviewAsked | None:
    """The question about the call that is to be reviewed next, if a Host run has one that has not come up."""
    call = next_review(state)
    if call is None:
        return None
    at_ms = now_ms if command.asked_ms is None else command.asked_ms
    return calls.review(command.approval_id, HOST_REVIEWS, at_ms, call.id)


def decide(state: "Live", command: Command | TimeOut, now_ms: int) -> Decision:
    """What *command* causes in a run that has not ended."""
    if isinstance(command, TimeOut):
        return Decision([timed_out(now_ms)] if is_late(state, now_ms) else [], Receipt("already"))
    if command.expected != state.revision:
        return Decision([], Refusal(CONFLICT))
    match command:
        case Cancel(reason=reason):
            return Decision([RunCancelled(now_ms, CANCELLED, "asked", reason)], Receipt())
        case _ if is_late(state, now_ms):
            return Decision([timed_out(now_ms)], Refusal(CONFLICT))
        case Resolve():
            return _resolved(state, command, now_ms)
        case Resume():
            return _resumed(state, command, now_ms)


def _resolved(state: "Live", command: Resolve, now_ms: int) -> Decision:
    open_call = state.open
    if open_call is None or open_call.stage != "reviewed":
        return Decision([], Refusal(CONFLICT))
    if open_call.approval_id != command.approval_id:
        return Decision([], Refusal(NO_APPROVAL))
    settle = calls.Settle(
        command.approval_id, command.outcome, command.by, command.awaits_audit, command.reason, command.metadata
    )
    decision = calls.reviewed(open_call, settle, now_ms)
    return Decision(decision.events, Refusal(CONFLICT)) if isinstance(decision.answer, Refusal) else decision


def _resumed(state: "Live", command: Resume, now_ms: int) -> Decision:
    open_call = state.open
    if open_call is not None and open_call.stage == "approved":
        if open_call.approval_id != command.approval_id:
            return Decision([], Refusal(NO_APPROVAL))
        resumed = RunResumed(now_ms, command.approval_id, command.by, input=command.input)
        return Decision([resumed, *first_call(state, (*state.reviewed, open_call.call.id), now_ms)], Receipt())
    if not state.resumed or status(state) != "running":
        return Decision([], Refusal(CONFLICT))
    if state.resumed != command.approval_id:
        return Decision([], Refusal(NO_APPROVAL))
    return Decision([RunResumed(now_ms, command.approval_id, command.by, again=True, input=command.input)], Receipt())


def _unreviewed(state: "Live", reviewed: tuple[str, ...]) -> ToolCall | None:
    protected = {fact.name for fact in state.accepted.tools if fact.requires_approval}
    return next((call for call in state.proposed if call.name in protected and call.id not in reviewed), None)
