"""A run's log as the wire shows it: numbers, times, sizes and replays."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Problem
from actors.events import (
    EndCause,
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
    SessionTurn,
    StepStarted,
    TurnCompleted,
    timestamp,
)
from projections import wire_feed

RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
ACCEPTED = RunAccepted(1, "ann", "fake", "m", msgspec.Raw(b"{}"))
JOB = RunAccepted(1, "ann", "fake", "m", msgspec.Raw(b"{}"), origin="job")
SESSION = "0b6c2a52-7777-4f7e-9a41-5f2f5f3b7c10"
TURN = SessionTurn(SESSION, 2, 3, "native", 1_000, 2_000, 500)
LOSSES = ["client", "node", "overflow"]


def told(item: bytes, number: int = 1) -> Any:
    return msgspec.json.decode(wire_feed.numbered(number, item))


def shown(*log: RunEvent) -> list[bytes]:
    feed, items = wire_feed.start(RUN_ID), list[bytes]()
    for event in log:
        feed = wire_feed.fold(feed, event)
        items.extend(wire_feed.items(feed, event))
    return items


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_is_written_in_utc_with_milliseconds(at_ms: int) -> None:
    text = timestamp(at_ms)
    read = datetime.fromisoformat(text)
    assert (read - datetime.fromtimestamp(0, UTC)).total_seconds() == pytest.approx(at_ms / 1_000, abs=1e-5)
    assert len(text) == len("2026-01-05T10:00:00.000Z")


def test_what_a_client_need_not_know_shows_nothing() -> None:
    assert len(shown(ACCEPTED, RunStarted(1), RunHandedOver(2, "n1"), RunClaimed(2, "n2"))) == 1
    assert not shown(KeyReserved(1, "ann", "aa", RUN_ID), KeyBurned(2))
    assert not shown(RunErased(1, "ann"))


def test_text_that_was_streamed_is_not_shown_again_and_text_that_was_not_is() -> None:
    assert not shown(TurnCompleted(1, 1, "hi", streamed=True))
    (item,) = shown(TurnCompleted(1, 1, "hi"))
    assert told(item)["text"] == "hi"


def test_an_empty_answer_has_no_delta() -> None:
    assert not shown(TurnCompleted(1, 1, ""))


@given(st.text(alphabet="a\u0001é𝄞\u2028", max_size=40), st.integers(1, 7))
def test_long_text_is_cut_without_loss(text: str, times: int) -> None:
    long = text * 4_000 * times
    items = list(wire_feed.deltas(RUN_ID, long, 1))
    assert "".join(told(item)["text"] for item in items) == long
    assert not any(wire_feed.too_large(wire_feed.start("r"), item) for item in items)


def test_the_worst_delta_is_one_that_any_client_reads() -> None:
    (item,) = wire_feed.deltas(RUN_ID, "\u0001" * wire_feed.DELTA_CHARS_MAX, 1)
    assert len(wire_feed.frame(2**53, item)) < wire_feed.FRAME_BYTES_MAX


@given(st.integers(1, 2**53))
def test_a_frame_names_its_number_and_type(number: int) -> None:
    (item,) = shown(StepStarted(1, 3))
    name, kind, data, *rest = wire_feed.frame(number, item).split(b"\n")
    assert (name, kind, rest) == (b"id: %d" % number, b"event: step.started", [b"", b""])
    assert data == b"data: " + wire_feed.numbered(number, item)


def test_a_frame_at_its_bound_fits_whatever_its_number() -> None:
    (item,) = shown(RunFailed(1, Problem("X", "x")))
    padding = wire_feed.FRAME_BYTES_MAX - wire_feed.FRAME_OVERHEAD_BYTES - len(item)
    (largest,) = shown(RunFailed(1, Problem("X", "x" * (padding + 1))))
    assert not wire_feed.too_large(wire_feed.start("r"), largest)
    assert len(wire_feed.frame(2**53, largest)) <= wire_feed.FRAME_BYTES_MAX
    (larger,) = shown(RunFailed(1, Problem("X", "x" * (padding + 2))))
    assert wire_feed.too_large(wire_feed.start("r"), larger)


@pytest.mark.parametrize("cause", LOSSES)
@pytest.mark.parametrize("end", [RunFailed, RunCancelled])
def test_a_loss_is_replayed_as_uncertain(end: type[RunFailed | RunCancelled], cause: EndCause) -> None:
    items = wire_feed.replayed(RUN_ID, [ACCEPTED, RunStarted(1), end(2, Problem("X", "x"), cause)])
    assert (told(items[-1])["type"], told(items[-1])["error"]["code"]) == ("run.failed", "OPERATION_UNCERTAIN")


def test_a_history_that_was_lost_is_replayed_as_uncertain() -> None:
    items = wire_feed.replayed(RUN_ID, [ACCEPTED, RunStarted(1), RunFailed(2, Problem("X", "x"), "history")])
    assert told(items[-1])["error"]["code"] == "OPERATION_UNCERTAIN"


@pytest.mark.parametrize("cause", ["asked", "idle", "buffer", "shutdown", "deleted", "rule"])
@pytest.mark.parametrize("end", [RunFailed, RunCancelled])
def test_an_end_that_the_client_was_told_is_replayed_as_it_was(
    end: type[RunFailed | RunCancelled], cause: EndCause
) -> None:
    log: list[RunEvent] = [ACCEPTED, RunStarted(1), end(2, Problem("X", "x"), cause)]
    assert wire_feed.replayed(RUN_ID, log) == shown(*log)


def test_a_replay_has_no_text() -> None:
    log: list[RunEvent] = [
        ACCEPTED,
        RunStarted(1),
        StepStarted(1, 1),
        TurnCompleted(1, 1, "hi"),
        RunFailed(2, Problem("X", "x")),
    ]
    assert [wire_feed.event_type(item) for item in wire_feed.replayed(RUN_ID, log)] == [
        b"run.started",
        b"step.started",
        b"run.failed",
    ]


def test_the_projection_comes_back_from_its_snapshot() -> None:
    feed = wire_feed.fold(wire_feed.start(RUN_ID), ACCEPTED)
    assert wire_feed.thaw(msgspec.json.encode(feed)) == feed


def types(*log: RunEvent) -> list[str]:
    return [told(item)["type"] for item in shown(*log)]


def test_a_job_is_shown_from_when_it_is_taken_up() -> None:
    assert types(JOB) == []
    (started,) = shown(JOB, RunStarted(7))
    assert (told(started)["type"], told(started)["timestamp"]) == ("run.started", timestamp(7))
    assert types(JOB, RunStarted(7), RunFailed(8, Problem("X", "x"))) == ["run.started", "run.failed"]


def test_a_run_of_any_other_origin_is_shown_from_its_acceptance() -> None:
    for event in (ACCEPTED, msgspec.structs.replace(ACCEPTED, origin="host")):
        assert types(event, RunCancelled(2, Problem("X", "x"))) == ["run.started", "run.cancelled"]


@pytest.mark.parametrize("end", [RunFailed, RunCancelled])
def test_a_job_that_was_never_taken_up_begins_with_its_end(end: type[RunFailed | RunCancelled]) -> None:
    started, over = shown(JOB, end(9, Problem("X", "x")))
    assert told(started)["type"] == "run.started"
    assert wire_feed.is_terminal(over)
    assert told(started)["timestamp"] == told(over)["timestamp"] == timestamp(9)


def test_an_event_of_a_job_is_never_larger_than_a_page_may_be() -> None:
    feed = wire_feed.fold(wire_feed.start(RUN_ID), JOB)
    room = wire_feed.JOB_EVENT_BYTES_MAX - wire_feed.FRAME_OVERHEAD_BYTES
    assert not wire_feed.too_large(feed, b"x" * room)
    assert wire_feed.too_large(feed, b"x" * (room + 1))
    assert not wire_feed.too_large(wire_feed.fold(wire_feed.start(RUN_ID), ACCEPTED), b"x" * (room + 1))


def test_the_result_of_a_turn_shows_its_session_one_revision_on() -> None:
    accepted = msgspec.structs.replace(ACCEPTED, session=TURN)
    result = told(shown(accepted, RunStarted(1), RunCompleted(3_000, "hi", 1))[-1])["result"]
    assert result["session"] == {
        "id": SESSION,
        "revision": 4,
        "provider": "fake",
        "model": "m",
        "mode": "native",
        "state": "ready",
        "createdAt": timestamp(1_000),
        "updatedAt": timestamp(3_000),
        "expiresAt": timestamp(3_500),
    }


def test_the_result_of_any_other_run_shows_no_session() -> None:
    result = told(shown(ACCEPTED, RunStarted(1), RunCompleted(2, "hi", 1))[-1])["result"]
    assert "session" not in result


def test_a_replayed_turn_shows_the_session_as_it_was_recorded() -> None:
    log: list[RunEvent] = [msgspec.structs.replace(ACCEPTED, session=TURN), RunCompleted(3_000, "hi", 1)]
    assert wire_feed.replayed(RUN_ID, log)[-1] == shown(*log)[-1]


def test_the_projection_of_a_job_or_a_turn_comes_back_from_its_snapshot() -> None:
    for accepted in (JOB, msgspec.structs.replace(ACCEPTED, session=TURN)):
        feed = wire_feed.fold(wire_feed.fold(wire_feed.start(RUN_ID), accepted), RunStarted(1))
        assert wire_feed.thaw(msgspec.json.encode(feed)) == feed
