"""The calls of the client that awaits, by what they are about; each says which of `calls` it is, and nothing else."""

from typing import Any, Protocol, TypeVar

from runstream_client import calls
from runstream_client.calls import Call
from runstream_client.events import Approval, Execution, TicketCall
from runstream_client.evidence import RetrievalResult
from runstream_client.providers import SetupSnapshot
from runstream_client.records import (
    DecisionReceipt,
    DeleteReceipt,
    Inbox,
    IndexReceipt,
    Job,
    JobPage,
    RunPage,
    SessionDeleted,
    SessionSnapshot,
    TicketReceipt,
)
from runstream_client.requests import (
    Decision,
    DeleteRequest,
    IndexRequest,
    IngestRequest,
    RunRequest,
    SearchRequest,
    SessionRequest,
    SetupRequest,
)

T = TypeVar("T")


class Ask(Protocol):
    """Sends a call and gives its answer."""

    async def __call__(self, call: Call[T], /) -> T: ...


class Group:
    """Calls that belong together."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask


class Approvals(Group):
    """Calls of models that wait for a person."""

    async def decide(self, approval: Approval, decision: Decision) -> DecisionReceipt:
        """Decide about exactly this call."""
        return await self._ask(calls.decide_about(approval, decision))

    async def decide_by_id(
        self, approval_id: str, run_id: str, call: TicketCall, decision: Decision
    ) -> DecisionReceipt:
        """Decide about a call that was told of elsewhere."""
        return await self._ask(calls.decide(approval_id, run_id, call, decision))

    async def pending(self, limit: int | None = None) -> Inbox:
        """Return what waits for the token's decision, on all nodes (`approval-inbox`)."""
        return await self._ask(calls.pending(limit))


class Tools(Group):
    """Tickets: calls that the application executes itself."""

    async def progress(self, execution: Execution) -> TicketReceipt:
        """Say that the call is still being worked on."""
        return await self._ask(calls.progress(execution))

    async def result(self, execution: Execution, output: Any) -> TicketReceipt:
        """Hand in what the call came to; `None` is a result."""
        return await self._ask(calls.tool_result(execution, output))

    async def failed(self, execution: Execution) -> TicketReceipt:
        """Say that the call failed, which ends the run as uncertain."""
        return await self._ask(calls.tool_failed(execution))


class Sessions(Group):
    """Conversations that the host keeps."""

    async def create(self, request: SessionRequest) -> SessionSnapshot:
        """Begin a conversation."""
        return await self._ask(calls.session_create(request))

    async def read(self, session_id: str) -> SessionSnapshot:
        """Return a conversation."""
        return await self._ask(calls.session_read(session_id))

    async def delete(self, session_id: str) -> SessionDeleted:
        """End a conversation, and the turn that runs in it."""
        return await self._ask(calls.session_delete(session_id))


class Jobs(Group):
    """Runs that nobody is attached to."""

    async def submit(self, key: str, request: RunRequest, *, interactive: bool = False) -> Job:
        """Hand in a job; the same key and request again is the same job. *interactive* is `interactive-jobs`."""
        return await self._ask(calls.job_submit(key, request, interactive=interactive))

    async def read(self, job_id: str) -> Job:
        """Return how a job stands."""
        return await self._ask(calls.job_read(job_id))

    async def cancel(self, job_id: str) -> Job:
        """Ask for the end of a job."""
        return await self._ask(calls.job_cancel(job_id))

    async def page(self, job_id: str, after: int = 0, limit: int | None = None) -> JobPage:
        """Return one page of a job's events; `job_events` of the client reads them all."""
        return await self._ask(calls.job_events(job_id, after, limit))


class Runs(Group):
    """Runs of any kind, by their ids (`stream-resumption`)."""

    async def page(self, run_id: str, cursor: str = "") -> RunPage:
        """Return the events of a run after *cursor*, as far as one page goes."""
        return await self._ask(calls.run_events(run_id, cursor))


class Retrieval(Group):
    """Passages of the application's documents."""

    async def search(self, request: SearchRequest) -> RetrievalResult:
        """Find passages."""
        return await self._ask(calls.search(request))

    async def index(self, request: IndexRequest) -> IndexReceipt:
        """Store a revision of a document, given as passages."""
        return await self._ask(calls.index(request))

    async def ingest(self, request: IngestRequest) -> IndexReceipt:
        """Store a revision of a document, which the host cuts into passages."""
        return await self._ask(calls.ingest(request))

    async def delete(self, request: DeleteRequest) -> DeleteReceipt:
        """Remove a revision of a document."""
        return await self._ask(calls.delete(request))


class Management(Group):
    """What tokens that manage providers may do."""

    async def setup(self, request: SetupRequest) -> SetupSnapshot:
        """Take a step of a provider's sign-in."""
        return await self._ask(calls.setup(request))
