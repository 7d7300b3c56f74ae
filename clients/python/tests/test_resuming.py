"""A stream goes on where it was cut, on any node, without a gap and without a repeat; or it says that it cannot."""

from typing import Any

import pytest

from runstream_client import ClientError, ConnectionLost, Misuse, Patience, Refused
from runstream_client.conformance.cases import compact, suite
from runstream_client.conformance.peer import Peer, Reply

from .conftest import QUICK, Either
from .telling import REQUEST, RESUMED, RUN, RUN_ID, STARTED, cursor, delta, framed, numbered, refusal, stream

EVENTS = f"/v1/runs/{RUN_ID}/events"
KEYED: Any = RESUMED | {"idempotencyKey": "k-1"}


def asked(peer: Peer) -> list[tuple[str, str, str | None]]:
    return [(one.method, one.path, one.headers.get("last-event-id")) for one in peer.asked]


@pytest.mark.parametrize("whole", range(1, len(RUN)))
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_stream_goes_on_at_another_node_after_each_event(
    either: Either, host: Peer, other: Peer, whole: int, ending: Any
) -> None:
    # What a reset throws away has not come, so the cursor is that of what came.
    host.answering(stream(RUN[:whole], more=framed(RUN)[: whole * 9] if ending == "close" else b"", ending="close"))
    other.answering(stream(RUN[whole:], dated=True))
    with either.client(host.url, other.url) as client:
        told, error = either.read(client.stream(RESUMED))
    assert error is None
    assert [event.raw for event in told] == RUN
    assert asked(other) == [("GET", EVENTS, str(whole))]
    assert other.asked[0].headers["accept"] == "text/event-stream"


def test_a_stream_that_is_cut_again_and_again_goes_on_with_what_was_seen_last(
    either: Either, host: Peer, other: Peer
) -> None:
    host.answering(stream(RUN[:1]), stream(RUN[2:3], dated=True))
    other.answering(stream(RUN[1:2], dated=True), stream(RUN[3:], dated=True))
    with either.client(host.url, other.url) as client:
        reading = client.stream(RESUMED)
        told, error = either.read(reading)
        assert (reading.run_id, reading.cursor) == (RUN_ID, cursor(RUN[3]).decode())
    assert (error, [event.raw for event in told]) == (None, RUN)
    assert asked(other) == [("GET", EVENTS, "1"), ("GET", EVENTS, "3.d3")]
    assert asked(host)[1:] == [("GET", EVENTS, "2.d2")]


def test_an_event_that_was_skipped_counts_for_the_cursor(either: Either, host: Peer) -> None:
    told = numbered(STARTED, {"type": "later", "optional": True}, delta("x"), RUN[-1])
    host.answering(stream(told[:2]), stream(told[2:]))
    with either.client(host.url) as client:
        events, error = either.read(client.stream(RESUMED))
    assert (error, [event.sequence for event in events]) == (None, [1, 3, 4])
    assert asked(host)[1] == ("GET", EVENTS, "2")


@pytest.mark.parametrize("following", [RUN[1:], RUN[3:], RUN[:1]])
def test_a_repeat_or_a_gap_is_no_continuation(either: Either, host: Peer, following: Any) -> None:
    host.answering(stream(RUN[:2]), stream(following))
    with either.client(host.url) as client:
        told, error = either.read(client.stream(RESUMED))
    assert ([event.raw for event in told], error and error.code) == (RUN[:2], "INVALID_STREAM")


def test_a_run_that_is_over_without_an_end_is_a_lie(either: Either, host: Peer) -> None:
    host.answering(stream(RUN[:2]), Reply(status=204))
    with either.client(host.url) as client:
        assert either.read(client.stream(RESUMED))[1].code == "INVALID_STREAM"  # type: ignore[union-attr]


