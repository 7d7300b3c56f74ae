"""A node that dies at every step of a conversation, before and after its effect; another one carries the session on.

The same conversation with every answer of the store lost once, and with every call executed twice.
What must be true afterwards is judged alike: session, logs, results and places tell one story.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from actors.events import RunCancelled, RunCompleted, RunEvent, RunFailed, SessionMode, StepStarted
from actors.node import NodeSettings
from eventstore.store import Unavailable
from projections import wire_feed
from runstream.host import Host
from tests.actors.conversing import (
    KEPT,
    STEADY,
    House,
    Listener,
    calling,
    code,
    counting,
    delete,
    events,
    holding,
    holds_nothing,
    keeping,
    logs_of,
    opened,
    read,
    taken,
    turn,
    visible,
)
from tests.actors.reviewing import CountingTool
from tests.actors.support import asking, until, until_so
from tests.actors.test_crash import EFFECTS, Dying

pytestmark = pytest.mark.anyio

SHORT = NodeSettings(lease_ms=150, routine_ms=30, permit_begin_ms=5_000, reassured_s=0.05, drain_s=0.01)
AT_ONCE = 12
SECRET = "a secret"
LATER_MS = 60_000
"""When leases and permits of the dead have lapsed, and no session has expired."""
POOLS = ("runs", "sessions")
ENDS = RunCompleted | RunFailed | RunCancelled
AGAIN = frozenset({"OPERATION_STORE_ERROR", "OPERATION_IN_PROGRESS"})

Story = Callable[["World", Host], Awaitable[None]]


class World(House):
    """What survives a node: the store, what its models saw, and what clients know of their session."""

    def __init__(self, mode: SessionMode = "history", model: Listener | None = None) -> None:
        super().__init__()
        self.mode: SessionMode = mode
        self.model = model or (counting() if mode == "history" else calling("host"))
        self.tool = CountingTool()
        self.session_id = ""
        self.deleted = False

    def host(self, store: Any, node: NodeSettings = SHORT) -> Any:
        return keeping(self.model, store, self.tool, node=node)

    def turn(self, revision: int = 0, **members: Any) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.mode == "history" else {"tools": ["host"]}
        return turn(self.session_id, revision, **more, **members)

    def keyed(self) -> dict[str, Any]:
        return self.turn(idempotencyKey="k1")

    def over(self) -> bool:
        return all(self.memory.actors[run_id].heads.ended for run_id in logs_of(self.memory))


# What happens on the node that dies.


async def a_turn(world: World, host: Host) -> None:
    """Begin a conversation and make its first turn, as a client does that asks again until it knows."""
    await insisting(lambda: _begun(world, host))
    await insisting(lambda: taken(host, world.keyed()))


async def a_life(world: World, host: Host) -> None:
    """Make a turn, and delete the conversation."""
    await a_turn(world, host)
    await insisting(lambda: _deleted(world, host))


async def an_expiry(world: World, host: Host) -> None:
    """Begin a conversation, and leave it until the host has forgotten it."""
    await insisting(lambda: _begun(world, host))
    world.clock.ahead_ms += KEPT.retention_ms

    async def forgotten() -> bool:
        world.clock.ahead_ms += 20  # what failed is due again two seconds later
        return not any(world.memory.due.values())

    await until_so(forgotten)


async def a_deletion(world: World, host: Host) -> None:
    """Delete a conversation while its model thinks, and hear how the turn ended."""
    await insisting(lambda: _begun(world, host))
    async with anyio.create_task_group() as tasks:
        told: list[str] = []

        async def asked() -> None:
            told.append(await insisting(lambda: taken(host, world.keyed())))

        tasks.start_soon(asked)
        await until(lambda: bool(world.model.calls or told))
        await insisting(lambda: _deleted(world, host))


async def _begun(world: World, host: Host) -> None:
    world.session_id = await opened(host, world.mode, history=visible(SECRET))


async def _deleted(world: World, host: Host) -> None:
    assert await code(delete(host, world.session_id)) in {"", "SESSION_NOT_FOUND"}
    world.deleted = True


async def insisting(ask: Callable[[], Awaitable[Any]]) -> str:
    """Ask again while the host says that it does not know yet; answers what it said then."""
    while True:
        with suppress(Unavailable):
            told = await code(ask())
            if told not in AGAIN:
                return told
        await anyio.sleep(0.005)


# What must be true afterwards.


async def judged(world: World, host: Host, step: object) -> None:
    """Compare all that was written, and go on with the session through *host*, where there is one."""
    model_calls = world.model.calls
    world.model.release.set()
    await until(world.over)
    for run_id, log in logs_of(world.memory).items():
        assert [isinstance(event, ENDS) for event in log].index(True) == len(log) - 1, step
        _told_as_written(world, run_id, log, step)
    if not world.session_id:
        return
    if await code(read(host, world.session_id)) == "SESSION_NOT_FOUND":
        await until(lambda: world.deleted or world.memory.actors[world.session_id].heads.erased)
        _left_nothing(world, step)
        assert await code(taken(host, world.keyed())) == "SESSION_NOT_FOUND", step
        assert world.model.calls == model_calls, step
        return
    assert not world.deleted, step
    await _same_key_again(world, host, step)
    await _goes_on(world, host, step)
    await delete(host, world.session_id)
    _left_nothing(world, step)


def _told_as_written(world: World, run_id: str, log: list[RunEvent], step: object) -> None:
    """The revision that a result tells is the number of turns that were completed until then."""
    kept = world.memory.actors[run_id]
    shown = [kept.feed[number] for number in sorted(kept.feed)]
    last = events([_Item(len(shown), shown[-1])])[0]
    assert wire_feed.is_terminal(shown[-1]), step
    assert (last["type"] == "run.completed") == isinstance(log[-1], RunCompleted), step
    if last["type"] == "run.completed":
        turns = [one for one in logs_of(world.memory, world.session_id).values() if isinstance(one[-1], RunCompleted)]
        before = [one for one in turns if one[-1].at_ms <= log[-1].at_ms]
        assert last["result"]["session"]["revision"] == len(before), step


class _Item:
    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data


async def _same_key_again(world: World, host: Host, step: object) -> None:
    """The key's turn is told again, or uncertain, or made now if it never was; never made twice."""
    model_calls, accepted = world.model.calls, logs_of(world.memory, world.session_id)
    told = await code(taken(host, world.keyed()))
    (log,) = logs_of(world.memory, world.session_id).values()
    if accepted:
        assert world.model.calls == model_calls, step
        assert list(accepted.values()) == [log], step
    else:
        assert model_calls == 0, step
        assert told == "run.completed", step
    assert told == ("run.completed" if isinstance(log[-1], RunCompleted) else "run.failed"), step
    assert await code(taken(host, world.keyed() | {"input": "other"})) == "IDEMPOTENCY_CONFLICT", step
    assert len(world.tool.seen) <= 1, step


