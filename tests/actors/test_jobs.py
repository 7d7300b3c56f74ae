"""Jobs at one node and at several: handed in, found again, cancelled, paged through, refused and forgotten."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from actors import chores, run
from actors.dispatch import BLOCK_BYTES
from actors.errors import Refused
from actors.events import RunAccepted
from actors.jobs import PAGE_BYTES_MAX, Job, Submitter
from actors.model_call import DELTA_GAP_S
from actors.ports import ModelContext, ModelRequest, Turn
from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.ledger import RedisLedger
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import Deployment
from tests.actors.reviewing import CountingTool, call
from tests.actors.support import Clock, FakeModel, asking, new_memory, saying, stalling, until, until_so
from tests.actors.working import (
    BRISK,
    LIMITS,
    Desk,
    Gated,
    Held,
    anything,
    code_of,
    on_account,
    once,
    used,
    uses_its_tool,
    working,
)
from tests.eventstore.conftest import emptied, valkey

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

DEPLOYMENT = Deployment("test", 4, b"k" * 32)
OTHER = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"


def alone(memory: Memory | None = None, name: str = "n1") -> MemoryStore:
    return MemoryStore(memory or new_memory(), name)


def nobody(_: RunAccepted) -> bool:
    return False


# Handed in.


async def test_a_job_is_queued_run_by_whoever_has_room_and_kept() -> None:
    memory = new_memory()
    model = on_account(saying("hi", pieces=["h", "i"]))
    async with working(model, alone(memory)) as one, working(model, alone(memory, "n2")) as two:
        queued = await one.submit("k")
        assert (queued.state, queued.cursor, queued.expires_ms) == ("queued", 0, None)
        job = await two.ended(queued)
        assert (job.id, job.state, job.cancel_requested) == (queued.id, "completed", False)
        assert job.expires_ms == job.updated_ms + LIMITS.retention_ms
        types = await two.types(job)
        once(types)
        assert types[-2:] == ["usage.reported", "run.completed"]
        assert job.cursor == len(types)
        assert model.calls == 1


async def test_who_hands_a_job_in_again_finds_it_as_it_stands() -> None:
    held = Held()
    async with working(held.model, alone()) as desk:
        queued = await desk.submit("k")
        assert (await desk.submit("k")).id == queued.id
        await until(lambda: held.inside == ["k"])
        running = await desk.submit("k")
        assert (running.id, running.state) == (queued.id, "running")
        held.let_go("k")
        job = await desk.ended(queued)
        assert await desk.submit("k") == job
        assert held.begun == ["k"]


@pytest.mark.parametrize("end", ["cancelled", "failed", "interrupted"])
async def test_a_job_that_ended_otherwise_is_found_so_and_not_begun_again(end: str) -> None:
    memory, model = new_memory(), on_account(stalling())
    desk: Desk
    async with working(model, alone(memory)) as desk:
        job = await desk.submit("k")
        await until(lambda: model.calls == 1)
        if end == "cancelled":
            await desk.cancel(job)
        elif end == "failed":
            desk.host.node.end_soon(job.id, run.Fail(run.INTERRUPTED))
            await desk.ended(job)
    async with working(model, alone(memory)) as desk:
        found = await desk.submit("k")
        assert (found.id, found.state) == (job.id, end)
        assert model.calls == 1


async def test_a_key_stands_for_one_request_of_one_subject() -> None:
    model = on_account(saying("hi"))
    async with working(model, alone()) as desk:
        first = await desk.submit("k")
        for _ in range(2):
            assert await code_of(desk.submit("k", input="other")) == "IDEMPOTENCY_CONFLICT"
            await desk.ended(first)
        others = await desk.submit("k", "bob", input="other")
        assert others.id != first.id
        assert await code_of(desk.read(first, "bob")) == "JOB_NOT_FOUND"
        foreground = desk.host.checked(asking(idempotencyKey="k", input="k"))
        async with desk.host.attend(foreground, subject="ann") as attended:
            assert attended.run_id != first.id


@pytest.mark.parametrize("kind", ["memory", "fake", "valkey"])
async def test_however_many_hand_in_one_key_at_once_there_is_one_job(kind: str, request: pytest.FixtureRequest) -> None:
    many = {"memory": 60, "fake": 12, "valkey": 300}[kind]
    model = on_account(saying("hi"))
    async with AsyncExitStack() as stack:
        opening, counted = await house(kind, request)
        desks = [
            await stack.enter_async_context(working(model, await stack.enter_async_context(opening(f"n{number}"))))
            for number in range(3)
        ]
        found: list[Job] = []

        async def submit(number: int) -> None:
            found.append(await desks[number % 3].submit("k"))

        async with anyio.create_task_group() as tasks:
            for number in range(many):
                tasks.start_soon(submit, number)
        assert len({job.id for job in found}) == 1
        assert len(found) == many
        job = await desks[0].ended(found[0])
        assert job.state == "completed"
        assert model.calls == 1
        once(await desks[1].types(job))
        assert (await counted("jobs")).held == 1


async def house(kind: str, request: pytest.FixtureRequest) -> tuple[Callable[[str], Any], Callable[[str], Any]]:
    """How nodes of one deployment are opened, and how its pools are counted."""
    if kind == "memory":
        memory = new_memory()
        return (lambda name: nullcontext(alone(memory, name))), memory.ledger.counted
    if kind == "fake":
        opening: Any = partial(open_fake_store, fake_server(), DEPLOYMENT)
    else:
        endpoint: Endpoint = request.getfixturevalue("valkey")
        await emptied(endpoint)
        opening = partial(open_redis_store, endpoint, DEPLOYMENT)

    async def counted(pool: str) -> Any:
        async with opening("observer") as store:
            return await RedisLedger(store._commands).counted(pool)

    return opening, counted


# Refused.


async def test_a_job_needs_a_provider_that_is_bound_to_an_account() -> None:
    model = on_account(saying("hi"), None)
    async with working(model, alone()) as desk:
        assert await code_of(desk.submit("k")) == "JOB_ACCOUNT_REQUIRED"
        assert not (await desk.counted("jobs")).held


async def test_refusals_of_a_submission_come_in_their_order() -> None:
    held = Held()
    memory = new_memory()
    tight = replace(LIMITS, max_jobs=1)
    async with working(held.model, alone(memory), jobs=tight) as desk:
        first = await desk.submit("k")
        large = "x" * 20_000
        small = replace(tight, max_job_bytes=16_384)
        async with working(on_account(saying("hi"), None), alone(memory, "n2"), jobs=small) as poor:
            assert await code_of(poor.submit("k", input="other")) == "JOB_ACCOUNT_REQUIRED"
        async with working(held.model, alone(memory, "n3"), jobs=small) as strict:
            assert await code_of(strict.submit("k", input=large)) == "IDEMPOTENCY_CONFLICT"
            assert await code_of(strict.submit("k2", input=large)) == "JOB_STORE_FULL"
            assert (await strict.submit("k")).id == first.id
        async with working(held.model, alone(memory, "n4"), jobs=replace(small, max_jobs=2)) as roomier:
            assert await code_of(roomier.submit("k2", input=large)) == "JOB_RECORD_LIMIT"
        assert (await desk.counted("jobs")).held == 1


async def test_a_store_of_jobs_is_full_by_subject_and_in_all_and_tombstones_count() -> None:
    clock = Clock()
    memory, model = new_memory(clock), on_account(saying("hi"))
    few = replace(LIMITS, max_jobs=3, max_jobs_per_subject=2)
    async with working(model, alone(memory), jobs=few) as desk:
        jobs = [await desk.submit(key) for key in "ab"]
        assert await code_of(desk.submit("c")) == "JOB_STORE_FULL"
        jobs.append(await desk.submit("a", "bob"))
        assert await code_of(desk.submit("a", "cid")) == "JOB_STORE_FULL"
        for job in jobs:
            await desk.ended(job, job.accepted.subject)
        clock.ahead_ms += LIMITS.retention_ms + 1
        await until(lambda: all(memory.actors[job.id].heads.erased for job in jobs))
        await until_so(lambda: _weighs(desk, 0))
        assert await code_of(desk.submit("c")) == "JOB_STORE_FULL"
        assert await code_of(desk.submit("a", "cid")) == "JOB_STORE_FULL"
        assert (await desk.counted("jobs")).held == 3


async def _weighs(desk: Desk, weight: int) -> bool:
    return bool((await desk.counted("job-bytes")).weight == weight)


async def test_a_job_too_large_to_be_kept_leaves_nothing_behind() -> None:
    memory, model = new_memory(), on_account(stalling())
    small = replace(LIMITS, max_job_bytes=16_384, max_bytes=65_536)
    async with working(model, alone(memory), jobs=small) as desk:
        with pytest.raises(Refused) as refused:
            await desk.submit("k", input="x" * 13_000)
        assert (refused.value.code, refused.value.problem.outcome) == ("JOB_RECORD_LIMIT", "uncertain")
        assert not memory.actors
        for number in range(4):  # each takes a block of 16,384 bytes
            await desk.submit(f"k{number}")
        assert await code_of(desk.submit("k4")) == "JOB_RECORD_LIMIT"
        assert len(memory.actors) == 4
        assert (await desk.counted("jobs")).held == 4
        assert (await desk.counted("job-bytes")).weight == small.max_bytes


async def test_a_job_that_is_stored_too_late_for_its_place_has_to_find_another() -> None:
    clock = Clock()
    memory, model = new_memory(clock), on_account(stalling())
    store: Any = Late(alone(memory))
    few = replace(LIMITS, max_jobs=1)
    codes: list[str] = []
    taken: list[str] = []
    async with working(model, store, jobs=few) as one, working(model, alone(memory, "n2"), jobs=few) as two:

        async def submit() -> None:
            codes.append(await code_of(one.submit("late")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit)
            await until(store.waits.is_set)
            clock.ahead_ms += 2 * BRISK.permit_begin_ms
            taken.append((await two.submit("k")).id)
            store.goes_on.set()
        assert codes == ["JOB_STORE_FULL"]
        assert [actor for actor, kept in memory.actors.items() if kept.log] == taken


class Late:
    """A store whose first append takes long."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.waits = anyio.Event()
        self.goes_on = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, append: Any) -> Any:
        self.waits.set()
        await self.goes_on.wait()
        return await self._store.append(append)


