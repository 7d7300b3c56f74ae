"""Following: every reader of a node hears of new items over one connection per primary; `followed` is such a reader.

What is heard is a hint, the feed is the truth: where a tail is not sure that it heard everything, it says so.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from eventstore.endpoint import said
from eventstore.link import ConnectionLost, Messages, ReplyError
from eventstore.reader import CursorAhead, CursorTooOld, followed, following
from eventstore.receipts import Receipts
from eventstore.store import Heard, HistoryLost, Item, Tail, Unavailable

__all__ = ["CursorAhead", "CursorTooOld", "Hub", "Message", "followed", "read_message"]

TAIL_BYTES_MAX = 262_144
"""What a tail keeps for a reader that is busy elsewhere; beyond it the reader falls back to the feed."""

_log = logging.getLogger(__name__)


class Message(NamedTuple):
    """What an append publishes: its items, or none where they are too large to travel."""

    first: int
    head: int
    ended: bool
    items: Sequence[bytes]


def read_message(data: bytes) -> Message:
    """The message in *data*: `<first>|<head>|<ended>|<n>`, a line feed, then per item `<length>:` and its bytes.

    Raises `ValueError` for anything else.
    """
    line, _, rest = data.partition(b"\n")
    first, head, ended, count = map(int, line.split(b"|"))
    items: list[bytes] = []
    at = 0
    for _ in range(count):
        colon = rest.index(b":", at)
        end = colon + 1 + int(rest[at:colon])
        items.append(rest[colon + 1 : end])
        at = end
    if at != len(rest):
        raise ValueError(f"the items end at {at} of {len(rest)} bytes")
    return Message(first, head, bool(ended), items)


class _Tail:
    """A reader's end: keeps what came, in order and within bounds, until the reader takes it."""

    def __init__(self, actor: str, bytes_max: int, *, compared: bool) -> None:
        self.compared = compared
        self._actor = actor
        self._bytes_max = bytes_max
        self.lost = False
        self._items: list[Item] = []
        self._bytes = 0
        self._last = 0
        self._latest: Item | None = None
        """What was kept last."""
        self._ended = False
        self._gap = False
        self._news = False
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, items: Sequence[Item], size: int, head: int, *, ended: bool) -> None:
        """Keep *items*, together *size* bytes, unless something before them or up to *head* was not heard."""
        last = self._last
        if self._contradict(items):
            self.gap()
            return
        fresh = following(items, last)
        if items and not fresh and ended <= self._ended:
            return
        self._last = max(last, head, fresh[-1].number if fresh else 0)
        self._ended = self._ended or ended
        if fresh and fresh[-1].number == self._last and (not self._items or fresh[0].number == last + 1):
            self._keep(fresh, size)
        elif self._last > last:
            self._break()
        self._wake()

    def read_to(self, head: int) -> None:
        """Note that the reader found the feed at *head*, and reads it up to there."""
        self._last = max(self._last, head)

    def compare(self, head: int, *, ended: bool) -> None:
        """Note where the feed stands; one that is not where it was heard to stand must be read."""
        if head < self._last:
            self.gap()
        elif head > self._last or ended != self._ended:
            self.offer((), 0, head, ended=ended)

    def gap(self) -> None:
        """Say that something may have gone unheard."""
        self._break()
        self._wake()

    def lose(self) -> None:
        """Say that what was heard is not in the store any more."""
        self.lost = True
        self._wake()

    async def heard(self, patience_s: float) -> Heard | None:
        """Wait for news and take all of it; None when *patience_s* passed in silence.

        Raises:
            HistoryLost: the store came back without what was heard.
        """
        if not self._news:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            silence = loop.call_later(patience_s, self._silent)
            try:
                await self._waiter
            finally:
                self._waiter = None
                silence.cancel()
        if self.lost:
            raise HistoryLost(self._actor)
        return self._taken() if self._news else None

    def _keep(self, items: Sequence[Item], size: int) -> None:
        if self._gap:
            return
        self._items.extend(items)
        self._latest = items[-1]
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._break()

    def _break(self) -> None:
        self._gap = True
        self._items = []
        self._latest = None
        self._bytes = 0

    def _contradict(self, items: Sequence[Item]) -> bool:
        """Whether *items* have something else under the number of what was kept last: one of both was lost."""
        latest = self._latest
        if latest is None or not items or items[0].number > latest.number:
            return False
        at = latest.number - items[0].number
        return at < len(items) and items[at].data != latest.data

    def _wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _silent(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _taken(self) -> Heard:
        heard = Heard(self._items, self._last, self._ended, self._gap)
        self._items = []
        self._bytes = 0
        self._gap = self._news = False
        return heard


class Hub:
    """All tails of a node on one primary's actors; *channel_of* names the channel an actor's items are published on.

    An actor that this node owns is not subscribed to: its appends are pushed here, and others' writes ring its owner.
    """

    def __init__(
        self,
        messages: Messages,
        channel_of: Callable[[str], str],
        tail_bytes_max: int = TAIL_BYTES_MAX,
        *,
        receipts: Receipts | None = None,
        compared: bool = False,
    ) -> None:
        self._receipts = receipts
        self._compared = compared
        self._messages = messages
        self._channel_of = channel_of
        self._tail_bytes_max = tail_bytes_max
        self._tails: dict[str, list[_Tail]] = {}
        self._owned: set[str] = set()

    @asynccontextmanager
    async def tail(self, actor: str) -> AsyncGenerator[Tail]:
        """Open a tail; once entered, nothing appended later goes unheard.

        Raises:
            Unavailable: the server did not confirm the subscription.
        """
        tail = _Tail(actor, self._tail_bytes_max, compared=self._compared)
        self._tails.setdefault(actor, []).append(tail)
        try:
            if actor not in self._owned:
                await self._subscribe(actor)
            yield tail
        finally:
            self._tails[actor].remove(tail)
            if not self._tails[actor]:
                del self._tails[actor]
                if self._receipts is not None:
                    self._receipts.closed(actor)
                await self._messages.unsubscribe(self._channel_of(actor))

    def push(self, actor: str, first: int, items: Sequence[bytes], head: int, ended: bool) -> None:  # noqa: FBT001
        """Hand on *items*, numbered from *first*, after which the feed stands at *head*."""
        tails = self._tails.get(actor)
        if tails is None:
            return
        numbered = [Item(number, data) for number, data in enumerate(items, first)]
        size = sum(map(len, items))
        if numbered and self._receipts is not None:
            self._receipts.showed(actor, numbered[-1])
        for tail in tails:
            tail.offer(numbered, size, head, ended=ended)

    def hear(self, actor: str, data: bytes) -> None:
        """Hand on what was published on the channel of *actor*."""
        if actor not in self._tails:
            return
        try:
            self.push(actor, *_arguments(read_message(data)))
        except ValueError as error:
            _log.warning("actor %s: a message of %d bytes is not ours: %s", actor, len(data), said(error))
            self.nudge(actor)

    def nudge(self, actor: str) -> None:
        """Send the readers of *actor* to the feed: somebody wrote it, or may have."""
        for tail in self._tails.get(actor, ()):
            tail.gap()

    def shows(self, actor: str) -> bool:
        """Whether somebody here reads *actor*."""
        return actor in self._tails

    @property
    def followed(self) -> Sequence[str]:
        """Whom somebody here reads."""
        return list(self._tails)

    def compare(self, actor: str, head: int, *, ended: bool) -> None:
        """Tell the readers of *actor* where its feed stands."""
        for tail in self._tails.get(actor, ()):
            tail.compare(head, ended=ended)

    def lose(self, actor: str) -> None:
        """Tell the readers of *actor* that its history is lost: what they were shown is not there any more."""
        for tail in self._tails.get(actor, ()):
            tail.lose()

    def gap(self) -> None:
        """Send all readers to their feeds: messages may have been lost."""
        for actor in self._tails:
            self.nudge(actor)

    async def own(self, actor: str) -> None:
        """From now on everything that happens to *actor* is pushed or nudged here."""
        self._owned.add(actor)
        if actor in self._tails:
            await self._messages.unsubscribe(self._channel_of(actor))

    def disown(self, actor: str) -> None:
        """From now on *actor* is written elsewhere: where somebody reads it here, `rejoin`."""
        self._owned.discard(actor)

    async def rejoin(self, actor: str) -> None:
        """Hear of *actor* what others write, and tell its open tails to look once it is heard."""
        try:
            await self._messages.subscribe(self._channel_of(actor))
        except (ConnectionLost, ReplyError) as error:  # still wanted: the reconnect subscribes, and is a gap
            _log.warning("actor %s: not subscribed yet: %s", actor, said(error))
        self.nudge(actor)

    async def _subscribe(self, actor: str) -> None:
        try:
            await self._messages.subscribe(self._channel_of(actor))
        except (ConnectionLost, ReplyError) as error:
            raise Unavailable(f"cannot follow {actor}: {said(error)}") from error


def _arguments(message: Message) -> tuple[int, Sequence[bytes], int, bool]:
    """What `Hub.push` takes of *message*."""
    return message.first, message.items, message.head, message.ended