async def _goes_on(world: World, host: Host, step: object) -> None:
    """A session is ready at the revision of its completed turns, or interrupted; never stuck."""
    (log,) = logs_of(world.memory, world.session_id).values()
    completed = isinstance(log[-1], RunCompleted)
    state = (await read(host, world.session_id)).state
    said = ("hello", log[-1].text) if isinstance(log[-1], RunCompleted) else ()
    assert (state.running, state.revision) == ("", int(completed)), step
    assert [one.content for one in state.history] == [SECRET, *said], step
    assert state.interrupted == (not completed and any(isinstance(event, StepStarted) for event in log)), step
    next_turn = await code(taken(host, world.turn(state.revision)))
    assert next_turn == ("SESSION_INTERRUPTED" if state.interrupted else "run.completed"), step
    if not state.interrupted:
        assert (await read(host, world.session_id)).state.revision == state.revision + 1, step


def _left_nothing(world: World, step: object) -> None:
    """What was said in a session that is gone is in its runs' logs alone."""
    kept = world.memory.actors[world.session_id]
    assert (kept.heads.ended, kept.heads.erased, kept.log, kept.snapshot) == (True, True, {}, None), step
    runs = logs_of(world.memory)
    for actor, other in world.memory.actors.items():
        log = b"".join(entry.data for entry in other.log.values())
        if log.startswith(b'{"type":"session.'):  # one whose id no client was ever told
            continue
        assert SECRET.encode() not in log, step
        assert actor in runs or not any(word in log for word in (b"hello", b"answer", b"done")), step


async def _all_given_back(world: World, host: Host) -> None:
    """Once every session has expired, nothing is counted, and nothing is due but the runs' retention."""
    world.clock.ahead_ms += KEPT.retention_ms
    await until_so(lambda: _forgotten(world))
    await taken(host, asking())  # whoever asks next clears away permits that were never begun
    await delete(host, await opened(host))
    await until_so(lambda: holds_nothing(world.memory, POOLS))
    await until(lambda: {reason for due in world.memory.due.values() for _, reason in due} <= {"retention"})


