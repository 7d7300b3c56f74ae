"""What the Redis store does about a server that pauses, forgets or is full, and what it leaves on it."""

from __future__ import annotations

from collections import deque
from contextlib import AsyncExitStack, aclosing, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from eventstore import comparing, keys
from eventstore.endpoint import beside
from eventstore.fake_link import FakeLink, fake_server, open_fake_link, open_fake_messages
from eventstore.fake_store import open_fake_store
from eventstore.follow import followed
from eventstore.link import PAUSES, ConnectionLost, Link, ReplyError, Script, Word
from eventstore.redis_store import RedisStore, open_redis_store, open_store_over
from eventstore.store import (
    Append,
    Caps,
    Claim,
    Deployment,
    Event,
    HistoryLost,
    Lost,
    Part,
    Recorded,
    Snapshot,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from eventstore.endpoint import Endpoint

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=4, id_key=b"key")
RUN = "00000000-0000-8000-8000-000000000001"
TAG = keys.tag_of(RUN, 4)
HOUR_MS = 3_600_000
EVENTS = (Event(b"accepted", 1), Event(b"started", 2))
BEGIN = Part(actor=RUN, log=0, events=EVENTS, feed=0, items=(b"1", b"2"), owner="one", lease_ms=HOUR_MS)
DELTA = Part(actor=RUN, feed=2, items=(b"3",), epoch=1)
FACT = Part(actor=RUN, log=2, events=(Event(b"fact"),))
END = replace(FACT, ended=True)
BURY = Part(actor=RUN, log=2, erase=True, epitaph=b"here lies")


def one(command: str, part: Part) -> Append:
    return Append(command=command, parts=(part,))


class Faulty:
    """A link on which the next calls fail as *faults* say: before they are sent, or with their reply lost."""

    def __init__(self, link: FakeLink) -> None:
        self.link = link
        self.faults: deque[tuple[str, Exception]] = deque()
        self.ahead: Callable[[], Any] | None = None
        self.between: Callable[[], Any] | None = None

    async def call(self, *words: Word) -> Any:
        return await self._through(lambda: self.link.call(*words))

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        return await self._through(lambda: self.link.script(script, keys, args))

    def primaries(self) -> Sequence[Link]:
        return self.link.primaries()

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        if self.ahead is not None:
            ahead, self.ahead = self.ahead, None
            await ahead()
        if self.between is not None:
            between, self.between = self.between, None
            first = await self.link.pipeline(commands[:1])
            await between()
            return first + await self.link.pipeline(commands[1:])
        replies: list[Any] = await self._through(lambda: self.link.pipeline(commands))
        return replies

    async def _through(self, call: Callable[[], Any]) -> Any:
        when, fault = self.faults.popleft() if self.faults else ("", None)
        reply = await call() if when != "before" else None
        if fault is not None:
            raise fault
        return reply


class Opened:
    def __init__(self, store: RedisStore, link: Faulty) -> None:
        self.store = store
        self.link = link


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    """A store on a fake server whose every connection is the same faulty one."""
    server = fake_server()
    async with AsyncExitStack() as stack:
        link = Faulty(await stack.enter_async_context(open_fake_link(server)))

        opening = open_store_over(
            lambda: nullcontext(link),
            lambda hear, _: open_fake_messages(server, hear),
            DEPLOYMENT,
            "one",
            patience_s=0.6,
        )
        yield Opened(await stack.enter_async_context(opening), link)


@pytest.mark.parametrize("part", [DELTA, FACT, END, replace(FACT, feed=2, items=(b"3",)), BURY])
@pytest.mark.parametrize("times", [1, 3])
async def test_an_append_whose_reply_is_lost_is_sent_again_and_written_once(
    opened: Opened, part: Part, times: int
) -> None:
    await opened.store.append(one("begin", BEGIN))
    opened.link.faults.extend([("after", ConnectionLost("gone"))] * times)
    outcome = await opened.store.append(one("c", part))
    assert isinstance(outcome, Recorded)
    assert outcome.repeated
    assert (await opened.store.look(RUN)).heads == outcome.parts[0].heads


@pytest.mark.parametrize("code", sorted(PAUSES))
async def test_a_partition_that_pauses_is_asked_again(opened: Opened, code: str) -> None:
    opened.link.faults.extend([("before", ReplyError(f"{code} wait"))] * 3)
    assert isinstance(await opened.store.append(one("begin", BEGIN)), Recorded)
    opened.link.faults.append(("before", ReplyError(f"{code} wait")))
    assert (await opened.store.look(RUN)).heads.log == 2


