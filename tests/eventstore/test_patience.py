"""A host that starts before its Redis: it waits for what may pass by itself, and for nothing else, and not for ever."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from msgspec.structs import replace

import runstream
from eventstore.link import PAUSES, ConnectionLost, ReplyError, Unfit, passing
from eventstore.startup import StartupRefused, patiently
from runstream.settings import RedisSettings, Settings
from tests.eventstore.yard import Server, Yard, free_port, replicates, until

pytestmark = pytest.mark.anyio

KEPT = ("--appendonly", "yes", "--maxmemory-clients", "20%")
SAFE = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "5")
AT_ONCE_S = 5.0
PASSING = [ConnectionLost("away"), *(ReplyError(f"{code} wait") for code in sorted(PAUSES))]
LASTING = [Unfit("another's"), StartupRefused("unfit"), ReplyError("WRONGPASS no"), ReplyError("NOAUTH no")]


def test_what_may_pass_is_told_from_what_will_not() -> None:
    assert [passing(error) for error in (*PASSING, *LASTING)] == [True] * len(PASSING) + [False] * len(LASTING)


class Start:
    """A start that meets each of *troubles* in turn."""

    def __init__(self, *troubles: Exception) -> None:
        self._troubles = iter(troubles)
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if (trouble := next(self._troubles, None)) is not None:
            raise trouble
        return "started"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "eventstore.startup"]


@pytest.mark.parametrize("trouble", PASSING[:2], ids=str)
async def test_what_may_pass_is_waited_for(trouble: Exception, caplog: pytest.LogCaptureFixture) -> None:
    start = Start(trouble, trouble)
    assert await patiently(start, 30) == "started"
    assert start.tries == 3
    assert told(caplog) == [f"waiting up to 30 s for Redis: {trouble}"]


@pytest.mark.parametrize("trouble", LASTING, ids=str)
async def test_what_waiting_does_not_mend_ends_a_start_at_once(trouble: Exception) -> None:
    start = Start(trouble)
    with pytest.raises(type(trouble)) as error:
        await patiently(start, 30)
    assert (error.value, start.tries) == (trouble, 1)


async def test_without_patience_nothing_is_waited_for() -> None:
    start = Start(PASSING[0])
    with pytest.raises(ConnectionLost):
        await patiently(start, 0)
    assert start.tries == 1


async def test_patience_ends_with_the_last_trouble(caplog: pytest.LogCaptureFixture) -> None:
    start = Start(*PASSING * 100)
    began_s = anyio.current_time()
    with pytest.raises(ConnectionLost, match=r"\(waited \d s for it\)"):
        await patiently(start, 0.5)
    assert 0.5 <= anyio.current_time() - began_s < AT_ONCE_S
    assert 3 <= start.tries <= 10
    assert len(told(caplog)) == 1


class Absent(NamedTuple):
    """A Redis that is not there yet, and what brings it there."""

    redis: RedisSettings
    come: Callable[[], Awaitable[Any]]
    servers: list[Server]


async def refusing(yard: Yard) -> Absent:
    server = await yard.server(*KEPT)
    server.kill()
    return Absent(RedisSettings(url=f"redis://127.0.0.1:{server.endpoint.port}"), restarting(server), [server])


async def without_socket(yard: Yard) -> Absent:
    server = await yard.server(*KEPT, "--unixsocket", "r.sock")
    server.kill()
    socket = server.folder / "r.sock"
    await anyio.Path(socket).unlink()
    return Absent(RedisSettings(socket=socket), restarting(server), [server])


async def loading(yard: Yard) -> Absent:
    server = await yard.server(*KEPT, "--key-load-delay", "50")
    await server.ask("EVAL", "for n = 1, 12000 do redis.call('SET', 'k' .. n, n) end", 0)
    server.kill()
    server.restart()
    await until(lambda: is_loading(server))
    return Absent(RedisSettings(url=f"redis://127.0.0.1:{server.endpoint.port}"), anyio.lowlevel.checkpoint, [server])


async def is_loading(server: Server) -> bool:
    try:
        await server.ask("GET", "x")
    except ReplyError as error:
        return error.code == "LOADING"
    return False


async def unwatched(yard: Yard) -> Absent:
    primary, replica = await yard.server(*KEPT, *SAFE), await yard.server(*KEPT, *SAFE)
    await replicates(replica, primary)
    sentinel = await yard.sentinel("others", primary)
    redis = RedisSettings(sentinels=(f"127.0.0.1:{sentinel.endpoint.port}",), sentinel_name="runs")

    async def watch() -> None:
        await sentinel.ask("SENTINEL", "MONITOR", "runs", "127.0.0.1", primary.endpoint.port, 1)

    return Absent(redis, watch, [sentinel, primary, replica])


async def clustered(yard: Yard) -> Absent:
    """A cluster that serves no slot yet; all that keeps a host from it then is that it has no replicas."""
    server = await yard.server(*KEPT, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))

    async def lay() -> None:
        await server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)

    return Absent(RedisSettings(cluster=(f"127.0.0.1:{server.endpoint.port}",)), lay, [server])


def restarting(server: Server) -> Callable[[], Awaitable[None]]:
    async def restart() -> None:
        await anyio.to_thread.run_sync(server.restart)

    return restart


@asynccontextmanager
async def absent(
    make: Callable[[Yard], Awaitable[Absent]], yard: Yard, folder: Path
) -> AsyncGenerator[tuple[Settings, Absent]]:
    there = await make(yard)
    try:
        yield Settings(state_dir=folder, profile="standard", partitions=4, redis=there.redis), there
    finally:
        for server in there.servers:
            server.kill()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (refusing, "does not answer: "),
        (without_socket, "does not answer: "),
        (loading, "LOADING"),
        (unwatched, "it watches nothing called runs"),
        (clustered, "it knows of no slots"),
    ],
)
async def test_a_host_waits_for_its_redis(
    make: Callable[[Yard], Awaitable[Absent]], says: str, yard: Yard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = anyio.Event()
    async with absent(make, yard, tmp_path) as (settings, there):

        async def start() -> None:
            if make is clustered:
                with pytest.raises(StartupRefused, match="min-replicas-to-write is 0"):
                    await opening()
            else:
                await opening()
            opened.set()

        async def opening() -> None:
            async with runstream.open(settings, patient=True):
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await until(lambda: waits(caplog))
            assert not opened.is_set()
            await there.come()
            with anyio.fail_after(10):
                await opened.wait()
    [line] = told(caplog)
    assert says in line


async def waits(caplog: pytest.LogCaptureFixture) -> bool:
    return bool(told(caplog))


async def test_a_host_that_is_not_patient_ends_at_once_and_a_patient_one_when_its_patience_does(
    yard: Yard, tmp_path: Path
) -> None:
    async with absent(refusing, yard, tmp_path) as (settings, _):
        with anyio.fail_after(AT_ONCE_S), pytest.raises(ConnectionLost, match="does not answer"):
            async with runstream.open(settings):
                pass
        brief = replace(settings, redis=replace(settings.redis, start_patience_s=0.2))
        with anyio.fail_after(AT_ONCE_S), pytest.raises(ConnectionLost, match=r"does not answer.*\(waited"):
            async with runstream.open(brief, patient=True):
                pass


async def test_an_unfit_server_or_another_deployment_is_not_waited_for(yard: Yard, tmp_path: Path) -> None:
    async with absent(refusing, yard, tmp_path) as (settings, there):
        await there.come()
        [server] = there.servers
        await until(lambda: server.ask("PING"))
        async with runstream.open(settings, patient=True):
            pass
        for other in (replace(settings, partitions=8), replace(settings, profile="strict")):
            with anyio.fail_after(AT_ONCE_S), pytest.raises(StartupRefused):
                async with runstream.open(other, patient=True):
                    pass
