"""Detached jobs: runs that are submitted under a key and executed by any node, with nobody attached (jobs).

A job is a run of the origin `job`; its id is derived from its key, so that the key and the job are one fact.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from actors import hidden, ids, run, upkeep, values
from actors.bounds import Bounds, accept
from actors.decider import Refusal
from actors.dispatch import BYTES_POOL, JOBS_POOL, blocks, line_up, record_bytes
from actors.errors import Problem, Refused
from actors.events import RunAccepted, SessionTurn
from actors.fingerprint import fingerprint_of_job
from actors.node import Node
from actors.request import RunRequest
from actors.sessions import Holder, Sessions, everything_of
from actors.shell import Moved, TooLate
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
    waived: frozenset[str] = frozenset()
    """Application tools that the credential lets pass without review."""
    holder: Holder | None = None
    """What the credential may do with sessions; None: everything with its own."""


class Job(NamedTuple):
    """A job as one look found it."""

    id: str
    accepted: RunAccepted
    heads: Heads
    ended: run.Ended | None
    left_out: int = 0
    """How many of its events pages do not show."""

    @property
    def cursor(self) -> int:
        """Number of the last event that pages show."""
        return self.heads.feed - self.left_out

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
        return None if self.ended is None else upkeep.expires_ms(self.ended)


class JobPage(NamedTuple):
    """Some of a job's events, and the job, as one look found both; *items* are contiguous after the cursor asked for."""

    job: Job
    items: Sequence[Item]


May: TypeAlias = Callable[[RunAccepted], bool]
"""Whether a caller's grants cover what a stored job uses: its provider, tools and corpus."""


