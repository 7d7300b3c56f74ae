"""The open call by example: which comes up when, what it waits for, and what its end means."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import calls, run, upkeep
from actors.calls import BeginTool, Clear, Deliver, Expire, IdleOut, Offer, Report, Return, Settle, Wait
from actors.decider import Receipt, Refusal
from actors.errors import Problem
from actors.events import ReviewSettled, RunCancelled, RunClaimed, RunFailed, ToolCompleted, ToolProgressed
from actors.ports import AssistantMessage, ToolMessage, UserMessage
from tests.actors.reviewing import (
    APPLICATION,
    APPROVAL,
    FACTS,
    HOST,
    REVIEWED,
    TICKET,
    Story,
    accepted,
    call,
    proposed,
    proposing,
    tags,
)
from tests.actors.runs import NOW

APPROVE = Settle(APPROVAL, "approved", "bo")
IDLE_MS = 1_000
CAUSE = Problem("X", "Some end.", retryable=True)


def reviewed(**members: Any) -> Story:
    story = proposed(call("reviewed"), call("host", "c2"), **members)
    story.tell(calls.AskReview(APPROVAL))
    return story


def offered(**members: Any) -> Story:
    story = proposed(call("app"), **members)
    story.tell(Offer(TICKET))
    return story


def code(decision: Any) -> str:
    return str(decision.events[-1].problem.code)


# The batch.


@pytest.mark.parametrize(
    ("batch", "refused"),
    [
        ([call("host")], None),
        ([call("host"), call("nobody", "c2")], "TOOL_NOT_ALLOWED"),
        ([call("host"), call("host", "c1")], "INVALID_TOOL_CALL"),
        ([call("host"), call("host", "")], "INVALID_TOOL_CALL"),
        ([call("host"), call("host", "old")], "INVALID_TOOL_CALL"),
        ([call("host"), call("app", "c2", b'{"n":"x"}')], "INVALID_TOOL_ARGUMENTS"),
        ([call("host", arguments=b"[]")], "INVALID_TOOL_ARGUMENTS"),
        ([call("host", f"c{number}") for number in range(32)], None),
        ([call("host", f"c{number}") for number in range(33)], "TOOL_LIMIT"),
    ],
)
def test_one_bad_call_refuses_the_whole_batch(batch: list[Any], refused: str | None) -> None:
    problem = calls.refused(batch, {tool.name: tool for tool in FACTS}, ["old"], last_step=False)
    assert (problem.code if problem else None) == refused


def test_on_the_last_step_no_call_runs_whatever_it_is() -> None:
    problem = calls.refused([call("nobody")], {}, [], last_step=True)
    assert problem is not None
    assert problem.code == "STEP_LIMIT"


@pytest.mark.parametrize(
    ("max_steps", "second", "refused"),
    [(1, call("host", "c2"), "STEP_LIMIT"), (8, call("nobody", "c2"), "TOOL_NOT_ALLOWED")],
)
def test_a_refused_batch_ends_the_run_before_any_call_comes_up(max_steps: int, second: Any, refused: str) -> None:
    story = proposed(call("host"), second, max_steps=max_steps)
    assert tags(story.log)[-2:] == ["turn.completed", "run.failed"]
    assert "tool.called" not in tags(story.log)
    assert isinstance(story.log[-1], RunFailed)
    assert story.log[-1].problem.code == refused


def test_a_call_id_of_an_earlier_turn_is_used_up() -> None:
    story = proposed(call("host"))
    for command in (BeginTool(), Return("c1", Raw(b"1")), run.EnterStep(2)):
        story.tell(command)
    assert code(story.tell(proposing(call("host"), step=2))) == "INVALID_TOOL_CALL"


# One after another.


def test_calls_run_strictly_one_after_another_and_the_model_sees_them_in_their_order() -> None:
    story = proposed(call("host"), call("host", "c2", b'{ "n" : 2 }'))
    assert story.effect() == calls.StartTool()
    story.tell(BeginTool())
    assert story.effect() == calls.RunTool(call("host"))
    assert tags(story.tell(Return("c1", Raw(b'"one"'))).events) == ["tool.completed", "tool.called"]
    story.tell(BeginTool())
    assert story.effect() == calls.RunTool(call("host", "c2", b'{"n":2}'))
    assert tags(story.tell(Return("c2", Raw(b"2"))).events) == ["tool.completed"]
    assert story.effect() == run.BeginStep(2)
    story.tell(run.EnterStep(2))
    effect = story.effect()
    assert isinstance(effect, run.CallModel)
    assert [type(message) for message in effect.request.messages] == [
        UserMessage,
        AssistantMessage,
        ToolMessage,
        ToolMessage,
    ]
    assert effect.request.messages[2:] == (ToolMessage("c1", "host", '"one"'), ToolMessage("c2", "host", "2"))
    assert [tool.name for tool in effect.request.tools] == [tool.name for tool in FACTS]


def test_no_step_begins_while_a_call_is_open_or_waits_its_turn() -> None:
    story = proposed(call("host"), call("host", "c2"))
    assert not story.tell(run.EnterStep(2)).events
    story.tell(BeginTool())
    assert not story.tell(run.EnterStep(2)).events


def test_an_output_counts_once_and_only_for_the_open_call() -> None:
    story = proposed(call("host"), call("host", "c2"))
    assert not story.tell(Return("c1", Raw(b"1"))).events
    story.tell(BeginTool())
    assert not story.tell(BeginTool()).events
    assert not story.tell(Return("c2", Raw(b"1"))).events
    assert story.tell(Return("c1", Raw(b"1"))).events
    assert not story.tell(Return("c1", Raw(b"1"))).events


# Reviews.


def test_a_reviewed_call_begins_only_once_it_was_approved() -> None:
    story = reviewed()
    assert not story.tell(BeginTool()).events
    assert tags(story.tell(APPROVE).events) == ["review.settled"]
    assert story.effect() == calls.StartTool()
    assert tags(story.tell(BeginTool()).events) == ["tool.started"]


@pytest.mark.parametrize("command", [BeginTool(), Clear(), Offer(TICKET)])
def test_nothing_goes_past_the_review_that_a_run_asked_for(command: run.Command) -> None:
    assert not proposed(call("reviewed")).tell(command).events
    assert not proposed(call("careful")).tell(command).events


def test_the_hosts_policy_alone_clears_a_call_where_the_run_asks_for_no_person() -> None:
    story = proposed(call("reviewed"), approvals=None)
    assert story.effect() == calls.Review(call("reviewed"), interactive=False)
    assert not story.tell(calls.AskReview(APPROVAL)).events
    assert tags(story.tell(Clear()).events) == ["call.cleared"]
    assert story.effect() == calls.StartTool()


@pytest.mark.parametrize(
    ("outcome", "end", "ends_with"),
    [
        ("denied", RunFailed, "APPROVAL_DENIED"),
        ("cancelled", RunCancelled, "CANCELLED"),
    ],
)
def test_an_answer_and_what_it_ends_are_one_append(outcome: Any, end: Any, ends_with: str) -> None:
    settled, over = reviewed().tell(Settle(APPROVAL, outcome, "bo")).events
    assert settled == ReviewSettled(NOW, APPROVAL, outcome, "bo")
    assert isinstance(over, end)
    assert over.problem == Problem(ends_with, over.problem.message)


def test_a_review_ends_at_the_first_millisecond_of_its_expiry() -> None:
    approvals = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 50}
    assert not reviewed(approvals=approvals).tell(Expire(), after_ms=49).events
    story = reviewed(approvals=approvals)
    assert story.effect() == Wait(NOW if approvals["idlePolicy"] == "continue" else None, NOW + 50)
    decision = story.tell(Expire(), after_ms=50)
    assert tags(decision.events) == ["review.settled", "run.failed"]
    assert decision.events[0] == ReviewSettled(NOW + 50, APPROVAL, "expired")
    assert (code(decision), decision.answer) == ("APPROVAL_EXPIRED", Receipt())


def test_a_late_decision_writes_the_expiry_and_is_refused() -> None:
    approvals = {"mode": "interactive", "idlePolicy": "continue", "expiresAfterMs": 50}
    decision = reviewed(approvals=approvals).tell(APPROVE, after_ms=50)
    assert decision.events[0].outcome == "expired"
    assert code(decision) == "APPROVAL_EXPIRED"
    assert isinstance(decision.answer, Refusal)
    assert decision.answer.problem.code == "APPROVAL_NOT_FOUND"


def test_a_decision_just_before_the_expiry_counts() -> None:
    approvals = {"mode": "interactive", "idlePolicy": "continue", "expiresAfterMs": 50}
    assert reviewed(approvals=approvals).tell(APPROVE, after_ms=49).events[0].outcome == "approved"


@pytest.mark.parametrize("command", [Settle(TICKET, "approved", "bo"), APPROVE])
def test_a_decision_about_anything_but_the_open_review_finds_none(command: Settle) -> None:
    story = reviewed()
    if command is APPROVE:
        story.tell(APPROVE)
    decision = story.tell(command)
    assert not decision.events
    assert isinstance(decision.answer, Refusal)
    assert decision.answer.problem.code == "APPROVAL_NOT_FOUND"


def test_the_end_of_a_run_settles_the_review_that_it_waits_for() -> None:
    settled, over = reviewed().tell(run.Cancel(CAUSE, "client")).events
    assert (settled.outcome, settled.by) == ("cancelled", "")
    assert over.problem == CAUSE


def test_a_cancel_between_the_approval_and_the_tool_ends_the_run_as_it_says() -> None:
    story = reviewed()
    story.tell(APPROVE)
    assert tags(story.tell(run.Cancel(CAUSE)).events) == ["run.cancelled"]
    assert story.log[-1] == RunCancelled(NOW, CAUSE)
    assert not story.tell(BeginTool()).events


# Idle time.


def test_the_idle_limit_stands_still_while_a_person_is_asked_to_pause_and_begins_anew_at_the_decision() -> None:
    approvals = {"mode": "interactive", "idlePolicy": "pause"}
    story = reviewed(approvals=approvals, idle_timeout_ms=IDLE_MS)
    assert story.effect() == Wait(None)
    assert not story.tell(IdleOut(IDLE_MS), after_ms=10 * IDLE_MS).events
    story.tell(APPROVE, after_ms=1)
    assert isinstance(story.state, run.Live)
    assert story.state.open is not None
    assert story.state.open.active_ms == story.now_ms


def test_the_idle_limit_goes_on_counting_from_the_last_progress_where_nobody_asked_to_pause() -> None:
    story = proposed(call("reviewed"), idle_timeout_ms=IDLE_MS)
    story.tell(calls.AskReview(APPROVAL), after_ms=400)
    assert story.effect() == Wait(NOW)
    assert not story.tell(IdleOut(IDLE_MS), after_ms=599).events
    decision = story.tell(IdleOut(IDLE_MS), after_ms=1)
    assert tags(decision.events) == ["review.settled", "run.cancelled"]
    assert (decision.events[0].outcome, decision.events[1].cause) == ("cancelled", "idle")
    assert decision.events[1].problem == calls.IDLE


def test_an_approval_is_no_progress_where_the_idle_limit_goes_on() -> None:
    story = reviewed(idle_timeout_ms=IDLE_MS)
    story.tell(APPROVE, after_ms=400)
    assert isinstance(story.state, run.Live)
    assert story.state.open is not None
    assert story.state.open.active_ms == NOW


# Tickets.


def test_a_ticket_is_offered_only_for_a_tool_of_the_application() -> None:
    assert not proposed(call("host")).tell(Offer(TICKET)).events
    assert not proposed(call("app")).tell(BeginTool()).events
    assert tags(offered().log)[-1] == "ticket.offered"


def test_a_report_moves_the_idle_limit_and_shows_at_most_once_a_second() -> None:
    story = offered(idle_timeout_ms=IDLE_MS)
    shown = [story.tell(Report(TICKET), after_ms=ms).events for ms in (1, 999, 1, 999)]
    assert shown == [
        [ToolProgressed(NOW + 1)],
        [ToolProgressed(NOW + 1_000, shown=False)],
        [ToolProgressed(NOW + 1_001)],
        [ToolProgressed(NOW + 2_000, shown=False)],
    ]
    assert not story.tell(IdleOut(IDLE_MS), after_ms=IDLE_MS - 1).events
    assert code(story.tell(IdleOut(IDLE_MS), after_ms=1)) == "IDLE_TIMEOUT"


def test_a_result_counts_once() -> None:
    story = offered()
    assert tags(story.tell(Deliver(TICKET, Raw(b"1"))).events) == ["tool.completed"]
    for command in (Deliver(TICKET, Raw(b"2")), Report(TICKET)):
        decision = story.tell(command)
        assert not decision.events
        assert isinstance(decision.answer, Refusal)
        assert decision.answer.problem.code == "TOOL_EXECUTION_NOT_FOUND"
    assert [event.output for event in story.log if isinstance(event, ToolCompleted)] == [Raw(b"1")]


@pytest.mark.parametrize("command", [Deliver(APPROVAL, Raw(b"1")), Report(APPROVAL)])
def test_another_ticket_is_not_this_one(command: run.Command) -> None:
    assert not offered().tell(command).events


def test_a_failed_execution_ends_the_run_as_uncertain() -> None:
    (over,) = offered().tell(Deliver(TICKET, None)).events
    assert isinstance(over, RunFailed)
    assert (over.problem.code, over.problem.outcome, over.problem.retryable) == (
        "TOOL_OUTCOME_UNCERTAIN",
        "uncertain",
        False,
    )


@pytest.mark.parametrize(
    ("output", "suits"), [(b"1", True), (b"1.0", True), (b'"x"', False), (b"null", False), (b"{}", False)]
)
def test_an_output_is_judged_by_the_definitions_schema(output: bytes, suits: bool) -> None:  # noqa: FBT001 - a table
    assert calls.suits_output(Raw(output), APPLICATION) is suits
    assert calls.suits_output(Raw(output), HOST)


# Ends.


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (Problem("IDLE_TIMEOUT", "i", retryable=True), ("IDLE_TIMEOUT", False, "uncertain")),
        (Problem("CANCELLED", "c"), ("CANCELLED", False, "uncertain")),
        (Problem("SESSION_DELETED", "s", retryable=True), ("TOOL_OUTCOME_UNCERTAIN", False, "uncertain")),
        (Problem("OPERATION_UNCERTAIN", "o"), ("TOOL_OUTCOME_UNCERTAIN", False, "uncertain")),
    ],
)
@pytest.mark.parametrize("stage", ["started", "offered"])
def test_whatever_ends_a_run_with_a_call_under_way_leaves_it_uncertain(
    cause: Problem, told: tuple[str, bool, str], stage: Any
) -> None:
    problem = calls.at_the_end(calls.OpenCall(call("host"), stage), cause)
    assert (problem.code, problem.retryable, problem.outcome) == told


@pytest.mark.parametrize("stage", ["called", "reviewed", "cleared"])
def test_a_call_that_never_began_leaves_its_end_as_it_is(stage: Any) -> None:
    assert calls.at_the_end(calls.OpenCall(call("host"), stage), CAUSE) == CAUSE
    assert calls.at_the_end(None, CAUSE) == CAUSE


@pytest.mark.parametrize(
    "command", [Expire(), IdleOut(1), Return("c1", Raw(b"1")), BeginTool(), APPROVE, Report(TICKET)]
)
def test_without_an_open_call_an_answer_changes_nothing(command: run.Command) -> None:
    story = Story(accepted(*FACTS))
    assert not story.tell(command).events


def test_every_command_about_a_call_is_answered_in_every_state() -> None:
    for stage in get_args(calls.Stage):
        around = calls.Around(calls.OpenCall(call("reviewed"), stage, APPROVAL, TICKET), REVIEWED, None, None)
        for command in (
            calls.AskReview(APPROVAL),
            Clear(),
            BeginTool(),
            Offer(TICKET),
            Return("c1", Raw(b"1")),
            APPROVE,
            Expire(),
            IdleOut(1),
            Report(TICKET),
            Deliver(TICKET, Raw(b"1")),
        ):
            assert isinstance(calls.decide(around, command, NOW).answer, Receipt | Refusal)


# Another node.


@pytest.mark.parametrize("origin", ["foreground", "job"])
@pytest.mark.parametrize("stage", ["called", "reviewed", "cleared", "started", "repeatable", "offered"])
def test_a_takeover_ends_what_is_attached_and_what_is_uncertain_and_lets_all_else_go_on(
    origin: Any, stage: str
) -> None:
    tools = (replace(HOST, idempotent=stage == "repeatable"), REVIEWED, APPLICATION)
    name = {"started": "host", "repeatable": "host", "offered": "app"}.get(stage, "reviewed")
    story = proposed(call(name), tools=tools, origin=origin)
    commands: dict[str, list[run.Command]] = {
        "called": [],
        "reviewed": [calls.AskReview(APPROVAL)],
        "cleared": [calls.AskReview(APPROVAL), APPROVE],
        "started": [BeginTool()],
        "repeatable": [BeginTool()],
        "offered": [Offer(TICKET)],
    }
    for command in commands[stage]:
        story.tell(command)
    before = story.effect()
    events = story.tell(run.TakeOver("n2")).events
    if origin == "job" and stage != "started":
        waits = stage in {"reviewed", "offered"}  # for a person or an application, and belongs to nobody
        assert events == ([] if waits else [RunClaimed(NOW, "n2")])
        assert story.effect() == before
        return
    assert isinstance(events[-1], RunFailed)
    assert events[-1].cause == "node"
    if origin == "job":
        assert events[-1].problem == run.INTERRUPTED
        return
    uncertain = stage in {"started", "repeatable", "offered"}
    assert events[-1].problem.code == ("TOOL_OUTCOME_UNCERTAIN" if uncertain else "OPERATION_UNCERTAIN")
    assert (tags(events)[0] == "review.settled") == (stage == "reviewed")


def test_a_run_is_parked_only_while_it_waits_and_nobody_is_attached() -> None:
    for story, job in ((reviewed(origin="job"), True), (reviewed(), False), (offered(origin="job"), True)):
        assert upkeep.standing(story.state).parked is job
    story = reviewed(origin="job")
    story.tell(APPROVE)
    assert not upkeep.standing(story.state).parked


def test_what_a_waiting_run_is_due_for_is_known_to_every_node() -> None:
    approvals = {"mode": "interactive", "idlePolicy": "continue", "expiresAfterMs": 50}
    story = reviewed(approvals=approvals, origin="job", idle_timeout_ms=IDLE_MS)
    assert upkeep.standing(story.state).due == {"approval": NOW + 50, "idle": NOW + IDLE_MS}
    story.tell(APPROVE)
    assert upkeep.standing(story.state).due == {}
    ticket = offered(origin="job", idle_timeout_ms=IDLE_MS)
    assert upkeep.standing(ticket.state).due == {"idle": NOW + IDLE_MS}
    assert msgspec.json.decode(msgspec.json.encode(upkeep.standing(ticket.state).due)) == {"idle": NOW + IDLE_MS}
