"""What a host may send, which is less than what clients bear: the checklist of the clients' digest.

Nothing here waits or reads a clock.
Each rule raises AssertionError with everything that is wrong, not only the first fault.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tests.strict_answers import ENVELOPE
from tests.strict_events import KNOWN, TERMINAL
from tests.strict_stream import FRAME_BYTES_MAX, ClientError, StreamCheck
from tests.strict_values import UUID, Json, Object, Unsound, members, millis_z, parsed

Headers: TypeAlias = Sequence[tuple[str, str]]

BODY_BYTES_MAX = 2_000_000
ERROR_BYTES_MAX = 64_000
_HEARTBEAT = b": heartbeat"
_FREE_FORM = frozenset({"arguments", "output", "inputMediaTypes", "metadata"})
_FRACTIONS = frozenset({"costUsd", "apiEquivalentCostUsd", "score"})
_TIMES = frozenset({"timestamp", "requestedAt", "decidedAt", "createdAt", "updatedAt", "checkedAt"})
_FRAME = re.compile(rb"id: ([1-9][0-9]*)\nevent: ([^\n]+)\ndata: ([^\n]+)")


def host_rules(raw: bytes, request: Object, *, complete: bool = True) -> list[Object]:
    """The events of *raw*, the body of one stream, if a host may send it as the answer to *request*.

    *complete* says that the stream ended by itself, so that its last frame must be a terminal event.
    """
    faults = list(_bytes_faults(raw))
    frames = raw.removesuffix(b"\n\n").split(b"\n\n") if raw else []
    events: list[Object] = []
    for number, frame in enumerate(frames):
        faults += [f"frame {number}: {fault}" for fault in _frame_faults(frame, events)]
    faults += _client_faults(raw, request, complete=complete)
    faults += _order_faults(events, request)
    _none(faults)
    return events


def host_headers(status: int, headers: Headers, *, stream: bool = False, tls: bool = False) -> None:
    """Nothing, if a host may begin an answer with *headers*."""
    want: list[tuple[str, list[str]]] = [
        ("AgenticDriver-Version", ["1.0"]),
        ("Cache-Control", ["no-store"]),
        ("X-Content-Type-Options", ["nosniff"]),
        ("Strict-Transport-Security", ["max-age=31536000"] if tls else []),
        ("X-Accel-Buffering", ["no"] if stream else []),
        ("Content-Encoding", []),
        ("Location", []),
    ]
    if status != 204:
        media = "text/event-stream" if stream else "application/json"
        want.append(("Content-Type", [f"{media}; charset=utf-8"]))
    faults = [f"{name}: {values(headers, name)}, not {says}" for name, says in want if values(headers, name) != says]
    _none(faults + ["a redirect"] * (300 <= status < 400))


def host_answer(status: int, headers: Headers, body: bytes, *, tls: bool = False) -> Json:
    """The JSON that a host answered, if a host may answer it."""
    host_headers(status, headers, tls=tls)
    most = BODY_BYTES_MAX if status < 400 else ERROR_BYTES_MAX
    faults = ["a body too large"] * (len(body) > most) + ["a byte order mark"] * body.startswith(b"\xef\xbb\xbf")
    try:
        value = parsed(body.decode("utf-8", "strict"))
        faults += _value_faults(body.decode("utf-8"))
        if status >= 400:
            ENVELOPE(value)
            faults += _extra(members(members(value)["error"]), {"code", "message", "retryable", "outcome"})
    except (Unsound, UnicodeDecodeError) as error:
        raise AssertionError(f"{error}: {body[:200]!r}") from error
    _none(faults)
    return value


def values(headers: Headers, name: str) -> list[str]:
    """What each header line called *name* says."""
    return [value for found, value in headers if found.lower() == name.lower()]


def _none(faults: list[str]) -> None:
    if faults:
        raise AssertionError("; ".join(faults))


def _extra(found: Object, known: set[str]) -> list[str]:
    return [f"unknown member {name}" for name in found.keys() - known]


def _bytes_faults(raw: bytes) -> Iterator[str]:
    if raw.startswith(b"\xef\xbb\xbf"):
        yield "a byte order mark"
    if b"\r" in raw:
        yield "a carriage return"
    if raw and not raw.endswith(b"\n\n"):
        yield f"an unfinished frame {raw[-80:]!r}"


def _frame_faults(frame: bytes, events: list[Object]) -> Iterator[str]:
    if len(frame) - frame.count(b"\n") > FRAME_BYTES_MAX:
        yield "too many bytes"
    if events and events[-1]["type"] in TERMINAL:
        yield "something after the terminal event"
    if frame == _HEARTBEAT:
        return
    found = _FRAME.fullmatch(frame)
    if found is None:
        yield f"neither a heartbeat nor id, event, data: {frame[:120]!r}"
        return
    try:
        data = found[3].decode("utf-8", "strict")
        event = members(parsed(data))
    except (Unsound, UnicodeDecodeError) as error:
        yield str(error)
        return
    events.append(event)
    yield from _event_faults(event, found[1].decode(), found[2].decode())
    yield from _value_faults(data)


def _event_faults(event: Object, frame_id: str, frame_type: str) -> Iterator[str]:
    if frame_id != str(event.get("sequence")):
        yield f"id {frame_id} of sequence {event.get('sequence')}"
    if frame_type != event.get("type") or frame_type not in KNOWN:
        yield f"event {frame_type} of type {event.get('type')}"
    if re.fullmatch(UUID, str(event.get("runId"))) is None:
        yield f"runId {event.get('runId')} is no lower-case UUID"


def _client_faults(raw: bytes, request: Object, *, complete: bool) -> Iterator[str]:
    check = StreamCheck(request)
    try:
        check.feed(raw)
        if complete:
            check.close()
    except ClientError as error:
        yield str(error)


def _value_faults(data: str) -> list[str]:
    """What is wrong with the members of the JSON text *data*; free-form values may hold anything but repeats."""
    twice: list[str] = []

    def pairs(found: list[tuple[str, Json]]) -> Object:
        names = [name for name, _ in found]
        twice.extend(f"{name} twice" for name in set(names) if names.count(name) > 1)
        return dict(found)

    value: Json = json.loads(data, object_pairs_hook=pairs)
    return twice + list(_member_faults("", value))


def _member_faults(name: str, value: Json) -> Iterator[str]:
    match value:
        case None:
            yield f"{name} is null"
        case float() if value.is_integer() and name not in _FRACTIONS:
            yield f"{name} is an integer with a fraction"
        case dict():
            for inner_name, inner in value.items():
                if re.fullmatch(r"[a-z][a-zA-Z0-9]*", inner_name) is None:
                    yield f"member name {inner_name!r}"
                if inner_name not in _FREE_FORM:
                    yield from _member_faults(inner_name, inner)
        case list():
            for inner in value:
                yield from _member_faults(name, inner)
        case str() if name in _TIMES:
            yield from _time_faults(name, value)
        case _:
            return


def _time_faults(name: str, value: str) -> Iterator[str]:
    try:
        millis_z(value)
    except Unsound as error:
        yield f"{name}: {error}"


def _order_faults(events: list[Object], request: Object) -> Iterator[str]:
    """What breaks the order inside a run: numbered steps, one report a step, calls one by one."""
    step, reported, call = 0, 0, None
    for event in events:
        match event:
            case {"type": "step.started", "step": int(number)}:
                if number != step + 1 or call is not None:
                    yield f"step {number} after step {step}, open call {call}"
                step = number
            case {"type": "usage.reported", "step": int(number)}:
                if number != step or number <= reported:
                    yield f"usage of step {number} in step {step}"
                reported = number
            case {"type": "tool.called", "call": {"id": str(called)}}:
                if call is not None or step == 0:
                    yield f"call {called} while {call} is open, in step {step}"
                call = called
            case {"type": "tool.completed", "callId": str(completed)}:
                if completed != call:
                    yield f"completed {completed}, not {call}"
                call = None
            case {"type": "text.delta"} if step == 0:
                yield "text before the first step"
            case {"type": "run.progress", "phase": "context"} if "retrieval" not in request:
                yield "context progress in a run without retrieval"
            case {"type": "run.completed", "result": {"steps": int(number)}} if number != step:
                yield f"{number} steps, not {step}"
            case _:
                continue
