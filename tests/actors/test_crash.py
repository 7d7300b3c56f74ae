"""A node that dies at every step, before and after its effect; another one finds what is left and closes it."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from actors import calls, run
from actors.companions import APPROVALS_POOL
from actors.errors import Refused
from actors.executor import Executor
from actors.node import NodeSettings
from actors.slots import Slot
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Caps, Claim, Heads
from projections import wire_feed
from runstream.host import Host
from tests.actors.support import (
    Clock,
    FakeModel,
    asking,
    free,
    hosted,
    items_of,
    new_memory,
    saying,
    stalling,
    types,
    until,
    until_so,
)

pytestmark = pytest.mark.anyio

FAST = NodeSettings(lease_ms=120, routine_ms=10, permit_begin_ms=50, reassured_s=0.05, drain_s=0.01)
ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})
EFFECTS = frozenset({"append", "take", "give", "begun", "settle"})
KEYED = asking(idempotencyKey="k1")


class Dying:
    """A node's store that stops answering at one step: just before its effect, or just after it."""

    def __init__(self, store: MemoryStore, step: int, *, after: bool) -> None:
        self._store = store
        self._step = step
        self._after = after
        self.dead = anyio.Event()
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(found) if name in EFFECTS else found

    def _guarded(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def guarded(*words: Any) -> Any:
            if self.dead.is_set():
                await anyio.sleep_forever()
            number, self.steps = self.steps, self.steps + 1
            if number == self._step and not self._after:
                await self._die()
            answer = await call(*words)
            if number == self._step:
                await self._die()
            return answer

        return guarded

    async def _die(self) -> None:
        self.dead.set()
        await anyio.sleep_forever()


async def steps_of(document: dict[str, Any]) -> int:
    store: Any = Dying(MemoryStore(new_memory(), "n1"), -1, after=False)
    async with hosted(saying("hi", pieces=["h", "i"]), store, node=FAST) as host:
        await items_of(host, document)
    return int(store.steps)


async def crash(memory: Memory, model: FakeModel, document: dict[str, Any], step: int, *, after: bool) -> None:
    """Run *document* on a node that dies at *step*, if it comes that far."""
    store: Any = Dying(MemoryStore(memory, "n1"), step, after=after)
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with hosted(model, store, node=FAST) as host:
                await items_of(host, document)

        served = anyio.Event()

        async def serve_to_the_end() -> None:
            await serve()
            served.set()

        tasks.start_soon(serve_to_the_end)
        await until(lambda: store.dead.is_set() or served.is_set())
        tasks.cancel_scope.cancel()


def logs(memory: Memory) -> list[Any]:
    return [kept for kept in memory.actors.values() if kept.heads.log]


def shown(kept: Any) -> list[str]:
    return [wire_feed.event_type(kept.feed[number]).decode() for number in sorted(kept.feed)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("document", [asking(), KEYED], ids=["plain", "keyed"])
async def test_whatever_a_dead_node_left_is_closed_by_another_and_nothing_runs_twice(
    document: dict[str, Any], *, after: bool
) -> None:
    for step in range(await steps_of(document)):
        await _died_at(step, document, after=after)


async def _died_at(step: int, document: dict[str, Any], *, after: bool) -> None:
    clock = Clock()
    memory = new_memory(clock)
    model = saying("hi", pieces=["h", "i"])
    await crash(memory, model, document, step, after=after)
    clock.ahead_ms += 60_000
    async with hosted(model, MemoryStore(memory, "n2"), node=FAST) as two:
        await until(lambda: all(kept.heads.ended for kept in logs(memory)))
        for kept in logs(memory):
            assert sorted(kept.feed) == list(range(1, len(kept.feed) + 1)), step
            assert [kind in ENDS for kind in shown(kept)].count(True) == 1, step
            assert shown(kept)[-1] in ENDS, step
        assert model.calls <= 1, step
        if "idempotencyKey" in document:
            await _same_key_again(two, memory, model, step)
        await items_of(two, asking())  # whoever asks next clears away permits that were never begun
        await until_so(lambda: free(memory))


async def _same_key_again(host: Host, memory: Memory, model: FakeModel, step: int) -> None:
    calls = model.calls
    accepted = bool(logs(memory))
    items = await items_of(host, KEYED)
    assert types(items)[-1] in {"run.completed", "run.failed"}
    assert model.calls == (calls if accepted else calls + 1), step
    if types(items)[-1] == "run.failed":
        event = msgspec.json.decode(wire_feed.numbered(items[-1].number, items[-1].data))
        assert event["error"]["code"] == "OPERATION_UNCERTAIN"


async def test_a_node_that_was_paused_beyond_its_lease_writes_nothing_afterwards() -> None:
    clock = Clock()
    memory = new_memory(clock)
    paused: Any = Pausing(MemoryStore(memory, "n1"))
    async with hosted(stalling("a"), paused, node=FAST) as one, one.attend(asking()) as attended:
        await until(lambda: any("text.delta" in shown(kept) for kept in logs(memory)))
        paused.pause()
        clock.ahead_ms += 60_000
        async with hosted(saying("hi"), MemoryStore(memory, "n2"), node=FAST) as two:
            await until(lambda: all(kept.heads.ended for kept in logs(memory)))
            (kept,) = logs(memory)
            before = dict(kept.feed), kept.heads
            paused.resume()
            await until(lambda: not one.node.executing)
            assert (dict(kept.feed), kept.heads) == before
            state, _ = await two.state(attended.run_id)
            assert isinstance(state, run.Ended)
            assert state.cause == "node"


class Pausing:
    """A node's store whose calls wait while the node is paused."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._running = anyio.Event()
        self._running.set()

    def pause(self) -> None:
        self._running = anyio.Event()

    def resume(self) -> None:
        self._running.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._waiting(found) if name in EFFECTS | {"renew", "sweep", "look", "page"} else found

    def _waiting(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def waiting(*words: Any, **named: Any) -> Any:
            await self._running.wait()
            return await call(*words, **named)

        return waiting


async def test_a_living_node_keeps_its_run_while_others_watch() -> None:
    memory = new_memory()
    async with (
        hosted(stalling("a"), MemoryStore(memory, "n1"), node=FAST) as one,
        hosted(stalling(), MemoryStore(memory, "n2"), node=FAST) as two,
        one.attend(asking()) as attended,
    ):
        begun = anyio.current_time()
        await until(lambda: anyio.current_time() > begun + 4 * FAST.lease_ms / 1_000)
        state, heads = await two.state(attended.run_id)
        assert isinstance(state, run.Live)
        assert (heads.owner, heads.epoch) == ("n1", 1)


async def test_a_permit_for_a_question_that_was_not_put_lapses() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with hosted(stalling("a"), MemoryStore(memory, "n1"), node=FAST) as host, host.attend(asking()) as attended:
        await until(lambda: attended.run_id in host.node.executing)
        hold = host.node.executing[attended.run_id].hold
        late = Executor(host.node.around, hold, slot=Slot(started=True), may_start=anyio.lowlevel.checkpoint)
        state, _ = await host.state(attended.run_id)
        assert isinstance(state, run.Live)
        assert await late._permitted(APPROVALS_POOL, "asked", state, Caps(total=9))
        await late._tell(calls.AskReview("asked"))  # the run is elsewhere by now, and nothing is written
        clock.ahead_ms += 60_000
        await host.store.take(Claim(APPROVALS_POOL, "other", "n1", "ann"), Caps(total=9), 1_000)
        assert (await memory.ledger.counted(APPROVALS_POOL)).held == 1


async def test_nobody_judges_a_lease_in_the_moment_in_which_redis_time_has_jumped() -> None:
    clock = Clock()
    memory = new_memory(clock)
    lapsed, anyone = Heads(lease_ms=1), "00000000-0000-8000-8000-000000000001"
    async with hosted(stalling(), MemoryStore(memory, "n1"), node=FAST) as host:
        await until(lambda: host.node.sweeps.may_judge(anyone, lapsed))
        clock.ahead_ms += 30_000
        assert not host.node.sweeps.may_judge(anyone, lapsed)
        await until(lambda: host.node.sweeps.may_judge(anyone, lapsed))


async def test_a_key_whose_node_died_is_ended_by_the_next_asker_and_replays_as_uncertain() -> None:
    clock = Clock()
    memory = new_memory(clock)
    slow = msgspec.structs.replace(FAST, routine_ms=20)
    paused: Any = Pausing(MemoryStore(memory, "n1"))
    model = stalling("a")
    async with hosted(model, paused, node=slow) as one, one.attend(KEYED, subject="ann"):
        await until(lambda: model.calls == 1)
        paused.pause()
        async with hosted(model, MemoryStore(memory, "n2"), node=slow) as two:
            assert await _code(two) == "OPERATION_IN_PROGRESS"
            clock.ahead_ms += 60_000
            await until_so(lambda: _answered(two))
            assert types(await items_of(two, KEYED))[-1] == "run.failed"
            assert model.calls == 1
            paused.resume()


async def _answered(host: Host) -> bool:
    return await _code(host) != "OPERATION_IN_PROGRESS"


async def _code(host: Host) -> str:
    """The code with which the key is refused, if it is."""
    try:
        await items_of(host, KEYED)
    except Refused as refused:
        return refused.code
    return ""