async def test_after_its_patience_a_store_is_unavailable_and_the_append_may_be_sent_again(opened: Opened) -> None:
    opened.link.faults.extend([("after", ConnectionLost("gone"))] * 1000)
    with pytest.raises(Unavailable) as unavailable:
        await opened.store.append(one("begin", BEGIN))
    assert unavailable.value.retry_after_ms > 0
    opened.link.faults.clear()
    outcome = await opened.store.append(one("begin", BEGIN))
    assert isinstance(outcome, Recorded)
    assert outcome.repeated


@pytest.mark.parametrize("asks", [
    lambda store: store.look(RUN),
    lambda store: store.look(RUN, 1),
    lambda store: store.look(RUN, snapshot=True),
    lambda store: store.page(RUN, 0),
    lambda store: store.save(RUN, Snapshot(1, b"")),
    lambda store: store.renew(0, {RUN: 1}, 1),
    lambda store: store.sweep(0),
    lambda store: store.settle(RUN, "permit"),
    lambda store: store.settle(RUN, "usage", 1),
    lambda store: store.prune(0, 1),
    lambda store: store.take(Claim("p", "h", "one", "ann"), Caps(1), 1),
    lambda store: store.begun(Claim("p", "h", "one", "ann")),
    lambda store: store.give("p", "h", Caps(1)),
])  # fmt: skip
async def test_whatever_is_asked_waits_and_then_says_unavailable(opened: Opened, asks: Callable[..., Any]) -> None:
    opened.link.faults.extend([("before", ReplyError("LOADING wait"))] * 2)
    await asks(opened.store)
    opened.link.faults.extend([("before", ConnectionLost("gone"))] * 1000)
    with pytest.raises(Unavailable):
        await asks(opened.store)


async def test_an_error_that_is_no_pause_is_nobodys_to_hide(opened: Opened) -> None:
    opened.link.faults.append(("before", ReplyError("WRONGTYPE no")))
    with pytest.raises(ReplyError):
        await opened.store.append(one("begin", BEGIN))


async def test_an_error_inside_a_pipeline_counts_as_one(opened: Opened) -> None:
    await opened.link.link.call("SET", keys.log(TAG, RUN), "x")
    await opened.link.link.call("HSET", keys.heads(TAG, RUN), "l", 1)
    with pytest.raises(ReplyError):
        await opened.store.look(RUN)


async def test_an_erasure_between_two_replies_is_no_loss(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))

    async def erase() -> None:
        outcome = await opened.store.append(one("erase", Part(actor=RUN, log=2, erase=True)))
        assert isinstance(outcome, Recorded)

    opened.link.between = erase
    look = await opened.store.look(RUN)
    assert (look.heads.erased, list(look.entries)) == (True, [])


@pytest.mark.parametrize("when", ["ahead", "between"])
async def test_an_epitaph_that_comes_while_a_snapshot_is_read_is_told_for_what_it_is(opened: Opened, when: str) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.store.save(RUN, Snapshot(2, b"fold"))
    setattr(opened.link, when, lambda: opened.store.append(one("bury", BURY)))
    look = await opened.store.look(RUN, snapshot=True)
    if look.heads.erased:
        assert (look.snapshot, list(look.entries)) == (Snapshot(2, b"here lies"), [])
    else:  # it came after the heads were read, and nothing of the log was asked for
        assert (look.snapshot, list(look.entries)) == (Snapshot(2, b"fold"), [])
    assert (await opened.store.look(RUN, snapshot=True)).snapshot == Snapshot(2, b"here lies")


