"""Answers of people and applications, by any node: who may, what must agree, and what is kept of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import calls, run
from actors.decider import Refusal
from actors.decisions import Caller
from actors.errors import Refused
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Caps, Item, Unavailable
from projections import wire_feed
from runstream.host import Host
from tests.actors.reviewing import (
    APPLICATION,
    FAST,
    HOST,
    REVIEWED,
    REVIEWED_APPLICATION,
    CountingTool,
    anybody,
    audit,
    begun,
    call,
    companions_of,
    open_companion,
    tooled,
    using,
    wanted,
)
from tests.actors.support import (
    DEADLINE_S,
    Clock,
    asking,
    ended,
    items_of,
    new_memory,
    types,
    until,
    until_so,
)
from tests.host_rules import host_rules

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
DAY_MS = 24 * 3_600 * 1_000
UNKNOWN = "00000000-0000-4000-8000-000000000000"


class World(NamedTuple):
    memory: Memory
    one: Host
    two: Host
    tool: CountingTool
    run_id: str


CALM = replace(FAST, lease_ms=2_000)
"""A lease that no stall of a busy machine outlasts: these tests are not about lost nodes."""


@asynccontextmanager
async def waiting(
    *tools: Any, origin: Any = "job", clock: Clock | None = None, calls: Any = (), **members: Any
) -> AsyncIterator[World]:
    """Two nodes; a run on the first waits for the call of its first tool."""
    tools = tools or (REVIEWED,)
    memory = new_memory(clock or Clock())
    tool = CountingTool(tools[0].name, reviewed=True)
    used = () if tools[0].application else (tool,)
    model = using(*(calls or (call(tools[0].name),)))
    async with (
        tooled(model, MemoryStore(memory, "n1"), *used, node=CALM) as one,
        tooled(model, MemoryStore(memory, "n2"), *used, node=CALM) as two,
    ):
        run_id = await begun(one, *tools, origin=origin, **members)
        kind = "approval" if tools[0].requires_approval else "ticket"
        await until(lambda: bool(open_companion(memory, kind)))
        yield World(memory, one, two, tool, run_id)


async def refused(work: Any) -> str:
    with pytest.raises(Refused) as caught:
        await work
    return caught.value.code


async def over(world: World) -> list[str]:
    return types(await ended(world.two, world.run_id))


def problem_of(world: World) -> Any:
    kept = world.memory.actors[world.run_id]
    return msgspec.json.decode(wire_feed.numbered(1, kept.feed[kept.heads.feed]))["error"]


async def test_a_run_waits_on_one_node_is_decided_on_another_and_shows_what_a_client_may_see() -> None:
    async with waiting(origin="foreground") as world:
        approval_id = open_companion(world.memory, "approval")
        decided = await world.two.decisions.decide(anybody(), approval_id, world.run_id, CALL, "approve")
        items = await ended(world.two, world.run_id)
        assert types(items) == [
            "run.started",
            "step.started",
            "tool.called",
            "approval.requested",
            "approval.resolved",
            "tool.completed",
            "step.started",
            "text.delta",
            "run.completed",
        ]
        shown = [msgspec.json.decode(wire_feed.numbered(item.number, item.data)) for item in items]
        assert shown[4]["resolution"] == wire_feed.resolved(decided.run_id, decided.call_id, decided.settled)
        assert world.tool.seen == [(world.run_id, "c1", {"n": 1})]
        framed = b"".join(wire_feed.frame(item.number, item.data) for item in items)
        host_rules(framed, asking(**wanted(REVIEWED)))


@pytest.mark.parametrize(("decision", "end"), [("deny", "run.failed"), ("cancel", "run.cancelled")])
@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_a_call_that_is_not_approved_never_runs(decision: Any, end: str, origin: Any) -> None:
    async with waiting(origin=origin) as world:
        approval_id = open_companion(world.memory, "approval")
        await world.two.decisions.decide(anybody(), approval_id, world.run_id, CALL, decision)
        assert (await over(world))[-2:] == ["approval.resolved", end]
        assert not world.tool.seen


async def test_altered_foreign_and_repeated_decisions_are_refused_audited_and_change_nothing() -> None:
    async with waiting() as world:
        decide, memory = world.two.decisions.decide, world.memory
        approval_id, run_id = open_companion(memory, "approval"), world.run_id
        mine = anybody()
        assert await refused(decide(anybody("bo"), approval_id, run_id, CALL, "approve")) == "APPROVAL_NOT_FOUND"
        altered: list[tuple[str, Any]] = [
            (UNKNOWN, CALL),
            (run_id, CALL | {"id": "c2"}),
            (run_id, CALL | {"name": "host"}),
            (run_id, CALL | {"arguments": {"n": True}}),
        ]
        for named, other in altered:
            assert await refused(decide(mine, approval_id, named, other, "approve")) == "APPROVAL_MISMATCH"
        await decide(mine, approval_id, run_id, {"arguments": {"n": 1.0}, "name": "reviewed", "id": "c1"}, "approve")
        assert await refused(decide(mine, approval_id, run_id, CALL, "approve")) == "APPROVAL_NOT_FOUND"
        kinds = [record["type"] for record in audit(memory)]
        assert [kinds.count(f"approval.{kind}") for kind in ("requested", "rejected", "resolved")] == [1, 6, 1]
        await over(world)
        assert len(world.tool.seen) == 1


@pytest.mark.parametrize("approval_id", [UNKNOWN, "", "x" * 256, "../../x"])
async def test_an_id_that_is_no_approval_is_not_found(approval_id: str) -> None:
    async with waiting() as world:
        for named in (approval_id, world.run_id):
            found = world.two.decisions.decide(anybody(), named, world.run_id, CALL, "approve")
            assert await refused(found) == "APPROVAL_NOT_FOUND"


async def test_who_may_decide_is_asked_before_what_is_decided() -> None:
    async with waiting() as world:
        nobody = Caller("ann", lambda _provider, _tool: False, lambda _provider, _tool: False)
        approval_id = open_companion(world.memory, "approval")
        assert await refused(world.two.decisions.decide(nobody, approval_id, UNKNOWN, {}, "approve")) == "FORBIDDEN"


async def test_a_late_decision_is_refused_and_the_run_ends_expired() -> None:
    clock = Clock()
    approvals = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 60_000}
    async with waiting(clock=clock, approvals=approvals) as world:
        approval_id = open_companion(world.memory, "approval")
        clock.ahead_ms += 60_001
        found = world.two.decisions.decide(anybody(), approval_id, world.run_id, CALL, "approve")
        assert await refused(found) == "APPROVAL_NOT_FOUND"
        assert (await over(world))[-2:] == ["approval.resolved", "run.failed"]
        assert problem_of(world)["code"] == "APPROVAL_EXPIRED"
        assert not world.tool.seen


@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_an_expiry_that_nobody_asks_for_ends_the_run_all_the_same(origin: Any) -> None:
    approvals = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 30}
    async with waiting(origin=origin, approvals=approvals) as world:
        assert (await over(world))[-2:] == ["approval.resolved", "run.failed"]
        assert problem_of(world)["code"] == "APPROVAL_EXPIRED"


@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_an_idle_run_that_did_not_ask_to_pause_ends_while_it_waits(origin: Any) -> None:
    async with waiting(origin=origin, idleTimeoutMs=80) as world:
        assert (await over(world))[-2:] == ["approval.resolved", "run.cancelled"]
        assert problem_of(world)["code"] == "IDLE_TIMEOUT"
        assert not world.tool.seen


async def test_after_a_pause_the_tool_has_the_whole_idle_interval() -> None:
    approvals = {"mode": "interactive", "idlePolicy": "pause"}
    async with waiting(origin="foreground", approvals=approvals, idleTimeoutMs=150) as world:
        began = anyio.current_time()
        await until(lambda: anyio.current_time() > began + 0.3)
        approval_id = open_companion(world.memory, "approval")
        await world.two.decisions.decide(anybody(), approval_id, world.run_id, CALL, "approve")
        assert (await over(world))[-1] == "run.completed"


async def test_permits_of_settled_reviews_are_free_for_the_next_at_once() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    model = using(*(call("reviewed", f"c{number}") for number in range(5)))
    only = Caps(total=1)
    async with tooled(
        model, MemoryStore(memory, "n1"), tool, approvals=only, node=replace(FAST, routine_ms=60_000, lease_ms=60_000)
    ) as host:
        run_id = await begun(host, REVIEWED, origin="foreground")
        for number in range(5):
            await until(lambda: bool(open_companion(memory, "approval")))
            named = CALL | {"id": f"c{number}"}
            approval_id = open_companion(memory, "approval")
            await host.decisions.decide(anybody(), approval_id, run_id, named, "approve")
        assert types(await ended(host, run_id))[-1] == "run.completed"
        assert len(tool.seen) == 5
        assert not (await memory.ledger.counted("approvals")).held


@pytest.mark.parametrize(
    ("tools", "kind", "code"),
    [
        (REVIEWED, "approval", "APPROVAL_CAPACITY"),
        (APPLICATION, "ticket", "TOOL_EXECUTOR_CAPACITY"),
    ],
)
async def test_one_run_more_than_there_are_permits_fails_and_leaves_the_others_alone(
    tools: Any, kind: str, code: str
) -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    only = Caps(total=1)
    options: Any = {"approvals": only, "tickets": only}
    model = using(call(tools.name))
    async with (
        tooled(model, MemoryStore(memory, "n1"), tool, **options) as one,
        tooled(model, MemoryStore(memory, "n2"), tool, **options) as two,
    ):
        await begun(one, tools)
        await until(lambda: bool(open_companion(memory, kind)))
        items = await ended(two, await begun(two, tools))
        problem = msgspec.json.decode(wire_feed.numbered(1, items[-1].data))["error"]
        assert (problem["code"], problem["retryable"]) == (code, True)
        assert open_companion(memory, kind)


async def test_a_client_that_leaves_settles_what_its_run_waits_for_and_frees_the_permit() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool) as host:
        async with host.attend(asking(**wanted(REVIEWED)), subject="ann"):
            await until(lambda: bool(open_companion(memory, "approval")))
            approval_id = open_companion(memory, "approval")
        await until(lambda: memory.actors[approval_id].heads.ended)
        await until_so(lambda: _none_held(memory))
        assert [record.get("resolution", {}).get("outcome") for record in audit(memory)] == [None, "cancelled"]
        assert not tool.seen


async def _none_held(memory: Memory) -> bool:
    pools = ("runs", "approvals", "tickets")
    return not any([(await memory.ledger.counted(pool)).held for pool in pools])


# Policies.


@pytest.mark.parametrize("answer", [True, False, None, "raise"])
@pytest.mark.parametrize("interactive", [True, False])
async def test_the_hosts_policy_comes_first_and_fails_closed(answer: Any, interactive: bool) -> None:  # noqa: FBT001
    asked: list[str] = []

    async def policy(proposed: Any, context: Any) -> bool:
        asked.append(f"{proposed.name} {context.subject} {context.provider}")
        if answer == "raise":
            raise RuntimeError("a made-up fault")
        return answer  # type: ignore[no-any-return]

    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool, policy=policy) as host:
        run_id = await begun(host, REVIEWED, approvals=wanted()["approvals"] if interactive else None)
        if answer is True and interactive:
            await until(lambda: bool(open_companion(memory, "approval")))
            approval_id = open_companion(memory, "approval")
            await host.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
        items = await ended(host, run_id)
        assert types(items)[-1] == ("run.completed" if answer is True else "run.failed")
        assert len(tool.seen) == (answer is True)
        assert asked == ["reviewed ann fake"]
        if answer is not True:
            assert b"APPROVAL_REQUIRED" in items[-1].data


async def test_a_review_that_nobody_arranged_is_refused() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool) as host:
        items = await ended(host, await begun(host, REVIEWED, approvals=None))
        assert b"APPROVAL_REQUIRED" in items[-1].data
        assert types(items)[-2:] == ["tool.called", "run.failed"]


async def test_a_call_that_no_reviewer_could_be_shown_fails() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed", "c" * 257)), MemoryStore(memory, "n1"), tool) as host:
        items = await ended(host, await begun(host, REVIEWED))
        assert b"INVALID_TOOL_CALL" in items[-1].data
        assert not (await memory.ledger.counted("approvals")).held


# Tickets.


async def test_a_ticket_is_reported_on_and_answered_on_another_node() -> None:
    async with waiting(APPLICATION, origin="foreground", idleTimeoutMs=60_000) as world:
        ticket, decisions = open_companion(world.memory, "ticket"), world.two.decisions
        await decisions.report(anybody(), ticket, world.run_id, "c1")
        await decisions.report(anybody(), ticket, world.run_id, "c1")
        assert open_companion(world.memory, "ticket") == ticket
        await decisions.deliver(anybody(), ticket, world.run_id, "c1", Raw(b"7"))
        shown = await over(world)
        assert shown[2:6] == ["tool.called", "tool.execution.requested", "run.progress", "tool.completed"]
        assert shown[-1] == "run.completed"


async def test_a_report_leaves_a_parked_job_parked() -> None:
    async with waiting(APPLICATION) as world:
        ticket = open_companion(world.memory, "ticket")
        await until(lambda: not world.one.node.executing)
        for _ in range(3):
            await world.two.decisions.report(anybody(), ticket, world.run_id, "c1")
        assert not world.two.node.executing
        assert world.memory.actors[world.run_id].heads.owner == ""
        await world.two.decisions.deliver(anybody(), ticket, world.run_id, "c1", Raw(b"7"))
        assert (await over(world))[-1] == "run.completed"


async def test_who_reports_or_answers_must_name_the_right_ticket_run_and_call() -> None:
    async with waiting(APPLICATION) as world:
        ticket, run_id, decisions = open_companion(world.memory, "ticket"), world.run_id, world.two.decisions
        nobody = Caller("ann", lambda _provider, _tool: False, lambda _provider, _tool: False)
        tries: list[tuple[Caller, str, str, str, str]] = [
            (anybody("bo"), ticket, run_id, "c1", "TOOL_EXECUTION_NOT_FOUND"),
            (anybody(), UNKNOWN, run_id, "c1", "TOOL_EXECUTION_NOT_FOUND"),
            (anybody(), run_id, run_id, "c1", "TOOL_EXECUTION_NOT_FOUND"),
            (anybody(), "x", run_id, "c1", "TOOL_EXECUTION_NOT_FOUND"),
            (nobody, ticket, UNKNOWN, "c1", "FORBIDDEN"),
            (anybody(), ticket, UNKNOWN, "c1", "TOOL_EXECUTION_MISMATCH"),
            (anybody(), ticket, run_id, "c2", "TOOL_EXECUTION_MISMATCH"),
        ]
        for caller, named, of_run, of_call, code in tries:
            assert await refused(decisions.report(caller, named, of_run, of_call)) == code
            assert await refused(decisions.deliver(caller, named, of_run, of_call, Raw(b"1"))) == code
        await decisions.deliver(anybody(), ticket, run_id, "c1", Raw(b"1"))
        assert (await over(world))[-1] == "run.completed"
        again = decisions.deliver(anybody(), ticket, run_id, "c1", Raw(b"1"))
        assert await refused(again) == "TOOL_EXECUTION_NOT_FOUND"


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (None, ""),
        (Raw(b'"x"'), "INVALID_TOOL_OUTPUT"),
        (Raw(b"1" + b"0" * 128_000), "TOOL_OUTPUT_LIMIT"),
    ],
    ids=["failed", "unfit", "large"],
)
async def test_an_output_that_cannot_be_used_uses_the_ticket_up_and_leaves_the_run_uncertain(
    output: Any, code: str
) -> None:
    async with waiting(APPLICATION, applicationTools=[definition_with_output()]) as world:
        ticket = open_companion(world.memory, "ticket")
        work = world.two.decisions.deliver(anybody(), ticket, world.run_id, "c1", output)
        if code:
            assert await refused(work) == code
        else:
            await work
        assert (await over(world))[-1] == "run.failed"
        assert problem_of(world) == {
            "code": "TOOL_OUTCOME_UNCERTAIN",
            "message": problem_of(world)["message"],
            "retryable": False,
            "outcome": "uncertain",
        }
        amended = world.two.decisions.deliver(anybody(), ticket, world.run_id, "c1", Raw(b"1"))
        assert await refused(amended) == "TOOL_EXECUTION_NOT_FOUND"


def definition_with_output() -> dict[str, Any]:
    return {
        "name": "app",
        "description": "d",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "integer"},
    }


async def test_a_reviewed_application_tool_is_offered_only_after_its_approval() -> None:
    async with waiting(REVIEWED_APPLICATION, origin="foreground") as world:
        assert not companions_of(world.memory, "ticket")
        approval_id = open_companion(world.memory, "approval")
        named = CALL | {"name": "careful"}
        await world.two.decisions.decide(anybody(), approval_id, world.run_id, named, "approve")
        await until(lambda: bool(open_companion(world.memory, "ticket")))
        ticket = open_companion(world.memory, "ticket")
        await world.two.decisions.deliver(anybody(), ticket, world.run_id, "c1", Raw(b"null"))
        shown = await over(world)
        assert shown[3:7] == ["approval.requested", "approval.resolved", "tool.execution.requested", "tool.completed"]


async def test_an_idle_ticket_ends_its_run_as_uncertain() -> None:
    async with waiting(APPLICATION, idleTimeoutMs=60) as world:
        assert (await over(world))[-1] == "run.cancelled"
        assert (problem_of(world)["code"], problem_of(world)["outcome"]) == ("IDLE_TIMEOUT", "uncertain")
        assert not problem_of(world)["retryable"]


# What is left.


async def test_ids_of_approvals_and_tickets_lie_with_their_run() -> None:
    async with waiting() as world:
        assert open_companion(world.memory, "approval")[:8] == world.run_id[:8]


async def test_all_that_is_left_of_a_run_is_erased_in_time() -> None:
    clock = Clock()
    async with waiting(clock=clock) as world:
        approval_id = open_companion(world.memory, "approval")
        await world.two.decisions.decide(anybody(), approval_id, world.run_id, CALL, "approve")
        await over(world)
        clock.ahead_ms += 8 * DAY_MS
        await until(lambda: all(kept.heads.erased for kept in world.memory.actors.values() if kept.heads.log))
        found = world.two.decisions.decide(anybody(), approval_id, world.run_id, CALL, "approve")
        assert await refused(found) == "APPROVAL_NOT_FOUND"


class Failing:
    """A node's store, one of whose methods fails when it is told to."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store = store
        self._name = name
        self.fails: Callable[[Any], bool] = lambda _words: False
        self.after = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._name:
            return found

        async def perhaps(*words: Any, **named: Any) -> Any:
            fails = self.fails(words[0])
            if fails and not self.after:
                raise Unavailable("an outage", 5)
            answer = await found(*words, **named)
            if fails:
                raise Unavailable("the answer was lost", 5)
            return answer

        return perhaps


