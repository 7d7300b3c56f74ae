"""What a store does about each trouble of a single server, and that a host opens on every shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

import runstream
from eventstore.endpoint import Endpoint, address_of, persist
from eventstore.link import Call, ConnectionLost, ReplyError
from eventstore.redis_store import RedisStore, open_redis_store
from eventstore.shape import Cluster, Sentinel
from eventstore.socket_link import bare_call, open_link
from eventstore.socket_messages import SocketMessages, open_messages
from eventstore.startup import Guard, StartupRefused
from eventstore.store import Append, Deployment, Event, Part, Recorded, Unavailable
from runstream import checking
from runstream.settings import RedisSettings, Secret, Settings
from tests.eventstore.load import begin, run_id, under_load
from tests.eventstore.yard import Server, Yard, info, replicates, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.eventstore.yard import ClusterYard

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=8, id_key=b"key")
RUN = run_id(0)
FACT = Append(command="fact", parts=(Part(actor=RUN, log=1, epoch=1, events=(Event(b"fact"),)),))
KEPT = ("--appendonly", "yes", "--maxmemory-clients", "20%")


@pytest.fixture
async def server(yard: Yard) -> AsyncIterator[Server]:
    server = await yard.server()
    yield server
    server.kill()


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisStore]:
    async with open_redis_store(server.endpoint, DEPLOYMENT, "one", on_connected=Guard()) as store:
        yield store


async def test_scripts_that_are_forgotten_under_load_fail_no_append(server: Server, store: RedisStore) -> None:
    async with under_load(store, "one") as load:
        for _ in range(5):
            await server.ask("SCRIPT", "FLUSH")
            await load.goes_on(2)
        assert load.failed == []


async def test_a_server_that_is_busy_with_a_script_is_a_pause(server: Server, store: RedisStore) -> None:
    await server.ask("CONFIG", "SET", "busy-reply-threshold", 20)
    async with (
        bare_call(server.endpoint) as call,
        under_load(store, "one") as load,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(hog, server)
        await until(lambda: busy(server))
        await call("SCRIPT", "KILL")
        await load.goes_on()
        assert load.failed == []


async def hog(server: Server) -> None:
    with suppress(ReplyError, ConnectionLost):
        await server.ask("EVAL", "while true do end", 0)


async def busy(server: Server) -> bool:
    try:
        await server.ask("PING")
    except ReplyError as error:
        return error.code == "BUSY"
    return False


async def test_a_server_whose_memory_is_full_is_a_pause(server: Server, store: RedisStore) -> None:
    async with under_load(store, "one") as load:
        await server.ask("CONFIG", "SET", "maxmemory", 1)
        await until(lambda: refused(server))
        await server.ask("CONFIG", "SET", "maxmemory", 0)
        await load.goes_on()
        assert load.failed == []


async def refused(server: Server) -> bool:
    return "errorstat_OOM" in await info(server.endpoint, "errorstats")


async def test_a_server_that_cannot_write_its_disk_is_a_pause(server: Server, store: RedisStore) -> None:
    async with bare_call(server.endpoint) as call, under_load(store, "one") as load:
        (server.folder / "dump.rdb" / "in").mkdir(parents=True)  # no snapshot can take its place
        await call("CONFIG", "SET", "save", "3600 1")
        await call("BGSAVE")
        await until(lambda: unwritable(call))
        await call("CONFIG", "SET", "save", "")
        await load.goes_on()
        assert load.failed == []


async def unwritable(call: Call) -> bool:
    return b"errorstat_MISCONF" in await call("INFO", "errorstats")


async def test_a_primary_that_was_made_a_replica_is_a_pause_until_it_is_one_again(
    server: Server, store: RedisStore
) -> None:
    async with under_load(store, "one") as load:
        await server.ask("REPLICAOF", "127.0.0.1", 1)
        await until(lambda: demoted(server))
        await server.ask("REPLICAOF", "NO", "ONE")
        await load.goes_on()
        assert load.failed == []


async def demoted(server: Server) -> bool:
    return "errorstat_READONLY" in await info(server.endpoint, "errorstats")


async def test_a_server_that_loads_its_file_is_a_pause(yard: Yard) -> None:
    server = await yard.server("--appendonly", "yes", "--key-load-delay", "20")
    async with open_redis_store(server.endpoint, DEPLOYMENT, "one", on_connected=Guard()) as store:
        await store._bulk.pipeline([("SET", f"{{g}}:{n}", n) for n in range(12_000)])
        async with under_load(store, "one", 2) as load:
            server.kill()
            server.restart()
            await until(lambda: loading(server))
            await load.goes_on()
            assert not any(isinstance(failure, Unavailable) for failure in load.failed)
    server.kill()


async def loading(server: Server) -> bool:
    try:
        await server.ask("GET", "x")
    except ReplyError as error:
        return error.code == "LOADING"
    return False


async def test_a_server_that_syncs_always_and_is_killed_under_load_has_what_it_answered(yard: Yard) -> None:
    server = await yard.server(*KEPT, "--appendfsync", "always")
    async with (
        open_redis_store(server.endpoint, DEPLOYMENT, "one", on_connected=Guard()) as store,
        under_load(store, "one") as load,
    ):
        for _ in range(3):
            server.kill()
            server.restart()
            await load.goes_on(2)
        assert load.failed == []
        await load.assert_kept()
    server.kill()


async def test_connections_that_are_cut_over_and_over_are_made_again_with_few_log_lines(
    server: Server, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with under_load(store, "one") as load:
        for _ in range(10):
            await server.ask("CLIENT", "KILL", "TYPE", "normal")
            await server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await load.goes_on(1)
        assert load.failed == []
        made = int((await info(server.endpoint, "stats"))["total_connections_received"])
        assert made < 120
    assert len(caplog.records) < 10


async def test_a_subscriber_that_waits_in_an_outage_is_told_when_the_connection_is_left(server: Server) -> None:
    async with open_messages(server.endpoint, lambda *_: None, lambda: None) as messages:
        server.kill()
        await until(lambda: away(messages))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(told, messages)
            await anyio.lowlevel.checkpoint()
            messages.close()


async def away(messages: SocketMessages) -> bool:
    return messages._ear is None


async def told(messages: SocketMessages) -> None:
    with anyio.fail_after(2), pytest.raises(ConnectionLost, match="was left"):
        await messages.subscribe("{g}:room")


async def test_a_gap_before_the_store_is_open_is_nobodys(server: Server) -> None:
    async with open_link(server.endpoint) as link:
        RedisStore(DEPLOYMENT, "one", link, link, publish="PUBLISH", patience_s=1).lose_touch()


async def test_an_outage_costs_a_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[float] = []

    async def connect() -> str:
        tries.append(anyio.current_time())
        if len(tries) < 6:
            raise ConnectionRefusedError("refused")
        return "made"

    assert await persist(connect, Endpoint(port=1), 0.1) == "made"
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "no connection",
        "connected again, at the 6. try",
    ]
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert waits[0] < 0.1 < sum(waits) < 1


async def test_an_outage_longer_than_the_patience_is_told_and_what_is_sent_again_then_is_written_once(
    server: Server,
) -> None:
    async with open_redis_store(server.endpoint, DEPLOYMENT, "one", patience_s=0.3) as store:
        await store.append(begin(RUN, "one"))
        with server.frozen(), pytest.raises(Unavailable):
            await impatient(store)
        outcome = await store.append(FACT)
        assert isinstance(outcome, Recorded)


async def impatient(store: RedisStore) -> None:
    """Append as a caller does that gives up; the append belongs to the node all the same."""
    with anyio.move_on_after(0.3):
        await store.append(FACT)
        return
    raise Unavailable("gave up")


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), ("[::1]:26379", ("::1", 26_379)), ("redis.example.org:65535", ("redis.example.org", 65_535))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["h", "h:", ":1", "h:0", "h:x", "h:65536", "u:p@h:1", "h:1/0", "redis://h:1", "[h:1"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        address_of(text)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, profile="standard", partitions=8)


async def test_the_shape_follows_from_the_settings(settings: Settings) -> None:
    account = RedisSettings(username="u", password=Secret("pass-word"), sentinel_password=Secret("other"))
    sentinel = await checking.shape(
        replace(settings, redis=replace(account, sentinels=("a:1", "b:2"), sentinel_name="runs", tls=True))
    )
    match sentinel:
        case Sentinel(name="runs", sentinels=(one, two), account=there):
            assert (one.host, one.port, one.password, two.host, two.port) == ("a", 1, "other", "b", 2)
            assert (there.user, there.password) == ("u", "pass-word")
            assert there.tls is not None
        case _:
            raise AssertionError(sentinel)
    cluster = await checking.shape(replace(settings, redis=replace(account, cluster=("a:1", "b:2"))))
    match cluster:
        case Cluster(seeds=(one, two)):
            assert (one.host, one.port, one.user, one.password, one.tls) == ("a", 1, "u", "pass-word", None)
        case _:
            raise AssertionError(cluster)
    assert "pass-word" not in repr(cluster)


async def test_a_host_opens_on_what_sentinels_name_and_under_strict_waits_for_replicas(
    yard: Yard, settings: Settings
) -> None:
    options = (*KEPT, "--appendfsync", "always", "--min-replicas-to-write", "1", "--min-replicas-max-lag", "5")
    primary, replica = await yard.server(*options), await yard.server(*options)
    await replicates(replica, primary)
    sentinel = await yard.sentinel("runs", primary)
    redis = RedisSettings(sentinels=(f"127.0.0.1:{sentinel.endpoint.port}",), sentinel_name="runs")
    watched = replace(settings, redis=redis)
    assert [one.level for one in await checking.check(watched) if one.about == "redis"] == ["ok"]
    strict = replace(watched, profile="strict")
    async with runstream.open(strict):
        told = await primary.ask("CLIENT", "LIST")
        assert told.count(b"name=runstream-barrier") == 2
    for server in (sentinel, primary, replica):
        server.kill()


async def test_a_host_opens_on_a_cluster_that_is_safe_and_on_no_other(cluster: ClusterYard, settings: Settings) -> None:
    redis = RedisSettings(cluster=tuple(repr(seed) for seed in cluster.seeds[:2]))
    clustered = replace(settings, redis=redis)
    await cluster.set(appendonly="yes", **{"min-replicas-max-lag": "5"})
    try:
        with pytest.raises(StartupRefused, match="min-replicas-to-write"):
            async with runstream.open(clustered):
                pass
        await cluster.set(**{"min-replicas-to-write": "1"})
        found = [one.level for one in await checking.check(clustered) if one.about == "redis"]
        assert found == ["ok"] * 3 + ["warning"] * 3
        async with runstream.open(clustered) as host, runstream.open(clustered) as other:
            assert host.app is not other.app
    finally:
        await cluster.set(appendonly="no", **{"min-replicas-to-write": "0"})
