"""What befalls a deployment, and how it is then left in peace until everything has come to rest."""

import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import anyio

from tests.history import all_counted, faults
from tests.host_history import host_faults
from tests.simulation import loop as virtual
from tests.simulation.loop import Stalled, VirtualLoop
from tests.simulation.network import FAIR, LEDGER, Weather
from tests.simulation.workload import Client
from tests.simulation.world import LEASE_MS, NODES, PARTITIONS, Line, Machine, Overheard, World

BUSY_S = 7.0
"""How long clients begin new things."""
REST_S = 120.0
"""How long what is left may take to come to rest once nothing befalls it any more."""
CLIENTS = 5
LEASE_S = LEASE_MS / 1_000


class Verdict(NamedTuple):
    """What a seed came to."""

    seed: int
    faults: list[str]
    lines: list[Line]
    runs: int
    at_s: float


def played(seed: int) -> Verdict:
    """Play one seed."""
    with virtual.swept_up():
        return _verdict(seed)


def _verdict(seed: int) -> Verdict:
    worlds: list[World] = []

    async def play(loop: VirtualLoop) -> list[str]:
        world = World(loop, seed)
        worlds.append(world)
        with _overheard(world):
            return await _played(world)

    try:
        found = virtual.run(play, seed, lambda _: worlds[0].mono_ms())
    except Stalled as stalled:
        found = [f"stalled: {stalled}"]
    world = worlds[0]
    runs = sum(bool(kept.heads.log) for kept in world.memory.actors.values())
    return Verdict(seed, found, world.lines, runs, world.loop.time() - virtual.EPOCH_S)


async def _played(world: World) -> list[str]:
    for _ in range(NODES):
        world.boot()
    await anyio.sleep(0.1)
    with anyio.move_on_after(BUSY_S + REST_S) as patience:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_befall, world)
            for number in range(CLIENTS):
                tasks.start_soon(Client(world, number, tasks).work, world.loop.time() + BUSY_S)
    if patience.cancelled_caught:
        world.complain("a client waits for ever")
    return await _rested(world)


async def _rested(world: World) -> list[str]:
    """Wait until nothing is left to do; what is wrong then."""
    world.say("everybody is content")
    restless = "?"
    with anyio.move_on_after(REST_S):
        while (restless := world.restless()) or any(one.leaving for one in world.living):  # noqa: ASYNC110
            await anyio.sleep(0.25)
    if restless:
        world.complain("no rest:", restless)
    await _audited(world)
    return [*faults(world.history()), *all_counted(world.history()), *host_faults(world.host_history())]


async def _audited(world: World) -> None:
    """Have the ledger held against the runs once more: a node that died may have left somebody uncounted."""
    world.memory.ledger.history += "'"
    with anyio.move_on_after(REST_S) as patience:
        while world.unaudited():  # noqa: ASYNC110
            await anyio.sleep(0.25)
    if patience.cancelled_caught:
        world.complain("the ledger was not held against the runs")


# Trouble.


async def _befall(world: World) -> None:
    """Let one thing after another befall the deployment, and stop in time."""
    chance = random.Random(f"trouble {world.seed}")  # noqa: S311 - a test's
    kinds = chance.sample(TROUBLES, k=chance.choice((1, 2, 3, 4)))
    until_s, rest_s = world.loop.time() + BUSY_S, chance.choice((0.8, 2.5))
    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.sleep(chance.uniform(0.1, rest_s))
            if world.loop.time() >= until_s:
                break
            tasks.start_soon(chance.choice(kinds), world, chance)
    world.network.weather = FAIR
    world.say("nothing befalls anybody any more")


async def _killed(world: World, chance: random.Random) -> None:
    if (machine := _one_of_several(world, chance)) is not None:
        world.say("KILL", machine.name)
        machine.kill()
        await anyio.sleep(chance.uniform(0, 3))
        world.say("BOOT", world.boot().name)


async def _drained(world: World, chance: random.Random) -> None:
    if (machine := _one_of_several(world, chance)) is not None:
        world.say("DRAIN", machine.name)
        machine.leave()
        await anyio.sleep(chance.uniform(0, 1))
        world.say("BOOT", world.boot().name)
        if chance.random() < 0.2:
            await anyio.sleep(chance.uniform(0, 2))
            if not machine.dead:
                world.say("KILL", machine.name)
                machine.kill()


