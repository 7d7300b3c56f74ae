"""Who is taken up when, over all nodes: bounds shared with foreground runs, turns of subjects, and what was forgotten."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors import chores, upkeep
from actors.dispatch import BLOCK_BYTES
from actors.errors import Problem
from actors.events import RunAccepted
from actors.jobs import Job
from actors.ports import ModelContext, ModelRequest, Turn
from eventstore.endpoint import Endpoint
from eventstore.ledger import MemoryLedger, RedisLedger, ledger_keys
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import Caps, Claim, Deployment
from tests.actors.reviewing import CountingTool, call
from tests.actors.support import (
    DEADLINE_S,
    Clock,
    FakeModel,
    asking,
    ended,
    items_of,
    new_memory,
    saying,
    types,
    until,
    until_so,
)
from tests.actors.working import BRISK, LIMITS, Desk, Gated, Held, code_of, on_account, once, used, working
from tests.api.host.hosting import hosting
from tests.eventstore.conftest import emptied, valkey

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

DEPLOYMENT = Deployment("test", 4, b"k" * 32)
GONE = Problem("FORBIDDEN", "The credential is not good any more.")


@asynccontextmanager
async def two(models: Any, memory: Memory, caps: Caps, **options: Any) -> AsyncIterator[tuple[Desk, Desk]]:
    """Open two nodes under the same bounds."""
    bounds: Callable[[str, str], Caps] = lambda _subject, _account: caps  # noqa: E731 - a value
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(working(models, MemoryStore(memory, name), caps=bounds, **options))
            for name in ("n1", "n2")
        ]
        yield one, other


async def settled(desk: Desk) -> None:
    """Wait until the nodes have asked for work a few times more, with nothing to show for it."""
    before = desk.host.store.now_ms()
    await until(lambda: desk.host.store.now_ms() > before + 4 * LIMITS.poll_interval_ms)


# Bounds.


@pytest.mark.parametrize(
    ("caps", "room"),
    [
        (Caps(total=2), 2),
        (Caps(total=9, per_subject=1), 2),
        (Caps(total=9, per_account=3), 3),
        (Caps(total=9, per_node=1), 2),
    ],
    ids=["total", "subject", "account", "node"],
)
async def test_jobs_of_two_nodes_stay_within_the_bounds_of_all(caps: Caps, room: int) -> None:
    held = Held()
    async with two(held.model, new_memory(), caps) as (one, other):
        jobs = [await one.submit(f"{who}{number}", who) for number in range(3) for who in ("ann", "bob")]
        await until(lambda: len(held.inside) == room)
        await settled(other)
        assert len(held.inside) == room
        for job in jobs:
            held.let_go(f"{job.accepted.subject}0", f"{job.accepted.subject}1", f"{job.accepted.subject}2")
        for job in jobs:
            assert (await other.ended(job, job.accepted.subject)).state == "completed"
        assert held.most == room
        assert not (await one.counted("runs")).held


async def test_a_node_takes_no_more_jobs_than_it_has_workers() -> None:
    held = Held()
    async with two(held.model, new_memory(), Caps(total=9), jobs=replace(LIMITS, max_workers=2)) as (one, other):
        jobs = [await one.submit(f"k{number}") for number in range(6)]
        await until(lambda: len(held.inside) == 4)
        await settled(one)
        assert [len(desk.host.node.executing) for desk in (one, other)] == [2, 2]
        held.let_go(*(f"k{number}" for number in range(6)))
        assert [(await one.ended(job)).state for job in jobs] == ["completed"] * 6
        assert held.most == 4


async def test_jobs_and_foreground_runs_share_the_slots_and_whoever_waits_attached_comes_first() -> None:
    held = Held()
    caps = Caps(total=1, queue_total=4, queue_per_subject=4)
    async with two(held.model, new_memory(), caps) as (one, other):
        first = await one.submit("first")
        await until(lambda: held.inside == ["first"])
        second = await one.submit("second")
        async with other.host.attend(asking(input="attached"), subject="bob") as attended:
            await until_so(lambda: _waits(other, 1))
            held.let_go("first")
            await until(lambda: held.inside == ["attached"])
            assert (await one.read(second)).state == "queued"
            held.let_go("attached", "second")
            assert types(await ended(other.host, attended.run_id))[-1] == "run.completed"
        assert (await one.ended(second)).state == "completed"
        assert (await one.ended(first)).state == "completed"
        assert held.most == 1


async def _waits(desk: Desk, waiting: int) -> bool:
    return bool((await desk.counted("runs")).waiting == waiting)


async def test_a_foreground_run_finds_no_slot_that_a_job_has() -> None:
    held = Held()
    async with two(held.model, new_memory(), Caps(total=1)) as (one, other):
        job = await one.submit("k")
        await until(lambda: held.inside == ["k"])
        assert await code_of(items_of(other.host, asking(), "bob")) == "BUSY"
        held.let_go("k", "hello")
        await one.ended(job)
        await until_so(lambda: _free(one))
        assert types(await items_of(other.host, asking(), "bob"))[-1] == "run.completed"


async def _free(desk: Desk) -> bool:
    return not (await desk.counted("runs")).held


# Turns.


async def test_subjects_take_turns_and_each_is_served_in_its_own_order() -> None:
    clock = Clock()
    held = Held()
    async with two(held.model, new_memory(clock), Caps(total=1)) as (one, _):
        first = await one.submit("z", "zoe")
        await until(lambda: held.inside == ["z"])
        jobs: list[Job] = []
        for key, subject in (("a1", "ann"), ("a2", "ann"), ("a3", "ann"), ("b1", "bob"), ("b2", "bob")):
            clock.ahead_ms += 1
            jobs.append(await one.submit(key, subject))
        held.let_go("z", "a1", "a2", "a3", "b1", "b2")
        for job in (first, *jobs):
            await one.ended(job, job.accepted.subject)
        assert held.begun == ["z", "a1", "b1", "a2", "b2", "a3"]


async def test_an_account_that_is_full_stops_neither_its_subject_nor_any_other() -> None:
    tight, wide = Held("tight"), Held("wide")
    models = {"tight": tight.model, "wide": wide.model}
    caps: Callable[[str, str], Caps] = lambda _, account: Caps(total=9, per_account=1 if account == "tight" else 0)  # noqa: E731
    async with working(models, MemoryStore(new_memory(), "n1"), caps=caps) as desk:
        jobs = [await desk.submit(f"t{number}", provider="tight") for number in range(3)]
        jobs.append(await desk.submit("w", provider="wide"))
        other = await desk.submit("b", "bob", provider="wide")
        await until(lambda: sorted(wide.inside) == ["b", "w"])
        assert len(tight.inside) == 1
        tight.let_go("t0", "t1", "t2")
        wide.let_go("w", "b")
        assert (await desk.ended(other, "bob")).state == "completed"
        assert [(await desk.ended(job)).state for job in jobs] == ["completed"] * 4
        assert tight.most == 1


async def test_whoever_has_one_job_does_not_wait_for_whoever_has_thousands(valkey: Endpoint) -> None:
    many, caps = 2_000, Caps(total=1)
    await emptied(valkey)
    held = Held()
    async with (
        open_redis_store(valkey, DEPLOYMENT, "n1") as store,
        working(held.model, store, caps=lambda _subject, _account: caps) as desk,
    ):
        for number in range(4):
            await desk.submit(f"h{number}", "hog")
        await until(lambda: held.inside == ["h0"])
        later = store.now_ms() + 1_000
        async with anyio.create_task_group() as tasks:
            for number in range(many):  # places in the line: none of them comes up here
                claim = Claim("runs", f"x{number}", "", "hog", "acct")
                tasks.start_soon(store.enlist, claim, caps, later + number, 10_000)
        assert (await RedisLedger(store._commands).counted("runs")).queued == many + 3
        job = await desk.submit("o", "other")
        held.let_go("o", "h0", "h1")
        assert (await desk.ended(job, "other")).state == "completed"
        assert held.begun.index("o") <= 2


# What keeps a queued job from being begun.


async def _shut(memory: Memory, *requests: Mapping[str, Any], model: FakeModel, tool: CountingTool) -> list[Job]:
    """Hand jobs in while nobody takes any up."""
    shut = replace(LIMITS, max_workers=0)
    async with working(model, MemoryStore(memory, "n0"), tool, jobs=shut) as desk:
        return [await desk.submit(f"k{number}", **request) for number, request in enumerate(requests)]


@pytest.mark.parametrize(
    ("code", "account", "tools", "authority"),
    [
        ("FORBIDDEN", "acct", True, lambda _: GONE),
        ("UNKNOWN_TOOL", "acct", False, lambda _: None),
        ("JOB_ACCOUNT_CHANGED", "moved", True, lambda _: None),
        ("JOB_ACCOUNT_REQUIRED", None, True, lambda _: None),
    ],
)
async def test_a_job_that_may_not_run_any_more_fails_without_a_call(
    code: str, account: str | None, authority: Any, *, tools: bool
) -> None:
    memory, model, tool = new_memory(), on_account(saying("hi")), CountingTool()
    (job,) = await _shut(memory, {"tools": ["host"]}, model=model, tool=tool)
    on_account(model, account)
    given = (tool,) if tools else ()
    async with working(model, MemoryStore(memory, "n1"), *given, authority=authority) as desk:
        failed = await desk.ended(job)
        assert (failed.state, failed.cursor) == ("failed", 2)
        began, last = (await desk.page(job))["events"]
        assert (began["type"], last["type"]) == ("run.started", "run.failed")
        assert (last["error"]["code"], last["error"]["retryable"]) == (code, False)
        await until_so(lambda: _free(desk))
        assert not model.calls
        assert not tool.seen


async def test_a_job_whose_submitter_lost_the_right_to_it_is_cancelled_where_it_runs() -> None:
    held, lost = Held(), set[str]()

    def authority(accepted: RunAccepted) -> Problem | None:
        assert accepted.principal == "principal"
        return GONE if accepted.subject in lost else None

    async with working(held.model, MemoryStore(new_memory(), "n1"), authority=authority) as desk:
        job, other = await desk.submit("k"), await desk.submit("o", "bob")
        await until(lambda: sorted(held.inside) == ["k", "o"])
        lost.add("ann")
        cancelled = await desk.ended(job)
        assert (cancelled.state, cancelled.cancel_requested) == ("cancelled", False)
        *_, last = (await desk.page(job))["events"]
        assert (last["type"], last["error"]["code"]) == ("run.cancelled", "FORBIDDEN")
        await until(lambda: held.inside == ["o"])
        held.let_go("o")
        assert (await desk.ended(other, "bob")).state == "completed"


# A ledger that forgot.


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued jobs are looked for soon, and again and again."""
    monkeypatch.setattr(upkeep, "QUEUED_LOOK_MS", 30)
    monkeypatch.setattr(chores, "LOOKED_AGAIN_MS", 30)


