"""An audit sink outside: what it did not take is neither asked nor decided, whichever node has it in hands."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from actors import calls, codec, run, upkeep
from actors.audit import Sink
from actors.errors import Problem, Refused
from actors.events import ApprovalUnaudited, ReviewAsked, ReviewSettled, ReviewSettling, RunCancelled, RunFailed
from actors.kinds import RUN
from eventstore.memory import Memory, MemoryStore
from projections import wire_feed
from runstream.host import Host
from tests.actors.reviewing import (
    APPROVAL,
    INTERACTIVE,
    REVIEWED,
    CountingTool,
    Story,
    anybody,
    audit,
    begun,
    call,
    companions_of,
    open_companion,
    proposed,
    tags,
    tooled,
    using,
    wanted,
)
from tests.actors.runs import NOW, folded
from tests.actors.support import Clock, asking, ended, new_memory, types, until, until_so
from tests.host_rules import host_rules

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
CANCEL = run.Cancel(Problem("CANCELLED", "The run was cancelled."))
EXPIRING = {"mode": "interactive", "idlePolicy": "continue", "expiresAfterMs": 60_000}

# By value.


def settling(outcome: Any = "approved", *, after_ms: int = 5, **members: Any) -> Story:
    """A run whose reviewer has answered, and whose audit sink has not."""
    story = proposed(call("reviewed"), **members)
    story.tell(calls.AskReview(APPROVAL))
    decision = story.tell(calls.Settle(APPROVAL, outcome, "bo", awaits_audit=True), after_ms=after_ms)
    assert decision.events == [ReviewSettling(story.now_ms, APPROVAL, outcome, "bo")]
    return story


def test_a_question_may_have_been_put_before_it_is_recorded() -> None:
    story = proposed(call("reviewed"), approvals=EXPIRING)
    (asked,) = story.tell(calls.AskReview(APPROVAL, NOW + 3), after_ms=9).events
    assert asked == ReviewAsked(NOW + 3, APPROVAL, "continue", NOW + 60_003)


@pytest.mark.parametrize(
    ("outcome", "end"),
    [("approved", []), ("denied", ["run.failed"]), ("cancelled", ["run.cancelled"])],
)
def test_a_settlement_is_of_the_moment_of_the_answer(outcome: Any, end: list[str]) -> None:
    story = settling(outcome)
    decided_ms = story.now_ms
    events = story.tell(calls.FinishSettling(APPROVAL), after_ms=30).events
    assert events[0] == ReviewSettled(decided_ms, APPROVAL, outcome, "bo")
    assert tags(events[1:]) == end
    assert all(event.at_ms == decided_ms + 30 for event in events[1:])


def test_nobody_else_answers_while_an_answer_is_on_its_way_to_the_sink() -> None:
    story = settling(approvals=EXPIRING)
    for command in (
        calls.Settle(APPROVAL, "denied", "al", awaits_audit=True),
        calls.Settle(APPROVAL, "denied", "al"),
        calls.Expire(),
        calls.Expire(awaits_audit=True),
        calls.IdleOut(1),
        calls.AskReview(APPROVAL),
        calls.BeginTool(),
        calls.FinishSettling("another"),
        calls.AuditFailed("another"),
    ):
        decision = story.tell(command, after_ms=60_000)
        assert decision.events == []
        if isinstance(command, calls.Settle):
            assert decision.answer.problem.code == "APPROVAL_NOT_FOUND"


def test_what_the_sink_did_not_take_was_not_decided() -> None:
    story = settling()
    (failed,) = story.tell(calls.AuditFailed(APPROVAL)).events
    assert isinstance(failed, RunFailed)
    assert (failed.problem.code, failed.problem.retryable) == ("APPROVAL_AUDIT_FAILED", False)


@pytest.mark.parametrize("command", [CANCEL, run.Fail(Problem("X", "x")), run.TakeOver("n2")])
def test_an_end_that_comes_first_leaves_the_answer_as_it_was(command: run.Command) -> None:
    story = settling()
    decided_ms = story.now_ms
    first, end = story.tell(command, after_ms=4).events
    assert first == ReviewSettled(decided_ms, APPROVAL, "approved", "bo")
    assert isinstance(end, RunFailed | RunCancelled)
    for late in (calls.FinishSettling(APPROVAL), calls.AuditFailed(APPROVAL)):
        assert story.tell(late).events == []


def test_an_expiry_waits_for_the_sink_as_well() -> None:
    story = proposed(call("reviewed"), approvals=EXPIRING)
    story.tell(calls.AskReview(APPROVAL))
    late = story.tell(calls.Settle(APPROVAL, "approved", "bo", awaits_audit=True), after_ms=60_000)
    assert late.events == [ReviewSettling(story.now_ms, APPROVAL, "expired")]
    assert late.answer.problem.code == "APPROVAL_NOT_FOUND"
    assert tags(story.tell(calls.FinishSettling(APPROVAL)).events) == ["review.settled", "run.failed"]


@pytest.mark.parametrize("origin", ["foreground", "job"])
def test_an_answer_that_is_on_its_way_is_looked_for_after_a_while(origin: Any) -> None:
    story = settling(origin=origin, idle_timeout_ms=100)
    standing = upkeep.standing(story.state)
    assert standing.due == {"approval": story.now_ms + calls.RESENT_AFTER_MS}
    assert standing.parked is (origin == "job")
    assert run.next_effect(story.state) == calls.Wait(None)
    story.tell(calls.FinishSettling(APPROVAL))
    assert "approval" not in upkeep.standing(story.state).due
    assert run.next_effect(story.state) == calls.StartTool()


# A sink by itself.


async def test_a_sink_that_does_anything_but_keep_the_record_did_not_keep_it() -> None:
    async def keeping(record: Mapping[str, Any]) -> None:
        record["approval"]["call"] = "another"  # its own copy

    async def failing(_: Any) -> None:
        raise RuntimeError("private secret")

    async def promising(_: Any) -> object:
        return asyncio.get_running_loop().create_future()

    async def hanging(_: Any) -> None:
        await anyio.sleep_forever()

    async def cancelling(_: Any) -> None:
        raise asyncio.CancelledError

    def waiting_for_nobody(_: Any) -> None:
        return None

    record = {"type": "approval.requested", "approval": {"call": {}}}
    sinks: dict[Any, bool] = {
        keeping: True,
        failing: False,
        promising: False,
        hanging: False,
        cancelling: False,
        waiting_for_nobody: False,
    }
    assert {keep: await Sink(keep, 0.02).took(record, "r") for keep in sinks} == sinks
    assert record == {"type": "approval.requested", "approval": {"call": {}}}


# Two nodes and a sink.


class Records:
    """A sink that keeps what comes, and does with the records of one type what it is told to."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self.came: list[str] = []
        self.otherwise: dict[str, Callable[[], Awaitable[None]]] = {}

    async def __call__(self, record: Mapping[str, Any], /) -> None:
        self.came.append(record["id"])
        if (instead := self.otherwise.get(record["type"])) is not None:
            await instead()
        self.kept.append(dict(record))

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.kept if record["type"] == kind]


