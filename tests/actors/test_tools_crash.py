"""A node that dies at every step of a run with tools, before and after its effect; others carry on or close what is left.

Decisions and results are given through the dying node as well, so that every step of theirs is one of those it dies at.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from actors import run
from actors.codec import decode_run
from actors.errors import Refused
from actors.events import (
    ReviewAsked,
    ReviewSettled,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    StepStarted,
    TicketOffered,
    ToolCompleted,
    ToolFact,
    ToolStarted,
    TurnCompleted,
)
from actors.node import NodeSettings
from actors.ports import ToolContext
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Outcome
from runstream.host import Host
from tests.actors.reviewing import (
    APPLICATION,
    HOST,
    REVIEWED,
    REVIEWED_APPLICATION,
    CountingTool,
    anybody,
    begun,
    call,
    companions_of,
    fact,
    open_companion,
    tooled,
    using,
)
from tests.actors.support import Clock, FakeModel, asking, ended, items_of, new_memory, until, until_so
from tests.actors.test_crash import Dying

pytestmark = pytest.mark.anyio

SHORT = NodeSettings(lease_ms=150, routine_ms=25, permit_begin_ms=5_000, reassured_s=0.05, drain_s=0.01)
AT_ONCE = 12
CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
REPEATABLE = fact("host", idempotent=True)
POOLS = ("runs", "approvals", "tickets")
TERMINAL = RunCompleted | RunFailed | RunCancelled


class World:
    """What survives a node: the store, and what tools and models saw."""

    def __init__(self, kind: ToolFact, origin: Any) -> None:
        self.clock = Clock()
        self.memory = new_memory(self.clock)
        self.kind = kind
        self.origin = origin
        self.tool = CountingTool(kind.name, reviewed=kind.requires_approval, idempotent=kind.idempotent)
        self.model: FakeModel = using(call(kind.name))

    def host(self, store: Any) -> Any:
        used = () if self.kind.application else (self.tool,)
        return tooled(self.model, store, *used, node=SHORT)

    def runs(self) -> list[str]:
        begin = b'{"type":"run.'
        actors = list(self.memory.actors.items())
        return [actor for actor, kept in actors if kept.log and kept.log[1].data.startswith(begin)]

    def log(self, run_id: str) -> list[RunEvent]:
        kept = self.memory.actors[run_id]
        return [decode_run(kept.log[version].data) for version in sorted(kept.log)]

    def over(self) -> bool:
        return all(self.memory.actors[run_id].heads.ended for run_id in self.runs())


async def steps_of(kind: ToolFact, origin: Any) -> int:
    world = World(kind, origin)
    store: Any = Dying(MemoryStore(world.memory, "n1"), -1, after=False)
    async with world.host(store) as host, anyio.create_task_group() as tasks:
        tasks.start_soon(answer_everything, host, world)
        await ended(host, await begun(host, kind, origin=origin))
        tasks.cancel_scope.cancel()
    return int(store.steps)


async def answer_everything(host: Host, world: World) -> None:
    """Approve every review and answer every ticket there is, through *host*."""
    while True:
        for run_id in world.runs():
            state, _ = await host.state(run_id)
            open_call = state.open if isinstance(state, run.Live) else None
            with suppress(Refused):
                if open_call is not None and open_call.stage == "reviewed":
                    named = {"id": open_call.call.id, "name": open_call.call.name, "arguments": {"n": 1}}
                    await host.decisions.decide(anybody(), open_call.approval_id, run_id, named, "approve")
                elif open_call is not None and open_call.stage == "offered":
                    await host.decisions.deliver(
                        anybody(), open_call.execution_id, run_id, open_call.call.id, Raw(b"1")
                    )
        await anyio.sleep(0.01)


async def crash(world: World, step: int, *, after: bool) -> None:
    """Run it on a node that dies at *step*, if it comes that far."""
    store: Any = Dying(MemoryStore(world.memory, "n1"), step, after=after)
    finished = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with world.host(store) as host, anyio.create_task_group() as inner:
                inner.start_soon(answer_everything, host, world)
                await ended(host, await begun(host, world.kind, origin=world.origin))
                inner.cancel_scope.cancel()
            finished.set()

        tasks.start_soon(serve)
        await until(lambda: store.dead.is_set() or finished.is_set())
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("origin", ["foreground", "job"])
@pytest.mark.parametrize(
    "kind",
    [HOST, REPEATABLE, REVIEWED, APPLICATION, REVIEWED_APPLICATION],
    ids=["host", "repeatable", "reviewed", "application", "reviewed-application"],
)
async def test_whatever_a_dead_node_left_of_a_call_is_carried_on_or_closed(
    kind: ToolFact, origin: Any, *, after: bool
) -> None:
    places = anyio.CapacityLimiter(AT_ONCE)

    async def died(step: int) -> None:
        async with places:
            await _died_at(step, kind, origin, after=after)

    async with anyio.create_task_group() as tasks:
        for step in range(await steps_of(kind, origin)):
            tasks.start_soon(died, step)


async def _died_at(step: int, kind: ToolFact, origin: Any, *, after: bool) -> None:
    world = World(kind, origin)
    await crash(world, step, after=after)
    left = {run_id: world.log(run_id) for run_id in world.runs()}
    world.clock.ahead_ms += 60_000
    async with world.host(MemoryStore(world.memory, "n2")) as two, anyio.create_task_group() as tasks:
        tasks.start_soon(answer_everything, two, world)
        await until(world.over)
        tasks.cancel_scope.cancel()
        for run_id, before in left.items():
            _judge(world, run_id, before, step)
        world.model = using()
        await items_of(two, asking())  # whoever asks next clears away permits that were never begun
        await _all_given_back(two, world.memory)


async def _all_given_back(host: Host, memory: Memory) -> None:
    async def so() -> bool:
        return not any([(await memory.ledger.counted(pool)).held for pool in POOLS])

    await until_so(so)
    assert not host.node.executing


def _judge(world: World, run_id: str, left: Sequence[RunEvent], step: int) -> None:
    """What became of a run, given its log at the moment in which its node had died."""
    log = world.log(run_id)
    end = log[-1]
    assert isinstance(end, TERMINAL), step
    assert list(log[: len(left)]) == list(left), step
    calls_of = [seen[1] for seen in world.tool.seen]
    repeats = world.kind.idempotent and world.origin == "job"
    assert calls_of in ([], ["c1"], *([["c1", "c1"]] if repeats else [])), step
    for kind, most in ((ReviewAsked, 1), (ReviewSettled, 1), (TicketOffered, 1), (ToolStarted, 1), (ToolCompleted, 1)):
        assert sum(isinstance(event, kind) for event in log) <= most, (step, kind)
    open_companions = [one for kind in ("approval", "ticket") for one in companions_of(world.memory, kind).values()]
    assert all(one.heads.ended for one in open_companions), step
    if isinstance(left[-1], TERMINAL):
        return
    if world.origin == "foreground":
        assert isinstance(end, RunFailed), step
        assert end.cause == "node", step
        assert end.problem.code == ("TOOL_OUTCOME_UNCERTAIN" if _under_way(log) else "OPERATION_UNCERTAIN"), step
    elif _in_a_model_call(left) or (isinstance(left[-1], ToolStarted) and not world.kind.idempotent):
        assert isinstance(end, RunFailed), step
        assert end.problem.code == "JOB_INTERRUPTED", step
    else:
        assert isinstance(end, RunCompleted), (step, end)
        assert bool(calls_of) != world.kind.application, step


def _under_way(log: Sequence[RunEvent]) -> bool:
    return any(isinstance(event, ToolStarted | TicketOffered) for event in log) and not any(
        isinstance(event, ToolCompleted) for event in log
    )


def _in_a_model_call(log: Sequence[RunEvent]) -> bool:
    steps = sum(isinstance(event, StepStarted) for event in log)
    return steps > sum(isinstance(event, TurnCompleted) for event in log)


class HeldTool(CountingTool):
    """A tool that takes as long as a test wants."""

    def __init__(self) -> None:
        super().__init__("reviewed", reviewed=True)
        self.entered, self.gate = anyio.Event(), anyio.Event()

    @override
    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        self.entered.set()
        await self.gate.wait()
        return await super().call(arguments, context)


class Resending(MemoryStore):
    """A store that hears of its next append of *kind* only once it has sent that again."""

    def __init__(self, memory: Memory, node: str, kind: bytes) -> None:
        super().__init__(memory, node)
        self.sent, self.again = anyio.Event(), anyio.Event()
        self._kind = kind

    @override
    async def append(self, append: Append) -> Outcome:
        outcome = await super().append(append)
        if not self.sent.is_set() and any(self._kind in event.data for part in append.parts for event in part.events):
            self.sent.set()
            await self.again.wait()
            outcome = await super().append(append)
        return outcome


async def test_who_hears_late_that_a_question_was_put_repeats_no_call_that_another_node_makes() -> None:
    memory, held, mine = new_memory(), HeldTool(), CountingTool("reviewed", reviewed=True)
    late, calm = Resending(memory, "n1", b"review.asked"), replace(SHORT, lease_ms=60_000)
    async with (
        tooled(using(call("reviewed")), late, mine, node=calm) as one,
        tooled(using(call("reviewed")), MemoryStore(memory, "n2"), held, node=calm) as two,
    ):
        run_id = await begun(one, REVIEWED)
        await late.sent.wait()
        await two.decisions.decide(anybody(), open_companion(memory, "approval"), run_id, CALL, "approve")
        await held.entered.wait()
        late.again.set()
        await until(lambda: run_id not in one.node.executing)
        held.gate.set()
        await ended(two, run_id)
        assert (len(mine.seen), len(held.seen)) == (0, 1)


async def test_who_hears_late_that_it_took_a_run_over_leaves_it_to_whoever_has_it_by_then() -> None:
    memory, held, mine = new_memory(), HeldTool(), CountingTool("reviewed", reviewed=True)
    late = Resending(memory, "n1", b"review.settled")
    calm = replace(SHORT, lease_ms=60_000)
    async with (
        tooled(using(call("reviewed")), late, mine, node=replace(calm, lease_ms=SHORT.lease_ms)) as one,
        tooled(using(call("reviewed")), MemoryStore(memory, "n2"), held, node=SHORT) as two,
    ):
        run_id = await begun(two, REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")))
        async with anyio.create_task_group() as tasks:
            approval_id = open_companion(memory, "approval")
            tasks.start_soon(one.decisions.decide, anybody(), approval_id, run_id, CALL, "approve")
            await late.sent.wait()
            await held.entered.wait()  # the claim has lapsed, and the other node has taken over
            late.again.set()
        held.gate.set()
        await ended(two, run_id)
        assert (len(mine.seen), len(held.seen)) == (0, 1)
