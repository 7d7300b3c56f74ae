"""A run that waits for somebody and to which no client is attached: it costs nothing but its place in the store."""

import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import run
from actors.events import ToolFact
from actors.node import NodeSettings
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Caps
from runstream.host import Host
from tests.actors.reviewing import (
    APPLICATION,
    FAST,
    REVIEWED,
    CountingTool,
    anybody,
    begun,
    call,
    companions_of,
    open_companion,
    tooled,
    using,
)
from tests.actors.support import Clock, ended, new_memory, types, until

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
MANY = 400
ROUTINES = 16
"""Tasks of a node itself at any moment, however many runs wait."""
BYTES_EACH = 10_000
"""100 MB for 10,000 waiting runs; `bench/decisions.py` measures those on a real server."""


@asynccontextmanager
async def nodes(
    memory: Memory, tool: CountingTool, fact: ToolFact, count: int, node: NodeSettings = FAST
) -> AsyncIterator[list[Host]]:
    used = () if fact.application else (tool,)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                tooled(using(call(fact.name)), MemoryStore(memory, f"n{number}"), *used, node=node)
            )
            for number in range(count)
        ]


@pytest.mark.parametrize(
    ("fact", "kind"), [(REVIEWED, "approval"), (APPLICATION, "ticket")], ids=["person", "application"]
)
async def test_a_job_that_waits_has_no_task_no_lease_and_no_owner(fact: ToolFact, kind: str) -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with nodes(memory, tool, fact, 2) as (one, two):
        run_id = await begun(one, fact)
        await until(lambda: bool(open_companion(memory, kind)) and not one.node.executing)
        heads = memory.actors[run_id].heads
        assert (heads.owner, heads.lease_ms) == ("", 0)
        assert not [reason for due in memory.due.values() for actor, reason in due if actor == run_id]
        before = heads.epoch, heads.log
        began = anyio.current_time()
        await until(lambda: anyio.current_time() > began + 0.4)  # three leases long
        heads = memory.actors[run_id].heads
        assert (heads.epoch, heads.log) == before
        assert not one.node.executing
        assert not two.node.executing


async def test_who_takes_over_a_run_that_was_let_go_of_meanwhile_leaves_it_alone() -> None:
    memory, tool = new_memory(Clock()), CountingTool()
    async with nodes(memory, tool, APPLICATION, 2) as (one, two):
        run_id = await begun(one, APPLICATION)
        await until(lambda: bool(open_companion(memory, "ticket")) and not one.node.executing)
        before = memory.actors[run_id].heads
        await two.node.take_over(run_id)  # it saw a lapsed lease, and stood still until now
        assert memory.actors[run_id].heads == before
        await one.decisions.deliver(anybody(), open_companion(memory, "ticket"), run_id, "c1", Raw(b"1"))
        assert types(await ended(two, run_id))[-1] == "run.completed"


async def test_a_job_that_waits_keeps_its_slot() -> None:
    clock = Clock()
    memory, tool = new_memory(clock), CountingTool("reviewed", reviewed=True)
    seldom = replace(FAST, reassured_s=60)
    async with nodes(memory, tool, REVIEWED, 1, seldom) as (one,):
        await until(lambda: None not in one.node.sweeps.touched_ms())  # its routines have begun, with nothing to say
        await begun(one, REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")) and not one.node.executing)
        clock.ahead_ms += 2 * seldom.permit_begin_ms
        await one.store.dispatch("runs", 1, Caps(total=1))  # takes off what has lapsed
        assert (await memory.ledger.counted("runs")).held == 1


@pytest.mark.parametrize("by", [0, 1, 2])
async def test_whichever_node_records_the_decision_carries_the_run_on(by: int) -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with nodes(memory, tool, REVIEWED, 3) as hosts:
        run_id = await begun(hosts[0], REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")) and not hosts[0].node.executing)
        epoch = memory.actors[run_id].heads.epoch
        approval_id = open_companion(memory, "approval")
        await hosts[by].decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
        assert run_id in hosts[by].node.executing
        heads = memory.actors[run_id].heads
        assert (heads.owner, heads.epoch) == (f"n{by}", epoch + 1)
        assert types(await ended(hosts[0], run_id))[-1] == "run.completed"
        assert len(tool.seen) == 1


async def test_whichever_node_takes_the_result_carries_the_run_on() -> None:
    memory, tool = new_memory(Clock()), CountingTool()
    async with nodes(memory, tool, APPLICATION, 2) as (one, two):
        run_id = await begun(one, APPLICATION)
        await until(lambda: bool(open_companion(memory, "ticket")) and not one.node.executing)
        await two.decisions.deliver(anybody(), open_companion(memory, "ticket"), run_id, "c1", Raw(b"1"))
        assert run_id in two.node.executing
        assert types(await ended(one, run_id))[-1] == "run.completed"


async def test_a_denied_job_ends_without_being_taken_up_by_anybody() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with nodes(memory, tool, REVIEWED, 2) as (one, two):
        run_id = await begun(one, REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")) and not one.node.executing)
        await two.decisions.decide(anybody(), open_companion(memory, "approval"), run_id, CALL, "deny")
        assert not two.node.executing
        state, heads = await one.state(run_id)
        assert isinstance(state, run.Ended)
        assert heads.owner == ""


async def test_a_run_whose_client_waits_with_it_keeps_its_owner() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with nodes(memory, tool, REVIEWED, 1) as (one,):
        run_id = await begun(one, REVIEWED, origin="foreground")
        await until(lambda: bool(open_companion(memory, "approval")))
        assert memory.actors[run_id].heads.owner == "n0"
        assert run_id in one.node.executing


async def test_many_waiting_jobs_take_little_of_a_nodes_memory_and_none_of_its_tasks() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    unhurried = NodeSettings(permit_begin_ms=60_000, routine_ms=100)
    async with nodes(memory, tool, REVIEWED, 1, unhurried) as (one,):
        tasks_before = _tasks()
        places = anyio.CapacityLimiter(20)

        async def start() -> None:
            async with places:
                await begun(one, REVIEWED)

        tracemalloc.start()
        try:
            before = _own_bytes()
            async with anyio.create_task_group() as tasks:
                for _ in range(MANY):
                    tasks.start_soon(start)
            await until(lambda: len(companions_of(memory, "approval")) == MANY and not one.node.executing)
            grown = _own_bytes() - before
        finally:
            tracemalloc.stop()
        assert grown <= MANY * BYTES_EACH
        assert len(one.node.around.shell._hot) < MANY / 10  # but for what a renewal under way looked at
        assert _tasks() <= tasks_before + ROUTINES


def _tasks() -> int:
    return len(anyio.get_running_tasks())


def _own_bytes() -> int:
    """What is allocated by anything but the store, which stands for another process here."""
    gc.collect()
    elsewhere = [tracemalloc.Filter(inclusive=False, filename_pattern="*/eventstore/*", all_frames=True)]
    kept: Any = tracemalloc.take_snapshot().filter_traces(elsewhere)
    return sum(trace.size for trace in kept.statistics("filename"))
