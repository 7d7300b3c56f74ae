"""A small HTTP/1.1 client that sends exactly what it is told and shows exactly what came back.

Header lines may repeat, be odd or be missing; nothing is followed, retried, decoded or added but `Host` and
`Content-Length`, and those only when absent.
Every wait has a deadline: one await takes at most `deadline_s`, a whole `fetch` too.

    answer = await fetch(Tcp("127.0.0.1", port), "GET", "/health")

    async with opened(target, "POST", "/v1/runs", headers, body) as stream:
        async for event in events(stream, StreamCheck(request)):
            ...                       # leaving the block closes the connection
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from tests.strict_stream import StreamCheck
from tests.strict_values import Json, Object

DEADLINE_S = 10.0
_PIECE_BYTES = 65_536
_LINE_BYTES_MAX = 1_048_576

T = TypeVar("T")
Lines: TypeAlias = Sequence[tuple[str, str]]


class Tcp(NamedTuple):
    """A host and port, over TLS if there is a context."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Unix(NamedTuple):
    """A Unix socket."""

    path: str


Target: TypeAlias = Tcp | Unix


class HttpBroken(Exception):
    """The other side does not speak HTTP/1.1, or left in the middle of it."""


class Head(NamedTuple):
    """The beginning of an answer; header lines keep their order, case and repeats."""

    status: int
    reason: str
    headers: list[tuple[str, str]]

    def values(self, name: str) -> list[str]:
        """What each header line called *name* says."""
        return [value for found, value in self.headers if found.lower() == name.lower()]


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        """What each header line called *name* says."""
        return Head(self.status, self.reason, self.headers).values(name)

    def json(self) -> Json:
        """The body as JSON."""
        value: Json = json.loads(self.body)
        return value