class Jobs:
    """Takes jobs on, and shows them, on any node."""

    def __init__(
        self,
        node: Node,
        bounds: Callable[[RunRequest, str, frozenset[str]], Bounds],
        limits: Limits,
        sessions: Sessions | None = None,
    ) -> None:
        self._node = node
        self._sessions = sessions
        self._bounds = bounds
        self._limits = limits
        self._caps = Caps(total=limits.max_jobs, per_subject=limits.max_jobs_per_subject)

    async def submit(self, caller: Submitter, key: str, request: RunRequest, *, interactive: bool = False) -> Job:
        """Take a job on, or find the one that *key* stands for; *request* is checked, and its caller may run it.

        An *interactive* one may ask people, have applications execute tools, and be a session's turn (extensions §2).

        Raises:
            Refused: JOB_ACCOUNT_REQUIRED, IDEMPOTENCY_CONFLICT, JOB_EXPIRED, JOB_STORE_FULL, JOB_RECORD_LIMIT; for a
                session's turn, why it cannot be the next.
            Unavailable: the store did not answer; the same submit may be sent again.
        """
        asked = _Asked(caller, key, request, fingerprint_of_job(request, interactive=interactive), interactive)
        return await self._node.carried_out(lambda: self._submitted(asked), undo=lambda _: None)

    async def read(self, subject: str, job_id: str, may: May) -> Job:
        """Look at a job.

        Raises:
            Refused: JOB_NOT_FOUND, JOB_EXPIRED, FORBIDDEN, in this order.
            Unavailable: the store did not answer.
        """
        if not values.is_actor_id(job_id):
            raise _no_job()
        state, heads = await self._node.around.shell.state(job_id)
        job = self._shown(job_id, state, heads, subject, may)
        if job.ended is not None:
            await self._node.around.store.confirm_end(job_id)
        return await self._counted(job)

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
        if known.accepted.interactive:
            return await self._interactive_page(known, after, limit)
        page = await self._node.around.store.page(job_id, after, PAGE_BYTES_MAX)
        if page.heads.erased or (page.heads.ended and known.ended is None):
            known = await self.read(subject, job_id, may)
        job = known._replace(heads=page.heads, ended=known.ended if page.heads.ended else None)
        if after > job.cursor:
            raise _ahead()
        return JobPage(job, _within(page.items, limit))

    async def _interactive_page(self, known: Job, after: int, limit: int) -> JobPage:
        """Read events after the one that pages show as number *after*, without those that they leave out."""
        store, log = self._node.around.store, await self._node.around.store.look(known.id)
        start = hidden.feed_number(after, hidden.hidden(log.entries))
        if start > log.heads.feed:
            raise _ahead()
        page = await store.page(known.id, start, PAGE_BYTES_MAX)
        while page.heads.log > log.heads.log or page.heads.erased:  # what was hidden meanwhile stands in the log by now
            log = await store.look(known.id)
            if log.heads.erased:
                raise _expired()
        left_out = [number for number in hidden.hidden(log.entries) if number <= page.heads.feed]
        ended = known.ended
        if page.heads.ended and ended is None:
            await store.confirm_end(known.id)
            state, _ = await self._node.around.shell.state(known.id)
            ended = state if isinstance(state, run.Ended) else None
        job = Job(known.id, known.accepted, page.heads, ended if page.heads.ended else None, len(left_out))
        items = hidden.renumbered(page.items, left_out)
        return JobPage(job, _within(items, limit))

    async def _counted(self, job: Job) -> Job:
        """The job with what its pages do not show taken off its cursor."""
        if not job.accepted.interactive:
            return job
        log = await self._node.around.store.look(job.id)
        left_out = [number for number in hidden.hidden(log.entries) if number <= job.heads.feed]
        return job._replace(left_out=len(left_out))

    async def _submitted(self, asked: "_Asked") -> Job:
        caller, request = asked.caller, asked.request
        bounds = self._bounds(request, caller.subject, caller.waived)
        if not bounds.account:
            raise Refused("JOB_ACCOUNT_REQUIRED", "This provider instance is bound to no account.")
        key_id = ids.job_of_key(self._node.around.store.deployment.id_key, caller.subject, asked.key)
        job_id = key_id if request.session is None else await self._stood_for(key_id, asked)
        for _ in range(BEGIN_TRIES):
            try:
                return await self._taken_on(job_id, asked, bounds)
            except (TooLate, Moved):
                continue
        raise Unavailable("no job could be stored within the time that its place is kept")

    async def _stood_for(self, key_id: str, asked: "_Asked") -> str:
        """The id of the run that a key of a session's turn stands for: it lives with its session."""
        around, named = self._node.around, asked.request.session
        fresh = around.fresh_id()
        run_id = fresh if named is None or not values.is_actor_id(named.id) else ids.sibling(named.id, fresh)
        reserve = run.ReserveKey(asked.caller.subject, asked.print_of, run_id)
        told = await around.shell.tell(key_id, reserve, command_id=around.fresh_id())
        if isinstance(told.answer, Refusal):
            raise Refused.of(told.answer.problem)
        return told.state.run_id if isinstance(told.state, run.Reserved) else key_id

    async def _turn(self, asked: "_Asked") -> SessionTurn | None:
        """What the session finds for the next turn, if the job is to be one."""
        if asked.request.session is None:
            return None
        if self._sessions is None:
            raise Refused("SESSIONS_UNAVAILABLE", "This host keeps no sessions")
        caller = asked.caller
        return await self._sessions.reserved(caller.holder or everything_of(caller.subject), asked.request)

    async def _taken_on(self, job_id: str, asked: "_Asked", bounds: Bounds) -> Job:
        around, caller = self._node.around, asked.caller
        state, heads = await around.shell.state(job_id)
        is_new = isinstance(state, run.New) and not heads.erased
        turn = await self._turn(asked) if is_new else None
        begin_by_ms = await self._place(job_id, caller.subject, asked.request) if is_new else 0
        told = await around.shell.tell(
            job_id,
            self._accept(asked, job_id, bounds, turn),
            command_id=around.fresh_id(),
            fresh=is_new,
            not_after_ms=begin_by_ms,
        )
        if isinstance(told.answer, Refusal):
            raise Refused.of(told.answer.problem)
        if told.events:
            await self._lined_up(job_id, told.state)
        return await self._counted(self._shown(job_id, told.state, told.heads, caller.subject, lambda _: True))

    def _accept(self, asked: "_Asked", job_id: str, bounds: Bounds, turn: SessionTurn | None) -> run.Accept:
        return accept(
            asked.request,
            bounds,
            subject=asked.caller.subject,
            admitted=False,
            origin="job",
            fingerprint=asked.print_of,
            permit=job_id,
            principal=asked.caller.principal,
            session=turn,
            interactive=asked.interactive,
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
        if not job.heads.owner:  # else its executor gives the slot back, once it has stopped
            await self._node.released(job.id)
        return await self._counted(self._shown(job.id, told.state, told.heads, job.accepted.subject, lambda _: True))

    def _shown(self, job_id: str, state: run.State, heads: Heads, subject: str, may: May) -> Job:
        """The job that *state* is, if *subject* may see it.

        Raises:
            Refused: JOB_NOT_FOUND, JOB_EXPIRED, FORBIDDEN, in this order.
        """
        if isinstance(state, run.Buried) and (state.epitaph.subject, state.epitaph.origin) == (subject, "job"):
            raise _expired()
        if not isinstance(state, run.Live | run.Ended):
            raise _no_job()
        accepted = state.accepted
        if accepted.subject != subject or (accepted.origin != "job" and accepted.host is None):
            raise _no_job()
        job = Job(job_id, accepted, heads, state if isinstance(state, run.Ended) else None)
        if job.expires_ms is not None and self._node.around.store.now_ms() >= job.expires_ms:
            raise _expired()
        if not may(accepted):
            raise Refused("FORBIDDEN", "This token does not allow the operation.")
        return job


class _Asked(NamedTuple):
    """A job as it is submitted."""

    caller: Submitter
    key: str
    request: RunRequest
    print_of: str
    interactive: bool


def _within(items: Sequence[Item], limit: int) -> Sequence[Item]:
    """The beginning of *items* that a page may hold: numbered, and with the commas between them."""
    taken, size = 0, 1
    for item in items[: min(limit, PAGE_EVENTS_MAX)]:
        size += len(item.data) + len(str(item.number)) + 1
        if taken and size > PAGE_BYTES_MAX:
            break
        taken += 1
    return items[:taken]


def _expired() -> Refused:
    return Refused("JOB_EXPIRED", "The job's payload was erased when its time was over.")


def _no_job() -> Refused:
    return Refused("JOB_NOT_FOUND", "There is no such job.")


def _ahead() -> Refused:
    return Refused("INVALID_JOB_CURSOR", "The cursor is ahead of the job.")
