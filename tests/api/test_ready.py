"""Whether a node takes work, and who may read its metrics: `/ready` and `/metrics`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runstream
from actors.telemetry import Correlation
from api import pipeline
from api.diagnostics import correlation
from api.grants import Policy
from api.pipeline import Admitted, Answered, Head, Rules
from api.wire.readiness import Facts, why_not
from eventstore import clock
from eventstore.store import Unavailable
from runstream import wiring
from runstream.host import Host
from runstream.settings import NodeSection, Settings, TelemetrySettings
from runstream.tokens import entry_for
from tests.actors.support import until, until_so
from tests.api.asgi_client import Told, sent
from tests.api.asking import ALICE, Asked, People

SCRAPER, CLIENT = "s" * 43, "c" * 43
TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
UUID = b"7D0F3C52-91AB-4C6E-8A15-2B6D4E0C9F31"


def test_a_node_takes_work_once_every_partition_has_answered_lately() -> None:
    assert why_not(Facts(touched_ms=(9_000, 8_000), now_ms=10_000)) == ()
    assert why_not(Facts(touched_ms=(9_000, 7_999), now_ms=10_000)) == ("store",)
    assert why_not(Facts(touched_ms=(9_000, 7_999), now_ms=10_000, silent_ms_max=4_000)) == ()
    assert why_not(Facts(touched_ms=(9_000, None), now_ms=10_000)) == ("starting",)
    assert why_not(Facts(touched_ms=(9_000, 0), now_ms=10_000)) == ("store",)
    assert why_not(Facts(starting=True)) == ("starting",)
    assert why_not(Facts(draining=True)) == ("draining",)
    assert why_not(Facts(starting=True, draining=True, touched_ms=(0,), now_ms=9_000)) == (
        "starting",
        "draining",
        "store",
    )


@given(
    starting=st.booleans(),
    draining=st.booleans(),
    touched=st.lists(st.none() | st.integers(0, 20_000), max_size=5),
    now_ms=st.integers(0, 20_000),
)
def test_it_is_ready_exactly_if_nothing_speaks_against_it(
    *, starting: bool, draining: bool, touched: list[int | None], now_ms: int
) -> None:
    lately = all(at is not None and now_ms - at <= 2_000 for at in touched)
    ready = why_not(Facts(starting, draining, touched, now_ms)) == ()
    assert ready == (not starting and not draining and lately)


@asynccontextmanager
async def hosted(tmp_path: Path, *, metrics: bool = True, held: bool = False) -> AsyncIterator[Host]:
    settings = Settings(
        state_dir=tmp_path,
        profile="memory",
        partitions=3,
        node=NodeSection(routine_ms=100, drain_s=0),
        tokens=(
            entry_for(SCRAPER, subject="scraper", providers=(), read_metrics=True),
            entry_for(CLIENT, subject="ann", providers=("scripted",)),
        ),
        telemetry=TelemetrySettings(metrics=metrics),
    )
    async with runstream.open(settings, held=held) as host:
        yield host


async def ready(host: Host) -> list[str]:
    """What the host says against itself; it needs no token for that, and the status says the same."""
    told = await sent(host.app, "GET", b"/ready", [])
    body = json.loads(told.body)
    assert (told.status, body["status"]) == ((503, "not-ready") if "why" in body else (200, "ready"))
    assert ("cache-control", "no-store") in told.headers
    return list(body.get("why", []))


async def until_ready(host: Host) -> None:
    async def is_ready() -> bool:
        return not await ready(host)

    await until_so(is_ready)


async def read(host: Host, token: str) -> Told:
    return await sent(host.app, "GET", b"/metrics", [(b"authorization", b"Bearer " + token.encode())])


def code(told: Told) -> str:
    return str(json.loads(told.body)["error"]["code"])


@pytest.mark.anyio
async def test_a_host_is_ready_between_its_start_and_its_end(tmp_path: Path) -> None:
    async with hosted(tmp_path, held=True) as host:
        assert await ready(host) == ["starting"]
        await until(lambda: None not in host.node.sweeps.touched_ms())
        assert await ready(host) == ["starting"]
        host.begin()
        assert await ready(host) == []
        host.close()
        assert await ready(host) == ["draining"]
        assert (await sent(host.app, "GET", b"/health", [])).status == 503


@pytest.mark.anyio
async def test_a_host_whose_store_is_silent_is_not_ready_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosted(tmp_path) as host:
        await until_ready(host)
        answering = host.store.sweep

        async def silent(partition: int, **how: Any) -> Any:
            if partition == 1:
                raise Unavailable("silent")
            return await answering(partition, **how)

        with monkeypatch.context() as patched:
            patched.setattr(host.store, "sweep", silent)
            await until(lambda: host.node.levels().silent == 1)
            assert await ready(host) == ["store"]
            told = (await read(host, SCRAPER)).body.decode()
            assert "runstream_store_silent 1.0" in told
            assert "runstream_store_pauses_total 1.0" in told
        await until_ready(host)


@pytest.mark.anyio
async def test_a_host_whose_store_answers_nothing_at_all_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosted(tmp_path) as host:
        await until_ready(host)
        now_ms = clock.mono_ms()
        monkeypatch.setattr(wiring, "clock", SimpleNamespace(mono_ms=lambda: now_ms + 60_000))
        assert await ready(host) == ["store"]


@pytest.mark.anyio
async def test_metrics_are_for_a_token_that_may_read_them(tmp_path: Path) -> None:
    async with hosted(tmp_path) as host:
        told = await read(host, SCRAPER)
        assert told.status == 200
        assert ("content-type", "text/plain; version=0.0.4; charset=utf-8") in told.headers
        assert b"runstream_leases 0.0" in told.body
        assert ((await read(host, CLIENT)).status, code(await read(host, CLIENT))) == (403, "FORBIDDEN")
        assert (await read(host, "n" * 43)).status == 401


@pytest.mark.anyio
async def test_there_are_no_metrics_where_they_are_off(tmp_path: Path) -> None:
    async with hosted(tmp_path, metrics=False) as host:
        for token in (SCRAPER, CLIENT):
            assert ((await read(host, token)).status, code(await read(host, token))) == (404, "NOT_FOUND")


@pytest.mark.anyio
async def test_a_gate_that_is_shut_is_told_by_readiness_too() -> None:
    host = Asked(people=People(alice=ALICE))
    assert (await sent(host.app, "GET", b"/ready", [])).body == b'{"status":"ready"}'
    host.gate.starting = True
    assert (await sent(host.app, "GET", b"/ready", [])).body == b'{"status":"not-ready","why":["starting"]}'
    host.gate.open()
    host.gate.close()
    assert (await sent(host.app, "GET", b"/ready", [])).body == b'{"status":"not-ready","why":["draining"]}'


# The head of a request.


def decided(method: str, target: bytes, *headers: pipeline.Line, **rules: Any) -> Admitted | Answered:
    people = People(
        ann=Policy(subject="ann", providers=()), reader=Policy(subject="reader", providers=(), read_metrics=True)
    )
    known = Rules(people, frozenset({b"https://desk.example"}), **rules)
    return pipeline.decided(known, "open", Head(method, target, headers))


def test_metrics_are_found_before_they_are_forbidden() -> None:
    ann, reader = (b"authorization", b"Bearer ann"), (b"authorization", b"Bearer reader")
    assert [decided("GET", b"/metrics", who) for who in (ann, reader)] == [decided("GET", b"/nowhere", ann)] * 2
    assert isinstance(decided("GET", b"/metrics", reader, metrics=True), Admitted)
    refused = decided("GET", b"/metrics", ann, metrics=True)
    assert isinstance(refused, Answered)
    assert refused.status == 403


def test_an_origin_that_is_not_allowed_learns_nothing_of_readiness() -> None:
    told = decided("GET", b"/ready", (b"origin", b"https://other.test"))
    assert isinstance(told, Answered)
    assert told.status == 403


@pytest.mark.parametrize("diagnostics", [True, False])
def test_a_browser_may_send_the_diagnostic_headers_where_they_are_read(*, diagnostics: bool) -> None:
    told = decided("OPTIONS", b"/v1/runs", (b"origin", b"https://desk.example"), diagnostics=diagnostics)
    allowed = dict(told.headers)[b"access-control-allow-headers"]
    assert (
        allowed.endswith(b"AgenticDriver-Accept-Optional-Events, AgenticDriver-Request-Id, traceparent") == diagnostics
    )


def test_a_trace_is_joined_by_runs_alone_and_only_where_that_is_on() -> None:
    head = ((b"authorization", b"Bearer ann"), (b"content-type", b"application/json"))
    traced = (*head, (b"traceparent", b"00-%b-%b-01" % (TRACE, SPAN)))
    joined = Correlation(int(TRACE, 16), int(SPAN, 16), sampled=True)
    told = [
        decided("POST", b"/v1/runs", *traced, diagnostics=True),
        decided("POST", b"/v1/runs", *traced),
        decided("POST", b"/v1/jobs/submit", *traced, diagnostics=True),
        decided("POST", b"/v1/runs", *traced, traced[-1], diagnostics=True),
    ]
    assert [one.correlation for one in told if isinstance(one, Admitted)] == [joined, None, None, None]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"00-%b-%b" % (TRACE, SPAN),
        b"01-%b-%b-01" % (TRACE, SPAN),
        b"00-%b-%b-02" % (TRACE, SPAN),
        b"00-%b-%b-01" % (TRACE.upper(), SPAN),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-01-x" % (TRACE, SPAN),
        b"00-%b-%b-01\n" % (TRACE, SPAN),
        b"\xff" * 55,
    ],
)
def test_a_traceparent_that_does_not_hold_is_discarded(value: bytes | None) -> None:
    assert correlation(value, None) is None


def test_a_request_id_is_a_uuid_or_nothing() -> None:
    assert correlation(None, UUID) == Correlation(request_id=UUID.lower().decode())
    assert correlation(None, UUID + b"0") is None
    assert correlation(None, b"my prompt") is None
    joined = Correlation(int(TRACE, 16), int(SPAN, 16), sampled=False, request_id=UUID.lower().decode())
    assert correlation(b"00-%b-%b-00" % (TRACE, SPAN), UUID) == joined
