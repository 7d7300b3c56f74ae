"""Following: a reader sees each item once and in order, whatever was lost, late or double on the way."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.follow import CursorAhead, CursorTooOld, Hub, followed, read_message
from eventstore.link import ConnectionLost
from eventstore.store import Heads, Heard, HistoryLost, Item, Page, Store, Tail, Unavailable

pytestmark = pytest.mark.anyio

A, B = "a" * 8, "b" * 8


class Channels:
    """A subscribing connection whose confirmations can be held back, and what it was told."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.told: list[str] = []
        self.confirms = asyncio.Event()
        self.confirms.set()
        self.broken = False

    async def subscribe(self, channel: str) -> None:
        self.told.append(f"+{channel}")
        self.open.add(channel)
        await self.confirms.wait()
        if self.broken:
            raise ConnectionLost("gone")

    async def unsubscribe(self, channel: str) -> None:
        self.told.append(f"-{channel}")
        self.open.discard(channel)


def message(first: int, head: int, items: Sequence[bytes], *, ended: bool = False) -> bytes:
    body = b"".join(b"%d:" % len(item) + item for item in items)
    return b"%d|%d|%d|%d\n" % (first, head, ended, len(items)) + body


class Feed:
    """One actor's feed as a store would serve it, with a hub in front."""

    def __init__(self, *, compared: bool = False) -> None:
        self.channels = Channels()
        self.hub = Hub(self.channels, "c:{}".format, compared=compared)
        self.items: list[bytes] = []
        self.ended = False
        self.oldest = 1
        self.fails = 0
        self.reads = 0
        self.page_items = 3
        self.lacks = 0
        """How often a replica still lacks the end."""

    def append(self, *items: bytes, heard: bool = True, ended: bool = False) -> None:
        first = len(self.items) + 1
        self.items += items
        self.ended = ended
        if heard:
            self.hub.push(A, first, items, len(self.items), ended)

    def follow(self, actor: str) -> AbstractAsyncContextManager[Tail]:
        return self.hub.tail(actor)

    async def page(self, _: str, after: int) -> Page:
        self.reads += 1
        await anyio.lowlevel.checkpoint()
        if self.fails:
            self.fails -= 1
            raise Unavailable("paused")
        heads = Heads(feed=len(self.items), oldest=self.oldest, ended=self.ended)
        some = [Item(number, data) for number, data in enumerate(self.items, 1) if number > after]
        return Page(heads, some[: self.page_items] if after + 1 >= self.oldest else [])

    async def confirm_end(self, _: str) -> None:
        self.lacks -= 1
        if self.lacks >= 0:
            raise Unavailable("uncertain")

    def follower(self, after: int = 0, heartbeat_s: float = 5) -> AsyncGenerator[Sequence[Item]]:
        return followed(cast("Store", self), A, after, heartbeat_s=heartbeat_s)


async def taken(reader: AsyncGenerator[Sequence[Item]], most: int = 1_000) -> list[Item]:
    """The next *most* items, or all to the end."""
    items: list[Item] = []
    while len(items) < most:
        with anyio.fail_after(5):
            try:
                items += await anext(reader)
            except StopAsyncIteration:
                break
    return items


def numbers(heard: Heard | None) -> list[int]:
    assert heard is not None
    return [item.number for item in heard.items]


async def test_a_tail_hands_on_all_that_came_since_it_was_asked() -> None:
    hub = Hub(Channels(), str)
    async with hub.tail(A) as tail:
        assert await tail.heard(0.01) is None
        hub.push(A, 4, [b"d", b"e"], 5, False)
        hub.push(B, 1, [b"other"], 1, False)
        hub.push(A, 6, [b"f"], 6, True)
        assert await tail.heard(1) == Heard([Item(4, b"d"), Item(5, b"e"), Item(6, b"f")], 6, True)
        assert await tail.heard(0.01) is None


