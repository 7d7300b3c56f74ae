"""Detached jobs: runs that are submitted under a key and executed by any node, with nobody attached (jobs).

A job is a run of the origin `job`; its id is derived from its key, so that the key and the job are one fact.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from actors import ids, run, values
from actors.bounds import Bounds, accept
from actors.decider import Refusal
from actors.dispatch import BYTES_POOL, JOBS_POOL, blocks, line_up, record_bytes
from actors.errors import Problem, Refused
from actors.events import RunAccepted
from actors.fingerprint import fingerprint
from actors.node import Node
from actors.request import RunRequest
from actors.shell import TooLate
from eventstore.store import Caps, Claim, Heads, Item, Unavailable

log = logging.getLogger(__name__)

State: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"]
CANCELLED = Problem("CANCELLED", "The job was cancelled.")
BEGIN_TRIES = 3
"""How many places may lapse, each before its job was stored, until the caller is told to try later."""
PAGE_EVENTS_MAX = 100
PAGE_BYTES_MAX = 1_500_000
"""Compact JSON of a page's events, but always one event (jobs §2)."""


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of jobs on this host (jobs §1)."""

    retention_ms: int
    max_jobs: int = 1_000
    max_jobs_per_subject: int = 100
    max_bytes: int = 64_000_000
    max_job_bytes: int = 8_000_000
    poll_interval_ms: int = 250
    max_workers: int = 32


class Submitter(NamedTuple):
    """Who submits: the subject, and the credential that must still be good when the job is taken up."""

    subject: str
    principal: str


class Job(NamedTuple):
    """A job as one look found it."""

    id: str
    accepted: RunAccepted
    heads: Heads
    ended: run.Ended | None

    @property
    def cursor(self) -> int:
        """Number of the last event."""
        return self.heads.feed

    @property
    def state(self) -> State:
        """How it stands (jobs §4)."""
        if self.ended is None:
            return "running" if self.cursor else "queued"
        return "interrupted" if run.interrupted(self.ended) else self.ended.kind

    @property
    def cancel_requested(self) -> bool:
        """Whether its owner cancelled it."""
        return self.ended is not None and self.ended.kind == "cancelled" and self.ended.cause == "asked"

    @property
    def updated_ms(self) -> int:
        """When it last changed."""
        return max(self.accepted.at_ms, self.heads.last_ms if self.ended is None else self.ended.at_ms)

    @property
    def expires_ms(self) -> int | None:
        """When its payload goes; None while it has not ended."""
        return None if self.ended is None else run.expires_ms(self.ended)


class JobPage(NamedTuple):
    """Some of a job's events, and the job, as one look found both; *items* are contiguous after the cursor asked for."""

    job: Job
    items: Sequence[Item]


May: TypeAlias = Callable[[RunAccepted], bool]
"""Whether a caller's grants cover what a stored job uses: its provider, tools and corpus."""


