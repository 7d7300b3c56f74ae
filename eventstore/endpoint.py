"""Where a server is and how a connection to it begins, for command and subscribing connections alike."""

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import unquote, urlsplit

import anyio
import hiredis
from anyio.abc import TaskGroup
from msgspec import Struct
from typing_extensions import override

from eventstore.link import Call, ConnectionLost, ReplyError, Unfit, Word, passing

P = TypeVar("P", bound=asyncio.BaseProtocol)
T = TypeVar("T")

pack = cast("Callable[[tuple[Word, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""The bytes of one command; the library's own annotation admits only commands of one word."""

TROUBLE = (OSError, ReplyError, ConnectionLost, Unfit)
"""What may go wrong with a connection that is being made; `TimeoutError` and TLS errors are `OSError`s."""

DELAY_S_MAX = 2.0
_SILENT_S = 30.0
"""Between two log lines about one connection that is not had."""

_log = logging.getLogger(__name__)


class Endpoint(Struct, frozen=True, kw_only=True):
    """A server's address and our account there; *path* names a Unix socket and then counts instead of host and port."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""
    db: int = 0

    @override
    def __repr__(self) -> str:
        """Name the address only: passwords stay out of logs."""
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"


class Whereabouts(Protocol):
    """Where a server is now; asked anew for each connection."""

    async def __call__(self) -> Endpoint:
        """Find it; raises one of `TROUBLE`."""
        ...


Place: TypeAlias = Endpoint | Whereabouts
"""A server that stays where it is, or one that is looked for."""


async def found(place: Place) -> Endpoint:
    """Look where *place* is now."""
    return place if isinstance(place, Endpoint) else await place()


def endpoint_of(url: str, tls: ssl.SSLContext | None = None) -> Endpoint:
    """The endpoint that *url* names: `redis://`, `rediss://` (needs *tls*) or `unix://`; raises `ValueError`."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    match parts.scheme:
        case "unix":
            return Endpoint(path=unquote(parts.path), user=user, password=password)
        case "redis" | "rediss":
            secure = tls if parts.scheme == "rediss" else None
            if parts.scheme == "rediss" and tls is None:
                raise ValueError("a rediss:// address needs a TLS context")
            return Endpoint(
                host=parts.hostname or "127.0.0.1",
                port=parts.port or 6379,
                tls=secure,
                user=user,
                password=password,
                db=int(parts.path.strip("/") or 0),
            )
        case other:
            raise ValueError(f"an address begins with redis://, rediss:// or unix://, not with {other!r}")


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 address stands in brackets. Raises `ValueError`."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname or not parts.port or parts.netloc != text or parts.username is not None:
        raise ValueError("an address is written as host:port")
    return parts.hostname, parts.port


def greeting(endpoint: Endpoint, name: str) -> Sequence[Sequence[Word]]:
    """The commands that a connection begins with."""
    commands: list[Sequence[Word]] = []
    if endpoint.password:
        account = (endpoint.user,) if endpoint.user else ()
        commands.append(("AUTH", *account, endpoint.password))
    commands.append(("CLIENT", "SETNAME", name))
    if endpoint.db:
        commands.append(("SELECT", endpoint.db))
    commands.append(("PING",))  # a server that is still loading refuses it, and so is not connected to yet
    return commands


async def greet(call: Call, endpoint: Endpoint, name: str) -> None:
    """Begin a connection to *endpoint*; raises `ReplyError` that says who refuses our account."""
    for words in greeting(endpoint, name):
        try:
            await call(*words)
        except ReplyError as error:
            if passing(error):
                raise
            raise ReplyError(f"{error} (the answer of {endpoint!r} to our account)") from error


async def dial(endpoint: Endpoint, protocol: Callable[[], P]) -> P:
    """Open a transport to *endpoint*; raises `OSError`, or `Unfit` where TLS cannot be had."""
    loop = asyncio.get_running_loop()
    if endpoint.path:
        return (await loop.create_unix_connection(protocol, endpoint.path))[1]
    try:
        transport, made = await loop.create_connection(protocol, endpoint.host, endpoint.port, ssl=endpoint.tls)
    except ssl.SSLError as error:
        raise untrusted(endpoint, error) from error
    plug = transport.get_extra_info("socket")
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def untrusted(endpoint: Endpoint, error: ssl.SSLError) -> Exception:
    """What it means that TLS to *endpoint* ended with *error*: a connection that was cut may be had later."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConnectionLost(f"{endpoint!r} closed the connection before it was secure")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unfit(f"{endpoint!r} shows a certificate that is not trusted: {error.verify_message}")
    return Unfit(f"no TLS connection to {endpoint!r} can be made: {(error.reason or said(error)).replace('_', ' ')}")


def nobody(what: str, asked: Sequence[tuple[Endpoint, Exception]]) -> Exception:
    """What it means that none of *asked* was of use: `Unfit` if one of them never will be with these settings."""
    told = "; ".join(f"{server!r}: {said(error)}" for server, error in asked)
    kind = ConnectionLost if all(passing(error) for _, error in asked) else Unfit
    return kind(f"{what}: {told}")


def said(error: BaseException) -> str:
    """What *error* says, or its name where it says nothing, as a timeout does."""
    return str(error) or type(error).__name__


async def persist(connect: Callable[[], Awaitable[T]], place: Place, delay_s_max: float = DELAY_S_MAX) -> T:
    """Call *connect* until it succeeds, with growing, jittered pauses: the first between 10 and 30 ms.

    Of a long outage the log has a line each 30 s, and one that says it is over.
    """
    delay_s, quiet_until_s, tries = 0.02, 0.0, 0
    while True:
        await anyio.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads nodes, guards nothing
        tries += 1
        try:
            made = await connect()
        except TROUBLE as error:
            if anyio.current_time() >= quiet_until_s:
                quiet_until_s = anyio.current_time() + _SILENT_S
                _log.warning("%r: no connection: %s", place, said(error))
        else:
            if tries > 1:
                _log.warning("%r: connected again, at the %s. try", place, tries)
            return made
        delay_s = min(delay_s * 2, delay_s_max)


@asynccontextmanager
async def chores() -> AsyncGenerator[TaskGroup]:
    """Run what is started in the group beside the body and end it with the body, whose exception leaves as it was."""
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        match group.exceptions:
            case [error]:
                raise error from error.__cause__
            case _:
                raise


@asynccontextmanager
async def beside(chore: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None]:
    """Run *chore* beside the body and end it with the body, whose exception leaves as it was raised."""
    async with chores() as tasks:
        tasks.start_soon(chore)
        yield
