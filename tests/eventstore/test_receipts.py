"""A store that comes back without what this node wrote or showed is noticed before anything else is sent to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from eventstore import keys
from eventstore.receipts import ENDS_MAX, Receipts
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


async def rolled_back(link: Link) -> None:
    """Take the last event and its item away, as a promotion does that did not have them yet."""
    await link.call("XDEL", keys.log(TAG, RUN), "3-0")
    await link.call("XDEL", keys.feed(TAG, RUN), "3-0")
    await link.call("HSET", keys.heads(TAG, RUN), "l", 2, "w", 2)


async def test_a_server_that_has_everything_loses_nothing(valkey: Endpoint) -> None:
    receipts = Receipts()
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        async with store.follow(RUN):
            await store.append(Append(command="begin", parts=(BEGIN,)))
            await store.append(Append(command="fact", parts=(FACT,)))
            await receipts.check(link.call, "another")
            assert ear.heard == []


async def test_a_server_that_lost_the_end_is_noticed_by_owner_and_viewer(valkey: Endpoint) -> None:
    receipts = Receipts()
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        async with store.follow(RUN) as tail:
            await store.append(Append(command="begin", parts=(BEGIN,)))
            await store.append(Append(command="fact", parts=(FACT,)))
            assert await tail.heard(1) is not None
            await rolled_back(link)
            await receipts.check(link.call, "another")
            assert ear.heard == [RUN]
            with pytest.raises(HistoryLost):
                await tail.heard(1)


async def test_another_event_under_the_same_number_is_a_loss_too(valkey: Endpoint) -> None:
    receipts = Receipts()
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="fact", parts=(FACT,)))
        await rolled_back(link)
        await link.call("DEL", keys.log(TAG, RUN))
        for number, command in ((1, "begin"), (2, "begin"), (3, "somebody")):
            await link.call("XADD", keys.log(TAG, RUN), f"{number}-0", "e", "x", "w", 1, "c", command)
        await receipts.check(link.call, "another")
        assert ear.heard == [RUN]


async def test_text_that_nobody_looked_at_is_missed_by_its_owner(valkey: Endpoint) -> None:
    receipts = Receipts()
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="d1.2", parts=(Part(actor=RUN, feed=2, items=(b"3",), epoch=1),)))
        await receipts.check(link.call, "another")
        assert ear.heard == []
        await link.call("XDEL", keys.feed(TAG, RUN), "3-0")
        await link.call("HSET", keys.heads(TAG, RUN), "w", 2)
        await receipts.check(link.call, "a third")
        assert ear.heard == [RUN]
        assert store.history() == "a third"


async def test_an_end_is_missed_by_the_node_that_wrote_it_once(valkey: Endpoint) -> None:
    receipts = Receipts()
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        await store.append(Append(command="end", parts=(replace(FACT, ended=True),)))
        await receipts.check(link.call, "another")
        assert ear.heard == []
        await rolled_back(link)
        await receipts.check(link.call, "a third")
        await receipts.check(link.call, "a fourth")
        assert ear.heard == [RUN]


def test_of_many_ends_the_last_are_remembered() -> None:
    receipts = Receipts()
    for number in range(ENDS_MAX + 1):
        receipts.ended(str(number), 3, "end")
    assert len(receipts._ended) == ENDS_MAX
    assert "0" not in receipts._ended


async def test_what_is_heard_of_a_shorter_history_hides_no_loss(valkey: Endpoint) -> None:
    receipts = Receipts()
    async with open_link(valkey) as link, a_store(valkey, receipts) as (store, ear):
        await link.call("FLUSHALL")
        await store.append(Append(command="begin", parts=(BEGIN,)))
        receipts.disowned(RUN)
        receipts.showed(RUN, Item(3, b"3"))
        receipts.showed(RUN, Item(2, b"2"))
        await receipts.check(link.call, "another")
        assert ear.heard == [RUN]


async def test_what_was_erased_or_is_no_longer_looked_at_is_not_missed(valkey: Endpoint) -> None:
    receipts = Receipts()
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
