"""The tool calls of one turn, one after another: which call is open, what it waits for, what its end means.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct

from actors.decider import Decision, Receipt, Refusal
from actors.errors import Problem
from actors.events import (
    CallCleared,
    ReviewAsked,
    ReviewSettled,
    ReviewSettling,
    RunCancelled,
    RunEvent,
    RunFailed,
    TicketOffered,
    ToolCall,
    ToolCalled,
    ToolCompleted,
    ToolFact,
    ToolProgressed,
    ToolStarted,
)
from actors.jsontext import NotJson, strict_json
from actors.request_parts import ApprovalsOption
from actors.schema import compiled

CALLS_PER_STEP_MAX = 32
PROGRESS_GAP_MS = 1_000
"""At most one `run.progress` in this time per ticket, the first at once (application-tools §4)."""

RESENT_AFTER_MS = 10_000
"""A settlement that is not in the audit so long after it was made is taken up by any node; longer than a sink has time."""

Stage: TypeAlias = Literal["called", "reviewed", "settling", "approved", "cleared", "started", "offered"]
"""What an open call has come to; `reviewed` means that a person was asked and has not answered,
`approved` that a Host run waits to be resumed."""

_UNCERTAIN_KEPT = frozenset({"IDLE_TIMEOUT", "CANCELLED"})


# Commands.


class AskReview(Struct, frozen=True, tag="ask_review"):
    """The open call needs a person; *approval_id* is fresh and shares its first 32 bits with the run's id."""

    approval_id: str
    asked_ms: int | None = None
    """When that was, if an audit sink was told already; else now."""


class Clear(Struct, frozen=True, tag="clear"):
    """The host's own policy lets the open call pass, and no person is asked."""


class BeginTool(Struct, frozen=True, tag="begin_tool"):
    """The open call is about to be executed by the host."""


class Offer(Struct, frozen=True, tag="offer"):
    """The application may execute the open call; *execution_id* is fresh and shares its first 32 bits with the run's."""

    execution_id: str


class Return(Struct, frozen=True, tag="return"):
    """A host tool gave its output: one compact JSON value."""

    call_id: str
    output: Raw


class Settle(Struct, frozen=True, tag="settle"):
    """A person answered."""

    approval_id: str
    outcome: Literal["approved", "denied", "cancelled"]
    by: str
    awaits_audit: bool = False
    """Whether the answer holds only once `FinishSettling` says so."""
    reason: str = ""
    metadata: Mapping[str, str] = {}


class Expire(Struct, frozen=True, tag="expire"):
    """Nobody answered in time, if that is so by now."""

    awaits_audit: bool = False


class FinishSettling(Struct, frozen=True, tag="finish_settling"):
    """The audit sink took the record of the settlement."""

    approval_id: str


class AuditFailed(Struct, frozen=True, tag="audit_failed"):
    """The audit sink did not take the record of the settlement."""

    approval_id: str


class IdleOut(Struct, frozen=True, tag="idle_out"):
    """The idle limit has passed, if that is so by now."""

    idle_ms: int


class Report(Struct, frozen=True, tag="report"):
    """The application works on its ticket."""

    execution_id: str


class Deliver(Struct, frozen=True, tag="deliver"):
    """The application gave the output of its ticket, or None for a failure of any kind."""

    execution_id: str
    output: Raw | None


Command: TypeAlias = (
    AskReview
    | Clear
    | BeginTool
    | Offer
    | Return
    | Settle
    | Expire
    | FinishSettling
    | AuditFailed
    | IdleOut
    | Report
    | Deliver
)

# States.


