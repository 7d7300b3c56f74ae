"""Runs that outlive their connection and their node: who is attached, and what another node finds (extensions §1)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from actors.errors import Refused
from actors.events import RunAccepted, RunCancelled, RunClaimed, RunHandedOver
from actors.node import NodeSettings
from actors.ports import Model, Tool
from actors.viewing import Cursor
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Caps, Item, Unavailable
from runstream.host import Host
from tests.actors.conversing import holding, log_of
from tests.actors.reviewing import (
    HOST,
    REVIEWED,
    CountingTool,
    anybody,
    call,
    open_companion,
    tooled,
    using,
    wanted,
)
from tests.actors.support import Clock, FakeModel, asking, ended, new_memory, saying, stalling, types, until
from tests.actors.test_crash import EFFECTS
from tests.actors.working import Gated, Held

pytestmark = pytest.mark.anyio

GRACE_MS, LONG_MS = 1_000, 600_000
SLOW = NodeSettings(lease_ms=20_000, routine_ms=10, permit_begin_ms=5_000, reassured_s=0.05, drain_s=0.01)
QUICK_TO_JUDGE = replace(SLOW, lease_ms=100)
"""Of a node that finds out soon that others are gone, and has no run of its own before."""
CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
READS = frozenset({"renew", "sweep", "look", "page"})


def resuming(grace_ms: int = GRACE_MS, **members: Any) -> dict[str, Any]:
    return asking(resume={"graceMs": grace_ms}, **members)


def anything(_: RunAccepted) -> bool:
    return True


@asynccontextmanager
async def two_nodes(
    model: Model, memory: Memory, *tools: Tool, drain_s: float = 0.01, routine_ms: int = 10, **options: Any
) -> AsyncIterator[tuple[Host, Host]]:
    first = replace(SLOW, drain_s=drain_s, routine_ms=routine_ms)
    async with (
        tooled(model, MemoryStore(memory, "n1"), *tools, node=first, **options) as one,
        tooled(model, MemoryStore(memory, "n2"), *tools, node=QUICK_TO_JUDGE, **options) as two,
    ):
        yield one, two


async def followed(host: Host, run_id: str, after: int = 0) -> list[Item]:
    """What follows the event *after*, to the end, for a client that is attached meanwhile."""
    with anyio.fail_after(20):
        async with host.viewing.watch("ann", run_id, anything, Cursor(after)) as watched:
            return [item async for batch in watched.batches for item in batch]


async def begun(host: Host, document: dict[str, Any]) -> str:
    """The id of a run whose client leaves at once."""
    async with host.attend(document, subject="ann") as attended:
        return attended.run_id


def lapses_ms(memory: Memory, run_id: str) -> int:
    """When the lease of a run's client is over; 0 if it has none."""
    return next((at for due in memory.due.values() for key, at in due.items() if key == (run_id, "client")), 0)


async def left(memory: Memory, run_id: str, grace_ms: int = GRACE_MS) -> None:
    """Wait until a run's client has its whole grace."""
    now_ms = memory.clock()
    await until(lambda: lapses_ms(memory, run_id) >= now_ms + grace_ms)


def over(memory: Memory, run_id: str) -> bool:
    return memory.actors[run_id].heads.ended


async def end_of(host: Host, run_id: str) -> Any:
    return (await log_of(host.store, run_id))[-1]


def contiguous(items: Sequence[Item]) -> bool:
    return [item.number for item in items] == list(range(1, len(items) + 1))


# Clients that leave.


async def test_a_client_that_comes_back_in_time_on_another_node_misses_nothing() -> None:
    clock, model = Clock(), holding()
    memory = new_memory(clock)
    async with two_nodes(model, memory) as (one, two):
        async with one.attend(resuming(), subject="ann") as attended:
            assert attended.resumable
            seen = list(await anext(aiter(attended.items())))
        await left(memory, attended.run_id)
        clock.ahead_ms += GRACE_MS - 200
        async with two.viewing.watch("ann", attended.run_id, anything, Cursor(seen[-1].number)) as watched:
            await left(memory, attended.run_id)
            clock.ahead_ms += GRACE_MS - 200
            model.release.set()
            rest = [item async for batch in watched.batches for item in batch]
        assert contiguous(seen + rest)
        assert types(rest)[-1] == "run.completed"
        assert not lapses_ms(memory, attended.run_id)
        assert len(model.asked) == 1


