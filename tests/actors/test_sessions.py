"""Conversations on any node: the order of refusals, room, expiry, accounts, and what is shown."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors.session import Limits
from actors.sessions import Holder, Shown
from eventstore.store import Caps
from runstream.host import Host
from tests.actors.conversing import (
    ALL_OPERATIONS,
    STEADY,
    House,
    Listener,
    Opening,
    code,
    counting,
    delete,
    events,
    holder,
    holding,
    keeping,
    opened,
    opening,
    read,
    sessions_of,
    taken,
    turn,
    two_nodes,
    visible,
    wanted,
)
from tests.actors.support import asking, ended, until, until_so
from tests.eventstore.conftest import valkey

__all__ = ["opening", "valkey"]

pytestmark = pytest.mark.anyio

BRIEF = Limits(retention_ms=1_000)
HISTORY_ONLY = {"historyContinuation": True}
NOBODY = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"


async def gone(host: Host, session_id: str) -> bool:
    return await code(read(host, session_id)) == "SESSION_NOT_FOUND"


# Creating.


async def test_a_session_is_shown_as_it_was_asked_for_on_every_node(opening: Opening) -> None:
    async with two_nodes(counting(), opening) as (one, two):
        made = await sessions_of(one).create(holder(), wanted(history=visible("a", "b"), instructions=""))
        assert (made.state.revision, made.state.running, made.state.interrupted) == (0, "", False)
        assert (made.state.history, made.state.created.instructions) == (visible("a", "b"), "")
        assert made.state.updated_ms == made.state.created.at_ms
        assert await read(two, made.id) == made


def create_with(**changes: Any) -> Callable[[Host], Any]:
    held = {name: changes.pop(name) for name in ("operations", "providers") if name in changes}
    return lambda host: sessions_of(host).create(holder(**held), wanted(**changes))


@pytest.mark.parametrize(
    ("expected", "info", "asked"),
    [
        ("FORBIDDEN", {}, create_with(operations=ALL_OPERATIONS - {"create"}, provider="none")),
        ("FORBIDDEN", {}, create_with(providers=(), provider="none")),
        ("UNKNOWN_PROVIDER", {}, create_with(provider="none", mode="native")),
        ("UNSUPPORTED_CONTINUATION", {"capabilities": HISTORY_ONLY}, create_with(mode="native", model="other")),
        ("UNSUPPORTED_CONTINUATION", {"capabilities": {}}, create_with(model="other")),
        ("UNSUPPORTED_MODEL", {"account": None}, create_with(model="other")),
        ("SESSION_ACCOUNT_REQUIRED", {"account": None}, create_with(history=visible("a", "b", "c"))),
        ("SESSION_CAPACITY", {}, create_with(history=visible("a", "b", "c"))),
    ],
)
async def test_a_session_is_refused_by_the_first_rule_it_breaks(
    expected: str, info: dict[str, Any], asked: Callable[[Host], Any]
) -> None:
    """Each request breaks the rules after its own as well."""
    house = House()
    full = Limits(retention_ms=60_000, max_entries=1, max_messages=2)
    async with keeping(counting(), house.store("n1"), sessions=full) as one:
        await opened(one)
        async with keeping(counting(models=("m",), **info), house.store("n2"), sessions=full) as two:
            assert await code(asked(two)) == expected
    assert await house.counted() == 1


@pytest.mark.parametrize(
    ("limits", "members"),
    [
        ({"max_messages": 2}, {"history": visible("a", "b", "c")}),
        ({"max_record_bytes": 40}, {"history": visible("a" * 20)}),
        ({"max_record_bytes": 40}, {"instructions": "a" * 20}),
        ({}, {"history": visible("a" * 100_001)}),
    ],
)
async def test_a_session_larger_than_may_be_kept_is_refused_and_leaves_its_place(
    limits: dict[str, Any], members: dict[str, Any]
) -> None:
    house = House()
    async with keeping(counting(), house.store("n1"), sessions=Limits(retention_ms=1_000, **limits)) as host:
        assert await code(sessions_of(host).create(holder(), wanted(**members))) == "SESSION_CONTEXT_LIMIT"
        assert await house.counted() == 0
        assert not any(kept.heads.log for kept in house.memory.actors.values())


async def test_places_are_counted_over_all_nodes_and_subjects_and_a_deletion_frees_one_at_once(
    opening: Opening,
) -> None:
    async with two_nodes(counting(), opening, sessions=Limits(retention_ms=60_000, max_entries=2)) as (one, two):
        first = await opened(one)
        await sessions_of(two).create(holder("bo"), wanted())
        for host in (one, two):
            assert await code(sessions_of(host).create(holder("cy"), wanted())) == "SESSION_CAPACITY"
        await delete(two, first)
        assert await opened(one)


async def test_what_has_expired_makes_room_at_once() -> None:
    house = House()
    seldom = replace(STEADY, routine_ms=600_000)
    limits = Limits(retention_ms=1_000, max_entries=1)
    async with keeping(counting(), house.store("n1"), sessions=limits, node=seldom) as host:
        first = await opened(host)
        assert await code(sessions_of(host).create(holder(), wanted())) == "SESSION_CAPACITY"
        house.clock.ahead_ms += 1_000
        second = await opened(host)
        assert await gone(host, first)
        assert (await read(host, second)).state.revision == 0
        assert await house.counted() == 1


# Reading and deleting.


@pytest.mark.parametrize(
    ("expected", "session", "operations", "providers", "info"),
    [
        ("SESSION_NOT_FOUND", "not-an-id", ALL_OPERATIONS, (), {"account": None}),
        ("SESSION_NOT_FOUND", NOBODY, ALL_OPERATIONS, (), {"account": None}),
        ("SESSION_NOT_FOUND", "bo's", frozenset[str](), (), {"account": None}),
        ("SESSION_NOT_FOUND", "AN UPPER CASE ONE", ALL_OPERATIONS, ("fake",), {}),
        ("FORBIDDEN", "ann's", ALL_OPERATIONS, (), {"account": None}),
        ("FORBIDDEN", "ann's", frozenset[str](), ("fake",), {"account": None}),
        ("SESSION_ACCOUNT_REQUIRED", "ann's", ALL_OPERATIONS, ("fake",), {"account": None}),
        ("SESSION_ACCOUNT_CHANGED", "ann's", ALL_OPERATIONS, ("fake",), {"account": "another"}),
    ],
)
async def test_who_may_not_have_a_session_is_told_the_first_reason_whatever_is_asked(
    expected: str, session: str, operations: frozenset[str], providers: tuple[str, ...], info: dict[str, Any]
) -> None:
    house = House()
    async with keeping(counting(), house.store("n1")) as one:
        mine = await opened(one)
        theirs = (await sessions_of(one).create(holder("bo"), wanted())).id
        named = {"ann's": mine, "bo's": theirs, "AN UPPER CASE ONE": mine.upper()}.get(session, session)
        asker = holder(operations=operations, providers=providers)
        model = counting(**info)
        async with keeping(model, house.store("n2")) as two:
            assert await code(sessions_of(two).read(asker, named)) == expected
            if named != "not-an-id":
                request = two.checked(turn(named, 9, model="other"))
                assert await code(attended(two, request, asker)) == expected
            deleted = "" if expected.startswith("SESSION_ACCOUNT") else expected
            assert await code(sessions_of(two).delete(asker, named)) == deleted
        assert model.calls == 0
        assert await gone(one, mine) is (deleted == "")


async def attended(host: Host, request: Any, asker: Holder) -> None:
    async with host.runs.attend(request, subject=asker.subject, streamed=True, holder=asker):
        pass


@pytest.mark.parametrize("operation", ["read", "continue", "delete"])
async def test_each_operation_is_granted_by_itself(operation: str) -> None:
    async with keeping(counting(), House().store("n1")) as host:
        session_id = await opened(host)
        without, alone = holder(operations=ALL_OPERATIONS - {operation}), holder(operations=frozenset({operation}))
        for asker, expected in ((without, "FORBIDDEN"), (alone, "")):
            assert await code(carried_out(operation, host, session_id, asker)) == expected


async def carried_out(operation: str, host: Host, session_id: str, asker: Holder) -> None:
    if operation == "read":
        await sessions_of(host).read(asker, session_id)
    elif operation == "continue":
        await attended(host, host.checked(turn(session_id)), asker)
    else:
        await sessions_of(host).delete(asker, session_id)


async def test_a_deleted_session_is_gone_on_every_node_with_its_content(opening: Opening) -> None:
    async with two_nodes(counting(), opening) as (one, two):
        session_id = await opened(one, history=visible("a secret"))
        assert (await read(two, session_id)).state.history == visible("a secret")
        await delete(two, session_id)
        for host in (one, two):
            assert await gone(host, session_id)
            assert await code(delete(host, session_id)) == "SESSION_NOT_FOUND"
            assert await code(taken(host, turn(session_id))) == "SESSION_NOT_FOUND"
        look = await one.store.look(session_id, snapshot=True)
        assert (look.heads.ended, look.heads.erased, list(look.entries), look.snapshot) == (True, True, [], None)


# Expiring.


async def test_an_idle_session_expires_at_its_time_and_any_node_erases_it() -> None:
    house = House()
    limits = Limits(retention_ms=60_000)
    async with keeping(counting(), house.store("n1"), sessions=limits) as one:
        idle, read_often = await opened(one), await opened(one)
        house.clock.ahead_ms += 59_000
        assert (await read(one, read_often)).state.expires_ms > one.store.now_ms()
        house.clock.ahead_ms += 1_000
        assert [await gone(one, idle), await gone(one, read_often)] == [True, True]
    async with keeping(counting(), house.store("n2"), sessions=None):
        await until(lambda: all(house.memory.actors[actor].heads.erased for actor in (idle, read_often)))
        await until_so(lambda: nothing_held(house))
        await until(lambda: not any(house.memory.due.values()))


async def test_a_session_that_went_on_or_was_interrupted_is_erased_at_its_time_as_well() -> None:
    house, model = House(), holding()
    async with keeping(model, house.store("n1"), sessions=BRIEF) as host:
        went_on, interrupted = await opened(host), await opened(host)
        await left_in_the_middle(host, model, interrupted)
        model.release.set()
        assert await code(taken(host, turn(went_on))) == "run.completed"
        house.clock.ahead_ms += 1_001
        await until(lambda: all(house.memory.actors[actor].heads.erased for actor in (went_on, interrupted)))
        await until_so(lambda: nothing_held(house))


async def nothing_held(house: House) -> bool:
    return not await house.counted()


async def test_a_session_expires_on_a_server_as_well(opening: Opening) -> None:
    async with two_nodes(counting(), opening, sessions=Limits(retention_ms=50)) as (one, two):
        session_id = await opened(one)
        await until_so(lambda: gone(two, session_id))

        async def erased() -> bool:
            return (await two.store.look(session_id)).heads.erased

        await until_so(erased)


async def test_a_session_does_not_expire_while_its_turn_runs_and_starts_anew_with_its_end() -> None:
    house, model = House(), holding()
    async with keeping(model, house.store("n1"), sessions=BRIEF) as host:
        session_id = await opened(host)
        before = (await read(host, session_id)).state
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taken, host, turn(session_id))
            await until(lambda: model.calls == 1)
            house.clock.ahead_ms += 5_000
            await sessions_of(host)._around.swept()
            assert (session_id, "retention") not in house.memory.due[host.store.partition_of(session_id)]
            running = (await read(host, session_id)).state
            assert (running.running != "", running.revision, running.history) == (True, 0, ())
            assert running.updated_ms == before.updated_ms
            model.release.set()
        after = (await read(host, session_id)).state
        assert after.revision == 1
        assert after.updated_ms >= before.updated_ms + 5_000
        assert after.expires_ms == after.updated_ms + 1_000
        house.clock.ahead_ms += 1_001
        assert await gone(host, session_id)


async def test_an_interrupted_session_is_read_until_it_expires_and_never_goes_on() -> None:
    house, model = House(), holding()
    async with keeping(model, house.store("n1"), sessions=BRIEF) as host:
        session_id = await opened(host)
        run_id = await left_in_the_middle(host, model, session_id)
        state = (await read(host, session_id)).state
        assert (state.interrupted, state.running, state.revision, state.history) == (True, "", 0, ())
        assert await code(taken(host, turn(session_id, 1))) == "SESSION_REVISION_CONFLICT"
        assert await code(taken(host, turn(session_id))) == "SESSION_INTERRUPTED"
        assert events(await ended(host, run_id))[-1]["type"] == "run.cancelled"
        house.clock.ahead_ms += 1_001
        assert await gone(host, session_id)


async def left_in_the_middle(host: Host, model: Listener, session_id: str) -> str:
    """Begin a turn and leave while its model thinks."""
    calls = model.calls
    async with host.attend(turn(session_id), subject="ann") as run:
        await until(lambda: model.calls == calls + 1)
    await ended(host, run.run_id)
    return run.run_id


# Reserving.


async def test_a_turn_is_refused_by_the_first_rule_it_breaks() -> None:
    house, model, withdrawn = House(), holding(), counting(capabilities={})
    limits = Limits(retention_ms=60_000, max_messages=2)
    async with keeping(model, house.store("n1"), sessions=limits) as one, anyio.create_task_group() as tasks:
        session_id = await opened(one, history=visible("a"))
        async with keeping(withdrawn, house.store("n2"), sessions=limits) as two:
            assert await code(taken(two, turn(session_id, 5, model="other"))) == "SESSION_PROVIDER_MISMATCH"
            assert await code(taken(two, turn(session_id, 5))) == "UNSUPPORTED_CONTINUATION"
        assert await code(taken(one, turn(session_id))) == "SESSION_CONTEXT_LIMIT"
        other = await opened(one)
        tasks.start_soon(taken, one, turn(other))
        await until(lambda: model.calls == 1)
        assert await code(taken(one, turn(other, 5, model="other"))) == "SESSION_PROVIDER_MISMATCH"
        assert await code(taken(one, turn(other, 5))) == "SESSION_REVISION_CONFLICT"
        assert await code(taken(one, turn(other))) == "SESSION_BUSY"
        model.release.set()
    assert (model.calls, withdrawn.calls) == (1, 0)


@pytest.mark.parametrize(
    ("expected", "members"),
    [
        ("SESSION_HISTORY_CONFLICT", {"history": [], "tools": ["none"], "provider": "none"}),
        ("SESSION_HISTORY_CONFLICT", {"instructions": "", "provider": "none"}),
        ("UNKNOWN_PROVIDER", {"provider": "none"}),
    ],
)
async def test_what_a_session_brings_itself_is_refused_before_anything_is_looked_up(
    expected: str, members: dict[str, Any]
) -> None:
    async with keeping(counting(), House().store("n1")) as host:
        assert await code(taken(host, turn(NOBODY, **members))) == expected


async def test_a_host_without_sessions_says_so_before_anything_else() -> None:
    async with keeping(counting(), House().store("n1"), sessions=None) as host:
        assert host.sessions is None
        assert await code(taken(host, turn(NOBODY, history=[], provider="none"))) == "SESSIONS_UNAVAILABLE"


async def test_a_refused_turn_leaves_no_run_no_slot_and_the_session_as_it_was() -> None:
    house = House()
    async with keeping(counting(), house.store("n1")) as host:
        session_id = await opened(host)
        before = await read(host, session_id)
        heads = house.memory.actors[session_id].heads
        for revision in (1, 2**53 - 1):
            assert await code(taken(host, turn(session_id, revision))) == "SESSION_REVISION_CONFLICT"
        assert await code(taken(host, turn(session_id, input="a" * 100_001))) in {
            "INVALID_REQUEST",
            "SESSION_CONTEXT_LIMIT",
        }
        assert await read(host, session_id) == before
        assert house.memory.actors[session_id].heads == heads
        assert [actor for actor, kept in house.memory.actors.items() if kept.heads.log] == [session_id]
        assert await house.counted("runs") == 0


async def test_a_session_turn_needs_a_slot_before_its_session_is_looked_at() -> None:
    house, model = House(), holding()
    few = Caps(total=1)
    async with keeping(model, house.store("n1"), caps=lambda _subject, _account: few) as host:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taken, host, asking())
            await until(lambda: model.calls == 1)
            assert await code(taken(host, turn(NOBODY))) == "BUSY"
            session_id = await opened(host)
            assert await read(host, session_id)
            await delete(host, session_id)
            model.release.set()
        assert await code(taken(host, turn(NOBODY))) == "SESSION_NOT_FOUND"


def shown_as(one: Shown) -> tuple[int, str, bool]:
    return one.state.revision, one.state.running, one.state.interrupted


async def test_a_queued_turn_keeps_its_session_running_and_frees_it_when_its_caller_leaves() -> None:
    house, model = House(), holding()
    queue = Caps(total=1, queue_total=2, queue_per_subject=2)
    async with keeping(model, house.store("n1"), caps=lambda _subject, _account: queue) as host:
        session_id = await opened(host)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taken, host, asking())
            await until(lambda: model.calls == 1)
            async with host.attend(turn(session_id), subject="ann") as queued:
                assert shown_as(await read(host, session_id)) == (0, queued.run_id, False)
                assert await code(taken(host, turn(session_id))) == "SESSION_BUSY"
            assert [one["type"] for one in events(await ended(host, queued.run_id))] == ["run.started", "run.cancelled"]
            assert shown_as(await read(host, session_id)) == (0, "", False)
            tasks.start_soon(taken, host, turn(session_id))
            await until(lambda: len(host.node.executing) == 2)
            model.release.set()
        assert shown_as(await read(host, session_id)) == (1, "", False)
        assert model.calls == 2


async def test_a_queued_turn_is_cancelled_with_its_session(opening: Opening) -> None:
    model = holding()
    queue = Caps(total=1, queue_total=2, queue_per_subject=2)
    async with (
        two_nodes(model, opening, caps=lambda _subject, _account: queue) as (one, two),
        anyio.create_task_group() as tasks,
    ):
        session_id = await opened(one)
        tasks.start_soon(taken, one, asking())
        await until(lambda: model.calls == 1)
        async with one.attend(turn(session_id), subject="ann") as queued:
            await delete(two, session_id)
            last = events(await ended(one, queued.run_id))[-1]
            assert (last["type"], last["error"]["code"]) == ("run.cancelled", "SESSION_DELETED")
        assert model.calls == 1
        model.release.set()
