"""A store that comes back without what this node wrote or showed is noticed before anything else is sent to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from eventstore import keys
from eventstore.link import ReplyError, passing
from eventstore.receipts import ENDS_MAX, Receipts
from eventstore.recent import APPENDS_MAX, BYTES_MAX, KEPT_S, PAUSE_S, Recent
from eventstore.redis_store import RedisStore, open_store_through
from eventstore.shape import opened
from eventstore.socket_link import open_link
from eventstore.startup import Guard
from eventstore.store import Append, Deployment, Event, HistoryLost, Item, Part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eventstore.endpoint import Endpoint
    from eventstore.link import Link

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=4, id_key=b"key")
RUN = "00000000-0000-8000-8000-000000000001"
TAG = keys.tag_of(RUN, 4)
GRACE_S = 0.05
BEGIN = Part(
    actor=RUN, log=0, events=(Event(b"a", 1), Event(b"b", 2)), feed=0, items=(b"1", b"2"), owner="one", lease_ms=60_000
)
FACT = Part(actor=RUN, log=2, events=(Event(b"c", 1),), feed=2, items=(b"3",), epoch=1)


class Noted:
    """Hears what is lost, and nothing else."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def rung(self, actor: str) -> None: ...

    def work(self, partition: int) -> None: ...

    def granted(self, holder: str) -> None: ...

    def room(self) -> None: ...

    def lost(self, actor: str) -> None:
        self.heard.append(actor)


@asynccontextmanager
async def a_store(where: Endpoint, receipts: Receipts) -> AsyncIterator[tuple[RedisStore, Noted]]:
    async with opened(where) as doors, open_store_through(doors, DEPLOYMENT, "one", receipts=receipts) as store:
        ear = Noted()
        store.listen(ear)
        yield store, ear


async def rolled_back(link: Link, receipts: Receipts | None = None) -> None:
    """Take the last event and its item away, as a promotion does that did not have them yet.

    With *receipts* they were written too long ago to be sent again.
    """
    if receipts is not None:
        receipts.recent = Recent()
    for stream in (keys.log(TAG, RUN), keys.feed(TAG, RUN)):
        kept = await link.call("XRANGE", stream, "-", "2-0")
        await link.call("DEL", stream)
        for number, fields in kept:
            await link.call("XADD", stream, number, *fields)
    await link.call("HSET", keys.heads(TAG, RUN), "l", 2, "w", 2)


async def test_a_server_that_has_everything_loses_nothing(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        async with store.follow(RUN):
            await store.append(Append(command="begin", parts=(BEGIN,)))
            await store.append(Append(command="fact", parts=(FACT,)))
            await receipts.check(link.call, "another")
            assert ear.heard == []


async def test_a_server_that_lost_the_end_is_noticed_by_owner_and_viewer(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        async with store.follow(RUN) as tail:
            await store.append(Append(command="begin", parts=(BEGIN,)))
            await store.append(Append(command="fact", parts=(FACT,)))
            assert await tail.heard(1) is not None
            await rolled_back(link, receipts)
            await receipts.check(link.call, "another")
            assert ear.heard == [RUN]
            with pytest.raises(HistoryLost):
                await tail.heard(1)


async def test_another_event_under_the_same_number_is_a_loss_too(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="fact", parts=(FACT,)))
        await rolled_back(link, receipts)
        await link.call("DEL", keys.log(TAG, RUN))
        for number, command in ((1, "begin"), (2, "begin"), (3, "somebody")):
            await link.call("XADD", keys.log(TAG, RUN), f"{number}-0", "e", "x", "w", 1, "c", command)
        await receipts.check(link.call, "another")
        assert ear.heard == [RUN]


async def test_text_that_nobody_looked_at_is_missed_by_its_owner(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="d1.2", parts=(Part(actor=RUN, feed=2, items=(b"3",), epoch=1),)))
        await receipts.check(link.call, "another")
        assert ear.heard == []
        receipts.recent = Recent()
        await link.call("XDEL", keys.feed(TAG, RUN), "3-0")
        await link.call("HSET", keys.heads(TAG, RUN), "w", 2)
        await receipts.check(link.call, "a third")
        assert ear.heard == [RUN]
        assert store.history() == "a third"


async def test_an_end_is_missed_by_the_node_that_wrote_it_once(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="end", parts=(replace(FACT, ended=True),)))
        await receipts.check(link.call, "another")
        assert ear.heard == []
        await rolled_back(link, receipts)
        await receipts.check(link.call, "a third")
        await receipts.check(link.call, "a fourth")
        assert ear.heard == [RUN]


def test_of_many_ends_the_last_are_remembered() -> None:
    receipts = Receipts(GRACE_S)
    for number in range(ENDS_MAX + 1):
        receipts.ended(str(number), 3, "end")
    assert len(receipts._ended) == ENDS_MAX
    assert "0" not in receipts._ended


async def test_what_is_heard_of_a_shorter_history_hides_no_loss(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        receipts.disowned(RUN)
        receipts.showed(RUN, Item(3, b"3"))
        receipts.showed(RUN, Item(2, b"2"))
        await receipts.check(link.call, "another")
        assert ear.heard == [RUN]


async def test_what_was_erased_or_is_no_longer_looked_at_is_not_missed(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        async with store.follow(RUN):
            await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="end", parts=(replace(FACT, ended=True),)))
        await store.append(Append(command="gone", parts=(Part(actor=RUN, log=3, erase=True),)))
        await receipts.check(link.call, "another")
        assert ear.heard == []


