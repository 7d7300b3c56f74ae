"""Jobs by example: queued, taken up, handed over, lost, cancelled, and what their keys are told afterwards (jobs §4)."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import calls, codec, kinds, run, upkeep
from actors.decider import Receipt, Refusal, Standing
from actors.errors import Problem
from actors.events import (
    Origin,
    RunAccepted,
    RunCancelled,
    RunClaimed,
    RunErased,
    RunFailed,
    RunHandedOver,
    RunStarted,
    timestamp,
)
from actors.jobs import CANCELLED, Job
from actors.ports import Turn
from eventstore.store import Heads
from tests.actors.reviewing import APPROVAL, HOST, REVIEWED, TICKET, Story, accepted, call, fact, proposing, tags
from tests.actors.runs import ARTIFACT, NOW, RUN_ID, event_of, folded, items_of_log

DENIED = Problem("FORBIDDEN", "The principal may not any more.")
LOST = Problem("OPERATION_RECORD_LIMIT", "x", outcome="uncertain")
IDLE = Problem("IDLE_TIMEOUT", "x", retryable=True)
INTERRUPTED = ("JOB_INTERRUPTED", False, "uncertain")


def submitted(*tools: Any, origin: Origin = "job", **changes: Any) -> Story:
    """A job that waits to be taken up."""
    command = accepted(*tools or (HOST,), approvals=None, origin=origin)
    return Story(replace(command, **{"admitted": False, "fingerprint": "aa"} | changes))


def taken_up(*tools: Any, **changes: Any) -> Story:
    story = submitted(*tools, **changes)
    story.tell(run.Start())
    return story


def in_call(*tools: Any, **changes: Any) -> Story:
    """A job whose model asked for a call of the first tool, which has begun."""
    story = taken_up(*tools, **changes)
    story.tell(run.EnterStep(1))
    story.tell(proposing(call((tools or (HOST,))[0].name)))
    story.tell(calls.BeginTool())
    return story


def end_of(story: Story) -> RunFailed | RunCancelled:
    end = story.log[-1]
    assert isinstance(end, RunFailed | RunCancelled)
    return end


def told(story: Story) -> tuple[str, bool, object]:
    """How the end of *story* is told."""
    problem = end_of(story).problem
    return problem.code, problem.retryable, problem.outcome


def shown(story: Story) -> list[dict[str, Any]]:
    return [event_of(item, number) for number, item in enumerate(items_of_log(story.log), 1)]


def types(story: Story) -> list[str]:
    return [event["type"] for event in shown(story)]


def job(story: Story) -> Job:
    """The job as a look finds it."""
    ended = story.state if isinstance(story.state, run.Ended) else None
    accepted_event = story.log[0]
    assert isinstance(accepted_event, RunAccepted)
    heads = Heads(log=len(story.log), feed=len(items_of_log(story.log)), last_ms=story.now_ms)
    return Job(RUN_ID, accepted_event, heads, ended)


# Queued.


def test_a_queued_job_shows_nothing_until_it_is_taken_up() -> None:
    story = submitted()
    assert (tags(story.log), types(story)) == (["run.accepted"], [])
    assert (job(story).state, job(story).cursor) == ("queued", 0)
    assert story.effect() == run.AwaitPermit("p1")
    story.tell(run.Start(), after_ms=7)
    (started,) = shown(story)
    assert (started["type"], started["provider"], started["model"]) == ("run.started", "fake", "m")
    assert timestamp(NOW + 7) == started["timestamp"]
    assert job(story).state == "running"


def test_a_queued_job_is_looked_for_should_the_line_have_forgotten_it() -> None:
    assert upkeep.standing(submitted().state).due == {"work": NOW + upkeep.QUEUED_LOOK_MS}
    assert upkeep.standing(taken_up().state).due == {}
    assert upkeep.standing(submitted(origin="host").state).due == {}


def test_taking_over_a_queued_job_does_nothing_because_nobody_worked_on_it() -> None:
    story = submitted()
    assert story.tell(run.TakeOver("n2")) == ([], Receipt())
    assert tags(story.log) == ["run.accepted"]


def test_a_job_is_taken_up_once() -> None:
    story = taken_up()
    assert not story.tell(run.Start()).events


def test_a_queued_job_that_is_cancelled_has_two_events() -> None:
    story = submitted()
    story.tell(run.Cancel(CANCELLED), after_ms=5)
    started, cancelled = shown(story)
    assert (started["type"], started["sequence"]) == ("run.started", 1)
    assert (cancelled["type"], cancelled["sequence"]) == ("run.cancelled", 2)
    assert cancelled["error"]["code"] == "CANCELLED"
    found = job(story)
    assert (found.state, found.cursor, found.cancel_requested) == ("cancelled", 2, True)
    assert (found.updated_ms, found.expires_ms) == (NOW + 5, NOW + 5 + upkeep.RETENTION_MS)


@pytest.mark.parametrize("code", ["FORBIDDEN", "JOB_ACCOUNT_CHANGED", "JOB_ACCOUNT_REQUIRED", "UNKNOWN_TOOL"])
def test_a_queued_job_that_may_not_begin_any_more_fails_by_that_rule(code: str) -> None:
    story = submitted()
    story.tell(run.Fail(Problem(code, "Fixed.")))
    assert types(story) == ["run.started", "run.failed"]
    assert (told(story)[0], job(story).state, job(story).cancel_requested) == (code, "failed", False)
    assert isinstance(story.state, run.Ended)
    assert not story.state.executed


# Running, and over.


@pytest.mark.parametrize("cause", ["node", "overflow", "shutdown", "history"])
@pytest.mark.parametrize("command", [run.Fail, run.Cancel])
@pytest.mark.parametrize("begin", [submitted, taken_up, in_call])
def test_a_loss_of_any_kind_interrupts_a_job(cause: Any, command: Any, begin: Any) -> None:
    story = begin()
    story.tell(command(LOST, cause))
    assert told(story) == INTERRUPTED
    assert (types(story)[0], types(story)[-1]) == ("run.started", "run.failed")
    assert (job(story).state, end_of(story).cause) == ("interrupted", cause)


@pytest.mark.parametrize("cause", ["rule", "idle"])
def test_the_failure_of_a_rule_stays_what_it_was(cause: Any) -> None:
    story = taken_up()
    story.tell(run.Fail(Problem("RATE_LIMITED", "x", retryable=True), cause))
    assert (told(story)[:2], job(story).state) == (("RATE_LIMITED", True), "failed")


def test_a_record_that_grew_too_large_interrupts_the_job() -> None:
    story = taken_up()
    story.tell(run.overflow("JOB_RECORD_LIMIT"))
    assert (told(story), end_of(story).cause) == (INTERRUPTED, "overflow")


def test_the_losses_of_other_runs_are_told_as_they_came() -> None:
    for origin in ("foreground", "host"):
        story = taken_up(origin=origin)
        story.tell(run.Fail(LOST, "overflow"))
        assert told(story)[0] == "OPERATION_RECORD_LIMIT"


@pytest.mark.parametrize(
    ("command", "requested"),
    [
        (run.Cancel(CANCELLED), True),
        (run.Cancel(IDLE, "idle"), False),
        (run.Cancel(DENIED, "rule"), False),
    ],
)
def test_only_a_clients_cancel_was_requested(command: run.Cancel, *, requested: bool) -> None:
    story = taken_up()
    story.tell(command)
    assert (job(story).state, job(story).cancel_requested) == ("cancelled", requested)
    assert (types(story)[-1], told(story)[0]) == ("run.cancelled", command.problem.code)


def test_a_cancel_while_a_tool_is_pending_is_uncertain() -> None:
    story = in_call()
    story.tell(run.Cancel(CANCELLED))
    assert told(story) == ("CANCELLED", False, "uncertain")


def test_a_job_that_has_ended_is_not_cancelled_again() -> None:
    story = taken_up()
    story.tell(run.EnterStep(1))
    story.tell(run.Answer(1, Turn(text="hi"), streamed=False, artifact_id=ARTIFACT))
    assert story.tell(run.Cancel(CANCELLED)) == ([], Receipt("already"))
    assert (job(story).state, job(story).cancel_requested, types(story)[-1]) == ("completed", False, "run.completed")


def test_a_job_keeps_its_payload_as_long_as_it_was_submitted_for() -> None:
    story = submitted(retention_ms=9)
    story.tell(run.Cancel(CANCELLED))
    assert isinstance(story.state, run.Ended)
    assert upkeep.expires_ms(story.state) == NOW + 9
    assert upkeep.standing(story.state).due == {"permit": NOW, "retention": NOW + 9}
    assert not upkeep.keeps_log(story.state)


def test_only_a_job_that_had_its_slot_leaves_a_usage_record() -> None:
    for begin, due in ((submitted, None), (taken_up, NOW + upkeep.ACCOUNTED_AFTER_MS)):
        story = begin(accounted=True)
        story.tell(run.Cancel(CANCELLED))
        assert upkeep.standing(story.state).due.get("usage") == due


def test_a_jobs_feed_has_what_its_bound_leaves_beside_the_request_and_its_end() -> None:
    story = taken_up(record_bytes_max=20_000)
    assert isinstance(story.state, run.Live)
    assert upkeep.feed_max(story.state) == 20_000 - upkeep.JOB_RESERVE_BYTES - len(bytes(story.state.accepted.request))
    assert upkeep.feed_max(taken_up(record_bytes_max=1).state) == 1
    assert upkeep.feed_max(taken_up().state) == upkeep.feed_max(run.New()) == 0


# From node to node.


def test_a_job_between_effects_is_handed_over_and_goes_on_elsewhere() -> None:
    story = taken_up()
    assert story.tell(run.HandOver("n1"), after_ms=3).events == [RunHandedOver(NOW + 3, "n1")]
    standing = upkeep.standing(story.state)
    assert (standing.released, standing.due, standing.ended) == (True, {"work": NOW + 3}, False)
    assert story.tell(run.HandOver("n1")) == ([], Receipt("already"))
    assert story.effect() == run.BeginStep(1)
    assert story.tell(run.TakeOver("n2"), after_ms=2).events == [RunClaimed(NOW + 5, "n2")]
    assert (upkeep.standing(story.state).released, upkeep.standing(story.state).due) == (False, {})
    assert types(story) == ["run.started"]


def test_a_job_is_handed_over_before_a_call_and_while_it_waits_but_not_while_a_tool_or_a_model_works() -> None:
    story = taken_up(HOST)
    assert run.may_hand_over(story.state)
    story.tell(run.EnterStep(1))
    assert not run.may_hand_over(story.state)
    assert story.tell(run.HandOver("n1")) == ([], Receipt("already"))
    story.tell(proposing(call("host")))
    assert run.may_hand_over(story.state)
    story.tell(calls.BeginTool())
    assert not run.may_hand_over(story.state)
    assert story.tell(run.HandOver("n1")) == ([], Receipt("already"))
    story.tell(calls.Return("c1", Raw(b"1")))
    assert run.may_hand_over(story.state)
    story.tell(run.Cancel(CANCELLED))
    assert not run.may_hand_over(story.state)


@pytest.mark.parametrize(("origin", "may"), [("foreground", False), ("job", True), ("host", True)])
def test_a_run_that_its_client_waits_for_is_not_handed_over(origin: Any, *, may: bool) -> None:
    story = taken_up(origin=origin)
    assert run.may_hand_over(story.state) == may
    assert bool(story.tell(run.HandOver("n1")).events) == may


def test_a_job_that_waits_for_others_may_change_hands() -> None:
    for tool, command in ((REVIEWED, calls.AskReview(APPROVAL)), (fact("app", application=True), calls.Offer(TICKET))):
        story = Story(accepted(tool, origin="job"))
        for each in (run.EnterStep(1), proposing(call(tool.name)), command, run.HandOver("n1")):
            story.tell(each)
        assert isinstance(story.log[-1], RunHandedOver)
        assert isinstance(story.effect(), calls.Wait)


def test_a_job_whose_node_was_lost_in_the_middle_is_interrupted_unless_the_tool_may_be_called_again() -> None:
    asking = taken_up()
    asking.tell(run.EnterStep(1))
    for story in (asking, in_call()):
        story.tell(run.TakeOver("n2"))
        assert (told(story), end_of(story).cause, job(story).state) == (INTERRUPTED, "node", "interrupted")
    again = in_call(fact("host", idempotent=True))
    again.tell(run.TakeOver("n2"))
    assert isinstance(again.log[-1], RunClaimed)
    assert again.effect() == calls.RunTool(call("host"))


# Its key.


def ended_job(**changes: Any) -> run.Ended:
    story = taken_up(**changes)
    story.tell(run.Cancel(CANCELLED))
    assert isinstance(story.state, run.Ended)
    return story.state


def again(fingerprint: str = "aa") -> run.Accept:
    return replace(accepted(HOST, origin="job"), fingerprint=fingerprint, admitted=False)


def code(state: run.State, command: run.Command) -> str:
    """What the sender of *command* is refused with, for which nothing is written."""
    decision = run.decide(state, command, NOW)
    assert isinstance(decision.answer, Refusal)
    assert not decision.events
    return decision.answer.problem.code


def test_a_key_meets_its_job_and_conflicts_with_another_request_whatever_became_of_it() -> None:
    for state in (submitted().state, taken_up().state, ended_job()):
        assert run.decide(state, again(), NOW) == ([], Receipt("met"))
        assert code(state, again("bb")) == "IDEMPOTENCY_CONFLICT"
        assert code(state, again("")) == "IDEMPOTENCY_CONFLICT"


def test_an_epitaph_says_whose_a_key_was_and_what_it_was_used_for() -> None:
    state = ended_job()
    epitaph = codec.decode_run(upkeep.epitaph(state, NOW + 9))
    assert epitaph == RunErased(NOW + 9, "ann", "job", "aa")
    assert folded([epitaph]) == run.Buried(RunErased(NOW + 9, "ann", "job", "aa"))
    assert upkeep.epitaph(ended_job(fingerprint=""), NOW) == b""
    assert upkeep.epitaph(taken_up().state, NOW) == b""


def buried(origin: Origin = "job") -> run.Buried:
    return run.Buried(RunErased(NOW, "ann", origin, "aa"))


def test_the_key_of_an_erased_run_is_known_for_ever() -> None:
    assert code(buried(), again()) == "JOB_EXPIRED"
    assert code(buried("foreground"), again()) == "OPERATION_UNCERTAIN"
    for origin in ("job", "foreground", "host"):
        assert code(buried(origin), again("bb")) == "IDEMPOTENCY_CONFLICT"
    assert code(buried(), run.ReserveKey("ann", "bb", RUN_ID)) == "IDEMPOTENCY_CONFLICT"


@pytest.mark.parametrize(
    "command",
    [
        run.Start(),
        run.EnterStep(1),
        run.Cancel(CANCELLED),
        run.Fail(LOST),
        run.TakeOver("n2"),
        run.HandOver("n1"),
        calls.Deliver(TICKET, None),
    ],
)
def test_an_erased_run_is_asked_in_vain(command: run.Command) -> None:
    assert code(buried(), command) == "OPERATION_UNCERTAIN"


def test_an_erased_run_is_over_and_comes_back_from_its_snapshot() -> None:
    assert run.next_effect(buried()) is None
    assert upkeep.standing(buried()) == Standing(ended=True)
    assert kinds.RUN.thaw(kinds.RUN.freeze(buried())) == buried()
    assert folded([RunStarted(NOW)], buried()) == buried()
    assert run.decide(buried(), run.BurnKey(), NOW) == ([], Receipt("already"))


def test_what_a_job_was_submitted_with_is_in_its_log() -> None:
    story = submitted(principal="p", retention_ms=9, record_bytes_max=20_000, accounted=True)
    written = msgspec.json.decode(codec.encode(story.log[0]))
    assert {name: written[name] for name in ("origin", "principal", "retention_ms", "record_bytes_max")} == {
        "origin": "job",
        "principal": "p",
        "retention_ms": 9,
        "record_bytes_max": 20_000,
    }