@pytest.mark.usefixtures("hasty")
async def test_jobs_that_a_lost_ledger_forgot_are_lined_up_again_and_each_runs_once() -> None:
    memory, held = new_memory(), Held()
    async with two(held.model, memory, Caps(total=1)) as (one, other):
        first = await one.submit("first")
        await until(lambda: held.inside == ["first"])
        jobs = [await one.submit(f"k{number}") for number in range(3)]
        memory.ledger = MemoryLedger(
            memory.clock, lambda node, holder: memory._ring(node, lambda ear: ear.granted(holder)), memory._room
        )
        for desk in (one, other):  # else the first to be lined up might take the slot that is forgotten
            await desk.host.node.slots.reassure()
        await until_so(lambda: _knows(one, held=1, queued=3))
        await settled(one)
        assert held.inside == ["first"]
        assert (await one.counted("jobs")).held >= 3
        assert (await one.counted("job-bytes")).weight >= 3 * BLOCK_BYTES
        held.let_go("first", "k0", "k1", "k2")
        for job in (first, *jobs):
            assert (await other.ended(job)).state == "completed"
            once(await one.types(job))
        assert sorted(held.begun) == ["first", "k0", "k1", "k2"]
        assert held.begun[1:] == ["k0", "k1", "k2"]
        assert held.most == 1