class OpenCall(Struct, frozen=True):
    """The one call of a run that is neither untouched nor completed."""

    call: ToolCall
    stage: Stage = "called"
    approval_id: str = ""
    execution_id: str = ""
    idle_policy: Literal["pause", "continue"] = "continue"
    expires_ms: int | None = None
    active_ms: int = 0
    """Time of the last real progress: what the idle limit counts from."""
    shown_ms: int = 0
    """Time of the last progress report that was shown."""
    asked_ms: int = 0
    """When the person was asked."""
    settling: ReviewSettling | None = None
    """The answer that waits for the audit sink."""
    by_hand: bool = False
    """Of a Host run: it waits to be resumed once it is approved, and comes up only after its whole batch was reviewed."""

    @property
    def waits(self) -> bool:
        """Whether nothing but a person, an application or the audit sink can carry the call on."""
        return self.stage in {"reviewed", "settling", "approved", "offered"}

    @property
    def idles(self) -> bool:
        """Whether the idle limit runs while it waits."""
        return self.stage == "offered" or (self.stage == "reviewed" and self.idle_policy == "continue")

    @property
    def uncertain(self) -> bool:
        """Whether the call may have had an effect that nobody confirmed."""
        return self.stage in {"started", "offered"}


# Effects.


class Review(Struct, frozen=True):
    """The open call needs approval: ask the host's policy, and a person if the run wants that."""

    call: ToolCall
    interactive: bool


class StartTool(Struct, frozen=True):
    """The open call may be executed by the host: record that it begins."""


class RunTool(Struct, frozen=True):
    """Execute the open call."""

    call: ToolCall


class OfferTicket(Struct, frozen=True):
    """The open call may be executed by the application: give out a ticket."""

    call: ToolCall


class Wait(Struct, frozen=True):
    """Nothing but a person or an application can carry the run on; the idle limit counts from *active_ms*, None: stands still."""

    active_ms: int | None
    expires_ms: int | None = None


Effect: TypeAlias = Review | StartTool | RunTool | OfferTicket | Wait


class Around(NamedTuple):
    """What decisions about the open call look at."""

    call: OpenCall
    fact: ToolFact
    asked: ApprovalsOption | None
    """How the run wants its calls reviewed, if it does."""
    following: ToolCall | None
    """The call that comes up after this one."""


UNAUDITED = Problem("APPROVAL_AUDIT_FAILED", "The audit of the approval cannot be written.")
IDLE = Problem("IDLE_TIMEOUT", "No progress within the idle interval.", retryable=True)
_NO_APPROVAL = Problem("APPROVAL_NOT_FOUND", "There is no such pending approval.")
_NO_TICKET = Problem("TOOL_EXECUTION_NOT_FOUND", "There is no such open execution.")
_UNCONFIRMED = Problem("TOOL_OUTCOME_UNCERTAIN", "The outcome of a tool call is not confirmed.", outcome="uncertain")


def decide(around: Around, command: Command, now_ms: int) -> Decision:
    """What a command about the open call causes."""
    open_call, fact = around.call, around.fact
    match open_call.stage, command:
        case "called", AskReview(approval_id, asked_ms) if around.asked is not None:
            at_ms = now_ms if asked_ms is None else asked_ms
            return Decision([review(approval_id, around.asked, at_ms)], Receipt())
        case "called", Clear() if around.asked is None:
            return Decision([CallCleared(now_ms)], Receipt())
        case _, BeginTool() if _may_begin(around) and not fact.application:
            return Decision([ToolStarted(now_ms)], Receipt())
        case _, Offer(execution_id) if _may_begin(around) and fact.application:
            return Decision([TicketOffered(now_ms, execution_id)], Receipt())
        case "started", Return(call_id, output) if call_id == open_call.call.id:
            return Decision(_completed(around, output, now_ms), Receipt())
        case _, Settle() | Expire() | FinishSettling() | AuditFailed():
            return reviewed(open_call, command, now_ms)
        case "offered", Report(execution_id) if execution_id == open_call.execution_id:
            shown = now_ms - open_call.shown_ms >= PROGRESS_GAP_MS
            return Decision([ToolProgressed(now_ms, shown=shown)], Receipt())
        case _, IdleOut(idle_ms) if open_call.idles and now_ms >= open_call.active_ms + idle_ms:
            return Decision([RunCancelled(now_ms, IDLE, "idle")], Receipt())
        case "offered", Deliver(execution_id, output) if execution_id == open_call.execution_id:
            if output is None:
                return Decision([RunFailed(now_ms, _UNCONFIRMED)], Receipt())
            return Decision(_completed(around, output, now_ms), Receipt())
        case _, Report() | Deliver():
            return Decision([], Refusal(_NO_TICKET))
        case _:
            return Decision([], Receipt("already"))