async def test_a_waiting_tail_is_woken() -> None:
    hub = Hub(Channels(), str)
    async with hub.tail(A) as tail:
        waiting = asyncio.ensure_future(tail.heard(5))
        await asyncio.sleep(0)
        hub.push(A, 1, [b"a"], 1, False)
        assert numbers(await waiting) == [1]
        waiting = asyncio.ensure_future(tail.heard(5))
        await asyncio.sleep(0)
        waiting.cancel()
        hub.push(A, 2, [b"b"], 2, False)
        assert numbers(await tail.heard(5)) == [2]  # who left took nothing along


async def test_old_and_double_items_are_dropped_and_a_gap_says_to_read() -> None:
    hub = Hub(Channels(), str)
    async with hub.tail(A) as tail:
        hub.push(A, 1, [b"a", b"b"], 2, False)
        hub.push(A, 1, [b"a"], 1, False)
        hub.push(A, 2, [b"b", b"c"], 3, False)
        assert numbers(await tail.heard(1)) == [1, 2, 3]
        hub.push(A, 3, [b"c"], 3, False)
        assert await tail.heard(0.01) is None
        hub.push(A, 4, [b"d"], 4, False)
        hub.push(A, 6, [b"f"], 6, False)
        hub.push(A, 7, [b"g"], 7, False)
        assert await tail.heard(1) == Heard([], 7, False, gap=True)
        hub.push(A, 8, [b"h"], 8, False)
        assert numbers(await tail.heard(1)) == [8]


async def test_an_append_too_large_to_travel_and_one_without_items_both_wake() -> None:
    hub = Hub(Channels(), str)
    async with hub.tail(A) as tail:
        hub.push(A, 1, [b"a"], 1, False)
        hub.hear(A, message(2, 3, []))
        assert await tail.heard(1) == Heard([], 3, False, gap=True)
        hub.hear(A, message(0, 3, []))
        assert await tail.heard(1) == Heard([], 3, False)
        hub.push(A, 4, [b"d"], 4, False)
        hub.hear(A, message(0, 4, [], ended=True))
        heard = await tail.heard(1)
        assert (numbers(heard), heard and heard.ended) == ([4], True)


async def test_a_reader_that_falls_behind_loses_its_buffer_and_not_its_place() -> None:
    hub = Hub(Channels(), str, tail_bytes_max=1_000)
    async with hub.tail(A) as slow, hub.tail(A) as quick:
        for number in range(1, 30):
            hub.push(A, number, [b"x" * 100], number, False)
            assert numbers(await quick.heard(1)) == [number]
        assert await slow.heard(1) == Heard([], 29, False, gap=True)
        hub.push(A, 30, [b"x"], 30, False)
        assert numbers(await slow.heard(1)) == [30]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(1, 2**60), st.booleans())
def test_a_message_is_read_as_it_was_written(items: list[bytes], first: int, ended: bool) -> None:  # noqa: FBT001
    assert read_message(message(first, first + 9, items, ended=ended)) == (first, first + 9, ended, items)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_are_a_value_error(data: bytes) -> None:
    try:
        read_message(data)
    except ValueError:
        return
    assert data.count(b"|") == 3


async def test_something_else_under_a_known_number_sends_the_reader_to_the_feed() -> None:
    hub = Hub(Channels(), str)
    async with hub.tail(A) as tail:
        hub.push(A, 1, [b"a", b"b"], 2, False)
        hub.push(A, 2, [b"B", b"c"], 3, False)
        assert await tail.heard(1) == Heard([], 2, False, gap=True)
        hub.push(A, 2, [b"B", b"c"], 3, False)
        assert numbers(await tail.heard(1)) == [3]


async def test_a_message_that_cannot_be_read_sends_readers_to_the_feed() -> None:
    hub = Hub(Channels(), str)
    async with hub.tail(A) as tail:
        hub.hear(A, b"1|1|0|1\n5:abc")
        assert await tail.heard(1) == Heard([], 0, False, gap=True)
    hub.hear(A, b"nonsense to nobody")


async def test_a_channel_is_open_from_its_first_reader_to_its_last() -> None:
    channels = Channels()
    hub = Hub(channels, "c:{}".format)
    async with hub.tail(A):
        async with hub.tail(A), hub.tail(B):
            assert channels.open == {f"c:{A}", f"c:{B}"}
        assert channels.open == {f"c:{A}"}
    assert channels.open == set()
    assert not hub._tails


