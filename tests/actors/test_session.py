"""The session by example: what it may be asked, and what its turns do to it (sessions §3, §4, §5)."""

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import calls, codec, companions, kinds, run, session
from actors.decider import Receipt, Refusal
from actors.errors import Problem
from actors.events import (
    RunCancelled,
    RunCompleted,
    RunFailed,
    SessionCreated,
    SessionDeleted,
    SessionMode,
    SessionTurn,
    ToolCalled,
    ToolCompleted,
    TurnCommitted,
    TurnCompleted,
    TurnReleased,
    TurnReserved,
    Visible,
)
from actors.ports import Turn
from tests.actors.reviewing import HOST, accepted, call, proposing
from tests.actors.runs import (
    ARTIFACT,
    LIMITS,
    NOW,
    RUN_ID,
    SESSION,
    Talk,
    counted,
    messages_of,
    turn_accept,
)

NEXT_RUN = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c11"
CANCEL = run.Cancel(Problem("CANCELLED", "x"))
DELETE = run.Cancel(session.DELETED, "deleted")
HELLO = (Visible("user", "hello"), Visible("assistant", "hi"))
TEXTS = ["", "plain", 'quo"te\\', "line\nend\t\u0001\u007f", "é€𝄞", "\u2028</script>"]


def code(problem: object) -> str:
    assert isinstance(problem, Problem)
    return problem.code


def answer(text: str = "hi", step: int = 1, **members: Any) -> run.Answer:
    return run.Answer(step, Turn(text=text, **members), streamed=False, artifact_id=ARTIFACT)


def begun(mode: SessionMode = "history", *, entered: bool = True, **members: Any) -> Talk:
    """A session whose first turn runs, and has asked its model if *entered*."""
    talk = Talk(mode)
    talk.begin(turn_accept(**members))
    if entered:
        talk.tell_run(run.EnterStep(1))
    return talk


def continued(talk: Talk, said: str, told: run.Answer, run_id: str = NEXT_RUN) -> Talk:
    """*talk* with one more turn that was answered."""
    talk.begin(turn_accept(revision=talk.open.revision, said=said), run_id)
    talk.tell_run(run.EnterStep(1), run_id)
    talk.tell_run(told, run_id)
    return talk


def end_of(talk: Talk, run_id: str = RUN_ID) -> Problem:
    end = talk.logs[run_id][-1]
    assert isinstance(end, RunFailed | RunCancelled)
    return end.problem


# Begun.


def test_a_session_begins_ready_with_what_was_submitted() -> None:
    talk = Talk(history=HELLO, instructions="")
    assert talk.log == [SessionCreated(NOW, "ann", "fake", "m", "acct", "history", LIMITS.retention_ms, HELLO, "")]
    assert (talk.open.revision, talk.open.updated_ms, talk.open.history) == (0, NOW, HELLO)
    assert talk.due == {"retention": NOW + LIMITS.retention_ms}
    assert session.standing(session.New()).due == {}


def test_a_session_is_begun_once() -> None:
    talk = Talk()
    create = session.Create(subject="bo", provider="x", model="x", account="a", mode="native", limits=LIMITS)
    assert talk.tell(create) == ([], Receipt("already"))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("instructions", [None, "", "Be brief é."])
def test_a_new_session_is_measured_to_the_byte(text: str, instructions: str | None) -> None:
    history = (Visible("user", text), Visible("assistant", text), Visible("user", text))
    shown = [{"role": one.role, "content": one.content} for one in history]
    size = counted(shown, shown, instructions)
    fits = Talk(limits=replace(LIMITS, max_record_bytes=size), history=history, instructions=instructions)
    assert fits.open.size == session.Size(3, 3, size)
    small = replace(LIMITS, max_record_bytes=size - 1)
    assert created(small, *history, instructions=instructions) == Refusal(session.TOO_LARGE)


def created(limits: session.Limits, *history: Visible, instructions: str | None = None) -> Receipt | Refusal:
    """What the sender is told who begins a session within *limits*."""
    command = session.Create(
        subject="ann",
        provider="fake",
        model="m",
        account="acct",
        mode="history",
        history=history,
        instructions=instructions,
        limits=limits,
    )
    return session.decide(session.New(), command, NOW).answer


