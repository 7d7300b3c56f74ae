"""Metrics, spans and log lines as an operator gets them, and what must be in none of them."""

import io
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typing_extensions import override

import runstream
from actors.errors import Failed
from actors.ports import Model, ModelContext, ModelRequest, ToolCall, ToolMessage, Turn
from actors.telemetry import ABOUT, About, Correlation, Labels, Levels
from eventstore.memory import MemoryStore
from runstream import logs
from runstream.cli import cli
from runstream.exporting import open_telemetry
from runstream.host import Host
from runstream.observing import TelemetrySettings
from runstream.settings import LogSettings, NodeSection, Profile, Settings, SettingsError
from runstream.telemetry import Known, Otel, known_of
from runstream.tokens import entry_for
from tests.actors.reviewing import CountingTool, tooled
from tests.actors.support import FakeModel, asking, items_of, new_memory, saying, until
from tests.api.asgi_client import Told, sent

TOKEN = "t" * 43
BEARER = (b"authorization", b"Bearer " + TOKEN.encode())
JSON = (b"content-type", b"application/json")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
REQUEST_ID = "7d0f3c52-91ab-4c6e-8a15-2b6d4e0c9f31"
NOTHING = Known({}, frozenset())
LABELS = Labels("foreground", "fake", "m")


class Seen:
    """All that a node tells: metrics, spans and log lines."""

    def __init__(self, known: Known = NOTHING) -> None:
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.otel = Otel(meters.get_meter("test"), self.tracers.get_tracer("test"), known)
        self.lines = io.StringIO()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[dict[str, Any]]:
        """The attributes of all spans of this name."""
        return [dict(span.attributes or {}) for span in self.spans if span.name == name]

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Each metric with the labels and the value, or count, of its points."""
        data: Any = self.reader.get_metrics_data()
        found = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
        return {
            metric.name: [
                (dict(one.attributes), getattr(one, "count", getattr(one, "value", 0)))
                for one in metric.data.data_points
            ]
            for metric in found
        }

    def everything(self) -> str:
        data: Any = self.reader.get_metrics_data()
        return "\n".join(
            [self.lines.getvalue(), data.to_json() if data else "", *(str(span.to_json()) for span in self.spans)]
        )


@contextmanager
def logged(stream: io.StringIO) -> Generator[None, None, None]:
    """Write every record of every library into *stream*, as JSON."""
    root, handler = logging.getLogger(), logs.handler(LogSettings(json=True), stream)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


MARKS = {
    name: f"ZQ{name}QZ"
    for name in ("prompt", "instruction", "output", "delta", "argument", "result", "subject", "model", "call", "vendor")
} | {"secret": "ZQsecretQZ" + "x" * 40, "key": "ZQkeyQZ", "metadata": "ZQmetadataQZ"}


async def marked_model(request: ModelRequest, context: ModelContext) -> Turn:
    """Say marked words, call a marked tool, and fail in marked ways, as the prompt wants it."""
    wish = str(getattr(request.messages[0], "content", ""))
    if any(isinstance(message, ToolMessage) for message in request.messages):
        context.emit_text(MARKS["delta"])
        return Turn(text=MARKS["delta"])
    if "fails" in wish:
        raise Failed("VENDOR_ERROR", MARKS["vendor"])
    if "breaks" in wish:
        raise RuntimeError(MARKS["vendor"])
    arguments = json.dumps({"n": MARKS["argument"]}).encode()
    return Turn(text=MARKS["output"], tool_calls=(ToolCall(MARKS["call"], "host", msgspec.Raw(arguments)),))


class MarkedTool(CountingTool):
    """Gives a marked result, or fails in a marked way."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.definition = msgspec.structs.replace(self.definition, input_schema=msgspec.Raw(b'{"type":"object"}'))
        self._breaks = breaks

    @override
    async def call(self, arguments: Any, context: Any) -> object:
        del arguments, context
        if self._breaks:
            raise ValueError(MARKS["result"])
        return {"said": MARKS["result"]}