async def test_a_client_that_does_not_come_back_in_time_cancels_its_run() -> None:
    clock, model = Clock(), holding()
    memory = new_memory(clock)
    # The first one sweeps seldom: it may not judge for long, and in step with the second it would take all away from it.
    async with two_nodes(model, memory, routine_ms=1_000) as (one, two):
        run_id = await begun(one, resuming())
        await left(memory, run_id)
        assert not over(memory, run_id)
        clock.ahead_ms += GRACE_MS
        items = await ended(two, run_id)
        end = await end_of(two, run_id)
        assert isinstance(end, RunCancelled)
        assert (types(items)[-1], end.problem.code, end.cause) == ("run.cancelled", "CANCELLED", "client")
        await until(lambda: not one.node.executing)


async def test_without_the_option_leaving_cancels_at_once() -> None:
    memory = new_memory()
    async with two_nodes(holding(), memory) as (one, two):
        async with one.attend(asking(), subject="ann") as attended:
            assert not attended.resumable
            watching = two.viewing.watch("ann", attended.run_id, anything, Cursor())
            async with watching as watched:
                assert await anext(aiter(watched.batches))
                assert not lapses_ms(memory, attended.run_id)
        await until(lambda: over(memory, attended.run_id))
        end = await end_of(two, attended.run_id)
        assert (end.problem.code, end.cause) == ("CANCELLED", "client")


async def test_whoever_stays_attached_on_whichever_node_keeps_the_run_alive() -> None:
    clock, model = Clock(), holding()
    memory = new_memory(clock)
    async with two_nodes(model, memory) as (one, two):
        run_id = await begun(one, resuming())
        for host in (one, two, one):
            async with host.viewing.watch("ann", run_id, anything, Cursor()):
                for _ in range(3):
                    await left(memory, run_id)
                    clock.ahead_ms += GRACE_MS * 2 // 3
        assert not over(memory, run_id)
        model.release.set()
        assert types(await followed(two, run_id))[-1] == "run.completed"


async def test_the_grace_begins_when_the_last_of_several_leaves() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with two_nodes(holding(), memory) as (one, two):
        async with one.attend(resuming(), subject="ann") as attended:
            run_id = attended.run_id
            async with (
                one.viewing.watch("ann", run_id, anything, Cursor()),
                two.viewing.watch("ann", run_id, anything, Cursor()),
            ):
                pass
            for _ in range(3):
                await left(memory, run_id)
                clock.ahead_ms += GRACE_MS * 2 // 3
            assert not over(memory, run_id)
        await left(memory, run_id)
        clock.ahead_ms += GRACE_MS
        await until(lambda: over(memory, run_id))
        assert (await end_of(two, run_id)).cause == "client"


async def test_a_run_whose_client_never_came_to_see_it_is_cancelled_after_the_grace() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with two_nodes(holding(), memory) as (one, two):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(begun, one, resuming())
                await until(lambda: bool(one.node.executing))
                scope.cancel()
        (run_id,) = one.node.executing
        clock.ahead_ms += GRACE_MS + 10
        await until(lambda: over(memory, run_id))
        assert (await end_of(two, run_id)).cause == "client"


class Paused:
    """A node's store that cannot be reached for a while."""

    def __init__(self, store: MemoryStore, calls: frozenset[str] = EFFECTS | READS) -> None:
        self._store = store
        self._calls = calls
        self.out = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self._calls:
            return found

        async def tried(*words: Any, **named: Any) -> Any:
            if self.out:
                raise Unavailable("an outage", 10)
            return await found(*words, **named)

        return tried


