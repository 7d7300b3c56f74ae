"""A node that dies at every step of a Host run, before and after its effect; its client goes on elsewhere, by the same keys.

Whatever the client was answered before, it is answered again; nothing was done twice; the run's events tell one story.
By default every fifth step is tried; SLOW_TESTS=1 tries them all.
"""

import os
from collections import Counter
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors.node import NodeSettings
from actors.ports import ModelContext, ModelRequest, ToolMessage, Turn, UserMessage
from eventstore.memory import MemoryStore
from tests.actors.reviewing import CountingTool, call
from tests.actors.support import Clock, FakeModel, new_memory, until, until_so
from tests.actors.test_crash import Dying
from tests.api.host.hosting import ENDS, Desk, creating, hosting
from tests.host_client import Object

pytestmark = pytest.mark.anyio

SHORT = NodeSettings(lease_ms=150, routine_ms=20, permit_begin_ms=5_000, reassured_s=0.05, drain_s=0.01)
LATER_MS = 60_000
STRIDE = 1 if os.environ.get("SLOW_TESTS") else 5
AT_ONCE = 4
ONCE = frozenset({"run_created", "run_started", "approval_required", "approval_granted", "run_resumed"})


class World:
    """What survives a node: the store, what its model and tool saw, and what the client was told under which key."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = new_memory(self.clock)
        self.model = FakeModel(self._answer)
        self.tool = CountingTool("reviewed", reviewed=True)
        self.told: dict[str, Object] = {}
        self.named: Object = {}
        """The run and the approval that was seen of it."""

    async def _answer(self, request: ModelRequest, _: ModelContext) -> Turn:
        first = request.messages[0]
        assert isinstance(first, UserMessage)
        if first.content == "hang":
            await anyio.sleep_forever()
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return Turn(text="done")
        return Turn(tool_calls=(call("reviewed"),))

    async def changed(self, desk: Desk, operation: str, body: Object, key: str) -> Object:
        """Ask until the host knows; what was told before under a key is told again."""
        while (told := await desk.asked(operation, body, key))["error"] is not None:
            if told["error"]["code"] != "unavailable":
                break
            await anyio.sleep(0.005)
        said = {"body": told["body"], "error": told["error"]}
        assert self.told.setdefault(key, said) == said, key
        return told

    async def client(self, desk: Desk) -> None:
        """Have a run approved, resumed and ended, and another one cancelled."""
        asked = {"prompt": "work", "tools": ["reviewed"]}
        assert (await self.changed(desk, "create_run", creating("work", input=asked), "k1"))["ok"]
        view = await desk.until("work", lambda view: view["approval"] is not None or view["status"] in ENDS)
        approval_id = "none" if view["approval"] is None else view["approval"]["approvalId"]
        named = {"runId": "work", "approvalId": approval_id}
        if "k2" not in self.told and view["approval"] is None:
            return  # its model call was lost with its node, and the run with it
        self.named = named if view["approval"] is not None else self.named
        await self.changed(
            desk, "resolve_approval", self.named | {"expectedRevision": 3, "resolution": "approved"}, "k2"
        )
        await self.changed(desk, "resume_run", self.named | {"expectedRevision": 4}, "k3")
        await desk.ended("work")
        assert (await self.changed(desk, "create_run", creating("hang"), "k4"))["ok"]
        await self.changed(desk, "cancel_run", {"runId": "hang", "expectedRevision": 2, "reason": "enough"}, "k5")
        await desk.ended("hang")

    async def dies(self, step: int, *, after: bool) -> int:
        """Serve the client on a node that dies at *step*, if it comes that far; how many steps there were."""
        store: Any = Dying(MemoryStore(self.memory, "n1"), step, after=after)
        served = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                async with hosting(self.model, store, self.tool, node=SHORT) as desk:
                    await self.client(desk)
                served.set()

            tasks.start_soon(serve)
            await until(lambda: store.dead.is_set() or served.is_set())
            tasks.cancel_scope.cancel()
        return int(store.steps)


async def survived(step: int, *, after: bool) -> None:
    """Let the first node die at *step*, and the client go on at another."""
    world = World()
    await world.dies(step, after=after)
    world.clock.ahead_ms += LATER_MS
    async with hosting(world.model, MemoryStore(world.memory, "n2"), world.tool, node=SHORT) as desk:
        await world.client(desk)
        await _judged(world, desk, (step, after))


async def _judged(world: World, desk: Desk, where: object) -> None:
    view = await desk.ended("work")
    types = await desk.types("work")
    assert len(types) == view["revision"], where
    assert not [name for name, times in Counter(types).items() if name in ONCE and times > 1], (where, types)
    assert len(world.tool.seen) <= 1, where
    if view["status"] == "completed":
        assert types[-2:] == ["tool_result_admitted", "run_completed"], where
        assert len(world.tool.seen) == 1, where
    else:
        assert view["error"] == "execution interrupted", (where, view)
    if "k5" in world.told:
        other = await desk.view("hang")
        assert (other["status"], other["error"]) in {("cancelled", "enough"), ("failed", "execution interrupted")}, (
            where
        )
    await until_so(lambda: _given_back(world))
    assert desk.faults == [], where


async def _given_back(world: World) -> bool:
    """Whether no slot is held by anything that has ended."""
    return not (await world.memory.ledger.counted("runs")).held


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_whatever_a_dead_node_left_is_finished_under_the_same_keys_and_done_once(*, after: bool) -> None:
    steps = await World().dies(-1, after=False)
    assert steps > 30
    begin = STRIDE // 2 if after else 0
    numbers = list(range(begin, steps, STRIDE))
    for at in range(0, len(numbers), AT_ONCE):
        async with anyio.create_task_group() as tasks:
            for step in numbers[at : at + AT_ONCE]:
                tasks.start_soon(lambda step=step: survived(step, after=after))  # type: ignore[misc]


async def test_a_reservation_that_was_left_is_finished_by_whoever_comes_again() -> None:
    world = World()
    async with hosting(world.model, MemoryStore(world.memory, "n1"), world.tool, node=replace(SHORT)) as desk:
        assert desk.host.agent_host is not None
        first = await desk.asked("create_run", creating("hang"), "k")
        twins = [await desk.asked("create_run", creating("hang"), "k") for _ in range(3)]
        assert all(one["body"] == first["body"] for one in twins)
    assert len([kept for kept in world.memory.actors.values() if kept.log]) == 2
