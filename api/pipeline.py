"""The checks before a route, in their binding order (overview §3, steps 0 to 12).

Pure: what the host is like, what the request's head says, in; the answer, or who may go on to which route, out.
Header lines that repeat are one list value, as HTTP says, except where a second line could only be an attack.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from actors.errors import Problem
from actors.telemetry import Correlation
from api import diagnostics, problems
from api.grants import BEARER_CHARS_MAX, FORBIDDEN, Principal, Principals
from api.host.encoding import failed
from api.host.failures import STATUSES, failure_of

Line: TypeAlias = tuple[bytes, bytes]
Lines: TypeAlias = tuple[Line, ...]
State: TypeAlias = Literal["starting", "open", "closing"]
Route: TypeAlias = Literal[
    "health",
    "ready",
    "metrics",
    "protocol",
    "providers",
    "providers-refreshed",
    "runs",
    "decisions",
    "inbox",
    "progress",
    "results",
    "session-create",
    "session-read",
    "session-delete",
    "job-submit",
    "job-read",
    "job-cancel",
    "job-events",
    "run-events",
    "host",
    "host-events",
]

TARGET = "runstream.target"
"""The ASGI extension by which our own server tells the request target as it came."""

ROUTES: Mapping[tuple[str, bytes], Route] = {
    ("GET", b"/health"): "health",
    ("GET", b"/ready"): "ready",
    ("GET", b"/metrics"): "metrics",
    ("GET", b"/v1/protocol"): "protocol",
    ("GET", b"/v1/providers"): "providers",
    ("GET", b"/v1/providers?refresh=true"): "providers-refreshed",
    ("POST", b"/v1/runs"): "runs",
    ("POST", b"/v1/approvals/decisions"): "decisions",
    ("POST", b"/v1/approvals/list"): "inbox",
    ("POST", b"/v1/tool-executions/progress"): "progress",
    ("POST", b"/v1/tool-executions/results"): "results",
    ("POST", b"/v1/sessions/create"): "session-create",
    ("POST", b"/v1/sessions/read"): "session-read",
    ("POST", b"/v1/sessions/delete"): "session-delete",
    ("POST", b"/v1/jobs/submit"): "job-submit",
    ("POST", b"/v1/jobs/read"): "job-read",
    ("POST", b"/v1/jobs/cancel"): "job-cancel",
    ("POST", b"/v1/jobs/events"): "job-events",
    ("POST", b"/host/v1"): "host",
}

_RUN_EVENTS = re.compile(rb"/v1/runs/([^/?]+)/events(?:\?after=([^&]*))?")
"""Of our own (extensions §1)."""
_HOST_EVENTS = re.compile(rb"/host/v1/runs/([^/?]+)/events(?:\?after=([^&]*))?")
_HOST = b"/host/v1"
"""Where the Agent Host protocol begins, whose answers are envelopes of its own."""

JSON: Line = (b"content-type", b"application/json; charset=utf-8")
BASE: Lines = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"agenticdriver-version", b"1.0"),
)
_TLS: Line = (b"strict-transport-security", b"max-age=31536000")
_METHODS: Line = (b"access-control-allow-methods", b"GET, POST, OPTIONS")
_ASKED = b"Authorization, Content-Type, Accept, AgenticDriver-Version, AgenticDriver-Accept-Optional-Events"
_CORRELATING = b"AgenticDriver-Request-Id, traceparent"
_MEDIA = re.compile(rb"application/json(?:[ \t]*;.*)?", re.IGNORECASE | re.DOTALL)
_LENGTH_DIGITS_MAX = 18
"""More digits than any bound has are too many, and cost nothing to count."""
_BEARER = re.compile(rb"Bearer ([!-~]{1,%d})" % BEARER_CHARS_MAX)


class Rules(Struct, frozen=True):
    """What the checks go by: *body_bytes_max* bounds a body, *diagnostics* has two more headers read, *metrics* are there."""

    tokens: Principals
    origins: frozenset[bytes] = frozenset()
    tls: bool = False
    body_bytes_max: int = 1_000_000
    diagnostics: bool = False
    metrics: bool = False
    host: bool = False
    """Whether the Agent Host protocol is served."""


class Head(NamedTuple):
    """The head of a request; *target* is path and query as they came, without a mount's prefix."""

    method: str
    target: bytes
    headers: Sequence[Line]


class Answered(NamedTuple):
    """The request ends here."""

    status: int
    headers: Lines
    body: bytes = b""


class Admitted(NamedTuple):
    """The request goes on to *route*; *headers* belong to whatever is answered."""

    route: Route
    headers: Lines
    principal: Principal | None = None
    streamed: bool = False
    run_id: str = ""
    cursor: str = ""
    """Of `run-events`: which run, and after which event, as it was told."""
    correlation: Correlation | None = None
    """Of `runs`: the trace that it joins."""


def decided(rules: Rules, state: State, head: Head) -> Answered | Admitted:
    """What becomes of a request, by its head alone."""
    refused = _refusing(head)
    origin, route = _value(head, b"origin"), _route(rules, head)
    if state != "open" and route != "ready":
        return refused(base(tls=rules.tls), problems.STARTING if state == "starting" else problems.CLOSING)
    if origin is not None and origin not in rules.origins:
        return refused(base(tls=rules.tls), problems.ORIGIN)
    headers = base(origin, tls=rules.tls)
    if origin is not None and head.method == "OPTIONS":
        return Answered(204, headers + _preflight(rules))
    route, found = (route, None) if route is not None else _events(rules, head)
    if route in {"health", "ready"}:
        return Admitted(route, headers)
    principal = _principal(rules.tokens, head)
    posted = head.method == "POST"
    problem = _denied(head, principal) or _barred(route, principal) or (_unreadable(rules, head) if posted else None)
    if problem is not None or route is None:
        return refused(headers, problem or problems.NOWHERE)
    streamed = b"text/event-stream" in (_value(head, b"accept") or b"")
    if found is None:
        return Admitted(route, headers, principal, streamed, correlation=_correlation(rules, route, head))
    cursor = _value(head, b"last-event-id") or found[2] or b""
    return Admitted(route, headers, principal, streamed, found[1].decode("latin-1"), cursor.decode("latin-1"))


