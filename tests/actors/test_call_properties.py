"""Runs with tools, reviews and tickets, whatever they are told in whatever order."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from actors import calls, codec, kinds, run, upkeep
from actors.companions import companions
from actors.errors import Problem
from actors.events import (
    CallCleared,
    ReviewAsked,
    ReviewSettled,
    ReviewSettling,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunHandedOver,
    TicketOffered,
    ToolCalled,
    ToolCompleted,
    ToolStarted,
)
from actors.ports import ToolCall, Turn
from projections import wire_feed
from tests.actors.reviewing import FACTS, accepted, proposing, wanted
from tests.actors.runs import ARTIFACT, NOW, RUN_ID, document, folded, framed, items_of_log
from tests.host_rules import host_rules

TERMINAL = RunCompleted | RunFailed | RunCancelled
quick = settings(max_examples=60)

names = st.sampled_from([tool.name for tool in FACTS])
ids = st.sampled_from(["c1", "c2", "c3", "c4", "c5"])
arguments = st.sampled_from([b"{}", b'{"n":1}', b'{"n":1}', b'{"n":1.5}', b'{"x":0}'])
batches = st.lists(st.builds(lambda i, n, a: ToolCall(i, n, Raw(a)), ids, names, arguments), min_size=1, max_size=3)
approvals: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        {"mode": "interactive", "idlePolicy": "pause"},
        {"mode": "interactive", "idlePolicy": "continue"},
        {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 40},
        {"mode": "interactive", "idlePolicy": "continue", "expiresAfterMs": 40},
    ]
)
PROBLEMS = (Problem("CANCELLED", "x"), Problem("IDLE_TIMEOUT", "x", retryable=True), Problem("OTHER", "x"))
CAUSES: Sequence[Any] = ("asked", "client", "node", "idle", "rule", "overflow")


class Told(NamedTuple):
    """A story: what the request said, and the log and the states that came of it."""

    members: dict[str, Any]
    log: list[RunEvent]
    states: list[run.State]


class _Fresh:
    """Ids that nobody gave out before, in the run's partition."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self) -> str:
        self.given.append(f"{RUN_ID[:9]}{len(self.given):04x}-4f7e-9a41-5f2f5f3b7c10")
        return self.given[-1]

    def some(self, draw: st.DrawFn) -> str:
        return draw(st.sampled_from(self.given)) if self.given else RUN_ID


def _right(draw: st.DrawFn, state: run.State, fresh: _Fresh) -> run.Command:
    """What an executor, a person or an application would say now."""
    match run.next_effect(state):
        case run.BeginStep(step):
            return run.EnterStep(step)
        case run.CallModel(step=step):
            if draw(st.integers(0, 3)):
                return proposing(*draw(batches), step=step, text=draw(st.sampled_from(["", "so"])))
            return run.Answer(step, Turn(text="done"), streamed=False, artifact_id=ARTIFACT)
        case calls.Review(interactive=interactive):
            return calls.AskReview(fresh()) if interactive else calls.Clear()
        case calls.StartTool():
            return calls.BeginTool()
        case calls.RunTool(call):
            return calls.Return(call.id, Raw(b'{"a":1.0}'))
        case calls.OfferTicket():
            return calls.Offer(fresh())
        case calls.Wait():
            assert isinstance(state, run.Live)
            assert state.open is not None
            if state.open.stage == "offered":
                ticket = state.open.execution_id
                return calls.Report(ticket) if draw(st.booleans()) else calls.Deliver(ticket, Raw(b"1"))
            approval_id = state.open.approval_id
            if state.open.stage == "settling":
                kept = draw(st.integers(0, 3))
                return calls.FinishSettling(approval_id) if kept else calls.AuditFailed(approval_id)
            outcome: Any = draw(st.sampled_from(["approved", "approved", "approved", "denied", "cancelled"]))
            return calls.Settle(approval_id, outcome, "bo", draw(st.booleans()))
        case _:
            return run.Start()