@pytest.mark.anyio
@pytest.mark.parametrize("breaks", [False, True])
async def test_nothing_that_a_user_wrote_is_in_a_line_a_metric_or_a_span(*, breaks: bool) -> None:
    seen = Seen(Known({"fake": frozenset({"m"})}, frozenset({"host"})))

    async def refuse(_: Any, /) -> None:
        raise OSError(MARKS["subject"])

    options: dict[str, Any] = {"telemetry": seen.otel, "usage": refuse}
    store = MemoryStore(new_memory(), "n1")
    with logged(seen.lines):
        async with tooled(FakeModel(marked_model), store, MarkedTool(breaks=breaks), **options) as host:
            for wish in ("works", "fails", "breaks"):
                with seen.otel.caller(Correlation(int(TRACE, 16), int(SPAN, 16), sampled=True)):
                    await items_of(host, marked(wish), MARKS["subject"])
            async with host.attend(marked("works", key=MARKS["key"]), subject=MARKS["subject"]):
                pass
            await until(lambda: not host.node.executing)
    assert [mark for mark in MARKS.values() if mark in seen.everything()] == []
    assert {span.name for span in seen.spans} == {"run", "step", "tool"}
    assert "provider fake failed on run" in seen.lines.getvalue()
    assert seen.points()["runstream.usage.failures"][0][1] >= 3


def marked(wish: str, key: str | None = None) -> dict[str, Any]:
    request = asking(
        model=MARKS["model"],
        input=f"{MARKS['prompt']} {wish}",
        instructions=MARKS["instruction"],
        tools=["host"],
        metadata={MARKS["metadata"]: MARKS["metadata"]},
    )
    return request if key is None else request | {"idempotencyKey": key}


@asynccontextmanager
async def served(
    folder: Path, models: dict[str, Model], *, profile: Profile = "memory", **section: Any
) -> AsyncIterator[Host]:
    settings = Settings(
        state_dir=folder,
        profile=profile,
        partitions=2,
        node=NodeSection(routine_ms=100, drain_s=0),
        tokens=(entry_for(TOKEN, subject=MARKS["subject"], providers=("fake", "scripted"), read_metrics=True),),
        telemetry=TelemetrySettings(**section),
    )
    async with runstream.open(settings, models) as host:
        yield host


async def asked(host: Host, *headers: tuple[bytes, bytes], **members: Any) -> Told:
    return await sent(host.app, "POST", b"/v1/runs", [BEARER, JSON, *headers], json.dumps(asking(**members)).encode())


@pytest.mark.anyio
async def test_the_edge_tells_neither_tokens_nor_what_was_posted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: seen.tracers)
    with logged(seen.lines):
        async with served(tmp_path, {"fake": saying(MARKS["output"])}, metrics=True, traces=True) as host:
            assert (await asked(host, PARENT, input=MARKS["prompt"])).status == 200
            assert (await asked(host, PARENT, input=MARKS["prompt"], provider=MARKS["vendor"])).status == 400
            garbled = await sent(host.app, "POST", b"/v1/runs", [BEARER, JSON], MARKS["prompt"].encode())
            strange = await sent(
                host.app, "GET", f"/{MARKS['key']}".encode(), [(b"authorization", MARKS["secret"].encode())]
            )
            assert (garbled.status, strange.status) == (400, 401)
            text = (await sent(host.app, "GET", b"/metrics", [BEARER])).body.decode()
    told = seen.everything() + text
    assert [mark for mark in (*MARKS.values(), TOKEN) if mark in told] == []
    assert 'runstream_runs_accepted_total{model="other",origin="foreground",provider="fake"} 1.0' in text
    assert 'service_name="runstream"' in text


@pytest.mark.anyio
async def test_a_run_joins_the_trace_that_its_caller_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: seen.tracers)
    async with served(tmp_path, {"fake": saying("x")}, traces=True) as host:
        told = await asked(host, PARENT, (b"agenticdriver-request-id", REQUEST_ID.upper().encode()))
        await asked(host, (b"traceparent", PARENT[1].upper()))
        await asked(host, (b"traceparent", PARENT[1][:-2] + b"00"))
        await until(lambda: len(seen.named("run")) == 2)
        assert (await sent(host.app, "GET", b"/metrics", [BEARER])).status == 404
    runs = [span for span in seen.spans if span.name == "run"]
    steps = [span for span in seen.spans if span.name == "step"]
    joined, alone = runs
    assert joined.parent is not None
    assert joined.context is not None
    assert (f"{joined.parent.trace_id:032x}", f"{joined.parent.span_id:016x}") == (TRACE, SPAN)
    assert alone.parent is None
    assert [step.parent for step in steps] == [run.context for run in runs]
    assert dict(joined.attributes or {}) == {
        "origin": "foreground",
        "provider": "fake",
        "model": "other",
        "runstream.node": host.store.node,
        "runstream.run.id": json.loads(told.body)["runId"],
        "runstream.run.epoch": 1,
        "runstream.request.id": REQUEST_ID,
        "outcome": "completed",
    }
    assert "traceparent" not in dict(told.headers)


