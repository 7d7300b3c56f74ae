"""Jobs over HTTP: shapes to the letter, the order of checks, who may, and what the strictest client accepts."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.errors import Refused
from actors.jobs import Jobs
from api.grants import Policy
from api.parts import JobStore
from eventstore.store import Item, Unavailable
from tests.api.asgi_client import sent
from tests.api.asking import ALICE, JSON, Asked, People
from tests.api.fake_stores import AT_MS, FakeJobs
from tests.strict_client import checked_response

pytestmark = pytest.mark.anyio

SUBMIT, READ, CANCEL, EVENTS = "/v1/jobs/submit", "/v1/jobs/read", "/v1/jobs/cancel", "/v1/jobs/events"
PATHS = (SUBMIT, READ, CANCEL, EVENTS)
OPS = {SUBMIT: "job-submit", READ: "job-read", CANCEL: "job-cancel", EVENTS: "job-events"}
RUN: dict[str, Any] = {"provider": "mock", "model": "demo", "input": "x"}
ID = "0000000b-0000-4000-8000-00000000000b"
SESSION = {"session": {"id": ID, "revision": 0}}
LOOKUP = {"name": "lookup", "description": "x", "inputSchema": {}}
APPROVALS = {"approvals": {"mode": "interactive", "idlePolicy": "pause"}}

seldom = settings(max_examples=12, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just(10**400))
JSONS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def job(**request: Any) -> dict[str, Any]:
    """A submission, with these members in its request."""
    return {"key": "k", "request": RUN | request}


def a_body(path: str) -> dict[str, Any]:
    return job() if path == SUBMIT else {"id": ID, "after": 0} if path == EVENTS else {"id": ID}


def invalid(path: str) -> str:
    return "INVALID_JOB_CURSOR" if path == EVENTS else "INVALID_JOB"


async def accepted(host: Asked, path: str, body: dict[str, Any], *, who: str = "alice") -> Any:
    """The answer to *body*, which the strictest client accepts."""
    told = await host.post(path, body, who=who)
    return checked_response(OPS[path], body, told.status, told.headers, told.body)


async def submitted(host: Asked, **request: Any) -> str:
    """The id of a new job."""
    return str((await accepted(host, SUBMIT, job(**request)))["id"])


# What is answered.


async def test_a_new_job_is_shown_whole() -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    made = await accepted(host, SUBMIT, job())
    assert made == {
        "id": made["id"],
        "runId": made["id"],
        "provider": "mock",
        "model": "demo",
        "state": "queued",
        "cursor": 0,
        "cancelRequested": False,
        "createdAt": "2026-01-05T10:00:00.000Z",
        "updatedAt": "2026-01-05T10:00:00.000Z",
    }
    assert await accepted(host, READ, {"id": made["id"]}) == made
    assert await accepted(host, SUBMIT, job()) == made
    verb, submitter, key = store.asked[0]
    assert (verb, key) == ("submit", "k")
    assert (submitter.subject, submitter.principal) == ("alice", host.people.presented["alice"].id)


@pytest.mark.parametrize(
    ("kind", "cause", "state"),
    [
        ("completed", None, "completed"),
        ("failed", "rule", "failed"),
        ("failed", "node", "interrupted"),
        ("cancelled", "asked", "cancelled"),
        ("cancelled", "idle", "cancelled"),
    ],
)
async def test_a_job_is_shown_in_every_state(kind: str, cause: Any, state: str) -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    named = {"id": await submitted(host)}
    store.begin(named["id"])
    running = await accepted(host, READ, named)
    assert (running["state"], running["cursor"], "expiresAt" in running) == ("running", 1, False)
    store.end(named["id"], kind, cause)
    ended = await accepted(host, READ, named)
    assert (ended["state"], ended["cursor"], ended["cancelRequested"]) == (state, 2, cause == "asked")
    assert (ended["updatedAt"], ended["expiresAt"]) == ("2026-01-05T10:00:01.000Z", "2026-01-05T10:01:01.000Z")
    assert (await accepted(host, EVENTS, named | {"after": 0}))["job"] == ended
    assert await accepted(host, CANCEL, named) == ended


async def test_a_queued_job_that_is_cancelled_is_shown_so() -> None:
    host = Asked(jobs=FakeJobs())
    told = await accepted(host, CANCEL, {"id": await submitted(host)})
    assert (told["state"], told["cancelRequested"], told["cursor"]) == ("cancelled", True, 2)


async def test_a_job_outlives_its_last_change_whatever_the_clocks_said() -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    named = {"id": await submitted(host)}
    store.end(named["id"], "completed", at_ms=AT_MS - 3_600_000)
    assert (await accepted(host, READ, named))["expiresAt"] == "2026-01-05T10:00:00.001Z"


async def test_a_page_holds_the_stored_bytes_numbered() -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    job_id = await submitted(host)
    store.begin(job_id)
    store.tell(job_id, "step.started", step=1)
    store.tell(job_id, "text.delta", text="é🌍\u2028")
    odd = b'{"type":"text.delta","text":"\\u0061","n":1.50,"runId":"%b","sequence":,"timestamp":"%b"}'
    store.tell(job_id, "text.delta", text="")
    store.items[job_id][3] = Item(4, odd % (job_id.encode(), b"2026-01-05T10:00:00.000Z"))
    told = await host.post(EVENTS, {"id": job_id, "after": 2})
    assert "é🌍".encode() in told.body
    assert b'"text":"\\u0061","n":1.50,"runId":"%b","sequence":4,' % job_id.encode() in told.body
    page = await accepted(host, EVENTS, {"id": job_id, "after": 2})
    assert [event["sequence"] for event in page["events"]] == [3, 4]
    assert (page["nextCursor"], page["hasMore"]) == (4, False)


@pytest.mark.parametrize("limit", [1, 2, 3, 100, None])
async def test_pages_follow_each_other_without_a_gap(limit: int | None) -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    job_id = await submitted(host)
    store.begin(job_id)
    store.tell(job_id, "step.started", step=1)
    store.end(job_id, "completed")
    sequences, after, more = [], 0, True
    while more:
        body = {"id": job_id, "after": after} | ({} if limit is None else {"limit": limit})
        page = await accepted(host, EVENTS, body)
        sequences += [event["sequence"] for event in page["events"]]
        after, more = page["nextCursor"], page["hasMore"]
    assert sequences == [1, 2, 3]
    assert store.asked[-1][3] == (limit or 100)


async def test_a_page_at_the_cursor_is_empty_and_one_beyond_it_an_error() -> None:
    host = Asked(jobs=FakeJobs())
    job_id = await submitted(host)
    page = await accepted(host, EVENTS, {"id": job_id, "after": 0})
    assert (page["events"], page["nextCursor"], page["hasMore"]) == ([], 0, False)
    assert await host.code(EVENTS, {"id": job_id, "after": 1}) == "INVALID_JOB_CURSOR"


# Shapes.


MISSHAPEN: list[Any] = [
    {},
    [],
    None,
    {"key": "k"},
    {"request": RUN},
    {"key": "bad key", "request": RUN},
    {"key": "", "request": RUN},
    {"key": "-k", "request": RUN},
    {"key": "k" * 129, "request": RUN},
    {"key": None, "request": RUN},
    {"key": "k", "request": None},
    {"key": "k", "request": []},
    {"key": "k", "request": RUN, "interactive": 1},
    {"key": "k", "request": RUN, "other": True},
    job(extra=1),
    job(input=""),
    job(input=None),
    job(provider="a/b"),
    job(maxSteps=65),
    job(tools=[1]),
    job(session={"id": "x", "revision": 0}),
    job(session=None),
    job(metadata={"a": 1}),
]


async def test_a_submission_of_another_shape_is_refused_its_request_included() -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    for body in MISSHAPEN:
        assert await host.code(SUBMIT, body) == "INVALID_JOB", body
    assert store.asked == []


async def test_a_fault_in_the_request_is_named_by_its_place() -> None:
    told = await Asked(jobs=FakeJobs()).post(SUBMIT, job(maxSteps=65))
    assert json.loads(told.body)["error"]["message"].startswith("request: maxSteps: ")


ELSEWHERE: list[Any] = [
    {"id": ID.upper()},
    {"id": ID.replace("b", "B")},
    {"id": ID[:-1]},
    {"id": "x"},
    {"id": None},
    {"id": 1},
    {"id": ID, "extra": 1},
    {"id": ID + "\n"},
]


@pytest.mark.parametrize("path", [READ, CANCEL, EVENTS])
async def test_an_identity_of_another_shape_is_refused(path: str) -> None:
    host = Asked(jobs=FakeJobs())
    for change in ELSEWHERE:
        assert await host.code(path, a_body(path) | change) == invalid(path), change
    assert await host.code(path, []) == invalid(path)


NO_CURSORS: list[Any] = [
    {"after": -1},
    {"after": 0.5},
    {"after": True},
    {"after": None},
    {"after": "0"},
    {"after": 2**53},
    {"limit": 0},
    {"limit": 101},
    {"limit": None},
    {"limit": 1.5},
    {"cursor": 0},
]


async def test_a_cursor_of_another_shape_is_refused() -> None:
    host = Asked(jobs=FakeJobs())
    assert await host.code(EVENTS, {"id": ID}) == "INVALID_JOB_CURSOR"
    for change in NO_CURSORS:
        assert await host.code(EVENTS, {"id": ID, "after": 0} | change) == "INVALID_JOB_CURSOR", change


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_no_json_is_no_request_and_what_is_none_of_ours_no_job(path: str) -> None:
    host = Asked(jobs=FakeJobs())
    for body in (b"", b"{", b"\xff", b'{"id":1,"id":1}', b'{"id":NaN}', b"x" * 70_000):
        assert await host.code(path, body) == "INVALID_REQUEST", body[:40]
    assert await host.code(path, b'{"id":1e400}') == invalid(path)
    assert await host.code(path, b"[%b1]" % (b"1," * 50_000)) == invalid(path)


CHANGES = st.tuples(
    st.dictionaries(st.sampled_from(["key", "request", "id", "after", "limit", "x"]), JSONS, max_size=3),
    st.dictionaries(st.sampled_from([*RUN, "tools", "session", "outputSchema", "retry"]), JSONS, max_size=2),
)


@given(st.lists(CHANGES, min_size=1, max_size=8))
@seldom
async def test_whatever_is_posted_is_a_job_or_a_typed_refusal(
    changes: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    host = Asked(jobs=FakeJobs())
    for path, (change, inner) in product(PATHS, changes):
        body = (job(**inner) if path == SUBMIT else a_body(path)) | change
        told = await host.post(path, body)
        assert told.status < 500, body
        if told.status == 200:
            checked_response(OPS[path], body, told.status, told.headers, told.body)


# Order.


@pytest.mark.parametrize("path", PATHS)
async def test_each_check_comes_before_the_next(path: str) -> None:
    store = FakeJobs()
    without, host = Asked(), Asked(jobs=store)
    assert await without.code(path, b"{") == "INVALID_REQUEST"
    assert await without.code(path, {"extra": 1}, who="idle") == "JOBS_UNAVAILABLE"
    assert await without.code(path, b'{"extra":1e400}') == "JOBS_UNAVAILABLE"
    assert await without.code(path, a_body(path)) == "JOBS_UNAVAILABLE"
    assert await host.code(path, {"extra": 1}, who="idle") == invalid(path)
    store.refusal = Refused("JOB_NOT_FOUND")
    assert await host.code(path, a_body(path), who="idle") == "FORBIDDEN"
    assert store.asked == []
    assert await host.code(path, a_body(path)) == "JOB_NOT_FOUND"


UNSUPPORTED: list[dict[str, Any]] = [
    SESSION,
    {"applicationTools": [LOOKUP], "tools": ["lookup"]},
    APPROVALS,
    {"idempotencyKey": "k"},
]


@pytest.mark.parametrize("member", UNSUPPORTED)
async def test_a_submission_is_checked_in_its_order(member: dict[str, Any]) -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    everything = member | {"provider": "nowhere"}
    assert await host.code(SUBMIT, job(**everything, extra=1), who="idle") == "INVALID_JOB"
    assert await host.code(SUBMIT, job(**everything), who="idle") == "FORBIDDEN"
    assert await host.code(SUBMIT, job(**everything)) == "JOB_REQUEST_UNSUPPORTED"
    assert await host.code(SUBMIT, job(provider="nowhere")) == "UNKNOWN_PROVIDER"
    assert await host.code(SUBMIT, job(tools=["burn"])) == "FORBIDDEN"
    assert store.asked == []
    store.refusal = Refused("JOB_ACCOUNT_REQUIRED")
    assert await host.code(SUBMIT, job()) == "JOB_ACCOUNT_REQUIRED"


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({"model": "none"}, "UNSUPPORTED_MODEL"),
        ({"tools": ["none"]}, "UNKNOWN_TOOL"),
        ({"requiredCapabilities": ["none"]}, "UNSUPPORTED_CAPABILITY"),
        ({"outputSchema": {"type": 1}}, "INVALID_SCHEMA"),
        ({"outputArtifact": {"name": "..", "mediaType": "text/plain"}}, "INVALID_ARTIFACT"),
        ({"tools": ["burn"]}, "FORBIDDEN"),
        ({"retrieval": {"corpus": "secrets"}}, "FORBIDDEN"),
    ],
)
async def test_a_submission_must_be_a_run_that_its_caller_may_run(member: dict[str, Any], code: str) -> None:
    store = FakeJobs()
    assert await Asked(jobs=store).code(SUBMIT, job(**member)) == code
    assert store.asked == []


async def test_a_large_submission_is_taken_like_a_small_one() -> None:
    instructions = "x" * 90_000
    assert await submitted(Asked(jobs=FakeJobs()), instructions=instructions, outputSchema={"type": "object"})


# Who may.


@pytest.mark.parametrize("path", PATHS)
async def test_each_operation_is_granted_by_itself(path: str) -> None:
    needed = {SUBMIT: "submit", CANCEL: "cancel"}.get(path, "read")
    rest = tuple(each for each in ALICE.jobs if each != needed)
    host = Asked(jobs=FakeJobs(), people=People(alice=ALICE, less=replace(ALICE, jobs=rest), only=_only(needed)))
    job_id = await submitted(host)
    body = job() if path == SUBMIT else a_body(path) | {"id": job_id}
    assert await host.code(path, body, who="less") == "FORBIDDEN"
    assert await host.code(path, body, who="only") == ""


def _only(operation: Any) -> Policy:
    return replace(ALICE, jobs=(operation,))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "change",
    [
        {"jobs": ()},
        {"subject": "eve"},
        {"providers": ("other",)},
        {"tools": ()},
        {"retrieval": ALICE.retrieval.__class__()},
    ],
)
async def test_a_call_may_no_more_than_its_principal_may_by_now(path: str, change: dict[str, Any]) -> None:
    host = Asked(jobs=FakeJobs())
    request = {"tools": ["write"], "retrieval": {"corpus": "notes"}}
    job_id = await submitted(host, **request)
    body = job(**request) if path == SUBMIT else a_body(path) | {"id": job_id}
    assert await host.code(path, body) == ""
    host.people.change("alice", **change)
    assert await host.code(path, body) == "FORBIDDEN"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("change", [{"providers": ("other",)}, {"tools": ()}, {"jobs": ()}])
async def test_a_call_may_no_more_than_what_it_presents(path: str, change: dict[str, Any]) -> None:
    host = Asked(jobs=FakeJobs(), people=People(alice=ALICE, less=replace(ALICE, **change)))
    host.people.change("less", providers=ALICE.providers, tools=ALICE.tools, jobs=ALICE.jobs)
    job_id = await submitted(host, tools=["write"])
    body = job(tools=["write"]) if path == SUBMIT else a_body(path) | {"id": job_id}
    assert await host.code(path, body, who="less") == "FORBIDDEN"


@pytest.mark.parametrize("path", PATHS)
async def test_a_principal_that_is_gone_may_nothing(path: str) -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    host.people.forget("alice")
    assert await host.code(path, a_body(path)) == "FORBIDDEN"
    assert store.asked == []


@pytest.mark.parametrize("path", [READ, CANCEL, EVENTS])
async def test_another_subject_finds_nothing_and_another_token_of_the_subject_the_job(path: str) -> None:
    host = Asked(jobs=FakeJobs(), people=People(alice=ALICE, second=ALICE, bob=replace(ALICE, subject="bob")))
    body = a_body(path) | {"id": await submitted(host)}
    foreign, unknown = await host.post(path, body, who="bob"), await host.post(path, a_body(path), who="bob")
    assert (foreign.status, foreign.body) == (unknown.status, unknown.body)
    assert await host.code(path, body, who="second") == ""


# What the service refuses, and the gate.


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("JOBS_UNAVAILABLE", 503),
        ("JOB_ACCOUNT_REQUIRED", 400),
        ("JOB_NOT_FOUND", 404),
        ("JOB_EXPIRED", 410),
        ("INVALID_JOB_CURSOR", 400),
        ("IDEMPOTENCY_CONFLICT", 409),
        ("JOB_STORE_FULL", 429),
        ("JOB_RECORD_LIMIT", 502),
        ("JOB_STORE_ERROR", 503),
        ("CONTEXT_REPLAY_UNAVAILABLE", 502),
    ],
)
async def test_what_the_service_refuses_is_told_with_its_status(code: str, status: int) -> None:
    store = FakeJobs()
    host = Asked(jobs=store)
    store.refusal = Refused(code, uncertain=status == 502)
    for path in PATHS:
        told = await host.post(path, a_body(path))
        error = json.loads(told.body)["error"]
        assert (told.status, error["code"], error["retryable"]) == (status, code, False)
        assert error.get("outcome") == ("uncertain" if status == 502 else None)
    store.refusal = Unavailable("away")
    assert await host.code(READ, {"id": ID}) == "STORE_UNAVAILABLE"


@pytest.mark.parametrize(
    ("body", "who", "code", "status"),
    [
        ({}, "alice", "INVALID_JOB", 400),
        (job(**SESSION), "alice", "JOB_REQUEST_UNSUPPORTED", 400),
        (job(), "idle", "FORBIDDEN", 403),
    ],
)
async def test_what_the_edge_refuses_is_told_with_its_status(body: Any, who: str, code: str, status: int) -> None:
    told = await Asked(jobs=FakeJobs()).post(SUBMIT, body, who=who)
    assert (told.status, json.loads(told.body)["error"]["code"]) == (status, code)


@pytest.mark.parametrize("path", PATHS)
async def test_the_checks_before_a_route_hold_for_every_post(path: str) -> None:
    host = Asked(jobs=FakeJobs())
    app, who = host.app, (b"authorization", b"Bearer alice")
    assert (await sent(app, "POST", path.encode(), [JSON], b"{}")).status == 401
    assert (await sent(app, "GET", path.encode(), [who])).status == 404
    assert (await sent(app, "POST", f"{path}?x=1".encode(), [JSON, who], b"{}")).status == 404
    assert (await sent(app, "POST", f"{path}/".encode(), [JSON, who], b"{}")).status == 404
    assert (await sent(app, "POST", path.encode(), [who], b"{}")).status == 400
    host.gate.close()
    assert (await sent(app, "POST", path.encode(), [JSON, who], b"{}")).status == 503


def fitting(service: Jobs) -> JobStore:
    """The service is what the edge asks; the type checkers say so."""
    return service
