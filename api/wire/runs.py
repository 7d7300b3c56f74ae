"""`POST /v1/runs`, in both modes (runs §1, §2).

Nothing of the answer goes out before the first item is stored, so whatever fails before is an ordinary error.
The client's leaving cancels whatever is being done for it, in either mode; all clean-up is leaving `attend`.
"""

import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import anyio
from litestar.types import Receive

from actors.errors import Refused
from actors.foreground import Attended
from actors.request import RunRequest, checked
from api import pipeline, problems
from api.answers import Call, ClientGone, answer, body_of
from api.bodies import may_be_slow, parsed
from api.grants import Principal, allows_run, holder_of, waived
from api.parts import Parts
from api.sse import RETRY_MS, Stream, Torn
from eventstore.store import Item
from projections import wire_feed


class _Asked(NamedTuple):
    """A request that may be run, and for whom."""

    request: RunRequest
    principal: Principal
    streamed: bool


async def run(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one request to run."""
    try:
        told = await _served(parts, call, receive)
    except ClientGone:
        return
    except Refused as refusal:
        told = pipeline.refused(call.admitted.headers, refusal.problem)
    if told is not None:
        await answer(call.send, told)


async def _served(parts: Parts, call: Call, receive: Receive) -> pipeline.Answered | None:
    """Read, check and run; the answer, unless it was streamed or nobody is left to hear it."""
    body = await body_of(receive, parts.limits.body_bytes_max, parts.limits.receive_s)
    if may_be_slow(body):
        asked = await anyio.to_thread.run_sync(_asked, parts, call.admitted, body)
    else:
        asked = _asked(parts, call.admitted, body)
    del body
    told: pipeline.Answered | None = None
    stream = Stream(call.send, call.admitted.headers, parts.limits.heartbeat_s)
    async with anyio.create_task_group() as attending:
        attending.start_soon(_leave_with_client, receive, stream, attending.cancel_scope)
        try:
            told = await _attended(parts, call, asked, stream)
        finally:
            attending.cancel_scope.cancel()
    return told


def _asked(parts: Parts, admitted: pipeline.Admitted, body: bytes) -> _Asked:
    """Steps 13 to 17 of the pipeline.

    Raises:
        Refused: the first rule that is broken.
    """
    request = checked(parsed(body), parts.catalog)
    if parts.gate.state == "closing":
        raise Refused(problems.CLOSING.code, problems.CLOSING.message, retryable=True)
    if admitted.principal is None:
        raise Refused(problems.NOBODY.code, problems.NOBODY.message)
    refusal = allows_run(admitted.principal, request)
    if refusal is not None:
        raise refusal
    return _Asked(request, admitted.principal, admitted.streamed)


async def _leave_with_client(receive: Receive, stream: Stream, scope: anyio.CancelScope) -> None:
    """Cancel *scope* once the client is gone; an answer that ended is no leaving."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not stream.ended:
        scope.cancel()


async def _attended(parts: Parts, call: Call, asked: _Asked, stream: Stream) -> pipeline.Answered | None:
    """Attend the run; every failure becomes the answer if none has begun, else the stream is left torn."""
    failure: Exception | None = None
    told: pipeline.Answered | None = None
    try:
        async with parts.runs.attend(
            asked.request,
            subject=asked.principal.subject,
            streamed=asked.streamed,
            waived=waived(asked.principal),
            holder=holder_of(asked.principal),
        ) as attended:
            # Caught within, because a context may wrap in groups what passes through it.
            try:
                told = await _told(parts, call, attended, stream, streamed=asked.streamed)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a typed answer or none
                failure = error
    except Exception as error:  # noqa: BLE001 - the same
        failure = failure or error
    if failure is None:
        return told
    return _failed(parts, call, failure, begun=stream.begun)


async def _told(
    parts: Parts, call: Call, attended: Attended, stream: Stream, *, streamed: bool
) -> pipeline.Answered | None:
    if streamed:
        await _streamed(parts, attended, stream)
        return None
    last = await _last_while_open(parts, attended)
    return _result(call.admitted.headers, last, attended.run_id, parts.limits.answer_bytes_max)


async def _streamed(parts: Parts, attended: Attended, stream: Stream) -> None:
    """Send the run until its end; one that may be resumed only until the host closes, for it goes on elsewhere."""
    if not attended.resumable:
        await stream.follow(attended.items())
        return
    async with anyio.create_task_group() as tasks:

        async def closing() -> None:
            await parts.gate.closing.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(closing)
        await stream.follow(attended.items())
        tasks.cancel_scope.cancel()
    if not stream.ended:
        await stream.part(random.randint(*RETRY_MS))  # noqa: S311 - spreads readers, guards nothing


async def _last_while_open(parts: Parts, attended: Attended) -> Item:
    """The terminal item; a run that may be resumed is only waited for until the host closes.

    Raises:
        Refused: HOST_SHUTTING_DOWN; it names the run, which goes on elsewhere.
        Torn: there is no terminal item.
    """
    if not attended.resumable:
        return await _last(attended.items())
    found: list[Item] = []
    async with anyio.create_task_group() as tasks:

        async def closing() -> None:
            await parts.gate.closing.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(closing)
        found.append(await _last(attended.items()))
        tasks.cancel_scope.cancel()
    if not found:
        raise Refused(problems.CLOSING.code, problems.CLOSING.message, retryable=True, run_id=attended.run_id)
    return found[0]


async def _last(batches: AsyncIterator[Sequence[Item]]) -> Item:
    """The terminal item.

    Raises:
        Torn: there is none.
    """
    last: Item | None = None
    async for items in batches:
        if items:
            last = items[-1]
    if last is None or not wire_feed.is_terminal(last.data):
        raise Torn
    return last


def _result(headers: pipeline.Lines, last: Item, run_id: str, bytes_max: int) -> pipeline.Answered:
    """What a JSON run answers for its terminal item: the bytes that stand there, not a copy of their meaning."""
    completed = wire_feed.event_type(last.data) == b"run.completed"
    body = _member(last.data, run_id)
    if not completed:
        status = problems.status_of(str(json.loads(body)["code"]))
        return pipeline.Answered(status, (*headers, pipeline.JSON), problems.enveloped(body))
    if len(body) > bytes_max:
        return pipeline.refused(headers, problems.TOO_LARGE)
    return pipeline.Answered(200, (*headers, pipeline.JSON), body)


def _member(data: bytes, run_id: str) -> bytes:
    """The one member that a terminal item has between its type and its envelope: `result` or `error`.

    Cut out rather than decoded, so that numbers and escapes stay as they were written.
    """
    begin = data.index(b'":', data.index(b'","') + 3) + 2
    return data[begin : data.rindex(b',"runId":"%b","sequence":' % run_id.encode())]


def _failed(parts: Parts, call: Call, failure: Exception, *, begun: bool) -> pipeline.Answered | None:
    """The answer for *failure*; None once an answer has begun, which its server then cuts off."""
    problem = problems.problem_of(_cause(failure))
    if problem is problems.INTERNAL:
        parts.faults.note(_cause(failure), "a run")
    return None if begun else pipeline.refused(call.admitted.headers, problem)


def _cause(failure: Exception) -> Exception:
    """*failure* itself, out of the groups that hold nothing else."""
    match failure:
        case ExceptionGroup(exceptions=[Exception() as only]):
            return _cause(only)
        case _:
            return failure
