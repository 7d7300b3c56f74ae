"""Turns of a conversation: what the model is told, tools and reviews, two at once, deletion in the middle, and keys."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from msgspec import Raw
from typing_extensions import override

from actors import codec, run
from actors.events import KeyReserved, RunAccepted, RunCompleted, Visible
from actors.ids import run_of_key
from actors.ports import AssistantMessage
from actors.session import Limits
from eventstore.store import Append, Caps, Unavailable
from runstream.host import Host
from tests.actors import conversing
from tests.actors.conversing import (
    House,
    Listener,
    Opening,
    calling,
    code,
    counting,
    delete,
    events,
    holder,
    holding,
    keeping,
    log_of,
    logs_of,
    opened,
    opening,
    read,
    sessions_of,
    taken,
    turn,
    two_nodes,
    visible,
)
from tests.actors.reviewing import APPLICATION, REVIEWED, CountingTool, anybody, wanted
from tests.actors.support import asking, ended, items_of, types, until, until_so
from tests.actors.test_races import Yielding
from tests.eventstore.conftest import valkey

__all__ = ["opening", "valkey"]

pytestmark = pytest.mark.anyio

TRIALS = 30


# What the model is told, and what is kept.


async def test_a_conversation_goes_on_at_any_node_and_the_model_hears_all_of_it(opening: Opening) -> None:
    model = counting()
    async with two_nodes(model, opening) as (one, two):
        session_id = await opened(one, history=visible("first", "yes"), instructions="Be brief.")
        for revision, host in enumerate((two, one, two)):
            last = await taken(host, turn(session_id, revision, input=f"question {revision}"))
            told = last["result"]["session"]
            now = (await read(one, session_id)).state
            assert (told["revision"], told["state"], told["id"]) == (revision + 1, "ready", session_id)
            assert (now.revision, now.running) == (revision + 1, "")
            assert await code(taken(host, turn(session_id, revision))) == "SESSION_REVISION_CONFLICT"
        assert model.told() == [
            ("user", "first"),
            ("assistant", "yes"),
            ("user", "question 0"),
            ("assistant", "answer 1"),
            ("user", "question 1"),
            ("assistant", "answer 2"),
            ("user", "question 2"),
        ]
        assert {asked.instructions for asked in model.asked} == {"Be brief."}
        shown = (await read(one, session_id)).state
        said = [(one.role, one.content) for one in shown.history]
        assert said == [*model.told(), ("assistant", "answer 3")]


async def test_a_result_tells_the_session_as_a_read_does() -> None:
    async with keeping(counting(), House().store("n1")) as host:
        session_id = await opened(host)
        told = (await taken(host, turn(session_id)))["result"]["session"]
        assert set(told) == {
            "id",
            "revision",
            "provider",
            "model",
            "mode",
            "state",
            "createdAt",
            "updatedAt",
            "expiresAt",
        }
        state = (await read(host, session_id)).state
        assert told["createdAt"] <= told["updatedAt"] < told["expiresAt"]
        assert state.expires_ms == state.updated_ms + 600_000
        assert "session" not in (await taken(host, asking()))["result"]


async def test_the_run_of_a_turn_lives_in_the_partition_of_its_session() -> None:
    house = House()
    async with keeping(counting(), house.store("n1")) as host:
        for _ in range(4):
            session_id = await opened(host)
            await taken(host, turn(session_id))
            await taken(host, turn(session_id, 1, idempotencyKey=f"k{session_id}"))
            for run_id in logs_of(house.memory, session_id):
                assert run_id[:8] == session_id[:8]
                assert host.store.partition_of(run_id) == host.store.partition_of(session_id)
            assert len(logs_of(house.memory, session_id)) == 2


TOOL_TURN: dict[str, Any] = {"tools": ["host"]}


async def test_in_history_mode_the_next_turn_hears_visible_texts_alone() -> None:
    model = calling("host")
    async with keeping(model, House().store("n1"), CountingTool()) as host:
        session_id = await opened(host)
        for revision in range(2):
            assert await code(taken(host, turn(session_id, revision, **TOOL_TURN))) == "run.completed"
    assert model.told(2) == [("user", "hello"), ("assistant", "done"), ("user", "hello")]
    assert not any(one.native for one in model.asked[2].messages if isinstance(one, AssistantMessage))


async def test_in_native_mode_the_next_turn_hears_calls_outputs_and_the_providers_own_state() -> None:
    model = calling("host")
    house = House()
    async with (
        keeping(model, house.store("n1"), CountingTool()) as one,
        keeping(model, house.store("n2"), CountingTool()) as two,
    ):
        session_id = await opened(one, "native", history=visible("before", "yes"))
        for revision, host in enumerate((one, two)):
            assert await code(taken(host, turn(session_id, revision, **TOOL_TURN))) == "run.completed"
        state = (await read(two, session_id)).state
    assert model.told(2) == [
        ("user", "before"),
        ("assistant", "yes"),
        ("user", "hello"),
        ("assistant", "well"),
        ("tool", '{"done":1}'),
        ("assistant", "done"),
        ("user", "hello"),
    ]
    called, answered = (model.asked[2].messages[number] for number in (3, 5))
    assert isinstance(called, AssistantMessage)
    assert isinstance(answered, AssistantMessage)
    assert ([one.id for one in called.tool_calls], called.native) == (["c1"], Raw(b'{"kept":1}'))
    assert (answered.tool_calls, answered.native) == ((), Raw(b'{"kept":2}'))
    assert state.history == visible("before", "yes", "hello", "done", "hello", "done")


async def test_in_native_mode_call_ids_of_earlier_turns_are_taken() -> None:
    tool, model = CountingTool(), calling("host", ids=lambda _: "again")
    async with keeping(model, House().store("n1"), tool) as host:
        native, history = await opened(host, "native"), await opened(host)
        for session_id in (native, history):
            assert await code(taken(host, turn(session_id, **TOOL_TURN))) == "run.completed"
        assert await code(taken(host, turn(history, 1, **TOOL_TURN))) == "run.completed"
        failed = await taken(host, turn(native, 1, **TOOL_TURN))
        assert failed["error"]["code"] == "INVALID_TOOL_CALL"
        assert len(tool.seen) == 3
        state = (await read(host, native)).state
        assert (state.interrupted, state.revision, state.history) == (True, 1, visible("hello", "done"))


async def test_a_turn_that_grows_too_large_ends_and_interrupts_its_session() -> None:
    model = counting()
    async with keeping(model, House().store("n1"), sessions=Limits(retention_ms=1_000, max_record_bytes=110)) as host:
        session_id = await opened(host)
        failed = await taken(host, turn(session_id))
        assert (failed["type"], failed["error"]["code"]) == ("run.failed", "SESSION_CONTEXT_LIMIT")
        state = (await read(host, session_id)).state
        assert (state.interrupted, state.revision, state.history) == (True, 0, ())
    assert model.calls == 1


async def test_the_messages_of_a_turn_are_bounded_before_each_step() -> None:
    model = calling("host", "host")
    limits = Limits(retention_ms=1_000, max_record_bytes=200)
    async with keeping(model, House().store("n1"), CountingTool(), sessions=limits) as host:
        session_id = await opened(host, "native")
        failed = await taken(host, turn(session_id, **TOOL_TURN))
        assert failed["error"]["code"] == "SESSION_CONTEXT_LIMIT"
        assert (await read(host, session_id)).state.interrupted
    assert model.calls < 3


async def test_a_failed_turn_interrupts_its_session() -> None:
    house = House()
    async with keeping(counting(), house.store("n1")) as host:
        session_id = await opened(host)
        failed = await taken(host, turn(session_id, outputSchema={"type": "integer"}))
        assert failed["error"]["code"] == "INVALID_OUTPUT"
        state = (await read(host, session_id)).state
        assert (state.interrupted, state.revision, state.history) == (True, 0, ())


# Reviews, applications, deletion.


async def test_a_review_in_a_turn_keeps_the_session_running_and_is_decided_on_another_node(opening: Opening) -> None:
    tool = CountingTool("reviewed", reviewed=True)
    async with two_nodes(calling("reviewed"), opening, tool) as (one, two), anyio.create_task_group() as tasks:
        session_id = await opened(one)
        ends: list[Any] = []

        async def ask() -> None:
            ends.append(await taken(one, turn(session_id, **wanted(REVIEWED))))

        tasks.start_soon(ask)
        run_id, open_call = await waiting(two, session_id)
        assert await code(taken(two, turn(session_id))) == "SESSION_BUSY"
        call = {"id": open_call.call.id, "name": "reviewed", "arguments": {"n": 1}}
        await two.decisions.decide(anybody(), open_call.approval_id, run_id, call, "approve")
        await until(lambda: bool(ends))
        assert (ends[0]["type"], ends[0]["result"]["session"]["revision"]) == ("run.completed", 1)
    assert len(tool.seen) == 1


async def waiting(host: Host, session_id: str) -> tuple[str, Any]:
    """The run of a session's turn, and its call, once somebody must answer."""
    found: list[tuple[str, Any]] = []

    async def so() -> bool:
        run_id = (await read(host, session_id)).state.running
        state = (await host.state(run_id))[0] if run_id else run.New()
        if isinstance(state, run.Live) and state.open is not None and state.open.waits:
            found.append((run_id, state.open))
        return bool(found)

    await until_so(so)
    return found[0]