@pytest.mark.anyio
async def test_a_span_says_how_it_ended_but_not_what_was_raised() -> None:
    seen = Seen()

    async def fail(_: ModelRequest, __: ModelContext) -> Turn:
        raise Failed("VENDOR_ERROR", MARKS["vendor"])

    async with tooled(FakeModel(fail), MemoryStore(new_memory(), "n1"), telemetry=seen.otel) as host:
        await items_of(host, asking())
    assert [span.status.is_ok for span in seen.spans] == [False, False]
    assert [span.status.description for span in seen.spans] == [None, None]
    assert [span.events for span in seen.spans] == [(), ()]
    with pytest.raises(ValueError, match="ZQ"), seen.otel.step(LABELS):
        raise ValueError(MARKS["vendor"])
    assert seen.named("step")[-1]["outcome"] == "interrupted"
    assert seen.spans[-1].events == ()


def test_a_request_id_without_a_trace_is_on_the_span_of_its_run_alone() -> None:
    seen = Seen()
    with seen.otel.caller(Correlation(request_id=REQUEST_ID)), seen.otel.run(LABELS, About("n1", "r1", 1)):
        pass
    with seen.otel.run(LABELS, About("n1", "r2", 1)):
        pass
    assert [one.get("runstream.request.id") for one in seen.named("run")] == [REQUEST_ID, None]
    assert [span.parent for span in seen.spans] == [None, None]


def test_a_name_that_the_configuration_does_not_know_is_another() -> None:
    model = saying("x")
    seen = Seen(known_of({"fake": model}, ["write"]))
    model.info = msgspec.structs.replace(model.info, models=("m",))
    listed = Seen(known_of({"fake": model}, ["write"]))
    for one in (seen, listed):
        one.otel.run_began(LABELS)
        one.otel.run_began(LABELS._replace(provider=MARKS["vendor"], model=MARKS["model"]))
        with one.otel.tool("write"), one.otel.tool(MARKS["call"]):
            pass
        one.otel.appended("Recorded", 0.1)
        one.otel.appended(MARKS["result"], 0.1)
    began, other = "runstream.runs.accepted", {"origin": "foreground", "provider": "other", "model": "other"}
    assert seen.points()[began] == [({**other, "provider": "fake"}, 1), (other, 1)]
    assert listed.points()[began] == [({**other, "provider": "fake", "model": "m"}, 1), (other, 1)]
    assert {point["tool"] for point, _ in seen.points()["runstream.tool.duration"]} == {"write", "other"}
    assert {point["outcome"] for point, _ in seen.points()["runstream.append.duration"]} == {"recorded", "other"}


def test_every_verb_has_its_instrument() -> None:
    seen = Seen()
    told = seen.otel
    told.watch(lambda: Levels(leases=1, permits=2, waiting=3, viewers=4, silent=5))
    told.run_ended(LABELS, "failed", 2.0)
    for verb in (told.took_over, told.fenced, told.store_paused, told.connected, told.usage_not_kept):
        verb()
    values = {name: [value for _, value in points] for name, points in seen.points().items()}
    assert values == {
        "runstream.run.duration": [1],
        "runstream.takeovers": [1],
        "runstream.fences": [1],
        "runstream.store.pauses": [1],
        "runstream.store.connections": [1],
        "runstream.usage.failures": [1],
        "runstream.leases": [1],
        "runstream.permits": [2],
        "runstream.runs.waiting": [3],
        "runstream.viewers": [4],
        "runstream.store.silent": [5],
    }


# Without the extras, and with an address.


@pytest.mark.anyio
async def test_without_the_extra_there_is_no_text_and_the_api_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with open_telemetry(TelemetrySettings(metrics=True), "n1", NOTHING) as heard:
        assert heard.exposition is None
        heard.telemetry.took_over()
    assert "install the extra `prometheus`" in caplog.text


@pytest.mark.anyio
async def test_an_address_without_the_extra_that_sends_there_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    for metrics in (True, False):
        settings = TelemetrySettings(otlp_endpoint="http://127.0.0.1:4318", metrics=metrics, traces=not metrics)
        with pytest.raises(SettingsError, match="extra `telemetry`"):
            async with open_telemetry(settings, "n1", NOTHING):
                pass


