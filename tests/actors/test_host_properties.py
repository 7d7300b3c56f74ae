"""Host runs, whatever they are told in whatever order, and any run as the Host sees it."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors import by_hand, calls, codec, kinds, run, upkeep
from actors.decider import Decision, Refusal
from actors.errors import Problem
from actors.events import (
    HostContext,
    HostRun,
    RunEvent,
    RunFailed,
    RunResumed,
    TicketOffered,
    ToolCalled,
    ToolStarted,
    TurnCompleted,
)
from api.host import encoding
from api.host.requests import ListEvents
from api.host.service import page_of
from projections import host_feed, wire_feed
from projections.views import host_view
from tests.actors import test_call_properties, test_run_properties
from tests.actors.reviewing import FACTS, accepted, wanted
from tests.actors.runs import NOW, document, folded, framed, items_of_log
from tests.actors.test_call_properties import _any, _Fresh, _right
from tests.host_client import body_taken, page_taken
from tests.host_rules import host_rules

quick = settings(max_examples=30)
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "host-lifecycle.json").read_text(encoding="utf-8"))
NAME = "run-1"
PROTECTED = {tool.name for tool in FACTS if tool.requires_approval}


class Told(NamedTuple):
    """A story: the log and the states that came of it, and each command with what it caused and the state before."""

    log: list[RunEvent]
    states: list[run.State]
    decisions: list[tuple[run.State, run.Command, int, Decision]]


def _by_hand(draw: st.DrawFn, state: run.State, fresh: _Fresh) -> run.Command:
    """A Host command, right or wrong in its revision and its approval."""
    revision = state.revision if isinstance(state, run.Live | run.Ended) else 1
    expected = draw(st.sampled_from([revision, revision, revision, revision - 1, revision + 1]))
    current = state.open.approval_id if isinstance(state, run.Live) and state.open is not None else ""
    claimed = state.resumed if isinstance(state, run.Live) else ""
    approval_id = draw(st.sampled_from([current, current, claimed, claimed, fresh.some(draw)]))
    outcome: Any = draw(st.sampled_from(["approved", "approved", "denied"]))
    commands: list[run.Command] = [
        by_hand.Resolve(expected=expected, approval_id=approval_id, outcome=outcome, by="ann", reason="so"),
        by_hand.Resolve(expected=expected, approval_id=approval_id, outcome=outcome, by="ann", awaits_audit=True),
        by_hand.Resume(expected, approval_id, "ann"),
        by_hand.Resume(expected, approval_id, "ann", Raw(b"1")),
        by_hand.TimeOut(),
    ]
    if not draw(st.integers(0, 5)):
        return by_hand.Cancel(expected, draw(st.sampled_from(["", "enough"])))
    return draw(st.sampled_from(commands))


def _carrying_on(draw: st.DrawFn, state: run.State, fresh: _Fresh) -> run.Command:
    """What whoever is asked would say now."""
    waits = isinstance(run.next_effect(state), calls.Wait)
    if isinstance(state, run.Live) and waits and state.open is not None and by_hand.is_by_hand(state):
        if state.open.stage == "reviewed":
            return by_hand.Resolve(
                expected=state.revision, approval_id=state.open.approval_id, outcome="approved", by="ann"
            )
        if state.open.stage == "approved":
            return by_hand.Resume(state.revision, state.open.approval_id, "ann")
    return _right(draw, state, fresh)


@st.composite
def stories(draw: st.DrawFn) -> Told:
    """A Host run that is told mostly what carries it on."""
    fresh, now_ms = _Fresh(), NOW
    deadline_ms = draw(st.sampled_from([None, None, None, NOW + 60]))
    problem = draw(st.sampled_from([None] * 7 + [Problem("INVALID_REQUEST", "no")]))
    host = HostRun(HostContext(NAME, deadline_ms=deadline_ms), Raw(b"{}"), {"team": "a"}, problem)
    begin = replace(accepted(*FACTS, approvals=None, origin="host"), host=host)
    told = Told([], [run.New()], [])
    for number in (-2, -1, *draw(st.lists(st.integers(0, 7), max_size=25))):
        now_ms += draw(st.sampled_from([0, 0, 0, 1, 20]))
        before = told.states[-1]
        match number:
            case -2:
                command: run.Command = begin
            case -1:
                command = run.TakeOver("n1")
            case 0:
                command = _any(draw, fresh)
            case 1 | 2:
                command = _by_hand(draw, before, fresh)
            case _:
                command = _carrying_on(draw, before, fresh)
        decision = run.decide(before, command, now_ms)
        told.decisions.append((before, command, now_ms, decision))
        told.log.extend(decision.events)
        told.states.append(folded(decision.events, before))
    return told


any_log: st.SearchStrategy[list[RunEvent]] = st.one_of(
    stories().map(lambda told: told.log),
    test_call_properties.stories().map(lambda told: told.log),
    test_run_properties.stories().map(lambda story: test_run_properties.told(story[1])[0]),
)


@settings(max_examples=50)
@given(any_log, st.integers(0, 12), st.integers(1, 5))
def test_the_pages_of_any_log_keep_every_invariant_and_together_are_the_log(
    log: list[RunEvent], after: int, limit: int
) -> None:
    _, events = host_feed.whole(NAME, log)
    state = folded(log)
    revision = state.revision if isinstance(state, run.Live | run.Ended) else 0
    assert [event.sequence for event in events] == list(range(1, revision + 1))
    seen: list[int] = []
    cursor, more = after, True
    while more:
        asked = ListEvents(NAME, cursor, limit)
        page = page_of(events, asked)
        told = encoding.told(page, asked)
        page_taken(told)
        seen += [event["sequence"] for event in told["events"]]
        cursor, more = told["nextSequence"], told["hasMore"]
    assert seen == list(range(after + 1, revision + 1))


@settings(max_examples=50)
@given(any_log)
def test_the_view_of_any_log_is_one_that_a_client_takes_and_agrees_with_the_run(log: list[RunEvent]) -> None:
    feed, events = host_feed.whole(NAME, log)
    view, state = host_view(feed), folded(log)
    if not isinstance(state, run.Live | run.Ended):
        assert view is None
        return
    assert view is not None
    body_taken("get_run", encoding.told(view, None))
    ended = isinstance(state, run.Ended)
    assert view.status == (state.status if isinstance(state, run.Ended) else by_hand.status(state))
    assert view.status == events[-1].status
    assert (view.completed_ms is not None) == ended
    if ended:
        assert view.approval is None
    if view.status == "waiting_for_approval":
        assert view.approval is not None
    if view.approval is not None and not view.approval.approved:
        assert view.status == "waiting_for_approval"


@settings(max_examples=50)
@given(any_log)
def test_the_status_of_any_run_changes_only_as_the_protocol_allows(log: list[RunEvent]) -> None:
    statuses = [event.status for event in host_feed.whole(NAME, log)[1]]
    for before, after in pairwise(statuses):
        assert after in VECTORS["allowedTransitions"][before]
    assert not statuses or statuses[0] == "created"


@quick
@given(any_log)
def test_a_host_event_holds_nothing_of_what_is_private(log: list[RunEvent]) -> None:
    shown = b"".join(encoding.compact(encoding.event(event)) for event in host_feed.whole(NAME, log)[1])
    for private in (b'"arguments":', b'"native":', b'"principal":', b'"permit":', b'"input":'):
        assert private not in shown


@quick
@given(stories())
def test_no_call_of_a_host_run_begins_before_the_whole_batch_was_reviewed_and_resumed(story: Told) -> None:
    batch: list[str] = []
    resumed = 0
    for event in story.log:
        if isinstance(event, TurnCompleted):
            batch, resumed = [call.id for call in event.tool_calls if call.name in PROTECTED], 0
        if isinstance(event, RunResumed) and not event.again:
            resumed += 1
        if isinstance(event, ToolCalled | ToolStarted | TicketOffered):
            assert resumed == len(batch)


@quick
@given(stories())
def test_a_host_command_is_carried_out_at_its_revision_alone_and_raises_it_by_one(story: Told) -> None:
    for before, command, now_ms, decision in story.decisions:
        if not isinstance(command, by_hand.Command):
            continue
        if not isinstance(before, run.Live) or command.expected != before.revision:
            assert (list(decision.events), isinstance(decision.answer, Refusal)) == ([], True)
            continue
        after = folded(decision.events, before)
        assert isinstance(after, run.Live | run.Ended)
        settles = isinstance(command, by_hand.Resolve) and command.awaits_audit and not isinstance(after, run.Ended)
        refused = isinstance(decision.answer, Refusal)
        late = by_hand.is_late(before, now_ms) and not isinstance(command, by_hand.Cancel)
        assert after.revision - before.revision == (int(late) if refused else 0 if settles else 1)


@quick
@given(stories())
def test_nothing_of_a_host_run_goes_on_after_its_deadline(story: Told) -> None:
    for before, command, now_ms, decision in story.decisions:
        if isinstance(before, run.Live) and by_hand.is_late(before, now_ms) and decision.events:
            goes_on = isinstance(command, run.EnterStep | run.TakeOver | by_hand.Resolve | by_hand.Resume)
            if goes_on:
                assert decision.events[-1] == RunFailed(now_ms, by_hand.DEADLINE, "deadline")


@quick
@given(stories())
def test_wire_clients_read_a_host_run_like_any_other_and_see_nothing_of_its_reviews(story: Told) -> None:
    items = items_of_log(story.log)
    host_rules(
        framed(items), document(**wanted(*FACTS, approvals=None)), complete=isinstance(story.states[-1], run.Ended)
    )
    assert not any(wire_feed.event_type(item).startswith(b"approval.") for item in items)


@quick
@given(stories())
def test_a_replayed_log_and_a_snapshot_give_the_same_host_run(story: Told) -> None:
    again = folded(codec.decode_run(codec.encode(event)) for event in story.log)
    for other in (again, kinds.RUN.thaw(kinds.RUN.freeze(again))):
        assert other == story.states[-1]
        assert run.next_effect(other) == run.next_effect(story.states[-1])
        assert upkeep.standing(other) == upkeep.standing(story.states[-1])


@quick
@given(stories())
def test_a_host_run_that_waits_needs_no_owner_and_one_that_nobody_took_up_is_looked_for(story: Told) -> None:
    for state in story.states:
        standing = upkeep.standing(state)
        if standing.parked:
            assert isinstance(run.next_effect(state), calls.Wait)
        if isinstance(state, run.Live):
            assert ("work" in standing.due) == (not state.claimed or state.handed_ms > 0)