async def fail() -> None:
    raise RuntimeError("private secret")


class World(NamedTuple):
    memory: Memory
    clock: Clock
    one: Host
    two: Host
    records: Records
    tool: CountingTool
    run_id: str

    @property
    def approval_id(self) -> str:
        return next(iter(companions_of(self.memory, "approval")))

    async def decide(self, host: Host, decision: Any = "approve", run_id: str = "") -> Any:
        return await host.decisions.decide(anybody(), self.approval_id, run_id or self.run_id, CALL, decision)

    def log(self) -> list[Any]:
        return [RUN.decode(entry.data) for _, entry in sorted(self.memory.actors[self.run_id].log.items())]

    async def over(self) -> list[dict[str, Any]]:
        items = await ended(self.two, self.run_id)
        framed = b"".join(wire_feed.frame(item.number, item.data) for item in items)
        host_rules(framed, asking(**wanted(REVIEWED)))
        assert b"private secret" not in framed
        return [msgspec.json.decode(wire_feed.numbered(item.number, item.data)) for item in items]


@asynccontextmanager
async def asked(
    origin: Any = "job",
    patience_s: float = 5.0,
    approvals: Any = INTERACTIVE,
    **members: Any,
) -> AsyncIterator[World]:
    """Two nodes with one sink; a run on the first waits for a reviewer."""
    clock, records, tool = Clock(), Records(), CountingTool("reviewed", reviewed=True)
    memory, model = new_memory(clock), using(call("reviewed"))
    options: dict[str, Any] = {"audit": records, "audit_patience_s": patience_s}
    async with (
        tooled(model, MemoryStore(memory, "n1"), tool, **options) as one,
        tooled(model, MemoryStore(memory, "n2"), tool, **options) as two,
    ):
        run_id = await begun(one, REVIEWED, origin=origin, approvals=approvals, **members)
        await until(lambda: bool(open_companion(memory, "approval")))
        yield World(memory, clock, one, two, records, tool, run_id)