async def test_one_that_may_not_see_a_job_learns_no_more_than_that() -> None:
    async with working(on_account(saying("hi")), alone()) as desk:
        job = await desk.submit("k")
        calls: list[Callable[[str, str, Any], Awaitable[Any]]] = [
            desk.jobs.read,
            desk.jobs.cancel,
            lambda subject, job_id, may: desk.jobs.page(subject, job_id, may, 0),
        ]
        for ask in calls:
            assert await code_of(ask("ann", OTHER, nobody)) == "JOB_NOT_FOUND"
            assert await code_of(ask("ann", "no id", nobody)) == "JOB_NOT_FOUND"
            assert await code_of(ask("bob", job.id, nobody)) == "JOB_NOT_FOUND"
            assert await code_of(ask("ann", job.id, nobody)) == "FORBIDDEN"
        assert await code_of(desk.jobs.page("ann", job.id, nobody, 10**6)) == "FORBIDDEN"
        assert await code_of(desk.jobs.page("ann", job.id, anything, 10**6)) == "INVALID_JOB_CURSOR"
        assert (await desk.ended(job)).state == "completed"


async def test_a_run_of_another_origin_is_no_job() -> None:
    async with (
        working(on_account(stalling()), alone()) as desk,
        desk.host.attend(asking(), subject="ann") as attended,
    ):
        assert await code_of(desk.read(attended.run_id)) == "JOB_NOT_FOUND"
        assert await code_of(desk.cancel(attended.run_id)) == "JOB_NOT_FOUND"