def test_a_run_that_is_followed_from_its_last_event_has_nothing_more_to_tell(either: Either, host: Peer) -> None:
    host.answering(*[Reply(status=204)] * 3)
    with either.client(host.url) as client:
        assert either.read(client.follow(RUN_ID, "4.d4")) == ([], None)
        with pytest.raises(ClientError, match="INCOMPLETE_STREAM: the last event"):
            either.done(client.follow(RUN_ID, "4").result)
        assert either.read(client.follow(RUN_ID))[1].code == "INVALID_STREAM"  # type: ignore[union-attr]


def test_an_answer_without_content_is_no_stream(either: Either, host: Peer) -> None:
    host.answering(Reply(status=204), Reply(status=204))
    with either.client(host.url) as client:
        assert either.read(client.stream(RESUMED))[1].code == "INVALID_RESPONSE"  # type: ignore[union-attr]
        assert either.read(client.stream(REQUEST))[1].code == "INVALID_RESPONSE"  # type: ignore[union-attr]


@pytest.mark.parametrize("odd", ["4\r\nX: y", "4 ", "ä", "4" * 1_001])
def test_a_cursor_that_no_header_can_carry_is_refused(either: Either, host: Peer, odd: str) -> None:
    with either.client(host.url) as client:
        with pytest.raises(Misuse, match="INVALID_CURSOR"):
            client.follow(RUN_ID, odd)
        with pytest.raises(Misuse, match="INVALID_CURSOR"):
            either.done(client.runs.page, RUN_ID, odd)
    assert host.asked == []


def test_a_stream_never_changes_over_to_another_run(either: Either, host: Peer) -> None:
    elsewhere = refusal("OPERATION_IN_PROGRESS", 409, runId="another")
    host.answering(stream(RUN[:2]), elsewhere, stream(RUN[2:]))
    with either.client(host.url) as client:
        told, error = either.read(client.stream(KEYED))
    assert ([event.raw for event in told], error and error.code) == (RUN[:2], "OPERATION_IN_PROGRESS")
    assert asked(host)[1:] == [("GET", EVENTS, "2")]


def test_evidence_without_its_sources_is_none_whoever_asked_for_it(either: Either, host: Peer) -> None:
    evidence = suite("retrieval")["clientResult"]["base"]
    whole = RUN[-1] | {"result": evidence | {"runId": RUN_ID}}
    bare = RUN[-1] | {"result": {**evidence, "runId": RUN_ID, "sources": []}}
    host.answering(stream([whole]), stream([bare]))
    with either.client(host.url) as client:
        assert either.read(client.follow(RUN_ID, "3"))[1] is None
        assert either.read(client.follow(RUN_ID, "3"))[1].code == "INVALID_STREAM"  # type: ignore[union-attr]


def test_refusals_that_may_pass_are_borne_and_others_are_told(either: Either, host: Peer, other: Peer) -> None:
    host.answering(stream(RUN[:2]), refusal("HOST_STARTING", 503), Reply(status=502, pieces=[b"<html>"]))
    other.answering(refusal("HOST_SHUTTING_DOWN", 503), refusal("HISTORY_LOST", 410, outcome="uncertain"))
    with either.client(host.url, other.url) as client:
        told, error = either.read(client.stream(RESUMED))
    assert len(told) == 2
    assert isinstance(error, Refused)
    assert (error.code, error.outcome) == ("HISTORY_LOST", "uncertain")


@pytest.mark.parametrize("request_of", [REQUEST, RESUMED, KEYED])
def test_a_host_that_takes_no_run_is_not_asked_again(either: Either, host: Peer, other: Peer, request_of: Any) -> None:
    host.answering(refusal("QUEUE_FULL", 503), stream(RUN))
    with either.client(host.url, other.url) as client:
        told, error = either.read(client.stream(request_of))
    assert (told, error and error.code, len(host.asked), other.asked) == ([], "QUEUE_FULL", 1, [])


def test_patience_ends(either: Either, host: Peer, other: Peer) -> None:
    host.answering(stream(RUN[:2]))
    with either.client(host.url, other.url) as client:
        _, error = either.read(client.stream(RESUMED))
    assert isinstance(error, Refused | ConnectionLost)
    assert len(host.asked) + len(other.asked) == 1 + QUICK.attempts