async def refused(work: Awaitable[Any]) -> str:
    with pytest.raises(Refused) as caught:
        await work
    assert "secret" not in str(caught.value)
    return caught.value.code


def stage(world: World) -> str:
    state = folded(world.log())
    return state.open.stage if isinstance(state, run.Live) and state.open else ""


@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_the_records_are_what_the_wire_shows_and_come_before_it(origin: Any) -> None:
    async with asked(origin) as world:
        decided = await world.decide(world.two)
        shown = await world.over()
        requested, resolved = world.records.kept
        approval = next(event["approval"] for event in shown if event["type"] == "approval.requested")
        resolution = next(event["resolution"] for event in shown if event["type"] == "approval.resolved")
        about = {"subject": "ann", "provider": "fake", "approval": approval}
        assert requested == {"id": f"{world.approval_id}.requested", "type": "approval.requested"} | about
        assert (
            resolved
            == {
                "id": f"{world.approval_id}.resolved",
                "type": "approval.resolved",
                "resolution": resolution,
            }
            | about
        )
        assert wire_feed.resolved(decided.run_id, decided.call_id, decided.settled) == resolution
        assert world.tool.seen == [(world.run_id, "c1", {"n": 1})]
        own = audit(world.memory)
        assert [{"id": kept["id"]} | record for kept, record in zip(world.records.kept, own, strict=True)] == (
            world.records.kept
        )
        assert tags(world.log())[5:8] == ["review.asked", "review.settling", "review.settled"]


async def test_without_a_sink_the_records_have_the_same_shape_and_a_decision_is_one_append() -> None:
    memory, tool = new_memory(), CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool) as host:
        run_id = await begun(host, REVIEWED, approvals=EXPIRING)
        await until(lambda: bool(open_companion(memory, "approval")))
        approval_id = open_companion(memory, "approval")
        await host.decisions.decide(anybody(), approval_id, run_id, CALL, "deny")
        shown = [
            msgspec.json.decode(wire_feed.numbered(1, item.data))
            for item in await ended(host, run_id)
            if b'"approval.' in item.data
        ]
        about = {"subject": "ann", "provider": "fake", "approval": shown[0]["approval"]}
        assert "expiresAt" in about["approval"]
        assert audit(memory) == [
            {"type": "approval.requested"} | about,
            {"type": "approval.resolved", "resolution": shown[1]["resolution"]} | about,
        ]
        log = [RUN.decode(entry.data) for entry in memory.actors[run_id].log.values()]
        assert not any(isinstance(event, ReviewSettling) for event in log)


async def test_what_the_sink_will_not_know_of_is_not_asked_and_its_permit_is_given_back() -> None:
    memory, records, tool = new_memory(), Records(), CountingTool("reviewed", reviewed=True)
    records.otherwise["approval.requested"] = fail
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool, audit=records) as host:
        run_id = await begun(host, REVIEWED)
        items = await ended(host, run_id)
        assert types(items)[-2:] == ["tool.called", "run.failed"]
        assert b"APPROVAL_AUDIT_FAILED" in items[-1].data
        assert b"secret" not in items[-1].data
        assert companions_of(memory, "approval") == {}

        async def none_held() -> bool:
            return not (await memory.ledger.counted("approvals")).held

        await until_so(none_held)


@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_a_decision_that_the_sink_does_not_take_is_none(origin: Any, how: str) -> None:
    async with asked(origin, patience_s=5 if how == "fails" else 0.05) as world:
        world.records.otherwise["approval.resolved"] = fail if how == "fails" else anyio.sleep_forever
        assert await refused(world.decide(world.two)) == "APPROVAL_AUDIT_FAILED"
        assert await refused(world.decide(world.one)) == "APPROVAL_NOT_FOUND"
        shown = await world.over()
        assert [event["type"] for event in shown[-2:]] == ["approval.requested", "run.failed"]
        assert shown[-1]["error"]["code"] == "APPROVAL_AUDIT_FAILED"
        assert not world.tool.seen
        approval = world.memory.actors[world.approval_id]
        assert approval.heads.ended
        assert isinstance(codec.decode_approval(approval.log[2].data), ApprovalUnaudited)
        assert not world.records.told("approval.resolved")