async def test_an_outage_longer_than_the_grace_cancels_nothing_that_is_attached() -> None:
    clock, model = Clock(), holding()
    memory = new_memory(clock)
    stores: list[Any] = [Paused(MemoryStore(memory, name)) for name in ("n1", "n2")]
    async with (
        tooled(model, stores[0], node=SLOW) as one,
        tooled(model, stores[1], node=SLOW) as two,
        one.attend(resuming(), subject="ann") as attended,
    ):
        await left(memory, attended.run_id)
        for store in stores:
            store.out = True
        clock.ahead_ms += 12 * GRACE_MS
        stores[1].out = False
        swept_ms = clock()
        await until(lambda: clock() > swept_ms + 100)
        stores[0].out = False
        await until(lambda: over(memory, attended.run_id) or lapses_ms(memory, attended.run_id) > clock())
        model.release.set()
        assert types(await followed(two, attended.run_id))[-1] == "run.completed"


async def test_a_node_cancels_nothing_that_its_own_client_follows_though_it_could_not_say_so() -> None:
    clock = Clock()
    memory = new_memory(clock)
    store: Any = Paused(MemoryStore(memory, "n1"), frozenset({"settle"}))
    judge = replace(SLOW, lease_ms=500)
    async with tooled(holding(), store, node=judge) as host, host.attend(resuming(), subject="ann") as attended:
        await left(memory, attended.run_id)
        store.out = True
        clock.ahead_ms += 2 * GRACE_MS
        lapsed_ms = lapses_ms(memory, attended.run_id)
        await until(lambda: lapses_ms(memory, attended.run_id) != lapsed_ms)  # a sweep that may judge took it
        store.out = False
        await left(memory, attended.run_id)
        assert not over(memory, attended.run_id)


# Nodes that die.


class Mortal:
    """A node's store that answers nothing any more once an event was stored, or just before, or when it is told."""

    def __init__(self, store: MemoryStore, marker: str = "", *, after: bool = True) -> None:
        self._store = store
        self._marker = f'"{marker}"'.encode() if marker else b""
        self._after = after
        self.dead = anyio.Event()

    async def append(self, append: Append) -> Any:
        await self._alive()
        marked = self._marker and any(self._marker in one.data for part in append.parts for one in part.events)
        if marked and not self._after:
            self.dead.set()
            await self._alive()
        outcome = await self._store.append(append)
        if marked:
            self.dead.set()
        await self._alive()
        return outcome

    async def _alive(self) -> None:
        if self.dead.is_set():
            await anyio.sleep_forever()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in EFFECTS | READS:
            return found

        async def guarded(*words: Any, **named: Any) -> Any:
            await self._alive()
            return await found(*words, **named)

        return guarded


class Scene:
    """A client on a node that will die, another reader on the node that survives, and what both were shown."""

    def __init__(self, model: FakeModel, *tools: Tool, marker: str = "", after: bool = True) -> None:
        self.clock = Clock()
        self.memory = new_memory(self.clock)
        self.store: Any = Mortal(MemoryStore(self.memory, "n1"), marker, after=after)
        self.seen: list[Item] = []
        self.watched: list[Item] = []
        self.run_id = ""
        self._model = model
        self._tools = tools

    @asynccontextmanager
    async def open(self, document: dict[str, Any]) -> AsyncIterator[Host]:
        """Begin the run on the node that will die; yields the other one."""
        async with (
            tooled(self._model, self.store, *self._tools, node=SLOW) as one,
            tooled(self._model, MemoryStore(self.memory, "n2"), *self._tools, node=QUICK_TO_JUDGE) as two,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._attend, one, document)
            await until(lambda: bool(self.memory.actors))
            self.run_id = self.run_id or next(iter(self.memory.actors))
            tasks.start_soon(self._watch, two)
            yield two
            await until(lambda: bool(self.watched))
            tasks.cancel_scope.cancel()

    async def bury(self, two: Host) -> list[Item]:
        """Let the dead node's leases lapse; all that its client sees once it has gone on with the other node."""
        with anyio.fail_after(10):
            await self.store.dead.wait()
        seen = [*self.seen]  # the dead node still hears, and its client may see more meanwhile
        self.clock.ahead_ms += 60_000
        return seen + await followed(two, self.run_id, seen[-1].number if seen else 0)

    async def _attend(self, host: Host, document: dict[str, Any]) -> None:
        async with host.attend(document, subject="ann") as attended:
            async for batch in attended.items():
                self.seen += batch

    async def _watch(self, host: Host) -> None:
        self.watched = await followed(host, self.run_id)


