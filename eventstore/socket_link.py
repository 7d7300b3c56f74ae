"""The connection to a real server: every command of a node on one socket, pipelined as they come.

Commands of one turn of the event loop leave in one write, and replies are matched in order.
Asyncio calls a protocol's methods itself, so here, and only for that, a plain `def` touches the world.
"""

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any, NamedTuple, Protocol, cast

import anyio
from hiredis import HiredisError, Reader
from msgspec import Struct
from typing_extensions import override

from eventstore.endpoint import DELAY_S_MAX, Endpoint, Place, beside, dial, found, greet, pack, persist, said, untrusted
from eventstore.link import Call, ConnectionLost, Link, OnConnected, ReplyError, Script, Word

_NOT_YET = object()
_DEMOTED = frozenset({"READONLY", "NOREPLICAS"})
"""Errors of a server that is a primary no more, or that was cut off and may soon be none."""
_CUT_OFF_S = 1.0
"""How long a connection lasts at least that is given up for `NOREPLICAS`, so that it is not made over and over."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much one connection holds, and how long it waits."""

    commands_max: int = 4_096
    """Commands sent and not answered; beyond it, callers wait."""
    unsent_bytes_max: int = 4_194_304
    """Bytes gathered while the socket takes none; beyond it, callers wait."""
    patience_s: float = 5.0
    """How long a call may wait to be sent, in an outage or behind others."""
    silence_s: float = 5.0
    """A server that owes replies and sends nothing for so long is given up."""
    connect_s: float = 5.0
    """How long one attempt to connect may take."""
    delay_s_max: float = DELAY_S_MAX
    """The longest pause between two attempts."""