def refused(headers: Lines, problem: Problem) -> Answered:
    """The answer that tells *problem*."""
    return Answered(problems.status_of(problem.code), (*headers, JSON), problems.envelope(problem))


def _refusing(head: Head) -> Callable[[Lines, Problem], Answered]:
    """How a request is refused: in the words of the protocol that its target belongs to."""
    of_host = head.target == _HOST or head.target.startswith(_HOST + b"/")
    return _refused_by_host if of_host else refused


def _refused_by_host(headers: Lines, problem: Problem) -> Answered:
    told = failed("", "get_run", failure_of(problem))
    return Answered(STATUSES[told.code], (*headers, JSON), told.body)


def base(origin: bytes | None = None, *, tls: bool = False) -> Lines:
    """The headers of every answer; *origin* is one that is allowed."""
    headers = (*BASE, _TLS) if tls else BASE
    if origin is None:
        return headers
    return (
        *headers,
        (b"access-control-allow-origin", origin),
        (b"vary", b"Origin"),
        (b"access-control-expose-headers", b"AgenticDriver-Version"),
    )


def head_of(scope: Mapping[str, Any]) -> Head:
    """The head of an ASGI request, wherever the application is mounted."""
    return Head(str(scope["method"]), _target(scope), scope["headers"])


def _target(scope: Mapping[str, Any]) -> bytes:
    """Path and query, not normalised.

    Servers agree on `path`, decoded, but not on whether a mount's prefix is still in it, nor in `raw_path`.
    Our routes need no escapes, so a path that was escaped is told apart by not being the end of the raw one.
    """
    path, prefix = str(scope["path"]), str(scope.get("root_path") or "").rstrip("/")
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        path = path[len(prefix) :]
    plain = path.encode("utf-8", "surrogatepass")
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    came, raw, query = extensions.get(TARGET), scope.get("raw_path"), bytes(scope.get("query_string") or b"")
    if isinstance(came, bytes) and came.startswith(b"/"):
        raw, mark, query = came.partition(b"?")
        return _as_it_came(plain, raw) + mark + query
    if isinstance(raw, bytes):
        plain = _as_it_came(plain, raw.partition(b"?")[0])
    return plain + b"?" + query if query else plain


def _as_it_came(plain: bytes, raw: bytes) -> bytes:
    """The end of *raw* that *plain* stands for (some mounts add a slash to it), or *raw* if it was escaped."""
    return next((each for each in (plain, plain.removesuffix(b"/")) if each and raw.endswith(each)), raw)


def _value(head: Head, name: bytes) -> bytes | None:
    """What the header *name* says; repeated lines are one list, an absent header is None."""
    found = [value.strip(b" \t") for key, value in head.headers if key.lower() == name]
    return b", ".join(found) if found else None


def _principal(tokens: Principals, head: Head) -> Principal | None:
    found = _BEARER.fullmatch(_value(head, b"authorization") or b"")
    return tokens.principal(found[1].decode("ascii")) if found else None


def _denied(head: Head, principal: Principal | None) -> Problem | None:
    if principal is None:
        return problems.NOBODY
    return None if _value(head, b"agenticdriver-version") in {None, b"1.0"} else problems.VERSION


def _barred(route: Route | None, principal: Principal | None) -> Problem | None:
    """Why the route is none, or none for *principal*; what a body asks for is judged where it was read."""
    if route == "metrics" and principal is not None and not principal.policy.read_metrics:
        return FORBIDDEN
    return problems.NOWHERE if route is None else None


def _route(rules: Rules, head: Head) -> Route | None:
    """The route of a fixed path."""
    route = ROUTES.get((head.method, head.target))
    missing = (route == "metrics" and not rules.metrics) or (route == "host" and not rules.host)
    return None if missing else route


def _events(rules: Rules, head: Head) -> tuple[Route | None, re.Match[bytes] | None]:
    """The route of a run's events, with the run and the cursor that its path names."""
    if head.method != "GET":
        return None, None
    if (found := _RUN_EVENTS.fullmatch(head.target)) is not None:
        return "run-events", found
    found = _HOST_EVENTS.fullmatch(head.target) if rules.host else None
    return (None, None) if found is None else ("host-events", found)


def _preflight(rules: Rules) -> Lines:
    asked = b"%b, %b" % (_ASKED, _CORRELATING) if rules.diagnostics else _ASKED
    return (_METHODS, (b"access-control-allow-headers", asked))


def _correlation(rules: Rules, route: Route, head: Head) -> Correlation | None:
    """The trace that a run joins; nothing that is detached or asked later does (overview §12)."""
    if not rules.diagnostics or route != "runs":
        return None
    return diagnostics.correlation(_value(head, b"traceparent"), _value(head, b"agenticdriver-request-id"))


def _unreadable(rules: Rules, head: Head) -> Problem | None:
    """Why the body will not be read (steps 10 to 12)."""
    if _MEDIA.fullmatch(_value(head, b"content-type") or b"") is None:
        return problems.MEDIA
    if (_value(head, b"content-encoding") or b"identity") != b"identity":
        return problems.ENCODING
    length = _value(head, b"content-length") or b""
    if length.isdigit() and (len(length) > _LENGTH_DIGITS_MAX or int(length) > rules.body_bytes_max):
        return problems.BODY
    return None