async def test_a_refusal_that_the_sink_does_not_take_is_not_told() -> None:
    async with asked() as world:
        assert await refused(world.decide(world.two, run_id="another")) == "APPROVAL_MISMATCH"
        (kept,) = world.records.told("approval.rejected")
        assert kept | {"id": ""} == {
            "id": "",
            "type": "approval.rejected",
            "subject": "ann",
            "code": "APPROVAL_MISMATCH",
            "approvalId": world.approval_id,
            "runId": "another",
        }
        world.records.otherwise["approval.rejected"] = fail
        assert await refused(world.decide(world.two, run_id="another")) == "APPROVAL_AUDIT_FAILED"
        await world.decide(world.one)


async def test_two_reviewers_at_once_make_one_record_and_one_receipt() -> None:
    async with asked() as world:
        outcomes: list[str] = []

        async def decide(host: Host, decision: Any) -> None:
            try:
                outcomes.append((await world.decide(host, decision)).settled.outcome)
            except Refused as refusal:
                outcomes.append(refusal.code)

        async with anyio.create_task_group() as tasks:
            for host, decision in ((world.one, "approve"), (world.two, "deny"), (world.two, "approve")):
                tasks.start_soon(decide, host, decision)
        assert outcomes.count("APPROVAL_NOT_FOUND") == 2
        (resolved,) = world.records.told("approval.resolved")
        assert resolved["resolution"]["outcome"] in outcomes
        shown = await world.over()
        assert [event["resolution"] for event in shown if event["type"] == "approval.resolved"] == [
            resolved["resolution"]
        ]


@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_while_the_sink_takes_its_time_nobody_else_decides_and_nothing_runs(origin: Any) -> None:
    async with asked(origin) as world:
        free = anyio.Event()
        world.records.otherwise["approval.resolved"] = free.wait
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.decide, world.two)
            await until(lambda: stage(world) == "settling")
            assert await refused(world.decide(world.one, "deny")) == "APPROVAL_NOT_FOUND"
            assert not world.tool.seen
            assert types((await world.two.store.page(world.run_id, 0)).items)[-1] == "approval.requested"
            free.set()
        assert (await world.over())[-1]["type"] == "run.completed"
        assert len(world.tool.seen) == 1


async def test_a_decision_goes_on_when_the_one_who_made_it_left() -> None:
    async with asked() as world:
        free = anyio.Event()
        world.records.otherwise["approval.resolved"] = free.wait
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.decide, world.two)
            await until(lambda: stage(world) == "settling")
            tasks.cancel_scope.cancel()
        free.set()
        assert (await world.over())[-1]["type"] == "run.completed"


@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize("taken", [True, False])
async def test_what_a_dead_node_was_settling_another_sends_again_under_the_same_id(
    decision: Any,
    taken: bool,  # noqa: FBT001
) -> None:
    async with asked() as world:
        # The node died before it could ask the sink, or before it heard the answer: all that is left is in the log.
        outcome: Any = {"approve": "approved", "deny": "denied"}[decision]
        store = MemoryStore(world.memory, "n3")
        async with tooled(using(), store) as dying:
            dying.node.around.shell.recorded = lambda *_: None
            command = calls.Settle(world.approval_id, outcome, "ann", awaits_audit=True)
            await dying.node.around.shell.tell(world.run_id, command, command_id="x")
        if not taken:
            world.records.otherwise["approval.resolved"] = fail
        decided_ms = world.log()[-1].at_ms
        assert stage(world) == "settling"
        world.clock.ahead_ms += calls.RESENT_AFTER_MS + 1_000
        shown = await world.over()
        assert set(world.records.came[1:]) == {f"{world.approval_id}.resolved"}
        settled = [event for event in world.log() if isinstance(event, ReviewSettled)]
        assert settled == ([ReviewSettled(decided_ms, world.approval_id, outcome, "ann")] if taken else [])
        assert len(world.tool.seen) == (taken and decision == "approve")
        if not taken:
            assert shown[-1]["error"]["code"] == "APPROVAL_AUDIT_FAILED"
        assert await refused(world.decide(world.one)) == "APPROVAL_NOT_FOUND"