def _any(draw: st.DrawFn, fresh: _Fresh) -> run.Command:
    some = fresh.some(draw)
    outcomes: Sequence[Any] = ("approved", "denied", "cancelled")
    commands: list[run.Command] = [
        run.Start(),
        run.EnterStep(draw(st.integers(1, 3))),
        proposing(*draw(batches), step=draw(st.integers(1, 3))),
        calls.AskReview(fresh()),
        calls.Clear(),
        calls.BeginTool(),
        calls.Offer(fresh()),
        calls.Return(draw(ids), Raw(b"null")),
        calls.Settle(some, draw(st.sampled_from(outcomes)), "bo", draw(st.booleans())),
        calls.Expire(draw(st.booleans())),
        calls.FinishSettling(some),
        calls.AuditFailed(some),
        calls.IdleOut(50),
        calls.Report(some),
        calls.Deliver(some, draw(st.sampled_from([None, Raw(b"1")]))),
        run.TakeOver("n2"),
        run.HandOver("n1"),
    ]
    ends: list[run.Command] = [
        run.Fail(draw(st.sampled_from(PROBLEMS)), draw(st.sampled_from(CAUSES))),
        run.Cancel(draw(st.sampled_from(PROBLEMS)), draw(st.sampled_from(CAUSES))),
    ]
    return draw(st.sampled_from(ends if draw(st.integers(0, 9)) == 0 else commands))


@st.composite
def stories(draw: st.DrawFn) -> Told:
    """A run that is told mostly what carries it on."""
    asked, idle_ms, fresh, now_ms = draw(approvals), draw(st.sampled_from([0, 50])), _Fresh(), NOW
    members = wanted(*FACTS, approvals=asked, **({"idleTimeoutMs": idle_ms} if idle_ms else {}))
    begin = accepted(
        *FACTS, approvals=asked, idle_timeout_ms=idle_ms, origin=draw(st.sampled_from(["foreground", "job"]))
    )
    log: list[RunEvent] = []
    states: list[run.State] = [run.New()]
    commands = draw(st.lists(st.integers(0, 4), max_size=25))
    for number in (-1, *commands):
        now_ms += draw(st.sampled_from([0, 0, 0, 1, 20, 40]))
        command = begin if number < 0 else _right(draw, states[-1], fresh) if number else _any(draw, fresh)
        events = run.decide(states[-1], command, now_ms).events
        log += events
        states.append(folded(events, states[-1]))
    return Told(members, log, states)


@quick
@given(stories())
def test_nothing_follows_an_end_and_no_call_begins_twice(story: Told) -> None:
    ends = [number for number, event in enumerate(story.log) if isinstance(event, TERMINAL)]
    assert ends in ([], [len(story.log) - 1])
    begun = Counter(_current(story.log, number) for number, event in enumerate(story.log) if _begins(event))
    assert set(begun.values()) <= {1}


@quick
@given(stories())
def test_calls_come_up_one_by_one_in_the_order_of_their_turn(story: Told) -> None:
    open_call = ""
    for event in story.log:
        if isinstance(event, ToolCalled):
            assert not open_call
            open_call = event.call.id
        if isinstance(event, ToolCompleted):
            assert event.call_id == open_call
            open_call = ""


@quick
@given(stories())
def test_a_review_is_settled_at_most_once_and_always_by_the_end(story: Told) -> None:
    asked = [event.approval_id for event in story.log if isinstance(event, ReviewAsked)]
    settled = [event.approval_id for event in story.log if isinstance(event, ReviewSettled)]
    assert len(set(settled)) == len(settled)
    assert set(settled) <= set(asked)
    if isinstance(story.states[-1], run.Ended):
        assert len(asked) - len(settled) == _unaudited(story.log)


def _unaudited(log: Sequence[RunEvent]) -> bool:
    """Whether the run ended because an audit sink did not take a settlement."""
    return isinstance(log[-1], RunFailed) and log[-1].problem == calls.UNAUDITED


@quick
@given(stories())
def test_a_settlement_stays_as_it_was_decided_whatever_comes_before_its_record(story: Told) -> None:
    decided = {event.approval_id: calls.settled(event) for event in story.log if isinstance(event, ReviewSettling)}
    for event in story.log:
        if isinstance(event, ReviewSettled) and event.approval_id in decided:
            assert event == decided[event.approval_id]


