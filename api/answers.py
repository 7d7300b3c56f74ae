"""How an answer leaves: ASGI messages, and a request's body on its way in."""

from typing import NamedTuple, cast

import anyio
from litestar.types import Receive, Scope, Send

from actors.errors import Refused
from api import pipeline, problems

CALL = "runstream.call"
"""Where the edge leaves a `Call` in the scope for its routes."""


class Call(NamedTuple):
    """A request that passed the checks, as its route sees it; *send* is the server's own."""

    admitted: pipeline.Admitted
    send: Send


class ClientGone(Exception):
    """The client left before its request was whole: there is nobody to answer."""


def call_of(scope: Scope) -> Call:
    """The call that the edge left in *scope*."""
    return cast("dict[str, Call]", scope)[CALL]


async def answer(send: Send, told: pipeline.Answered) -> None:
    """Send a whole answer."""
    await begin(send, told.status, _sized(told))
    await send({"type": "http.response.body", "body": told.body, "more_body": False})


async def begin(send: Send, status: int, headers: pipeline.Lines) -> None:
    """Send the head of an answer."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def body_of(receive: Receive, bytes_max: int, receive_s: float) -> bytes:
    """Read a request's body, counting.

    Raises:
        Refused: BODY_TOO_LARGE as soon as it is; INVALID_REQUEST if it does not come in time.
        ClientGone: the client left before the end.
    """
    with anyio.move_on_after(receive_s):
        return await _body(receive, bytes_max)
    raise Refused(problems.LATE.code, problems.LATE.message)


async def _body(receive: Receive, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise Refused(problems.BODY.code, problems.BODY.message)
        if not message.get("more_body", False):
            return bytes(body)


def _sized(told: pipeline.Answered) -> pipeline.Lines:
    """The headers of *told*, with its length unless it has no body."""
    if told.status == 204:  # noqa: PLR2004 - No Content has no length either
        return told.headers
    return (*told.headers, (b"content-length", b"%d" % len(told.body)))