# Grown too large.


@pytest.mark.parametrize(
    ("limits", "size"),
    [({"max_job_bytes": 16_384}, 14_000), ({"max_job_bytes": 4_000_000, "max_bytes": 65_536}, 90_000)],
    ids=["of one", "of all"],
)
async def test_a_tool_whose_output_finds_no_room_has_run_once_and_its_job_is_interrupted(
    limits: dict[str, int], size: int
) -> None:
    tool, model = Gated(size), on_account(FakeModel(uses_its_tool))
    async with working(model, alone(), tool, jobs=replace(LIMITS, **limits)) as desk:
        job = await desk.ended(await desk.submit("k", tools=["host"]))
        assert job.state == "interrupted"
        *_, last = (await desk.page(job))["events"]
        assert (last["error"]["code"], last["error"]["outcome"]) == ("JOB_INTERRUPTED", "uncertain")
        assert len(tool.seen) == 1
        assert model.calls == 1
        once(await desk.types(job))


async def test_text_that_finds_no_room_interrupts_its_job() -> None:
    async def talks(_: ModelRequest, context: ModelContext) -> Turn:
        while True:
            context.emit_text("x" * 500)
            await anyio.lowlevel.checkpoint()

    small = replace(LIMITS, max_job_bytes=16_384)
    async with working(on_account(FakeModel(talks)), alone(), jobs=small) as desk:
        job = await desk.ended(await desk.submit("k"))
        assert job.state == "interrupted"
        assert job.heads.feed_bytes <= small.max_job_bytes
        once(await desk.types(job))