async def test_a_reader_enters_only_once_the_server_confirmed_and_misses_nothing_meanwhile() -> None:
    channels = Channels()
    channels.confirms.clear()
    hub = Hub(channels, "c:{}".format)
    entered = anyio.Event()

    async def enter() -> None:
        async with hub.tail(A) as tail:
            entered.set()
            assert numbers(await tail.heard(1)) == [1]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        assert not entered.is_set()
        hub.push(A, 1, [b"a"], 1, False)
        channels.confirms.set()
    assert entered.is_set()


async def test_a_reader_that_leaves_before_it_is_confirmed_leaves_no_channel() -> None:
    channels = Channels()
    channels.confirms.clear()
    hub = Hub(channels, "c:{}".format)
    with anyio.move_on_after(0.01):
        async with hub.tail(A):
            pytest.fail("nothing was confirmed")
    assert channels.open == set()
    assert not hub._tails


async def test_closing_and_opening_at_once_ends_with_an_open_channel() -> None:
    channels = Channels()
    hub = Hub(channels, "c:{}".format)

    async def visit(turns: int) -> None:
        for _ in range(turns):
            async with hub.tail(A):
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for turns in range(1, 20):
            tasks.start_soon(visit, turns)
        await anyio.lowlevel.checkpoint()
        async with hub.tail(A):
            for _ in range(60):
                assert channels.open == {f"c:{A}"}
                await anyio.lowlevel.checkpoint()
    assert channels.open == set()


async def test_what_this_node_owns_needs_no_channel() -> None:
    channels = Channels()
    hub = Hub(channels, "c:{}".format)
    await hub.own(A)
    async with hub.tail(A) as tail:
        assert channels.open == set()
        hub.nudge(A)
        assert await tail.heard(1) == Heard([], 0, False, gap=True)
        hub.disown(A)
        await hub.rejoin(A)
        assert channels.open == {f"c:{A}"}
        assert await tail.heard(1) == Heard([], 0, False, gap=True)
        await hub.own(A)
        assert channels.open == set()
        channels.broken = True
        hub.disown(A)
        await hub.rejoin(A)  # the reconnect will subscribe, and say that there was a gap
        hub.gap()
        assert await tail.heard(1) == Heard([], 0, False, gap=True)


async def test_a_server_that_does_not_confirm_is_unavailable() -> None:
    channels = Channels()
    channels.broken = True
    with pytest.raises(Unavailable):
        async with Hub(channels, str).tail(A):
            pass
    assert channels.open == set()


async def test_a_reader_is_sent_what_there_is_and_then_what_comes() -> None:
    feed = Feed()
    feed.append(*(b"%d" % number for number in range(1, 9)))
    async with aclosing(feed.follower(after=2)) as reader:
        assert [item.number for item in await taken(reader, 6)] == [3, 4, 5, 6, 7, 8]
        reads = feed.reads
        feed.append(b"9")
        feed.append(b"10", ended=True)
        assert await taken(reader) == [Item(9, b"9"), Item(10, b"10")]
        assert feed.reads == reads  # what was heard needs no reading
    assert feed.channels.open == set()


async def test_the_cursor_at_the_head_of_an_ended_one_is_the_end() -> None:
    feed = Feed()
    feed.append(b"1", ended=True)
    async with aclosing(feed.follower(after=1)) as reader:
        assert await taken(reader) == []


@pytest.mark.parametrize("heard", [True, False])
async def test_the_last_items_come_once_the_end_is_kept(heard: bool) -> None:  # noqa: FBT001 - both ways
    feed = Feed()
    feed.append(b"a")
    async with aclosing(feed.follower(heartbeat_s=0.02)) as reader:
        assert [item.data for item in await anext(reader)] == [b"a"]
        feed.lacks = 2
        feed.append(b"b", b"c", heard=heard, ended=True)
        assert [item.data for item in await taken(reader)] == [b"b", b"c"]
    assert feed.lacks == -1


