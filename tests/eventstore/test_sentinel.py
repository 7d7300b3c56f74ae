"""A store whose primary Sentinel watches: found by name, and found again when another is promoted."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest

from eventstore.endpoint import Endpoint
from eventstore.link import ConnectionLost
from eventstore.redis_store import open_redis_store
from eventstore.sentinel import Sentinels
from eventstore.shape import Sentinel, opened
from eventstore.socket_link import Limits, open_link
from eventstore.startup import Guard
from eventstore.store import Deployment, Unavailable
from tests.eventstore.load import under_load
from tests.eventstore.yard import Server, Yard, free_port, info, replicates, until

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=8, id_key=b"key")


class Watched(NamedTuple):
    """A primary with a replica, and who watches it."""

    primary: Server
    replica: Server
    sentinel: Server

    @property
    def shape(self) -> Sentinel:
        nobody = Endpoint(port=free_port())
        return Sentinel(name="runs", sentinels=(nobody, self.sentinel.endpoint))

    async def named(self, server: Server) -> bool:
        told = await self.sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "runs")
        return int(told[1]) == server.endpoint.port


@pytest.fixture
async def watched(yard: Yard) -> AsyncIterator[Watched]:
    primary, replica = await yard.server(), await yard.server()
    await replicates(replica, primary)
    sentinel = await yard.sentinel("runs", primary)

    async def knows() -> bool:
        return [dict(zip(one[::2], one[1::2], strict=True))[b"flags"] for one in await known()] == [b"slave"]

    async def known() -> list[list[bytes]]:
        found: list[list[bytes]] = await sentinel.ask("SENTINEL", "REPLICAS", "runs")
        return found

    await until(knows)
    yield Watched(primary, replica, sentinel)
    for server in (sentinel, primary, replica):
        server.kill()


async def test_the_primary_is_whom_a_sentinel_names_if_it_says_so_itself(watched: Watched) -> None:
    find = Sentinels("runs", watched.shape.sentinels, Endpoint(db=3))
    assert await find() == Endpoint(port=watched.primary.endpoint.port, db=3)
    assert repr(find) == "the primary runs"
    with pytest.raises(ConnectionLost, match="watches nothing called other"):
        await Sentinels("other", watched.shape.sentinels, Endpoint())()
    nobody = Endpoint(port=free_port())
    with pytest.raises(ConnectionLost, match=repr(nobody)):
        await Sentinels("runs", (nobody,), Endpoint())()
    await watched.primary.ask("REPLICAOF", "127.0.0.1", watched.replica.endpoint.port)
    with pytest.raises(ConnectionLost, match="is a slave"):
        await find()


async def test_a_primary_that_dies_under_load_is_followed_to_the_next(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_redis_store(watched.shape, DEPLOYMENT, "one") as store,
        open_redis_store(watched.shape, DEPLOYMENT, "two") as other,
        under_load(store, "one") as load,
        other.follow(load.writers[0].actor) as tail,
    ):
        watched.primary.kill()
        await until(lambda: watched.named(watched.replica))
        await load.goes_on()
        assert not any(isinstance(failure, Unavailable) for failure in load.failed)
        assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) < 14
        with anyio.fail_after(5):
            while (heard := await tail.heard(5.0)) is None or not heard.items:
                pass


async def test_a_planned_failover_under_load_is_a_pause(watched: Watched) -> None:
    async with open_redis_store(watched.shape, DEPLOYMENT, "one") as store, under_load(store, "one") as load:
        await watched.sentinel.ask("SENTINEL", "FAILOVER", "runs")
        await until(lambda: watched.named(watched.replica))
        await load.goes_on()
        assert not any(isinstance(failure, Unavailable) for failure in load.failed)


async def test_a_history_that_is_new_is_looked_at_once_before_anything_is_sent_there(watched: Watched) -> None:
    met: list[str] = []

    async def look(call: object, history: str) -> None:
        del call
        await anyio.lowlevel.checkpoint()
        met.append(history)

    async with opened(watched.shape, Guard(look)) as doors:
        assert doors.failover
        async with doors.link() as link, doors.link():
            first = await info(watched.primary.endpoint, "replication")
            assert met == [first["master_replid"]]
            watched.primary.kill()
            await until(lambda: link.call("SET", "{g}:x", 1), 8)
            then = await info(watched.replica.endpoint, "replication")
            assert met == [first["master_replid"], then["master_replid"]]


class Elsewhere:
    """A place that a test moves."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self) -> Endpoint:
        return self.server.endpoint


async def test_a_server_that_was_demoted_is_left_at_its_first_refusal(yard: Yard) -> None:
    demoted, promoted = await yard.server(), await yard.server()
    place = Elsewhere(demoted)
    async with open_link(place) as link:
        place.server = promoted
        await demoted.ask("REPLICAOF", "127.0.0.1", promoted.endpoint.port)
        assert await until(lambda: link.call("SET", "x", 1), 2) == b"OK"
        assert await promoted.ask("GET", "x") == b"1"
    for server in (demoted, promoted):
        server.kill()


async def test_a_server_that_falls_silent_is_left_for_the_one_that_was_promoted(yard: Yard) -> None:
    silent, promoted = await yard.pair()
    place = Elsewhere(silent)
    async with open_link(place, limits=Limits(silence_s=0.2)) as link:
        place.server = promoted
        with silent.frozen():
            with pytest.raises(ConnectionLost), anyio.fail_after(1):
                await link.call("PING")
            assert await until(lambda: link.call("PING"), 1) == b"PONG"


async def test_a_primary_that_was_cut_off_from_its_replicas_is_asked_about_again(yard: Yard) -> None:
    alone, promoted = await yard.server("--min-replicas-to-write", "1"), await yard.server()
    place = Elsewhere(alone)
    async with open_link(place) as link:
        place.server = promoted
        assert await until(lambda: link.call("SET", "x", 1), 4) == b"OK"
        assert await promoted.ask("GET", "x") == b"1"
    for server in (alone, promoted):
        server.kill()
