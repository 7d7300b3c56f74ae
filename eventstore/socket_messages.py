"""The subscribing connection to a real server: every channel of a node on one socket, pinged each second.

What is published while it is away is lost, so each reconnect says that there was a gap.
As in `socket_link`, a plain `def` touches the world only where asyncio itself calls it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import anyio
from hiredis import HiredisError, Reader
from msgspec import Struct
from typing_extensions import override

from eventstore.endpoint import DELAY_S_MAX, Place, beside, dial, found, greeting, pack, persist, said
from eventstore.link import ConnectionLost, ReplyError, Word

_NOT_YET = object()

_log = logging.getLogger(__name__)


class Hearing(Struct, frozen=True, kw_only=True):
    """How a subscribing connection behaves."""

    ping_s: float = 1.0
    silence_s: float = 3.0
    """A server that sends nothing for so long, not even an answer to a ping, is given up."""
    connect_s: float = 5.0
    """How long one attempt to connect, and to subscribe again to everything, may take."""
    patience_s: float = 5.0
    """How long a subscriber waits to be confirmed."""
    delay_s_max: float = DELAY_S_MAX
    """The longest pause between two attempts."""
    sharded: bool = False
    """Whether channels live in the slots of their keys, as Cluster wants them."""


class _Owed(NamedTuple):
    """A reply the server owes, in the order of what was sent; a ping or a greeting has no channel."""

    kind: bytes
    channel: str
    confirmed: asyncio.Future[Any]


class _Ear(asyncio.Protocol):
    """One connection from made to lost."""

    def __init__(self, hearing: Hearing, on_message: Callable[[str, bytes], None]) -> None:
        self.lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._hearing = hearing
        self._on_message = on_message
        self._kind = b"smessage" if hearing.sharded else b"message"
        self._reader = Reader(replyError=ReplyError, notEnoughData=_NOT_YET)
        self._owed: deque[_Owed] = deque()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_s = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(self._hearing.ping_s, self._ping)

    def send(self, kind: bytes, channel: str, *words: Word) -> asyncio.Future[Any]:
        """Send a command whose reply is of *kind* and about *channel*."""
        confirmed: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            confirmed.set_result(ConnectionLost("the subscribing connection is lost"))
        else:
            self._owed.append(_Owed(kind, channel, confirmed))
            self._transport.write(pack(words))
        return confirmed

    def drop(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        self._quiet_s = 0.0
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                self._take(reply)
        except (HiredisError, IndexError, ValueError, TypeError) as error:
            _log.warning("the subscribing connection is given up: %s", said(error))
            self.drop()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        for owed in self._owed:
            if not owed.confirmed.done():
                owed.confirmed.set_result(ConnectionLost(f"the subscribing connection was lost: {exc or 'closed'}"))
        self._owed.clear()
        self.lost.set()

    def _take(self, reply: Any) -> None:
        """Hand a message on, or settle the oldest debt; anything else raises, and the connection is given up."""
        match reply:
            case [self._kind, channel, data]:
                self._on_message(channel.decode(), data)
                return
            case [kind, channel, *_] if kind != b"pong":
                if not self._owed or (kind, channel.decode()) != self._owed[0][:2]:
                    raise ValueError(f"{kind!r} that nobody asked for")  # for example a slot moved: subscribe elsewhere
                reply = None
            case _:
                pass
        owed = self._owed.popleft()
        if not owed.confirmed.done():
            owed.confirmed.set_result(reply)

    def _ping(self) -> None:
        hearing = self._hearing
        if self._quiet_s >= hearing.silence_s:
            self.drop()
            return
        self._quiet_s += hearing.ping_s
        _ = self.send(b"pong", "", "PING")
        self._timer = self._loop.call_later(hearing.ping_s, self._ping)


class SocketMessages:
    """A `Messages` over one socket that mends itself; made by `open_messages`."""

    def __init__(
        self,
        place: Place,
        name: str,
        hearing: Hearing,
        on_message: Callable[[str, bytes], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._place = place
        self._name = name
        self._hearing = hearing
        self._on_message = on_message
        self._on_gap = on_gap
        self._prefix = "S" if hearing.sharded else ""
        self._ear: _Ear | None = None
        self._closed = False
        self._back = asyncio.Event()
        self._wanted: dict[str, asyncio.Future[Any] | None] = {}

    async def subscribe(self, channel: str) -> None:
        """Subscribe, returning once the server confirmed it.

        The channel stays wanted when this fails or is cancelled, until it is left.

        Raises:
            ConnectionLost: the server did not confirm within the patience.
        """
        self._wanted.setdefault(channel, None)
        try:
            with anyio.fail_after(self._hearing.patience_s):
                await self._confirmed(channel)
        except TimeoutError:
            raise ConnectionLost(f"{self._place!r} did not confirm a subscription in time") from None

    async def unsubscribe(self, channel: str) -> None:
        if channel in self._wanted:
            del self._wanted[channel]
            if self._ear is not None:
                _ = self._ear.send(
                    self._prefix.lower().encode() + b"unsubscribe", channel, f"{self._prefix}UNSUBSCRIBE", channel
                )

    async def tend(self) -> None:
        """Reconnect for ever; run beside everything that uses the messages."""
        while True:
            if self._ear is not None:
                await self._ear.lost.wait()
                self._ear = None
            await persist(self.connect, self._place, self._hearing.delay_s_max)
            self._on_gap()

    async def connect(self) -> None:
        """Connect once and subscribe to everything wanted; raises one of `endpoint.TROUBLE`."""
        with anyio.fail_after(self._hearing.connect_s):
            endpoint = await found(self._place)
            ear = await dial(endpoint, lambda: _Ear(self._hearing, self._heard))
            try:
                await _all([ear.send(b"", "", *words) for words in greeting(endpoint, self._name)])
                self._ear = ear
                if self._wanted:
                    self._on_gap()  # before anything is heard: it may be another history that goes on here
                self._wanted = {channel: self._subscribed(ear, channel) for channel in self._wanted}
                await _all([confirmed for confirmed in self._wanted.values() if confirmed is not None])
            except BaseException:
                self._ear = None
                ear.drop()
                raise
        self._back.set()

    def close(self) -> None:
        """Leave the server; whoever waits to be confirmed is told that the connection is lost."""
        self._closed = True
        if self._ear is not None:
            self._ear.drop()
        self._ear = None
        self._back.set()

    def _heard(self, channel: str, data: bytes) -> None:
        """Hand a message on, unless its channel was left: another server may speak for it now."""
        if channel in self._wanted:
            self._on_message(channel, data)

    def _subscribed(self, ear: _Ear, channel: str) -> asyncio.Future[Any]:
        return ear.send(self._prefix.lower().encode() + b"subscribe", channel, f"{self._prefix}SUBSCRIBE", channel)

    async def _confirmed(self, channel: str) -> None:
        """Wait until a connection that stands confirmed *channel*, or until somebody left it."""
        while channel in self._wanted:
            if self._closed:
                raise ConnectionLost(f"{self._place!r} was left")
            ear = self._ear
            if ear is None or ear.lost.is_set():
                self._back.clear()
                await self._back.wait()
                continue
            confirmed = self._wanted[channel] or self._subscribed(ear, channel)
            self._wanted[channel] = confirmed
            answer = await asyncio.shield(confirmed)
            if answer is None:
                return
            if isinstance(answer, ReplyError):
                raise answer
            # It is on its way out, which the loop must be let hear of: an answer that is there at once waits for nothing.
            await ear.lost.wait()


async def _all(replies: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for all *replies*; raises the first that is an error."""
    for reply in replies:
        answer = await asyncio.shield(reply)
        if isinstance(answer, Exception):
            raise answer


@asynccontextmanager
async def open_messages(
    place: Place,
    on_message: Callable[[str, bytes], None],
    on_gap: Callable[[], None],
    *,
    name: str = "runstream-ear",
    hearing: Hearing | None = None,
) -> AsyncGenerator[SocketMessages]:
    """Connect to *place* and stay subscribed; *on_gap* is called twice after each reconnect.

    First before anything is heard, and then once all is confirmed again, so that whoever reads then misses nothing.

    Both callbacks run in the reader: they must only note and return.

    Raises:
        ConnectionLost: nothing answered at all.
        ReplyError: the server refused the account.
    """
    messages = SocketMessages(place, name, hearing or Hearing(), on_message, on_gap)
    try:
        await messages.connect()
    except OSError as error:
        raise ConnectionLost(f"{place!r} does not answer: {said(error)}") from error
    try:
        async with beside(messages.tend):
            yield messages
    finally:
        messages.close()