def test_a_node_that_fell_silent_is_left(either: Either, host: Peer, other: Peer) -> None:
    host.answering(stream(RUN[:2], ending="hold"))
    other.answering(stream(RUN[2:]))
    with either.client(host.url, other.url, patience=Patience(first_s=0.001, silence_s=1.0)) as client:
        told, error = either.read(client.stream(RESUMED))
    assert (error, [event.raw for event in told]) == (None, RUN)
    assert host.left.is_set()


def test_without_a_key_a_run_that_may_have_begun_is_not_begun_again(either: Either, host: Peer, other: Peer) -> None:
    host.answering(Reply(head=b""))
    with either.client(host.url, other.url) as client:
        assert either.read(client.stream(RESUMED))[1].code == "CONNECTION_LOST"  # type: ignore[union-attr]
    assert other.asked == []


def test_with_a_key_it_is_asked_for_again_and_followed(either: Either, host: Peer, other: Peer) -> None:
    host.answering(Reply(head=b""), stream(RUN, dated=True))
    other.answering(refusal("OPERATION_IN_PROGRESS", 409, retryable=True, runId=RUN_ID))
    with either.client(host.url, other.url) as client:
        told, error = either.read(client.stream(KEYED))
    assert (error, [event.raw for event in told]) == (None, RUN)
    assert host.asked[0].body == other.asked[0].body == compact(KEYED)
    assert asked(host)[1] == ("GET", EVENTS, None)


def test_without_resume_nothing_is_continued_or_followed(either: Either, host: Peer) -> None:
    unresumed: Any = REQUEST | {"idempotencyKey": "k-1"}
    host.answering(stream(RUN[:2]), refusal("OPERATION_IN_PROGRESS", 409, retryable=True))
    with either.client(host.url) as client:
        assert either.read(client.stream(unresumed))[1].code == "INCOMPLETE_STREAM"  # type: ignore[union-attr]
        assert either.read(client.stream(unresumed))[1].code == "OPERATION_IN_PROGRESS"  # type: ignore[union-attr]
    assert len(host.asked) == 2


def test_a_run_is_followed_by_its_id_from_any_cursor(either: Either, host: Peer, other: Peer) -> None:
    host.answering(stream(RUN[2:3], dated=True))
    other.answering(stream(RUN[3:], dated=True))
    with either.client(host.url, other.url) as client:
        told, error = either.read(client.follow(RUN_ID, "2.d2"))
    assert (error, [event.raw for event in told]) == (None, RUN[2:])
    assert (asked(host), asked(other)) == ([("GET", EVENTS, "2.d2")], [("GET", EVENTS, "3.d3")])


def test_an_id_stays_one_step_of_a_path(either: Either, host: Peer) -> None:
    host.answering(refusal("RUN_NOT_FOUND", 404))
    with either.client(host.url) as client:
        assert either.read(client.follow("../../x?y"))[1].code == "RUN_NOT_FOUND"  # type: ignore[union-attr]
    assert host.asked[0].path == "/v1/runs/..%2F..%2Fx%3Fy/events"


def test_pauses_grow_and_differ_and_end() -> None:
    patience = Patience(first_s=1.0, most_s=8.0)
    assert [patience.pause_s(tries, 1.0) for tries in (1, 2, 3, 4, 5, 99_999)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert patience.pause_s(3, 0.0) == 2.0
    assert patience.pause_s(9, 0.5, told_ms=700) == 0.7
    assert patience.pause_s(1, 0.5, told_ms=3_600_000) == 8.0


def test_a_host_says_when_to_come_back(either: Either, host: Peer) -> None:
    slow = Patience(attempts=2, first_s=60.0, most_s=60.0)
    host.answering(stream(RUN[:2], more=b"retry: 1\n\n"), stream(RUN[2:]))
    with either.client(host.url, patience=slow) as client:
        told, error = either.read(client.stream(RESUMED))
    assert (error, [event.raw for event in told]) == (None, RUN)