@pytest.mark.parametrize(
    ("tool", "expected"),
    [(REVIEWED, "SESSION_DELETED"), (APPLICATION, "TOOL_OUTCOME_UNCERTAIN")],
    ids=["reviewed", "application"],
)
async def test_deleting_a_session_cancels_a_turn_that_waits_on_another_node(
    opening: Opening, tool: Any, expected: str
) -> None:
    host_tool = CountingTool("reviewed", reviewed=True)
    async with two_nodes(calling(tool.name), opening, host_tool) as (one, two), anyio.create_task_group() as tasks:
        session_id = await opened(one)
        ends: list[Any] = []

        async def ask() -> None:
            request = one.checked(turn(session_id, **wanted(tool)))
            async with one.runs.attend(request, subject="ann", streamed=True, waived=frozenset({"app"})) as attended:
                ends.append(events([item async for batch in attended.items() for item in batch])[-1])

        tasks.start_soon(ask)
        run_id, open_call = await waiting(two, session_id)
        assert open_call.stage == ("offered" if tool is APPLICATION else "reviewed")
        await delete(two, session_id)
        await until(lambda: bool(ends))
        error = ends[0]["error"]
        assert (ends[0]["type"], error["code"]) == ("run.cancelled", expected)
        assert error.get("outcome") == ("uncertain" if tool is APPLICATION else None)
        assert await code(read(one, session_id)) == "SESSION_NOT_FOUND"
        assert isinstance((await one.state(run_id))[0], run.Ended)
    assert host_tool.seen == []


