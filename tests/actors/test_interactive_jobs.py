"""Jobs in which people and applications take part, over two nodes; old clients see nothing of that (extensions §2)."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import codec, run
from actors.decisions import Waiting
from actors.events import RunHandedOver, ToolFact
from actors.ids import job_of_key
from actors.jobs import Job, Submitter
from actors.ports import ModelContext, ModelRequest, Tool, ToolMessage, Turn
from actors.viewing import Cursor
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Unavailable
from runstream.host import Host
from tests.actors.conversing import CONTINUING, KEPT, delete, log_of, opened, read
from tests.actors.reviewing import (
    ALL_FEATURES,
    APPLICATION,
    HOST,
    REVIEWED,
    REVIEWED_APPLICATION,
    CountingTool,
    anybody,
    call,
    companions_of,
    open_companion,
    wanted,
)
from tests.actors.support import INFO, Clock, FakeModel, asking, new_memory, until, until_so
from tests.actors.test_crash import Pausing
from tests.actors.test_races import Yielding
from tests.actors.working import ACCOUNT, BRISK, Desk, anything, code_of, working
from tests.api.asking import Asked

pytestmark = pytest.mark.anyio

HIDDEN = {"approval.requested", "approval.resolved", "tool.execution.requested"}
PAUSING = {"mode": "interactive", "idlePolicy": "pause"}
SEVERAL = ("reviewed", "app", "careful", "host", "reviewed", "careful")


def using(*names: str) -> FakeModel:
    """A model that says a little, uses each of *names* in one turn, and is content then; jobs and sessions take it."""

    async def answer(request: ModelRequest, context: ModelContext) -> Turn:
        context.emit_text("well ")
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return Turn(text="well ", usage={"inputTokens": 3})
        return Turn(text="well ", tool_calls=tuple(call(name, f"c{at}") for at, name in enumerate(names)))

    model = FakeModel(answer)
    model.info = replace(INFO, account=ACCOUNT, capabilities=CONTINUING)
    return model


class Counter(Desk):
    """Where interactive jobs are handed in at one node."""

    async def interactive(self, key: str, *tools: ToolFact, interactive: bool = True, **members: Any) -> Job:
        request = self.host.checked(asking(**wanted(*tools, **{"approvals": PAUSING} | members)))
        return await self.jobs.submit(
            Submitter("ann", "principal", frozenset({"app"})), key, request, interactive=interactive
        )

    async def waiting(self) -> Waiting:
        """What waits for ann, once something does."""
        found: list[Waiting] = []

        async def waits() -> bool:
            found[:] = await self.host.decisions.waiting(anybody(), 1)
            return bool(found)

        await until_so(waits)
        return found[0]

    async def decide(self, waiting: Waiting, decision: Any = "approve") -> None:
        asked = waiting.asked
        named = {"id": asked.call.id, "name": asked.call.name, "arguments": {"n": 1}}
        await self.host.decisions.decide(anybody(), waiting.approval_id, asked.run_id, named, decision)

    async def deliver(self, memory: Memory) -> None:
        """Answer the ticket that is open."""
        await until(lambda: bool(open_companion(memory, "ticket")))
        execution_id = open_companion(memory, "ticket")
        ticket: Any = codec.decode_ticket(companions_of(memory, "ticket")[execution_id].log[1].data)
        await self.host.decisions.deliver(anybody(), execution_id, ticket.run_id, ticket.call_id, Raw(b"1"))

    async def pages(self, job: Job | str, limit: int = 100) -> list[dict[str, Any]]:
        """All that pages show of a job so far, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.page(job, len(found), limit)
            found += page["events"]
            if not page["hasMore"]:
                return found


@asynccontextmanager
async def counters(
    model: FakeModel, memory: Memory, *tools: Tool, count: int = 2, around: Any = lambda store: store
) -> AsyncIterator[list[Counter]]:
    """Nodes of one deployment that take interactive jobs on."""
    async with AsyncExitStack() as stack:
        found: list[Counter] = []
        for number in range(count):
            store = around(MemoryStore(memory, f"n{number + 1}"))
            found.append(await stack.enter_async_context(at_counter(model, store, *tools)))
        yield found