async def test_a_rejection_that_cannot_be_audited_is_not_told() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    store: Any = Failing(MemoryStore(memory, "n1"), "post")
    async with tooled(using(call("reviewed")), store, tool) as host:
        run_id = await begun(host, REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")))
        store.fails = lambda _words: True
        approval_id = open_companion(memory, "approval")
        told = host.decisions.decide(anybody(), approval_id, run_id, {}, "approve")
        assert await refused(told) == "APPROVAL_AUDIT_FAILED"
        assert open_companion(memory, "approval")


@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_a_decision_whose_receipt_was_lost_counts_once(origin: Any) -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    store: Any = Failing(MemoryStore(memory, "n2"), "append")
    store.after = True
    model = using(call("reviewed"))
    async with tooled(model, MemoryStore(memory, "n1"), tool) as one, tooled(model, store, tool) as two:
        run_id = await begun(one, REVIEWED, origin=origin)
        await until(lambda: bool(open_companion(memory, "approval")))
        approval_id = open_companion(memory, "approval")
        store.fails = lambda append: bool(append.outbox)
        with pytest.raises(Unavailable):
            await two.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
        again = one.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
        assert await refused(again) == "APPROVAL_NOT_FOUND"
        assert types(await ended(one, run_id))[-1] == "run.completed"
        assert len(tool.seen) == 1


async def test_an_outage_while_a_run_waits_does_not_end_its_waiting() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    store: Any = Failing(MemoryStore(memory, "n1"), "look")
    async with tooled(using(call("reviewed")), store, tool) as host:
        run_id = await begun(host, REVIEWED, origin="foreground")
        await until(lambda: bool(open_companion(memory, "approval")))
        approval_id = open_companion(memory, "approval")
        store.fails = lambda actor: actor == run_id
        with pytest.raises(Unavailable):
            await host.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
        executor = host.node.executing[run_id].executor
        assert executor is not None
        executor.wake()
        await anyio.wait_all_tasks_blocked()
        store.fails = lambda _actor: False
        await host.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
        assert types(await ended(host, run_id))[-1] == "run.completed"
        assert len(tool.seen) == 1


async def test_calls_of_every_kind_mix_in_one_turn() -> None:
    memory = new_memory()
    plain, reviewed = CountingTool("host"), CountingTool("reviewed", reviewed=True)
    model = using(call("host"), call("app", "c2"), call("reviewed", "c3"), call("careful", "c4"))
    facts = (HOST, APPLICATION, REVIEWED, REVIEWED_APPLICATION)
    items: list[Item] = []
    async with tooled(model, MemoryStore(memory, "n1"), plain, reviewed) as host, anyio.create_task_group() as tasks:
        run_id = await begun(host, *facts, origin="foreground")
        tasks.start_soon(_answer_everything, host, run_id)
        items += await ended(host, run_id)
        tasks.cancel_scope.cancel()
    assert types(items).count("tool.completed") == 4
    assert (len(plain.seen), len(reviewed.seen)) == (1, 1)
    framed = b"".join(wire_feed.frame(item.number, item.data) for item in items)
    host_rules(framed, asking(**wanted(*facts)))


async def _answer_everything(host: Host, run_id: str) -> None:
    """Approve every review and answer every ticket of a run."""
    while True:
        state, _ = await host.state(run_id)
        open_call = state.open if isinstance(state, run.Live) else None
        if open_call is not None and open_call.stage == "reviewed":
            named = {"id": open_call.call.id, "name": open_call.call.name, "arguments": {"n": 1}}
            await host.decisions.decide(anybody(), open_call.approval_id, run_id, named, "approve")
        elif open_call is not None and open_call.stage == "offered":
            await host.decisions.deliver(anybody(), open_call.execution_id, run_id, open_call.call.id, Raw(b"1"))
        await anyio.sleep(0.001)


async def test_a_keyed_run_replays_without_asking_or_executing_again() -> None:
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    document = asking(**wanted(REVIEWED), idempotencyKey="k1")
    first: list[Item] = []
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool) as host:
        with anyio.fail_after(DEADLINE_S):
            async with host.attend(document, subject="ann") as attended, anyio.create_task_group() as tasks:
                tasks.start_soon(_answer_everything, host, attended.run_id)
                first += [item async for batch in attended.items() for item in batch]
                tasks.cancel_scope.cancel()
        again = await items_of(host, document)
    assert types(first)[-1] == types(again)[-1] == "run.completed"
    assert types(again) == [
        "run.started",
        "step.started",
        "tool.called",
        "tool.completed",
        "step.started",
        "run.completed",
    ]
    assert len(tool.seen) == 1


