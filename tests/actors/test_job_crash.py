"""Nodes that die at every step of a job's life, before and after its effect, or that shut down; another one carries on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import reduce
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from typing_extensions import override

from actors import kinds, run
from actors.dispatch import BLOCK_BYTES
from actors.events import RunClaimed, RunHandedOver
from actors.node import NodeSettings
from eventstore.memory import MemoryStore
from eventstore.store import Caps
from tests.actors import test_crash as crashing
from tests.actors.reviewing import CountingTool
from tests.actors.support import Clock, FakeModel, new_memory, until, until_so
from tests.actors.working import BRISK, LIMITS, Desk, Gated, Held, on_account, once, shown_of, uses_its_tool, working

pytestmark = pytest.mark.anyio

EFFECTS = frozenset({"append", "take", "give", "begun", "settle", "enlist", "dispatch"})
KEPT = replace(LIMITS, retention_ms=24 * 3_600_000)
SLOW = NodeSettings(lease_ms=30_000, routine_ms=60_000, permit_begin_ms=5_000, reassured_s=60, drain_s=0.01)
"""Of a node that is to die: it does nothing but what the job needs, so that each of its steps is the job's."""
QUICK = NodeSettings(lease_ms=150, routine_ms=15, permit_begin_ms=5_000, reassured_s=60, drain_s=0.01)
AT_ONCE = 12


class Dying(crashing.Dying):
    """A node's store that stops answering at one step."""

    @override
    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(found) if name in EFFECTS else found


class World:
    """One deployment, and a job that uses a tool between two model calls."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.clock = Clock()
        self.memory = new_memory(self.clock)
        self.tool = CountingTool(idempotent=idempotent)
        self.model = on_account(FakeModel(uses_its_tool))
        self.records: list[Mapping[str, Any]] = []

    @asynccontextmanager
    async def node(self, name: str, settings: NodeSettings, store: Any = None) -> AsyncIterator[Desk]:
        patience = replace(KEPT, poll_interval_ms=60_000 if settings is SLOW else 20)
        async with working(
            self.model,
            store or MemoryStore(self.memory, name),
            self.tool,
            jobs=patience,
            node=settings,
            usage=self._kept,
        ) as desk:
            yield desk

    async def _kept(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    async def crash(self, name: str, settings: NodeSettings, step: int, *, after: bool) -> int:
        """Run the job on a node that dies at *step*, if it comes that far; how many steps it took."""
        store: Any = Dying(MemoryStore(self.memory, name), step, after=after)
        async with anyio.create_task_group() as tasks:
            served = anyio.Event()

            async def serve() -> None:
                async with self.node(name, settings, store) as desk:
                    await desk.ended(await desk.submit("k", tools=["host"]))
                    await until(lambda: not (desk.host.node.executing or self.owed("usage")))
                    served.set()

            tasks.start_soon(serve)
            await until(lambda: store.dead.is_set() or served.is_set())
            tasks.cancel_scope.cancel()
        self.clock.ahead_ms += 60_000
        return int(store.steps)

    def owed(self, *reasons: str) -> bool:
        """Whether anything is due for one of *reasons*."""
        return any(reason in reasons for due in self.memory.due.values() for _, reason in due)

    def job(self) -> run.State:
        """The job as the store has it."""
        kept = [kept for kept in self.memory.actors.values() if kept.log]
        assert len(kept) <= 1
        entries = kept[0].log.values() if kept else ()
        return reduce(kinds.RUN.evolve, (kinds.RUN.decode(entry.data) for entry in entries), kinds.RUN.initial)

    def fate(self) -> str:
        """How the job must end, by what its log says now."""
        state = self.job()
        if isinstance(state, run.Ended):
            return "interrupted" if run.interrupted(state) else state.kind
        if not isinstance(state, run.Live):
            return "completed"
        in_tool = state.open is not None and state.open.stage == "started" and not self.tool.idempotent
        return "interrupted" if in_tool or state.step > state.answered else "completed"

    def is_between_effects(self) -> bool:
        """Whether the tool's output is stored, and the model has not been asked again."""
        state = self.job()
        return isinstance(state, run.Live) and bool(self.tool.seen) and not state.open and state.step == state.answered

    async def closed(self, name: str, fate: str, where: object) -> None:
        """Have one more node carry on, its client ask again, and see to it that nothing is left over."""
        async with self.node(name, QUICK) as desk:
            job = await desk.ended(await desk.submit("k", tools=["host"]))
            assert job.state == fate, where
            (kept,) = (kept for kept in self.memory.actors.values() if kept.log)
            once(shown_of(kept))
            if fate == "interrupted":
                *_, last = (await desk.page(job))["events"]
                assert (last["error"]["code"], last["error"]["outcome"]) == ("JOB_INTERRUPTED", "uncertain"), where
            await until(lambda: not self.owed("permit", "usage", "work", "lease"))
            await until_so(lambda: _settled(desk))
            assert (await desk.counted("jobs")).held == 1, where
            assert (await desk.counted("job-bytes")).weight == BLOCK_BYTES, where
        assert self.model.calls <= 2, where
        assert len(self.tool.seen) <= 1 + self.tool.idempotent, where
        assert len({(run_id, call_id) for run_id, call_id, _ in self.tool.seen}) <= 1, where
        assert fate != "completed" or self.tool.seen, where
        assert self.records, where
        assert all(record == self.records[0] for record in self.records), where