async def _forgotten(world: World) -> bool:
    """Whether no session is kept any more."""
    begin = b'{"type":"session.'
    return not any(kept.log and kept.log[1].data.startswith(begin) for kept in list(world.memory.actors.values()))


# Dying.


async def steps_of(new_world: Callable[[], World], story: Story) -> int:
    world = new_world()
    store: Any = Dying(world.store("n1"), -1, after=False)
    async with world.host(store) as host:
        await story(world, host)
    return int(store.steps)


async def crash(world: World, story: Story, step: int, *, after: bool) -> None:
    """Tell *story* on a node that dies at *step*, if it comes that far."""
    store: Any = Dying(world.store("n1"), step, after=after)
    finished = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with world.host(store) as host:
                await story(world, host)
            finished.set()

        tasks.start_soon(serve)
        await until(lambda: store.dead.is_set() or finished.is_set())
        tasks.cancel_scope.cancel()


async def each(steps: int, made: Callable[[int], Awaitable[None]]) -> None:
    """Make all trials, some at a time."""
    places = anyio.CapacityLimiter(AT_ONCE)

    async def placed(step: int) -> None:
        async with places:
            await made(step)

    async with anyio.create_task_group() as tasks:
        for step in range(steps):
            tasks.start_soon(placed, step)


STORIES = pytest.mark.parametrize(
    ("new_world", "story"),
    [
        (World, a_life),
        (lambda: World("native"), a_turn),
        (lambda: World(model=holding()), a_deletion),
        (World, an_expiry),
    ],
    ids=["life", "native-turn-with-a-tool", "deletion", "expiry"],
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@STORIES
async def test_whatever_a_dead_node_left_of_a_session_is_carried_on_by_another(
    new_world: Callable[[], World], story: Story, *, after: bool
) -> None:
    async def died(step: int) -> None:
        world = new_world()
        await crash(world, story, step, after=after)
        world.clock.ahead_ms += LATER_MS
        async with world.host(world.store("n2")) as two:
            await judged(world, two, step)
            await _all_given_back(world, two)

    await each(await steps_of(new_world, story), died)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_node_that_dies_while_it_deletes_anothers_turn_leaves_it_running_or_gone(*, after: bool) -> None:
    async def died(step: int) -> None:
        world = World(model=holding())
        async with world.host(world.store("n1"), STEADY) as one, anyio.create_task_group() as tasks:
            await _begun(world, one)
            ends: list[str] = []

            async def asked() -> None:
                ends.append(await code(taken(one, world.keyed())))

            tasks.start_soon(asked)
            await until(lambda: world.model.calls == 1)
            await crash(world, _deleted, step, after=after)
            if await code(read(one, world.session_id)) != "SESSION_NOT_FOUND":
                assert (await read(one, world.session_id)).state.running, step
                await _deleted(world, one)
            await until(lambda: bool(ends))
            assert ends == ["run.cancelled"], step
            world.clock.ahead_ms += LATER_MS
            await judged(world, one, step)
            await _all_given_back(world, one)

    await each(3, died)


# Losing answers, and doing things twice.


class Losing:
    """A node's store whose effect is done while its answer is lost, at one step; or at every step it is done twice."""

    def __init__(self, store: Any, step: int = -1, *, twice: bool = False) -> None:
        self._store = store
        self._step = step
        self._twice = twice
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(found) if name in EFFECTS else found

    def _guarded(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def guarded(*words: Any) -> Any:
            number, self.steps = self.steps, self.steps + 1
            answer = await call(*words)
            if self._twice:
                answer = await call(*words)
            if number == self._step:
                raise Unavailable("the answer was lost", 1)
            return answer

        return guarded


@STORIES
async def test_whichever_answer_of_the_store_is_lost_the_session_is_as_its_runs_say(
    new_world: Callable[[], World], story: Story
) -> None:
    async def lost(step: int) -> None:
        world = new_world()
        async with world.host(Losing(world.store("n1"), step)) as one:
            await story(world, one)
        world.clock.ahead_ms += LATER_MS
        async with world.host(world.store("n2")) as two:
            await judged(world, two, step)
            await _all_given_back(world, two)

    await each(await steps_of(new_world, story), lost)


@STORIES
async def test_a_store_that_does_everything_twice_changes_nothing(new_world: Callable[[], World], story: Story) -> None:
    world = new_world()
    async with world.host(Losing(world.store("n1"), twice=True)) as one:
        await story(world, one)
        expected = RunCancelled if story is a_deletion else RunCompleted
        assert all(isinstance(log[-1], expected) for log in logs_of(world.memory).values())
        await judged(world, one, "twice")
        await _all_given_back(world, one)