@quick
@given(stories())
def test_a_call_that_needs_a_review_begins_only_after_it(story: Told) -> None:
    reviewed = {tool.name for tool in FACTS if tool.requires_approval}
    allowed, called = False, ""
    for event in story.log:
        if isinstance(event, ToolCalled):
            allowed, called = event.call.name not in reviewed, event.call.name
        if isinstance(event, CallCleared):
            assert story.members.get("approvals") is None
            allowed = True
        if isinstance(event, ReviewSettled):
            allowed = event.outcome == "approved"
        if _begins(event):
            assert allowed, called


@quick
@given(stories())
def test_a_run_that_ends_with_a_call_under_way_says_that_it_is_uncertain(story: Told) -> None:
    before = folded(story.log[:-1])
    if story.log and isinstance(story.log[-1], RunFailed | RunCancelled) and isinstance(before, run.Live):
        problem = story.log[-1].problem
        if before.open is not None and before.open.uncertain:
            assert (problem.outcome, problem.retryable) == ("uncertain", False)
            assert problem.code in {"CANCELLED", "IDLE_TIMEOUT", "TOOL_OUTCOME_UNCERTAIN", "JOB_INTERRUPTED"}


@quick
@given(stories())
def test_what_is_written_beside_a_run_follows_on_what_was_written(story: Told) -> None:
    versions: dict[str, int] = {}
    over: set[str] = set()
    before: run.State = run.New()
    for event in story.log:
        after = run.evolve(before, event)
        for one in companions(RUN_ID, before, event, after):
            assert one.actor not in over
            assert one.log == versions.get(one.actor, 0)
            of_approval = one.event.startswith(b'{"type":"approval.')
            assert bool(one.audit) == (of_approval and not one.event.startswith(b'{"type":"approval.unaudited"'))
            versions[one.actor] = one.log + 1
            over |= {one.actor} if one.ended else set()
        before = after
    if isinstance(before, run.Ended):
        assert over == set(versions)


@quick
@given(stories())
def test_the_feed_and_its_replay_are_ones_that_every_client_can_read(story: Told) -> None:
    asked = document(**story.members)
    is_over = isinstance(story.states[-1], run.Ended)
    host_rules(framed(items_of_log(story.log)), asked, complete=is_over)
    if is_over:
        host_rules(framed(wire_feed.replayed(RUN_ID, story.log)), asked)


@quick
@given(stories())
def test_a_replayed_log_and_a_snapshot_give_the_same_run(story: Told) -> None:
    again = folded(codec.decode_run(codec.encode(event)) for event in story.log)
    for other in (again, kinds.RUN.thaw(kinds.RUN.freeze(again))):
        assert other == story.states[-1]
        assert run.next_effect(other) == run.next_effect(story.states[-1])
        assert upkeep.standing(other) == upkeep.standing(story.states[-1])


@quick
@given(stories())
def test_only_a_run_that_waits_and_is_due_for_nothing_else_has_no_owner(story: Told) -> None:
    for state in story.states:
        if upkeep.standing(state).parked:
            assert isinstance(run.next_effect(state), calls.Wait)


@quick
@given(stories())
def test_a_call_under_way_is_never_let_go_of_and_one_that_waits_may_be(story: Told) -> None:
    before: run.State = run.New()
    for event in story.log:
        if isinstance(event, RunHandedOver):
            assert isinstance(before, run.Live)
            assert before.accepted.origin != "foreground"
            assert not isinstance(run.next_effect(before), run.CallModel | calls.RunTool)
        before = run.evolve(before, event)
    for state in story.states:
        if upkeep.standing(state).released:
            assert "work" in upkeep.standing(state).due


def _begins(event: RunEvent) -> bool:
    return isinstance(event, ToolStarted | TicketOffered)


def _current(log: Sequence[RunEvent], number: int) -> str:
    """The call that is open where *number* stands."""
    return next(event.call.id for event in reversed(log[:number]) if isinstance(event, ToolCalled))
