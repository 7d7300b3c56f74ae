"""The shell: any node may run any command, a command counts once, and memory is only a cache."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from copy import deepcopy
from typing import Any, Protocol

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from actors import codec, kinds, run
from actors.decider import Receipt, Refusal
from actors.errors import Fenced, Problem
from actors.events import RunCancelled, RunClaimed, RunCompleted, RunFailed
from actors.plan import Claiming, Hold
from actors.ports import Turn
from actors.shell import SNAPSHOT_EVENTS, FeedOf, Shell, Told, TooLate
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Deployment, Event, HistoryLost, Look, Outcome, Part, Snapshot, Store, Unavailable
from projections import wire_feed
from tests.actors.runs import ARTIFACT, accept
from tests.actors.support import DEADLINE_S, new_memory

pytestmark = pytest.mark.anyio

RUN = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
FEED = FeedOf(wire_feed.start, wire_feed.fold, wire_feed.items, wire_feed.too_large, wire_feed.thaw)
CANCEL = run.Cancel(Problem("CANCELLED", "Enough."))
OWN = Claiming("n1", 60_000)

RunShell = Shell[run.State, run.Command, Any]


def shell(store: Store, kind: Any = kinds.RUN, **bounds: int) -> RunShell:
    return Shell(store, kind, FEED, **bounds)  # type: ignore[arg-type]


class Open(Protocol):
    async def __call__(self, name: str, /) -> Store: ...


@pytest.fixture(params=["memory", "fake"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """One deployment, whose nodes are opened by name."""
    memory, server = new_memory(), fake_server()
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> Store:
            if request.param == "memory":
                return MemoryStore(memory, name)
            return await stack.enter_async_context(open_fake_store(server, Deployment("d", 4, b"k"), name))

        yield opened


async def owned(shell: RunShell, **members: Any) -> Hold:
    """A run that *shell*'s node executes."""
    told = await shell.tell(RUN, accept(**members), command_id="a", claim=OWN, fresh=True)
    return Hold(RUN, told.heads.epoch, told.heads.feed)


async def calling(shell: RunShell, **members: Any) -> Hold:
    """The same in its first model call."""
    hold = await owned(shell, **members)
    await shell.tell(RUN, run.EnterStep(1), command_id="s", hold=hold)
    return hold


def answer(text: str = "hi") -> run.Answer:
    return run.Answer(1, Turn(text=text), streamed=True, artifact_id=ARTIFACT)


def delta(text: str) -> list[bytes]:
    return list(wire_feed.deltas(RUN, text, 1))


async def feed(store: Store) -> list[str]:
    page = await store.page(RUN, 0)
    assert [item.number for item in page.items] == list(range(1, len(page.items) + 1))
    return [wire_feed.event_type(item.data).decode() for item in page.items]


async def versions(store: Store) -> list[int]:
    return [entry.version for entry in (await store.look(RUN)).entries]