async def _settled(desk: Desk) -> bool:
    counted = await desk.counted("runs")
    return not (counted.held or counted.queued or counted.waiting)


async def _each(trials: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Carry out *trials*, some at once: each spends its time waiting."""
    places = anyio.CapacityLimiter(AT_ONCE)

    async def one(trial: Callable[[], Awaitable[None]]) -> None:
        async with places:
            await trial()

    async with anyio.create_task_group() as tasks:
        for trial in trials:
            tasks.start_soon(one, trial)


@pytest.mark.parametrize("idempotent", [False, True], ids=["once", "again"])
async def test_wherever_a_node_dies_another_ends_its_job_once_and_nothing_is_left_over(*, idempotent: bool) -> None:
    steps = await World().crash("n1", SLOW, -1, after=False)
    fates: list[str] = []

    async def trial(step: int, *, after: bool) -> None:
        world = World(idempotent=idempotent)
        await world.crash("n1", SLOW, step, after=after)
        fate = world.fate()
        fates.append(fate)
        await world.closed("n2", fate, (step, after))

    await _each([_trial(trial, step, after=after) for step in range(steps) for after in (False, True)])
    assert steps >= 15
    assert {"completed", "interrupted"} == set(fates)


def _trial(trial: Callable[..., Awaitable[None]], *words: int, after: bool) -> Callable[[], Awaitable[None]]:
    return lambda: trial(*words, after=after)


async def test_wherever_the_node_dies_that_took_over_a_third_one_ends_the_job() -> None:
    first = await _step_between_effects()

    async def left() -> World:
        for off in (0, 0, 1, -1, 2, -2, 3, -3):  # what a node does besides is not always as much
            world = World()
            await world.crash("n1", SLOW, first + off, after=True)
            if world.is_between_effects():
                return world
        raise AssertionError("the node never dies between two effects")

    steps = await (await left()).crash("n2", QUICK, -1, after=False)

    async def trial(step: int, *, after: bool) -> None:
        world = await left()
        await world.crash("n2", QUICK, step, after=after)
        await world.closed("n3", world.fate(), (step, after))

    await _each([_trial(trial, step, after=True) for step in range(steps)])


async def _step_between_effects() -> int:
    """The step with which the output of the job's tool is stored."""
    for step in range(await World().crash("n1", SLOW, -1, after=False)):
        world = World()
        await world.crash("n1", SLOW, step, after=True)
        if world.is_between_effects():
            return step
    raise AssertionError


async def test_the_loss_of_a_node_interrupts_its_own_jobs_and_no_others() -> None:
    clock, held = Clock(), Held()
    memory = new_memory(clock)
    paused: Any = crashing.Pausing(MemoryStore(memory, "n1"))
    alone = replace(LIMITS, max_workers=1, retention_ms=24 * 3_600_000)
    async with (
        working(held.model, paused, jobs=alone, node=QUICK) as one,
        working(held.model, MemoryStore(memory, "n2"), jobs=alone, node=QUICK) as two,
    ):
        jobs = [await one.submit(key) for key in ("a", "b")]
        await until(lambda: len(held.inside) == 2)
        (lost,) = (job for job in jobs if job.id in one.host.node.executing)
        (kept,) = (job for job in jobs if job is not lost)
        paused.pause()
        clock.ahead_ms += 1_000
        assert (await two.ended(lost)).state == "interrupted"
        assert (await two.read(kept)).state == "running"
        held.let_go("a", "b")
        assert (await two.ended(kept)).state == "completed"
        heads = memory.actors[lost.id].heads
        paused.resume()
        await until(lambda: not one.host.node.executing)
        assert memory.actors[lost.id].heads == heads
        once(await two.types(lost))


# Shutting down.


async def test_a_job_between_two_effects_is_handed_over_as_its_node_shuts_down() -> None:
    clock = Clock()
    memory, tool = new_memory(clock), Gated(shut=True)
    model = on_account(FakeModel(uses_its_tool))
    async with working(model, MemoryStore(memory, "n1"), tool, node=replace(BRISK, drain_s=5)) as one:
        job = await one.submit("k", tools=["host"])
        await until(lambda: len(tool.seen) == 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.host.drain)
            await until(one.host.node.closing.is_set)
            tool.gate.set()
        assert (await one.read(job)).state == "running"
        assert (memory.actors[job.id].heads.owner, model.calls) == ("", 1)
    clock.ahead_ms += 3_000  # the node that left may have looked at it last
    async with working(model, MemoryStore(memory, "n2"), tool) as two:
        assert (await two.ended(job)).state == "completed"
        once(await two.types(job))
        told = [type(logged.event) for logged in await two.host.log(job.id)]
        assert told.count(RunHandedOver) == told.count(RunClaimed) == 1
        assert (model.calls, len(tool.seen)) == (2, 1)
        await until_so(lambda: _settled(two))


async def test_a_model_call_that_outlives_the_drain_interrupts_its_job_and_queued_ones_stay_queued() -> None:
    memory, held = new_memory(), Held()
    caps = Caps(total=1)
    bounds: Callable[[str, str], Caps] = lambda _subject, _account: caps  # noqa: E731 - a value
    brief = replace(BRISK, drain_s=0.05)
    async with working(held.model, MemoryStore(memory, "n1"), caps=bounds, node=brief) as one:
        job = await one.submit("k")
        await until(lambda: held.inside == ["k"])
        waiting = await one.submit("later")
        await one.host.drain()
        assert (await one.read(job)).state == "interrupted"
        assert (await one.read(waiting)).state == "queued"
        *_, last = (await one.page(job))["events"]
        assert (last["error"]["code"], last["error"]["outcome"]) == ("JOB_INTERRUPTED", "uncertain")
    assert held.begun == ["k"]
    held.let_go("later")
    async with working(held.model, MemoryStore(memory, "n2"), caps=bounds) as two:
        assert (await two.ended(waiting)).state == "completed"
        assert (await two.read(job)).state == "interrupted"
        assert held.begun == ["k", "later"]


async def test_a_model_call_that_ends_within_the_drain_completes_its_job() -> None:
    memory, held = new_memory(), Held()
    async with working(held.model, MemoryStore(memory, "n1"), node=replace(BRISK, drain_s=5)) as one:
        job = await one.submit("k")
        await until(lambda: held.inside == ["k"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.host.drain)
            await until(one.host.node.closing.is_set)
            held.let_go("k")
        assert (await one.read(job)).state == "completed"