def test_a_history_of_too_many_messages_or_one_too_long_is_refused() -> None:
    assert created(replace(LIMITS, max_messages=2), *HELLO) == Receipt()
    assert created(replace(LIMITS, max_messages=2), *HELLO, HELLO[0]) == Refusal(session.TOO_LARGE)
    assert created(LIMITS, Visible("user", "x" * 100_000)) == Receipt()
    assert created(LIMITS, Visible("user", "x" * 100_001)) == Refusal(session.TOO_LARGE)
    assert created(LIMITS, Visible("user", "𝄞" * 50_001)) == Refusal(session.TOO_LARGE)


# Found, and reserved.


def test_a_session_is_found_by_its_owner_alone_until_it_expires() -> None:
    talk = Talk()
    before, then = talk.open.expires_ms - 1, talk.open.expires_ms
    assert session.found(talk.state, "ann", before) == talk.state
    assert session.found(talk.state, "ann", then) is None
    assert session.found(talk.state, "bo", before) is None
    assert session.found(session.New(), "ann", NOW) is None
    assert session.found(session.Gone(), "ann", NOW) is None


def test_a_running_session_is_found_however_long_its_turn_takes_and_shows_what_was_before() -> None:
    talk = continued(Talk(), "hello", answer())
    talk.begin(turn_accept(revision=1, said="more"))
    assert session.found(talk.state, "ann", NOW + 10**9) == talk.state
    assert (talk.open.history, talk.open.revision) == (HELLO, 1)


def test_reasons_against_a_turn_are_told_in_the_order_of_the_protocol() -> None:
    small = replace(LIMITS, max_record_bytes=1)
    busy, interrupted, ready = begun(), begun(), Talk()
    interrupted.tell_run(CANCEL)
    for talk in (busy, interrupted, ready):
        talk.limits = small
    wrong: dict[str, Any] = {"provider": "other", "continues": False, "revision": 7}
    for talk in (busy, interrupted, ready):
        assert code(talk.turn(**wrong)) == "SESSION_PROVIDER_MISMATCH"
        assert code(talk.turn(**wrong | {"provider": "fake", "model": "n"})) == "SESSION_PROVIDER_MISMATCH"
        assert code(talk.turn(**wrong | {"provider": "fake"})) == "UNSUPPORTED_CONTINUATION"
        assert code(talk.turn(revision=7)) == "SESSION_REVISION_CONFLICT"
    assert code(busy.turn()) == "SESSION_BUSY"
    assert code(interrupted.turn()) == "SESSION_INTERRUPTED"
    assert code(ready.turn()) == "SESSION_CONTEXT_LIMIT"
    ready.limits = LIMITS
    assert isinstance(ready.turn(), SessionTurn)


def test_a_turn_is_reserved_with_the_acceptance_of_its_run_and_stops_the_time_of_the_session() -> None:
    talk = Talk()
    talk.now_ms += 5
    taken = talk.begin(turn_accept(admitted=False))
    assert talk.log[1:] == [TurnReserved(NOW + 5, RUN_ID)]
    assert (taken.version, taken.revision, talk.open.running) == (2, 0, RUN_ID)
    assert (talk.open.updated_ms, talk.due) == (NOW, {})
    assert session.standing(talk.state).due == {}


def test_there_must_be_room_for_two_more_messages() -> None:
    talk = Talk(history=HELLO, limits=replace(LIMITS, max_messages=4))
    assert isinstance(talk.turn(), SessionTurn)
    talk.limits = replace(LIMITS, max_messages=3)
    assert talk.turn() == session.TOO_LARGE


@pytest.mark.parametrize("mode", ["history", "native"])
@pytest.mark.parametrize("text", TEXTS)
def test_the_new_input_must_fit_to_the_byte(mode: SessionMode, text: str) -> None:
    talk = Talk(mode, history=HELLO, instructions=text)
    shown = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    grown = [*shown, {"role": "user", "content": text}]
    size = counted(grown, grown, text)
    talk.limits = replace(LIMITS, max_record_bytes=size)
    assert isinstance(talk.turn(input=text), SessionTurn)
    talk.limits = replace(LIMITS, max_record_bytes=size - 1)
    assert talk.turn(input=text) == session.TOO_LARGE


def test_an_input_longer_than_a_message_may_be_is_refused() -> None:
    assert isinstance(Talk().turn(input="x" * 100_000), SessionTurn)
    assert Talk().turn(input="x" * 100_001) == session.TOO_LARGE


