"""A store on a cluster: what a moved slot, a failover and a forgotten script do to who writes, reads and follows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from eventstore import keys, startup
from eventstore.cluster import ClusterLink, ClusterMessages, open_cluster_link, open_cluster_messages
from eventstore.endpoint import Endpoint
from eventstore.fleet import Fleet
from eventstore.link import ConnectionLost, ReplyError, Script, Unfit
from eventstore.reader import followed
from eventstore.redis_store import RedisStore, open_redis_store
from eventstore.shape import Cluster, opened
from eventstore.slots import Slots, key_in, open_slots, serving, slot_of
from eventstore.socket_link import Limits, SocketLink
from eventstore.startup import Guard, StartupRefused
from eventstore.store import Deployment, Unavailable
from tests.eventstore.load import run_id, under_load
from tests.eventstore.yard import ClusterYard, Server, Yard, free_port, info, until

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=8, id_key=b"key")
TAGS = keys.tags(8)


@pytest.fixture
async def slots(cluster: ClusterYard) -> AsyncIterator[Slots]:
    async with open_slots(cluster.seeds) as slots:
        yield slots


@pytest.fixture
async def link(slots: Slots) -> AsyncIterator[ClusterLink]:
    async with open_cluster_link(slots) as link:
        yield link


@pytest.fixture
async def store(cluster: ClusterYard) -> AsyncIterator[RedisStore]:
    async with open_redis_store(Cluster(cluster.seeds), DEPLOYMENT, "one") as store:
        yield store


def test_the_slot_of_a_key_is_that_of_its_tag() -> None:
    assert slot_of(keys.log("{12.1}", run_id(1))) == keys.slot("12.1") == slot_of("{12.1}")


def test_the_key_of_a_command_is_the_first_word_with_a_tag() -> None:
    assert key_in(("EVAL", "return 1", 1, "{g}:by:p", b"{x}")) == "{g}:by:p"
    assert key_in(("TIME",)) is None


def test_a_server_may_leave_out_its_own_host_and_a_name_it_does_not_know() -> None:
    here = Endpoint(host="h", port=1, user="u")
    answer = [
        [0, 1, [b"", 7, b"id"], [b"r", 8, b"id"]],
        [2, 2, [None, 9, b"id"]],
        [3, 3, [b"?", 9, b"id"]],
        [4, 4, [b"other", 1, b"id", [b"hostname", b"x"]]],
    ]
    found = serving(answer, here)
    assert found[:6] == [
        Endpoint(host="h", port=7, user="u"),
        Endpoint(host="h", port=7, user="u"),
        Endpoint(host="h", port=9, user="u"),
        None,
        Endpoint(host="other", port=1, user="u"),
        None,
    ]


async def test_commands_go_to_the_primary_of_their_key_and_are_answered_in_order(link: ClusterLink) -> None:
    assert len({id(link.of(tag)) for tag in TAGS}) == 3
    commands = [command for n, tag in enumerate(TAGS) for command in (("SET", f"{tag}:x", n), ("GET", f"{tag}:x"))]
    assert await link.pipeline(commands) == [reply for n in range(8) for reply in (b"OK", b"%d" % n)]
    assert await link.pipeline([]) == []
    assert await link.call("GET", f"{TAGS[7]}:x") == b"7"
    assert await link.script(Script("get", "return redis.call('GET', KEYS[1])"), [f"{TAGS[3]}:x"], []) == b"3"


async def test_a_command_without_a_key_goes_where_the_one_before_it_went(link: ClusterLink) -> None:
    asked = ("CLUSTER", "MYID")
    for tag in TAGS:
        [mine, _, other] = await link.pipeline([asked, ("GET", f"{tag}:x"), asked])
        assert mine == other == await link.of(tag).call(*asked)
    assert await link.call(*asked) == await link.of(keys.LEDGER_TAG).call(*asked)


async def test_an_error_in_a_pipeline_over_several_primaries_stands_in_its_place(link: ClusterLink) -> None:
    first, wrong, last = await link.pipeline(
        [("SET", f"{TAGS[0]}:x", "x"), ("INCR", f"{TAGS[0]}:x"), ("SET", f"{TAGS[7]}:x", "x")]
    )
    assert (first, last) == (b"OK", b"OK")
    assert isinstance(wrong, ReplyError)
    with pytest.raises(ReplyError, match="not an integer"):
        await link.call("INCR", f"{TAGS[0]}:x")


async def test_a_cluster_that_nobody_knows_is_refused() -> None:
    nobody = Endpoint(port=free_port())
    with pytest.raises(ConnectionLost, match=repr(nobody)):
        async with open_slots([nobody]):
            pass


async def test_a_server_that_is_no_cluster_knows_no_slots(valkey: Endpoint) -> None:
    with pytest.raises(Unfit, match="cluster support disabled"):
        async with open_slots([valkey]):
            pass


async def test_a_map_that_cannot_be_had_any_more_stays_as_it_was(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "eventstore.slots")
    server = await yard.server("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with pytest.raises(ConnectionLost, match="knows of no slots"):
        async with open_slots([server.endpoint]):
            pass
    await server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 8_000)
    async with open_slots([server.endpoint]) as slots:
        low, high = (next(tag for tag in TAGS if (slot_of(tag) <= 8_000) is served) for served in (True, False))
        with pytest.raises(ReplyError, match="CLUSTERDOWN"):
            slots.of(high)
        server.kill()
        slots.doubt()
        await until(lambda: told(caplog, "cannot be had"))
        assert slots.of(low) == server.endpoint


async def told(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    return what in caplog.text


async def test_a_primary_that_was_just_heard_of_is_a_pause(slots: Slots) -> None:
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(slots, lambda primary: SocketLink(primary, "", Limits(), None), tasks)
        with pytest.raises(ReplyError, match="CLUSTERDOWN"):
            fleet.of(TAGS[0])


class Ear:
    """A subscribing connection that answers as it is told."""

    def __init__(self, *answers: Exception, takes_s: float = 0) -> None:
        self.answers = list(answers)
        self.takes_s = takes_s
        self.channels: list[str] = []

    async def subscribe(self, channel: str) -> None:
        self.channels.append(channel)
        await anyio.sleep(self.takes_s)
        if self.answers:
            raise self.answers.pop(0)

    async def unsubscribe(self, channel: str) -> None:
        if channel in self.channels:
            self.channels.remove(channel)


class Ears:
    """A fleet of one, or of none."""

    def __init__(self, ear: Ear | None) -> None:
        self.ear = ear

    def of(self, key: str) -> Ear:
        if self.ear is None:
            raise ReplyError(f"CLUSTERDOWN nobody serves {key}")
        return self.ear

    async def match(self) -> None:
        """Nothing but these."""


@asynccontextmanager
async def listening(ears: Ears, slots: Slots, gap: anyio.Event) -> AsyncIterator[ClusterMessages]:
    fleet: Any = ears
    async with anyio.create_task_group() as tasks:
        yield ClusterMessages(slots, fleet, tasks, gap.set, 0.1)
        tasks.cancel_scope.cancel()


@pytest.fixture
def idle() -> Slots:
    return Slots([])


async def test_a_channel_that_nobody_serves_is_told_and_subscribed_to_as_soon_as_somebody_does(idle: Slots) -> None:
    ears, ear, gap = Ears(None), Ear(ConnectionLost("gone")), anyio.Event()
    async with listening(ears, idle, gap) as messages:
        with pytest.raises(ConnectionLost, match="in time"):
            await messages.subscribe("{g}:room")
        ears.ear = ear
        with anyio.fail_after(2):
            await gap.wait()
        assert ear.channels == ["{g}:room"]
        await messages.unsubscribe("{g}:room")
        await messages.unsubscribe("{g}:other")
        assert ear.channels == []


async def test_a_channel_whose_subscriber_leaves_before_anybody_serves_it_stays_wanted(idle: Slots) -> None:
    ears, ear, gap = Ears(None), Ear(), anyio.Event()
    async with listening(ears, idle, gap) as messages:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(messages.subscribe, "{g}:room")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        ears.ear = ear
        with anyio.fail_after(2):
            await gap.wait()
        assert ear.channels == ["{g}:room"]


async def test_a_channel_that_is_left_is_not_waited_for(idle: Slots) -> None:
    gap = anyio.Event()
    async with listening(Ears(None), idle, gap) as messages:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(messages.subscribe, "{g}:room")
            await anyio.lowlevel.checkpoint()
            await messages.unsubscribe("{g}:room")
        with pytest.raises(ConnectionLost):
            await messages.subscribe("{g}:room")
        await messages.unsubscribe("{g}:room")
        with anyio.fail_after(2):
            await gap.wait()


async def test_a_server_that_is_slow_to_confirm_keeps_the_channel(idle: Slots) -> None:
    slow = Ear(takes_s=60)
    async with listening(Ears(slow), idle, anyio.Event()) as messages:
        with pytest.raises(ConnectionLost):
            await messages.subscribe("{g}:room")
        assert slow.channels == ["{g}:room"]


@pytest.mark.parametrize("answers", [[], [ConnectionLost("gone")]], ids=["confirmed", "lost"])
async def test_a_subscription_that_moves_while_it_is_asked_for_is_confirmed_where_it_went(
    idle: Slots, answers: list[Exception]
) -> None:
    old, new = Ear(*answers, takes_s=0.02), Ear()
    ears = Ears(old)
    async with listening(ears, idle, anyio.Event()) as messages, anyio.create_task_group() as tasks:
        tasks.start_soon(messages.subscribe, "{g}:room")
        await anyio.lowlevel.checkpoint()
        ears.ear = new
        await messages.match()
        await until(lambda: heard_by(new), 2)
    assert old.channels == []


async def test_a_pipeline_to_a_slot_that_nobody_serves_is_a_pause(idle: Slots) -> None:
    async with anyio.create_task_group() as tasks:
        link = ClusterLink(idle, Fleet(idle, lambda primary: SocketLink(primary, "", Limits(), None), tasks))
        with pytest.raises(ReplyError, match="CLUSTERDOWN"):
            await link.pipeline([("GET", "{g}:x")])
        with pytest.raises(ReplyError, match="CLUSTERDOWN"):
            await link.script(Script("none", ""), ["{g}:x"], [])


async def heard_by(ear: Ear) -> bool:
    return "{g}:room" in ear.channels


async def test_a_channel_that_may_not_be_heard_is_told_and_not_tried_for_ever(
    idle: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    denied = ReplyError("NOPERM no")
    ears, gap = Ears(Ear(denied)), anyio.Event()
    async with listening(ears, idle, gap) as messages:
        with pytest.raises(ReplyError, match="NOPERM"):
            await messages.subscribe("{g}:room")
        await messages.subscribe("{g}:room")
        ears.ear = other = Ear(denied)
        await messages.match()
        assert gap.is_set()
        await until(lambda: told(caplog, "not subscribed: NOPERM"), 2)
        assert other.channels == []


async def test_however_many_doubt_the_map_it_is_looked_at_now_and_then(cluster: ClusterYard, slots: Slots) -> None:
    async def looks() -> int:
        told = [await info(server.endpoint, "commandstats") for server in cluster.servers]
        lines = [one.get("cmdstat_cluster|slots", "calls=0") for one in told]
        return sum(int(line.split(",")[0].removeprefix("calls=")) for line in lines)

    before = await looks()
    with anyio.move_on_after(0.5):
        while True:
            slots.doubt()
            await anyio.sleep(0.001)
    assert 2 <= await looks() - before <= 7


async def test_a_slot_that_moves_under_load_fails_no_append_and_followers_follow(
    cluster: ClusterYard, store: RedisStore
) -> None:
    tag, actor = TAGS[5], run_id(5)
    seen: list[int] = []

    async def follow(other: RedisStore) -> None:
        async with aclosing(followed(other, actor, 0, heartbeat_s=10)) as pages:
            async for page in pages:
                seen.extend(item.number for item in page)

    async with open_redis_store(Cluster(cluster.seeds), DEPLOYMENT, "two") as other, under_load(store, "one") as load:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, other)
            target = await cluster.moved(tag)
            await load.goes_on()
            shown = (await store.look(actor)).heads.feed
            await until(lambda: reached(seen, shown), 5)
            assert (await cluster.owner(slot_of(tag))) is target
            assert int(await target.ask("EXISTS", keys.log(tag, actor))) == 1
            tasks.cancel_scope.cancel()
        assert seen == list(range(1, len(seen) + 1))
        assert load.failed == []
        assert load.longest_s < 3
        await load.assert_kept()


async def reached(seen: list[int], number: int) -> bool:
    return bool(seen) and seen[-1] >= number


async def test_scripts_that_are_forgotten_under_load_fail_no_append(cluster: ClusterYard, store: RedisStore) -> None:
    async with under_load(store, "one") as load:
        for _ in range(5):
            for server in cluster.servers:
                await server.ask("SCRIPT", "FLUSH")
            await load.goes_on(2)
        assert load.failed == []
        await load.assert_kept()


async def test_a_planned_failover_under_load_fails_no_append(cluster: ClusterYard, store: RedisStore) -> None:
    replica, _ = await cluster.replica()
    async with under_load(store, "one") as load:
        await replica.ask("CLUSTER", "FAILOVER")
        await until(lambda: promoted(replica))
        await load.goes_on()
        await cluster.sound()
        assert load.failed == []
        await load.assert_kept()


async def promoted(server: Server) -> bool:
    return (await info(server.endpoint, "replication"))["role"] == "master"


async def test_a_primary_that_dies_is_replaced_and_only_its_partitions_pause(
    cluster: ClusterYard, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    replica, primary = await cluster.replica()
    async with under_load(store, "one") as load:
        primary.kill()
        try:
            await until(lambda: promoted(replica))
            await load.goes_on()
            assert not any(isinstance(failure, Unavailable) for failure in load.failed)
            assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) < 12
        finally:
            primary.restart()
            await cluster.sound()


async def test_messages_are_heard_again_after_a_failover(cluster: ClusterYard) -> None:
    replica, primary = await cluster.replica()
    heard: list[str] = []
    gaps: list[int] = []
    async with (
        open_slots(cluster.seeds) as slots,
        open_cluster_messages(slots, lambda channel, _: heard.append(channel), lambda: gaps.append(1)) as messages,
        open_cluster_link(slots) as link,
    ):
        channels = [keys.work_channel(tag) for tag in TAGS]
        for channel in channels:
            await messages.subscribe(channel)
        primary.kill()
        try:
            await until(lambda: promoted(replica))

            async def all_heard() -> bool:
                heard.clear()
                for channel in channels:
                    await link.call("SPUBLISH", channel, "x")
                await anyio.sleep(0.02)
                return set(heard) == set(channels)

            await until(all_heard, 5)
            assert gaps
            await messages.unsubscribe(channels[0])
            await messages.subscribe(channels[0])
        finally:
            primary.restart()
            await cluster.sound()


async def test_a_channel_whose_slot_moves_is_heard_again(cluster: ClusterYard, slots: Slots) -> None:
    heard: list[str] = []
    gap = anyio.Event()
    channel = keys.work_channel(TAGS[2])
    async with open_cluster_messages(slots, lambda name, _: heard.append(name), gap.set) as messages:
        await messages.subscribe(channel)
        target = await cluster.moved(TAGS[2])
        with anyio.fail_after(5):
            await gap.wait()

        async def again() -> bool:
            await target.ask("SPUBLISH", channel, "x")
            return channel in heard

        await until(again, 5)


async def test_a_subscription_where_the_map_is_out_of_date_finds_its_primary(
    cluster: ClusterYard, slots: Slots
) -> None:
    async with open_cluster_messages(slots, lambda *_: None, lambda: None) as messages:
        target = await cluster.moved(TAGS[3])  # nobody told this map
        channel = keys.work_channel(TAGS[3])
        await messages.subscribe(channel)
        assert (await target.ask("PUBSUB", "SHARDNUMSUB", channel))[1] == 1


async def test_every_primary_is_checked_and_guards_its_own_partitions(cluster: ClusterYard) -> None:
    guard = Guard()
    async with opened(Cluster(cluster.seeds), guard) as doors:
        told = await startup.facts_of_all(doors)
        assert len(told) == 3
        found = startup.findings_of_all("standard", told, 10_000)
        assert all(any(server in finding.what for finding in found) for server in told)
        assert any("min-replicas-to-write" in finding.what for finding in found)
        async with doors.link() as link:
            guard.pinned = await startup.deployment(link, DEPLOYMENT)
            async with doors.link():
                pass
            await link.call("DEL", keys.meta(TAGS[6]))
            with pytest.raises(StartupRefused, match="partitions " + TAGS[6].replace(".", r"\.")):
                async with doors.link():
                    pass


async def test_a_store_opens_while_a_primary_is_away_and_pauses_only_there(cluster: ClusterYard) -> None:
    replica, primary = await cluster.replica()
    owners = {tag: await cluster.owner(slot_of(tag)) for tag in TAGS}
    away = next(tag for tag, owner in owners.items() if owner is primary)
    here = next(tag for tag, owner in owners.items() if owner is not primary)
    with replica.frozen():  # so that nobody takes over
        primary.kill()
        try:
            async with open_slots(cluster.seeds) as slots, open_cluster_link(slots) as link:
                await until(lambda: link.call("SET", f"{here}:x", 1))
                with pytest.raises((ReplyError, TimeoutError)), anyio.fail_after(0.3):
                    await link.call("SET", f"{away}:x", 1)
                primary.restart()
                await until(lambda: link.call("SET", f"{away}:x", 1), 5)
        finally:
            if primary.process.poll() is not None:
                primary.restart()
    await cluster.sound()