async def test_an_end_that_was_lost_before_it_was_told_is_followed_by_another() -> None:
    feed = Feed()
    feed.append(b"a")
    async with aclosing(feed.follower()) as reader:
        assert [item.data for item in await anext(reader)] == [b"a"]
        feed.lacks = 1
        feed.append(b"b", ended=True)
        feed.items, feed.ended = [b"a"], False  # of a replica that was promoted
        feed.append(b"other", heard=False, ended=True)
        assert [item.data for item in await taken(reader)] == [b"other"]


async def test_an_end_without_items_is_noticed() -> None:
    feed = Feed()
    feed.append(b"1")
    async with aclosing(feed.follower()) as reader:
        assert len(await taken(reader, 1)) == 1
        feed.append(ended=True)
        assert await taken(reader) == []


async def test_a_cursor_that_does_not_fit_is_refused() -> None:
    feed = Feed()
    feed.append(b"1", b"2", b"3")
    with pytest.raises(CursorAhead) as ahead:
        await taken(feed.follower(after=4))
    assert ahead.value.head == 3
    feed.oldest = 3
    with pytest.raises(CursorTooOld) as old:
        await taken(feed.follower(after=1))
    assert old.value.oldest == 3
    assert [item.number for item in await taken(feed.follower(after=2), 1)] == [3]


async def test_what_nobody_heard_is_found_at_the_heartbeat() -> None:
    feed = Feed()
    async with aclosing(feed.follower(heartbeat_s=0.02)) as reader:
        assert await anext(reader) == ()  # silence
        feed.append(b"1", b"2", heard=False)
        assert len(await taken(reader, 2)) == 2
        feed.append(b"3", heard=False)
        feed.append(b"4")
        assert [item.number for item in await taken(reader, 2)] == [3, 4]


async def test_where_heads_are_compared_a_silent_reader_asks_nothing_and_hears_what_it_missed() -> None:
    feed = Feed(compared=True)
    feed.append(b"1")
    async with aclosing(feed.follower(heartbeat_s=0.02)) as reader:
        assert await anext(reader) == [Item(1, b"1")]
        reads = feed.reads
        feed.hub.compare(A, 1, ended=False)
        assert [await anext(reader) for _ in range(3)] == [(), (), ()]
        assert feed.reads == reads
        for _ in range(3):  # the log grows, and the feed does not
            feed.append()
            await anyio.lowlevel.checkpoint()
        assert await anext(reader) == ()
        assert feed.reads == reads
        feed.append(b"2", heard=False)
        feed.hub.compare(A, 2, ended=False)
        assert await anext(reader) == [Item(2, b"2")]
        feed.append(b"3", heard=False, ended=True)
        feed.hub.compare(A, 3, ended=True)
        assert await taken(reader) == [Item(3, b"3")]


async def test_a_feed_that_fell_behind_its_readers_is_no_feed_of_theirs() -> None:
    feed = Feed(compared=True)
    feed.append(b"1", b"2")
    async with aclosing(feed.follower(heartbeat_s=5)) as reader:
        assert len(await taken(reader, 2)) == 2
        feed.append(b"3")
        assert len(await taken(reader, 1)) == 1
        del feed.items[1:]
        feed.hub.compare(A, 1, ended=False)
        with pytest.raises(HistoryLost):
            await anext(reader)


async def test_an_outage_is_a_pause_with_heartbeats() -> None:
    feed = Feed()
    feed.append(b"1", ended=True)
    feed.fails = 5
    ticks = 0
    async with aclosing(feed.follower(heartbeat_s=0.03)) as reader:
        async for items in reader:
            if items:
                assert items == [Item(1, b"1")]
            else:
                ticks += 1
    assert ticks > 0
    assert feed.fails == 0


async def test_an_outage_at_the_beginning_is_a_pause_too() -> None:
    feed = Feed()
    feed.append(b"1", ended=True)
    feed.channels.broken = True
    async with aclosing(feed.follower(heartbeat_s=0.02)) as reader:
        assert await anext(reader) == ()
        feed.channels.broken = False
        assert await taken(reader) == [Item(1, b"1")]


