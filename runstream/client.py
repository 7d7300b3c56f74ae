"""The smallest client that can follow a run on another host, and answer for it: one POST over one connection each.

It bounds what it reads, follows no redirect, and closes the connection when it is left, which cancels the run there.
"""

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import httptools
import msgspec
from anyio.abc import ByteStream

from actors.errors import Refused
from runstream.settings import LOOPBACK

CONNECT_S = 10.0
FRAME_BYTES_MAX = 2_000_000
"""What a client reads of one event (clients §2)."""
BODY_BYTES_MAX = 2_000_000
_CHUNK = 65_536
_HOW = "the address of a host is written as http://127.0.0.1:7433"
_OK = 200


class Unreachable(Exception):
    """There is no answer, or none that this client understands; the text says what to look at."""


class Remote(NamedTuple):
    """A host elsewhere, and what lets us in."""

    url: str
    token: str


class _Reply:
    """What httptools tells of a response."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.kind = b""
        self.headed = self.over = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.kind = value

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.over = True


async def remote_events(remote: Remote, document: Mapping[str, Any]) -> AsyncGenerator[bytes]:
    """Start a run on *remote* and yield its events as JSON; closing it early cancels the run.

    Raises:
        Refused: the host said no.
        Unreachable: it said nothing, or no protocol of ours.
    """
    body = msgspec.json.encode(document)
    try:
        async with _connected(remote.url) as (stream, host), aclosing(_parts(stream, remote, host, body)) as parts:
            waiting = b""
            async for part in parts:
                *frames, waiting = (waiting + part).split(b"\n\n")
                if len(waiting) > FRAME_BYTES_MAX:
                    raise Unreachable("INVALID_STREAM: an event is larger than this client takes")
                for frame in frames:
                    if data := _data(frame):
                        yield data
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, httptools.HttpParserError) as error:
        raise Unreachable(f"{remote.url} does not answer as a host: {str(error) or type(error).__name__}") from error


async def posted(remote: Remote, route: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send *document* to a route of *remote* and return the JSON object it answers with.

    Raises:
        Refused: the host said no.
        Unreachable: it said nothing, or no protocol of ours.
    """
    reply = _Reply()
    parser = httptools.HttpResponseParser(reply)
    size = 0
    try:
        async with _connected(remote.url) as (stream, host):
            await stream.send(_request(remote, host, msgspec.json.encode(document), route, "application/json"))
            while not reply.over and size <= BODY_BYTES_MAX:
                part = await stream.receive(_CHUNK)
                size += len(part)
                parser.feed_data(part)
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, httptools.HttpParserError) as error:
        raise Unreachable(f"{remote.url} does not answer as a host: {str(error) or type(error).__name__}") from error
    body = b"".join(reply.body)
    if parser.get_status_code() != _OK:
        raise _refusal(parser.get_status_code(), body)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        raise Unreachable(f"{remote.url} answers, but not as a Runstream host") from None


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[tuple[ByteStream, str]]:
    host, port, secure, netloc = _address(url)
    try:
        with anyio.fail_after(CONNECT_S):
            if secure:
                context = ssl.create_default_context()
                stream: ByteStream = await anyio.connect_tcp(
                    host, port, tls=True, ssl_context=context, tls_standard_compatible=False
                )
            else:
                stream = await anyio.connect_tcp(host, port)
    except TimeoutError:
        raise Unreachable(f"{url} does not answer within {CONNECT_S:g} s") from None
    async with stream:
        yield stream, netloc


def _address(url: str) -> tuple[str, int, bool, str]:
    """Host, port, whether TLS, and what the Host header says."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Unreachable(_HOW) from None
    if not host or parts.scheme not in {"http", "https"} or parts.username or parts.query or parts.fragment:
        raise Unreachable(_HOW)
    secure = parts.scheme == "https"
    if not secure and host not in LOOPBACK:
        raise Unreachable("plain HTTP would show the token to everyone on the way; use https://")
    return host, port or (443 if secure else 80), secure, parts.netloc


async def _parts(stream: ByteStream, remote: Remote, host: str, body: bytes) -> AsyncGenerator[bytes]:
    """Send the request, then yield the event stream as it comes."""
    await stream.send(_request(remote, host, body, "/v1/runs", "text/event-stream"))
    reply = _Reply()
    parser = httptools.HttpResponseParser(reply)
    refused = b""
    while not reply.over:
        parser.feed_data(await stream.receive(_CHUNK))
        if not reply.headed:
            continue
        got, reply.body = b"".join(reply.body), []
        if parser.get_status_code() == _OK and reply.kind.startswith(b"text/event-stream"):
            yield got
        elif len(refused := refused + got) > BODY_BYTES_MAX:
            break
    if parser.get_status_code() != _OK:
        raise _refusal(parser.get_status_code(), refused)
    if not reply.kind.startswith(b"text/event-stream"):
        raise Unreachable(f"{remote.url} answers, but not as a Runstream host")


def _request(remote: Remote, host: str, body: bytes, route: str, accepted: str) -> bytes:
    path = urlsplit(remote.url).path.rstrip("/")
    lines = (
        f"POST {path}{route} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {remote.token}",
        "AgenticDriver-Version: 1.0",
        "AgenticDriver-Accept-Optional-Events: true",
        f"Accept: {accepted}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    if any(not line.isascii() or not line.isprintable() for line in lines):
        raise Unreachable("the address or the token holds a character that no header can carry")
    return "\r\n".join((*lines, "", "")).encode() + body


def _refusal(status: int, body: bytes) -> Exception:
    try:
        problem = msgspec.json.decode(body)["error"]
        return Refused(str(problem["code"]), str(problem["message"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return Unreachable(f"the host answers {status}, and not in a way this client understands")


def _data(frame: bytes) -> bytes:
    """The data of one frame; none of a comment."""
    return b"\n".join(line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:"))