def speaking(piece: str, times: int) -> FakeModel:
    """A model that says *piece* many times, each for itself, and then ends."""

    async def talks(_: ModelRequest, context: ModelContext) -> Turn:
        for _time in range(times):
            context.emit_text(piece)
            await _passed(1.5 * DELTA_GAP_S)
        return Turn(text=piece * times)

    return on_account(FakeModel(talks))


async def _passed(seconds: float) -> None:
    """Wait while the store has that much time."""
    began = anyio.current_time()
    await until(lambda: anyio.current_time() > began + seconds)


async def test_an_answer_that_finds_no_room_beside_its_text_interrupts_its_job() -> None:
    small = replace(LIMITS, max_job_bytes=16_384)
    async with working(speaking("x" * 1_000, 8), alone(), jobs=small) as desk:
        queued = await desk.submit("k")
        await _over(desk)  # whoever looks at the job meanwhile brings the size up to date
        job = await desk.read(queued)
        assert job.state == "interrupted"
        assert job.heads.feed_bytes <= small.max_job_bytes


async def test_text_that_finds_no_room_among_all_jobs_interrupts_its_job() -> None:
    tight = replace(LIMITS, max_job_bytes=4_000_000, max_bytes=65_536)
    async with working(speaking("x" * 10_000, 10), alone(), jobs=tight) as desk:
        assert (await desk.ended(await desk.submit("k"))).state == "interrupted"


async def _over(desk: Desk) -> None:
    await until(lambda: bool(desk.host.node.executing))
    await until(lambda: not desk.host.node.executing)


async def test_what_a_job_has_grown_to_is_taken_from_the_room_of_all() -> None:
    limits = replace(LIMITS, max_bytes=131_072)
    held = Held()
    tool = Gated(60_000)

    async def answer(request: ModelRequest, context: ModelContext) -> Turn:
        if request.tools and not used(request):
            return Turn(tool_calls=(call("host"),))
        return await held._answer(request, context)

    async with working(on_account(FakeModel(answer)), alone(), tool, jobs=limits) as desk:
        large = await desk.submit("large", tools=["host"])
        await until(lambda: held.inside == ["large"])
        assert (await desk.counted("job-bytes")).weight == 65_536
        assert await code_of(desk.submit("other", input="x" * 62_000)) == "JOB_RECORD_LIMIT"
        small = await desk.submit("small")
        held.let_go("large", "small")
        assert [(await desk.ended(job)).state for job in (large, small)] == ["completed"] * 2


# Pages.


