"""A vendor's machine on loopback: HTTP/1.1 by hand, so that a test says which bytes go out, and where they stop."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext, SSLError
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, urlsplit

import anyio
import msgspec
from anyio import TypedAttributeProvider
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener

HEAD_BYTES_MAX = 65_536


class Asked(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return msgspec.json.decode(self.body)


class Reply(NamedTuple):
    """What goes back: each of *parts* is one chunk, cut again into pieces of *every* bytes where that is said."""

    status: int = 200
    parts: Iterable[bytes] = ()
    content_type: str = "text/event-stream; charset=utf-8"
    headers: tuple[str, ...] = ()
    end: Literal["whole", "silence", "cut", "close"] = "whole"
    """`cut` breaks a chunked body off; `close` ends one of unknown length, which looks like any end."""
    every: int = 0
    pause_s: float = 0


class Machine:
    """What was asked of it, and whether it is still listened to."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.connections = 0
        self.faults: list[str] = []
        self.left = anyio.Event()


Respond = Callable[[Asked], Reply]


@asynccontextmanager
async def machine(respond: Respond, tls: SSLContext | None = None) -> AsyncIterator[Machine]:
    """Run a machine that answers as *respond* says; a request that it finds fault with (`AssertionError`) fails the test."""
    told = Machine()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    told.url = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{port_of(listener)}/"
    serving = TLSListener(listener, tls) if tls else listener

    async def serve(stream: ByteStream) -> None:
        told.connections += 1
        try:
            async with stream:
                await _conversed(stream, respond, told)
        except (
            anyio.BrokenResourceError,
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.ClosedResourceError,
            SSLError,
        ):
            told.left.set()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serving.serve, serve)
        yield told
        tasks.cancel_scope.cancel()
    assert told.faults == []


def port_of(listener: TypedAttributeProvider) -> int:
    """The port on which *listener* listens."""
    return listener.extra(SocketAttribute.local_port)  # noqa: S610 - no database in sight


async def _conversed(stream: ByteStream, respond: Respond, told: Machine) -> None:
    received = BufferedByteReceiveStream(stream)
    while True:
        asked = await _request(received)
        told.asked.append(asked)
        try:
            reply = respond(asked)
        except AssertionError as fault:
            told.faults.append(str(fault) or repr(fault))
            reply = Reply(400)
        await _send(stream, reply)
        if reply.end == "silence":
            await received.receive(1)
        if reply.end != "whole":
            return


async def _request(received: BufferedByteReceiveStream) -> Asked:
    head = (await received.receive_until(b"\r\n\r\n", HEAD_BYTES_MAX)).decode()
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await received.receive_exactly(int(headers.get("content-length", "0"))) if method == "POST" else b""
    parts = urlsplit(target)
    return Asked(method, parts.path, parse_qs(parts.query), headers, body)


def _cut(part: bytes, every: int) -> Iterable[bytes]:
    return (part[start : start + every] for start in range(0, len(part), every))


async def _send(stream: ByteStream, reply: Reply) -> None:
    chunked = reply.end != "close"
    framing = ("Transfer-Encoding: chunked",) if chunked else ("Connection: close",)
    head = (f"HTTP/1.1 {reply.status} Any", f"Content-Type: {reply.content_type}", *framing, *reply.headers)
    await stream.send("\r\n".join((*head, "", "")).encode())
    for part in reply.parts:
        for piece in (part,) if not reply.every else _cut(part, reply.every):
            await stream.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if reply.pause_s:
                await anyio.sleep(reply.pause_s)
    if reply.end == "whole":
        await stream.send(b"0\r\n\r\n")