COMPLETED = ("run.completed", "")
LOST = ("run.failed", "OPERATION_UNCERTAIN")
UNCERTAIN = ("run.failed", "TOOL_OUTCOME_UNCERTAIN")
PLAIN, IDEMPOTENT = False, True


@pytest.mark.parametrize(
    ("moment", "marker", "idempotent", "end", "used"),
    [
        ("after", "run.accepted", PLAIN, COMPLETED, 1),
        ("after", "step.started", PLAIN, LOST, 0),
        ("before", "turn.completed", PLAIN, LOST, 0),
        ("after", "turn.completed", PLAIN, COMPLETED, 1),
        ("before", "tool.started", PLAIN, COMPLETED, 1),
        ("after", "tool.started", PLAIN, UNCERTAIN, 0),
        ("after", "tool.started", IDEMPOTENT, COMPLETED, 1),
        ("before", "tool.completed", PLAIN, UNCERTAIN, 1),
        ("before", "tool.completed", IDEMPOTENT, COMPLETED, 2),
        ("after", "tool.completed", PLAIN, COMPLETED, 1),
        ("before", "run.completed", PLAIN, LOST, 1),
    ],
)
async def test_a_run_whose_node_dies_goes_on_between_two_effects_and_ends_within_one(
    *,
    moment: str,
    marker: str,
    idempotent: bool,
    end: tuple[str, str],
    used: int,
) -> None:
    tool = CountingTool(idempotent=idempotent)
    scene = Scene(using(call("host")), tool, marker=marker, after=moment == "after")
    async with scene.open(resuming(LONG_MS, **wanted(HOST, approvals=None))) as two:
        items = await scene.bury(two)
    assert contiguous(items)
    assert scene.watched == items
    last = msgspec.json.decode(items[-1].data.replace(b'"sequence":,', b""))
    assert (last["type"], last.get("error", {}).get("code", "")) == end
    assert len(tool.seen) == used
    assert len({call_id for _, call_id, _ in tool.seen}) <= 1


async def test_a_run_whose_node_dies_in_a_model_call_ends_interrupted() -> None:
    model = stalling("some ", "text")
    scene = Scene(model)
    async with scene.open(resuming(LONG_MS)) as two:
        await until(lambda: "text.delta" in types(scene.seen))
        scene.store.dead.set()
        items = await scene.bury(two)
        end = await end_of(two, scene.run_id)
    assert contiguous(items)
    assert scene.watched == items
    assert (end.problem.code, end.problem.outcome, end.cause) == ("OPERATION_UNCERTAIN", "uncertain", "node")
    assert model.calls == 1


async def test_a_model_call_of_which_nothing_was_shown_is_made_again_where_the_host_says_so() -> None:
    tool = CountingTool()
    scene = Scene(using(call("host")), tool, marker="turn.completed", after=False)
    async with scene.open(resuming(LONG_MS, **wanted(HOST, approvals=None))) as two:
        two.node.settings = replace(two.node.settings, repeats_model_calls=True)
        items = await scene.bury(two)
    assert contiguous(items)
    assert types(items)[-1] == "run.completed"
    assert types(items).count("step.started") == 2
    assert len(tool.seen) == 1


async def test_a_model_call_that_showed_text_is_not_made_again_whatever_the_host_says() -> None:
    model = stalling("some ", "text")
    scene = Scene(model)
    async with scene.open(resuming(LONG_MS)) as two:
        two.node.settings = replace(two.node.settings, repeats_model_calls=True)
        await until(lambda: "text.delta" in types(scene.seen))
        scene.store.dead.set()
        items = await scene.bury(two)
    assert types(items)[-1] == "run.failed"
    assert model.calls == 1