async def test_a_page_ends_where_its_limit_or_its_bytes_are_met_but_is_never_empty_for_that() -> None:
    piece = "\u00e9" * 32_768

    async def talks(_: ModelRequest, context: ModelContext) -> Turn:
        for _piece in range(24):
            context.emit_text(piece)
            context.report_progress()
        return Turn(text=piece * 24)

    limits = replace(LIMITS, max_job_bytes=16_000_000)
    async with working(on_account(FakeModel(talks)), alone(), jobs=limits) as desk:
        job = await desk.ended(await desk.submit("k", input="x"))
        sizes, after, found = list[int](), 0, list[int]()
        while after < job.cursor:
            page = await desk.page(job, after)
            numbers = [event["sequence"] for event in page["events"]]
            assert numbers[0] == after + 1
            found += numbers
            sizes.append(len(msgspec.json.encode(page["events"])))
            after = page["nextCursor"]
        assert found == list(range(1, job.cursor + 1))
        assert len(sizes) > 1
        assert max(sizes) <= PAGE_BYTES_MAX
        assert [len((await desk.page(job, 0, limit))["events"]) for limit in (1, 2, 5)] == [1, 2, 5]
        page = await desk.page(job, job.cursor)
        assert (page["events"], page["nextCursor"], page["hasMore"]) == ([], job.cursor, False)


@pytest.mark.parametrize("kind", ["memory", "valkey"])
async def test_a_page_of_a_job_that_writes_is_one_moment_of_it_wherever_it_is_read(
    kind: str, request: pytest.FixtureRequest
) -> None:
    opening, _ = await house(kind, request)
    stop = anyio.Event()

    async def talks(request: ModelRequest, context: ModelContext) -> Turn:
        said = 0
        while not said or not (stop.is_set() or used(request)):
            context.emit_text("t")
            said += 1
            await anyio.lowlevel.checkpoint()
        return Turn(text="t" * said, tool_calls=() if used(request) else (call("host"),))

    async def hammer(desk: Desk, job: Job) -> None:
        after, state = 0, "queued"
        while state in {"queued", "running"} or after:
            page = await desk.page(job, after, limit=7)
            state = page["job"]["state"]
            states.append(state)
            after = page["nextCursor"] if page["hasMore"] else 0
            if len(states) > 120:
                stop.set()
            await anyio.lowlevel.checkpoint()

    states: list[str] = []
    model = on_account(FakeModel(talks))
    async with (
        opening("n1") as first,
        opening("n2") as second,
        working(model, first, CountingTool()) as one,
        working(model, second, CountingTool()) as two,
    ):
        job = await one.submit("k", tools=["host"])
        async with anyio.create_task_group() as tasks:
            for desk in (one, two, two):
                tasks.start_soon(hammer, desk, job)
        assert {"running", "completed"} <= set(states)
        assert states[-1] == "completed"


async def test_a_page_of_a_job_that_is_erased_meanwhile_says_that_it_has_expired() -> None:
    memory = new_memory()
    store: Any = Forgetful(alone(memory))
    async with working(on_account(saying("hi")), store) as desk:
        job = await desk.ended(await desk.submit("k"))
        store.host = desk.host
        assert await code_of(desk.page(job)) == "JOB_EXPIRED"