@asynccontextmanager
async def at_counter(model: FakeModel, store: Any, *tools: Tool) -> AsyncIterator[Counter]:
    options: dict[str, Any] = {
        "features": ALL_FEATURES,
        "application_tools_reviewed": False,
        "sessions": KEPT,
        "node": replace(BRISK, drain_s=0.05),
    }
    async with working(model, store, *tools, **options) as desk:
        yield Counter(desk.host)


def shown(full: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What pages show of the *full* feed of a job."""
    kept = [event for event in full if event["type"] not in HIDDEN]
    for event in kept:
        if event["type"] == "run.completed":
            event["result"].pop("session", None)
    return [event | {"sequence": number} for number, event in enumerate(kept, 1)]


async def everything(host: Host, job_id: str) -> list[dict[str, Any]]:
    """The full feed of a job as its owner may follow it."""
    found: list[dict[str, Any]] = []
    with anyio.fail_after(20):
        async with host.viewing.watch("ann", job_id, anything, Cursor()) as watched:
            assert not host.node.clients.has(job_id), "a job needs no client"
            async for batch in watched.batches:
                for item in batch:
                    hole = item.data.rindex(b'"sequence":') + len(b'"sequence":')
                    found.append(msgspec.json.decode(item.data[:hole] + b"%d" % item.number + item.data[hole:]))
    return found


async def waits(desk: Counter, memory: Memory, job: Job, kind: str = "approval") -> None:
    """Wait until a job waits for somebody, and nobody works on it."""
    await until(lambda: bool(open_companion(memory, kind)) and not memory.actors[job.id].heads.owner)
    await until(lambda: job.id not in desk.host.node.executing)


# People, applications and sessions.


@pytest.mark.parametrize("by", [0, 1])
async def test_a_person_decides_about_a_call_of_a_job_at_any_node(by: int) -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with counters(using("reviewed"), memory, tool) as desks:
        job = await desks[0].interactive("k", REVIEWED)
        waiting = await desks[by].waiting()
        assert waiting.asked.run_id == job.id
        await desks[by].decide(waiting)
        ended = await desks[1].ended(job)
        full = await everything(desks[1].host, job.id)
        assert ended.state == "completed"
        assert [event["sequence"] for event in full] == list(range(1, ended.heads.feed + 1))
        assert {event["type"] for event in full} & HIDDEN == {"approval.requested", "approval.resolved"}
        assert ended.cursor == len(full) - 2
        for desk in desks:
            assert (await desk.read(job)).cursor == ended.cursor
            assert await desk.pages(job) == await desk.pages(job, 1) == shown(full)
        assert len(tool.seen) == 1


@pytest.mark.parametrize("by", [0, 1])
async def test_an_application_executes_a_tool_of_a_job_at_any_node(by: int) -> None:
    memory = new_memory(Clock())
    async with counters(using("app"), memory) as desks:
        job = await desks[0].interactive("k", APPLICATION, approvals=None)
        await desks[by].deliver(memory)
        ended = await desks[1].ended(job)
        full = await everything(desks[0].host, job.id)
        assert ended.state == "completed"
        assert {event["type"] for event in full} & HIDDEN == {"tool.execution.requested"}
        assert ended.cursor == len(full) - 1
        assert await desks[0].pages(job) == await desks[1].pages(job, 2) == shown(full)


async def test_a_job_may_be_the_turn_of_a_session() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with counters(using("reviewed"), memory, tool) as (one, two):
        session_id = await opened(one.host)
        turn: dict[str, Any] = {"session": {"id": session_id, "revision": 0}}
        job = await one.interactive("k", REVIEWED, **turn)
        assert (await read(two.host, session_id)).state.running == job.id
        key_id = job_of_key(one.host.store.deployment.id_key, "ann", "k")
        assert job.id != key_id
        assert job.id[:8] == session_id[:8]
        assert await code_of(two.read(key_id)) == "JOB_NOT_FOUND"
        assert await code_of(two.interactive("k2", REVIEWED, **turn)) == "SESSION_BUSY"
        await two.decide(await two.waiting())
        ended = await two.ended(job)
        full = await everything(two.host, job.id)
        assert ended.state == "completed"
        assert full[-1]["result"]["session"]["id"] == session_id
        assert await two.pages(job) == await one.pages(job, 1) == shown(full)
        assert "session" not in (await one.pages(job))[-1]["result"]
        kept = (await read(one.host, session_id)).state
        assert (kept.running, kept.revision) == ("", 1)
        for desk in (one, two):
            again = await desk.interactive("k", REVIEWED, **turn)
            assert (again.id, again.state, again.cursor) == (job.id, "completed", ended.cursor)


async def test_a_turn_that_its_session_refuses_is_no_job() -> None:
    memory = new_memory(Clock())
    async with counters(using("reviewed"), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        session_id = await opened(one.host)
        for key, code, named in (
            ("a", "SESSION_REVISION_CONFLICT", {"id": session_id, "revision": 7}),
            ("b", "SESSION_NOT_FOUND", {"id": "0b6c2a52-9999-4f7e-9a41-5f2f5f3b7c10", "revision": 0}),
        ):
            for desk in (two, one):
                assert await code_of(desk.interactive(key, REVIEWED, session=named)) == code
        assert (await read(two.host, session_id)).state.running == ""
        assert (await one.counted("jobs")).held == 0
        assert (await one.counted("job-bytes")).held == 0


async def test_a_session_that_is_deleted_takes_its_job_with_it() -> None:
    memory = new_memory(Clock())
    async with counters(using("reviewed"), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        session_id = await opened(one.host)
        job = await one.interactive("k", REVIEWED, session={"id": session_id, "revision": 0})
        await one.waiting()
        await delete(two.host, session_id)
        assert (await two.ended(job)).state == "cancelled"
        assert not await one.host.decisions.waiting(anybody(), 10)


# What a job costs while it waits, and what may become of it.


@pytest.mark.parametrize(
    ("fact", "kind"), [(REVIEWED, "approval"), (APPLICATION, "ticket")], ids=["person", "application"]
)
async def test_a_job_that_waits_is_running_and_holds_neither_task_nor_lease(fact: ToolFact, kind: str) -> None:
    memory = new_memory(Clock())
    async with counters(using(fact.name), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        job = await one.interactive("k", fact)
        await waits(one, memory, job, kind)
        await waits(two, memory, job, kind)
        heads = memory.actors[job.id].heads
        assert (heads.owner, heads.lease_ms) == ("", 0)
        assert not [reason for due in memory.due.values() for actor, reason in due if actor == job.id]
        found = await two.read(job)
        assert (found.state, found.cursor) == ("running", heads.feed - 1)
        assert len(await one.pages(job)) == heads.feed - 1
        assert (await two.cancel(job)).state == "cancelled"


@pytest.mark.parametrize(
    ("decision", "state", "error"),
    [("deny", "failed", "APPROVAL_DENIED"), ("cancel", "cancelled", "CANCELLED")],
)
async def test_a_decision_against_the_call_ends_the_job(decision: str, state: str, error: str) -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with counters(using("reviewed"), memory, tool) as (one, two):
        job = await one.interactive("k", REVIEWED)
        await two.decide(await two.waiting(), decision)
        assert (await two.ended(job)).state == state
        assert (await one.pages(job))[-1]["error"]["code"] == error
        assert not tool.seen


async def test_a_question_that_nobody_answered_in_time_ends_the_job() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with counters(using("reviewed"), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        job = await one.interactive("k", REVIEWED, approvals=PAUSING | {"expiresAfterMs": 30_000})
        await one.waiting()
        await waits(one, memory, job)
        clock.ahead_ms += 30_000
        assert (await two.ended(job)).state == "failed"
        events = await two.pages(job)
        assert events[-1]["error"]["code"] == "APPROVAL_EXPIRED"
        assert len(events) == memory.actors[job.id].heads.feed - 2


async def test_a_job_may_be_cancelled_while_it_waits() -> None:
    memory = new_memory(Clock())
    async with counters(using("reviewed"), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        job = await one.interactive("k", REVIEWED)
        waiting = await one.waiting()
        cancelled = await two.cancel(job)
        assert (cancelled.state, cancelled.cancel_requested) == ("cancelled", True)
        assert cancelled.cursor == memory.actors[job.id].heads.feed - 2
        assert await code_of(one.decide(waiting)) == "APPROVAL_NOT_FOUND"
        assert [event["type"] for event in await one.pages(job)][-1] == "run.cancelled"

        async def room() -> bool:
            return not (await one.counted("runs")).held and not (await one.counted("approvals")).held

        await until_so(room)


async def test_a_job_whose_node_died_while_it_waited_is_decided_on_another() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    dying: Any = Pausing(MemoryStore(memory, "n1"))
    model = using("reviewed")
    async with at_counter(model, dying, tool) as one:
        job = await one.interactive("k", REVIEWED)
        await waits(one, memory, job)
        dying.pause()
        async with at_counter(model, MemoryStore(memory, "n2"), tool) as two:
            await two.decide(await two.waiting())
            assert (await two.ended(job)).state == "completed"
            assert await two.pages(job) == shown(await everything(two.host, job.id))
            assert len(tool.seen) == 1


async def test_a_job_of_a_node_that_ends_is_carried_on_by_another() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with counters(using("reviewed", "reviewed"), memory, tool) as (one, two):
        job = await one.interactive("k", REVIEWED)
        await one.decide(await one.waiting())
        first = await two.waiting()
        await one.host.drain()
        assert not one.host.node.executing
        await two.decide(first)
        assert (await two.ended(job)).state == "completed"
        assert len(tool.seen) == 2
        assert not [event for event in await log_of(two.host.store, job.id) if isinstance(event, RunHandedOver)]


# Keys, and clients that did not ask for it.


async def test_a_key_stands_for_an_interactive_job_or_a_plain_one() -> None:
    memory = new_memory(Clock())
    async with counters(using(), memory) as (one, two):
        plain = await one.interactive("plain", approvals=None, interactive=False)
        other = await one.interactive("other", approvals=None)
        assert await code_of(two.interactive("plain", approvals=None)) == "IDEMPOTENCY_CONFLICT"
        assert await code_of(two.interactive("other", approvals=None, interactive=False)) == "IDEMPOTENCY_CONFLICT"
        assert (await two.interactive("plain", approvals=None, interactive=False)).id == plain.id
        assert (await two.interactive("other", approvals=None)).id == other.id
        for job in (plain, other):
            assert (await two.ended(job)).state == "completed"
            assert await two.pages(job) == await everything(one.host, job.id)


@pytest.mark.parametrize(
    "members",
    [
        {"approvals": PAUSING},
        {"session": {"id": "0b6c2a52-9999-4f7e-9a41-5f2f5f3b7c10", "revision": 0}},
        {"tools": ["lookup"], "applicationTools": [{"name": "lookup", "description": "x", "inputSchema": {}}]},
    ],
)
@pytest.mark.parametrize("interactive", [{}, {"interactive": False}, {"interactive": None}, {"interactive": 1}])
async def test_without_the_option_a_job_may_ask_nobody(members: dict[str, Any], interactive: dict[str, Any]) -> None:
    async with counters(using(), new_memory(Clock()), count=1) as (one,):
        host = Asked(jobs=one.jobs)
        request = {"provider": "mock", "model": "demo", "input": "x"} | members
        expected = "INVALID_JOB" if interactive.get("interactive", False) is not False else "JOB_REQUEST_UNSUPPORTED"
        assert await host.code("/v1/jobs/submit", {"key": "k", "request": request} | interactive) == expected
        keyed = {"key": "k", "request": request | {"idempotencyKey": "k"}, "interactive": True}
        assert await host.code("/v1/jobs/submit", keyed) == "JOB_REQUEST_UNSUPPORTED"


async def test_a_cursor_ahead_of_what_pages_show_is_refused_though_the_feed_goes_on() -> None:
    memory = new_memory(Clock())
    async with counters(using("reviewed"), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        job = await one.interactive("k", REVIEWED)
        await one.waiting()
        cursor = (await two.read(job)).cursor
        for desk in (one, two):
            assert (await desk.page(job, cursor))["events"] == []
            assert await code_of(desk.page(job, cursor + 1)) == "INVALID_JOB_CURSOR"
            assert await code_of(desk.page(job, cursor + 2)) == "INVALID_JOB_CURSOR"
        await two.decide(await two.waiting())
        ended = await one.ended(job)
        assert await code_of(two.page(job, ended.cursor + 1)) == "INVALID_JOB_CURSOR"


async def test_a_job_that_is_erased_while_its_page_is_read_has_expired() -> None:
    memory = new_memory(Clock())
    async with counters(using(), memory, count=1) as (one,):
        job = await one.ended(await one.interactive("k", approvals=None))
        store: Any = one.host.store
        page = store.page

        async def erased_before(*words: Any) -> Any:
            await one.host.node.around.shell.erase(job.id, command_id="erase")
            return await page(*words)

        store.page = erased_before
        assert await code_of(one.page(job)) == "JOB_EXPIRED"


@pytest.mark.parametrize("interactive", [True, False])
async def test_an_end_that_is_not_kept_yet_is_shown_by_no_reading_of_a_job(*, interactive: bool) -> None:
    memory = new_memory(Clock())
    async with counters(using("reviewed"), memory, CountingTool("reviewed", reviewed=True)) as (one, two):
        tools = [REVIEWED] if interactive else []
        job = await one.interactive(
            "k", *tools, interactive=interactive, **({} if interactive else {"approvals": None})
        )
        store: Any = two.host.store
        page = store.page

        async def unconfirmed(_: str) -> None:
            await anyio.lowlevel.checkpoint()
            raise Unavailable("uncertain")

        async def ended_before(*words: Any) -> Any:
            if interactive and open_companion(memory, "approval"):
                await one.decide(await one.waiting())
            await one.ended(job)
            return await page(*words)

        if interactive:
            await one.waiting()
        store.page, store.confirm_end = ended_before, unconfirmed
        for reading in (two.page(job), two.page(job), two.read(job), everything(two.host, job.id)):
            with pytest.raises((Unavailable, TimeoutError)):
                with anyio.fail_after(1):
                    await reading


@pytest.mark.parametrize("seed", range(2))
async def test_at_every_moment_pages_are_what_old_clients_accept(seed: int) -> None:
    chance = Random(seed)  # noqa: S311 - the same interleaving each time
    memory = new_memory(Clock())
    tools = (CountingTool("reviewed", reviewed=True), CountingTool())
    facts = (REVIEWED, APPLICATION, REVIEWED_APPLICATION, HOST)
    seen: list[list[dict[str, Any]]] = []
    looks: list[tuple[str, int]] = []

    async with counters(using(*SEVERAL), memory, *tools, around=lambda store: Yielding(store, chance)) as desks:
        jobs = [await desks[number % 2].interactive(f"k{number}", *facts) for number in range(3)]

        async def answer() -> None:
            while True:
                desk = chance.choice(desks)
                for waiting in await desk.host.decisions.waiting(anybody(), 10):
                    await code_of(desk.decide(waiting))
                if open_companion(memory, "ticket"):
                    await code_of(desk.deliver(memory))
                await anyio.lowlevel.checkpoint()

        async def look(desk: Counter, job: Job) -> None:
            found: list[dict[str, Any]] = []
            while True:
                page = await desk.page(job, len(found), chance.choice((1, 2, 100)))
                found += page["events"]
                looks.append((page["job"]["state"], page["job"]["cursor"]))
                known = await desk.read(job)
                assert known.cursor >= page["job"]["cursor"]
                if page["job"]["state"] == "completed" and not page["hasMore"]:
                    seen.append(found)
                    return

        with anyio.fail_after(20):
            async with anyio.create_task_group() as answering:
                answering.start_soon(answer)
                async with anyio.create_task_group() as looking:
                    for job in jobs:
                        for desk in desks * 2:
                            looking.start_soon(look, desk, job)
                answering.cancel_scope.cancel()
        expected = [shown(await everything(desks[0].host, job.id)) for job in jobs]
        assert all(found in expected for found in seen)
        assert len(seen) == 4 * len(jobs)
        assert len(set(looks)) > 8
        for job in jobs:
            state, heads = await desks[1].host.state(job.id)
            assert isinstance(state, run.Ended)
            assert (
                heads.feed - (await desks[0].read(job)).cursor == 11
            )  # four questions and their answers, three tickets
