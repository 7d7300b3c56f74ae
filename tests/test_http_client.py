"""The tests' own HTTP client sends and shows exactly what goes over the wire."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.http_client import HttpBroken, Tcp, Unix, connected, events, fetch, opened, request_bytes
from tests.strict_client import ClientError, StreamCheck

pytestmark = pytest.mark.anyio


class Scripted:
    """A server that keeps what it got, answers what it was told, and notices who leaves."""

    def __init__(self, *parts: bytes, keep_open: bool = False) -> None:
        self.parts, self.keep_open = parts, keep_open
        self.got = b""
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, write the parts, and close or wait for the other side to leave."""
        self.got = await reader.readuntil(b"\r\n\r\n")
        for part in self.parts:
            writer.write(part)
            await writer.drain()
        if self.keep_open:
            self.got += await reader.read()
            self.left.set()
        writer.close()


@asynccontextmanager
async def serving(script: Scripted) -> AsyncGenerator[Tcp, None]:
    """Run *script* on a free port."""
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    async with server:
        yield Tcp("127.0.0.1", server.sockets[0].getsockname()[1])


async def test_header_lines_keep_their_order_case_and_repeats_in_both_directions() -> None:
    script = Scripted(b"HTTP/1.1 200 OK\r\nX-One: a\r\nx-one:  b \r\nContent-Length: 2\r\n\r\nhi and more")
    async with serving(script) as target:
        answer = await fetch(target, "POST", "/p?q=1", [("X-Twice", "1"), ("X-Twice", "\xff"), ("x-empty", "")], b"")
    assert answer.headers == [("X-One", "a"), ("x-one", "b"), ("Content-Length", "2")]
    assert (answer.status, answer.reason, answer.body, answer.values("X-ONE")) == (200, "OK", b"hi", ["a", "b"])
    assert script.got == (
        b"POST /p?q=1 HTTP/1.1\r\nHost: localhost\r\nX-Twice: 1\r\nX-Twice: \xff\r\nx-empty: \r\nContent-Length: 0\r\n\r\n"
    )


def test_host_and_length_are_added_only_when_absent() -> None:
    given = [("host", "h"), ("content-length", "99")]
    assert request_bytes("GET", "/", given, b"x") == b"GET / HTTP/1.1\r\nhost: h\r\ncontent-length: 99\r\n\r\nx"
    assert b"Length" not in request_bytes("GET", "/", [], None)


async def test_a_chunked_body_comes_in_the_pieces_that_were_sent() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    script = Scripted(head, b"3;x=y\r\nabc\r\n", b"A\r\n0123456789\r\n", b"0\r\nTrailer: t\r\n\r\n")
    async with serving(script) as target, opened(target, "GET", "/") as stream:
        assert [piece async for piece in stream.chunks()] == [b"abc", b"0123456789"]


async def test_an_interim_answer_is_passed_over_and_an_unmeasured_body_ends_with_the_connection() -> None:
    script = Scripted(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404\r\n\r\n", b"to the end")
    async with serving(script) as target:
        answer = await fetch(target, "GET", "/")
    assert (answer.status, answer.reason, answer.body) == (404, "", b"to the end")


async def test_leaving_the_block_early_is_noticed_by_the_host() -> None:
    script = Scripted(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", keep_open=True)
    async with serving(script) as target:
        async with opened(target, "GET", "/") as stream:
            assert await anext(stream.chunks()) == b"a"
        async with asyncio.timeout(5):
            await script.left.wait()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
    ],
)
async def test_a_host_that_leaves_in_the_middle_is_told_apart_from_a_whole_answer(raw: bytes) -> None:
    async with serving(Scripted(raw)) as target:
        with pytest.raises(HttpBroken):
            await fetch(target, "GET", "/")


async def test_a_silent_host_meets_the_deadline() -> None:
    async with serving(Scripted(keep_open=True)) as target:
        with pytest.raises(TimeoutError):
            await fetch(target, "GET", "/", deadline_s=0.05)


async def test_a_unix_socket_serves_two_requests_on_one_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    server = await asyncio.start_unix_server(_twice, path)
    async with server, connected(Unix(path)) as connection:
        for expected in (b"1", b"2"):
            await connection.request("GET", "/")
            assert await connection.body(await connection.head()) == expected
        assert await connection.closed_by_host()


async def _twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for body in (b"1", b"2"):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + body)
        await writer.drain()
    writer.close()


async def test_the_events_of_a_stream_are_those_of_the_strict_client() -> None:
    started = {
        "type": "run.started",
        "runId": "r",
        "sequence": 1,
        "timestamp": "2026-01-05T10:00:00.000Z",
        "provider": "mock",
        "model": "demo",
    }
    frame = b"data: " + json.dumps(started).encode() + b"\n\n"
    script = Scripted(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(frame), frame)
    check = StreamCheck({"provider": "mock", "model": "demo"})
    async with serving(script) as target, opened(target, "POST", "/v1/runs", [], b"{}") as stream:
        with pytest.raises(ClientError, match="INCOMPLETE_STREAM"):
            _ = [event async for event in events(stream, check)]
    assert check.events == [started]
    assert stream.status == 200