async def test_a_run_that_waits_for_a_person_does_not_mind_that_its_node_dies() -> None:
    tool = CountingTool("reviewed", reviewed=True)
    scene = Scene(using(call("reviewed")), tool)
    async with scene.open(resuming(LONG_MS, **wanted(REVIEWED))) as two:
        await until(lambda: "approval.requested" in types(scene.seen))
        scene.store.dead.set()
        approval_id = open_companion(scene.memory, "approval")
        await two.decisions.decide(anybody(), approval_id, scene.run_id, CALL, "approve")
        items = await scene.bury(two)
    assert contiguous(items)
    assert scene.watched == items
    assert types(items)[-1] == "run.completed"
    assert types(items).count("approval.resolved") == 1
    assert len(tool.seen) == 1


async def test_a_run_whose_client_does_not_come_back_from_a_dead_node_is_cancelled() -> None:
    clock, tool = Clock(), CountingTool("reviewed", reviewed=True)
    memory = new_memory(clock)
    store: Any = Mortal(MemoryStore(memory, "n1"))
    model = using(call("reviewed"))
    async with (
        tooled(model, store, tool, node=SLOW) as one,
        tooled(model, MemoryStore(memory, "n2"), tool, node=QUICK_TO_JUDGE) as two,
        one.attend(resuming(**wanted(REVIEWED)), subject="ann") as attended,
    ):
        await until(lambda: bool(open_companion(memory, "approval")))
        store.dead.set()
        clock.ahead_ms += 2 * GRACE_MS
        items = await ended(two, attended.run_id)
        end = await end_of(two, attended.run_id)
    assert contiguous(items)
    assert types(items)[-2:] == ["approval.resolved", "run.cancelled"]
    assert end.cause == "client"
    assert not tool.seen


# Nodes that are told to end.


async def test_a_node_that_ends_lets_go_between_two_effects_and_another_carries_on() -> None:
    memory, tool = new_memory(Clock()), Gated(shut=True)
    model = using(call("host"))
    async with two_nodes(model, memory, tool, drain_s=2) as (one, two):
        run_id = await begun(one, resuming(LONG_MS, **wanted(HOST, approvals=None)))
        await until(lambda: len(tool.seen) == 1)
        one.close()
        assert run_id in one.node.executing
        tool.gate.set()
        items = await followed(two, run_id)
        log = await log_of(two.store, run_id)
        await until(lambda: not one.node.executing)
    assert contiguous(items)
    assert types(items)[-1] == "run.completed"
    (let_go,) = [event for event in log if isinstance(event, RunHandedOver)]
    (claimed,) = [event for event in log if isinstance(event, RunClaimed)]
    assert (let_go.node, claimed.node) == ("n1", "n2")
    assert (len(tool.seen), model.calls) == (1, 2)


@pytest.mark.parametrize(
    "moment", ["run.accepted", "step.started", "turn.completed", "tool.started", "tool.completed", "run.completed"]
)
async def test_at_whichever_moment_a_node_is_told_to_end_its_run_is_carried_on_and_nothing_happens_twice(
    moment: str,
) -> None:
    memory, tool, model = new_memory(Clock()), CountingTool(), using(call("host"))
    store: Any = MemoryStore(memory, "n1")
    append = store.append
    hosts: list[Host] = []

    async def told_to_end(asked: Append) -> Any:
        outcome = await append(asked)
        if any(f'"{moment}"'.encode() in one.data for part in asked.parts for one in part.events):
            hosts[0].close()
        return outcome

    store.append = told_to_end
    async with (
        tooled(model, store, tool, node=replace(SLOW, drain_s=2)) as one,
        tooled(model, MemoryStore(memory, "n2"), tool, node=QUICK_TO_JUDGE) as two,
    ):
        hosts.append(one)
        run_id = await begun(one, resuming(LONG_MS, **wanted(HOST, approvals=None)))
        items = await followed(two, run_id)
        await until(lambda: not one.node.executing)
        assert one.node.closing.is_set()
    assert contiguous(items)
    assert types(items)[-1] == "run.completed"
    assert (len(tool.seen), model.calls) == (1, 2)


