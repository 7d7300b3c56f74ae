"""`POST /v1/jobs/submit`, `/read`, `/cancel` and `/events` (jobs §2, §3)."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import anyio
from litestar.types import Receive
from msgspec import UNSET, Raw, Struct, UnsetType

from actors import jobs
from actors.errors import Refused
from actors.events import timestamp
from actors.jobs import Job, JobPage, Submitter
from actors.request import Catalog, RunRequest, shaped, validated
from actors.shapes import SAFE, Check, Misshapen, boolean, record, text, whole
from api.answers import Call
from api.bodies import QUICK_BODY_BYTES, may_be_slow, parsed
from api.grants import Principal, allows_run, holder_of, job_principals, may_use_job, waived
from api.parts import JobStore, Parts
from api.posts import served
from projections import wire_feed

_INVALID = "INVALID_JOB"
_INVALID_CURSOR = "INVALID_JOB_CURSOR"
_UNAVAILABLE = "JOBS_UNAVAILABLE"

T = TypeVar("T")


class Submission(Struct, frozen=True):
    """What is to be run, and under which key."""

    key: str
    request: RunRequest
    interactive: bool = False
    """Of our own: people and applications may take part, and it may be a session's turn (extensions §2)."""


class Named(Struct, frozen=True):
    """Which job is meant."""

    id: str


class Cursor(Struct, frozen=True):
    """Which events of which job are wanted."""

    id: str
    after: int
    limit: int = jobs.PAGE_EVENTS_MAX


class JobInfo(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A job as its owner sees it; the expiry is there once it has ended."""

    id: str
    run_id: str
    provider: str
    model: str
    state: jobs.State
    cursor: int
    cancel_requested: bool
    created_at: str
    updated_at: str
    expires_at: str | UnsetType = UNSET


class Page(Struct, frozen=True, rename="camel"):
    """A page of a job's events, and the job as it was when they were read."""

    job: JobInfo
    events: Sequence[Raw]
    next_cursor: int
    has_more: bool


def _request(value: object) -> RunRequest:
    """*value* as a run request of which only the shape was checked; here a fault is the job's."""
    try:
        return shaped(value)
    except Refused as refused:
        raise Misshapen(refused.problem.message) from None


_UUID = text(36, 36, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SUBMISSION = record(
    Submission,
    {"key": text(1, 128, r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}"), "request": _request},
    {"interactive": boolean},
)
_NAMED = record(Named, {"id": _UUID}, {})
_CURSOR = record(Cursor, {"id": _UUID, "after": whole(0, SAFE)}, {"limit": whole(1, jobs.PAGE_EVENTS_MAX)})


async def submit(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one submission."""
    await served(parts, call, receive, _submitted)


async def look(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one look."""
    await served(parts, call, receive, _shown)


async def cancel(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one cancellation."""
    await served(parts, call, receive, _cancelled)


async def events(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one page."""
    await served(parts, call, receive, _paged)


def read(body: bytes, check: Check[T], store: JobStore | None, invalid: str = _INVALID) -> tuple[JobStore, T]:
    """The *store* there is, and what *body* asks of it.

    Raises:
        Refused: INVALID_REQUEST if it is not JSON, then JOBS_UNAVAILABLE, then *invalid*.
    """
    document = parsed(body, out_of_range=_UNAVAILABLE if store is None else invalid)
    if store is None:
        raise Refused(_UNAVAILABLE, "This host runs no jobs.")
    try:
        return store, check(document)
    except Misshapen as fault:
        raise Refused(invalid, str(fault)) from None


async def _submitted(parts: Parts, principal: Principal, body: bytes) -> JobInfo:
    slow = may_be_slow(body)
    store, asked = await _thought(lambda: read(body, _SUBMISSION, parts.jobs), slow=slow)
    principals = job_principals(parts.tokens, principal, "submit")
    request = await _thought(
        lambda: _allowed(asked.request, parts.catalog, principals, interactive=asked.interactive), slow=slow
    )
    caller = Submitter(principal.subject, principal.id, waived(principal), holder_of(principal))
    return _info(await store.submit(caller, asked.key, request, interactive=asked.interactive))


async def _shown(parts: Parts, principal: Principal, body: bytes) -> JobInfo:
    store, asked = await _thought(lambda: read(body, _NAMED, parts.jobs), slow=len(body) > QUICK_BODY_BYTES)
    may = may_use_job(*job_principals(parts.tokens, principal, "read"))
    return _info(await store.read(principal.subject, asked.id, may))


async def _cancelled(parts: Parts, principal: Principal, body: bytes) -> JobInfo:
    store, asked = await _thought(lambda: read(body, _NAMED, parts.jobs), slow=len(body) > QUICK_BODY_BYTES)
    may = may_use_job(*job_principals(parts.tokens, principal, "cancel"))
    return _info(await store.cancel(principal.subject, asked.id, may))


async def _paged(parts: Parts, principal: Principal, body: bytes) -> Page:
    slow = len(body) > QUICK_BODY_BYTES
    store, asked = await _thought(lambda: read(body, _CURSOR, parts.jobs, _INVALID_CURSOR), slow=slow)
    may = may_use_job(*job_principals(parts.tokens, principal, "read"))
    return _page(await store.page(principal.subject, asked.id, may, asked.after, asked.limit), asked.after)


async def _thought(work: Callable[[], T], *, slow: bool) -> T:
    """Do *work*, in a thread if it may be *slow*."""
    return await anyio.to_thread.run_sync(work) if slow else work()


def _allowed(
    request: RunRequest, catalog: Catalog, principals: Sequence[Principal], *, interactive: bool
) -> RunRequest:
    """The *request*, if it can be a job here, and all *principals* may run it (jobs §3).

    Raises:
        Refused: JOB_REQUEST_UNSUPPORTED, then as `validated`, then FORBIDDEN.
    """
    if names := ", ".join(_unsupported(request, interactive=interactive)):
        raise Refused("JOB_REQUEST_UNSUPPORTED", f"A job takes no {names}.")
    valid = validated(request, catalog)
    for principal in principals:
        refusal = allows_run(principal, valid)
        if refusal is not None:
            raise refusal
    return valid


def _unsupported(request: RunRequest, *, interactive: bool) -> Iterator[str]:
    members: dict[str, object] = {"idempotencyKey": request.idempotency_key}
    if not interactive:
        members |= {
            "session": request.session,
            "applicationTools": request.application_tools,
            "approvals": request.approvals,
        }
    return (name for name, value in members.items() if value is not None)


def _page(found: JobPage, after: int) -> Page:
    """A page as it is sent; its events are the stored bytes."""
    told = wire_feed.without_session if found.job.accepted.session is not None else bytes
    numbered = [Raw(wire_feed.numbered(each.number, told(each.data))) for each in found.items]
    following = found.items[-1].number if found.items else after
    return Page(_info(found.job), numbered, following, following < found.job.cursor)


def _info(job: Job) -> JobInfo:
    accepted, updated_ms, expires_ms = job.accepted, job.updated_ms, job.expires_ms
    return JobInfo(
        job.id,
        job.id,
        accepted.provider,
        accepted.model,
        job.state,
        job.cursor,
        job.cancel_requested,
        timestamp(accepted.at_ms),
        timestamp(updated_ms),
        # Clients take an ended job for broken that does not outlive its last change, whatever two nodes' clocks said.
        UNSET if expires_ms is None else timestamp(max(expires_ms, updated_ms + 1)),
    )
