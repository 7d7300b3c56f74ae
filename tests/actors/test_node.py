"""A node: its leases, what it starts and what it leaves alone, outages, sweeps, and its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors import codec, run
from actors.errors import Refused
from actors.events import RunCancelled, RunClaimed, RunFailed
from actors.node import SHUTTING_DOWN, Execution
from actors.plan import Hold
from actors.ports import ModelContext, ModelRequest, Turn
from actors.slots import Slot, store_by
from eventstore import clock
from eventstore.follow import CursorTooOld
from eventstore.ledger import MemoryLedger
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Caps, Due, Event, Part, Unavailable
from runstream.host import Host
from tests.actors.support import (
    DEADLINE_S,
    QUICK,
    Clock,
    FakeModel,
    asking,
    ended,
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

ALL = frozenset({"append", "look", "page", "save", "renew", "sweep", "settle", "take", "begun", "give"})
DAY_MS = 24 * 3_600 * 1_000


class Faulty:
    """A node's store, of which some methods do not answer for a while."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.down: frozenset[str] = frozenset()
        self.asked: dict[str, int] = {}
        self.hung: set[int] = set()
        """Partitions that do not even say that they do not answer."""
        self.stuck: anyio.Event | None = None

    async def asked_again(self, name: str, times: int) -> None:
        """Wait until *name* was asked *times* more."""
        before = self.asked.get(name, 0)
        await until(lambda: self.asked.get(name, 0) > before + times)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._perhaps(name, found) if name in ALL else found

    def _perhaps(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def perhaps(*words: Any, **named: Any) -> Any:
            self.asked[name] = self.asked.get(name, 0) + 1
            if words[:1] and words[0] in self.hung:
                await anyio.sleep_forever()
            if name in self.down:
                await (self.stuck.wait() if self.stuck else anyio.sleep(0.005))
                raise Unavailable("an outage", 5)
            return await call(*words, **named)

        return perhaps


@asynccontextmanager
async def faulty(
    model: FakeModel, memory: Memory, name: str = "n1", **options: Any
) -> AsyncIterator[tuple[Host, Faulty]]:
    store: Any = Faulty(MemoryStore(memory, name))
    async with hosted(model, store, **options) as host:
        yield host, store


async def passed(seconds: float) -> None:
    """Wait while the rest of the world has that much time."""
    until_s = anyio.current_time() + seconds
    await until(lambda: anyio.current_time() > until_s)


class Ticking:
    """A model that speaks until it is told to stop, and remembers being cancelled."""

    def __init__(self) -> None:
        self.stop = anyio.Event()
        self.cancelled = anyio.Event()
        self.said = 0
        self.model = FakeModel(self._answer)

    async def _answer(self, _: ModelRequest, context: ModelContext) -> Turn:
        try:
            while not self.stop.is_set():
                context.emit_text("t")
                self.said += 1
                await anyio.sleep(0.01)
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return Turn(text="t" * self.said)


async def test_the_lease_of_an_executing_run_is_renewed() -> None:
    memory = new_memory()
    async with hosted(stalling("a"), MemoryStore(memory, "n1")) as host, host.attend(asking()) as attended:
        first = memory.actors[attended.run_id].heads.lease_ms
        await until(lambda: memory.actors[attended.run_id].heads.lease_ms > first + QUICK.lease_ms)
        assert memory.actors[attended.run_id].heads.epoch == 1


async def test_a_node_that_cannot_renew_starts_nothing_new_and_goes_on_when_it_can() -> None:
    gate = anyio.Event()

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        await gate.wait()
        return Turn(text="hi")

    model = FakeModel(answer)
    caps = Caps(total=1, queue_total=1, queue_per_subject=1)
    async with (
        faulty(model, new_memory(), caps=caps) as (host, store),
        host.attend(asking()),
        host.attend(asking()) as queued,
    ):
        await until(lambda: model.calls == 1)
        execution = host.node.executing[queued.run_id]
        store.down = frozenset({"renew"})
        await until(lambda: execution.holding.expired(clock.mono_ms()))
        gate.set()
        await until(execution.slot.granted.is_set)
        await store.asked_again("renew", 3)
        assert model.calls == 1
        store.down = frozenset()
        assert types(await ended(host, queued.run_id))[-1] == "run.completed"
        assert model.calls == 2


@pytest.mark.parametrize("leases", [0.4, 2.5], ids=["shorter", "longer"])
@pytest.mark.parametrize("writing", [True, False], ids=["writing", "silent"])
async def test_an_outage_is_a_pause_of_the_run_and_not_its_end(leases: float, *, writing: bool) -> None:
    ticking = Ticking()
    gate = anyio.Event()

    async def silent(_: ModelRequest, context: ModelContext) -> Turn:
        context.emit_text("t")
        await gate.wait()
        return Turn(text="t")

    model = ticking.model if writing else FakeModel(silent)
    async with faulty(model, new_memory()) as (host, store), host.attend(asking()) as attended:
        await until(lambda: model.calls == 1)
        store.down = ALL
        await passed(leases * QUICK.lease_ms / 1_000)
        ticking.stop.set()
        gate.set()
        await passed(0.05)
        store.down = frozenset()
        items = await ended(host, attended.run_id)
        assert types(items)[-1] == "run.completed"
        assert [item.number for item in items] == list(range(1, len(items) + 1))
        assert model.calls == 1


async def test_an_outage_between_a_conflict_and_its_look_is_a_pause_too() -> None:
    memory = new_memory()
    gate = anyio.Event()

    async def answer(_: ModelRequest, context: ModelContext) -> Turn:
        await gate.wait()
        context.emit_text("hi")
        return Turn(text="hi")

    model = FakeModel(answer)
    async with faulty(model, memory) as (host, store), host.attend(asking()) as attended:
        await until(lambda: model.calls == 1)
        store.down = frozenset({"look"})
        version = memory.actors[attended.run_id].heads.log
        fact = Part(actor=attended.run_id, log=version, events=(Event(codec.encode(RunClaimed(1, "n1"))),))
        await MemoryStore(memory, "n2").append(Append(command="f", parts=(fact,)))
        gate.set()
        await store.asked_again("look", 3)
        store.down = frozenset()
        items = await ended(host, attended.run_id)
        assert types(items) == ["run.started", "step.started", "text.delta", "run.completed"]


async def test_a_partition_that_pauses_does_not_cost_the_leases_of_another() -> None:
    memory = new_memory()
    async with faulty(stalling(), memory) as (host, store), host.attend(asking()) as attended:
        execution = host.node.executing[attended.run_id]
        mine = store.partition_of(attended.run_id)
        other = next(number for number in range(4) if number != mine)
        store.hung = {other}
        hung = _in_partition(store, other)
        host.node.executing[hung] = Execution(Hold(hung, 1, 1), execution.holding, Slot(started=True))
        try:
            first = memory.actors[attended.run_id].heads.lease_ms
            await until(lambda: memory.actors[attended.run_id].heads.lease_ms > first + QUICK.lease_ms)
        finally:
            del host.node.executing[hung]


async def test_a_run_that_is_busy_when_others_wrote_to_it_costs_no_other_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, look = new_memory(), anyio.Event()
    plain = MemoryStore(memory, "n1")
    async with (
        hosted(stalling(), plain) as host,
        host.attend(asking()) as first,
        host.attend(asking()) as second,
    ):
        busy, other = first.run_id, second.run_id
        await until(lambda: {busy, other} <= host.node.executing.keys())
        partition_of, renewed = plain.partition_of, plain.renew

        async def renew(_: int, epochs: dict[str, int], lease_ms: int) -> dict[str, Any]:
            answers: dict[str, Any] = {}
            for actor, epoch in epochs.items():
                answers |= await renewed(partition_of(actor), {actor: epoch}, lease_ms)
            heads = answers.get(busy)
            return answers | {busy: replace(heads, log=heads.log + 1)} if heads else answers

        async def caught_up(_: str) -> None:
            await look.wait()

        monkeypatch.setattr(plain, "renew", renew)
        monkeypatch.setattr(plain, "partition_of", lambda _: 0)  # as though they shared one
        monkeypatch.setattr(host.node, "caught_up", caught_up)
        before = memory.actors[other].heads.lease_ms
        try:
            await until(lambda: memory.actors[other].heads.lease_ms > before + QUICK.lease_ms)
        finally:
            look.set()
            monkeypatch.undo()


def _in_partition(store: Faulty, partition: int) -> str:
    ids = (f"{number:08x}-0000-4000-8000-000000000000" for number in range(64))
    return next(actor for actor in ids if store.partition_of(actor) == partition)


async def test_a_caller_whose_host_is_gone_does_not_wait_for_ever() -> None:
    codes: list[str] = []
    async with anyio.create_task_group() as tasks, faulty(stalling(), new_memory()) as (host, store):
        store.down = frozenset({"take"})

        async def ask() -> None:
            store.stuck = anyio.Event()
            try:
                await items_of(host, asking())
            except Refused as refused:
                codes.append(refused.code)

        tasks.start_soon(ask)
        await until(lambda: store.asked.get("take", 0) > 0)
    assert codes == ["HOST_SHUTTING_DOWN"]


async def test_a_fenced_executor_stops_and_its_provider_call_is_cancelled() -> None:
    memory, ticking = new_memory(), Ticking()
    async with faulty(ticking.model, memory) as (one, store), one.attend(asking()) as attended:
        await until(lambda: ticking.said > 2)
        store.down = frozenset({"renew", "sweep"})
        async with hosted(stalling(), MemoryStore(memory, "n2")) as two:
            items = await ended(two, attended.run_id)
            assert types(items)[-1] == "run.failed"
            state, heads = await two.state(attended.run_id)
            assert isinstance(state, run.Ended)
            assert (state.cause, heads.owner) == ("node", "")
        with anyio.fail_after(DEADLINE_S):
            await ticking.cancelled.wait()
        await until(lambda: not one.node.executing)
        assert await ended(one, attended.run_id) == items


async def test_a_node_that_hears_the_store_only_now_and_then_judges_no_lease() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with faulty(stalling(), memory) as (host, one), host.attend(asking()) as attended:
        one.down = frozenset({"renew", "sweep"})
        clock.ahead_ms += 60_000
        async with faulty(stalling(), memory, "n2") as (_, two):
            for _round in range(4):
                two.down = frozenset({"sweep"})
                await two.asked_again("sweep", 8)
                two.down = frozenset()
                await passed(QUICK.lease_ms / 3_000)
            assert not memory.actors[attended.run_id].heads.ended
            await until(lambda: memory.actors[attended.run_id].heads.ended)


async def test_a_cancel_from_elsewhere_reaches_the_provider_at_once() -> None:
    memory, ticking = new_memory(), Ticking()
    seldom = replace(QUICK, routine_ms=60_000, lease_ms=200_000)
    async with (
        hosted(ticking.model, MemoryStore(memory, "n1"), node=seldom) as one,
        hosted(stalling(), MemoryStore(memory, "n2"), node=seldom) as two,
        one.attend(asking()) as attended,
    ):
        await until(lambda: ticking.said > 0)
        await two.cancel(attended.run_id)
        with anyio.fail_after(2):
            await ticking.cancelled.wait()
        await until(lambda: not one.node.executing)


async def test_whoever_saw_the_end_finds_the_slot_free() -> None:
    async with hosted(saying("hi"), caps=Caps(total=1)) as host:
        for _ in range(20):
            assert types(await items_of(host, asking()))[-1] == "run.completed"


async def test_a_wiped_ledger_learns_again_what_runs() -> None:
    memory = new_memory()
    caps = Caps(total=1)
    async with hosted(stalling(), MemoryStore(memory, "n1"), caps=caps) as host, host.attend(asking()) as attended:
        memory.ledger = MemoryLedger(memory.clock, lambda _node, _holder: None)
        await until_so(lambda: held(memory))
        with pytest.raises(Refused) as refused:
            await items_of(host, asking())
        assert refused.value.code == "BUSY"
        await host.cancel(attended.run_id)
        await ended(host, attended.run_id)
        await until(lambda: not host.node.executing)
        assert await free(memory)


async def held(memory: Memory) -> bool:
    return not await free(memory)


async def test_a_run_whose_time_is_over_is_erased_but_not_forgotten_and_a_keyed_one_is_kept() -> None:
    clock = Clock()
    memory = new_memory(clock)
    keyed = asking(idempotencyKey="k1")
    async with hosted(saying("hi"), MemoryStore(memory, "n1")) as host:
        plain_id = _run_id(await items_of(host, asking()))
        keyed_id = _run_id(await items_of(host, keyed))
    clock.ahead_ms += 8 * DAY_MS
    async with hosted(saying("hi"), MemoryStore(memory, "n1")) as host:
        await until(lambda: memory.actors[plain_id].heads.erased)
        heads = memory.actors[plain_id].heads
        assert (heads.log, heads.feed, heads.oldest, heads.ended) == (5, 5, 6, True)
        assert not await host.log(plain_id)
        with pytest.raises(CursorTooOld):
            async with aclosing(host.follow(plain_id)) as batches:
                await anext(batches)
        _, kept = await host.state(plain_id)
        assert kept.erased
        await host.cancel(plain_id)
        assert memory.actors[plain_id].heads == heads
        assert not any(plain_id in due for due in (str(memory.due), str(memory.listed)))
        assert len(await host.log(keyed_id)) == 5
        assert types(await items_of(host, keyed))[-1] == "run.completed"


def _run_id(items: Any) -> str:
    return str(items[0].data.split(b'"runId":"')[1][:36], "ascii")


async def test_a_key_whose_run_an_operator_erased_answers_as_uncertain() -> None:
    model = saying("hi")
    async with hosted(model) as host:
        keyed = asking(idempotencyKey="k1")
        run_id = _run_id(await items_of(host, keyed))
        await host.node.around.shell.erase(run_id, command_id="e")
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await items_of(host, keyed)
            assert (refused.value.code, refused.value.problem.outcome) == ("OPERATION_UNCERTAIN", "uncertain")
        assert model.calls == 1


async def test_a_draining_node_takes_no_run_over() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with faulty(stalling(), memory) as (one, store), one.attend(asking()) as attended:
        store.down = frozenset({"renew", "sweep"})
        clock.ahead_ms += 60_000
        async with faulty(stalling(), memory, "n2") as (two, other):
            await two.drain()
            await other.asked_again("sweep", 4 * 2 * QUICK.lease_ms // QUICK.routine_ms)
            assert not memory.actors[attended.run_id].heads.ended


async def test_two_who_wait_for_the_end_of_all_runs_both_hear_of_it() -> None:
    patient = replace(QUICK, drain_s=DEADLINE_S)
    gate = anyio.Event()

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        await gate.wait()
        return Turn(text="hi")

    model = FakeModel(answer)
    async with hosted(model, node=patient) as host, host.attend(asking()) as attended:
        await until(lambda: model.calls == 1)
        with anyio.fail_after(DEADLINE_S / 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.drain)
                tasks.start_soon(host.drain)
                await passed(0.02)
                gate.set()
        assert types(await ended(host, attended.run_id))[-1] == "run.completed"


async def test_a_run_that_outlives_the_drain_is_cancelled_as_the_host_shuts_down() -> None:
    async with hosted(stalling("a")) as host, host.attend(asking()) as attended:
        await host.drain()
        (*_, last) = await host.log(attended.run_id)
        assert isinstance(last.event, RunCancelled)
        assert (last.event.problem, last.event.cause) == (SHUTTING_DOWN, "shutdown")
        assert not host.node.executing


async def test_an_executor_that_fails_leaves_a_failed_run() -> None:
    async with hosted(saying("hi", pieces=["hi"])) as host:
        host.node.around = replace(host.node.around, items=None)
        async with host.attend(asking()) as attended:
            await ended(host, attended.run_id)
            (*_, last) = await host.log(attended.run_id)
            assert isinstance(last.event, RunFailed)
            assert last.event.problem.code == "INTERNAL_ERROR"
        await until(lambda: not host.node.executing)


async def test_an_actor_that_nobody_can_read_does_not_hold_up_the_rest_of_its_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = new_memory()
    torn, asked = "00000000-0000-8000-8000-00000000000a", "00000000-0000-8000-8000-00000000000b"
    store = MemoryStore(memory, "n1")
    for actor, data in ((torn, b"no event"), (asked, b'{"type":"approval.expired","at_ms":1}')):
        part = Part(actor=actor, log=0, events=(Event(data),), ended=True)
        due = (Due(actor, "idle" if actor == torn else "permit", 1 if actor == torn else 2),)
        await store.append(Append(command=actor, parts=(part,), due=due))
    async with hosted(saying("x"), store) as host:
        await host.node.sweeps.all()
        await until(lambda: (asked, "permit") not in memory.due[store.partition_of(asked)])
    assert f"the chore idle of {torn} failed" in caplog.text


async def test_what_becomes_due_between_two_routines_is_done_when_it_is_due() -> None:
    clock = Clock()
    memory = new_memory(clock)
    store: Any = Faulty(MemoryStore(memory, "n1"))
    actor = "00000000-0000-8000-8000-00000000000a"
    part = Part(actor=actor, log=0, events=(Event(b'{"type":"approval.expired","at_ms":1}'),), ended=True)
    due = (Due(actor, "permit", memory.clock() + 300),)
    await store.append(Append(command="c", parts=(part,), due=due))
    seldom = replace(QUICK, routine_ms=3_600_000)
    async with hosted(saying("x"), store, node=seldom):
        await until(lambda: store.asked.get("sweep", 0) > 0)
        assert (actor, "permit") in memory.due[0]
        await until(lambda: (actor, "permit") not in memory.due[0])
        assert memory.clock() >= (due[0].at_ms or 0)


async def test_a_slot_in_use_does_not_lapse_before_the_ledger_hears_of_it() -> None:
    clock = Clock()
    memory = new_memory(clock)
    seldom = replace(QUICK, permit_begin_ms=300, reassured_s=60)
    async with (
        hosted(stalling("a"), MemoryStore(memory, "n1"), caps=Caps(total=1), node=seldom) as host,
        host.attend(asking()),
    ):
        await until(lambda: [held.begin_by_ms for held in memory.ledger._pools["runs"].held.values()] == [0])
        clock.ahead_ms += 60_000
        with pytest.raises(Refused, match="BUSY"):
            async with host.attend(asking(), subject="bob"):
                pass


def test_a_run_is_not_stored_so_late_that_its_slot_may_lapse_before_the_ledger_hears_of_it() -> None:
    assert store_by(20_000, 9_000) == 17_000
    assert store_by(0, 9_000) == 0, "a permit in use has no such time"
