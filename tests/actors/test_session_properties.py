"""Sessions and the runs of their turns, whatever they are told in whatever order."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from actors import calls, codec, kinds, run, session
from actors.errors import Problem
from actors.events import (
    EndCause,
    RunAccepted,
    RunCompleted,
    SessionEvent,
    SessionMode,
    SessionTurn,
    Stored,
    ToolCall,
    TurnCommitted,
    TurnReleased,
    TurnReserved,
    Visible,
)
from actors.ports import Turn
from projections import session_view
from tests.actors.reviewing import HOST, accepted, proposing
from tests.actors.runs import ARTIFACT, LIMITS, SESSION, Talk, counted, event_of, items_of_log, messages_of

quick = settings(max_examples=25)

texts = st.text(max_size=12) | st.sampled_from(['"\\', "\u2028\u0085", "\r\n\t\b\f\x00\x7f", "é𝄞", "x" * 300])
modes: st.SearchStrategy[SessionMode] = st.sampled_from(["history", "native"])
visible = st.builds(Visible, st.sampled_from(["user", "assistant"]), texts)
natives = st.sampled_from([None, Raw(b"null"), Raw('{"s":[1,{}],"t":"é"}'.encode())])
limits = st.builds(
    session.Limits,
    retention_ms=st.just(LIMITS.retention_ms),
    max_messages=st.sampled_from([100, 100, 5]),
    max_record_bytes=st.sampled_from([10**6, 10**6, 900]),
)


class Move(NamedTuple):
    """One thing that happens: *kind* says to whom, *choice* what."""

    kind: int
    choice: int
    after_ms: int
    text: str
    native: Raw | None


class Plan(NamedTuple):
    """A session, and what happens to it; it is told in the test, so that drawing it costs little."""

    mode: SessionMode
    history: list[Visible]
    instructions: str | None
    limits: session.Limits
    moves: list[Move]


class Told(NamedTuple):
    """A session, and how it stood after each append, with the runs of all its turns."""

    talk: Talk
    states: list[session.State]
    most: int
    """The most events that one append wrote to it."""


moves = st.builds(
    Move,
    st.integers(0, 15),
    st.integers(0, 47),
    st.sampled_from([0, 0, 1, 40, 10_000, -30]),
    texts,
    natives,
)
plans = st.builds(
    Plan, modes, st.lists(visible, max_size=2), st.none() | texts, limits, st.lists(moves, min_size=6, max_size=24)
)
CAUSES: Sequence[EndCause] = ("asked", "client", "node", "idle", "rule", "overflow", "deleted")
ANY: Sequence[run.Command] = (
    *(run.Cancel(Problem("CANCELLED", "x"), cause) for cause in CAUSES),
    *(run.Fail(Problem("X", "x"), cause) for cause in CAUSES),
    *(run.EnterStep(step) for step in (1, 2, 3)),
    proposing(ToolCall("c1", "host", Raw(b"{}"))),
    run.Answer(1, Turn(text="late"), streamed=False, artifact_id=ARTIFACT),
    run.Start(),
    run.TakeOver("n2"),
    run.HandOver("n1"),
    calls.BeginTool(),
    run.Cancel(session.DELETED, "deleted"),
)


def _usual(move: Move, state: run.State) -> run.Command:
    """What an executor would say now."""
    match run.next_effect(state):
        case run.BeginStep(step):
            return run.EnterStep(step)
        case run.CallModel(step=step):
            proposed = (ToolCall(f"c{move.choice}", "host", Raw(b'{"n":1}')),) if move.choice % 3 == 0 else ()
            turn = Turn(text=move.text, tool_calls=proposed, native=move.native)
            return run.Answer(step, turn, streamed=bool(proposed), artifact_id=ARTIFACT)
        case calls.StartTool():
            return calls.BeginTool()
        case calls.RunTool(call):
            return calls.Return(call.id, Raw(msgspec.json.encode({"out": move.text})))
        case _:
            return run.Start()


def lived(plan: Plan) -> Told:
    """A session whose turns begin, go on and end, while somebody asks it other things, and old runs are told more."""
    talk = Talk(plan.mode, history=tuple(plan.history), instructions=plan.instructions)
    talk.limits = plan.limits
    states, most = [talk.state], 0
    for number, move in enumerate(plan.moves):
        talk.now_ms += move.after_ms
        before = len(talk.log)
        if move.kind == 0 or isinstance(talk.state, session.Gone):
            talk.tell(session.Delete() if move.choice % 2 else session.Expire())
        elif move.kind == 1 and talk.runs:
            talk.tell_run(ANY[move.choice % len(ANY)], sorted(talk.runs)[move.choice % len(talk.runs)])
        elif talk.open.running:
            talk.tell_run(_usual(move, talk.runs[talk.open.running]), talk.open.running)
        else:
            _reserve(talk, move, f"0b6c2a52-{number:04x}-4f7e-9a41-5f2f5f3b7c10")
        most = max(most, len(talk.log) - before)
        states.append(talk.state)
    return Told(talk, states, most)


def _reserve(talk: Talk, move: Move, run_id: str) -> None:
    """Begin a next turn, if it may begin."""
    option = {"id": SESSION, "revision": talk.open.revision}
    command = accepted(HOST, approvals=None, session=option, input=move.text or "a")
    if isinstance(talk.turn(input=command.request.input), SessionTurn):
        talk.begin(msgspec.structs.replace(command, admitted=move.choice % 2 == 0), run_id)


@quick
@given(plans)
def test_an_append_of_a_run_writes_at_most_one_event_to_its_session_and_exactly_where_it_stands(plan: Plan) -> None:
    story = lived(plan)
    # That each stands where it was meant to is what `Talk` demands as a store does.
    assert story.most <= 1


@quick
@given(plans)
def test_the_size_of_a_session_is_what_the_protocol_counts(plan: Plan) -> None:
    story = lived(plan)
    state = story.states[-1]
    if isinstance(state, session.Open):
        shown, told = _record(story.talk, state)
        assert state.size == session.Size(len(shown), len(told), counted(shown, told, state.created.instructions))
        if state.revision:
            assert len(shown) <= story.talk.limits.max_messages
            assert state.size.record_bytes <= story.talk.limits.max_record_bytes


def _record(talk: Talk, state: session.Open) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What a session holds by the logs of its runs: what is shown, and what a model is told."""
    created = [{"role": one.role, "content": one.content} for one in state.created.history]
    shown, told = list(created), list(created)
    for event in talk.log:
        if isinstance(event, TurnCommitted):
            messages = messages_of(talk.logs[event.run_id])
            said = [{"role": one["role"], "content": one["content"]} for one in (messages[0], messages[-1])]
            shown += said
            told += messages if state.created.mode == "native" else said
    return shown, told


