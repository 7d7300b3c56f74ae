"""The usage record of each executed run: delivered once it has ended, whoever ended it, and owed until it was kept."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from actors import run, upkeep
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Caps
from tests.actors.support import Clock, FakeModel, asking, ended, items_of, new_memory, saying, stalling, until
from tests.actors.test_crash import Pausing
from tests.actors.test_job_crash import QUICK
from tests.actors.working import LIMITS, Desk, Held, on_account, working

pytestmark = pytest.mark.anyio

ONE = Caps(total=1, queue_total=4, queue_per_subject=4)


class Books:
    """A sink that keeps records, each once however often it comes, unless it is told to fail."""

    def __init__(self) -> None:
        self.kept: dict[str, set[bytes]] = {}
        self.failing = False
        self.asked = 0

    async def __call__(self, record: Mapping[str, Any]) -> None:
        self.asked += 1
        if self.failing:
            raise RuntimeError("a private word")
        self.kept.setdefault(record["eventId"], set()).add(msgspec.json.encode(record))

    def of(self, run_id: str) -> list[dict[str, Any]]:
        """The records of a run, which differ if they are several."""
        return [msgspec.json.decode(record) for record in self.kept.get(run_id, ())]

    def said(self, run_id: str) -> list[str]:
        """How a run ended by its records."""
        return [record["status"] for record in self.of(run_id)]


def owed(memory: Memory) -> bool:
    return any(reason == "usage" for due in memory.due.values() for _, reason in due)


@asynccontextmanager
async def accounted(
    model: FakeModel, memory: Memory, books: Books, name: str = "n1", store: Any = None, **options: Any
) -> AsyncIterator[Desk]:
    """Open a node that keeps *books*, with one slot for all."""
    kept: Any = {"caps": lambda _subject, _account: ONE, "usage": books} | options
    async with working(model, store or MemoryStore(memory, name), **kept) as desk:
        yield desk


async def test_a_run_and_a_job_that_completed_have_one_record_each() -> None:
    memory, books = new_memory(), Books()
    model = on_account(saying("hi"))
    async with accounted(model, memory, books) as one, accounted(model, memory, books, "n2") as two:
        async with one.host.attend(asking(), subject="ann") as attended:
            await ended(two.host, attended.run_id)
        job = await one.ended(await one.submit("k"))
        await until(lambda: not owed(memory))
        assert (books.said(attended.run_id), books.said(job.id)) == (["completed"], ["completed"])
        (record,) = books.of(job.id)
        assert record["usage"] == {"inputTokens": 3, "outputTokens": 2}
        assert (record["subject"], record["accountId"], record["hostId"]) == ("ann", "acct", "test")
        await one.host.node.sweeps.all()
        await two.host.node.sweeps.all()
        assert len(books.kept) == 2


async def test_a_run_that_was_cancelled_or_failed_has_a_record_too() -> None:
    memory, books = new_memory(), Books()
    model = on_account(stalling("a"))
    idle = replace(LIMITS, max_workers=0)
    async with accounted(model, memory, books) as one, accounted(model, memory, books, "n2", jobs=idle) as two:
        async with one.host.attend(asking(), subject="ann") as left:
            await until(lambda: model.calls == 1)
        await ended(two.host, left.run_id)
        cancelled = await one.submit("c")
        await until(lambda: model.calls == 2)
        await two.cancel(cancelled)
        failed = await one.submit("f")
        await until(lambda: model.calls == 3)
        one.host.node.end_soon(failed.id, run.Fail(run.INTERRUPTED))
        await one.ended(failed)
        await until(lambda: not owed(memory))
        assert [books.said(one_id) for one_id in (left.run_id, cancelled.id, failed.id)] == [
            ["cancelled"],
            ["cancelled"],
            ["failed"],
        ]


async def test_what_was_never_executed_has_no_record_and_neither_has_a_replay() -> None:
    memory, books, held = new_memory(), Books(), Held()
    async with accounted(held.model, memory, books) as desk:
        keyed = asking(idempotencyKey="k", input="keyed")
        held.let_go("keyed")
        await items_of(desk.host, keyed)
        await until(lambda: len(books.kept) == 1 and not desk.host.node.executing)
        await items_of(desk.host, keyed)
        running = await desk.submit("running")
        await until(lambda: held.inside == ["running"])
        queued = await desk.submit("queued")
        await desk.cancel(queued)
        async with desk.host.attend(asking(input="waits"), subject="ann") as waiting:
            await desk.host.cancel(waiting.run_id)
            await ended(desk.host, waiting.run_id)
        assert await desk.submit("queued") == await desk.read(queued)
        held.let_go("running")
        await desk.ended(running)
        await until(lambda: not owed(memory))
        await desk.host.node.sweeps.all()
        assert len(books.kept) == 2
        assert books.said(running.id) == ["completed"]


@pytest.mark.parametrize("as_job", [True, False], ids=["job", "foreground"])
async def test_a_run_that_its_node_left_has_one_record_from_the_node_that_ended_it(*, as_job: bool) -> None:
    clock = Clock()
    memory, books, model = new_memory(clock), Books(), on_account(stalling("a"))
    paused: Any = Pausing(MemoryStore(memory, "n1"))
    async with accounted(model, memory, books, store=paused, node=QUICK) as one:
        async with one.host.attend(asking(), subject="bob") as attended:
            if as_job:
                await one.host.cancel(attended.run_id)
                await until(lambda: bool(books.kept) and not one.host.node.executing)
                run_id = (await one.submit("k")).id
                await until(lambda: model.calls == 2)
            else:
                run_id = attended.run_id
                await until(lambda: model.calls == 1)
            paused.pause()
            clock.ahead_ms += 1_000
            async with accounted(model, memory, books, "n2", node=QUICK):
                await until(lambda: bool(books.said(run_id)) and not owed(memory))
            paused.resume()
            await until(lambda: not one.host.node.executing)
        await one.host.node.sweeps.all()
        assert books.said(run_id) == ["failed"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_sink_that_fails_is_asked_again_with_the_same_record(*, elsewhere: bool) -> None:
    clock = Clock()
    memory, books, model = new_memory(clock), Books(), on_account(saying("hi"))
    books.failing = True
    async with accounted(model, memory, books) as one:
        job = await one.ended(await one.submit("k"))
        await until(lambda: books.asked > 0)
        if not elsewhere:
            books.failing = False
            clock.ahead_ms += upkeep.ACCOUNTED_AFTER_MS + 1
            await until(lambda: not owed(memory))
    if elsewhere:
        assert owed(memory)
        books.failing = False
        clock.ahead_ms += upkeep.ACCOUNTED_AFTER_MS + 3_000
        async with accounted(model, memory, books, "n2"):
            await until(lambda: not owed(memory))
    assert books.said(job.id) == ["completed"]
    assert books.asked >= 2


async def test_of_a_job_that_is_erased_first_no_record_can_be_made_any_more() -> None:
    clock = Clock()
    memory, books, model = new_memory(clock), Books(), on_account(saying("hi"))
    books.failing = True
    async with accounted(model, memory, books) as one:
        job = await one.ended(await one.submit("k"))
        await until(lambda: books.asked > 0)
        clock.ahead_ms += LIMITS.retention_ms + 1
        await until(lambda: memory.actors[job.id].heads.erased)
        clock.ahead_ms += 3_000
        await until(lambda: not owed(memory))
        assert not books.kept


async def test_a_host_that_accounts_for_nothing_owes_nothing() -> None:
    memory, model = new_memory(), on_account(saying("hi"))
    async with working(model, MemoryStore(memory, "n1")) as desk:
        await desk.ended(await desk.submit("k"))
        assert not owed(memory)
    with anyio.fail_after(1):
        await until(lambda: not owed(memory))