async def test_deleting_a_session_cancels_a_turn_whose_tool_runs() -> None:
    tool = Stuck()
    house = House()
    async with (
        keeping(calling("host"), house.store("n1"), tool) as one,
        keeping(calling("host"), house.store("n2"), tool) as two,
        anyio.create_task_group() as tasks,
    ):
        session_id = await opened(one, "native")
        ends: list[Any] = []

        async def ask() -> None:
            ends.append(await taken(one, turn(session_id, **TOOL_TURN)))

        tasks.start_soon(ask)
        await tool.entered.wait()
        await delete(two, session_id)
        await until(lambda: bool(ends))
        assert (ends[0]["type"], ends[0]["error"]["code"]) == ("run.cancelled", "TOOL_OUTCOME_UNCERTAIN")
        await until(lambda: not one.node.executing)


class Stuck(CountingTool):
    """A tool that never returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = anyio.Event()

    @override
    async def call(self, arguments: Any, context: Any) -> object:
        self.entered.set()
        await anyio.sleep_forever()
        return await super().call(arguments, context)


async def test_a_session_is_deleted_under_its_thinking_model_while_every_slot_is_taken(opening: Opening) -> None:
    model = holding()
    async with (
        two_nodes(model, opening, caps=lambda _subject, _account: Caps(total=1)) as (one, two),
        anyio.create_task_group() as tasks,
    ):
        session_id = await opened(one)
        ends: list[Any] = []

        async def ask() -> None:
            ends.append(await taken(one, turn(session_id)))

        tasks.start_soon(ask)
        await until(lambda: model.calls == 1)
        assert await code(taken(two, turn(session_id))) == "BUSY"
        await delete(two, session_id)
        model.release.set()
        await until(lambda: bool(ends))
        assert (ends[0]["type"], ends[0]["error"]["code"]) == ("run.cancelled", "SESSION_DELETED")
        assert await code(taken(two, asking())) == "run.completed"


# Two at once.


async def both(*asked: Awaitable[Any]) -> list[str]:
    """How what is asked for at once comes out, in no order."""
    codes: list[str] = []

    async def note(one: Awaitable[Any]) -> None:
        codes.append(await code(one))

    async with anyio.create_task_group() as tasks:
        for one in asked:
            tasks.start_soon(note, one)
    return sorted(codes)


async def test_of_two_turns_at_once_on_two_nodes_exactly_one_is_made(opening: Opening) -> None:
    async with two_nodes(counting(), opening) as (one, two):
        for number in range(10):
            session_id = await opened(one)
            other, made = await both(taken(one, turn(session_id)), taken(two, turn(session_id)))
            assert made == "run.completed", number
            assert other in {"SESSION_BUSY", "SESSION_REVISION_CONFLICT"}, number
            assert (await read(two, session_id)).state.revision == 1


class Pair(NamedTuple):
    """Two hosts of one deployment whose stores let each other go first, here and there."""

    house: House
    model: Listener
    one: Host
    two: Host
    random: Random


@asynccontextmanager
async def pair(seed: int) -> AsyncIterator[Pair]:
    house, random, model = House(), Random(seed), counting()  # noqa: S311 - a seed, no secret
    first, second = Yielding(house.store("n1"), random), Yielding(house.store("n2"), random)
    async with keeping(model, first) as one, keeping(model, second) as two:
        yield Pair(house, model, one, two, random)


async def test_of_two_turns_in_whatever_order_one_is_made_and_the_other_finds_it_busy_or_done() -> None:
    seen: set[str] = set()
    for seed in range(TRIALS):
        async with pair(seed) as (house, model, one, two, _):
            session_id = await opened(one)
            other, made = await both(taken(one, turn(session_id)), taken(two, turn(session_id)))
            assert made == "run.completed", seed
            seen.add(other)
            assert (await read(one, session_id)).state.revision == model.calls == 1
            assert [type(log[-1]) for log in logs_of(house.memory).values()] == [RunCompleted]
    assert "SESSION_BUSY" in seen
    assert seen <= {"SESSION_BUSY", "SESSION_REVISION_CONFLICT"}


async def test_a_deletion_that_meets_a_turn_leaves_nothing_that_completes_afterwards() -> None:
    seen: set[str] = set()
    for seed in range(TRIALS):
        async with pair(seed) as meeting:
            seen.add(await _met_by_a_deletion(meeting))
    assert {"run.completed", "run.cancelled"} <= seen
    assert seen <= {"run.completed", "run.cancelled", "SESSION_NOT_FOUND"}


async def _met_by_a_deletion(meeting: Pair) -> str:
    """Delete a session while a turn is made; answers how that ended."""
    house, _, one, two, random = meeting
    session_id = await opened(one)

    async def deleted() -> None:
        for _ in range(random.randrange(30)):
            await checkpoint()
        await delete(two, session_id)
        assert house.memory.actors[session_id].heads.erased
        assert all(house.memory.actors[run_id].heads.ended for run_id in logs_of(house.memory, session_id))

    deletion, made = await both(deleted(), taken(one, turn(session_id)))
    assert deletion == ""
    assert await code(read(one, session_id)) == "SESSION_NOT_FOUND"
    await until(lambda: not one.node.executing)
    assert [await house.counted(), await house.counted("runs")] == [0, 0]
    return made


# Keys.


def keyed(session_id: str, revision: int = 0, **members: Any) -> dict[str, Any]:
    return turn(session_id, revision, idempotencyKey="k1", **members)


async def test_a_keyed_turn_is_made_once_and_told_again_on_any_node(opening: Opening) -> None:
    model = counting()
    async with two_nodes(model, opening) as (one, two):
        session_id = await opened(one)
        first = await items_of(one, keyed(session_id))
        await taken(one, turn(session_id, 1))
        replays = [await items_of(host, keyed(session_id)) for host in (two, one)]
        assert replays[0] == replays[1]
        assert types(replays[0]) == [kind for kind in types(first) if kind != "text.delta"]
        told, again = events(first)[-1]["result"], events(replays[0])[-1]["result"]
        assert msgspec.json.encode(told) == msgspec.json.encode(again)
        assert again["session"]["revision"] == 1
        assert (await read(two, session_id)).state.revision == 2
        await delete(two, session_id)
        for host in (one, two):
            assert await code(taken(host, keyed(session_id))) == "SESSION_NOT_FOUND"
    assert model.calls == 2


@pytest.mark.parametrize(
    "other", [{"input": "other"}, {"session": {"id": "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10", "revision": 0}}]
)
async def test_the_key_of_a_turn_conflicts_with_another_request_even_after_the_session_is_gone(
    other: dict[str, Any],
) -> None:
    async with keeping(counting(), House().store("n1")) as host:
        session_id = await opened(host)
        await taken(host, keyed(session_id))
        assert await code(taken(host, keyed(session_id) | other)) == "IDEMPOTENCY_CONFLICT"
        assert await code(taken(host, keyed(session_id, 1))) == "IDEMPOTENCY_CONFLICT"
        await delete(host, session_id)
        assert await code(taken(host, keyed(session_id) | other)) == "IDEMPOTENCY_CONFLICT"


async def test_a_plain_run_and_a_turn_under_one_key_conflict_both_ways(opening: Opening) -> None:
    plain = asking(idempotencyKey="k1")
    async with two_nodes(counting(), opening) as (one, two):
        session_id = await opened(one)
        assert await code(taken(one, plain)) == "run.completed"
        assert await code(taken(two, keyed(session_id))) == "IDEMPOTENCY_CONFLICT"
        assert (await read(one, session_id)).state.revision == 0
        other = (await sessions_of(one).create(holder("bo"), conversing.wanted())).id
        assert await code(taken(one, keyed(other), "bo")) == "run.completed"
        assert await code(taken(two, plain, "bo")) == "IDEMPOTENCY_CONFLICT"
        assert await code(taken(two, keyed(other), "bo")) == "run.completed"


async def test_a_turn_that_is_under_way_is_in_progress_on_every_node() -> None:
    house, model = House(), holding()
    async with (
        keeping(model, house.store("n1")) as one,
        keeping(model, house.store("n2")) as two,
        anyio.create_task_group() as tasks,
    ):
        session_id = await opened(one)
        tasks.start_soon(taken, one, keyed(session_id))
        await until(lambda: model.calls == 1)
        for host in (one, two):
            assert await code(taken(host, keyed(session_id))) == "OPERATION_IN_PROGRESS"
            assert await code(taken(host, keyed(session_id, 1))) == "IDEMPOTENCY_CONFLICT"
        forbidden = holder(operations=frozenset({"read"}))
        assert await code(entered(two, keyed(session_id), forbidden)) == "FORBIDDEN"
        await delete(two, session_id)
        assert await code(taken(two, keyed(session_id))) == "SESSION_NOT_FOUND"
        model.release.set()
    assert model.calls == 1


async def entered(host: Host, document: dict[str, Any], asker: Any) -> None:
    async with host.runs.attend(host.checked(document), subject=asker.subject, streamed=True, holder=asker):
        pass


async def test_a_replay_needs_the_session_to_be_one_that_could_go_on() -> None:
    house = House()
    async with keeping(counting(), house.store("n1")) as one:
        session_id = await opened(one)
        await taken(one, keyed(session_id))
        for info, expected in (
            ({"account": "another"}, "SESSION_ACCOUNT_CHANGED"),
            ({"account": None}, "SESSION_ACCOUNT_REQUIRED"),
            ({"capabilities": {}}, "UNSUPPORTED_CONTINUATION"),
        ):
            async with keeping(counting(**info), house.store("n2")) as two:
                assert await code(taken(two, keyed(session_id))) == expected
        assert await code(entered(one, keyed(session_id), holder(operations=frozenset({"read"})))) == "FORBIDDEN"
        assert await code(entered(one, keyed(session_id), holder(providers=()))) == "FORBIDDEN"
        assert await code(taken(one, keyed(session_id))) == "run.completed"


async def test_a_key_whose_turn_was_refused_is_burned() -> None:
    house, model = House(), holding()
    async with (
        keeping(model, house.store("n1")) as one,
        keeping(model, house.store("n2")) as two,
        anyio.create_task_group() as tasks,
    ):
        session_id = await opened(one)
        tasks.start_soon(taken, one, turn(session_id))
        await until(lambda: model.calls == 1)
        assert await code(taken(two, keyed(session_id))) == "SESSION_BUSY"
        model.release.set()
        await until_so(lambda: stands_at(one, session_id, 1))
        for host in (one, two):
            assert await code(taken(host, keyed(session_id))) == "OPERATION_UNCERTAIN"
            assert await code(taken(host, keyed(session_id, 1))) == "IDEMPOTENCY_CONFLICT"
        assert await code(taken(two, turn(session_id, 1, idempotencyKey="k2"))) == "run.completed"
        assert await code(taken(two, turn("0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10", idempotencyKey="k3"))) == (
            "SESSION_NOT_FOUND"
        )


async def stands_at(host: Host, session_id: str, revision: int) -> bool:
    return (await read(host, session_id)).state.revision == revision


async def test_many_requests_of_one_key_over_two_nodes_give_one_turn(opening: Opening) -> None:
    model = counting()
    codes: list[str] = []
    async with two_nodes(model, opening, caps=lambda _subject, _account: Caps(total=100)) as (one, two):
        session_id = await opened(one)
        async with anyio.create_task_group() as tasks:

            async def submit(host: Host) -> None:
                codes.append(await code(taken(host, keyed(session_id))))

            for number in range(20):
                tasks.start_soon(submit, (one, two)[number % 2])
        assert (await read(two, session_id)).state.revision == 1
        assert await code(taken(two, keyed(session_id))) == "run.completed"
    assert model.calls == 1
    assert set(codes) <= {"run.completed", "OPERATION_IN_PROGRESS"}
    assert "run.completed" in codes


async def test_many_requests_of_one_key_in_whatever_order_give_one_turn() -> None:
    for seed in range(TRIALS // 3):
        async with pair(seed) as (_, model, one, two, _):
            session_id = await opened(one)
            other, made = await both(taken(one, keyed(session_id)), taken(two, keyed(session_id)))
            assert made == "run.completed", seed
            assert other in {"run.completed", "OPERATION_IN_PROGRESS"}, seed
            assert (await read(one, session_id)).state.revision == model.calls == 1


class Refusing:
    """A store that is gone for runs that are accepted, while it says so."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.refuses = True

    async def append(self, append: Append) -> Any:
        if self.refuses and _accepts(append):
            raise Unavailable("nothing was sent", 1)
        return await self._store.append(append)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Gated:
    """A store at which runs that are accepted wait for a gate."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reached = anyio.Event()
        self.gate = anyio.Event()

    async def append(self, append: Append) -> Any:
        if _accepts(append):
            self.reached.set()
            await self.gate.wait()
        return await self._store.append(append)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _accepts(append: Append) -> bool:
    return any(b"run.accepted" in one.data for part in append.parts for one in part.events)


async def test_a_turn_that_was_made_is_told_again_though_a_repeat_of_it_was_refused_first() -> None:
    house, model = House(), counting()
    store = Gated(house.store("n1"))
    caps = Caps(total=1, queue_total=2, queue_per_subject=2)
    async with (
        keeping(model, store, caps=lambda _subject, _account: caps) as one,
        keeping(model, house.store("n2"), caps=lambda _subject, _account: caps) as two,
        anyio.create_task_group() as tasks,
    ):
        session_id = await opened(one)
        ends: list[str] = []

        async def ask() -> None:
            ends.append(await code(taken(one, keyed(session_id))))

        tasks.start_soon(ask)
        await store.reached.wait()
        async with two.attend(turn(session_id), subject="ann") as in_line:
            assert await code(taken(two, keyed(session_id))) == "SESSION_BUSY"
        await ended(two, in_line.run_id)
        store.gate.set()
        await until(lambda: bool(ends))
        assert ends == ["run.completed"]
        for host in (one, two):
            assert await code(taken(host, keyed(session_id))) == "run.completed"
        assert model.calls == 1


async def test_a_key_reserved_without_its_turn_is_finished_by_whoever_comes_again() -> None:
    house, model = House(), counting()
    store = Refusing(house.store("n1"))
    async with keeping(model, store) as one, keeping(model, house.store("n2")) as two:
        session_id = await opened(one)
        assert await code(taken(one, keyed(session_id))) == "OPERATION_STORE_ERROR"
        key_id = run_of_key(one.store.deployment.id_key, "ann", "k1")
        (reserved,) = await log_of(one.store, key_id)
        assert isinstance(reserved, KeyReserved)
        assert (model.calls, logs_of(house.memory)) == (0, {})
        assert await code(taken(two, keyed(session_id, 1))) == "IDEMPOTENCY_CONFLICT"
        assert await code(taken(two, keyed(session_id))) == "run.completed"
        ((run_id, log),) = logs_of(house.memory, session_id).items()
        assert run_id == reserved.run_id
        assert isinstance(log[0], RunAccepted)
        assert await code(taken(one, keyed(session_id))) == "run.completed"
        assert model.calls == 1


async def test_a_key_reserved_without_its_turn_is_burned_if_that_cannot_be_made_any_more() -> None:
    house, model = House(), counting()
    store = Refusing(house.store("n1"))
    async with keeping(model, store) as one, keeping(model, house.store("n2")) as two:
        session_id = await opened(one)
        assert await code(taken(one, keyed(session_id))) == "OPERATION_STORE_ERROR"
        assert await code(taken(two, turn(session_id))) == "run.completed"
        assert await code(taken(two, keyed(session_id))) == "SESSION_REVISION_CONFLICT"
        store.refuses = False
        assert await code(taken(one, keyed(session_id))) == "OPERATION_UNCERTAIN"
        assert model.calls == 1


async def test_the_key_of_a_session_holds_nothing_that_was_said() -> None:
    house = House()
    async with keeping(counting(), house.store("n1")) as host:
        session_id = await opened(host, history=visible("a secret"))
        await taken(host, keyed(session_id, input="another secret"))
        key_id = run_of_key(host.store.deployment.id_key, "ann", "k1")
        kept = house.memory.actors[key_id]
        assert not any(b"secret" in entry.data or b"k1" in entry.data for entry in kept.log.values())
        assert codec.decode_run(kept.log[1].data).__class__ is KeyReserved
        assert (await read(host, session_id)).state.history[-1] == Visible("assistant", "answer 1")