class Around:
    """A store through which one method goes another way."""

    def __init__(self, store: Store, name: str, way: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        setattr(self, name, way)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def around(store: Store, name: str, way: Callable[..., Awaitable[Any]]) -> Any:
    return Around(store, name, way)


async def test_a_command_that_meets_news_is_decided_again(node: Open) -> None:
    one, two = shell(await node("n1")), shell(await node("n2"))
    hold = await calling(one)
    await two.tell(RUN, CANCEL, command_id="c")
    with pytest.raises(Fenced):
        await one.tell(RUN, answer(), command_id="x", hold=hold)
    assert isinstance(one.known(RUN), run.Ended)
    assert await feed(await node("n3")) == ["run.started", "step.started", "run.cancelled"]


async def test_what_was_read_of_another_history_is_believed_no_more() -> None:
    """A node that only read a run has no receipt of it, and may know what a failover lost."""
    memory, histories = new_memory(), ["one"]
    owner, seen = shell(MemoryStore(memory, "n1")), MemoryStore(memory, "n2")
    reader = shell(around(seen, "history", lambda: histories[-1]))  # type: ignore[arg-type, return-value]
    hold = await owned(owner)
    before = deepcopy(memory.actors[RUN])
    await owner.tell(RUN, run.EnterStep(1), command_id="s", hold=hold)
    assert (await reader.state(RUN))[0] == owner.known(RUN)
    memory.actors[RUN] = before
    await shell(MemoryStore(memory, "n3")).tell(RUN, CANCEL, command_id="c")
    histories.append("another")
    state, _ = await reader.state(RUN)
    assert isinstance(state, run.Ended)
    assert state == (await shell(seen).state(RUN))[0]
    told = await reader.tell(RUN, CANCEL, command_id="again")
    assert (told.events, told.state) == ((), state)


async def test_a_repeated_command_is_answered_from_the_log_and_counts_once(node: Open) -> None:
    store = await node("n1")
    first = await shell(store).tell(RUN, accept(), command_id="a", fresh=True)
    for asked in (shell(store), shell(await node("n2"))):
        again = await asked.tell(RUN, accept(), command_id="a")
        assert (again.events, again.answer) == (first.events, Receipt("repeated"))
    assert await versions(store) == [1, 2]


async def test_a_command_whose_reply_was_lost_counts_once(node: Open) -> None:
    store = await node("n1")
    lost: list[Outcome] = []

    async def append(append: Append) -> Outcome:
        outcome = await store.append(append)
        if not lost:
            lost.append(outcome)
            raise Unavailable("the reply was lost", 1)
        return outcome

    asked = shell(around(store, "append", append))
    with pytest.raises(Unavailable):
        await asked.tell(RUN, accept(), command_id="a", claim=OWN, fresh=True)
    told = await asked.tell(RUN, accept(), command_id="a", claim=OWN, fresh=True)
    assert [type(event).__name__ for event in told.events] == ["RunAccepted", "RunStarted"]
    entries = (await store.look(RUN)).entries
    assert [kinds.RUN.decode(entry.data) for entry in entries] == list(told.events)
    assert told.heads.epoch == 1


async def test_what_an_owner_writes_is_sent_until_it_is_answered(node: Open) -> None:
    store = await node("n1")
    sent: list[str] = []

    async def append(append: Append) -> Outcome:
        """Fail before the append, then after it, and then answer."""
        sent.append(append.command)
        times = sent.count(append.command)
        if times == 1:
            raise Unavailable("nothing arrived", 1)
        outcome = await store.append(append)
        if times == 2:
            raise Unavailable("the reply was lost", 1)
        return outcome

    hold = await calling(shell(store))
    asked = shell(around(store, "append", append))
    await asked.pour(hold, delta("a"))
    await asked.pour(hold, delta("b"))
    hold.pending = delta("c")
    await asked.tell(RUN, answer("abc"), command_id="x", hold=hold)
    assert await feed(store) == ["run.started", "step.started", *["text.delta"] * 3, "run.completed"]
    assert len(sent) == 9


async def test_two_nodes_with_many_commands_leave_one_unbroken_log(node: Open) -> None:
    stores = [await node("n1"), await node("n2")]
    shells = [shell(store) for store in stores]
    accepted: list[Told] = []
    cancelled: list[Told] = []

    async def submit(number: int) -> None:
        accepted.append(await shells[number % 2].tell(RUN, accept(fingerprint="aa"), command_id=f"a{number}"))

    async def cancel(number: int) -> None:
        cancelled.append(await shells[number % 2].tell(RUN, CANCEL, command_id=f"c{number}"))

    for act in (submit, cancel):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(act, number)
    assert sorted(str(told.answer) for told in accepted) == sorted(
        str(Receipt(note)) for note in ["new"] + ["met"] * 19
    )
    assert [bool(told.events) for told in cancelled].count(True) == 1
    assert await versions(stores[0]) == [1, 2, 3]


async def test_a_refusal_follows_from_a_look_and_never_from_the_cache_alone(node: Open) -> None:
    one, two = shell(await node("n1")), shell(await node("n2"))
    assert isinstance((await one.tell(RUN, CANCEL, command_id="c1")).answer, Refusal)
    await two.tell(RUN, accept(), command_id="a", fresh=True)
    assert isinstance((await one.tell(RUN, CANCEL, command_id="c2")).events[0], RunCancelled)
    late = await two.tell(RUN, accept(fingerprint="x"), command_id="b", fresh=True)
    assert isinstance(late.answer, Refusal)


async def test_a_foreign_item_costs_a_stream_of_text_one_conflict(node: Open) -> None:
    store, other = await node("n1"), await node("n2")
    sent: list[str] = []

    async def append(append: Append) -> Outcome:
        outcome = await store.append(append)
        sent.append(type(outcome).__name__)
        return outcome

    hold = await calling(shell(store))
    asked = shell(around(store, "append", append))
    await asked.pour(hold, delta("a"))
    log = (await other.look(RUN)).heads.log
    fact = Event(codec.encode(RunClaimed(1, "n9")), 1)
    foreign = Part(actor=RUN, log=log, events=(fact,), items=(wire_feed.progress(RUN, "tool", 1),))
    await other.append(Append(command="f", parts=(foreign,)))
    for text in "bc":
        await asked.pour(hold, delta(text))
    assert sent == ["Recorded", "Conflict", "Recorded", "Recorded"]
    assert (await feed(store))[2:] == ["text.delta", "run.progress", "text.delta", "text.delta"]


async def test_text_of_an_owner_that_lost_its_run_is_not_written(node: Open) -> None:
    one, two = shell(await node("n1")), shell(await node("n2"))
    hold = await calling(one)
    await two.tell(RUN, CANCEL, command_id="c")
    with pytest.raises(Fenced):
        await one.pour(hold, delta("late"))
    assert (await feed(await node("n3")))[-1] == "run.cancelled"


async def test_a_closed_window_is_told_and_nothing_is_written(node: Open) -> None:
    store = await node("n1")
    with pytest.raises(TooLate):
        await shell(store).tell(RUN, accept(), command_id="a", fresh=True, not_after_ms=1)
    assert not await versions(store)


async def test_a_record_over_its_bound_ends_the_run_instead(node: Open) -> None:
    store = await node("n1")
    hold = await calling(shell(store))
    told = await shell(store, log_bytes_max=1_000).tell(RUN, answer("x" * 2_000), command_id="x", hold=hold)
    (event,) = told.events
    assert isinstance(event, RunFailed)
    assert (event.problem.code, event.cause) == ("OPERATION_RECORD_LIMIT", "overflow")


async def test_an_item_that_no_client_would_read_ends_the_run_instead(node: Open) -> None:
    store = await node("n1")
    hold = await calling(shell(store))
    told = await shell(store).tell(RUN, answer("\u0001" * 400_000), command_id="x", hold=hold)
    assert isinstance(told.events[0], RunFailed)
    assert await feed(store) == ["run.started", "step.started", "run.failed"]


async def test_a_run_too_large_to_accept_is_refused_and_leaves_nothing(node: Open) -> None:
    store = await node("n1")
    told = await shell(store, log_bytes_max=100).tell(RUN, accept(), command_id="a", claim=OWN, fresh=True)
    assert isinstance(told.answer, Refusal)
    assert told.answer.problem.code == "OPERATION_RECORD_LIMIT"
    assert (await store.look(RUN)).heads.epoch == 0


async def lost_stream(store: Store, memory: Memory) -> None:
    memory.actors[RUN].log.clear()
    for act in (shell(store).state(RUN), shell(store).events(RUN), shell(store).tell(RUN, CANCEL, command_id="c")):
        with pytest.raises(HistoryLost):
            await act


async def test_a_lost_history_is_told_and_never_begun_anew() -> None:
    memory = new_memory()
    store = MemoryStore(memory, "n1")
    hold = await calling(shell(store))
    await lost_stream(store, memory)
    with pytest.raises(HistoryLost):
        await shell(store).tell(RUN, accept(), command_id="b", fresh=True)
    memory.actors[RUN].feed.clear()
    with pytest.raises(HistoryLost):
        await shell(store).pour(hold, delta("a"))


async def test_a_feed_shorter_than_what_its_executor_wrote_is_a_lost_history() -> None:
    memory = new_memory()
    asked = shell(MemoryStore(memory, "n1"))
    hold = await calling(asked)
    await asked.pour(hold, delta("a"))
    kept = memory.actors[RUN]
    del kept.feed[kept.heads.feed]
    kept.heads = replace(kept.heads, feed=kept.heads.feed - 1)
    with pytest.raises(HistoryLost):
        await asked.pour(hold, delta("b"))
    with pytest.raises(HistoryLost):
        await asked.tell(RUN, answer("a"), command_id="x", hold=hold)


async def test_actors_beyond_the_bound_are_forgotten_and_known_again(node: Open) -> None:
    small = shell(await node("n1"), hot_max=2)
    ids = [f"{number:08x}{RUN[8:]}" for number in range(6)]
    for actor in ids:
        await small.tell(actor, accept(), command_id="a", fresh=True)
    assert len(small._hot) == 2
    for actor in ids:
        state, _ = await small.state(actor)
        assert isinstance(state, run.Live)
    assert len(small._hot) == 2


async def test_an_erased_run_answers_by_its_heads_and_does_not_begin_again(node: Open) -> None:
    store = await node("n1")
    one = shell(store)
    await one.tell(RUN, accept(), command_id="a", fresh=True)
    await one.erase(RUN, command_id="e0")
    assert await versions(store) == [1, 2]
    await one.tell(RUN, CANCEL, command_id="c")
    await one.erase(RUN, command_id="e1")
    await one.erase(RUN, command_id="e2")
    for asked in (one, shell(await node("n2"))):
        _, heads = await asked.state(RUN)
        assert (heads.ended, heads.erased, heads.log, heads.feed) == (True, True, 3, 2)
        told = await asked.tell(RUN, CANCEL, command_id="c2")
        assert (told.events, isinstance(told.answer, Refusal)) == ((), True)
        told = await asked.tell(RUN, accept(), command_id="b", fresh=True)
        assert (told.events, isinstance(told.answer, Refusal)) == ((), True)
    assert not await versions(store)


# Snapshots: a run of many steps, which no rule of today makes, so a kind of its own.


def many(shape: str = "run.1") -> Any:
    """The run, but a step may be entered while another is open: one event, no items that matter."""
    decide = kinds.RUN.decide

    def endless(state: run.State, command: run.Command, now_ms: int) -> Any:
        if isinstance(state, run.Live) and isinstance(command, run.EnterStep):
            open_call = replace(state, turns=type(state.turns)(filling=()), step=0)
            step = decide(open_call, run.EnterStep(1), now_ms)
            return step._replace(events=[replace(event, step=command.step) for event in step.events])
        return decide(state, command, now_ms)

    return replace(kinds.RUN, decide=endless, shape=shape)


class Looks:
    """What a store was asked, and what it answered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answers: list[Look] = []

    async def __call__(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Look:
        look = await self._store.look(actor, after, snapshot=snapshot)
        self.answers.append(look)
        return look


async def long(store: Store) -> run.State:
    """A run with a snapshot and a few events after it."""
    asked = shell(store, many())
    hold = await owned(asked)
    for step in range(1, SNAPSHOT_EVENTS + 10):
        await asked.tell(RUN, run.EnterStep(step), command_id=f"s{step}", hold=hold)
    return asked.known(RUN)


async def test_a_long_log_is_loaded_from_its_snapshot(node: Open) -> None:
    store = await node("n1")
    state = await long(store)
    looks = Looks(store)
    asked = shell(around(store, "look", looks), many())
    assert (await asked.state(RUN))[0] == state
    assert len(looks.answers[-1].entries) < 20
    assert (await asked.tell(RUN, run.EnterStep(1), command_id="s1")).answer == Receipt("repeated")
    await asked.tell(RUN, CANCEL, command_id="c")
    assert [entry.version for entry in (await store.look(RUN)).entries][-1] == SNAPSHOT_EVENTS + 12


async def test_a_snapshot_of_another_shape_is_not_read(node: Open) -> None:
    store = await node("n1")
    state = await long(store)
    looks = Looks(store)
    assert (await shell(around(store, "look", looks), many("run.2")).state(RUN))[0] == state
    assert len(looks.answers[-1].entries) == SNAPSHOT_EVENTS + 11


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'["run.1",{"type":"gone"},{},0,[]]', b"\xff"])
async def test_a_damaged_snapshot_is_not_read(node: Open, damage: bytes) -> None:
    store = await node("n1")
    state = await long(store)
    version = (await store.look(RUN)).heads.log
    await store.save(RUN, Snapshot(version, damage))
    assert (await shell(store, many()).state(RUN))[0] == state


async def test_a_store_that_keeps_no_snapshot_costs_nothing_else(node: Open) -> None:
    store = await node("n1")

    async def save(*_: Any) -> None:
        raise Unavailable("an outage")

    assert isinstance(await long(around(store, "save", save)), run.Live)


async def test_a_caller_that_leaves_in_the_middle_leaves_no_wrong_cache(node: Open) -> None:
    store = await node("n1")
    entered = anyio.Event()

    async def append(append: Append) -> Outcome:
        outcome = await store.append(append)
        entered.set()
        await anyio.sleep_forever()
        return outcome

    await shell(store).tell(RUN, accept(), command_id="a", fresh=True)
    asked = shell(around(store, "append", append))
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            await asked.tell(RUN, CANCEL, command_id="c")

        tasks.start_soon(cancel)
        with anyio.fail_after(DEADLINE_S):
            await entered.wait()
        tasks.cancel_scope.cancel()
    assert isinstance((await asked.state(RUN))[0], run.Ended)


async def test_a_completed_run_is_shown_with_the_text_that_was_streamed(node: Open) -> None:
    store = await node("n1")
    asked = shell(store)
    hold = await calling(asked)
    await asked.pour(hold, delta("h"))
    hold.pending = delta("i")
    told = await asked.tell(RUN, answer("hi"), command_id="x", hold=hold)
    assert isinstance(told.events[-1], RunCompleted)
    items = (await store.page(RUN, 0)).items
    events = [msgspec.json.decode(wire_feed.numbered(item.number, item.data)) for item in items]
    assert "".join(event["text"] for event in events if event["type"] == "text.delta") == "hi"