@dataclass
class Connection:
    """One connection; requests are written and answers read in turn, as often as the host keeps it open."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    deadline_s: float = DEADLINE_S

    async def send(self, raw: bytes) -> None:
        """Write *raw* as it is."""
        self.writer.write(raw)
        await self._soon(self.writer.drain)

    async def request(self, method: str, path: str, headers: Lines = (), body: bytes | None = None) -> None:
        """Write one request."""
        await self.send(request_bytes(method, path, headers, body))

    async def end_of_request(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self.writer.write_eof()
        await self._soon(self.writer.drain)

    async def head(self) -> Head:
        """Read the beginning of the next answer; an interim one is passed over."""
        lines = await self._head_lines()
        status, _, reason = lines[0].partition(" ")[2].partition(" ")
        if int(status) < 200:
            return await self.head()
        return Head(int(status), reason, [_header(line) for line in lines[1:]])

    async def chunks(self, head: Head, method: str = "GET") -> AsyncIterator[bytes]:
        """Give the body in pieces, each as soon as it came."""
        if method == "HEAD" or head.status in {204, 304}:
            return
        if any("chunked" in value.lower() for value in head.values("Transfer-Encoding")):
            async for piece in self._chunked():
                yield piece
        elif sizes := head.values("Content-Length"):
            async for piece in self._exactly(int(sizes[0])):
                yield piece
        else:
            while piece := await self._piece(_PIECE_BYTES):
                yield piece

    async def body(self, head: Head, method: str = "GET") -> bytes:
        """Read the whole body."""
        return b"".join([piece async for piece in self.chunks(head, method)])

    async def closed_by_host(self) -> bool:
        """Wait until the host sends something, or until it closes the connection; true if it closed."""
        try:
            return await self._piece(1) == b""
        except ConnectionError:
            return True

    def abort(self) -> None:
        """Leave at once; what was not sent is not sent."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Leave; twice is once."""
        self.writer.close()
        try:
            await self._soon(self.writer.wait_closed)
        except (ConnectionError, ssl.SSLError, TimeoutError):
            self.abort()

    async def _head_lines(self) -> list[str]:
        lines: list[str] = []
        while line := await self._line():
            lines.append(line)
        if not lines or not lines[0].startswith("HTTP/1."):
            raise HttpBroken(f"no status line: {lines[:1]}")
        return lines

    async def _line(self) -> str:
        line = await self._soon(self.reader.readline)
        if not line.endswith(b"\n"):
            raise HttpBroken(f"closed in the middle of a line: {line[:80]!r}")
        return line.decode("latin-1").removesuffix("\n").removesuffix("\r")

    async def _chunked(self) -> AsyncIterator[bytes]:
        while size := int((await self._line()).partition(";")[0], 16):
            async for piece in self._exactly(size):
                yield piece
            if await self._line():
                raise HttpBroken("a chunk longer than it said")
        while await self._line():
            pass  # trailers

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            piece = await self._piece(min(size, _PIECE_BYTES))
            if not piece:
                raise HttpBroken(f"closed {size} bytes before the end")
            size -= len(piece)
            yield piece

    async def _piece(self, most: int) -> bytes:
        return await self._soon(lambda: self.reader.read(most))

    async def _soon(self, wait: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(self.deadline_s):
            return await wait()


@dataclass
class Stream:
    """An answer whose head came and whose body is on its way."""

    connection: Connection
    head: Head

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self.head.status

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header lines of the answer."""
        return self.head.headers

    def chunks(self) -> AsyncIterator[bytes]:
        """Give the body in pieces, each as soon as it came."""
        return self.connection.chunks(self.head)

    async def body(self) -> bytes:
        """Read the rest of the body."""
        return await self.connection.body(self.head)


async def _streams(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    match target:
        case Tcp(host, port, tls):
            return await asyncio.open_connection(host, port, ssl=tls, limit=_LINE_BYTES_MAX)
        case Unix(path):
            return await asyncio.open_unix_connection(path, limit=_LINE_BYTES_MAX)


@asynccontextmanager
async def connected(target: Target, *, deadline_s: float = DEADLINE_S) -> AsyncGenerator[Connection, None]:
    """Give a connection to *target*, and close it afterwards."""
    async with asyncio.timeout(deadline_s):
        reader, writer = await _streams(target)
    connection = Connection(reader, writer, deadline_s)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def opened(
    target: Target,
    method: str,
    path: str,
    headers: Lines = (),
    body: bytes | None = None,
    *,
    deadline_s: float = DEADLINE_S,
) -> AsyncGenerator[Stream, None]:
    """Send a request, wait for the head of the answer, and give the stream; leaving closes the connection."""
    async with connected(target, deadline_s=deadline_s) as connection:
        await connection.request(method, path, headers, body)
        yield Stream(connection, await connection.head())


async def fetch(
    target: Target,
    method: str,
    path: str,
    headers: Lines = (),
    body: bytes | None = None,
    *,
    deadline_s: float = DEADLINE_S,
) -> Answer:
    """Send a request on a connection of its own and read the whole answer."""
    async with asyncio.timeout(deadline_s), connected(target, deadline_s=deadline_s) as connection:
        await connection.request(method, path, headers, body)
        head = await connection.head()
        return Answer(*head, await connection.body(head, method))


async def events(stream: Stream, check: StreamCheck) -> AsyncIterator[Object]:
    """Give the events of *stream* as the strictest client would, up to the terminal one; raises its `ClientError`."""
    async for piece in stream.chunks():
        for event in check.feed(piece):
            yield event
        if check.terminal is not None:
            return
    check.close()


def request_bytes(method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
    """One request as it goes over the wire."""
    lines = list(headers)
    names = {name.lower() for name, _ in lines}
    if "host" not in names:
        lines.insert(0, ("Host", "localhost"))
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        lines.append(("Content-Length", str(len(body))))
    head = "".join(
        f"{line}\r\n" for line in [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines)]
    )
    return f"{head}\r\n".encode("latin-1") + (body or b"")


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.strip(" \t")