class _Slot(Protocol):
    """Where the reply of one command goes; a caller that left is *done*."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...


class _Gathering:
    """The slot of a pipeline: takes its replies one by one and answers once, with all of them."""

    def __init__(self, future: asyncio.Future[Any], size: int) -> None:
        self._future = future
        self._size = size
        self._replies: list[Any] = []

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, result: Any, /) -> None:
        if isinstance(result, ConnectionLost):
            self._future.set_result(result)
            return
        self._replies.append(result)
        if len(self._replies) == self._size:
            self._future.set_result(self._replies)


class _Wire(asyncio.Protocol):
    """One connection from made to lost."""

    def __init__(self, limits: Limits, on_room: Callable[[], None], *, seeks: bool) -> None:
        self.full = False
        self.lost = asyncio.Event()
        self.broken: ssl.SSLError | None = None
        """Why TLS ended, if it did: a client without the right certificate may hear of it after the handshake."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._on_room = on_room
        self._reader = Reader(replyError=self._refused if seeks else ReplyError, notEnoughData=_NOT_YET)
        self._slots: deque[_Slot] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._flushing = False
        self._paused = False
        self._quiet = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._made_s = self._loop.time()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._tick()

    def send(self, packed: bytes, slot: _Slot, count: int = 1) -> None:
        """Queue *packed*, which holds *count* commands; the replies go to *slot*."""
        if self._transport is None:
            slot.set_result(ConnectionLost("the connection was lost before the command was sent"))
            return
        if count == 1:
            self._slots.append(slot)
        else:
            self._slots.extend(repeat(slot, count))
        self._unsent.append(packed)
        self._unsent_bytes += len(packed)
        if len(self._slots) >= self._limits.commands_max or self._unsent_bytes >= self._limits.unsent_bytes_max:
            self.full = True
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def call(self, *words: Word) -> Any:
        """Send one command past the queue of the link: greetings and checks of a new connection."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send(pack(words), future)
        return _answer(await future)

    def drop(self) -> None:
        """Close at once; what was sent fails."""
        if self._transport is not None:
            self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        self._quiet = 0
        slots = self._slots
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                slot = slots.popleft()
                if not slot.done():
                    slot.set_result(reply)
        except (HiredisError, IndexError):  # not RESP, or a reply nobody asked for: nothing after it can be matched
            self.drop()
        if self.full:
            self._look_for_room()

    @override
    def pause_writing(self) -> None:
        self._paused = True

    @override
    def resume_writing(self) -> None:
        self._paused = False
        if self._unsent:
            self._flush()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._unsent.clear()
        self.broken = exc if isinstance(exc, ssl.SSLError) else None
        self.lost.set()
        why = f"the connection was lost: {exc or 'closed'}"
        while self._slots:
            slot = self._slots.popleft()
            if not slot.done():
                slot.set_result(ConnectionLost(why))
        self._on_room()

    def _refused(self, text: str) -> ReplyError:
        """Make the error that *text* tells; one that says the primary may be elsewhere ends the connection."""
        error = ReplyError(text)
        if error.code in _DEMOTED and (error.code == "READONLY" or self._loop.time() > self._made_s + _CUT_OFF_S):
            self._loop.call_soon(self.drop)
        return error

    def _flush(self) -> None:
        if self._transport is None or self._paused:
            return
        self._flushing = False
        packed = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._transport.write(packed)
        if self.full:
            self._look_for_room()

    def _look_for_room(self) -> None:
        limits = self._limits
        self.full = len(self._slots) >= limits.commands_max or self._unsent_bytes >= limits.unsent_bytes_max
        if not self.full:
            self._on_room()

    def _tick(self) -> None:
        """Count quiet fifths; counting instead of reading a clock, a process that was suspended drops nothing."""
        self._quiet = self._quiet + 1 if self._slots else 0
        if self._quiet > 5:  # noqa: PLR2004 - fifths of the silence, one begun
            self.drop()
            return
        self._timer = self._loop.call_later(self._limits.silence_s / 5, self._tick)


class _Waiting(NamedTuple):
    deadline_s: float
    packed: bytes
    slot: _Slot
    commands: int


class SocketLink:
    """A `Link` over one socket that mends itself; made by `open_link`."""

    def __init__(self, place: Place, name: str, limits: Limits, on_connected: OnConnected | None) -> None:
        self._place = place
        self._name = name
        self._limits = limits
        self._on_connected = on_connected
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._wire: _Wire | None = None
        self._waiting: deque[_Waiting] = deque()
        self._expiry: asyncio.TimerHandle | None = None
        self._digests: dict[str, str] = {}
        self._loads: dict[str, asyncio.Future[Any]] = {}

    @property
    def connected(self) -> bool:
        """Whether commands can be sent now."""
        return self._wire is not None

    async def call(self, *words: Word) -> Any:
        reply = await self._sent(pack(words))
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        if not commands:
            return []
        packed = b"".join([pack(tuple(words)) for words in commands])
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(packed, _Gathering(future, len(commands)), len(commands))
        replies: list[Any] = _answer(await future)
        return replies

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        digest = self._digests.get(script.name) or self._digests.setdefault(script.name, _digest(script))
        tail = (len(keys), *keys, *args)
        packed = pack(("EVALSHA", digest, *tail))
        reply = await self._sent(packed)
        if _forgotten(reply):
            await self._load(script, digest)
            reply = await self._sent(packed)
            if _forgotten(reply):  # somebody flushed in between: this needs no memory
                reply = await self._sent(pack(("EVAL", _text(script), *tail)))
        return _answer(reply)

    def primaries(self) -> Sequence[Link]:
        """This one."""
        return (self,)

    async def tend(self) -> None:
        """Reconnect for ever; run beside everything that uses the link."""
        while True:
            if self._wire is not None:
                await self._wire.lost.wait()
                self._wire = None
            await persist(self.connect, self._place, self._limits.delay_s_max)

    async def connect(self) -> None:
        """Connect once; raises one of `endpoint.TROUBLE`."""
        seeks = not isinstance(self._place, Endpoint)
        with anyio.fail_after(self._limits.connect_s):
            endpoint = await found(self._place)
            wire = await dial(endpoint, lambda: _Wire(self._limits, self._on_room, seeks=seeks))
        try:
            with anyio.fail_after(self._limits.connect_s):
                await greet(wire.call, endpoint, self._name)
            if self._on_connected is not None:
                await self._on_connected(wire.call)
        except BaseException as error:
            wire.drop()
            if isinstance(error, ConnectionLost) and wire.broken is not None:
                raise untrusted(endpoint, wire.broken) from error
            raise
        if wire.lost.is_set():
            raise ConnectionLost("the connection was lost as soon as it was made")
        self._wire = wire
        self._on_room()

    def close(self) -> None:
        """Fail whatever is not answered and leave the server."""
        self._closed = True
        if self._wire is not None:
            self._wire.drop()
        self._wire = None
        self._expire(everything=True)

    def _sent(self, packed: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(packed, future, 1)
        return future

    def _send(self, packed: bytes, slot: _Slot, count: int) -> None:
        wire = self._wire
        if wire is not None and not wire.full and not self._waiting:
            wire.send(packed, slot, count)
            return
        if self._closed:
            slot.set_result(ConnectionLost("the link is closed"))
            return
        self._waiting.append(_Waiting(self._loop.time() + self._limits.patience_s, packed, slot, count))
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._limits.patience_s, self._expire)

    def _on_room(self) -> None:
        """Send what waits, first come first served; also told when the connection is lost."""
        wire = self._wire
        if wire is not None and wire.lost.is_set():
            self._wire = wire = None
        while wire is not None and self._waiting and not wire.full:
            waiting = self._waiting.popleft()
            if not waiting.slot.done():
                wire.send(waiting.packed, waiting.slot, waiting.commands)

    def _expire(self, *, everything: bool = False) -> None:
        now_s = self._loop.time()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        while self._waiting and (everything or self._waiting[0].deadline_s <= now_s):
            waiting = self._waiting.popleft()
            if not waiting.slot.done():
                waiting.slot.set_result(ConnectionLost("no connection took the command in time; it was not sent"))
        if self._waiting:
            self._expiry = self._loop.call_at(self._waiting[0].deadline_s, self._expire)

    async def _load(self, script: Script, digest: str) -> None:
        """Load *script* once, however many callers miss it, whichever of them leaves meanwhile."""
        load = self._loads.get(digest)
        if load is None:
            load = self._loads[digest] = self._sent(pack(("SCRIPT", "LOAD", _text(script))))
            load.add_done_callback(lambda _: self._loads.pop(digest, None))
        _answer(await asyncio.shield(load))


@asynccontextmanager
async def open_link(
    place: Place,
    *,
    name: str = "runstream",
    limits: Limits | None = None,
    on_connected: OnConnected | None = None,
) -> AsyncGenerator[SocketLink]:
    """Connect to *place* and stay connected; *on_connected* runs on each new connection before anything else.

    Raises:
        ConnectionLost: nothing answered at all.
        ReplyError: the server refused the account, or pauses.
        Unfit: *on_connected* refused the server, or its certificate is not trusted.
    """
    link = SocketLink(place, name, limits or Limits(), on_connected)
    try:
        await link.connect()
    except OSError as error:
        raise ConnectionLost(f"{place!r} does not answer: {said(error)}") from error
    try:
        async with beside(link.tend):
            yield link
    finally:
        link.close()


@asynccontextmanager
async def bare_call(endpoint: Endpoint, limits: Limits | None = None) -> AsyncGenerator[Call]:
    """Open a connection for a few questions that never mends itself; raises as `open_link` does."""
    link = SocketLink(endpoint, "runstream-check", limits or Limits(), None)
    try:
        await link.connect()
    except OSError as error:
        raise ConnectionLost(f"{endpoint!r} does not answer: {said(error)}") from error
    try:
        yield link.call
    finally:
        link.close()


def _answer(reply: Any) -> Any:
    """*reply*, unless it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def _forgotten(reply: Any) -> bool:
    """Whether *reply* says that the server does not know the script."""
    return isinstance(reply, ReplyError) and reply.code == "NOSCRIPT"


def _text(script: Script) -> str:
    """What a real server is given: it alone knows the line that allows a script when memory is full."""
    return f"#!lua flags=allow-oom\n{script.text}" if script.allow_oom else script.text


def _digest(script: Script) -> str:
    """The name a server knows *script* by."""
    return hashlib.sha1(_text(script).encode(), usedforsecurity=False).hexdigest()
