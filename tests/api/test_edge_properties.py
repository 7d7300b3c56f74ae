"""Whatever is thrown at any route: a typed answer, no 5xx, no hang, nothing of another subject."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.request import RunRequest
from api.app import create_app
from providers.discovery import Discovery
from providers.mock import Mock
from tests.api.asgi_client import Told, sent
from tests.api.fake_runs import Attended, FakeRuns, completed
from tests.api.hosted import RUN, TOKENS, hosted, parts
from tests.http_client import HttpBroken, connected
from tests.strict_client import host_answer, host_headers, host_rules

pytestmark = pytest.mark.anyio
UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large)
often = settings(max_examples=150, deadline=None, suppress_health_check=UNHURRIED)
seldom = settings(max_examples=40, deadline=None, suppress_health_check=UNHURRIED)

AUTH = (b"authorization", b"Bearer " + TOKENS["reader"].encode())
NOBODY = (b"authorization", b"Bearer " + TOKENS["nobody"].encode())
JSON = (b"content-type", b"application/json")
STREAM = (b"accept", b"text/event-stream")

METHODS = st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "M-SEARCH"])
ROUTES = st.sampled_from(
    b"/health /v1/protocol /v1/providers /v1/providers?refresh=true /v1/runs /v1/approvals/decisions "
    b"/v1/tool-executions/progress /v1/tool-executions/results /v1/sessions/create /v1/sessions/read "
    b"/v1/sessions/delete /v1/jobs/submit /v1/jobs/read /v1/jobs/cancel /v1/jobs/events".split()
)
TARGETS = st.one_of(
    ROUTES, st.binary(max_size=40).map(lambda tail: b"/" + tail), st.builds(bytes.__add__, ROUTES, st.binary())
)
NAMES = st.one_of(
    st.sampled_from(
        b"authorization agenticdriver-version origin accept content-type content-encoding content-length host cookie "
        b"transfer-encoding expect".split()
    ),
    st.from_regex(rb"[a-z-]{1,20}", fullmatch=True),
)
HEADERS = st.lists(
    st.tuples(NAMES, st.one_of(st.binary(max_size=60), st.sampled_from([AUTH[1], b"1.0", JSON[1], b"*/*"])))
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(2**63), st.just(1e400)
)
JSONS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
MEMBERS = st.sampled_from(
    [
        "provider",
        "model",
        "input",
        "instructions",
        "history",
        "attachments",
        "retrieval",
        "outputArtifact",
        "session",
        "idempotencyKey",
        "retry",
        "approvals",
        "applicationTools",
        "tools",
        "requiredCapabilities",
        "maxSteps",
        "maxOutputTokens",
        "idleTimeoutMs",
        "outputSchema",
        "metadata",
        "other",
    ]
)
NEARLY = st.dictionaries(MEMBERS, st.one_of(JSONS, st.sampled_from([[], {}, "mock", "demo", 1])), max_size=4).map(
    lambda patch: RUN | patch
)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSONS.map(lambda value: json.dumps(value).encode()),
    NEARLY.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [b"[" * 100_000, b'{"a":' * 50_000, b"1" * 100_000, b'{"input":"\\ud800"}', b"\xef\xbb\xbf{}", b"NaN"]
    ),
)


async def echoing(run: Attended, request: RunRequest, subject: str) -> None:
    run.tell("step.started", step=1)
    await anyio.lowlevel.checkpoint()
    completed(run, request, f"for {subject}")


@asynccontextmanager
async def edge() -> AsyncIterator[Any]:
    async with Discovery({"mock": Mock()}) as discovery:
        yield create_app(parts(FakeRuns(echoing), discovery))


def judged(told: Told, *, method: str = "GET") -> None:
    """Nothing, if a host may answer this to whatever was asked."""
    assert told.whole
    assert told.status < 500
    stream = any(value.startswith("text/event-stream") for name, value in told.headers if name == "content-type")
    host_headers(told.status, told.headers, stream=stream)
    if told.status != 204 and not stream and method != "HEAD":
        host_answer(told.status, told.headers, told.body)


@often
@given(method=METHODS, target=TARGETS, headers=HEADERS, body=BODIES, known=st.booleans())
async def test_any_request_gets_a_typed_answer(
    *, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes, known: bool
) -> None:
    async with edge() as app:
        judged(await sent(app, method, target, [*headers, *([AUTH] if known else [])], body), method=method)
        assert app.parts.faults.count == 0


@often
@given(body=BODIES, streamed=st.booleans(), who=st.sampled_from([AUTH, NOBODY]))
async def test_any_body_is_run_or_refused(*, body: bytes, streamed: bool, who: tuple[bytes, bytes]) -> None:
    async with edge() as app:
        told = await sent(app, "POST", b"/v1/runs", [who, JSON, *([STREAM] if streamed else [])], body)
        judged(told)
        assert app.parts.faults.count == 0
        runs: FakeRuns = app.parts.runs
        assert {subject for subject, _ in runs.asked} <= {"ann"}
        assert (told.status == 200) == bool(runs.asked) or told.status == 400
        if told.status == 200 and streamed:
            host_rules(told.body, json.loads(body))
        assert b"for ann" not in told.body or who == AUTH
        assert not runs.attended


@seldom
@given(st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=4), METHODS, TARGETS)
async def test_any_bytes_on_a_socket_end_without_a_5xx(pieces: list[bytes], method: str, target: bytes) -> None:
    begin = method.encode() + b" " + target.replace(b" ", b"") + b" HTTP/1.1\r\n"
    async with hosted(echoing) as host:
        for first in (b"", begin):
            async with connected(host.target) as connection:
                try:
                    for piece in (first, *pieces, b"\r\n\r\n"):
                        await connection.send(piece)
                    await connection.end_of_request()
                    head = await connection.head()
                    assert head.status < 500
                    assert head.values("AgenticDriver-Version") == ["1.0"]
                except (HttpBroken, ConnectionError, IndexError):
                    pass  # it hung up, which is an answer too
        assert host.app.parts.faults.count == 0