async def test_every_reader_sees_every_item_once_whatever_was_heard() -> None:
    feed = Feed()
    seen: list[list[Item]] = []

    async def read() -> None:
        async with aclosing(feed.follower(heartbeat_s=0.05)) as reader:
            seen.append(await taken(reader, 10_000))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(read)
        for number in range(1, 301):
            feed.append(b"%d" % number, heard=number % 7 != 0, ended=number == 300)
            if number % 11 == 0:
                feed.hub.hear(A, message(number, number, [b"%d" % number]))  # heard twice
            if number % 3 == 0:
                await anyio.lowlevel.checkpoint()
    assert seen == [[Item(number, b"%d" % number) for number in range(1, 301)]] * 20


async def test_a_feed_shorter_than_what_was_sent_is_a_lost_history_and_no_wrong_cursor() -> None:
    feed = Feed()
    async with aclosing(feed.follower()) as reader:
        feed.append(b"a", b"b")
        assert len(await taken(reader, 2)) == 2
        feed.items.pop()
        feed.hub.gap()
        with pytest.raises(HistoryLost):
            await taken(reader)


async def test_what_is_read_after_a_loss_is_not_sent() -> None:
    feed = Feed()
    async with aclosing(feed.follower(heartbeat_s=0.01)) as reader:
        feed.append(b"a")
        assert len(await taken(reader, 1)) == 1
        assert await anext(reader) == ()
        feed.append(b"b", heard=False)
        feed.hub.lose(A)
        with pytest.raises(HistoryLost):
            await taken(reader)


async def test_a_reader_that_was_shown_what_another_history_has_not_is_told_and_shown_nothing_of_that() -> None:
    """A primary that was replaced and does not know it yet publishes what its successor never had."""
    feed = Feed()
    feed.append(b"a")
    async with aclosing(feed.follower()) as reader:
        assert await taken(reader, 1) == [Item(1, b"a")]
        feed.hub.push(A, 2, [b"lost"], 2, False)
        assert await taken(reader, 1) == [Item(2, b"lost")]
        feed.append(b"b", b"c", heard=False)
        feed.hub.gap()
        with pytest.raises(HistoryLost):
            await anext(reader)


@pytest.mark.parametrize("news", [(3, [b"c"]), (2, [b"b", b"c"])])
async def test_a_reader_meets_another_history_in_its_first_message(news: tuple[int, list[bytes]]) -> None:
    feed = Feed()
    feed.append(b"a")
    async with aclosing(feed.follower()) as reader:
        assert await taken(reader, 1) == [Item(1, b"a")]
        feed.hub.push(A, 2, [b"lost"], 2, False)
        assert await taken(reader, 1) == [Item(2, b"lost")]
        feed.append(b"b", b"c", heard=False)
        feed.hub.push(A, *news, 3, False)
        feed.hub.gap()
        with pytest.raises(HistoryLost):
            await anext(reader)


async def test_an_end_under_a_number_that_was_shown_as_something_else_is_no_end() -> None:
    feed = Feed()
    feed.append(b"a")
    async with aclosing(feed.follower()) as reader:
        assert await taken(reader, 1) == [Item(1, b"a")]
        feed.hub.push(A, 2, [b"lost"], 2, False)
        assert await taken(reader, 1) == [Item(2, b"lost")]
        feed.append(b"the end", ended=True)
        with pytest.raises(HistoryLost):
            await anext(reader)


async def test_an_item_that_fills_a_page_is_looked_at_and_gone_beyond() -> None:
    feed = Feed()
    feed.page_items = 1
    feed.append(b"a")
    async with aclosing(feed.follower()) as reader:
        assert await taken(reader, 1) == [Item(1, b"a")]
        feed.append(b"b", b"c", heard=False, ended=True)
        feed.hub.gap()
        assert await taken(reader) == [Item(2, b"b"), Item(3, b"c")]


async def test_what_was_shown_and_trimmed_since_is_not_looked_for() -> None:
    feed = Feed()
    feed.append(b"a", b"b")
    async with aclosing(feed.follower()) as reader:
        assert await taken(reader, 2) == [Item(1, b"a"), Item(2, b"b")]
        feed.oldest = 3
        feed.append(b"c", heard=False, ended=True)
        feed.hub.gap()
        assert await taken(reader) == [Item(3, b"c")]