def reviewed(open_call: OpenCall, command: Settle | Expire | FinishSettling | AuditFailed, now_ms: int) -> Decision:
    """What an answer causes, its lack, or the news that its record was kept."""
    match open_call.stage, command:
        case "reviewed", Settle() | Expire() if open_call.expires_ms is not None and now_ms >= open_call.expires_ms:
            answer = Receipt() if isinstance(command, Expire) else Refusal(_NO_APPROVAL)
            expired = ReviewSettling(now_ms, open_call.approval_id, "expired")
            return Decision([expired] if command.awaits_audit else _answered(expired, now_ms), answer)
        case "reviewed", Settle(approval_id, outcome, by) if approval_id == open_call.approval_id:
            settling = ReviewSettling(now_ms, approval_id, outcome, by, command.reason, command.metadata)
            return Decision([settling] if command.awaits_audit else _answered(settling, now_ms), Receipt())
        case "settling", FinishSettling(approval_id) if open_call.settling and approval_id == open_call.approval_id:
            return Decision(_answered(open_call.settling, now_ms), Receipt())
        case "settling", AuditFailed(approval_id) if approval_id == open_call.approval_id:
            return Decision([RunFailed(now_ms, UNAUDITED)], Receipt())
        case _, Settle():
            return Decision([], Refusal(_NO_APPROVAL))
        case _:
            return Decision([], Receipt("already"))


def _may_begin(around: Around) -> bool:
    """Whether the open call may be executed: it was reviewed, or needs no review."""
    return around.call.stage == "cleared" or (around.call.stage == "called" and not around.fact.requires_approval)


def review(approval_id: str, asked: ApprovalsOption, at_ms: int, call_id: str = "") -> ReviewAsked:
    """The question as it is put at *at_ms*; *call_id* where the call it is about has not come up."""
    expires_ms = None if asked.expires_after_ms is None else at_ms + asked.expires_after_ms
    return ReviewAsked(at_ms, approval_id, asked.idle_policy, expires_ms, call_id)


def settled(settling: ReviewSettling) -> ReviewSettled:
    """The settlement that *settling* becomes: of the same moment, and by the same person."""
    return ReviewSettled(
        settling.at_ms, settling.approval_id, settling.outcome, settling.by, settling.reason, settling.metadata
    )


def _answered(settling: ReviewSettling, now_ms: int) -> list[RunEvent]:
    """The answer, and what it ends."""
    answered = settled(settling)
    match settling.outcome:
        case "approved":
            return [answered]
        case "denied":
            return [answered, RunFailed(now_ms, Problem("APPROVAL_DENIED", "A reviewer denied the call."))]
        case "expired":
            return [answered, RunFailed(now_ms, Problem("APPROVAL_EXPIRED", "Nobody decided about the call in time."))]
        case "cancelled":
            return [answered, RunCancelled(now_ms, Problem("CANCELLED", "A reviewer cancelled the run."))]


def _completed(around: Around, output: Raw, now_ms: int) -> list[RunEvent]:
    """The output, and the next call where the turn has one."""
    call = around.call.call
    done = ToolCompleted(now_ms, call.id, call.name, output)
    return [done] if around.following is None else [done, ToolCalled(now_ms, around.following)]


def effect(around: Around) -> Effect:
    """What the open call needs next."""
    open_call, fact = around.call, around.fact
    match open_call.stage:
        case "called" if fact.requires_approval:
            return Review(open_call.call, around.asked is not None)
        case "called" | "cleared":
            return OfferTicket(open_call.call) if fact.application else StartTool()
        case "started":
            return RunTool(open_call.call)
        case "offered" | "reviewed" | "settling" | "approved":
            expires_ms = open_call.expires_ms if open_call.stage == "reviewed" else None
            return Wait(open_call.active_ms if open_call.idles else None, expires_ms)