async def test_an_erasure_carried_out_twice_leaves_one_epitaph(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    opened.link.faults.extend([("after", ConnectionLost("gone"))] * 1000)
    with pytest.raises(Unavailable):
        await opened.store.append(one("bury", BURY))
    opened.link.faults.clear()
    await opened.store.save(RUN, Snapshot(2, b"fold"))
    outcome = await opened.store.append(one("bury", BURY))
    assert isinstance(outcome, Recorded)
    assert outcome.repeated
    assert await opened.link.call("GET", keys.snapshot(TAG, RUN)) == b"2:here lies"
    assert await opened.link.call("EXISTS", keys.log(TAG, RUN), keys.feed(TAG, RUN)) == 0


async def test_a_trim_unlinks_the_feed_alone(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.store.append(one("end", END))
    opened.link.faults.append(("after", ConnectionLost("gone")))
    outcome = await opened.store.append(one("trim", Part(actor=RUN, log=3, trim=True)))
    assert isinstance(outcome, Recorded)
    assert (outcome.repeated, outcome.parts[0].heads.oldest) == (True, 3)
    assert await opened.link.call("EXISTS", keys.feed(TAG, RUN)) == 0
    assert await opened.link.call("EXISTS", keys.log(TAG, RUN)) == 1


async def test_a_trim_between_the_replies_of_a_page_is_no_loss(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.store.append(one("end", END))
    opened.link.between = lambda: opened.store.append(one("trim", Part(actor=RUN, log=3, trim=True)))
    page = await opened.store.page(RUN, 0)
    assert (page.heads.oldest, list(page.items)) == (3, [])


async def test_an_erasure_between_the_replies_of_a_page_is_no_loss(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    opened.link.between = lambda: opened.store.append(one("erase", Part(actor=RUN, log=2, erase=True)))
    page = await opened.store.page(RUN, 0)
    assert (page.heads.erased, list(page.items)) == (True, [])


async def test_what_is_written_between_two_replies_is_not_shown(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    opened.link.between = lambda: opened.store.append(one("f", replace(FACT, feed=2, items=(b"3",))))
    look = await opened.store.look(RUN)
    assert [look.heads.log, *(entry.version for entry in look.entries)] == [2, 1, 2]
    opened.link.between = lambda: opened.store.append(one("d", replace(DELTA, feed=3)))
    page = await opened.store.page(RUN, 0)
    assert [page.heads.feed, *(item.number for item in page.items)] == [3, 1, 2, 3]


async def test_an_entry_beyond_the_head_does_not_exist(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.link.call("XADD", keys.log(TAG, RUN), "3-0", "e", "x", "w", 2)
    await opened.link.call("XADD", keys.feed(TAG, RUN), "3-0", "i", "x")
    assert len((await opened.store.look(RUN)).entries) == 2
    assert len((await opened.store.look(RUN, 1)).entries) == 1
    assert len((await opened.store.page(RUN, 0)).items) == 2


@pytest.mark.parametrize("missing", ["1-0", "2-0"])
async def test_a_single_missing_entry_is_lost_history(opened: Opened, missing: str) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.link.call("XDEL", keys.log(TAG, RUN), missing)
    await opened.link.call("XDEL", keys.feed(TAG, RUN), missing)
    with pytest.raises(HistoryLost):
        await opened.store.look(RUN)
    with pytest.raises(HistoryLost):
        await opened.store.page(RUN, 0)


async def test_a_snapshot_of_a_future_that_was_lost_is_not_used(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.link.call("SET", keys.snapshot(TAG, RUN), b"9:fold")
    look = await opened.store.look(RUN, snapshot=True)
    assert (look.snapshot, len(look.entries)) == (None, 2)


async def test_streams_without_heads_are_not_written_over(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    await opened.link.call("DEL", keys.heads(TAG, RUN))
    assert isinstance(await opened.store.append(one("new", BEGIN)), Lost)
    assert isinstance(await opened.store.append(one("new", replace(BEGIN, feed=None))), Lost)


async def test_a_caller_who_leaves_stops_waiting_and_the_append_is_still_written(opened: Opened) -> None:
    await opened.store.append(one("begin", BEGIN))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await opened.store.append(one("d", DELTA))
    outcome = await opened.store.append(one("d", DELTA))
    assert isinstance(outcome, Recorded)


async def test_the_owner_of_a_run_needs_no_subscription_to_follow_it(valkey: Endpoint) -> None:
    async with open_redis_store(valkey, DEPLOYMENT, "one") as store:
        link = store._commands
        await link.call("FLUSHALL")
        channel = keys.items_channel(TAG, RUN)

        async def heard_by() -> int:
            return int((await link.call("PUBSUB", "NUMSUB", channel))[1])

        async with store.follow(RUN):
            assert await heard_by() == 1
            await store.append(one("begin", BEGIN))
            with anyio.fail_after(10):
                while await heard_by() != 0:
                    pass
            await store.append(one("back", Part(actor=RUN, log=2, epoch=1, owner="")))
            with anyio.fail_after(10):
                while await heard_by() != 1:
                    pass


async def test_a_full_server_takes_ends_and_renewals_and_refuses_the_rest(valkey: Endpoint) -> None:
    async with open_redis_store(valkey, DEPLOYMENT, "one", patience_s=0.1) as store:
        link = store._commands
        await link.call("FLUSHALL")
        await store.append(one("begin", BEGIN))
        await link.call("CONFIG", "SET", "maxmemory", "1")
        try:
            with pytest.raises(Unavailable):
                await store.append(one("d", DELTA))
            with pytest.raises(Unavailable):
                await store.append(one("b", replace(BEGIN, actor="00000000-other")))
            assert (await store.renew(0, {RUN: 1}, HOUR_MS))[RUN] is not None
            assert isinstance(await store.append(one("end", END)), Recorded)
            assert isinstance(await store.append(one("trim", Part(actor=RUN, log=3, trim=True))), Recorded)
            assert isinstance(await store.append(one("bury", replace(BURY, log=3))), Recorded)
        finally:
            await link.call("CONFIG", "SET", "maxmemory", "0")


async def test_a_server_that_forgot_its_scripts_is_told_them_again(valkey: Endpoint) -> None:
    async with open_redis_store(valkey, DEPLOYMENT, "one") as store:
        await store._commands.call("FLUSHALL")
        await store.append(one("begin", BEGIN))
        await store._commands.call("SCRIPT", "FLUSH")
        assert isinstance(await store.append(one("d", DELTA)), Recorded)
        assert len((await store.page(RUN, 0)).items) == 3


async def test_a_reader_whose_messages_are_lost_finds_all_of_it_by_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "COMPARED_S", 0.02)
    server = fake_server()
    deaf = open_store_over(
        lambda: open_fake_link(server), lambda *_: open_fake_messages(server, lambda *_: None), DEPLOYMENT, "two"
    )
    async with deaf as store, open_fake_store(server, DEPLOYMENT, "one") as other:
        await other.append(one("begin", BEGIN))
        async with aclosing(followed(store, RUN, 0, heartbeat_s=60)) as reader:
            with anyio.fail_after(5):
                assert [item.data for item in await anext(reader)] == [b"1", b"2"]
                await other.append(one("d", DELTA))
                assert [item.data for item in await anext(reader)] == [b"3"]
                await other.append(one("e", replace(END, feed=3, items=(b"4",))))
                assert [item.data async for items in reader for item in items] == [b"4"]


class Hesitant:
    """A subscribing connection whose confirmations can be held back."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.confirms = anyio.Event()
        self.confirms.set()

    async def subscribe(self, channel: str) -> None:
        self.asked.append(channel)
        await self.confirms.wait()

    async def unsubscribe(self, channel: str) -> None: ...


async def test_who_lost_a_run_is_told_at_once_whatever_the_subscribing_connection_does() -> None:
    server, messages = fake_server(), Hesitant()
    hesitant = open_store_over(lambda: open_fake_link(server), lambda *_: nullcontext(messages), DEPLOYMENT, "one")
    async with hesitant as store, open_fake_store(server, DEPLOYMENT, "two") as other:
        await store.append(one("begin", replace(BEGIN, lease_ms=0)))
        async with store.follow(RUN) as tail:
            messages.confirms = anyio.Event()
            await other.append(one("claim", Part(actor=RUN, log=2, epoch=1, owner="two", lease_ms=HOUR_MS)))
            with anyio.fail_after(2):
                assert await store.renew(store.partition_of(RUN), {RUN: 1}, HOUR_MS) == {RUN: None}
            with anyio.fail_after(2):
                while keys.items_channel(TAG, RUN) not in messages.asked:
                    await anyio.lowlevel.checkpoint()
            await other.append(one("d", replace(DELTA, epoch=2)))
            messages.confirms.set()
            heard = await tail.heard(2)
            assert heard is not None
            assert heard.gap


async def test_time_stands_still_where_redis_time_goes_back_but_not_for_ever(
    valkey: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis_store(valkey, DEPLOYMENT, "one") as store:
        before_ms, store._ahead_ms = store.now_ms(), store._ahead_ms - 30_000
        assert before_ms <= store.now_ms() < before_ms + 1_000
        assert not caplog.records
        store._ahead_ms -= 3_600_000
        assert store.now_ms() < before_ms - 3_600_000
        assert "Redis time went back" in caplog.text


async def test_a_comparison_that_fails_ends_neither_the_store_nor_the_ones_after_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "COMPARED_S", 0.02)
    asked, again = list[int](), anyio.Event()

    async def refused(*commands: Sequence[Word]) -> Sequence[Any]:
        asked.append(len(commands))
        if len(asked) == 3:
            again.set()
        raise ReplyError("NOPERM no") if len(asked) == 1 else Unavailable("a pause")

    comparing_on = beside(lambda: comparing.keep_comparing(opened.store.hub, lambda _: TAG, refused))
    async with opened.store.follow(RUN), comparing_on:
        with anyio.fail_after(5):
            await again.wait()
    assert asked == [1] * len(asked)