async def test_a_client_of_a_node_that_ends_is_still_attached_wherever_it_goes_on() -> None:
    clock, tool = Clock(), Gated(shut=True)
    memory = new_memory(clock)
    async with two_nodes(using(call("host")), memory, tool, drain_s=2) as (one, two):
        async with one.attend(resuming(**wanted(HOST, approvals=None)), subject="ann") as attended:
            await until(lambda: len(tool.seen) == 1)
            one.close()
        await left(memory, attended.run_id)
        clock.ahead_ms += GRACE_MS * 2 // 3
        async with two.viewing.watch("ann", attended.run_id, anything, Cursor()) as watched:
            await left(memory, attended.run_id)
            clock.ahead_ms += GRACE_MS * 2 // 3
            tool.gate.set()
            assert types([item async for batch in watched.batches for item in batch])[-1] == "run.completed"


async def test_what_a_node_that_ends_cannot_let_go_of_in_time_is_cancelled() -> None:
    memory = new_memory(Clock())
    async with two_nodes(stalling("a"), memory) as (one, two):
        run_id = await begun(one, resuming(LONG_MS))
        await until(lambda: memory.actors[run_id].heads.feed >= 3)
        await one.drain()
        items = await ended(two, run_id)
        assert contiguous(items)
        assert (types(items)[-1], (await end_of(two, run_id)).cause) == ("run.cancelled", "shutdown")


async def test_a_plain_run_of_a_node_that_ends_is_cancelled_as_always() -> None:
    memory, tool = new_memory(Clock()), Gated(shut=True)
    async with (
        two_nodes(using(call("host")), memory, tool) as (one, two),
        one.attend(asking(**wanted(HOST, approvals=None)), subject="ann") as attended,
    ):
        await until(lambda: len(tool.seen) == 1)
        await one.drain()
        assert types(await ended(two, attended.run_id))[-1] == "run.cancelled"


async def test_a_run_that_waits_for_a_person_is_nobodys_to_hand_over() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with two_nodes(using(call("reviewed")), memory, tool) as (one, two):
        run_id = await begun(one, resuming(LONG_MS, **wanted(REVIEWED)))
        await until(lambda: bool(open_companion(memory, "approval")) and not one.node.executing)
        await one.drain()
        await two.decisions.decide(anybody(), open_companion(memory, "approval"), run_id, CALL, "approve")
        items = await ended(two, run_id)
        assert contiguous(items)
        assert types(items)[-1] == "run.completed"
        assert not [event for event in await log_of(two.store, run_id) if isinstance(event, RunHandedOver)]


async def test_a_queued_run_that_was_handed_over_keeps_its_place_in_the_line() -> None:
    memory, held = new_memory(Clock()), Held()
    narrow = Caps(total=1, queue_total=8, queue_per_subject=8)
    async with two_nodes(held.model, memory, drain_s=2, caps=lambda _subject, _account: narrow) as (one, two):
        first = await begun(two, resuming(LONG_MS, input="first"))
        await until(lambda: held.begun == ["first"])
        second = await begun(one, resuming(LONG_MS, input="second"))
        third = await begun(two, resuming(LONG_MS, input="third"))
        await one.drain()
        await until(lambda: second in two.node.executing)
        assert not over(memory, second)
        held.let_go("first", "second", "third")
        for run_id in (first, second, third):
            items = await ended(two, run_id)
            assert contiguous(items)
            assert types(items)[-1] == "run.completed"
        assert held.begun == ["first", "second", "third"]


