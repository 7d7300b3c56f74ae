"""The vocabulary: every event that any log may hold.

Tags and fields are in logs that exist: add, never rename, reuse or retype; a new field has a default.
A log never holds its own actor's id (forks copy it), text deltas, or resolved attachments.
None of these can be part of a cycle, so the collector need not look at them (`gc=False`): long logs load faster.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from actors.budgets import Budget
from actors.errors import Problem

Origin: TypeAlias = Literal["foreground", "job", "host"]
EndCause: TypeAlias = Literal[
    "asked", "client", "node", "idle", "buffer", "shutdown", "overflow", "history", "deleted", "deadline", "rule"
]
"""Why a run ended without a result: `client` and `node` are losses, so a keyed run replays as uncertain."""
SessionMode: TypeAlias = Literal["history", "native"]


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


class SessionTurn(Struct, frozen=True, gc=False, omit_defaults=True):
    """The turn of a session that a run is: what it found there, and by what bounds it may be committed."""

    id: str
    version: int
    """Of the session's log once the turn is reserved; nothing but the turn's end or the session's is written after it."""
    revision: int
    """Before the turn."""
    mode: SessionMode
    created_ms: int
    updated_ms: int
    retention_ms: int
    visible: int = 0
    """Messages of the visible history before the turn."""
    messages: int = 0
    """Messages as a model is told them, before the turn."""
    record_bytes: int = 0
    """Size of the record before the turn (sessions §4)."""
    record_bytes_max: int = 0
    used: tuple[str, ...] = ()
    """Call ids of earlier turns, which no call may have again."""