async def _knows(desk: Desk, *, held: int, queued: int) -> bool:
    counted = await desk.counted("runs")
    return bool((counted.held, counted.queued) == (held, queued))


@pytest.mark.usefixtures("hasty")
async def test_a_ledger_whose_keys_were_deleted_heals_on_a_server_too(valkey: Endpoint) -> None:
    await emptied(valkey)
    held = Held()
    async with (
        open_redis_store(valkey, DEPLOYMENT, "n1") as store,
        working(held.model, store, caps=lambda _subject, _account: Caps(total=1)) as desk,
    ):
        first = await desk.submit("first")
        await until(lambda: held.inside == ["first"])
        jobs = [await desk.submit(f"k{number}") for number in range(3)]
        gone = {key for pool in ("runs", "jobs", "job-bytes") for key in ledger_keys(pool, "x")}
        await store._commands.call("DEL", *gone)

        async def healed() -> bool:
            counted = await RedisLedger(store._commands).counted("runs")
            return counted.held + counted.queued == 4

        await until_so(healed)
        held.let_go("first", "k0", "k1", "k2")
        for job in (first, *jobs):
            assert (await desk.ended(job)).state == "completed"
            once(await desk.types(job))
        assert sorted(held.begun) == ["first", "k0", "k1", "k2"]