async def test_a_queued_run_whose_node_died_is_waited_for_by_another() -> None:
    clock, held = Clock(), Held()
    memory = new_memory(clock)
    store: Any = Mortal(MemoryStore(memory, "n1"))
    narrow: Any = {"caps": lambda _subject, _account: Caps(total=1, queue_total=8, queue_per_subject=8)}
    async with (
        tooled(held.model, store, node=SLOW, **narrow) as one,
        tooled(held.model, MemoryStore(memory, "n2"), node=QUICK_TO_JUDGE, **narrow) as two,
    ):
        await begun(two, resuming(LONG_MS, input="first"))
        await until(lambda: held.begun == ["first"])
        second = await begun(one, resuming(LONG_MS, input="second"))
        store.dead.set()
        clock.ahead_ms += 60_000
        await until(lambda: second in two.node.executing)
        held.let_go("first", "second")
        assert types(await ended(two, second))[-1] == "run.completed"
        assert held.begun == ["first", "second"]


# Keys.


async def test_a_key_in_progress_names_its_run_only_where_that_can_be_followed() -> None:
    memory = new_memory(Clock())
    async with two_nodes(holding(), memory) as (one, two):
        for key, document in {"a": resuming(LONG_MS), "b": asking()}.items():
            async with one.attend(document | {"idempotencyKey": key}, subject="ann") as attended:
                for host in (one, two):
                    with pytest.raises(Refused) as told:
                        await begun(host, document | {"idempotencyKey": key})
                    error = msgspec.to_builtins(told.value.problem)
                    assert (error["code"], error["retryable"]) == ("OPERATION_IN_PROGRESS", True)
                    assert error.get("runId") == (attended.run_id if key == "a" else None)


async def test_a_client_whose_first_answer_was_lost_follows_the_run_of_its_key() -> None:
    clock, model = Clock(), holding()
    memory = new_memory(clock)
    document = resuming(LONG_MS, idempotencyKey="k")
    async with two_nodes(model, memory) as (one, two):
        await begun(one, document)
        with pytest.raises(Refused) as told:
            await begun(two, document)
        run_id: Any = told.value.problem.run_id
        with suppress(Refused):
            await begun(two, document | {"input": "other"})
        model.release.set()
        items = await followed(two, run_id)
        assert contiguous(items)
        assert types(items)[-1] == "run.completed"
        async with two.attend(document, subject="ann") as replayed:
            assert not replayed.resumable
            assert replayed.run_id == run_id
        assert len(model.asked) == 1


async def test_a_key_whose_run_waits_for_a_person_is_in_progress_and_nobody_ends_it() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    document = resuming(LONG_MS, idempotencyKey="k", **wanted(REVIEWED))
    async with two_nodes(using(call("reviewed")), memory, tool) as (one, two):
        run_id = await begun(one, document)
        await until(lambda: bool(open_companion(memory, "approval")) and not one.node.executing)
        heads = memory.actors[run_id].heads
        await until(lambda: two.node.sweeps.may_judge(run_id, heads))
        with pytest.raises(Refused) as told:
            await begun(two, document)
        assert (told.value.code, told.value.problem.run_id) == ("OPERATION_IN_PROGRESS", run_id)
        assert memory.actors[run_id].heads == heads
        await two.decisions.decide(anybody(), open_companion(memory, "approval"), run_id, CALL, "approve")
        assert types(await ended(two, run_id))[-1] == "run.completed"


async def test_how_long_a_client_may_be_away_is_part_of_what_a_key_stands_for() -> None:
    async with tooled(saying("hi"), MemoryStore(new_memory(), "n1")) as host:
        await begun(host, resuming(idempotencyKey="k"))
        for other in (asking(idempotencyKey="k"), resuming(GRACE_MS + 1, idempotencyKey="k")):
            with pytest.raises(Refused) as told:
                await begun(host, other)
            assert told.value.code == "IDEMPOTENCY_CONFLICT"


@pytest.mark.parametrize(
    "resume", [{}, {"graceMs": 999}, {"graceMs": 3_600_001}, {"graceMs": 1_000.5}, {"graceMs": 5_000, "x": 1}, True, []]
)
async def test_a_grace_out_of_its_bounds_is_refused(resume: Any) -> None:
    async with tooled(saying("hi"), MemoryStore(new_memory(), "n1")) as host:
        with pytest.raises(Refused) as told:
            host.checked(asking(resume=resume))
        assert told.value.code == "INVALID_REQUEST"
