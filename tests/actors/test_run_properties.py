"""The run, whatever it is asked in whatever order; and its feed, which every client must be able to read."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from actors import codec, kinds, run, upkeep
from actors.budgets import Budget
from actors.decider import Receipt
from actors.errors import Problem
from actors.events import (
    KeyBurned,
    KeyReserved,
    RunAccepted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunErased,
    RunEvent,
    RunFailed,
    RunHandedOver,
    RunStarted,
)
from actors.ports import ToolCall, Turn
from projections import wire_feed
from tests.actors.runs import ARTIFACT, NOW, RUN_ID, accept, document, event_of, folded, framed, items_of_log
from tests.host_rules import host_rules

TERMINAL = RunCompleted | RunFailed | RunCancelled
FAKE_FRAME = "\n\nid: 9\nevent: run.completed\ndata: {}\n\n"
LINE_ENDS = ("\r", "\n", "\r\n", "\u2028", "\u2029", "\u0085", "\u0000", "\ufeff", FAKE_FRAME)

quick = settings(max_examples=40)

texts = st.text(max_size=20) | st.lists(st.sampled_from([*LINE_ENDS, "a", '"', "\\", "é", "𝄞"]), max_size=6).map(
    "".join
)
counts = st.sampled_from([0, 3, 4.0, 2**53, -1, 1.5, True, None, "3"])
reports = st.none() | st.dictionaries(
    st.sampled_from(["inputTokens", "cachedInputTokens", "outputTokens", "reasoningTokens", "costUsd", "other"]), counts
)
calls = st.lists(st.builds(ToolCall, texts, texts, st.sampled_from([Raw(b"{}"), Raw(b'{"a":1.0}')])), max_size=2)
turns = st.builds(
    Turn,
    text=texts | st.sampled_from(["{}", '{"a":1}', "null"]),
    tool_calls=st.just(()) | calls.map(tuple),
    usage=reports,
    native=st.none() | st.sampled_from([Raw(b'{"state":[1.0,{}]}'), Raw(b"null")]),
    finish_reason=st.sampled_from(["stop", "length"]),
)
problems = st.builds(Problem, st.sampled_from(["CANCELLED", "RATE_LIMITED"]), texts, st.booleans())
steps = st.integers(0, 3)
causes: st.SearchStrategy[Any] = st.sampled_from(
    ["asked", "client", "node", "idle", "buffer", "shutdown", "overflow", "history", "deleted", "rule"]
)
budgets = st.sampled_from([(), (Budget(max_tokens=10),), (Budget(max_cost_usd=0.5, unknown_usage="allow"),)])
REQUESTS: Sequence[dict[str, Any]] = (
    {},
    {"outputSchema": {"type": "object"}},
    {"history": [{"role": "user", "content": FAKE_FRAME}], "instructions": "\u2028"},
    {"metadata": {"a": "\r"}},
)


def accepting(members: dict[str, Any], keys: Sequence[str]) -> st.SearchStrategy[run.Accept]:
    """Acceptances of one request, of any origin and under any of *keys*."""
    usual = accept(**members)
    origins: st.SearchStrategy[Any] = st.sampled_from(["foreground", "foreground", "job", "host"])
    return st.builds(
        lambda admitted, key, origin, limits: replace(
            usual, admitted=admitted, fingerprint=key, origin=origin, budgets=limits
        ),
        st.booleans(),
        st.sampled_from(keys),
        origins,
        budgets,
    )


def commands(members: dict[str, Any]) -> st.SearchStrategy[run.Command]:
    return st.one_of(
        accepting(members, ["", "aa", "bb"]),
        st.builds(run.ReserveKey, st.just("ann"), st.sampled_from(["aa", "bb"]), st.just(RUN_ID)),
        st.just(run.BurnKey()),
        st.just(run.Start()),
        st.builds(run.EnterStep, steps),
        st.builds(run.Answer, steps, turns, st.just(False), st.just(ARTIFACT)),
        st.builds(run.Fail, problems, causes),
        st.builds(run.Cancel, problems, causes),
        st.just(run.TakeOver("n2")),
        st.just(run.HandOver("n1")),
    )


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], list[run.Command]]:
    """A request, and commands in any order, mostly one that can go somewhere."""
    members = draw(st.sampled_from(REQUESTS))
    garbage = st.lists(commands(members), max_size=6)
    usual: list[run.Command] = [
        draw(accepting(members, ["", "aa"])),
        run.Start(),
        run.EnterStep(1),
        run.Answer(1, draw(turns), streamed=False, artifact_id=ARTIFACT),
    ]
    reached = draw(st.integers(0, len(usual)))
    return members, [*usual[:reached], *draw(garbage)]


def told(story: Sequence[run.Command]) -> tuple[list[RunEvent], list[run.State]]:
    """The log that *story* makes, and the state after each command."""
    log: list[RunEvent] = []
    states: list[run.State] = [run.New()]
    for number, command in enumerate(story):
        decision = run.decide(states[-1], command, NOW + number)
        log.extend(decision.events)
        states.append(folded(decision.events, states[-1]))
    return log, states


@quick
@given(stories())
def test_a_log_ends_at_most_once_and_nothing_follows_its_end(story: tuple[Any, list[run.Command]]) -> None:
    log, _ = told(story[1])
    assert [isinstance(event, TERMINAL) for event in log[:-1]].count(True) == 0


@quick
@given(stories())
def test_a_replayed_log_gives_the_same_state_effect_and_standing(story: tuple[Any, list[run.Command]]) -> None:
    log, states = told(story[1])
    again = folded(codec.decode_run(codec.encode(event)) for event in log)
    assert again == states[-1]
    assert run.next_effect(again) == run.next_effect(states[-1])
    assert upkeep.standing(again) == upkeep.standing(states[-1])


@quick
@given(stories())
def test_every_reachable_state_comes_back_from_its_snapshot(story: tuple[Any, list[run.Command]]) -> None:
    for state in told(story[1])[1]:
        again = kinds.RUN.thaw(kinds.RUN.freeze(state))
        assert again == state
        assert run.next_effect(again) == run.next_effect(state)


@quick
@given(stories())
def test_a_command_that_comes_again_at_once_changes_nothing(story: tuple[Any, list[run.Command]]) -> None:
    for command, (_, after) in zip(story[1], pairwise(told(story[1])[1]), strict=True):
        assert not run.decide(after, command, NOW).events or isinstance(command, run.TakeOver)


@quick
@given(stories(), st.data())
def test_the_fold_takes_any_event_in_any_state(story: tuple[Any, list[run.Command]], data: st.DataObject) -> None:
    log, states = told(story[1])
    beside: list[RunEvent] = [RunErased(NOW, "ann"), KeyReserved(NOW, "ann", "aa", RUN_ID), KeyBurned(NOW)]
    state = run.evolve(data.draw(st.sampled_from(states)), data.draw(st.sampled_from([*log, *beside])))
    assert run.next_effect(state) is None or isinstance(state, run.Live)
    assert run.decide(state, run.BurnKey(), NOW).events in ([], [KeyBurned(NOW)])


@quick
@given(stories())
def test_a_job_that_ends_by_a_loss_is_interrupted_and_by_nothing_else(story: tuple[Any, list[run.Command]]) -> None:
    log, _ = told(story[1])
    if log and isinstance(log[0], RunAccepted) and log[0].origin == "job" and isinstance(log[-1], TERMINAL):
        lost = not isinstance(log[-1], RunCompleted) and log[-1].cause in run.LOSSES
        interrupted = isinstance(log[-1], RunFailed) and log[-1].problem == run.INTERRUPTED
        assert lost == interrupted


@quick
@given(stories())
def test_what_is_shown_begins_once_and_of_a_job_only_when_it_was_taken_up_or_is_over(
    story: tuple[Any, list[run.Command]],
) -> None:
    log, states = told(story[1])
    begun = [wire_feed.event_type(item) == b"run.started" for item in items_of_log(log)]
    assert begun == [number == 0 for number in range(len(begun))]
    if log and isinstance(log[0], RunAccepted):
        taken_up = any(isinstance(event, RunStarted) for event in log)
        assert bool(begun) == (log[0].origin != "job" or taken_up or isinstance(states[-1], run.Ended))


@quick
@given(stories())
def test_a_run_is_let_go_between_effects_only_and_until_somebody_claims_it(
    story: tuple[Any, list[run.Command]],
) -> None:
    log, states = told(story[1])
    for command, (before, after) in zip(story[1], pairwise(states), strict=True):
        given_up = isinstance(command, run.HandOver) and after != before
        assert given_up == (isinstance(command, run.HandOver) and run.may_hand_over(before))
    hands = [event for event in log if isinstance(event, RunHandedOver | RunClaimed)]
    if isinstance(states[-1], run.Live):
        assert upkeep.standing(states[-1]).released == bool(hands and isinstance(hands[-1], RunHandedOver))


@quick
@given(stories())
def test_a_key_belongs_to_whoever_was_first_whatever_became_of_that(story: tuple[Any, list[run.Command]]) -> None:
    log, states = told(story[1])
    if log and isinstance(log[0], RunAccepted | KeyReserved):
        state, first = states[-1], log[0].fingerprint
        for key in ("aa", "bb"):
            decision = run.decide(state, run.ReserveKey("ann", key, RUN_ID), NOW)
            assert not decision.events
            assert isinstance(decision.answer, Receipt) == (key == first)
        epitaph = upkeep.epitaph(state, NOW)
        assert bool(epitaph) == (isinstance(state, run.Ended) and bool(first))
        if epitaph and isinstance(log[0], RunAccepted):
            assert codec.decode_run(epitaph) == RunErased(NOW, "ann", log[0].origin, first)


@quick
@given(stories(), st.lists(texts.filter(bool), max_size=4))
def test_the_feed_of_any_log_is_one_that_a_host_may_send(
    story: tuple[dict[str, Any], list[run.Command]], pieces: list[str]
) -> None:
    members, commanded = story
    log, states = told(commanded)
    items = _with_text(items_of_log(log), pieces)
    host_rules(framed(items), document(**members), complete=isinstance(states[-1], run.Ended))


@quick
@given(stories())
def test_the_replay_of_any_ended_log_is_one_that_a_host_may_send(
    story: tuple[dict[str, Any], list[run.Command]],
) -> None:
    members, commanded = story
    log, states = told(commanded)
    if isinstance(states[-1], run.Ended):
        host_rules(framed(wire_feed.replayed(RUN_ID, log)), document(**members))


def _with_text(items: list[bytes], pieces: Sequence[str]) -> list[bytes]:
    """*items* with text and progress where a model would have streamed them: right after its step began."""
    shown = [delta for piece in pieces for delta in wire_feed.deltas(RUN_ID, piece, NOW)]
    shown += [wire_feed.progress(RUN_ID, "model", NOW)] if pieces else []
    begun = [number for number, item in enumerate(items, 1) if wire_feed.event_type(item) == b"step.started"]
    return items[: begun[-1]] + shown + items[begun[-1] :] if begun else items


@pytest.mark.parametrize("text", LINE_ENDS)
@pytest.mark.parametrize("place", ["delta", "answer", "problem", "key"])
def test_no_text_breaks_out_of_its_frame(text: str, place: str) -> None:
    said = f"a{text}b"
    schema: dict[str, Any] = {"outputSchema": {}} if place == "key" else {}
    log, states = told([accept(**schema), run.EnterStep(1)])
    if place == "problem":
        log += run.decide(states[-1], run.Fail(Problem("X", said)), NOW).events
    else:
        answer = json.dumps({said: said}, ensure_ascii=False) if place == "key" else said
        turn = run.Answer(1, Turn(text=answer), streamed=place == "delta", artifact_id=ARTIFACT)
        log += run.decide(states[-1], turn, NOW).events
    items = _with_text(items_of_log(log), [said] if place == "delta" else [])
    events = host_rules(framed(items), document(**schema))
    assert len(events) == len(items)
    assert [event["type"] for event in events].count("run.completed") == (place != "problem")
    last: Any = events[-1]
    shown = last["error"]["message"] if place == "problem" else last["result"]["text"]
    assert shown == (json.dumps({said: said}, ensure_ascii=False) if place == "key" else said)
    if place == "key":
        assert last["result"]["output"] == {said: said}


@pytest.mark.parametrize(
    "answer",
    [
        "[9007199254740993,18446744073709551616,1.0,1,0.1,1e2]",
        '{"a":[],"b":{},"c":[[]],"d":[{}]}',
        "-0",
        "-0.0",
        '{"n":1.10,"m":1E400000}',
        "null",
        '"\\ud83d\\ude00"',
    ],
)
def test_structured_output_reaches_the_client_as_the_model_wrote_it(answer: str) -> None:
    log, states = told([accept(outputSchema={}), run.EnterStep(1)])
    log += run.decide(states[-1], run.Answer(1, Turn(text=answer), streamed=False, artifact_id=ARTIFACT), NOW).events
    log = [codec.decode_run(codec.encode(event)) for event in log]
    item = items_of_log(log)[-1]
    if "E400000" in answer:
        assert event_of(item)["error"]["code"] == "INVALID_OUTPUT"
        return
    assert isinstance(log[-1], RunCompleted)
    assert log[-1].output is not UNSET
    assert bytes(log[-1].output) == answer.encode()
    assert b'"output":' + answer.encode() in wire_feed.numbered(1, item)


@given(texts, st.integers(0, 4_102_444_800_000), st.integers(1, 2**53))
def test_the_number_of_an_item_lies_in_its_hole(text: str, at_ms: int, number: int) -> None:
    (item,) = wire_feed.deltas(RUN_ID, text or "a", at_ms)
    event = event_of(item, number)
    assert (event["sequence"], event["text"], event["runId"]) == (number, text or "a", RUN_ID)
    assert msgspec.json.decode(wire_feed.frame(number, item).split(b"\ndata: ")[1]) == event