@pytest.mark.anyio
async def test_what_was_told_last_is_sent_before_the_host_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []
    spans, sent_metrics = InMemorySpanExporter(), io.StringIO()

    def at(exporter: Any) -> Any:
        def opened(*, endpoint: str) -> Any:
            places.append(endpoint)
            return exporter

        return opened

    fake: Any = SimpleNamespace(
        OTLPSpanExporter=at(spans), OTLPMetricExporter=at(ConsoleMetricExporter(out=sent_metrics))
    )
    for kind in ("trace", "metric"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.http.{kind}_exporter", fake)
    settings = TelemetrySettings(metrics=True, traces=True, otlp_endpoint="http://127.0.0.1:4318/")
    async with open_telemetry(settings, "n1", NOTHING) as heard:
        with heard.telemetry.step(LABELS):
            heard.telemetry.took_over()
    (span,) = spans.get_finished_spans()
    assert sorted(places) == ["http://127.0.0.1:4318/v1/metrics", "http://127.0.0.1:4318/v1/traces"]
    assert span.resource.attributes["service.instance.id"] == "n1"
    assert "runstream.takeovers" in sent_metrics.getvalue()


@pytest.mark.anyio
async def test_connections_to_a_real_store_are_counted(tmp_path: Path) -> None:
    async with served(tmp_path, {"fake": saying("x")}, profile="local", metrics=True) as host:
        text = (await sent(host.app, "GET", b"/metrics", [BEARER])).body.decode()
    (count,) = re.findall(r"^runstream_store_connections_total (\d+)", text, re.MULTILINE)
    assert int(count) >= 1


def test_a_token_for_reading_metrics_is_made_by_the_command() -> None:
    made = CliRunner().invoke(cli, ["token", "new", "--subject", "prometheus", "--read-metrics"])
    assert made.stdout.splitlines()[-2:] == ["providers = []", "read_metrics = true"]
    assert "read_metrics" not in CliRunner().invoke(cli, ["token", "new", "--subject", "ann"]).stdout


@pytest.mark.parametrize("url", ["otel:4318", "ftp://c", "http://u:p@c", "http://c?x=1", "http://c:0", "http://c:x"])
def test_an_address_that_is_none_is_a_fault_that_repeats_nothing(url: str) -> None:
    (fault,) = TelemetrySettings(traces=True, otlp_endpoint=url).faults()
    assert fault.key == "otlp_endpoint"
    assert url not in fault.why
    assert list(TelemetrySettings(metrics=True, otlp_endpoint="https://c.example:4318").faults()) == []
    assert len(list(TelemetrySettings(otlp_endpoint="https://c.example:4318").faults())) == 1


# Log lines.


def line_of(**extra: Any) -> dict[str, Any]:
    record = logging.LogRecord("actors.node", logging.INFO, __file__, 1, "told", None, None)
    record.__dict__.update(extra)
    told: dict[str, Any] = json.loads(logs.AsJson().format(record))
    return {name: told[name] for name in ("node", "run", "epoch") if name in told}


def test_a_line_says_which_node_run_and_epoch_it_is_about_as_far_as_its_task_knows() -> None:
    token = ABOUT.set(About("n1", "r1", 3))
    try:
        assert line_of() == {"node": "n1", "run": "r1", "epoch": 3}
        assert line_of(run="r2", epoch=4) == {"node": "n1", "run": "r2", "epoch": 4}
        ABOUT.set(About("n1"))
        assert line_of() == {"node": "n1"}
        ABOUT.set(None)
        assert line_of() == {}
    finally:
        ABOUT.reset(token)


@pytest.mark.anyio
async def test_a_line_of_a_provider_says_whose_run_it_served() -> None:
    stream, log = io.StringIO(), logging.getLogger("vendor")

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        log.info("asked")
        return Turn(text="x")

    with logged(stream):
        store = MemoryStore(new_memory(), "n1")
        async with tooled(FakeModel(answer), store) as host, host.attend(asking()) as attended:
            await until(lambda: not host.node.executing)
    (line,) = [one for one in map(json.loads, stream.getvalue().splitlines()) if one["logger"] == "vendor"]
    assert (line["node"], line["run"], line["epoch"]) == ("n1", attended.run_id, 1)