def test_there_must_be_room_for_one_more_message_to_the_model() -> None:
    state = Talk("native").open
    wish = session.Wish(provider="fake", model="m", revision=0, input="", continues=True)
    for messages, fits in ((2_047, True), (2_048, False)):
        full = replace(state, size=replace(state.size, messages=messages))
        assert isinstance(session.turn(SESSION, full, 1, wish, LIMITS), SessionTurn) == fits


# Committed.


@pytest.mark.parametrize("mode", ["history", "native"])
def test_a_completed_run_commits_its_turn_in_the_same_append(mode: SessionMode) -> None:
    talk = begun(mode)
    (written,) = talk.tell_run(answer(), after_ms=30)
    assert isinstance(talk.logs[RUN_ID][-1], RunCompleted)
    committed = codec.decode_session(written.event)
    assert isinstance(committed, TurnCommitted)
    assert (committed.at_ms, committed.run_id, committed.said) == (NOW + 30, RUN_ID, HELLO)
    assert [one.role for one in committed.stored] == (["user", "assistant"] if mode == "native" else [])
    assert (talk.open.revision, talk.open.updated_ms, talk.open.history) == (1, NOW + 30, HELLO)
    assert (talk.open.running, talk.open.interrupted) == ("", False)
    assert talk.due == {"retention": NOW + 30 + LIMITS.retention_ms}
    assert not written.ended


def tooled_turn(talk: Talk, text: str, native: bytes) -> None:
    """A turn of *talk* whose model uses a tool before it answers."""
    talk.begin(accepted(HOST, approvals=None, session={"id": SESSION, "revision": talk.open.revision}))
    talk.tell_run(run.EnterStep(1))
    first = Turn(text=text, tool_calls=(call("host"),), native=Raw(native))
    talk.tell_run(run.Answer(1, first, streamed=True, artifact_id=ARTIFACT))
    talk.tell_run(calls.BeginTool())
    talk.tell_run(calls.Return("c1", Raw(json.dumps({"out": text}, ensure_ascii=False).encode())))


