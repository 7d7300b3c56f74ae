"""Sessions and jobs kept in memory, for the edge: what their services promise, in the order in which they refuse."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import anyio.lowlevel
from msgspec.structs import replace

from actors import run, session
from actors.errors import Refused
from actors.events import EndCause, RunAccepted, SessionCreated
from actors.jobs import Job, JobPage, May, Submitter
from actors.request import RunRequest, encoded_request
from actors.sessions import Holder, Shown, Wanted
from eventstore.store import Heads, Item
from projections import wire_feed

AT_MS = 1_767_607_200_000
RETENTION_MS = 60_000


class FakeSessions:
    """Keeps conversations; *refusal* is raised by whatever is asked."""

    def __init__(self) -> None:
        self.kept: dict[str, session.Open] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None

    async def create(self, holder: Holder, wanted: Wanted) -> Shown:
        await self._noted("create", wanted)
        self._allowed(holder, "create", wanted.provider)
        created = SessionCreated(
            AT_MS,
            holder.subject,
            wanted.provider,
            wanted.model,
            "home",
            wanted.mode,
            RETENTION_MS,
            wanted.history,
            wanted.instructions,
        )
        state = session.evolve(session.New(), created)
        assert isinstance(state, session.Open)
        session_id = str(UUID(int=0xA << 64 | len(self.kept)))
        self.kept[session_id] = state
        return Shown(session_id, state)

    async def read(self, holder: Holder, session_id: str) -> Shown:
        await self._noted("read", session_id)
        return Shown(session_id, self._found(holder, "read", session_id))

    async def delete(self, holder: Holder, session_id: str) -> None:
        await self._noted("delete", session_id)
        self._found(holder, "delete", session_id)
        del self.kept[session_id]

    def change(self, session_id: str, **members: Any) -> None:
        """Put the session into another state."""
        self.kept[session_id] = replace(self.kept[session_id], **members)

    async def _noted(self, *what: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.asked.append(what)
        if self.refusal is not None:
            raise self.refusal

    def _found(self, holder: Holder, operation: str, session_id: str) -> session.Open:
        state = self.kept.get(session_id)
        if state is None or state.created.subject != holder.subject:
            raise Refused("SESSION_NOT_FOUND")
        self._allowed(holder, operation, state.created.provider)
        return state

    def _allowed(self, holder: Holder, operation: str, provider: str) -> None:
        if operation not in holder.operations or not holder.may_use(provider):
            raise Refused("FORBIDDEN")


class FakeJobs:
    """Keeps jobs that nobody executes; *refusal* is raised by whatever is asked."""

    def __init__(self) -> None:
        self.kept: dict[str, Job] = {}
        self.items: dict[str, list[Item]] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None

    async def submit(self, caller: Submitter, key: str, request: RunRequest, *, interactive: bool = False) -> Job:  # noqa: ARG002
        await self._noted("submit", caller, key)
        stored = encoded_request(request)
        known = self.keys.setdefault((caller.subject, key), str(UUID(int=0xB << 64 | len(self.kept))))
        if known not in self.kept:
            accepted = RunAccepted(
                AT_MS,
                caller.subject,
                request.provider,
                request.model,
                stored,
                origin="job",
                principal=caller.principal,
                retention_ms=RETENTION_MS,
            )
            self.kept[known] = Job(known, accepted, Heads(log=1, last_ms=AT_MS), None)
            self.items[known] = []
        if bytes(self.kept[known].accepted.request) != bytes(stored):
            raise Refused("IDEMPOTENCY_CONFLICT")
        return self.kept[known]

    async def read(self, subject: str, job_id: str, may: May) -> Job:
        await self._noted("read", job_id)
        return self._found(subject, job_id, may)

    async def cancel(self, subject: str, job_id: str, may: May) -> Job:
        await self._noted("cancel", job_id)
        if self._found(subject, job_id, may).ended is None:
            self.end(job_id, "cancelled", "asked")
        return self.kept[job_id]

    async def page(self, subject: str, job_id: str, may: May, after: int, limit: int = 100) -> JobPage:
        await self._noted("page", job_id, after, limit)
        job = self._found(subject, job_id, may)
        if after > job.cursor:
            raise Refused("INVALID_JOB_CURSOR")
        return JobPage(job, tuple(self.items[job_id][after : after + limit]))

    def tell(self, job_id: str, kind: str, **payload: Any) -> None:
        """Append one event."""
        job, items = self.kept[job_id], self.items[job_id]
        items.append(Item(len(items) + 1, wire_feed.item(job_id, kind, payload, AT_MS + len(items))))
        heads = replace(job.heads, feed=len(items), last_ms=AT_MS + len(items))
        self.kept[job_id] = job._replace(heads=heads)

    def begin(self, job_id: str) -> None:
        """Let it be taken up."""
        accepted = self.kept[job_id].accepted
        self.tell(job_id, "run.started", provider=accepted.provider, model=accepted.model)

    def end(self, job_id: str, kind: Any, cause: EndCause | None = None, *, at_ms: int = AT_MS + 1_000) -> None:
        """Let it end."""
        if not self.items[job_id]:
            self.begin(job_id)
        accepted = self.kept[job_id].accepted
        self.tell(job_id, f"run.{kind}", **_ending(job_id, accepted, kind, interrupted=cause == "node"))
        ended = run.Ended(accepted, kind, at_ms, cause)
        self.kept[job_id] = self.kept[job_id]._replace(ended=ended)

    async def _noted(self, *what: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.asked.append(what)
        if self.refusal is not None:
            raise self.refusal

    def _found(self, subject: str, job_id: str, may: May) -> Job:
        job = self.kept.get(job_id)
        if job is None or job.accepted.subject != subject:
            raise Refused("JOB_NOT_FOUND")
        if not may(job.accepted):
            raise Refused("FORBIDDEN")
        return job


def _ending(job_id: str, accepted: RunAccepted, kind: str, *, interrupted: bool) -> Mapping[str, Any]:
    if kind == "completed":
        result = {"runId": job_id, "provider": accepted.provider, "model": accepted.model, "text": "done", "usage": {}}
        return {"result": result | {"steps": 1, "finishReason": "stop"}}
    code = "JOB_INTERRUPTED" if interrupted else "CANCELLED" if kind == "cancelled" else "PROVIDER_ERROR"
    error = {"code": code, "message": code, "retryable": False}
    return {"error": error | ({"outcome": "uncertain"} if interrupted else {})}
