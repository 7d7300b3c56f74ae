"""The run by example: given events, when a command comes, then these events."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from actors import run, upkeep
from actors.budgets import Budget
from actors.decider import Receipt, Refusal, Standing
from actors.errors import Problem
from actors.events import (
    KeyBurned,
    KeyReserved,
    RunAccepted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    StepStarted,
    TurnCompleted,
    Usage,
)
from actors.ports import AssistantMessage, ToolCall, Turn, UserMessage
from tests.actors.runs import ARTIFACT, NOW, RUN_ID, accept, folded


def given(*events: RunEvent) -> run.State:
    return folded(events)


def accepted(**members: Any) -> RunAccepted:
    event = run.decide(run.New(), accept(**members), NOW).events[0]
    assert isinstance(event, RunAccepted)
    return event


def calling(**members: Any) -> run.State:
    return given(accepted(**members), RunStarted(NOW), StepStarted(NOW, 1))


def answer(turn: Turn, step: int = 1) -> run.Answer:
    return run.Answer(step, turn, streamed=False, artifact_id=ARTIFACT)


def last(state: run.State, command: run.Command) -> RunEvent:
    event: RunEvent = run.decide(state, command, NOW).events[-1]
    return event


def problem(state: run.State, command: run.Command) -> Problem:
    event = last(state, command)
    assert isinstance(event, RunFailed | RunCancelled)
    return event.problem


def kinds(events: Sequence[RunEvent]) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in events]


def test_an_admitted_request_is_accepted_and_started_in_one_step() -> None:
    decision = run.decide(run.New(), accept(), NOW)
    assert kinds(decision.events) == ["run.accepted", "run.started"]
    assert decision.answer == Receipt("new")


def test_a_queued_request_is_accepted_and_waits_for_its_permit() -> None:
    decision = run.decide(run.New(), accept(admitted=False), NOW)
    assert kinds(decision.events) == ["run.accepted"]
    assert run.next_effect(given(*decision.events)) == run.AwaitPermit("p1")


def test_a_granted_permit_starts_a_queued_run_once() -> None:
    queued = given(accepted(admitted=False))
    assert kinds(run.decide(queued, run.Start(), NOW).events) == ["run.started"]
    assert not run.decide(calling(), run.Start(), NOW).events


def test_a_started_run_enters_its_first_step_and_then_calls_the_model() -> None:
    started = given(accepted(), RunStarted(NOW))
    assert run.next_effect(started) == run.BeginStep(1)
    (event,) = run.decide(started, run.EnterStep(1), NOW).events
    effect = run.next_effect(run.evolve(started, event))
    assert isinstance(effect, run.CallModel)
    assert (effect.provider, effect.step, effect.request.messages) == ("fake", 1, (UserMessage("hello"),))


def test_a_step_is_entered_once_and_in_order() -> None:
    assert not run.decide(calling(), run.EnterStep(1), NOW).events
    assert not run.decide(given(accepted(), RunStarted(NOW)), run.EnterStep(2), NOW).events


def test_history_comes_before_the_input() -> None:
    state = calling(history=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    effect = run.next_effect(state)
    assert isinstance(effect, run.CallModel)
    assert effect.request.messages == (UserMessage("a"), AssistantMessage("b"), UserMessage("hello"))


def test_an_answer_without_calls_completes_the_run() -> None:
    event = last(calling(), answer(Turn(text="hi", usage={"inputTokens": 3}, finish_reason="length")))
    assert event == RunCompleted(NOW, "hi", 1, Usage(input_tokens=3), "length")


def test_the_turn_is_recorded_with_its_end_in_one_step() -> None:
    assert kinds(run.decide(calling(), answer(Turn(text="hi")), NOW).events) == ["turn.completed", "run.completed"]


def test_usage_is_shown_only_where_every_step_reported_it() -> None:
    assert last(calling(), answer(Turn(text="hi"))) == RunCompleted(NOW, "hi", 1)


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        ({"inputTokens": 4.0, "outputTokens": True}, Usage(input_tokens=4)),
        ({"inputTokens": -1, "outputTokens": 1.5}, Usage()),
        ({"inputTokens": 2, "cachedInputTokens": 3}, Usage(input_tokens=2)),
        ({"outputTokens": 2**53, "costUsd": float("nan")}, Usage()),
        ({"costUsd": 0.5, "apiEquivalentCostUsd": 1}, Usage(cost_usd=0.5, api_equivalent_cost_usd=1)),
    ],
)
def test_a_report_of_usage_is_cleaned(reported: dict[str, Any], kept: Usage) -> None:
    turn = run.decide(calling(), answer(Turn(text="hi", usage=reported)), NOW).events[0]
    assert isinstance(turn, TurnCompleted)
    assert turn.usage == kept


def test_structured_output_is_kept_as_the_model_wrote_it_without_space() -> None:
    state = calling(outputSchema={"type": "object"})
    event = last(state, answer(Turn(text=' { "n" : 9007199254740993, "x": 1.0, "e": [] }\n')))
    assert isinstance(event, RunCompleted)
    assert event.output is not UNSET
    assert bytes(event.output) == b'{"n":9007199254740993,"x":1.0,"e":[]}'


@pytest.mark.parametrize("text", ["no json", "NaN", '"string"', "```json\n{}\n```", "", "{} {}"])
def test_an_answer_that_does_not_suit_the_schema_fails_the_run(text: str) -> None:
    state = calling(outputSchema={"type": "object"})
    assert problem(state, answer(Turn(text=text))).code == "INVALID_OUTPUT"


def test_a_null_output_is_present() -> None:
    state = calling(outputSchema={})
    event = last(state, answer(Turn(text="null")))
    assert isinstance(event, RunCompleted)
    assert event.output == Raw(b"null")


def call(name: str = "lookup", number: int = 1) -> ToolCall:
    return ToolCall(f"c{number}", name, Raw(b"{}"))


def test_a_call_on_the_last_permitted_step_meets_the_step_limit() -> None:
    assert problem(calling(max_steps=1), answer(Turn(tool_calls=(call(),)))).code == "STEP_LIMIT"


def test_a_batch_of_more_than_32_calls_meets_the_tool_limit() -> None:
    batch = tuple(call(number=number) for number in range(33))
    assert problem(calling(), answer(Turn(tool_calls=batch))).code == "TOOL_LIMIT"


def test_a_tool_outside_the_list_is_not_allowed_and_the_turn_is_remembered() -> None:
    events = run.decide(calling(), answer(Turn(tool_calls=(call(),))), NOW).events
    assert kinds(events) == ["turn.completed", "run.failed"]
    assert problem(calling(), answer(Turn(tool_calls=(call(),)))).code == "TOOL_NOT_ALLOWED"


def test_an_answer_to_a_step_that_is_not_open_changes_nothing() -> None:
    assert not run.decide(given(accepted(), RunStarted(NOW)), answer(Turn(text="hi")), NOW).events
    assert not run.decide(calling(), answer(Turn(text="hi"), step=2), NOW).events


@pytest.mark.parametrize(
    "command", [run.Cancel(Problem("CANCELLED", "x")), run.Fail(Problem("RATE_LIMITED", "x", retryable=True), "rule")]
)
def test_any_live_run_can_be_ended(command: run.Command) -> None:
    for state in (given(accepted(admitted=False)), given(accepted(), RunStarted(NOW)), calling()):
        assert len(run.decide(state, command, NOW).events) == 1


@pytest.mark.parametrize(
    "command",
    [
        run.Start(),
        run.EnterStep(1),
        answer(Turn(text="hi")),
        run.Fail(Problem("X", "x")),
        run.Cancel(Problem("CANCELLED", "x")),
        run.TakeOver("n2"),
    ],
)
def test_nothing_follows_the_end(command: run.Command) -> None:
    over = given(accepted(), RunStarted(NOW), RunCancelled(NOW, Problem("CANCELLED", "x")))
    assert run.decide(over, command, NOW) == ([], Receipt("already"))
    assert run.next_effect(over) is None


@pytest.mark.parametrize("command", [run.Start(), run.Cancel(Problem("CANCELLED", "x")), run.TakeOver("n2")])
def test_a_run_that_does_not_exist_is_refused(command: run.Command) -> None:
    decision = run.decide(run.New(), command, NOW)
    assert not decision.events
    assert isinstance(decision.answer, Refusal)


def test_the_same_key_and_request_is_met_and_another_request_conflicts() -> None:
    state = calling(fingerprint="aa")
    assert run.decide(state, accept(fingerprint="aa"), NOW).answer == Receipt("met")
    conflict = run.decide(state, accept(fingerprint="bb"), NOW)
    assert not conflict.events
    assert isinstance(conflict.answer, Refusal)
    assert conflict.answer.problem.code == "IDEMPOTENCY_CONFLICT"


def test_a_plain_foreground_run_ends_when_its_node_is_lost() -> None:
    event = last(calling(), run.TakeOver("n2"))
    assert isinstance(event, RunFailed)
    assert (event.problem.code, event.problem.outcome, event.cause) == ("OPERATION_UNCERTAIN", "uncertain", "node")


def test_a_job_between_effects_goes_on_elsewhere_and_one_in_a_model_call_ends() -> None:
    event = msgspec.structs.replace(accepted(), origin="job")
    between = given(event, RunStarted(NOW))
    assert last(between, run.TakeOver("n2")) == RunClaimed(NOW, "n2")
    assert isinstance(last(given(event, RunStarted(NOW), StepStarted(NOW, 1)), run.TakeOver("n2")), RunFailed)


def test_an_ended_run_leaves_its_permit_and_its_payload_due() -> None:
    over = given(accepted(), RunStarted(NOW), RunCancelled(NOW + 5, Problem("CANCELLED", "x")))
    standing = upkeep.standing(over)
    assert standing.ended
    assert standing.due == {"permit": NOW + 5, "retention": NOW + 5 + upkeep.RETENTION_MS}


def test_a_keyed_run_keeps_its_log_until_an_operator_erases_it_but_not_its_feed() -> None:
    over = given(accepted(fingerprint="aa"), RunStarted(NOW), RunCancelled(NOW, Problem("CANCELLED", "x")))
    assert isinstance(over, run.Ended)
    assert upkeep.keeps_log(over)
    assert upkeep.standing(over).due["retention"] == NOW + upkeep.RETENTION_MS


def test_an_overflow_ends_the_run_as_uncertain() -> None:
    event = last(calling(), run.overflow("OPERATION_RECORD_LIMIT"))
    assert isinstance(event, RunFailed)
    assert (event.problem.code, event.problem.outcome, event.cause) == (
        "OPERATION_RECORD_LIMIT",
        "uncertain",
        "overflow",
    )


# Keys of turns.


def refused(state: run.State, command: run.Command) -> str:
    """The code that the sender of *command* is refused with, for which nothing is written."""
    decision = run.decide(state, command, NOW)
    assert isinstance(decision.answer, Refusal)
    assert not decision.events
    return decision.answer.problem.code


def reserved(*events: RunEvent) -> run.State:
    return given(KeyReserved(NOW, "ann", "aa", RUN_ID), *events)


def test_a_key_is_reserved_once_for_the_run_that_it_stands_for() -> None:
    reserve = run.ReserveKey("ann", "aa", RUN_ID)
    decision = run.decide(run.New(), reserve, NOW)
    state = given(*decision.events)
    assert decision == ([KeyReserved(NOW, "ann", "aa", RUN_ID)], Receipt("new"))
    assert state == run.Reserved("ann", "aa", RUN_ID)
    assert run.decide(state, run.ReserveKey("ann", "aa", "another"), NOW) == ([], Receipt("met"))
    assert refused(state, run.ReserveKey("ann", "bb", RUN_ID)) == "IDEMPOTENCY_CONFLICT"


def test_a_key_of_a_turn_and_one_of_a_run_meet_each_other() -> None:
    assert run.decide(reserved(), accept(fingerprint="aa"), NOW) == ([], Receipt("met"))
    assert refused(reserved(), accept(fingerprint="bb")) == "IDEMPOTENCY_CONFLICT"
    assert run.decide(calling(fingerprint="aa"), run.ReserveKey("ann", "aa", RUN_ID), NOW) == ([], Receipt("met"))


def test_a_key_whose_turn_was_refused_is_burned_once_and_for_ever() -> None:
    assert run.decide(reserved(), run.BurnKey(), NOW) == ([KeyBurned(NOW)], Receipt())
    burned = reserved(KeyBurned(NOW))
    assert burned == run.Reserved("ann", "aa", RUN_ID, burned=True)
    assert run.decide(burned, run.BurnKey(), NOW) == ([], Receipt("already"))
    assert run.decide(burned, run.ReserveKey("ann", "aa", RUN_ID), NOW) == ([], Receipt("met"))
    assert refused(burned, run.ReserveKey("ann", "bb", RUN_ID)) == "IDEMPOTENCY_CONFLICT"


def test_only_a_reserved_key_can_be_burned() -> None:
    over = given(accepted(), RunCancelled(NOW, Problem("CANCELLED", "x")))
    for state in (run.New(), calling(), over):
        assert run.decide(state, run.BurnKey(), NOW) == ([], Receipt("already"))
        assert run.evolve(state, KeyBurned(NOW)) == state


@pytest.mark.parametrize("command", [run.Start(), run.EnterStep(1), run.Cancel(Problem("CANCELLED", "x"))])
def test_a_key_is_no_run(command: run.Command) -> None:
    assert run.decide(reserved(), command, NOW) == ([], Receipt("already"))
    assert run.next_effect(reserved()) is None
    assert upkeep.standing(reserved()) == Standing()
    assert run.evolve(reserved(), RunStarted(NOW)) == reserved()


# Budgets.

TOKENS, COST = Budget(max_tokens=100), Budget(max_cost_usd=0.5)


def consumed(*used: dict[str, Any] | None, limits: Sequence[Budget] = (TOKENS,)) -> run.State:
    """A run that entered its next step after steps that reported *used*."""
    event = msgspec.structs.replace(accepted(), budgets=tuple(limits))
    log: list[RunEvent] = [event, RunStarted(NOW)]
    for step, one in enumerate(used, 1):
        usage = None if one is None else msgspec.convert(one, Usage)
        log += [StepStarted(NOW, step), TurnCompleted(NOW, step, "so", usage=usage)]
    return given(*log, StepStarted(NOW, len(used) + 1))


def between(*used: dict[str, Any] | None, limits: Sequence[Budget] = (TOKENS,)) -> run.State:
    """A run that stands before its next step after steps that reported *used*."""
    state = consumed(*used, limits=limits)
    assert isinstance(state, run.Live)
    return msgspec.structs.replace(state, step=state.step - 1)


def spent(tokens: int) -> dict[str, Any]:
    return {"inputTokens": tokens - 1, "outputTokens": 1}


def test_nothing_is_judged_before_the_first_step() -> None:
    tight = Budget(max_tokens=1, max_cost_usd=0.1)
    assert last(between(limits=(tight,)), run.EnterStep(1)) == StepStarted(NOW, 1)


@pytest.mark.parametrize(("used", "code"), [(99, None), (100, "RESOURCE_LIMIT"), (101, "RESOURCE_LIMIT")])
def test_a_run_that_used_its_budget_up_begins_no_further_step(used: int, code: str | None) -> None:
    (event,) = run.decide(between(spent(used)), run.EnterStep(2), NOW).events
    assert event == StepStarted(NOW, 2) if code is None else event.problem.code == code


def test_a_step_that_did_not_report_ends_the_run_before_the_next_unless_that_is_allowed() -> None:
    assert problem(between(None), run.EnterStep(2)).code == "RESOURCE_USAGE_UNKNOWN"
    lenient = Budget(max_tokens=100, unknown_usage="allow")
    assert last(between(None, limits=(lenient,)), run.EnterStep(2)) == StepStarted(NOW, 2)


def test_a_final_answer_exactly_at_the_cap_completes_and_one_above_fails_with_its_turn_remembered() -> None:
    at_cap = answer(Turn(text="hi", usage=spent(40)), step=2)
    assert isinstance(last(consumed(spent(60)), at_cap), RunCompleted)
    decision = run.decide(consumed(spent(61)), at_cap, NOW)
    assert kinds(decision.events) == ["turn.completed", "run.failed"]
    assert problem(consumed(spent(61)), at_cap).code == "RESOURCE_LIMIT"


def test_the_calls_of_a_turn_that_reaches_the_cap_do_not_run() -> None:
    asking = answer(Turn(tool_calls=(call(),), usage=spent(40)), step=2)
    assert kinds(run.decide(consumed(spent(60)), asking, NOW).events) == ["turn.completed", "run.failed"]
    assert problem(consumed(spent(60)), asking).code == "RESOURCE_LIMIT"


def test_all_budgets_bind_together() -> None:
    state = consumed({"inputTokens": 1, "outputTokens": 1, "costUsd": 0.4}, limits=(TOKENS, COST))
    dear = answer(Turn(text="hi", usage={"inputTokens": 1, "outputTokens": 1, "costUsd": 0.2}), step=2)
    assert problem(state, dear).code == "RESOURCE_LIMIT"
    silent = answer(Turn(text="hi", usage={"inputTokens": 1, "outputTokens": 1}), step=2)
    assert problem(state, silent).code == "RESOURCE_USAGE_UNKNOWN"


@pytest.mark.parametrize(("used", "most"), [((), 100), ((spent(30),), 70), ((spent(60), spent(39)), 1)])
def test_what_is_left_of_a_budget_caps_what_the_model_may_put_out(used: tuple[dict[str, Any], ...], most: int) -> None:
    effect = run.next_effect(consumed(*used))
    assert isinstance(effect, run.CallModel)
    assert effect.request.max_output_tokens == most


def test_a_budget_never_raises_what_the_model_may_put_out() -> None:
    for limits in ((), (COST,), (Budget(max_tokens=10**6),)):
        effect = run.next_effect(consumed(limits=limits))
        assert isinstance(effect, run.CallModel)
        assert effect.request.max_output_tokens == 100