@quick
@given(plans)
def test_a_session_is_as_many_revisions_on_as_its_runs_completed(plan: Plan) -> None:
    story = lived(plan)
    completed = [log[-1] for log in story.talk.logs.values() if isinstance(log[-1], RunCompleted)]
    committed = [event for event in story.talk.log if isinstance(event, TurnCommitted)]
    assert len(completed) == len(committed)
    if isinstance(story.states[-1], session.Open):
        assert story.states[-1].revision == len(committed)
        revisions = [state.revision for state in story.states if isinstance(state, session.Open)]
        assert revisions == sorted(revisions)


@quick
@given(plans)
def test_one_turn_runs_at_a_time_and_each_ends_once(plan: Plan) -> None:
    story = lived(plan)
    running = ""
    for event in story.talk.log:
        match event:
            case TurnReserved(run_id=run_id):
                assert not running
                running = run_id
            case TurnCommitted(run_id=run_id) | TurnReleased(run_id=run_id):
                assert run_id == running
                running = ""
            case _:
                pass
    state = story.states[-1]
    live = [run_id for run_id, each in story.talk.runs.items() if isinstance(each, run.Live)]
    assert live == ([state.running] if isinstance(state, session.Open) and state.running else [])


@quick
@given(plans)
def test_what_the_store_was_told_is_due_is_what_the_session_says_is_due(plan: Plan) -> None:
    story = lived(plan)
    due = session.standing(story.states[-1]).due
    assert story.talk.due.get("retention") == due.get("retention")
    assert ("permit" in story.talk.due) == isinstance(story.states[-1], session.Gone)