def answer_without_call(command: Command) -> Receipt | Refusal:
    """What the sender of *command* is told when no call is open."""
    match command:
        case Settle():
            return Refusal(_NO_APPROVAL)
        case Report() | Deliver():
            return Refusal(_NO_TICKET)
        case _:
            return Receipt("already")


def opened(call: OpenCall | None, event: RunEvent) -> OpenCall | None:
    """The open call after *event*."""
    match event:
        case ToolCalled(at_ms, proposed):
            return OpenCall(proposed, active_ms=at_ms)
        case ToolCompleted():
            return None
        case ReviewAsked():
            return _changed(
                call,
                stage="reviewed",
                approval_id=event.approval_id,
                idle_policy=event.idle_policy,
                expires_ms=event.expires_ms,
                asked_ms=event.at_ms,
            )
        case ReviewSettling():
            return _changed(call, stage="settling", settling=event)
        case ReviewSettled(outcome="approved") if call is not None and call.by_hand:
            return _changed(call, stage="approved", settling=None)
        case ReviewSettled(at_ms, outcome="approved"):
            paused = call is not None and call.idle_policy == "pause"
            return _changed(call, stage="cleared", settling=None, **({"active_ms": at_ms} if paused else {}))
        case CallCleared():
            return _changed(call, stage="cleared")
        case ToolStarted():
            return _changed(call, stage="started")
        case TicketOffered(execution_id=execution_id):
            return _changed(call, stage="offered", execution_id=execution_id)
        case ToolProgressed(at_ms, shown):
            return _changed(call, active_ms=at_ms, **({"shown_ms": at_ms} if shown else {}))
        case _:
            return call


def refused(
    calls: Sequence[ToolCall], tools: Mapping[str, ToolFact], used: Iterable[str], *, last_step: bool
) -> Problem | None:
    """Why none of *calls* may run; the whole batch is judged before the first one (runs §8)."""
    if last_step:
        return Problem("STEP_LIMIT", "Tool calls were requested on the last permitted step.")
    if len(calls) > CALLS_PER_STEP_MAX:
        return Problem("TOOL_LIMIT", f"More than {CALLS_PER_STEP_MAX} tool calls in one step.")
    seen = set(used)
    for call in calls:
        if call.name not in tools:
            return Problem("TOOL_NOT_ALLOWED", "The model asked for a tool outside the run's list.")
        if not call.id or call.id in seen:
            return Problem("INVALID_TOOL_CALL", "A call's id is empty or was used before.")
        seen.add(call.id)
        if not _suits(call, tools[call.name]):
            return Problem("INVALID_TOOL_ARGUMENTS", "A call's arguments do not suit the tool's schema.")
    return None


def at_the_end(call: OpenCall | None, problem: Problem) -> Problem:
    """*problem* as a run tells it that ends with *call* open (application-tools §6)."""
    if call is None or not call.uncertain or problem.code == "JOB_INTERRUPTED":
        return problem
    if problem.code in _UNCERTAIN_KEPT:
        return Problem(problem.code, problem.message, outcome="uncertain")
    return Problem("TOOL_OUTCOME_UNCERTAIN", "The outcome of a tool call is not confirmed.", outcome="uncertain")


def suits_output(output: Raw, fact: ToolFact) -> bool:
    """Whether an application's *output* suits what its definition promises."""
    return not fact.output_schema or compiled(bytes(fact.output_schema)).accepts(strict_json(bytes(output).decode()))


def _suits(call: ToolCall, fact: ToolFact) -> bool:
    try:
        arguments = strict_json(bytes(call.arguments).decode())
    except (NotJson, UnicodeDecodeError):
        return False
    if not isinstance(arguments, dict):
        return False
    return compiled(bytes(fact.input_schema)).accepts(cast("dict[str, Any]", arguments))


def _changed(call: OpenCall | None, **changes: object) -> OpenCall | None:
    return None if call is None else msgspec.structs.replace(call, **changes)