async def test_each_new_history_is_looked_at_once_and_before_anything_else(valkey: Endpoint) -> None:
    seen: list[str] = []

    async def noted(_call: object, replication_id: str) -> None:
        seen.append(replication_id)

    guard = Guard(on_unknown=noted)
    async with open_link(valkey, on_connected=guard), open_link(valkey, on_connected=guard):
        assert len(seen) == 1


async def test_what_was_written_in_the_last_moments_is_written_again_and_nobody_misses_it(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        async with store.follow(RUN):
            await store.append(Append(command="begin", parts=(BEGIN,)))
            await store.append(Append(command="fact", parts=(FACT,)))
            await store.append(Append(command="d1.3", parts=(Part(actor=RUN, feed=3, items=(b"4",), epoch=1),)))
            look, page = await store.look(RUN), await store.page(RUN, 0)
            await link.call("FLUSHALL")
            await receipts.check(link.call, "another")
            again = await store.look(RUN)
            assert again.entries == look.entries
            assert replace(again.heads, lease_ms=0, last_ms=0) == replace(look.heads, lease_ms=0, last_ms=0)
            assert (await store.page(RUN, 0)).items == page.items
            assert ear.heard == []


async def test_what_took_the_place_of_what_was_lost_stays(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="fact", parts=(FACT,)))
        await rolled_back(link)
        await link.call("DEL", keys.log(TAG, RUN))
        for number, command in ((1, "begin"), (2, "begin"), (3, "somebody")):
            await link.call("XADD", keys.log(TAG, RUN), f"{number}-0", "e", "x", "w", 1, "c", command)
        await link.call("HSET", keys.heads(TAG, RUN), "l", 3)
        await receipts.check(link.call, "another")
        assert (await store.look(RUN)).entries[-1].command == "somebody"
        assert ear.heard == [RUN]


async def test_what_several_nodes_wrote_in_turn_is_written_again_whichever_comes_first(valkey: Endpoint) -> None:
    one, two = Receipts(GRACE_S), Receipts(GRACE_S)
    second = Append(command="second", parts=(replace(FACT, log=3, feed=3),))
    async with (
        open_link(valkey) as link,
        a_store(valkey, one) as (first_store, first_ear),
        a_store(valkey, two) as (second_store, second_ear),
    ):
        await link.call("FLUSHALL")
        await first_store.append(Append(command="begin", parts=(BEGIN,)))
        await first_store.append(Append(command="fact", parts=(FACT,)))
        await second_store.append(second)
        look = await first_store.look(RUN)
        await link.call("FLUSHALL")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.check, link.call, "another")
            await anyio.sleep(2 * PAUSE_S)  # the other one comes to it later
            tasks.start_soon(one.check, link.call, "another")
        assert (await first_store.look(RUN)).entries == look.entries
        assert first_ear.heard == second_ear.heard == []


async def test_who_sees_that_something_is_missing_waits_for_the_node_that_wrote_it(valkey: Endpoint) -> None:
    writer, viewer = Receipts(GRACE_S), Receipts(5)
    async with (
        open_link(valkey) as link,
        a_store(valkey, writer) as (store, _),
        a_store(valkey, viewer) as (other, ear),
    ):
        await link.call("FLUSHALL")
        async with other.follow(RUN):
            await store.append(Append(command="begin", parts=(BEGIN,)))
            await store.append(Append(command="fact", parts=(FACT,)))
            await other.page(RUN, 0)
            await rolled_back(link)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(viewer.check, link.call, "another")
                await anyio.wait_all_tasks_blocked()
                await writer.check(link.call, "another")
            assert ear.heard == []


async def test_a_server_that_takes_no_writes_yet_is_met_again_and_not_for_ever(
    valkey: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="fact", parts=(FACT,)))
        await link.call("CONFIG", "SET", "min-replicas-to-write", 1)
        try:
            await receipts.check(link.call, "the same")  # nothing is missing
            await link.call("CONFIG", "SET", "min-replicas-to-write", 0)
            await rolled_back(link)
            await link.call("CONFIG", "SET", "min-replicas-to-write", 1)
            for _ in range(2):
                with pytest.raises(ReplyError, match="NOREPLICAS") as refused:
                    await receipts.check(link.call, "another")
                assert passing(refused.value)
            assert ear.heard == []
            monkeypatch.setattr("eventstore.receipts.PATIENCE_S", 0)
            await receipts.check(link.call, "another")
            assert ear.heard == [RUN]
        finally:
            await link.call("CONFIG", "SET", "min-replicas-to-write", 0)


async def test_an_append_that_a_server_will_not_have_holds_up_nobody(valkey: Endpoint) -> None:
    receipts = Receipts(GRACE_S)
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="fact", parts=(FACT,)))
        await rolled_back(link)
        await link.call("XADD", keys.log(TAG, RUN), "9-0", "beyond", "the head")
        await receipts.check(link.call, "another")
        assert ear.heard == [RUN]


def test_the_last_appends_are_remembered_by_time_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("eventstore.recent.time.monotonic", lambda: now_s)
    recent = Recent()
    text = Append(command="d", parts=(Part(actor=RUN, feed=1, items=(b"x" * 1_000,), epoch=1),))
    for _ in range(APPENDS_MAX + 5):
        recent.wrote(text)
    assert len(recent._written) == APPENDS_MAX
    now_s = KEPT_S + 1
    recent.wrote(text)
    assert len(recent._written) == 1
    large = Append(command="d", parts=(Part(actor=RUN, feed=1, items=(b"x" * BYTES_MAX,), epoch=1),))
    recent.wrote(large)
    recent.wrote(large)
    assert [append for _, append, _ in recent._written] == [large]
