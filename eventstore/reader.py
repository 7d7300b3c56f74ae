"""One reader of one actor's feed: everything after its cursor, each item once and in order, until the end.

What its tail heard is a hint; a gap, a silence or a full buffer sends it back to the feed.
There it looks at the item that it yielded last, too: a primary that was replaced may publish what its successor has not.
"""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack

import anyio

from eventstore.store import Heard, HistoryLost, Item, Page, Store, Tail, Unavailable

_RETRY_S, _RETRY_S_MAX = 0.05, 2.0


class CursorAhead(ValueError):
    """The cursor is beyond the last item."""

    def __init__(self, cursor: int, head: int) -> None:
        super().__init__(f"cursor {cursor} is ahead of the head {head}")
        self.head = head


class CursorTooOld(ValueError):
    """Items after the cursor are no longer kept; the oldest kept is *oldest*."""

    def __init__(self, cursor: int, oldest: int) -> None:
        super().__init__(f"items after cursor {cursor} are gone; the oldest kept is {oldest}")
        self.oldest = oldest


async def followed(store: Store, actor: str, after: int, *, heartbeat_s: float) -> AsyncGenerator[Sequence[Item]]:
    """Yield the items of *actor* after number *after* as they come, until the last item of an ended one.

    An empty sequence says that nothing came for *heartbeat_s*, in silence or in an outage: a pause, never an end.
    What comes with the end comes once that is kept as the profile promises. Close it with `aclosing`.

    Raises:
        CursorAhead: *after* is beyond the feed.
        CursorTooOld: what follows *after* is no longer kept.
        HistoryLost: the store lost what it should keep, or has something else under a number that was yielded.
    """
    outage = _Outage(heartbeat_s)
    last, shown, behind = after, None, True
    tail: Tail | None = None
    async with AsyncExitStack() as stack:
        while True:
            try:
                if tail is None:
                    tail = await stack.enter_async_context(store.follow(actor))
                news = await _read(store, actor, last, shown, tail) if behind else await tail.heard(heartbeat_s)
                if news is not None and news.ended:
                    await store.confirm_end(actor)
            except CursorAhead as error:
                if last > after:  # it was no cursor: those items were sent
                    raise HistoryLost(actor) from error
                raise
            except Unavailable:
                behind = True
                if await outage.paused():
                    yield ()
                continue
            if tail.lost:
                raise HistoryLost(actor)
            outage.over()
            if news is None:
                behind = not tail.compared
                yield ()
                continue
            items = news.items if behind else following(news.items, last)
            gap = not behind and (news.gap or not _meets(news.items, last))
            ended_unseen = news.ended and not items and not behind
            if items and not gap:
                last, shown = items[-1].number, hash(items[-1].data)
                yield items
            behind = gap or last < news.head or ended_unseen
            if news.ended and not behind:
                return


async def _read(store: Store, actor: str, after: int, shown: int | None, tail: Tail) -> Heard:
    """Read the feed once, as if it had been heard by *tail*; refuses a cursor that does not fit it."""
    page = await _page(store, actor, after, shown)
    if after > page.heads.feed:
        raise CursorAhead(after, page.heads.feed)
    if after + 1 < page.heads.oldest:
        raise CursorTooOld(after, page.heads.oldest)
    tail.read_to(page.heads.feed)
    return Heard(page.items, page.heads.feed, page.heads.ended)


async def _page(store: Store, actor: str, after: int, shown: int | None) -> Page:
    """Read what follows *after*, whose item, if it was *shown*, must still be there and have that hash.

    Raises:
        HistoryLost: it is not.
    """
    if shown is None:
        return await store.page(actor, after)
    page = await store.page(actor, after - 1)
    if page.heads.oldest > after:
        return await store.page(actor, after)
    if page.items and hash(page.items[0].data) != shown:
        raise HistoryLost(actor)
    rest = page.items[1:]
    if not rest and page.heads.feed > after:  # it was so long that it filled the page
        return await store.page(actor, after)
    return page._replace(items=rest)


def _meets(items: Sequence[Item], last: int) -> bool:
    """Whether *items*, if there are any, go on where a reader stands that was sent number *last*."""
    return not items or items[0].number <= last + 1


def following(items: Sequence[Item], last: int) -> Sequence[Item]:
    """Those of *items* that come after number *last*."""
    return items if not items or items[0].number > last else [item for item in items if item.number > last]


class _Outage:
    """Growing pauses between tries while a store does not answer, and the heartbeats that fall due meanwhile."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._delay_s = _RETRY_S
        self._silent_since_s: float | None = None

    async def paused(self) -> bool:
        """Wait before the next try; whether a heartbeat is due."""
        if self._silent_since_s is None:
            self._silent_since_s = anyio.current_time()
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - spreads readers, guards nothing
        await anyio.sleep(min(self._delay_s * spread, self._heartbeat_s))
        self._delay_s = min(self._delay_s * 2, _RETRY_S_MAX)
        due = anyio.current_time() - self._silent_since_s >= self._heartbeat_s
        if due:
            self._silent_since_s = anyio.current_time()
        return due

    def over(self) -> None:
        """Begin anew at the next outage."""
        self._delay_s = _RETRY_S
        self._silent_since_s = None
