"""One connection without a socket: what is read ahead, what is late, and what a transport does not take."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import anyio
import pytest
import uvicorn
from uvicorn.server import ServerState

from api.connection import Bounds, GuardedConnection
from tests.api.hosted import until

pytestmark = pytest.mark.anyio
Answering: TypeAlias = Callable[[Any, Any], Awaitable[None]]

HEAD = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
REQUEST = HEAD % 2 + b"{}"
HIGH_WATER = 65_536
NEXT = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire:
    """A transport that keeps what it is given; its peer takes of it what `take` says."""

    def __init__(self) -> None:
        self.written = b""
        self.unsent = 0
        self.sticky = False
        self.closed = False
        self.aborted = False
        self.protocol: GuardedConnection | None = None

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        if self.sticky:
            self.unsent += len(data)
            if self.unsent > HIGH_WATER and self.protocol is not None and not self.protocol.flow.write_paused:
                self.protocol.pause_writing()

    def take(self, *, but: int = 0) -> None:
        """Let the peer take what there is, *but* the last bytes."""
        self.unsent = but
        if self.protocol is not None and self.protocol.flow.write_paused:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


def connection(answering: Answering, **bounds: Any) -> tuple[GuardedConnection, Wire]:
    """A connection whose requests are all answered by *answering*, and its transport."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await answering(receive, send)

    made = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    made.load()
    wire = Wire()
    guarded = GuardedConnection(config=made, server_state=ServerState(), app_state={}, bounds=Bounds(**bounds))
    wire.protocol = guarded
    guarded.connection_made(cast("asyncio.Transport", wire))
    return guarded, wire


async def told(send: Any, body: bytes = b"ok") -> None:
    """Send a whole answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def at_once(_receive: Any, send: Any) -> None:
    await told(send)


def waiting_for(event: anyio.Event) -> Answering:
    async def answering(_receive: Any, send: Any) -> None:
        await event.wait()
        await told(send)

    return answering


@pytest.mark.parametrize("behind", [b"\x00\x01 garbage\r\n\r\n", b"GET /health HT"])
async def test_what_is_wrong_behind_a_request_does_not_answer_it(behind: bytes) -> None:
    go = anyio.Event()
    guarded, wire = connection(waiting_for(go), head_s=0.05)
    guarded.data_received(REQUEST)
    guarded.data_received(behind)
    await until(lambda: guarded._deaf or wire.written)
    assert wire.written == b""
    go.set()
    await until(lambda: wire.closed)
    assert wire.written.startswith(b"HTTP/1.1 200")
    assert wire.written.count(b"HTTP/1.1") == 1


async def test_the_body_in_front_of_a_head_is_no_part_of_it() -> None:
    guarded, wire = connection(at_once)
    guarded.data_received(HEAD % 100_000)
    guarded.data_received(b" " * 100_000 + NEXT[:20])
    guarded.data_received(NEXT[20:])
    await until(lambda: wire.written.count(b"HTTP/1.1 200") == 2)
    assert not wire.closed


@pytest.mark.parametrize("piece", [100, 20_000])
async def test_a_head_is_measured_alike_however_it_comes(piece: int) -> None:
    for size, status in ((30_000, b"200"), (33_000, b"400")):
        guarded, wire = connection(at_once)
        raw = b"GET /health HTTP/1.1\r\nA: " + b"x" * size + b"\r\n\r\n"
        for at in range(0, len(raw), piece):
            guarded.data_received(raw[at : at + piece])
        await until(lambda wire=wire: wire.written)
        assert wire.written.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("rest", [b"{}", b"{}\r\n"])
async def test_a_body_that_nobody_waited_for_leaves_no_connection_open(rest: bytes) -> None:
    guarded, wire = connection(at_once, head_s=0.05)
    guarded.data_received(HEAD % 2)
    await until(lambda: wire.written)
    guarded.data_received(rest)
    await until(lambda: wire.closed, deadline_s=1)


async def test_a_peer_that_took_an_answer_is_not_cut_for_the_next_one() -> None:
    bodies = [b"x" * 1_000, b"y" * 2_000]
    guarded, wire = connection(lambda _, send: told(send, bodies.pop(0)), stall_s=0.05)
    wire.sticky = True
    guarded.data_received(NEXT)
    await until(lambda: guarded._stall is not None)
    first = guarded._stall
    guarded.data_received(NEXT)
    await until(lambda: guarded._stall is not first)
    assert first is not None
    assert first.cancelled()
    wire.take()
    await until(lambda: guarded._stall is None or guarded._stall.cancelled(), deadline_s=1)
    assert not wire.aborted


async def torn(_receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize(("answering", "raw"), [(at_once, NEXT), (torn, NEXT), (at_once, b"garbage\r\n\r\n")])
async def test_whatever_was_said_last_a_peer_that_does_not_take_it_is_cut(answering: Answering, raw: bytes) -> None:
    guarded, wire = connection(answering, stall_s=0.05)
    wire.sticky = True
    guarded.data_received(raw)
    await until(lambda: wire.aborted, deadline_s=1)


async def test_a_peer_that_takes_the_beginning_of_an_answer_alone_is_cut() -> None:
    guarded, wire = connection(lambda _, send: told(send, b"x" * 100_000), stall_s=0.05)
    wire.sticky = True
    guarded.data_received(NEXT)
    await until(lambda: len(wire.written) > 100_000)
    wire.take(but=10_000)
    await until(lambda: wire.aborted, deadline_s=1)
