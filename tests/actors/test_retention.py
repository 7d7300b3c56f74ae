"""What is kept of a run, for how long, and what still answers once it is gone."""

from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from actors import run
from eventstore.follow import CursorTooOld
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Item
from runstream.host import Host
from tests.actors.support import QUICK, Clock, asking, hosted, items_of, new_memory, saying, types, until
from tests.actors.working import LIMITS, code_of, on_account, working

pytestmark = pytest.mark.anyio

KEPT_MS = 5_000
KEYED = asking(idempotencyKey="k1")


def run_id_of(items: list[Item]) -> str:
    return str(items[0].data.split(b'"runId":"')[1][:36], "ascii")


async def cursor_is_too_old(host: Host, run_id: str, after: int) -> bool:
    """Whether reading on after number *after* is refused."""
    try:
        async with aclosing(host.follow(run_id, after)) as batches:
            await anext(batches)
    except CursorTooOld:
        return True
    return False


def due_of(memory: Memory, actor: str) -> set[str]:
    return {reason for due in memory.due.values() for each, reason in due if each == actor}


async def swept_through(memory: Memory, name: str) -> None:
    """Have one more node look at all that is due."""
    async with hosted(saying("hi"), MemoryStore(memory, name)) as host:
        await host.node.sweeps.all()
        await until(lambda: not any("retention" in due_of(memory, actor) for actor in _past(memory)))


def _past(memory: Memory) -> list[str]:
    now = memory.clock()
    return [
        actor
        for due in memory.due.values()
        for (actor, reason), at in due.items()
        if reason == "retention" and at <= now
    ]


async def test_a_run_without_a_key_is_kept_for_its_time_and_then_erased_by_any_node() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with hosted(saying("hi"), MemoryStore(memory, "n1"), run_kept_ms=KEPT_MS) as host:
        items = await items_of(host, asking())
        run_id = run_id_of(items)
    clock.ahead_ms += KEPT_MS - 2_000
    async with hosted(saying("hi"), MemoryStore(memory, "n2")) as host:
        await host.node.sweeps.all()
        assert len(await host.events(run_id)) == len(items)
    clock.ahead_ms += 2_001
    await swept_through(memory, "n3")
    kept = memory.actors[run_id]
    assert (kept.heads.erased, kept.log, kept.feed, kept.snapshot) == (True, {}, {}, None)
    assert kept.heads.feed == len(items)
    assert not due_of(memory, run_id)
    assert not any(run_id in members for members in memory.listed.values())
    async with hosted(saying("hi"), MemoryStore(memory, "n4")) as host:
        for after in (0, len(items) - 1):
            assert await cursor_is_too_old(host, run_id, after)


async def test_of_a_run_with_a_key_the_feed_goes_and_its_outcome_stays() -> None:
    clock = Clock()
    memory, model = new_memory(clock), saying("hi", pieces=["h", "i"])
    async with hosted(model, MemoryStore(memory, "n1"), run_kept_ms=KEPT_MS) as host:
        items = await items_of(host, KEYED)
        run_id = run_id_of(items)
        replay = await items_of(host, KEYED)
    clock.ahead_ms += KEPT_MS + 1
    await swept_through(memory, "n2")
    kept = memory.actors[run_id]
    assert (kept.heads.erased, bool(kept.log), kept.feed) == (False, True, {})
    assert not due_of(memory, run_id)
    async with hosted(model, MemoryStore(memory, "n3")) as host:
        assert await cursor_is_too_old(host, run_id, 0)
        assert await cursor_is_too_old(host, run_id, 2)
        assert await items_of(host, KEYED) == replay
        assert await code_of(items_of(host, KEYED | {"input": "other"})) == "IDEMPOTENCY_CONFLICT"
        assert types(replay)[-1] == "run.completed"
        assert model.calls == 1
        clock.ahead_ms += 1_000 * KEPT_MS
        await host.node.sweeps.all()
        assert await items_of(host, KEYED) == replay


async def test_of_a_job_that_is_gone_stays_whose_it_was_and_what_its_key_stood_for() -> None:
    clock = Clock()
    memory, model = new_memory(clock), on_account(saying("hi"))
    kept_long = replace(LIMITS, retention_ms=10 * LIMITS.retention_ms)
    async with working(model, MemoryStore(memory, "n1")) as desk:
        job = await desk.ended(await desk.submit("k"))
        async with working(model, MemoryStore(memory, "n2"), jobs=kept_long) as other:
            longer = await other.ended(await other.submit("longer"))
            assert longer.expires_ms == longer.updated_ms + kept_long.retention_ms
    clock.ahead_ms += LIMITS.retention_ms + 1
    async with working(model, MemoryStore(memory, "n3")) as desk:
        await until(lambda: memory.actors[job.id].heads.erased)
        kept = memory.actors[job.id]
        assert (kept.log, kept.feed) == ({}, {})
        assert kept.snapshot is not None
        for secret in (b"hi", b"input", b"principal"):
            assert secret not in kept.snapshot.data
        state, heads = await desk.host.state(job.id)
        assert isinstance(state, run.Buried)
        assert (state.epitaph.subject, state.epitaph.origin) == ("ann", "job")
        assert heads.feed == job.cursor
        assert await code_of(desk.submit("k")) == "JOB_EXPIRED"
        assert await code_of(desk.submit("k", input="other")) == "IDEMPOTENCY_CONFLICT"
        assert await cursor_is_too_old(desk.host, job.id, 0)
        assert (await desk.read(longer)).state == "completed"
        await desk.host.cancel(job.id)
        assert memory.actors[job.id].heads == heads
    assert model.calls == 2


async def test_what_was_erased_is_not_begun_anew_by_whoever_comes_late() -> None:
    clock = Clock()
    memory, model = new_memory(clock), on_account(saying("hi"))
    async with working(model, MemoryStore(memory, "n1")) as desk:
        job = await desk.ended(await desk.submit("k"))
        clock.ahead_ms += LIMITS.retention_ms + 1
        await until(lambda: memory.actors[job.id].heads.erased)
        heads = memory.actors[job.id].heads
        for command in (run.Start(), run.Cancel(run.INTERRUPTED), run.TakeOver("n2"), run.Fail(run.INTERRUPTED)):
            await desk.host.node.around.shell.tell(job.id, command, command_id=f"late-{command!r}"[:40])
        assert memory.actors[job.id].heads == heads


@pytest.mark.parametrize("kept_ms", [1_000, 60_000])
async def test_of_an_outbox_only_what_is_older_than_promised_is_taken_off(kept_ms: int) -> None:
    clock = Clock()
    memory = new_memory(clock)
    store: Any = MemoryStore(memory, "n1")
    actors = [f"0000000{partition}-0000-4000-8000-000000000000" for partition in range(4)]
    for actor in actors:
        await store.post(actor, b"old")
    clock.ahead_ms += 30_000
    for actor in actors:
        await store.post(actor, b"new")
    left = [b"new"] if kept_ms == 1_000 else [b"old", b"new"]
    async with hosted(
        saying("hi"), store, node=replace(QUICK, audit_kept_ms=kept_ms, janitor_s=0.01, routine_ms=60_000)
    ) as host:
        await host.node._prune()
        assert [memory.outbox[partition] for partition in range(4)] == [left] * 4
        clock.ahead_ms += 61_000
        await until(lambda: not any(memory.outbox.values()))