async def test_an_append_about_a_review_stays_in_one_partition() -> None:
    seen: list[Append] = []
    memory = new_memory()
    tool = CountingTool("reviewed", reviewed=True)
    store: Any = MemoryStore(memory, "n1")
    append = store.append

    async def noted(asked: Append) -> Any:
        seen.append(asked)
        return await append(asked)

    store.append = noted
    async with tooled(using(call("reviewed")), store, tool) as host:
        run_id = await begun(host, REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")))
        await host.decisions.decide(anybody(), open_companion(memory, "approval"), run_id, CALL, "approve")
        await ended(host, run_id)
    both = [asked for asked in seen if len(asked.parts) == 2]
    assert [len(asked.outbox) for asked in both] == [1, 1]
    assert [[part.actor == run_id for part in asked.parts] for asked in both] == [[True, False], [True, False]]


async def test_whoever_decides_by_what_it_saw_before_another_did_is_told_so_and_nothing_else() -> None:
    async with waiting(origin="foreground") as world:
        approval_id = open_companion(world.memory, "approval")
        settle = calls.Settle(approval_id, "denied", "ann", awaits_audit=False)
        await world.two.state(world.run_id)  # seen while it waited
        await world.one.decisions.decide(anybody(), approval_id, world.run_id, CALL, "approve")
        told = await world.two.node.around.shell.tell(world.run_id, settle, command_id="late", fresh=True)
        assert isinstance(told.answer, Refusal)
        assert told.answer.problem.code == "APPROVAL_NOT_FOUND"
        assert (await over(world))[-1] == "run.completed"
