"""What the edge is made of: everything it asks, and the few things about it that change."""

import logging
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from anyio import Event
from msgspec import Raw, Struct

from actors.decisions import Caller, Decided, Waiting
from actors.errors import Refused
from actors.foreground import Runs
from actors.jobs import PAGE_EVENTS_MAX, Job, JobPage, May, Submitter
from actors.request import Catalog, Features, RunRequest
from actors.sessions import Holder, Shown, Wanted
from actors.telemetry import SILENT, Telemetry
from actors.viewing import Cursor, Seen, Watched
from api import pipeline
from api.grants import Principals
from api.host.service import HostParts
from api.wire import readiness

FEATURES = (
    "json-results",
    "client-pairing",
    "provider-management",
    "provider-setup",
    "provider-runtimes",
    "durable-jobs",
    "conversation-sessions",
    "application-tools",
    "interactive-approvals",
    "event-stream",
    "cancel-on-disconnect",
    "optional-idle-timeout",
    "required-capabilities",
    "optional-events",
    "provider-discovery",
    "context-inputs",
    "draft-artifacts",
    "context-references",
    "scoped-retrieval",
    "retrieval-indexing",
    "document-ingestion",
    "pdf-ingestion",
    "idempotency",
)
"""All features of the protocol, in the order in which a host names those it has (overview §10)."""
EXTENSIONS = ("stream-resumption", "interactive-jobs", "approval-inbox")
"""Features of our own, beyond the protocol (DESIGN §7), named after all of its own."""
ALWAYS = (
    "json-results",
    "event-stream",
    "cancel-on-disconnect",
    "optional-idle-timeout",
    "required-capabilities",
    "optional-events",
    "provider-discovery",
    "context-inputs",
    "draft-artifacts",
)

_NO_FEATURES = Features()
_log = logging.getLogger("runstream.edge")


class Listing(Protocol):
    """Who knows the provider instances and how they stand."""

    async def listed(self, ids: Collection[str], *, refresh: bool = False) -> Sequence[object]:
        """List those instances among *ids* that exist, in configured order, as discovery shows them."""
        ...


class Answers(Protocol):
    """Who takes the answers of people and applications, for runs of any node."""

    async def decide(
        self,
        caller: Caller,
        approval_id: str,
        run_id: str,
        call: dict[str, Any],
        decision: Literal["approve", "deny", "cancel"],
    ) -> Decided:
        """Settle a pending approval."""
        ...

    async def waiting(self, caller: Caller, most: int) -> Sequence[Waiting]:
        """List what waits for the caller's decision, the oldest first."""
        ...

    async def report(self, caller: Caller, execution_id: str, run_id: str, call_id: str) -> None:
        """Note that an application works on its ticket."""
        ...

    async def deliver(self, caller: Caller, execution_id: str, run_id: str, call_id: str, output: Raw | None) -> None:
        """Take the result of a ticket, or None for a failure."""
        ...

    async def rejected(self, caller: Caller, code: str, message: str, approval_id: str, run_id: str) -> Refused:
        """Write the audit of a rejected decision, and return the refusal."""
        ...


class SessionStore(Protocol):
    """Who keeps conversations, for any node; what each call refuses is said at `actors.sessions.Sessions`."""

    async def create(self, holder: Holder, wanted: Wanted) -> Shown:
        """Begin a conversation."""
        ...

    async def read(self, holder: Holder, session_id: str) -> Shown:
        """Look at a conversation."""
        ...

    async def delete(self, holder: Holder, session_id: str) -> None:
        """Forget a conversation, and cancel the turn that runs."""
        ...


class JobStore(Protocol):
    """Who takes jobs on and shows them, for any node; what each call refuses is said at `actors.jobs.Jobs`."""

    async def submit(self, caller: Submitter, key: str, request: RunRequest, *, interactive: bool = False) -> Job:
        """Take a job on, or find the one that *key* stands for."""
        ...

    async def read(self, subject: str, job_id: str, may: May) -> Job:
        """Look at a job."""
        ...

    async def cancel(self, subject: str, job_id: str, may: May) -> Job:
        """End a job that has not ended."""
        ...

    async def page(self, subject: str, job_id: str, may: May, after: int, limit: int = PAGE_EVENTS_MAX) -> JobPage:
        """Read some of a job's events."""
        ...


class Viewer(Protocol):
    """Who shows the runs of any node to those they belong to."""

    def watch(self, subject: str, run_id: str, may: May, cursor: Cursor) -> AbstractAsyncContextManager[Watched]:
        """Follow a run after *cursor*."""
        ...

    async def page(self, subject: str, run_id: str, may: May, cursor: Cursor) -> Seen:
        """Read events after *cursor*."""
        ...


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that hold on any server; our own adds those of `server.Bounds`."""

    body_bytes_max: int = 1_000_000
    receive_s: float = 30
    heartbeat_s: float = 15
    answer_bytes_max: int = 2_000_000


class Gate:
    """What the host lets in: nothing while it starts, everything, then nothing new while it closes."""

    def __init__(self, *, starting: bool = False) -> None:
        self.starting = starting
        self.closing = Event()
        """Set for good when the host drains."""

    @property
    def state(self) -> pipeline.State:
        """Where in its life the host is."""
        if self.starting:
            return "starting"
        return "closing" if self.closing.is_set() else "open"

    def open(self) -> None:
        """Let requests in: the services are up."""
        self.starting = False

    def close(self) -> None:
        """Let nothing new in, for good."""
        self.closing.set()


class Faults:
    """Counts what should not have happened, and logs where, never what it said: that may be a prompt or a secret."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, error: BaseException, where: str) -> None:
        """Count *error*, and log its type and the way it took."""
        self.count += 1
        way = " < ".join(
            f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__))
        )
        _log.error("%s failed with %s at %s", where, type(error).__name__, way)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that `create_app` needs."""

    runs: Runs
    answers: Answers
    catalog: Catalog
    tokens: Principals
    discovery: Listing
    viewer: Viewer | None = None
    sessions: SessionStore | None = None
    """None where sessions are not configured."""
    jobs: JobStore | None = None
    """None where jobs are not configured."""
    host: HostParts | None = None
    """None where the Agent Host protocol is not served."""
    gate: Gate = field(default_factory=Gate)
    allowed_origins: frozenset[str] = frozenset()
    features: tuple[str, ...] = ALWAYS
    tls: bool = False
    limits: Limits = field(default_factory=Limits)
    faults: Faults = field(default_factory=Faults)
    facts: Callable[[], readiness.Facts] = readiness.Facts
    """What the node knows of itself, for `GET /ready`."""
    exposition: Callable[[], bytes] | None = None
    """The metrics as Prometheus reads them; None where there are none to be read."""
    telemetry: Telemetry = SILENT
    diagnostics: bool = False
    """Whether a run joins the trace that its caller names (overview §12)."""


def advertised(
    names: Collection[str], features: Features = _NO_FEATURES, *, jobs: bool = False, viewer: bool = False
) -> tuple[str, ...]:
    """*names* and what *features*, *jobs* and a *viewer* add, in the protocol's order, our own after all of the protocol's."""
    added = {
        "durable-jobs": jobs,
        "conversation-sessions": features.sessions,
        "interactive-approvals": features.approvals,
        "application-tools": features.application_tools,
        "stream-resumption": viewer,
        "interactive-jobs": jobs,
        "approval-inbox": features.approvals,
    }
    told = {*names, *(name for name, has in added.items() if has)}
    known = tuple(name for name in FEATURES if name in told)
    return known + tuple(sorted(told - set(FEATURES)))