@quick
@given(plans)
def test_the_result_of_a_turn_shows_the_session_as_it_is_found_from_then_on(plan: Plan) -> None:
    story = lived(plan)
    shown = {
        run_id: event_of(items_of_log(log, run_id)[-1])["result"]["session"]
        for run_id, log in story.talk.logs.items()
        if isinstance(log[-1], RunCompleted)
    }
    state: session.State = session.New()
    for event in story.talk.log:
        state = session.evolve(state, event)
        if isinstance(event, TurnCommitted) and isinstance(state, session.Open):
            assert shown[event.run_id] == msgspec.to_builtins(_info(state))


def _info(state: session.Open) -> session_view.SessionInfo:
    """The session as reading it shows it."""
    return session_view.info(
        SESSION,
        revision=state.revision,
        provider=state.created.provider,
        model=state.created.model,
        mode=state.created.mode,
        state="running" if state.running else "interrupted" if state.interrupted else "ready",
        created_ms=state.created.at_ms,
        updated_ms=state.updated_ms,
        retention_ms=state.created.retention_ms,
    )


@quick
@given(plans)
def test_a_session_is_never_changed_before_it_was_changed_last(plan: Plan) -> None:
    story = lived(plan)
    updated = [state.updated_ms for state in story.states if isinstance(state, session.Open)]
    assert updated == sorted(updated)


@quick
@given(plans)
def test_a_turn_interrupts_its_session_exactly_if_its_model_was_asked_and_gave_no_result(plan: Plan) -> None:
    story = lived(plan)
    for event in story.talk.log:
        if isinstance(event, TurnReleased):
            asked = any(codec.encode(each).startswith(b'{"type":"step.') for each in story.talk.logs[event.run_id])
            assert event.interrupted == asked
    last = story.states[-1]
    if isinstance(last, session.Open):
        assert last.interrupted == any(
            isinstance(event, TurnReleased) and event.interrupted for event in story.talk.log
        )


@quick
@given(plans)
def test_a_stored_session_and_its_snapshot_are_the_same_session(plan: Plan) -> None:
    story = lived(plan)
    state: session.State = session.New()
    for event in story.talk.log:
        state = session.evolve(state, codec.decode_session(codec.encode(event)))
    assert state == story.states[-1]
    assert kinds.SESSION.thaw(kinds.SESSION.freeze(state)) == state


@quick
@given(plans)
def test_a_turn_finds_exactly_what_its_session_held_when_it_was_reserved(plan: Plan) -> None:
    story = lived(plan)
    found = {run_id: log[0] for run_id, log in story.talk.logs.items()}
    state: session.State = session.New()
    for version, event in enumerate(story.talk.log, 1):
        if isinstance(event, TurnReserved) and isinstance(state, session.Open):
            accepted_event = found[event.run_id]
            assert isinstance(accepted_event, RunAccepted)
            turn = accepted_event.session
            assert turn is not None
            size = session.Size(turn.visible, turn.messages, turn.record_bytes)
            assert (turn.version, turn.revision, size) == (version, state.revision, state.size)
            assert turn.used == tuple(call.id for one in state.stored for call in one.tool_calls)
        state = session.evolve(state, event)


stored = st.builds(Stored, st.just("assistant"), texts)
turns: st.SearchStrategy[tuple[Visible, Visible]] = st.tuples(visible, visible)
events: st.SearchStrategy[SessionEvent] = st.one_of(
    st.builds(TurnReserved, st.just(1), st.just("r")),
    st.builds(TurnCommitted, st.just(1), st.just("r"), turns, st.lists(stored, max_size=2).map(tuple)),
    st.builds(TurnReleased, st.just(1), st.just("r"), st.booleans()),
)


@quick
@given(modes, st.none() | texts, st.lists(events, max_size=8))
def test_the_fold_counts_whatever_events_there_are(
    mode: SessionMode, instructions: str | None, log: list[SessionEvent]
) -> None:
    talk = Talk(mode, instructions=instructions)
    state = talk.state
    for event in log:
        state = session.evolve(state, event)
    assert isinstance(state, session.Open)
    shown = [{"role": one.role, "content": one.content} for one in state.history]
    told = shown if mode == "history" else [{"role": one.role, "content": one.content} for one in state.stored]
    assert state.size == session.Size(len(shown), len(told), counted(shown, told, instructions))
