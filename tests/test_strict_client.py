"""The oracle agrees with the shared vectors, however the bytes are cut."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strict_client import ClientError, StreamCheck, checked_response, host_answer, host_rules, opened_stream
from tests.strict_stream import FRAME_BYTES_MAX

Vector = Mapping[str, Any]
_FOLDER = Path(__file__).parent / "vectors"
_CLIENTS: Vector = json.loads((_FOLDER / "client-conformance.json").read_text(encoding="utf-8"))
_NEGOTIATION: Vector = json.loads((_FOLDER / "negotiation.json").read_text(encoding="utf-8"))
_CASES = [(_CLIENTS, case) for case in _CLIENTS["cases"]] + [
    (_NEGOTIATION, case) for case in _NEGOTIATION["clientCases"]
]
_STREAMS = [(suite, case) for suite, case in _CASES if case["op"] == "stream"]
_IDS = [case["id"] for _, case in _CASES]
_STREAM_IDS = [case["id"] for _, case in _STREAMS]
_BYTE_BY_BYTE_MAX = 20_000
_PARTS = [
    *(f"data: {json.dumps(event, ensure_ascii=False)}".encode() for event in _CLIENTS["bases"]["plain"]),
    *(
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\r\r",
        b"\xef\xbb\xbf",
        b"\xf0\x9f",
        b"\xff",
        b": c",
        b"data",
        b"data:",
        b"{}",
        b"x",
    ),
]


@pytest.mark.parametrize(("suite", "case"), _CASES, ids=_IDS)
def test_a_whole_answer_is_judged_as_the_vector_says(suite: Vector, case: Vector) -> None:
    expect, request = case["expect"], _request(suite, case)
    status, headers, body = _response(suite, case)
    if "action" in case:
        return  # a client that leaves: see test_a_client_that_leaves_has_seen_what_was_sent
    if expect.get("ok"):
        checked_response(case["op"], request, status, headers, body)
        return
    with pytest.raises(ClientError) as raised:
        checked_response(case["op"], request, status, headers, body)
    assert raised.value.code == expect["error"] or expect["error"] == "*"
    assert raised.value.retryable == expect.get("retryable", raised.value.retryable)
    assert raised.value.outcome == expect.get("outcome", raised.value.outcome)


@pytest.mark.parametrize(("suite", "case"), _STREAMS, ids=_STREAM_IDS)
def test_a_stream_is_judged_alike_however_it_is_cut(suite: Vector, case: Vector) -> None:
    status, headers, body = _response(suite, case)
    request = _request(suite, case)
    whole = _judged(request, status, headers, [body])
    assert whole[1] == case["expect"].get("types", whole[1])
    for pieces in _cuts(body, case["response"].get("chunks")):
        assert _judged(request, status, headers, pieces) == whole


def test_a_client_that_leaves_has_seen_what_was_sent() -> None:
    case = next(case for case in _CLIENTS["cases"] if case["id"] == "cancel.close-after-first-text")
    check = StreamCheck(_CLIENTS["requests"][case["request"]])
    check.feed(_response(_CLIENTS, case)[2])
    assert check.types == case["expect"]["types"]
    with pytest.raises(ClientError, match="INCOMPLETE_STREAM"):
        check.close()


def test_a_bare_carriage_return_ends_a_frame_without_waiting_for_the_next_byte() -> None:
    check = StreamCheck(_CLIENTS["requests"]["plain"])
    frame = b"data: " + _compact(_CLIENTS["bases"]["plain"][0]).encode() + b"\r\r"
    assert len(check.feed(frame)) == 1


def test_a_frame_may_have_exactly_the_greatest_size() -> None:
    event = dict(_CLIENTS["bases"]["plain"][0], padding="")
    room = FRAME_BYTES_MAX - len(f"data: {_compact(event)}")
    for extra, fits in ((0, True), (1, False)):
        frame = f"data: {_compact(dict(event, padding='x' * (room + extra)))}\n\n".encode()
        assert _judged(_CLIENTS["requests"]["plain"], 200, [("Content-Type", "text/event-stream")], [frame]) == (
            ("INCOMPLETE_STREAM" if fits else "RESPONSE_TOO_LARGE", False, None),
            ["run.started"] if fits else [],
        )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"text": 5}, "INVALID_STREAM"),
        ({"error": "no"}, "INVALID_STREAM"),
        ({"sequence": 2.0}, "INVALID_STREAM"),
        ({"sequence": True}, "INVALID_STREAM"),
        ({"timestamp": "0000-01-01T00:00:00Z"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T24:00:00Z"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T00:00:60Z"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T00:00:00+24:00"}, "INVALID_STREAM"),
        ({"timestamp": "2026-01-01T00:00:00Z\n"}, "INVALID_STREAM"),
        ({}, "INCOMPLETE_STREAM"),
    ],
)
def test_an_advisory_event_keeps_the_rules_of_every_event(change: dict[str, Any], code: str) -> None:
    started = _CLIENTS["bases"]["plain"][0]
    advisory = {**started, "type": "later.thing", "sequence": 2, "optional": True, **change}
    body = "".join(f"data: {_compact(event)}\n\n" for event in (started, advisory)).encode()
    verdict, types = _judged(_CLIENTS["requests"]["plain"], 200, [("Content-Type", "text/event-stream")], [body])
    assert (verdict and verdict[0], types) == (code, ["run.started"])


@given(st.lists(st.sampled_from(_PARTS), max_size=12).map(b"".join), st.lists(st.integers(1, 9), min_size=1))
def test_any_bytes_are_judged_alike_however_they_are_cut(body: bytes, sizes: list[int]) -> None:
    headers = [("Content-Type", "Text/Event-Stream; charset=utf-8")]
    request = _CLIENTS["requests"]["plain"]
    assert _judged(request, 200, headers, _cut(body, sizes)) == _judged(request, 200, headers, [body])


def test_a_job_page_may_hold_evidence_but_never_a_session() -> None:
    page = _patched(_CLIENTS["bases"]["job-page"], [])
    with_evidence = _CLIENTS["bases"]["retrieval"][1]["result"]
    page["events"][3]["result"] = {**with_evidence, "runId": page["job"]["runId"]}
    headers = [("Content-Type", "application/json")]
    checked_response("job-events", _CLIENTS["requests"]["job-events"], 200, headers, _compact(page).encode())
    page["events"][3]["result"]["session"] = _CLIENTS["bases"]["session-run"][1]["result"]["session"]
    with pytest.raises(ClientError, match="session, exactly if requested"):
        checked_response("job-events", _CLIENTS["requests"]["job-events"], 200, headers, _compact(page).encode())


def test_an_error_body_over_64000_bytes_is_no_envelope() -> None:
    body = _compact({"error": {"code": "BUSY", "message": "m" * 64_000, "retryable": True}}).encode()
    with pytest.raises(ClientError) as raised:
        checked_response("run", {}, 400, [], body)
    assert (raised.value.code, raised.value.retryable) == ("HTTP_ERROR", False)


def test_a_hosts_own_stream_passes_the_checklist() -> None:
    events = host_rules(_hosted(_plain_run()), _CLIENTS["requests"]["plain"])
    assert [event["type"] for event in events] == ["run.started", "step.started", "text.delta", "run.completed"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"\n\n", b"\r\n\r\n", "carriage return"),
        (b"id: 1\n", b"\xef\xbb\xbfid: 1\n", "byte order mark"),
        (b"id: 2\n", b"id: 7\n", "id 7 of sequence 2"),
        (b"id: 2\n", b"", "neither a heartbeat nor"),
        (b"event: text.delta", b"event: text", "event text of type text.delta"),
        (b": heartbeat", b": thump", "neither a heartbeat nor"),
        (b'"optional-note":1', b'"note":null', "note is null"),
        (b'"optional-note":1', b'"note":1.0', "integer with a fraction"),
        (b'"optional-note":1', b'"Text":1', "member name 'Text'"),
        (b'"optional-note":1', b'"text":"a","text":"b"', "text twice"),
        (b"06.007Z", b"06Z", "not YYYY-MM-DDTHH:MM:SS.mmmZ"),
        (b'"steps":1', b'"steps":2', "2 steps, not 1"),
        (b"7d0f3c52", b"7D0F3C52", "no lower-case UUID"),
    ],
)
def test_the_checklist_names_what_a_host_must_not_send(old: bytes, new: bytes, fault: str) -> None:
    raw = _hosted(_plain_run()).replace(b'"sequence":2', b'"optional-note":1,"sequence":2')
    with pytest.raises(AssertionError, match=fault):
        host_rules(raw.replace(old, new), _CLIENTS["requests"]["plain"])


def test_the_checklist_refuses_frames_that_are_too_large_or_come_too_late() -> None:
    request, raw = _CLIENTS["requests"]["plain"], _hosted(_plain_run())
    with pytest.raises(AssertionError, match="after the terminal event"):
        host_rules(raw + b": heartbeat\n\n", request)
    with pytest.raises(AssertionError, match="INCOMPLETE_STREAM"):
        host_rules(raw[: raw.index(b"id: 3")], request)
    with pytest.raises(AssertionError, match="too many bytes"):
        host_rules(_hosted(_plain_run("x" * FRAME_BYTES_MAX)), request)
    host_rules(raw[: raw.index(b"id: 3")], request, complete=False)


def test_a_hosts_answer_has_exactly_one_line_of_each_base_header() -> None:
    base = [
        ("agenticdriver-version", "1.0"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("content-type", "application/json; charset=utf-8"),
    ]
    body = b'{"error":{"code":"BUSY","message":"","retryable":true}}'
    host_answer(429, base, body)
    for headers in (base[1:], [*base, base[0]], [*base, ("Content-Encoding", "gzip")]):
        with pytest.raises(AssertionError):
            host_answer(429, headers, body)
    with pytest.raises(AssertionError, match="unknown member"):
        host_answer(429, base, body.replace(b'"code"', b'"hint":1,"code"'))


Verdict = tuple[tuple[str, bool, str | None] | None, list[str]]


def _judged(request: dict[str, Any], status: int, headers: list[tuple[str, str]], pieces: Sequence[bytes]) -> Verdict:
    """What the client raises, or nothing, and the types it delivered before."""
    check = StreamCheck(request)
    try:
        check = opened_stream(request, status, headers, b"".join(pieces))
        for piece in pieces:
            check.feed(piece)
        check.result()
    except ClientError as error:
        return (error.code, error.retryable, error.outcome), check.types
    return None, check.types


def _cuts(body: bytes, sizes: list[int] | None) -> Iterator[list[bytes]]:
    chance = random.Random(len(body))  # noqa: S311 - the same cuts each time
    if len(body) <= _BYTE_BY_BYTE_MAX:
        yield [body[at : at + 1] for at in range(len(body))]
    for most in (7, 64, 4096) if len(body) <= _BYTE_BY_BYTE_MAX else (65_536,):
        yield _cut(body, [chance.randint(1, most) for _ in range(64)])
    if sizes:
        yield _cut(body, sizes)


def _cut(body: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    while body:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(body[:size])
        body = body[size:]
    return pieces


def _request(suite: Vector, case: Vector) -> dict[str, Any]:
    request: dict[str, Any] = suite["requests"].get(case["request"]) or {}
    return request


def _response(suite: Vector, case: Vector) -> tuple[int, list[tuple[str, str]], bytes]:
    response: Vector = case["response"]
    return response.get("status", 200), _headers(response), _as_documented(case["op"], _body(suite, response))


def _headers(response: Vector) -> list[tuple[str, str]]:
    kind = "text/event-stream" if response["kind"] == "sse" else "application/json"
    media = response.get("contentType", kind)
    given = {"AgenticDriver-Version": "1.0", "Content-Type": media, **response.get("headers", {})}
    several = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    return [(name, line) for name, lines in several.items() for line in lines if line is not None]


def _body(suite: Vector, response: Vector) -> bytes:
    match response["kind"]:
        case "text":
            return str(_generated(response["text"])).encode()
        case "hex":
            return bytes.fromhex(str(response["hex"]))
        case kind:
            value = _patched(suite["bases"][response["base"]], response.get("patch", []))
            return _sse(value, response) if kind == "sse" else _compact(value).encode()


def _as_documented(op: str, body: bytes) -> bytes:
    """The vectors show a session as one flat object; the digest of sessions, and a host, put it under `session`."""
    if op not in {"session-create", "session-read"}:
        return body
    session = json.loads(body)
    beside = {name: session.pop(name) for name in ("history", "instructions") if name in session}
    return _compact({"session": session, "history": [], **beside}).encode()


def _sse(events: list[dict[str, Any]], response: Vector) -> bytes:
    eol = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}[response.get("eol", "lf")]
    frames = [_frame(event, response) for event in events][: response.get("holdAfter")]
    between = [": heartbeat", ""] if response.get("hostStyle") else []
    lines = [line for number, frame in enumerate(frames) for line in (*(between if number else []), *frame, "")]
    text = "".join(line + eol for line in lines) + str(response.get("suffix", ""))
    return (b"\xef\xbb\xbf" if response.get("bom") else b"") + text.encode()


def _frame(event: dict[str, Any], response: Vector) -> list[str]:
    before = [f"id: {event['sequence']}", f"event: {event['type']}"] if response.get("hostStyle") else []
    text = json.dumps(event, ensure_ascii=False, indent=2) if response.get("pretty") else _compact(event)
    return [*before, *response.get("prefixLines", []), *(f"data: {line}" for line in text.split("\n"))]


def _generated(value: Any) -> Any:
    match value:
        case {"$repeat": [str(text), int(times)]}:
            return text * times
        case {"$concat": list(parts)}:
            return "".join(_generated(part) for part in parts)
        case dict():
            return {name: _generated(inner) for name, inner in value.items()}
        case list():
            return [_generated(inner) for inner in value]
        case _:
            return value


def _patched(base: Any, patch: list[dict[str, Any]]) -> Any:
    """*base* after the operations of *patch*, RFC 6902."""
    value = json.loads(json.dumps(base))
    for step in patch:
        if step["op"] in {"copy", "move"}:
            found = json.loads(json.dumps(_at(value, _steps(step["from"]))))
        else:
            found = _generated(step.get("value"))
        if step["op"] in {"remove", "move"}:
            _removed(value, _steps(step["from" if step["op"] == "move" else "path"]))
        if step["op"] != "remove":
            _put(value, _steps(step["path"]), found, insert=step["op"] != "replace")
    return value


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        value = value[int(step) if isinstance(value, list) else step]
    return value


def _removed(value: Any, steps: list[str]) -> None:
    inside = _at(value, steps[:-1])
    del inside[int(steps[-1]) if isinstance(inside, list) else steps[-1]]


def _put(value: Any, steps: list[str], found: Any, *, insert: bool) -> None:
    inside, last = _at(value, steps[:-1]), steps[-1]
    if isinstance(inside, list) and insert:
        inside.insert(len(inside) if last == "-" else int(last), found)
    elif isinstance(inside, list):
        inside[int(last)] = found
    else:
        inside[last] = found


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain_run(text: str = "Teal") -> list[dict[str, Any]]:
    started, delta, completed = _patched(_CLIENTS["bases"]["plain"], [])
    step = {**started, "type": "step.started", "sequence": 2, "step": 1}
    return [started, step, {**delta, "sequence": 3, "text": text}, {**completed, "sequence": 4}]


def _hosted(events: list[dict[str, Any]]) -> bytes:
    return _sse(events, {"hostStyle": True})