async def _paused(world: World, chance: random.Random) -> None:
    machine = _one_of_several(world, chance)
    if machine is not None and not machine.paused:
        machine.paused = True
        world.say("PAUSE", machine.name)
        world.loop.pause(machine.name)
        await anyio.sleep(chance.choice((0.3, 0.8, 1.2, 2.2)) * LEASE_S)
        world.say("GO ON", machine.name)
        world.loop.resume(machine.name)
        machine.paused = False


async def _cut(world: World, chance: random.Random) -> None:
    """A node does not reach one thing, or nothing at all."""
    machine = chance.choice(world.living)
    everything = list(range(LEDGER, PARTITIONS))
    places = chance.choice((everything, everything, [chance.choice(everything)]))
    await _away(world, {(machine.name, place) for place in places}, chance.uniform(0.2, 2) * LEASE_S)


async def _partition_down(world: World, chance: random.Random) -> None:
    """Nobody reaches one partition, or the ledger."""
    await _away(world, {("", chance.choice(range(LEDGER, PARTITIONS)))}, chance.uniform(0.2, 2) * LEASE_S)


async def _away(world: World, cut: set[tuple[str, int]], seconds: float) -> None:
    world.say("CUT", sorted(cut))
    world.network.cut |= cut
    world.network.sever()
    await anyio.sleep(seconds)
    world.network.cut -= cut
    world.say("JOINED", sorted(cut))


async def _outage(world: World, chance: random.Random) -> None:
    """Nobody reaches anything, for longer than a lease."""
    if not world.network.down:
        world.say("OUTAGE")
        world.network.down = True
        world.network.sever()
        await anyio.sleep(chance.uniform(1.1, 2.2) * LEASE_S)
        world.network.down = False
        world.say("OUTAGE OVER")


async def _stormy(world: World, chance: random.Random) -> None:
    """Messages are lost and late."""
    bad = Weather(
        request_lost=chance.choice((0, 0.01, 0.04)),
        reply_lost=chance.choice((0, 0.01, 0.04)),
        slow=chance.choice((0, 0.01, 0.05)),
        hint_lost=chance.choice((0, 0.3, 1.0)),
    )
    world.say("STORM", bad)
    world.network.weather = bad
    await anyio.sleep(chance.uniform(1, 4))
    world.network.weather = FAIR


async def _jumped(world: World, chance: random.Random) -> None:
    """The clock of the store moves, by less than a second."""
    jump_ms = chance.randrange(-950, 950)
    world.say("JUMP", jump_ms)
    world.jumped_ms += jump_ms


async def _ledger_went_back(world: World, chance: random.Random) -> None:
    """The ledger is what it was some moments ago, or nothing at all; the runs are not."""
    ledger = world.memory.ledger
    before = dict(ledger._pools)
    await anyio.sleep(chance.uniform(0, 3))
    ledger._pools = before if chance.random() < 0.7 else {}
    ledger.history += "'"
    world.say("THE LEDGER WENT BACK")


TROUBLES: list[Callable[[World, random.Random], Coroutine[Any, Any, None]]] = [
    _killed,
    _drained,
    _paused,
    _cut,
    _partition_down,
    _outage,
    _stormy,
    _jumped,
    _ledger_went_back,
]


def _one_of_several(world: World, chance: random.Random) -> Machine | None:
    """A node that is not the last one."""
    able = [one for one in world.living if one.host is not None and not one.leaving]
    return chance.choice(able) if len(able) > 1 else None


class _overheard:  # noqa: N801 - used like a function
    """Lets a world hear what its nodes log."""

    def __init__(self, world: World) -> None:
        self._handler = Overheard(world)
        self._log = logging.getLogger("actors")

    def __enter__(self) -> None:
        self._level, self._propagates = self._log.level, self._log.propagate
        self._log.addHandler(self._handler)
        self._log.setLevel(logging.INFO)
        self._log.propagate = False

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self._handler)
        self._log.setLevel(self._level)
        self._log.propagate = self._propagates