class Forgetful:
    """A store whose actors are erased just before a page of them is read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.host: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def page(self, actor: str, after: int, bytes_max: int = 0) -> Any:
        if self.host is not None:
            await self.host.node.around.shell.erase(actor, command_id="e")
        return await self._store.page(actor, after, bytes_max)


# Cancelled.


async def test_a_queued_job_is_cancelled_from_any_node_and_never_begun() -> None:
    memory, held = new_memory(), Held()
    one_at_a_time = replace(LIMITS, max_workers=1)
    async with (
        working(held.model, alone(memory), jobs=one_at_a_time) as one,
        working(held.model, alone(memory, "n2"), jobs=replace(LIMITS, max_workers=0)) as two,
    ):
        first = await one.submit("first")
        await until(lambda: held.inside == ["first"])
        second = await one.submit("second")
        told = await two.cancel(second)
        assert (told.state, told.cursor, told.cancel_requested) == ("cancelled", 2, True)
        assert await two.types(second) == ["run.started", "run.cancelled"]
        assert await two.cancel(second) == told
        held.let_go("first")
        await one.ended(first)
        third = await one.submit("third")
        held.let_go("third")
        assert (await one.ended(third)).state == "completed"
        assert held.begun == ["first", "third"]
        assert not (await one.counted("runs")).queued


async def test_a_running_job_is_cancelled_from_any_node_and_its_model_hears_of_it() -> None:
    memory, held = new_memory(), Held()
    async with (
        working(held.model, alone(memory)) as one,
        working(held.model, alone(memory, "n2"), jobs=replace(LIMITS, max_workers=0)) as two,
    ):
        job = await one.submit("k")
        await until(lambda: held.inside == ["k"])
        told = await two.cancel(job)
        assert (told.state, told.cancel_requested) == ("cancelled", True)
        *_, last = (await two.page(job))["events"]
        assert (last["type"], last["error"]["code"]) == ("run.cancelled", "CANCELLED")
        await until(lambda: not held.inside and not one.host.node.executing)
        once(await one.types(job))
        assert not (await one.counted("runs")).held


async def test_a_job_cancelled_in_its_tool_is_uncertain_of_it() -> None:
    tool, model = Gated(shut=True), on_account(FakeModel(uses_its_tool))
    async with working(model, alone(), tool) as desk:
        job = await desk.submit("k", tools=["host"])
        await until(lambda: len(tool.seen) == 1)
        assert (await desk.cancel(job)).state == "cancelled"
        *_, last = (await desk.page(job))["events"]
        assert (last["error"]["code"], last["error"]["outcome"]) == ("CANCELLED", "uncertain")


# Forgotten.


@pytest.fixture
async def unswept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Nodes that erase nothing."""

    async def nothing(_: chores.Chores, __: str) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(chores.Chores, "_forget", nothing)
        yield


@pytest.mark.usefixtures("unswept")
async def test_a_job_has_expired_when_its_time_is_over_whether_or_not_it_was_erased() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with working(on_account(saying("hi")), alone(memory)) as desk:
        job = await desk.ended(await desk.submit("k"))
        clock.ahead_ms += LIMITS.retention_ms + 1
        assert not memory.actors[job.id].heads.erased
        await _expired(desk, job)


async def test_an_expired_job_is_erased_by_any_node_and_its_tombstone_answers() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with working(on_account(saying("hi")), alone(memory)) as one:
        job = await one.ended(await one.submit("k"))
    clock.ahead_ms += LIMITS.retention_ms + 1
    async with (
        working(on_account(saying("hi")), alone(memory, "n2")) as two,
        working(on_account(saying("hi")), alone(memory, "n3"), node=replace(BRISK, routine_ms=60_000)) as three,
    ):
        await until(lambda: memory.actors[job.id].heads.erased)
        assert not memory.actors[job.id].log
        assert not memory.actors[job.id].feed
        for desk in (two, three):
            await _expired(desk, job)
        assert await _weighs(two, BLOCK_BYTES)  # of the other subject's job


async def _expired(desk: Desk, job: Job) -> None:
    for ask in (desk.read, desk.cancel, desk.page):
        assert await code_of(ask(job)) == "JOB_EXPIRED"
        assert await code_of(ask(job, subject="bob")) == "JOB_NOT_FOUND"
    assert await code_of(desk.submit("k")) == "JOB_EXPIRED"
    assert await code_of(desk.submit("k", input="other")) == "IDEMPOTENCY_CONFLICT"
    assert await code_of(desk.jobs.submit(Submitter("ann", "rotated"), "k", _request(desk))) == "JOB_EXPIRED"
    other = await desk.submit("k", "bob")
    assert (await desk.ended(other, "bob")).state == "completed"


def _request(desk: Desk) -> Any:
    return desk.host.checked(asking(input="k"))
