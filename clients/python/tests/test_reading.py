"""Streams to the letter, without any socket: cut everywhere, ended everywhere, mixed up in every way."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstream_client import ClientError
from runstream_client.asked import Asked
from runstream_client.conformance.cases import Case, all_cases, compact, suite
from runstream_client.reading import TICKETS_MAX, RunReader, result_of
from runstream_client.sse import FRAME_BYTES_MAX, FrameReader

STREAMS = [case for case in all_cases() if case.op == "stream" and case.reply.status == 200]
PLAIN = suite("client-conformance")["bases"]["plain"]
REQUEST = suite("client-conformance")["requests"]["plain"]
BYTE_BY_BYTE_MAX = 3_000
PARTS = [
    *(b"data: " + compact(event) for event in PLAIN),
    *(b"\n", b"\n\n", b"\r", b"\r\n", b"\r\r", b"\xef\xbb\xbf", b"\xf0\x9f", b"\xff", b": c", b"data", b"data:", b"{}"),
    "data: \u2028\u0085\x0b\x0c".encode(),
]


def judged(request: Any, pieces: Sequence[bytes]) -> tuple[list[str], str]:
    """The types that were delivered, and the code of what was raised."""
    reader, types = RunReader(Asked(request)), list[str]()
    try:
        for piece in pieces:
            types.extend(event.type for event in reader.feed(piece))
            if reader.ended:
                break
        result_of(reader.last if reader.ended else None)
    except ClientError as error:
        return types, error.code
    return types, ""


def cut(body: bytes, sizes: Iterator[int]) -> list[bytes]:
    pieces: list[bytes] = []
    while body:
        size = next(sizes)
        pieces.append(body[:size])
        body = body[size:]
    return pieces


def chances(seed: int, most: int) -> Iterator[int]:
    chance = random.Random(seed)  # noqa: S311 - the same cuts each time
    while True:
        yield chance.randint(1, most)


@pytest.mark.parametrize("case", STREAMS, ids=[case.id for case in STREAMS])
def test_a_stream_is_judged_alike_however_it_is_cut(case: Case) -> None:
    body = b"".join(case.reply.pieces)
    whole = judged(case.argument, [body])
    if len(body) <= BYTE_BY_BYTE_MAX:
        assert judged(case.argument, [body[at : at + 1] for at in range(len(body))]) == whole
    assert judged(case.argument, cut(body, chances(len(body), 7 if len(body) < 20_000 else 65_536))) == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=12).map(b"".join), st.lists(st.integers(1, 9), min_size=1))
def test_any_bytes_are_judged_alike_however_they_are_cut(body: bytes, sizes: list[int]) -> None:
    pieces = cut(body, (sizes[at % len(sizes)] for at in range(len(body) + 1)))
    assert judged(REQUEST, pieces) == judged(REQUEST, [body])


@pytest.mark.parametrize(("end", "at"), [("\n", 9), ("\r", 9), ("\r\n", 10), ("\n\r", 9)])
def test_a_frame_is_there_as_soon_as_its_blank_line_has_ended(end: str, at: int) -> None:
    """A CR ends its line at once; an LF after it belongs to the same end."""
    reader, body = FrameReader(), f"data: 1{end}{end}".encode()
    found = [number for number, byte in enumerate(body, 1) if [*reader.feed(bytes([byte]))]]
    assert found == [at]


def test_no_other_character_ends_a_line() -> None:
    odd = "\u2028\u2029\u0085\x0b\x0c\x1c\x1e"
    assert [frame.data for frame in FrameReader().feed(f"data: {odd}\n\n".encode())] == [odd]


def test_the_lines_of_data_are_joined_each_without_its_first_space() -> None:
    body = b"data:  a \ndata:b\ndata\ndata :c\nDATA: d\ndata:\n\ndata\n\n: e\n\n"
    assert [frame.data for frame in FrameReader().feed(body)] == [" a \nb\n"]


@pytest.mark.parametrize("odd", [b"\xc3\n\xa9", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xff"])
@pytest.mark.parametrize("field", [b": ", b"data: ", b"later: "])
def test_each_line_is_utf_8_whatever_it_is_for(odd: bytes, field: bytes) -> None:
    assert judged(REQUEST, [field + odd + b"\n\n"]) == ([], "INVALID_STREAM")


def test_a_frame_may_have_exactly_the_greatest_size() -> None:
    for extra, ended in ((0, "INCOMPLETE_STREAM"), (1, "RESPONSE_TOO_LARGE")):
        started = {**PLAIN[0], "padding": ""}
        room = FRAME_BYTES_MAX - len(b"data: " + compact(started)) - len(b": note")
        started["padding"] = "x" * (room + extra)
        assert judged(REQUEST, [b": note\ndata: %b\n\n" % compact(started)])[1] == ended


def test_each_frame_is_counted_for_itself() -> None:
    half = b": %b\n\n" % (b"x" * (FRAME_BYTES_MAX // 2 + 1))
    body = b"".join(half + b"data: %b\n\n" % compact(event) for event in PLAIN)
    assert judged(REQUEST, [body]) == judged(REQUEST, [body.replace(half, b"")])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sequence": 2.0}, "INVALID_STREAM"),
        ({"sequence": True}, "INVALID_STREAM"),
        ({"sequence": 3}, "INVALID_STREAM"),
        ({"sequence": "\ud800"}, "INVALID_STREAM"),
        ({"optional": 1}, "INVALID_STREAM"),
        ({"optional": None}, "INVALID_STREAM"),
        ({"timestamp": "0000-01-01T00:00:00Z"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T24:00:00Z"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T00:00:60Z"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T00:00:00+24:00"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T00:00:00Z\n"}, "INVALID_STREAM"),
        ({"timestamp": "\u0662026-01-01T00:00:00Z"}, "INVALID_STREAM"),
        ({"type": ""}, "INVALID_STREAM"),
        ({"type": "approval.requested"}, "UNSUPPORTED_EVENT"),
        ({"optional": False}, "UNSUPPORTED_EVENT"),
        ({}, "INCOMPLETE_STREAM"),
    ],
)
def test_an_advisory_event_keeps_the_rules_of_every_event(change: dict[str, Any], code: str) -> None:
    advisory = {**PLAIN[0], "type": "later.thing", "sequence": 2, "optional": True, **change}
    body = b"".join(b"data: %b\n\n" % compact(event) for event in (PLAIN[0], advisory))
    assert judged(REQUEST, [body]) == (["run.started"], code)


def test_a_run_has_no_more_tickets_than_it_may() -> None:
    tool = {"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}
    events = [PLAIN[0]]
    for number in range(1, TICKETS_MAX + 2):
        call = {"id": f"c-{number}", "name": "look", "arguments": {}}
        ticket = {"executionId": f"e-{number}", "runId": PLAIN[0]["runId"], "call": call}
        events.append({**PLAIN[1], "type": "tool.execution.requested", "sequence": number + 1, "execution": ticket})
    body = b"".join(b"data: %b\n\n" % compact(event) for event in events)
    types, code = judged(REQUEST | {"tools": ["look"], "applicationTools": [tool]}, [body])
    assert (types.count("tool.execution.requested"), code) == (TICKETS_MAX, "INVALID_STREAM")
    assert TICKETS_MAX == 2_048


def test_an_event_keeps_what_this_client_does_not_know() -> None:
    text = '{"type":"run.started","runId":"r","sequence":1,"timestamp":"2026-01-01T00:00:00Z","provider":"mock",'
    (event,) = RunReader(Asked(REQUEST)).feed(f'data: {text}"model":"demo","later":[1.5,"\\ud800"]}}\n\n'.encode())
    assert event.raw == json.loads(text + '"model":"demo","later":[1.5,"\\ud800"]}')


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "1" * 5_000, "1e999", "-1e999", "NaN"])
def test_hostile_json_is_no_event(deep: str) -> None:
    assert judged(REQUEST, [f"data: {deep}\n\n".encode()]) == ([], "INVALID_STREAM")