async def test_a_running_job_that_grows_tells_a_lost_ledger_of_its_place_and_its_room() -> None:
    clock = Clock()
    memory = new_memory(clock)
    tool, held = Gated(20_000, shut=True), Held()

    async def answer(request: ModelRequest, context: ModelContext) -> Turn:
        return await held._answer(request, context) if used(request) else Turn(tool_calls=(call("host"),))

    async with working(on_account(FakeModel(answer)), MemoryStore(memory, "n1"), tool) as desk:
        job = await desk.submit("k", tools=["host"])
        await until(lambda: len(tool.seen) == 1)
        memory.ledger = MemoryLedger(memory.clock)
        tool.gate.set()
        await until(lambda: held.inside == ["k"])
        clock.ahead_ms += 2 * BRISK.permit_begin_ms
        assert (await desk.host.store.take(Claim("jobs", "x", "n1", "bob"), Caps(total=1), 1)).taken == "busy"
        assert (await desk.counted("job-bytes")).weight == 2 * BLOCK_BYTES
        held.let_go("k")
        assert (await desk.ended(job)).state == "completed"


@pytest.mark.usefixtures("hasty")
async def test_a_job_that_was_stored_but_never_lined_up_is_found() -> None:
    memory, model = new_memory(), on_account(saying("hi"))
    store: Any = Deaf(MemoryStore(memory, "n1"))
    async with working(model, store) as desk:
        queued = await desk.submit("k")
        assert not store.heard
        store.heard = True
        job = await desk.ended(queued)
        assert job.state == "completed"
        assert (await desk.counted("jobs")).held == 1


class Deaf:
    """A store that hears nothing of lines until it *heard*."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.heard = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enlist(self, *words: Any) -> None:
        if self.heard:
            await self._store.enlist(*words)


# While all is busy.


async def test_controls_answer_while_every_slot_is_taken() -> None:
    held = Held()
    async with two(held.model, new_memory(), Caps(total=2)) as (one, other):
        jobs = [await one.submit(f"k{number}", f"s{number % 5}") for number in range(40)]
        await until(lambda: len(held.inside) == 2)
        with anyio.fail_after(DEADLINE_S):
            for job in jobs[2:]:
                subject = job.accepted.subject
                assert (await other.read(job, subject)).state in {"queued", "running"}
                assert (await other.page(job, subject=subject))["events"] is not None
                assert (await one.submit(f"k{jobs.index(job)}", subject)).id == job.id
            late = await other.submit("late")
            assert (await one.cancel(late)).state == "cancelled"
            cancelled = [await other.cancel(job, job.accepted.subject) for job in jobs]
        assert {job.state for job in cancelled} == {"cancelled"}
        await until_so(lambda: _idle(one))


async def _idle(desk: Desk) -> bool:
    return not (desk.host.node.executing or (await desk.counted("runs")).queued or (await desk.counted("runs")).held)


# Whose the line is.


async def test_a_host_without_jobs_leaves_them_to_those_that_take_them_on_and_serves_host_runs() -> None:
    memory = new_memory()
    bounds: Any = {"caps": lambda _subject, _account: Caps(total=1)}
    async with (
        working(on_account(saying("job")), MemoryStore(memory, "jobs"), held=True, **bounds) as jobs,
        hosting(on_account(saying("run")), MemoryStore(memory, "host"), **bounds) as host,
    ):
        job = await jobs.submit("j1")
        await host.create("run-1")
        assert (await host.ended("run-1"))["result"]["content"] == "run"
        assert (await jobs.read(job)).state == "queued"  # though it was first in the line of both
        jobs.host.begin()
        assert (await jobs.ended(job)).state == "completed"
        assert (await jobs.events(job))[-1]["result"]["text"] == "job"


async def test_a_host_without_the_host_protocol_leaves_its_runs_to_those_that_serve_it() -> None:
    memory = new_memory()
    async with (
        working(on_account(saying("job")), MemoryStore(memory, "jobs")) as jobs,
        hosting(on_account(saying("run")), MemoryStore(memory, "host"), held=True) as host,
    ):
        await host.create("run-1")
        assert (await jobs.ended(await jobs.submit("j1"))).state == "completed"
        assert (await host.view("run-1"))["revision"] == 2
        host.host.begin()
        assert (await host.ended("run-1"))["status"] == "completed"
