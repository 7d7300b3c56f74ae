"""`POST /host/v1` and `GET /host/v1/runs/{runId}/events`: envelopes and event streams over HTTP (Host mapping §8).

An envelope is always sent; the status repeats its code.
"""

import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from time import monotonic
from urllib.parse import unquote

import anyio
from litestar.types import Receive, Send

from actors.errors import Refused
from api import pipeline, problems
from api.answers import Call, ClientGone, answer, body_of
from api.bodies import QUICK_BODY_BYTES
from api.grants import Principal, host_access
from api.host import dispatcher, encoding, envelope
from api.host.encoding import Answer
from api.host.failures import STATUSES, Failure, failure_of
from api.host.reading import Gone, Seen
from api.host.service import HostService
from api.parts import Parts
from api.sse import HEADERS, HEARTBEAT, RETRY_MS, while_wanted
from eventstore.store import HistoryLost
from projections.host_feed import HostEvent

_CURSOR = re.compile(r"[0-9]{1,15}")
_NO_RUN_ID = Failure("invalid_request", "The run's id is not UTF-8.")
_NO_CURSOR = Failure("invalid_request", "Last-Event-ID is the number of an event.")


async def exchange(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one envelope."""
    try:
        body = await body_of(receive, parts.limits.body_bytes_max, parts.limits.receive_s)
    except ClientGone:
        return
    except Refused as refused:
        await _answer(call, encoding.failed("", "get_run", failure_of(refused.problem)))
        return
    service = service_of(parts, call.admitted.principal)
    if len(body) > QUICK_BODY_BYTES:
        asked = await anyio.to_thread.run_sync(envelope.decoded, body)
        await _answer(call, await dispatcher.dispatched(asked, service, parts.faults.note))
        return
    await _answer(call, await dispatcher.answered(body, service, parts.faults.note))


async def events(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one run's events as a stream: what was missed first, then what comes, until the run's end."""
    seen = await _found(parts, call)
    if isinstance(seen, Failure):
        await _answer(call, encoding.failed("", "list_events", seen))
    else:
        await _streamed(parts, call, receive, seen, int(call.admitted.cursor or 0))


async def _found(parts: Parts, call: Call) -> Seen | Failure:
    """Look up the run whose events are wanted, or say what is wrong with the question."""
    asked = call.admitted
    try:
        name = unquote(asked.run_id, errors="strict")
    except UnicodeDecodeError:
        return _NO_RUN_ID
    if asked.cursor and _CURSOR.fullmatch(asked.cursor) is None:
        return _NO_CURSOR
    try:
        return await service_of(parts, asked.principal).visible(name)
    except HistoryLost as lost:
        parts.faults.note(lost, asked.route)
        return failure_of(problems.INTERNAL)


def service_of(parts: Parts, principal: Principal | None) -> HostService:
    """The service for whoever asks."""
    assert principal is not None  # noqa: S101 - the pipeline lets nobody else through
    assert parts.host is not None  # noqa: S101 - nor to a protocol that is not served
    return HostService(parts.host, host_access(parts.tokens, principal))


def frames(events: Sequence[HostEvent]) -> bytes:
    """The frames of *events*; each id is a Host sequence."""
    return b"".join([_frame(one) for one in events])


def _frame(one: HostEvent) -> bytes:
    data = encoding.compact(encoding.event(one))
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (one.sequence, one.type.encode(), _one_line(data))


def _one_line(data: bytes) -> bytes:
    """Escape what some stream readers take for a line end; JSON leaves it as it is."""
    for mark, escaped in ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085")):
        data = data.replace(mark, escaped)
    return data


async def _streamed(parts: Parts, call: Call, receive: Receive, seen: Seen, after: int) -> None:
    """Send what comes until the end, the client's leaving, or the host's closing."""
    assert parts.host is not None  # noqa: S101 - see above
    over = False
    async with while_wanted(receive, parts.gate.closing):
        await call.send({"type": "http.response.start", "status": 200, "headers": [*call.admitted.headers, *HEADERS]})
        try:
            async with aclosing(parts.host.reading.follow(seen, after, parts.limits.heartbeat_s)) as batches:
                await _sent(call.send, batches, parts.limits.heartbeat_s)
            over = True
        except (Gone, HistoryLost) as error:  # nothing more can be told; a reader who comes back is told why
            parts.faults.note(error, call.admitted.route)
            over = True
    if over:
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})
    elif parts.gate.closing.is_set():
        retry = b"retry: %d\n\n" % random.randint(*RETRY_MS)  # noqa: S311 - spreads readers, guards nothing
        await call.send({"type": "http.response.body", "body": retry, "more_body": False})


async def _sent(send: Send, batches: AsyncIterator[Sequence[HostEvent]], heartbeat_s: float) -> None:
    sent_s = monotonic()
    async for batch in batches:
        if batch or monotonic() - sent_s >= heartbeat_s - 1:
            await send({"type": "http.response.body", "body": frames(batch) or HEARTBEAT, "more_body": True})
            sent_s = monotonic()


async def _answer(call: Call, told: Answer) -> None:
    headers = (*call.admitted.headers, pipeline.JSON)
    await answer(call.send, pipeline.Answered(STATUSES[told.code], headers, told.body))
