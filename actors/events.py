"""The vocabulary: every event that any log may hold.

Tags and fields are in logs that exist: add, never rename, reuse or retype; a new field has a default.
A log never holds its own actor's id (forks copy it), text deltas, or resolved attachments.
None of these can be part of a cycle, so the collector need not look at them (`gc=False`): long logs load faster.
"""

from datetime import UTC, datetime
from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from actors.errors import Problem

Origin: TypeAlias = Literal["foreground", "job", "host"]
EndCause: TypeAlias = Literal["asked", "client", "node", "idle", "buffer", "shutdown", "overflow", "history", "rule"]
"""Why a run ended without a result: `client` and `node` are losses, so a keyed run replays as uncertain."""


class Usage(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What a turn consumed; absent means unknown (runs §11)."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    api_equivalent_cost_usd: float | None = None


ReviewOutcome: TypeAlias = Literal["approved", "denied", "cancelled", "expired"]


class ToolCall(Struct, frozen=True):
    """A tool use that a model proposes; *arguments* is one JSON object as the model wrote it."""

    id: str
    name: str
    arguments: Raw


class ToolFact(Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool that a run may use, as it was when the run was accepted: every node validates and reviews by the same."""

    name: str
    description: str
    input_schema: Raw
    application: bool = False
    """Executed by the application through a ticket; else a function of the host."""
    requires_approval: bool = False
    idempotent: bool = False
    output_schema: Raw | UnsetType = UNSET


class RunAccepted(Struct, frozen=True, gc=False, tag="run.accepted", omit_defaults=True):
    """A caller's request was taken on; the wire sees it as `run.started`."""

    at_ms: int
    subject: str
    provider: str
    model: str
    request: Raw
    """The validated request as compact JSON."""
    origin: Origin = "foreground"
    fingerprint: str = ""
    """Of a keyed request (idempotency §1); empty otherwise."""
    permit: str = ""
    """Holder id of the run's slot in the ledger."""
    account: str = ""
    max_steps: int = 8
    """Effective bounds, fixed here so that every node works by the same."""
    max_output_tokens: int = 4_096
    max_attempts: int = 1
    idle_timeout_ms: int = 0
    """0: no idle limit."""
    tools: tuple[ToolFact, ...] = ()


class RunStarted(Struct, frozen=True, gc=False, tag="run.started"):
    """The run has its slot and executes; idle time counts from here."""

    at_ms: int


class RunClaimed(Struct, frozen=True, gc=False, tag="run.claimed"):
    """A node took the run over; its epoch is one above the last."""

    at_ms: int
    node: str


class StepStarted(Struct, frozen=True, gc=False, tag="step.started"):
    """A model call was about to be made."""

    at_ms: int
    step: int


class TurnCompleted(Struct, frozen=True, gc=False, tag="turn.completed", omit_defaults=True):
    """The model answered."""

    at_ms: int
    step: int
    text: str = ""
    streamed: bool = False
    """Whether its text was shown in deltas as it came."""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    native: Raw | UnsetType = UNSET
    """The adapter's own state; never public."""
    finish_reason: Literal["stop", "length"] = "stop"


class ToolCalled(Struct, frozen=True, gc=False, tag="tool.called"):
    """The next proposed call of the turn came up; nothing was executed."""

    at_ms: int
    call: ToolCall


class ReviewAsked(Struct, frozen=True, gc=False, tag="review.asked", omit_defaults=True):
    """A person was asked about the open call; the approval has a log of its own, written in the same append."""

    at_ms: int
    approval_id: str
    idle_policy: Literal["pause", "continue"]
    expires_ms: int | None = None


class ReviewSettled(Struct, frozen=True, gc=False, tag="review.settled", omit_defaults=True):
    """The question about the open call was answered, once."""

    at_ms: int
    approval_id: str
    outcome: ReviewOutcome
    by: str = ""
    """The subject that decided; empty for an expiry or an ended run."""


class ReviewSettling(Struct, frozen=True, gc=False, tag="review.settling", omit_defaults=True):
    """The question was answered, but the answer holds only once the audit sink took its record; nobody else can answer."""

    at_ms: int
    approval_id: str
    outcome: ReviewOutcome
    by: str = ""
    """The subject that decided; empty for an expiry."""


class CallCleared(Struct, frozen=True, gc=False, tag="call.cleared"):
    """The host's own policy let the open call pass without a person."""

    at_ms: int


class ToolStarted(Struct, frozen=True, gc=False, tag="tool.started"):
    """The open call was about to be executed by the host: from here its outcome is uncertain until it is recorded."""

    at_ms: int


class TicketOffered(Struct, frozen=True, gc=False, tag="ticket.offered"):
    """The application may execute the open call, once: from here its outcome is uncertain until it is recorded."""

    at_ms: int
    execution_id: str


class ToolProgressed(Struct, frozen=True, gc=False, tag="tool.progressed", omit_defaults=True):
    """The application reported work on its ticket; *shown* at most once a second."""

    at_ms: int
    shown: bool = True


class ToolCompleted(Struct, frozen=True, gc=False, tag="tool.completed"):
    """The open call has its output."""

    at_ms: int
    call_id: str
    name: str
    output: Raw


class RunCompleted(Struct, frozen=True, gc=False, tag="run.completed", omit_defaults=True):
    """The final answer, as the result shows it (runs §7)."""

    at_ms: int
    text: str
    steps: int
    usage: Usage = Usage()
    finish_reason: Literal["stop", "length"] = "stop"
    output: Raw | UnsetType = UNSET
    sources: Raw | UnsetType = UNSET
    artifacts: Raw | UnsetType = UNSET


class RunFailed(Struct, frozen=True, gc=False, tag="run.failed", omit_defaults=True):
    """The run ended by a rule, a provider or a loss."""

    at_ms: int
    problem: Problem
    cause: EndCause = "rule"


class RunCancelled(Struct, frozen=True, gc=False, tag="run.cancelled", omit_defaults=True):
    """The run's cancel signal fired."""

    at_ms: int
    problem: Problem
    cause: EndCause = "asked"


RunEvent: TypeAlias = (
    RunAccepted
    | RunStarted
    | RunClaimed
    | StepStarted
    | TurnCompleted
    | ToolCalled
    | ReviewAsked
    | ReviewSettled
    | ReviewSettling
    | CallCleared
    | ToolStarted
    | TicketOffered
    | ToolProgressed
    | ToolCompleted
    | RunCompleted
    | RunFailed
    | RunCancelled
)


class ApprovalRequested(Struct, frozen=True, gc=False, tag="approval.requested", omit_defaults=True):
    """A call waits for a person."""

    at_ms: int
    run_id: str
    subject: str
    provider: str
    call: ToolCall
    idle_policy: Literal["pause", "continue"]
    expires_ms: int | None = None


class ApprovalDecided(Struct, frozen=True, gc=False, tag="approval.decided", omit_defaults=True):
    """Somebody decided, or the run ended while it waited (`cancelled`, by nobody)."""

    at_ms: int
    outcome: Literal["approved", "denied", "cancelled"]
    by: str = ""


class ApprovalExpired(Struct, frozen=True, gc=False, tag="approval.expired"):
    """Nobody decided in time."""

    at_ms: int


class ApprovalUnaudited(Struct, frozen=True, gc=False, tag="approval.unaudited"):
    """The audit sink did not take the record of its settlement: it is over, and nothing was decided."""

    at_ms: int


ApprovalEvent: TypeAlias = ApprovalRequested | ApprovalDecided | ApprovalExpired | ApprovalUnaudited


class TicketOpened(Struct, frozen=True, gc=False, tag="ticket.opened", omit_defaults=True):
    """An application may execute one call, once."""

    at_ms: int
    run_id: str
    subject: str
    provider: str
    call_id: str
    name: str


class TicketClosed(Struct, frozen=True, gc=False, tag="ticket.closed"):
    """The ticket is used up, or its run has ended."""

    at_ms: int


TicketEvent: TypeAlias = TicketOpened | TicketClosed


def timestamp(at_ms: int) -> str:
    """The time *at_ms* of an event as both the wire and the audit write it: UTC with milliseconds."""
    moment = datetime.fromtimestamp(at_ms // 1_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03}Z"