class HostContext(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a Host run belongs, as its caller said; immutable (Host runtime §1)."""

    run_id: str
    """The name that the caller gave it, which is no actor's id."""
    trace_id: str = ""
    request_id: str = ""
    tenant_id: str = ""
    user_id: str = ""
    application_id: str = ""
    workspace_id: str = ""
    conversation_id: str = ""
    agent_id: str = ""
    locale: str = ""
    deadline_ms: int | None = None
    metadata: Mapping[str, str] = {}


class HostRun(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a run has that was created through the Host: reviewed as a whole batch, resumed by hand, and named."""

    context: HostContext
    input: Raw
    """As it was given; private."""
    metadata: Mapping[str, str] = {}
    problem: Problem | None = None
    """Why the input is no request that the host could run: told when it would be taken up."""


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
    session: SessionTurn | None = None
    principal: str = ""
    """Of a job: who must still be allowed to run it when it is taken up."""
    retention_ms: int = 0
    """How long the run is kept after its end, if not for ever; 0: as long as the protocol's host does by default."""
    record_bytes_max: int = 0
    """Of a job: bound on its request and its feed together; 0 is none."""
    budgets: tuple[Budget, ...] = ()
    accounted: bool = False
    """Whether its end leaves a usage record to be delivered."""
    interactive: bool = False
    """Of a job: whether people and applications may take part, of which its pages show nothing."""
    host: HostRun | None = None
    """Of a run that was created through the Host."""


class RunStarted(Struct, frozen=True, gc=False, tag="run.started"):
    """The run has its slot and executes; idle time counts from here."""

    at_ms: int


class RunClaimed(Struct, frozen=True, gc=False, tag="run.claimed"):
    """A node took the run over; its epoch is one above the last."""

    at_ms: int
    node: str


class RunHandedOver(Struct, frozen=True, gc=False, tag="run.handed_over"):
    """Its node shuts down and let go of it between two effects; any node may carry it on."""

    at_ms: int
    node: str


class RunErased(Struct, frozen=True, gc=False, tag="run.erased", omit_defaults=True):
    """What stays of a run whose payload was erased; it stands in no log, but in its place."""

    at_ms: int
    subject: str
    origin: Origin = "foreground"
    fingerprint: str = ""


class KeyReserved(Struct, frozen=True, gc=False, tag="key.reserved"):
    """A key of a session's turn was claimed; the run it stands for lives with its session."""

    at_ms: int
    subject: str
    fingerprint: str
    run_id: str


class KeyBurned(Struct, frozen=True, gc=False, tag="key.burned"):
    """What the key was claimed for was refused; nobody may try it again under this key (sessions §7)."""

    at_ms: int


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
    call_id: str = ""
    """Of a Host run: which of the turn's calls, none of which has come up yet."""


class ReviewSettled(Struct, frozen=True, gc=False, tag="review.settled", omit_defaults=True):
    """The question about the open call was answered, once."""

    at_ms: int
    approval_id: str
    outcome: ReviewOutcome
    by: str = ""
    """The subject that decided; empty for an expiry or an ended run."""
    reason: str = ""
    """Through the Host: what the decider said; public."""
    metadata: Mapping[str, str] = {}
    """Through the Host."""


class ReviewSettling(Struct, frozen=True, gc=False, tag="review.settling", omit_defaults=True):
    """The question was answered, but the answer holds only once the audit sink took its record; nobody else can answer."""

    at_ms: int
    approval_id: str
    outcome: ReviewOutcome
    by: str = ""
    """The subject that decided; empty for an expiry."""
    reason: str = ""
    metadata: Mapping[str, str] = {}


class RunResumed(Struct, frozen=True, gc=False, tag="run.resumed", omit_defaults=True):
    """A caller claimed the approved call of a Host run, for the first time or *again* (Host runtime §6)."""

    at_ms: int
    approval_id: str
    by: str
    again: bool = False
    input: Raw | UnsetType = UNSET
    """What the caller gave along; private."""


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
    reason: str | UnsetType = UNSET
    """Through the Host: why, in the caller's words, which may be none."""


RunEvent: TypeAlias = (
    RunAccepted
    | RunStarted
    | RunClaimed
    | RunHandedOver
    | RunErased
    | KeyReserved
    | KeyBurned
    | StepStarted
    | TurnCompleted
    | ToolCalled
    | ReviewAsked
    | ReviewSettled
    | ReviewSettling
    | RunResumed
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


class Visible(Struct, frozen=True, gc=False):
    """One message of a session as its owner sees it."""

    role: Literal["user", "assistant"]
    content: str


class Stored(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One message of a session as a model is told it again; never public."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    native: Raw | UnsetType = UNSET
    call_id: str = ""
    name: str = ""


class SessionCreated(Struct, frozen=True, gc=False, tag="session.created", omit_defaults=True):
    """A conversation was begun."""

    at_ms: int
    subject: str
    provider: str
    model: str
    account: str
    """The account its provider was bound to; another one may not go on with it."""
    mode: SessionMode
    retention_ms: int
    history: tuple[Visible, ...] = ()
    instructions: str | None = None


class TurnReserved(Struct, frozen=True, gc=False, tag="turn.reserved"):
    """A run is the session's next turn, alone; written with its acceptance."""

    at_ms: int
    run_id: str


class TurnCommitted(Struct, frozen=True, gc=False, tag="turn.committed", omit_defaults=True):
    """The turn's run completed; written with its end."""

    at_ms: int
    run_id: str
    said: tuple[Visible, Visible]
    """The input and the answer."""
    stored: tuple[Stored, ...] = ()
    """In native mode, every message of the turn."""


class TurnReleased(Struct, frozen=True, gc=False, tag="turn.released", omit_defaults=True):
    """The turn's run ended without a result; *interrupted* if a model had been asked. Written with its end."""

    at_ms: int
    run_id: str
    interrupted: bool = False


class SessionDeleted(Struct, frozen=True, gc=False, tag="session.deleted"):
    """Its owner deleted it, its running turn with it; or nobody went on with it for too long (*expired*)."""

    at_ms: int
    expired: bool = False


SessionEvent: TypeAlias = SessionCreated | TurnReserved | TurnCommitted | TurnReleased | SessionDeleted


class HostKeyReserved(Struct, frozen=True, gc=False, tag="host_key.reserved"):
    """A Host key was claimed for one request, which is about the run *run_id* (DESIGN §3)."""

    at_ms: int
    subject: str
    fingerprint: str
    run_id: str


class HostKeySettled(Struct, frozen=True, gc=False, tag="host_key.settled"):
    """How that request went: what it is answered from now on."""

    at_ms: int
    outcome: Raw
    applied: bool
    """Whether it changed the run; else it was refused."""


class HostKeyForgotten(Struct, frozen=True, gc=False, tag="host_key.forgotten"):
    """Its time is over; it stands in no log, for the log goes in the same step."""

    at_ms: int


HostKeyEvent: TypeAlias = HostKeyReserved | HostKeySettled | HostKeyForgotten


def timestamp(at_ms: int) -> str:
    """The time *at_ms* of an event as both the wire and the audit write it: UTC with milliseconds."""
    moment = datetime.fromtimestamp(at_ms // 1_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03}Z"
