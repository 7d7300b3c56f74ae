"""The world of a scenario: nodes over one store, a scripted model, tools that note what they did, and a clock."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from actors import kinds, run
from actors.jobs import Job
from eventstore import keys
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.ledger import Counted, RedisLedger
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import RedisStore
from eventstore.store import Claim, Deployment
from projections import wire_feed
from tests.scenario_clock import Clock, moved_by, patience
from tests.scenario_doors import Doorway
from tests.scenario_host import Known, Node, bearer, caps_of, opened
from tests.scenario_model import Scripted
from tests.scenario_words import merged

__all__ = ["DEPLOYMENT", "PATIENCE_S", "Clock", "Node", "Opening", "World", "bearer", "moved_by", "patience"]

Config = Mapping[str, Any]
PATIENCE_S = 20.0
DEPLOYMENT = Deployment("scenarios", 4, b"k" * 32)
Opening: TypeAlias = Callable[[str], AbstractAsyncContextManager[RedisStore]]
"""Opens the store of a node by its name."""


class Kept(NamedTuple):
    """What the store has of a run, whoever asks."""

    job: Job | None
    """None where its payload is gone."""
    events: Sequence[Any]


class World:
    """Some nodes of one deployment, as a scenario configures them."""

    def __init__(
        self,
        config: Config,
        script: Sequence[Config],
        *,
        nodes: int = 1,
        clock: Clock | None = None,
        memory: Memory | None = None,
        redis: Opening | None = None,
        around: Callable[[Any], Any] = lambda store: store,
        by_input: Config | None = None,
        by_tools: Config | None = None,
        survivor: bool = False,
    ) -> None:
        self.config = config
        self.model = Scripted(script, by_input=by_input, by_tools=by_tools)
        self.effects: list[Any] = []
        self.clock = clock
        self.nodes: list[Node] = []
        self.known = Known(config)
        self.shut = False
        """Whether nothing queued is taken up, by any node."""
        self.calls_before = 0
        """Calls of the model before the nodes were opened that are open now."""
        self._count = max(nodes, 2) if survivor else nodes
        self._survivor = survivor
        """Whether the last node stands by: nothing is taken up there before the others are dead."""
        self._names = count()
        self._around = around
        self._memory = Memory(DEPLOYMENT, clock.store_ms) if clock else memory
        self._redis = redis or partial(open_fake_store, fake_server(), DEPLOYMENT)
        self._open = AsyncExitStack()
        self._slots: list[Claim] = []

    async def open(self) -> None:
        """Open the nodes."""
        self.known = Known(self.config)
        self.calls_before = self.model.calls
        for _ in range(self._count):
            self.nodes.append(await self._open.enter_async_context(self.another(shut=self.shut)))
        self.nodes[-1].door.shut |= self._survivor

    @asynccontextmanager
    async def another(self, *, shut: bool = False) -> AsyncIterator[Node]:
        """Open one more node, which takes up what is queued unless its door is *shut*."""
        async with self._store(f"n{next(self._names)}") as store:
            door = Doorway(self._around(store), shut=shut)
            slow = self.clock is not None
            async with opened(door, self.config, self.model, self.effects, self.known, slow=slow) as node:
                yield node

    async def again(self, changes: Config) -> None:
        """Close the nodes that are open, and open others, which take up what is queued."""
        await self.close()
        self.config = merged(self.config, changes)
        self.shut = False
        await self.open()

    async def close(self) -> None:
        """Close the nodes; what they stored stays."""
        self.nodes = []
        await self._open.aclose()

    async def kill(self) -> None:
        """Let all nodes die but the one that stands by."""
        for node in self.nodes[:-1]:
            await node.die()
        del self.nodes[:-1]

    async def go_on(self) -> None:
        """Let the node that stood by take up what is queued."""
        self.calls_before = self.model.calls
        self.shut = False
        self.nodes[0].door.open()

    def bar(self) -> None:
        """Let nothing queued be taken up until the nodes are others."""
        self.shut = True
        for node in self.nodes:
            node.door.shut = True

    async def hold_slot(self, subject: str) -> None:
        """Take a run slot for *subject*, as a run would that does not end."""
        store = self.nodes[0].door
        claim = Claim("runs", f"held-{len(self._slots)}", store.node, subject)
        permit = await store.take(claim, caps_of(self.config), 60_000)
        assert permit.taken == "granted"
        await store.begun(claim)
        self._slots.append(claim)

    async def free_slots(self) -> None:
        """Give back what was held."""
        while self._slots:
            await self.nodes[0].door.give("runs", self._slots.pop().holder, caps_of(self.config))

    async def audit(self) -> list[Any]:
        """Every audit record, those of one run in their order."""
        if self._memory is not None:
            return [json.loads(entry) for partition in range(4) for entry in self._memory.outbox[partition]]
        entries: list[Any] = []
        async with self._store("observer") as store:
            for tag in keys.tags(DEPLOYMENT.partitions):
                found = await store._commands.call("XRANGE", keys.outbox(tag), "-", "+")
                entries.extend(json.loads(fields[1]) for _, fields in found)
        return entries

    async def pending(self) -> int:
        """Approvals and tickets that count against their bounds."""
        return sum([(await self.counted(pool)).held for pool in ("approvals", "tickets")])

    async def counted(self, pool: str) -> Counted:
        """How full *pool* is."""
        if self._memory is not None:
            return await self._memory.ledger.counted(pool)
        async with self._store("observer") as store:
            return await RedisLedger(store._commands).counted(pool)

    async def kept(self, run_id: str) -> Kept | None:
        """What the store has of a run, also while no node is open; None where there never was one."""
        async with self._store("observer") as store:
            look = await store.look(run_id)
            items = [] if look.heads.erased else (await store.page(run_id, 0, bytes_max=100_000_000)).items
        if not look.heads.log:
            return None
        state: run.State = kinds.RUN.initial
        for entry in look.entries:
            state = kinds.RUN.evolve(state, kinds.RUN.decode(entry.data))
        shown = [json.loads(wire_feed.numbered(item.number, item.data)) for item in items]
        if not isinstance(state, run.Live | run.Ended):
            return Kept(None, shown)
        return Kept(Job(run_id, state.accepted, look.heads, state if isinstance(state, run.Ended) else None), shown)

    @asynccontextmanager
    async def _store(self, name: str) -> AsyncIterator[Any]:
        if self._memory is not None:
            yield MemoryStore(self._memory, name)
            return
        async with self._redis(name) as store:
            yield store
