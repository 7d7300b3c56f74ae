"""Which of the vectors about hosts can be asked of any host, and what its answer must have in common with theirs.

Nothing here waits.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from runstream_client.conformance.cases import compact, suite
from runstream_client.conformance.patches import generated

Vector = Mapping[str, Any]
_OWN = frozenset(
    {
        "protocol",  # the host has features of its own
        "providers-listed",  # and providers
        "capability-false",
        "capability-true",
        "retries-need-safe-retries",
        "single-attempt-needs-nothing",
        "key-without-store",  # and perhaps a store
        "stream-selected-by-accept",  # tried with the events of its own runs
    }
)
"""Vectors that speak of the vectors' own host."""


class HostCase(NamedTuple):
    """A request as it is sent, and what must come back."""

    id: str
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes | None
    expect: Vector


def host_cases(token: str, run: Vector) -> Iterator[HostCase]:
    """The vectors that hold for every host: no second token, no origin of theirs, no run but *run*."""
    for case in suite("negotiation")["hostCases"]:
        asked = case["request"]
        origin = asked.get("headers", {}).get("Origin", "")
        if case["id"] in _OWN or asked.get("token") == "nobody" or origin == "https://desk.example":
            continue
        yield HostCase(
            case["id"], asked["method"], asked["path"], _lines(asked, token), _body(asked, run), case["expect"]
        )


def names() -> list[str]:
    """The ids of these vectors."""
    return [case.id for case in host_cases("", {})]


def _lines(asked: Vector, token: str) -> list[tuple[str, str]]:
    lines = [("Authorization", f"Bearer {token}")] if asked.get("token") else []
    if asked.get("contentType"):
        lines.append(("Content-Type", asked["contentType"]))
    return [*lines, *asked.get("headers", {}).items()]


def _body(asked: Vector, run: Vector) -> bytes | None:
    match asked:
        case {"bodyHex": str(digits)}:
            return bytes.fromhex(digits)
        case {"bodyText": text}:
            return str(generated(text)).encode()
        case {"body": {"$run": patch}}:
            return compact({**run, **patch})
        case {"body": body}:
            return compact(body)
        case _:
            return None


def faults(expect: Vector, status: int, headers: list[tuple[str, str]], value: Any) -> Iterator[str]:
    """What an answer has that *expect* does not allow; *value* is its body, if that is JSON."""
    if status != expect.get("status", status):
        yield f"status {status}, not {expect['status']}"
    for name, said in expect.get("headers", {}).items():
        if (found := lines_of(headers, name)) != [said]:
            yield f"{name}: {found}, not {said!r}"
    for name in expect.get("absentHeaders", ()):
        if lines_of(headers, name):
            yield f"{name} is there"
    for name, said in expect.get("error", {}).items():
        if _error_of(value).get(name) != said:
            yield f"the error is {value!r}, not {name} {said!r}"
    if "json" in expect and value != expect["json"]:
        yield f"{value!r}, not {expect['json']!r}"


def _error_of(value: Any) -> Vector:
    """The error that a body tells, if it tells one."""
    try:
        return dict(value["error"])
    except (KeyError, TypeError, ValueError):
        return {}


def lines_of(headers: list[tuple[str, str]], name: str) -> list[str]:
    """What each header line of this name says."""
    return [value for found, value in headers if found.lower() == name.lower()]


def stream_faults(raw: bytes, events: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with the frames of a stream whose events a client accepted (clients §6)."""
    frames = [frame for frame in raw.split(b"\n\n") if frame and not frame.startswith(b":")]
    if b"\r" in raw or raw.startswith(b"\xef\xbb\xbf"):
        yield "line ends other than LF, or a byte order mark"
    if not raw.endswith(b"\n\n") or len(frames) != len(events):
        yield f"{len(frames)} frames for {len(events)} events"
    for frame, event in zip(frames, events, strict=False):
        head = [f"id: {event['sequence']}".encode(), f"event: {event['type']}".encode()]
        lines = frame.split(b"\n")
        if lines[:2] != head or len(lines) != 3 or not lines[2].startswith(b"data: "):  # noqa: PLR2004 - runs §2
            yield f"a frame that is not id, event and one line of data: {frame[:80]!r}"
        if len(event["timestamp"]) != len("2026-01-02T03:04:05.678Z") or not event["timestamp"].endswith("Z"):
            yield f"a timestamp that is not in milliseconds: {event['timestamp']}"
