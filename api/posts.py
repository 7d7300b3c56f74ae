"""A small JSON request that takes no execution slot: read, done, answered (overview §3, step 14)."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from litestar.types import Receive

from api import pipeline, problems
from api.answers import Call, ClientGone, answer, body_of
from api.grants import Principal
from api.parts import Parts

Work: TypeAlias = Callable[[Parts, Principal, bytes], Awaitable[object]]
"""What is done for a principal and a body; returns the JSON value of the answer."""

_encode = msgspec.json.Encoder().encode


async def served(parts: Parts, call: Call, receive: Receive, work: Work) -> None:
    """Serve one request by *work*; whatever fails becomes the answer."""
    headers = call.admitted.headers
    try:
        told = pipeline.Answered(200, (*headers, pipeline.JSON), await _done(parts, call, receive, work))
    except ClientGone:
        return
    except Exception as failure:  # noqa: BLE001 - whatever it is, the client gets a typed answer
        problem = problems.problem_of(failure)
        if problem is problems.INTERNAL:
            parts.faults.note(failure, call.admitted.route)
        told = pipeline.refused(headers, problem)
    await answer(call.send, told)


async def _done(parts: Parts, call: Call, receive: Receive, work: Work) -> bytes:
    body = await body_of(receive, parts.limits.body_bytes_max, parts.limits.receive_s)
    principal = call.admitted.principal
    assert principal is not None  # noqa: S101 - the pipeline lets nobody else through
    return _encode(await work(parts, principal, body))
