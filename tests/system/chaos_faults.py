"""What is done to the hosts, to their Redis, and to the way between; which and when comes from the seed."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.abc

from tests.system.cluster import drawn
from tests.system.house import House
from tests.system.looks import TROUBLE, connected
from tests.system.processes import LEASE_MS, POLL_S
from tests.system.proxy import Proxy
from tests.system.servers import Servers, Watched
from tests.system.spread import Spread

PAUSED_S = LEASE_MS / 1_000 * 1.5
APART_S = {"host": (0.8, 2.0), "redis": (0.3, 0.9)}
"""Between two harms to hosts, and between two to what they need."""
HARMS: Mapping[str, Sequence[str]] = {
    "host": ("kill", "pause", "drain"),
    "redis": ("outage", "delay", "drop", "cut", "half-close", "half-close-redis", "flush", "restart"),
}
WATCHED: Mapping[str, Sequence[str]] = {
    "host": HARMS["host"],
    "redis": ("failover", "failover-frozen", "switch", "lag", "hang-up", *HARMS["redis"][1:]),
}
"""What is done where a sentinel watches; of each, the first is done first."""
SPREAD: Mapping[str, Sequence[str]] = {
    "host": HARMS["host"],
    "redis": ("failover", "move", "failover-frozen", "switch", "lag", "hang-up", "flush", "restart"),
}
"""What is done to a cluster."""
PROMOTIONS = frozenset({"failover", "failover-frozen", "switch", "move"})


class Harm:
    """Does all of it, in an order by chance, and again while there is time."""

    def __init__(self, house: House, seed: int, seconds: float) -> None:
        self.house = house
        self.done: Counter[str] = Counter()
        self._chances = {of: drawn(f"{seed} {of}") for of in HARMS}
        self._harms = _harms_to(house.servers)
        self._seconds = seconds
        self._whole = set(house.up)
        self._ways: dict[str, Callable[[], Awaitable[None]]] = {
            "delay": partial(self._on_the_way, lambda way: way.delayed(0.03, 1.0)),
            "drop": partial(self._on_the_way, lambda way: way.dropped(0.5)),
            "cut": partial(self._on_the_way, lambda way: way.cut()),
            "half-close": partial(self._on_the_way, lambda way: way.half_closed("node")),
            "half-close-redis": partial(self._on_the_way, lambda way: way.half_closed("redis")),
            "flush": self._flush,
            "restart": house.servers.restart,
            "outage": self._outage,
            "lag": self._lag,
            "hang-up": self._hang_up,
        }
        if isinstance(house.servers, Spread):
            self._ways["move"] = house.servers.moved
        if isinstance(house.servers, Watched | Spread):
            self._ways |= {
                "failover": partial(house.servers.replaced, frozen=False),
                "failover-frozen": partial(house.servers.replaced, frozen=True),
                "switch": house.servers.switched,
            }

    async def run(self) -> None:
        """Do harm for its time; afterwards all is whole again."""
        until_s = anyio.current_time() + self._seconds
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._again, "host", self._host_soon(tasks), until_s)
            tasks.start_soon(self._again, "redis", self._redis, until_s)

    async def _again(self, of: str, do: Callable[[str], Awaitable[None]], until_s: float) -> None:
        """Do each harm once, and again in another order, and so on."""
        chance, harms = self._chances[of], self._harms[of]
        while True:
            first = [] if self.done[harms[0]] else [harms[0]]
            for harm in (*first, *chance.sample(harms, len(harms))):
                if anyio.current_time() >= until_s:
                    return
                if not await self._ready(harm):
                    await anyio.sleep(POLL_S)
                    continue
                await do(harm)
                self.done[harm] += 1
                await anyio.sleep(chance.uniform(*APART_S[of]))

    async def _ready(self, harm: str) -> bool:
        """Whether it can be done now: a sentinel that knows of no replica promotes none."""
        servers = self.house.servers
        try:
            return harm not in PROMOTIONS or not isinstance(servers, Watched | Spread) or await servers.ready()
        except TROUBLE:  # of a machine that is too busy to answer in time
            return False

    def _host_soon(self, tasks: anyio.abc.TaskGroup) -> Callable[[str], Awaitable[None]]:
        async def begun(harm: str) -> None:
            while len(self._whole) < 2:  # noqa: ASYNC110 - one host is always left whole
                await anyio.sleep(POLL_S)
            number = self._chances["host"].choice(sorted(self._whole))
            self._whole.remove(number)
            tasks.start_soon(self._host, harm, number)

        return begun

    async def _redis(self, harm: str) -> None:
        await self._ways[harm]()

    async def _host(self, harm: str, number: int) -> None:
        if harm == "pause":
            await self.house.pause(number, PAUSED_S)
        else:
            await (self.house.kill(number) if harm == "kill" else self.house.drain(number))
            await self.house.start(number)
        self._whole.add(number)

    async def _on_the_way(self, harm: Callable[[Proxy], Coroutine[Any, Any, None]]) -> None:
        """Do it everywhere between hosts and Redis at once; a sentinel may take a primary for dead of it."""
        async with anyio.create_task_group() as tasks:
            for way in self.house.ways:
                tasks.start_soon(harm, way)
        if isinstance(self.house.servers, Watched):
            await self.house.servers.whole()

    async def _flush(self) -> None:
        await self._told("flush", ("SCRIPT", "FLUSH"))

    async def _hang_up(self) -> None:
        """Let the primaries end all connections."""
        await self._told("hang-up", ("CLIENT", "KILL", "TYPE", "pubsub"), ("CLIENT", "KILL", "TYPE", "normal"))

    async def _told(self, harm: str, *commands: Sequence[str]) -> None:
        try:
            async with connected(self.house) as link:
                await link.pipeline(commands)
        except TROUBLE:
            self.done[harm] -= 1

    async def _lag(self) -> None:
        """Let a replica take nothing for a while."""
        assert isinstance(self.house.servers, Watched | Spread)
        async with self.house.servers.lagging():
            await anyio.sleep(self._chances["redis"].uniform(0.5, 2.5))
        await self.house.servers.whole()

    async def _outage(self) -> None:
        with self.house.servers.frozen():
            await anyio.sleep(self._chances["redis"].uniform(0.5, 2.0))


def _harms_to(servers: Servers) -> Mapping[str, Sequence[str]]:
    """What can be done where Redis is *servers*."""
    if isinstance(servers, Spread):
        return SPREAD
    return WATCHED if isinstance(servers, Watched) else HARMS