@pytest.mark.parametrize("mode", ["history", "native"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_step_and_a_commit_are_measured_to_the_byte(mode: SessionMode, text: str) -> None:
    def at(limit: int) -> Talk:
        talk = Talk(mode, instructions=text)
        talk.limits = replace(LIMITS, max_record_bytes=limit)
        tooled_turn(talk, text, b'{"state":[1,{}]}')
        return talk

    talk = at(10**6)
    asked = [{"role": "user", "content": "hello"}]
    step = counted(asked, messages_of(talk.logs[RUN_ID]), text)
    for limit, problem in ((step, None), (step - 1, session.TOO_LARGE)):
        other = at(limit)
        other.tell_run(run.EnterStep(2))
        found = other.runs[RUN_ID]
        assert isinstance(found, run.Live if problem is None else run.Ended)
        assert problem is None or (end_of(other), other.open.interrupted) == (problem, True)
    talk.tell_run(run.EnterStep(2))
    talk.tell_run(answer(text, 2, native=Raw(b"[]")))
    shown = [*asked, {"role": "assistant", "content": text}]
    size = counted(shown, messages_of(talk.logs[RUN_ID]) if mode == "native" else shown, text)
    assert talk.open.size.record_bytes == size
    taken = replace(talk_turn(talk), record_bytes_max=size)
    said = tuple(one for one in talk.logs[RUN_ID] if isinstance(one, TurnCompleted | ToolCompleted))
    assert session.refusal_of_commit(taken, "hello", said) is None
    assert session.refusal_of_commit(replace(taken, record_bytes_max=size - 1), "hello", said) == session.TOO_LARGE


def talk_turn(talk: Talk, run_id: str = RUN_ID) -> SessionTurn:
    """What the run found that was a turn of *talk*."""
    state = talk.runs[run_id]
    assert isinstance(state, run.Live | run.Ended)
    assert state.accepted.session is not None
    return state.accepted.session


def test_more_messages_than_a_model_may_be_told_end_the_turn_before_its_next_step() -> None:
    taken = replace(talk_turn(begun("native")), messages=2_047)
    assert session.refusal_of_step(taken, "hello", ()) is None
    assert session.refusal_of_step(replace(taken, messages=2_048), "hello", ()) == session.TOO_LARGE


def test_an_answer_that_does_not_fit_ends_the_run_and_interrupts_the_session() -> None:
    talk = begun()
    (written,) = talk.tell_run(answer("x" * 100_001), after_ms=3)
    assert end_of(talk) == session.TOO_LARGE
    assert codec.decode_session(written.event) == TurnReleased(NOW + 3, RUN_ID, interrupted=True)
    assert (talk.open.revision, talk.open.history, talk.open.interrupted) == (0, (), True)


def test_a_commit_is_never_before_the_last_change_whoevers_clock_wrote_that() -> None:
    talk = continued(Talk(), "hello", answer())
    talk.now_ms += 50
    late = continued(talk, "more", answer(), RUN_ID).open.updated_ms
    talk.begin(turn_accept(revision=2))
    talk.tell_run(run.EnterStep(1))
    talk.now_ms = late - 20
    talk.tell_run(answer())
    assert talk.open.updated_ms == late
    assert talk.due == {"retention": late + LIMITS.retention_ms}


# Released.

ENDS: list[run.Command] = [
    CANCEL,
    run.Fail(Problem("X", "x")),
    run.Fail(Problem("X", "x"), "client"),
    run.TakeOver("n2"),
]


@pytest.mark.parametrize("command", ENDS)
@pytest.mark.parametrize("admitted", [True, False])
def test_a_turn_that_ends_before_its_model_was_asked_leaves_the_session_ready(
    command: run.Command, *, admitted: bool
) -> None:
    talk = begun(entered=False, admitted=admitted)
    (written,) = talk.tell_run(command, after_ms=4)
    assert codec.decode_session(written.event) == TurnReleased(NOW + 4, RUN_ID)
    assert (talk.open.revision, talk.open.running, talk.open.interrupted) == (0, "", False)
    assert talk.due == {"retention": NOW + 4 + LIMITS.retention_ms}
    assert isinstance(talk.turn(), SessionTurn)


@pytest.mark.parametrize("command", [*ENDS, run.overflow("OPERATION_RECORD_LIMIT"), answer("no json")])
def test_a_turn_that_fails_after_its_model_was_asked_interrupts_the_session(command: run.Command) -> None:
    talk = begun(outputSchema={"type": "object"})
    (written,) = talk.tell_run(command, after_ms=4)
    assert codec.decode_session(written.event) == TurnReleased(NOW + 4, RUN_ID, interrupted=True)
    assert (talk.open.revision, talk.open.history, talk.open.running) == (0, (), "")
    assert talk.due == {"retention": NOW + 4 + LIMITS.retention_ms}
    assert code(talk.turn()) == "SESSION_INTERRUPTED"


def test_an_interrupted_session_never_becomes_ready_again() -> None:
    talk = begun()
    talk.tell_run(CANCEL)
    again = session.evolve(talk.state, TurnReleased(NOW + 1, NEXT_RUN))
    assert isinstance(again, session.Open)
    assert again.interrupted


def test_a_new_turn_may_begin_once_the_last_was_cancelled_and_what_comes_late_of_that_changes_nothing() -> None:
    talk = begun(entered=False)
    talk.tell_run(CANCEL)
    talk.begin(turn_accept(), NEXT_RUN)
    for late in (run.EnterStep(1), answer(), CANCEL, DELETE, run.TakeOver("n2")):
        assert talk.tell_run(late) == []
    assert talk.open.running == NEXT_RUN
    talk.tell_run(run.EnterStep(1), NEXT_RUN)
    talk.tell_run(answer(), NEXT_RUN)
    assert talk.open.revision == 1


# Deleted, and forgotten.


def test_a_session_that_runs_nothing_is_deleted_and_its_payload_goes_in_the_same_step() -> None:
    interrupted = begun()
    interrupted.tell_run(CANCEL)
    for talk in (Talk(), interrupted):
        assert talk.tell(session.Delete()) == ([SessionDeleted(NOW)], Receipt())
        standing = session.standing(talk.state)
        assert (standing.ended, standing.erased) == (True, True)
        assert set(talk.due) == {"permit"}
        assert talk.tell(session.Delete()) == ([], Receipt("already"))


def test_a_running_session_is_deleted_through_its_run_alone() -> None:
    talk = begun()
    refused = talk.tell(session.Delete()).answer
    assert isinstance(refused, Refusal)
    assert code(refused.problem) == "SESSION_BUSY"
    (written,) = talk.tell_run(DELETE, after_ms=2)
    assert end_of(talk) == session.DELETED
    assert (codec.decode_session(written.event), written.ended, written.erased) == (SessionDeleted(NOW + 2), True, True)
    assert talk.due == {"permit": NOW + 2}
    assert talk.state == session.Gone()


def test_a_deletion_while_a_tool_is_pending_leaves_its_outcome_uncertain() -> None:
    talk = Talk()
    talk.begin(accepted(HOST, approvals=None, session={"id": SESSION, "revision": 0}))
    for command in (run.EnterStep(1), proposing(call("host")), calls.BeginTool(), DELETE):
        talk.tell_run(command)
    assert isinstance(talk.logs[RUN_ID][-1], RunCancelled)
    assert (end_of(talk).code, end_of(talk).outcome) == ("TOOL_OUTCOME_UNCERTAIN", "uncertain")
    assert talk.state == session.Gone()


def test_nothing_that_comes_late_brings_a_deleted_session_back() -> None:
    talk = begun()
    talk.tell_run(DELETE)
    for late in (answer(), CANCEL, run.TakeOver("n2"), DELETE):
        assert talk.tell_run(late) == []
    for event in (
        TurnReserved(NOW, RUN_ID),
        TurnCommitted(NOW, RUN_ID, HELLO),
        TurnReleased(NOW, RUN_ID),
        SessionDeleted(NOW),
    ):
        assert session.evolve(talk.state, event) == session.Gone()
        assert session.evolve(session.New(), event) == (
            session.Gone() if isinstance(event, SessionDeleted) else session.New()
        )


def test_a_session_is_forgotten_when_its_time_is_over_and_not_before() -> None:
    talk = Talk()
    assert talk.tell(session.Expire(), after_ms=LIMITS.retention_ms - 1) == ([], Receipt("already"))
    assert talk.tell(session.Expire(), after_ms=1).events == [SessionDeleted(talk.now_ms, expired=True)]
    assert talk.state == session.Gone()


def test_a_session_is_not_forgotten_while_a_turn_runs() -> None:
    talk = begun()
    assert talk.tell(session.Expire(), after_ms=10 * LIMITS.retention_ms) == ([], Receipt("already"))
    talk.tell_run(answer())
    assert talk.tell(session.Expire()) == ([], Receipt("already"))


@pytest.mark.parametrize("command", [session.Delete(), session.Expire()])
def test_what_does_not_exist_is_not_deleted(command: session.Command) -> None:
    assert session.decide(session.New(), command, NOW) == ([], Receipt("already"))


# What a next turn finds.


def test_calls_of_earlier_turns_are_reserved_where_a_model_is_told_them_again() -> None:
    modes: list[tuple[SessionMode, bool]] = [("native", True), ("history", False)]
    for mode, refused in modes:
        talk = Talk(mode)
        tooled_turn(talk, "so", b"{}")
        talk.tell_run(run.EnterStep(2))
        talk.tell_run(answer(step=2))
        talk.begin(accepted(HOST, approvals=None, session={"id": SESSION, "revision": 1}), NEXT_RUN)
        assert talk_turn(talk, NEXT_RUN).used == (("c1",) if refused else ())
        talk.tell_run(run.EnterStep(1), NEXT_RUN)
        talk.tell_run(proposing(call("host", "c2"), call("host", "c1")), NEXT_RUN)
        assert isinstance(talk.runs[NEXT_RUN], run.Ended) == refused
        if refused:
            assert end_of(talk, NEXT_RUN).code == "INVALID_TOOL_CALL"
            assert not any(isinstance(event, ToolCalled) for event in talk.logs[NEXT_RUN])


def test_a_session_counts_in_the_pool_of_sessions_and_comes_back_from_its_snapshot() -> None:
    talk = continued(Talk("native", history=HELLO), "more", answer(native=Raw(b'{"n":1.0}')))
    assert companions.pool_of([codec.encode(talk.log[0])]) == companions.SESSIONS_POOL
    for state in (session.New(), talk.state, begun().state, session.Gone()):
        assert kinds.SESSION.thaw(kinds.SESSION.freeze(state)) == state


def test_a_session_whose_next_record_would_be_too_large_is_given_up() -> None:
    assert kinds.SESSION.overflow("X") == session.Delete()
    assert not kinds.SESSION.is_slow(session.New(), session.Delete())
    assert kinds.SESSION.feed_max(session.New()) == 0
    assert kinds.SESSION.epitaph(session.Gone(), NOW) == b""
    assert list(kinds.SESSION.companions(SESSION, session.New(), SessionDeleted(NOW), session.Gone())) == []