async def test_a_node_without_a_sink_fails_what_one_with_a_sink_left_behind() -> None:
    clock, tool = Clock(), CountingTool("reviewed", reviewed=True)
    memory = new_memory(clock)
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool) as host:
        run_id = await begun(host, REVIEWED)
        await until(lambda: bool(open_companion(memory, "approval")))
        command = calls.Settle(open_companion(memory, "approval"), "approved", "ann", awaits_audit=True)
        await host.node.around.shell.tell(run_id, command, command_id="x")
        clock.ahead_ms += calls.RESENT_AFTER_MS + 1_000
        assert b"APPROVAL_AUDIT_FAILED" in (await ended(host, run_id))[-1].data
        assert not tool.seen


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("origin", ["foreground", "job"])
async def test_an_expiry_is_recorded_before_it_ends_the_run(taken: bool, origin: Any) -> None:  # noqa: FBT001
    async with asked(origin, approvals=EXPIRING) as world:
        if not taken:
            world.records.otherwise["approval.resolved"] = fail
        world.clock.ahead_ms += 60_000
        await until(lambda: world.memory.actors[world.run_id].heads.ended)
        events = world.log()
        assert isinstance(events[6], ReviewSettling)
        failed = events[-1]
        assert isinstance(failed, RunFailed)
        assert failed.problem.code == ("APPROVAL_EXPIRED" if taken else "APPROVAL_AUDIT_FAILED")
        assert len(world.records.told("approval.resolved")) == taken


async def test_a_decision_that_is_too_late_has_the_expiry_recorded() -> None:
    async with asked(approvals=EXPIRING) as world:
        world.clock.ahead_ms += 60_000
        assert await refused(world.decide(world.two)) == "APPROVAL_NOT_FOUND"
        await until(lambda: bool(world.records.told("approval.resolved")))
        assert world.records.told("approval.resolved")[0]["resolution"]["outcome"] == "expired"
        assert (await ended(world.two, world.run_id))[-1].data.count(b"APPROVAL_EXPIRED") == 1


@pytest.mark.parametrize("taken", [True, False])
async def test_an_end_does_not_wait_for_the_sink_which_is_told_afterwards(
    taken: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asked() as world:
        if not taken:
            world.records.otherwise["approval.resolved"] = fail
        await world.two.cancel(world.run_id)
        shown = await world.over()
        assert [event["type"] for event in shown[-2:]] == ["approval.resolved", "run.cancelled"]
        if taken:
            await until(lambda: bool(world.records.told("approval.resolved")))
            assert world.records.told("approval.resolved")[0]["resolution"] == shown[-2]["resolution"]
        else:
            await until(lambda: "does not know of its approval" in caplog.text)
            assert "private secret" not in caplog.text


@pytest.mark.parametrize("taken", [True, False])
async def test_an_end_while_a_decision_goes_to_the_sink_keeps_the_decision(taken: bool) -> None:  # noqa: FBT001
    async with asked("foreground") as world:
        free = anyio.Event()
        told: list[str] = []

        async def take_or_not() -> None:
            await free.wait()
            if not taken:
                await fail()

        async def decide() -> None:
            try:
                told.append((await world.decide(world.two)).settled.outcome)
            except Refused as refusal:
                told.append(refusal.code)

        world.records.otherwise["approval.resolved"] = take_or_not
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide)
            await until(lambda: stage(world) == "settling")
            await world.one.cancel(world.run_id)
            free.set()
        shown = await world.over()
        assert [event["type"] for event in shown[-2:]] == ["approval.resolved", "run.cancelled"]
        assert shown[-2]["resolution"]["outcome"] == "approved"
        assert told == ["approved" if taken else "APPROVAL_AUDIT_FAILED"]
        assert not world.tool.seen
        records = world.records.told("approval.resolved")
        assert all(record == records[0] for record in records)


async def test_a_host_that_closes_waits_until_the_sink_knows() -> None:
    memory, records, tool = new_memory(), Records(), CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool, audit=records) as host:
        await begun(host, REVIEWED, origin="foreground")
        await until(lambda: bool(open_companion(memory, "approval")))
    (resolved,) = records.told("approval.resolved")
    assert resolved["resolution"]["outcome"] == "cancelled"
