"""`GET /v1/runs/{runId}/events`: a run's events from any cursor, as a stream or a page (extensions §1)."""

import random
from collections.abc import Sequence

import msgspec
from litestar.types import Receive
from msgspec import Raw, Struct

from actors import viewing
from actors.errors import Refused
from actors.viewing import Cursor, Watched, cursor_of
from api import pipeline, problems
from api.answers import Call, answer
from api.grants import Principal, may_use_job
from api.parts import Parts, Viewer
from api.sse import RETRY_MS, Stream, dated_frames, while_wanted
from eventstore.reader import CursorAhead, CursorTooOld
from eventstore.store import HistoryLost
from projections import wire_feed

_encode = msgspec.json.Encoder().encode


class Page(Struct, frozen=True, rename="camel"):
    """Some of a run's events, and how it stood when they were read."""

    run_id: str
    state: viewing.State
    events: Sequence[Raw]
    cursor: str
    """What to ask for next."""
    has_more: bool


async def look(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one look at a run's events: a stream, or a page where none is asked for."""
    stream = Stream(call.send, call.admitted.headers, parts.limits.heartbeat_s, frames=dated_frames)
    told: pipeline.Answered | None = None
    try:
        told = await _served(parts, call, receive, stream)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the client gets a typed answer or none
        problem = problems.problem_of(failure)
        if problem is problems.INTERNAL:
            parts.faults.note(failure, call.admitted.route)
        told = None if stream.begun else pipeline.refused(call.admitted.headers, problem)
    if told is not None:
        await answer(call.send, told)


async def _served(parts: Parts, call: Call, receive: Receive, stream: Stream) -> pipeline.Answered | None:
    asked, principal = call.admitted, call.admitted.principal
    assert principal is not None  # noqa: S101 - the pipeline lets nobody else through
    if parts.viewer is None:
        raise Refused(problems.NOWHERE.code, problems.NOWHERE.message)
    cursor = cursor_of(asked.cursor)
    if not asked.streamed:
        return await _page(parts.viewer, call, principal, cursor)
    may = may_use_job(principal)
    async with parts.viewer.watch(principal.subject, asked.run_id, may, cursor) as watched:
        if watched.over:
            return pipeline.Answered(204, asked.headers)
        await _streamed(parts, receive, stream, watched)
    return None


async def _streamed(parts: Parts, receive: Receive, stream: Stream, watched: Watched) -> None:
    """Send what comes until the end, the client's leaving, or the host's closing."""
    refused: Refused | None = None
    async with while_wanted(receive, parts.gate.closing):
        try:
            await stream.begin()
            await stream.follow(watched.batches)
        except (CursorAhead, CursorTooOld, HistoryLost) as error:
            refused = viewing.refused_by(error, watched.run_id)
    if refused is not None:
        raise refused
    if parts.gate.closing.is_set() and not stream.ended:
        await stream.part(random.randint(*RETRY_MS))  # noqa: S311 - spreads readers, guards nothing


async def _page(viewer: Viewer, call: Call, principal: Principal, cursor: Cursor) -> pipeline.Answered:
    seen = await viewer.page(principal.subject, call.admitted.run_id, may_use_job(principal), cursor)
    last = seen.items[-1] if seen.items else None
    following = f"{last.number}.{viewing.digest_of(last.data)}" if last is not None else _told(cursor)
    number = last.number if last is not None else cursor.number
    page = Page(
        run_id=seen.run_id,
        state=seen.state,
        events=[Raw(wire_feed.numbered(item.number, item.data)) for item in seen.items],
        cursor=following,
        has_more=number < seen.head,
    )
    return pipeline.Answered(200, (*call.admitted.headers, pipeline.JSON), _encode(page))


def _told(cursor: Cursor) -> str:
    return f"{cursor.number}.{cursor.digest}" if cursor.digest else str(cursor.number)