class Jobs:
    """Takes jobs on, and shows them, on any node."""

    def __init__(self, node: Node, bounds: Callable[[RunRequest, str], Bounds], limits: Limits) -> None:
        self._node = node
        self._bounds = bounds
        self._limits = limits
        self._caps = Caps(total=limits.max_jobs, per_subject=limits.max_jobs_per_subject)

    async def submit(self, caller: Submitter, key: str, request: RunRequest) -> Job:
        """Take a job on, or find the one that *key* stands for; *request* is checked, and its caller may run it.

        Raises:
            Refused: JOB_ACCOUNT_REQUIRED, IDEMPOTENCY_CONFLICT, JOB_EXPIRED, JOB_STORE_FULL, JOB_RECORD_LIMIT.
            Unavailable: the store did not answer; the same submit may be sent again.
        """
        return await self._node.carried_out(lambda: self._submitted(caller, key, request), undo=lambda _: None)

    async def read(self, subject: str, job_id: str, may: May) -> Job:
        """Look at a job.

        Raises:
            Refused: JOB_NOT_FOUND, JOB_EXPIRED, FORBIDDEN, in this order.
            Unavailable: the store did not answer.
        """
        if not values.is_actor_id(job_id):
            raise _no_job()
        state, heads = await self._node.around.shell.state(job_id)
        return self._shown(job_id, state, heads, subject, may)

    async def cancel(self, subject: str, job_id: str, may: May) -> Job:
        """End a job that has not ended.

        Raises:
            Refused: as `read`.
            Unavailable: the store did not answer; whether it was cancelled is not known.
        """
        job = await self.read(subject, job_id, may)
        if job.ended is not None:
            return job
        return await self._node.carried_out(lambda: self._cancelled(job), undo=lambda _: None)

    async def page(self, subject: str, job_id: str, may: May, after: int, limit: int = PAGE_EVENTS_MAX) -> JobPage:
        """Read events after number *after*, at most *limit* and at most `PAGE_BYTES_MAX` bytes but at least one.

        The page's own heads say whether the job has ended; an end never changes, so what is read of it later belongs to it.

        Raises:
            Refused: as `read`, then INVALID_JOB_CURSOR for a cursor ahead of the job's.
            Unavailable: the store did not answer.
        """
        known = await self.read(subject, job_id, may)
        if after > known.cursor and known.ended is not None:
            raise _ahead()
        page = await self._node.around.store.page(job_id, after, PAGE_BYTES_MAX)
        if page.heads.erased or (page.heads.ended and known.ended is None):
            known = await self.read(subject, job_id, may)
        job = known._replace(heads=page.heads, ended=known.ended if page.heads.ended else None)
        if after > job.cursor:
            raise _ahead()
        return JobPage(job, _within(page.items, limit))

    async def _submitted(self, caller: Submitter, key: str, request: RunRequest) -> Job:
        bounds = self._bounds(request, caller.subject)
        if not bounds.account:
            raise Refused("JOB_ACCOUNT_REQUIRED", "This provider instance is bound to no account.")
        job_id = ids.job_of_key(self._node.around.store.deployment.id_key, caller.subject, key)
        for _ in range(BEGIN_TRIES):
            try:
                return await self._taken_on(job_id, caller, request, bounds)
            except TooLate:
                continue
        raise Unavailable("no job could be stored within the time that its place is kept")

    async def _taken_on(self, job_id: str, caller: Submitter, request: RunRequest, bounds: Bounds) -> Job:
        around = self._node.around
        state, heads = await around.shell.state(job_id)
        is_new = isinstance(state, run.New) and not heads.erased
        begin_by_ms = await self._place(job_id, caller.subject, request) if is_new else 0
        told = await around.shell.tell(
            job_id,
            self._accept(caller, job_id, request, bounds),
            command_id=around.fresh_id(),
            fresh=is_new,
            not_after_ms=begin_by_ms,
        )
        if isinstance(told.answer, Refusal):
            raise _refused(told.answer.problem)
        if told.events:
            await self._lined_up(job_id, told.state)
        return self._shown(job_id, told.state, told.heads, caller.subject, lambda _: True)

    def _accept(self, caller: Submitter, job_id: str, request: RunRequest, bounds: Bounds) -> run.Accept:
        return accept(
            request,
            bounds,
            subject=caller.subject,
            admitted=False,
            origin="job",
            fingerprint=fingerprint(request),
            permit=job_id,
            principal=caller.principal,
            retention_ms=self._limits.retention_ms,
            record_bytes_max=self._limits.max_job_bytes,
        )

    async def _place(self, job_id: str, subject: str, request: RunRequest) -> int:
        """Take a place among the jobs, and room for the record; the time until which both are kept."""
        store, begin_ms = self._node.around.store, self._node.settings.permit_begin_ms
        begin_by_ms = await self._taken(Claim(JOBS_POOL, job_id, store.node, subject), self._caps, begin_ms)
        if begin_by_ms is None:
            raise Refused("JOB_STORE_FULL", "No further job can be kept.")
        reserved = record_bytes(len(msgspec.json.encode(request)))
        fits = reserved <= self._limits.max_job_bytes
        room = Claim(BYTES_POOL, job_id, store.node, subject, weight=blocks(reserved))
        if not fits or await self._taken(room, Caps(total=self._limits.max_bytes), begin_ms) is None:
            await store.give(JOBS_POOL, job_id, self._caps)
            raise Refused("JOB_RECORD_LIMIT", "The job is larger than may be kept.", uncertain=True)
        return begin_by_ms

    async def _taken(self, claim: Claim, caps: Caps, begin_ms: int) -> int | None:
        permit = await self._node.around.store.take(claim, caps, begin_ms)
        return permit.begin_by_ms if permit.taken == "granted" else None

    async def _lined_up(self, job_id: str, state: run.State) -> None:
        """Put a stored job into the line; what the store does not hear now is made up for when the job is looked for."""
        node = self._node
        if isinstance(state, run.Live):
            try:
                await line_up(node.around.store, node.caps, job_id, state.accepted, node.settings.permit_begin_ms)
            except Unavailable:
                log.warning("job %s waits to be lined up", job_id)

    async def _cancelled(self, job: Job) -> Job:
        around = self._node.around
        told = await around.shell.tell(job.id, run.Cancel(CANCELLED), command_id=around.fresh_id())
        if job.id not in self._node.executing:
            await self._node.released(job.id)
        return self._shown(job.id, told.state, told.heads, job.accepted.subject, lambda _: True)

    def _shown(self, job_id: str, state: run.State, heads: Heads, subject: str, may: May) -> Job:
        """The job that *state* is, if *subject* may see it.

        Raises:
            Refused: JOB_NOT_FOUND, JOB_EXPIRED, FORBIDDEN, in this order.
        """
        if isinstance(state, run.Buried) and (state.epitaph.subject, state.epitaph.origin) == (subject, "job"):
            raise Refused("JOB_EXPIRED", "The job's payload was erased when its time was over.")
        if not isinstance(state, run.Live | run.Ended):
            raise _no_job()
        accepted = state.accepted
        if accepted.subject != subject or accepted.origin != "job":
            raise _no_job()
        job = Job(job_id, accepted, heads, state if isinstance(state, run.Ended) else None)
        if job.expires_ms is not None and self._node.around.store.now_ms() >= job.expires_ms:
            raise Refused("JOB_EXPIRED", "The job's payload was erased when its time was over.")
        if not may(accepted):
            raise Refused("FORBIDDEN", "This token does not allow the operation.")
        return job


def _within(items: Sequence[Item], limit: int) -> Sequence[Item]:
    """The beginning of *items* that a page may hold: numbered, and with the commas between them."""
    taken, size = 0, 1
    for item in items[: min(limit, PAGE_EVENTS_MAX)]:
        size += len(item.data) + len(str(item.number)) + 1
        if taken and size > PAGE_BYTES_MAX:
            break
        taken += 1
    return items[:taken]


def _no_job() -> Refused:
    return Refused("JOB_NOT_FOUND", "There is no such job.")


def _ahead() -> Refused:
    return Refused("INVALID_JOB_CURSOR", "The cursor is ahead of the job.")


def _refused(problem: Problem) -> Refused:
    return Refused(problem.code, problem.message, retryable=problem.retryable, uncertain=problem.outcome == "uncertain")
