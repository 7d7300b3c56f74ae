"""Sessions over HTTP: shapes to the letter, the order of checks, and what the strictest client accepts."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.errors import Refused
from actors.events import SessionTurn, Visible
from actors.sessions import Sessions, Wanted
from api.parts import SessionStore
from eventstore.store import Unavailable
from projections import session_view
from tests.api.asgi_client import sent
from tests.api.asking import JSON, Asked
from tests.api.fake_stores import AT_MS, RETENTION_MS, FakeSessions
from tests.strict_client import checked_response

pytestmark = pytest.mark.anyio

CREATE, READ, DELETE = "/v1/sessions/create", "/v1/sessions/read", "/v1/sessions/delete"
PATHS = (CREATE, READ, DELETE)
NEW: dict[str, Any] = {"provider": "mock", "model": "demo", "mode": "history"}
ID = "0000000a-0000-4000-8000-00000000000b"
OPS = {CREATE: "session-create", READ: "session-read", DELETE: "session-delete"}

seldom = settings(max_examples=12, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just(10**400))
JSONS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


async def accepted(host: Asked, path: str, body: dict[str, Any]) -> Any:
    """The answer to *body*, which the strictest client accepts."""
    told = await host.post(path, body)
    return checked_response(OPS[path], body, told.status, told.headers, told.body)


def a_body(path: str) -> dict[str, Any]:
    return NEW if path == CREATE else {"id": ID}


# What is answered.


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"history": []},
        {"instructions": ""},
        {"instructions": "Be brief.", "mode": "native"},
        {"history": [{"role": "assistant", "content": ""}, {"role": "user", "content": "\u2028é🌍\x00"}]},
        {"history": [{"role": "user", "content": "x"}] * 100},
        {"model": "a/b:c[1]_-."},
    ],
)
async def test_a_new_session_is_what_was_asked_for_and_is_read_again_as_it_was_shown(more: dict[str, Any]) -> None:
    host = Asked(sessions=FakeSessions())
    made = await accepted(host, CREATE, NEW | more)
    assert made.keys() == {"session", "history"} | ({"instructions"} if "instructions" in more else set())
    assert await accepted(host, READ, {"id": made["session"]["id"]}) == made
    assert await accepted(host, DELETE, {"id": made["session"]["id"]}) == {"id": made["session"]["id"], "deleted": True}
    assert await host.code(READ, {"id": made["session"]["id"]}) == "SESSION_NOT_FOUND"


async def test_what_is_asked_reaches_the_service_unchanged() -> None:
    store = FakeSessions()
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    await accepted(Asked(sessions=store), CREATE, NEW | {"mode": "native", "history": said, "instructions": "i"})
    history = (Visible("user", "a"), Visible("assistant", "b"))
    assert store.asked == [("create", Wanted("mock", "demo", "native", history, "i"))]


async def test_a_session_is_shown_in_every_state() -> None:
    store = FakeSessions()
    host = Asked(sessions=store)
    named = {"id": (await accepted(host, CREATE, NEW))["session"]["id"]}
    store.change(named["id"], running="a-run", revision=3)
    running = (await accepted(host, READ, named))["session"]
    assert (running["state"], running["revision"], "expiresAt" in running) == ("running", 3, False)
    store.change(named["id"], running="", interrupted=True, updated_ms=AT_MS + 7)
    assert (await accepted(host, READ, named))["session"] == {
        "id": named["id"],
        "revision": 3,
        "provider": "mock",
        "model": "demo",
        "mode": "history",
        "state": "interrupted",
        "createdAt": "2026-01-05T10:00:00.000Z",
        "updatedAt": "2026-01-05T10:00:00.007Z",
        "expiresAt": "2026-01-05T10:01:00.007Z",
    }


def test_the_session_of_a_result_is_the_next_revision_and_never_older_than_the_last() -> None:
    turn = SessionTurn(ID, 3, 4, "native", AT_MS, AT_MS + 5, RETENTION_MS)
    later = session_view.committed(turn, "mock", "demo", AT_MS + 9)
    assert (later.id, later.revision, later.provider, later.model, later.mode) == (ID, 5, "mock", "demo", "native")
    assert (later.state, later.created_at) == ("ready", "2026-01-05T10:00:00.000Z")
    assert (later.updated_at, later.expires_at) == ("2026-01-05T10:00:00.009Z", "2026-01-05T10:01:00.009Z")
    assert session_view.committed(turn, "mock", "demo", AT_MS).updated_at == "2026-01-05T10:00:00.005Z"


# Shapes.


MISSHAPEN: list[Any] = [
    {"subject": "forged"},
    {"id": ID},
    {"Provider": "mock"},
    {"provider": ""},
    {"provider": "-x"},
    {"provider": "x" * 81},
    {"provider": "a/b"},
    {"provider": None},
    {"model": ""},
    {"model": "x" * 201},
    {"model": "[x"},
    {"model": "a b"},
    {"mode": "both"},
    {"mode": None},
    {"history": None},
    {"history": {}},
    {"history": [{"role": "user", "content": "x"}] * 101},
    {"history": [{"role": "system", "content": "x"}]},
    {"history": [{"role": "user"}]},
    {"history": [{"role": "user", "content": None}]},
    {"history": [{"role": "user", "content": "x", "name": "y"}]},
    {"history": [{"role": "user", "content": "x" * 100_001}]},
    {"history": [{"role": "user", "content": "🌍" * 50_001}]},
    {"instructions": None},
    {"instructions": "x" * 100_001},
]


async def test_a_creation_of_another_shape_is_refused() -> None:
    store = FakeSessions()
    host = Asked(sessions=store)
    for change in MISSHAPEN:
        assert await host.code(CREATE, NEW | change) == "INVALID_SESSION", change
    for missing in NEW:
        body = {name: value for name, value in NEW.items() if name != missing}
        assert await host.code(CREATE, body) == "INVALID_SESSION", missing
    assert store.asked == []


async def test_texts_are_measured_in_utf_16_units() -> None:
    host = Asked(sessions=FakeSessions())
    for text in ("x" * 100_000, "🌍" * 50_000):
        await accepted(host, CREATE, NEW | {"history": [{"role": "user", "content": text}]})
        await accepted(host, CREATE, NEW | {"instructions": text})


NO_NAMES: list[Any] = [
    {},
    [],
    None,
    "x",
    {"id": 1},
    {"id": None},
    {"id": "x"},
    {"id": ID + "0"},
    {"id": f"{ID}\n"},
    {"id": ID, "extra": 1},
]


@pytest.mark.parametrize("path", [READ, DELETE])
async def test_an_identity_of_another_shape_is_refused(path: str) -> None:
    host = Asked(sessions=FakeSessions())
    for body in NO_NAMES:
        assert await host.code(path, body) == "INVALID_SESSION", body


@pytest.mark.parametrize("path", [READ, DELETE])
async def test_an_id_passes_in_any_letter_case_but_is_looked_up_as_it_is(path: str) -> None:
    store = FakeSessions()
    host = Asked(sessions=store)
    made = (await accepted(host, CREATE, NEW))["session"]["id"]
    assert made.upper() != made
    assert await host.code(path, {"id": made.upper()}) == "SESSION_NOT_FOUND"
    assert await host.code(path, {"id": made}) == ""


BYTES = [
    (b"", "INVALID_REQUEST"),
    (b"{", "INVALID_REQUEST"),
    (b"\xff", "INVALID_REQUEST"),
    (b'{"id":1,"id":1}', "INVALID_REQUEST"),
    (b'{"id":NaN}', "INVALID_REQUEST"),
    (b'{"id":"\\ud800"}', "INVALID_REQUEST"),
    (b'{"id":1e400}', "INVALID_SESSION"),
    (b"x" * 70_000, "INVALID_REQUEST"),
    (b"[%b1]" % (b"1," * 50_000), "INVALID_SESSION"),
    (b" " * 1_000_001, "BODY_TOO_LARGE"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_no_json_is_no_request_and_what_is_none_of_ours_no_session(path: str) -> None:
    host = Asked(sessions=FakeSessions())
    for body, code in BYTES:
        assert await host.code(path, body) == code, body[:40]


CHANGES = st.dictionaries(st.sampled_from([*NEW, "history", "instructions", "id", "x"]), JSONS, min_size=1, max_size=3)


@given(st.lists(CHANGES, min_size=1, max_size=8))
@seldom
async def test_whatever_is_posted_is_a_session_or_a_typed_refusal(changes: list[dict[str, Any]]) -> None:
    host = Asked(sessions=FakeSessions())
    for path, change in product(PATHS, changes):
        body = a_body(path) | change
        told = await host.post(path, body)
        code = "" if told.status == 200 else json.loads(told.body)["error"]["code"]
        assert code in {"", "INVALID_SESSION", "INVALID_REQUEST", "SESSION_NOT_FOUND", "FORBIDDEN"}, body
        if not code:
            checked_response(OPS[path], body, told.status, told.headers, told.body)


# Order, and who.


@pytest.mark.parametrize("path", PATHS)
async def test_each_check_comes_before_the_next(path: str) -> None:
    without, host = Asked(), Asked(sessions=FakeSessions())
    assert await without.code(path, b"{") == "INVALID_REQUEST"
    assert await without.code(path, {"extra": 1}, who="idle") == "SESSIONS_UNAVAILABLE"
    assert await without.code(path, b'{"extra":1e400}') == "SESSIONS_UNAVAILABLE"
    assert await without.code(path, a_body(path)) == "SESSIONS_UNAVAILABLE"
    assert await host.code(path, {"extra": 1}, who="idle") == "INVALID_SESSION"
    unknown = "FORBIDDEN" if path == CREATE else "SESSION_NOT_FOUND"
    assert await host.code(path, a_body(path), who="idle") == unknown


@pytest.mark.parametrize("path", [READ, DELETE])
async def test_each_operation_is_granted_by_itself_and_another_subject_finds_nothing(path: str) -> None:
    store = FakeSessions()
    host = Asked(sessions=store)
    named = {"id": (await accepted(host, CREATE, NEW))["session"]["id"]}
    foreign, unknown = await host.post(path, named, who="bob"), await host.post(path, {"id": ID}, who="bob")
    assert (foreign.status, foreign.body) == (unknown.status, unknown.body)
    assert await host.code(path, named, who="idle") == "FORBIDDEN"
    assert await host.code(CREATE, NEW | {"provider": "none"}) == "FORBIDDEN"
    assert await host.code(path, named) == ""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNSUPPORTED_CONTINUATION", 400),
        ("UNSUPPORTED_MODEL", 400),
        ("UNKNOWN_PROVIDER", 400),
        ("SESSION_ACCOUNT_REQUIRED", 400),
        ("SESSION_CONTEXT_LIMIT", 400),
        ("FORBIDDEN", 403),
        ("SESSION_NOT_FOUND", 404),
        ("SESSION_ACCOUNT_CHANGED", 409),
        ("SESSION_CAPACITY", 429),
    ],
)
async def test_what_the_service_refuses_is_told_with_its_status(code: str, status: int) -> None:
    store = FakeSessions()
    host = Asked(sessions=store)
    store.refusal = Refused(code)
    for path in PATHS:
        told = await host.post(path, a_body(path))
        error = json.loads(told.body)["error"]
        assert (told.status, error["code"], error["retryable"]) == (status, code, False)
    store.refusal = Unavailable("away")
    assert await host.code(READ, {"id": ID}) == "STORE_UNAVAILABLE"


@pytest.mark.parametrize("path", PATHS)
async def test_the_checks_before_a_route_hold_for_every_post(path: str) -> None:
    host = Asked(sessions=FakeSessions())
    app, who = host.app, (b"authorization", b"Bearer alice")
    assert (await sent(app, "POST", path.encode(), [JSON], b"{}")).status == 401
    assert (await sent(app, "GET", path.encode(), [who])).status == 404
    assert (await sent(app, "POST", f"{path}?x=1".encode(), [JSON, who], b"{}")).status == 404
    assert (await sent(app, "POST", f"{path}/".encode(), [JSON, who], b"{}")).status == 404
    assert (await sent(app, "POST", path.encode(), [who], b"{}")).status == 400
    host.gate.close()
    assert (await sent(app, "POST", path.encode(), [JSON, who], b"{}")).status == 503


def fitting(service: Sessions) -> SessionStore:
    """The service is what the edge asks; the type checkers say so."""
    return service
