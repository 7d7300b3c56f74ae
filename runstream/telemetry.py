"""What a node tells of itself, as OpenTelemetry: metrics and traces.

Labels are words of ours and names that the configuration knows; another name is told as "other", so that nobody who asks
for runs can make a metric grow, or put a word of theirs into one. Spans carry ids of runs beside them, and nothing more.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from opentelemetry import context, metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, Tracer
from typing_extensions import override

from actors.ports import Model
from actors.telemetry import About, Correlation, Labels, Levels, Noted, Outcome, Telemetry

OTHER = "other"
_QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_CALL_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RUN_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0)
_REQUEST_ID = context.create_key("runstream-request-id")


class Known(NamedTuple):
    """The names that the configuration knows."""

    models: Mapping[str, frozenset[str]]
    """By provider."""
    tools: frozenset[str]


class Otel(Telemetry):
    """Tells OpenTelemetry."""

    def __init__(self, meter: Meter, tracer: Tracer, known: Known) -> None:
        self._meter = meter
        self._tracer = tracer
        self._known = known
        self._runs = _seconds(meter, "runstream.run.duration", "From a run's acceptance to its end.", _RUN_S)
        self._steps = _seconds(meter, "runstream.step.duration", "Calls of models.", _CALL_S)
        self._tools = _seconds(meter, "runstream.tool.duration", "Calls of host tools.", _CALL_S)
        self._appends = _seconds(meter, "runstream.append.duration", "Appends of facts, until answered.", _QUICK_S)
        self._accepted = meter.create_counter("runstream.runs.accepted", "{run}", "Runs taken on.")
        self._takeovers = meter.create_counter("runstream.takeovers", "{run}", "Runs claimed that their node had left.")
        self._fences = meter.create_counter("runstream.fences", "{run}", "Runs executed here that went elsewhere.")
        self._pauses = meter.create_counter("runstream.store.pauses", "{pause}", "Partitions that fell silent.")
        self._connections = meter.create_counter("runstream.store.connections", "{connection}", "Connections made.")
        self._unkept = meter.create_counter("runstream.usage.failures", "{record}", "Usage records not taken.")

    @override
    def watch(self, levels: Callable[[], Levels]) -> None:
        for level, name, unit, what in _LEVELS:
            self._meter.create_observable_gauge(name, [_observer(levels, level)], unit, what)

    @override
    @contextmanager
    def caller(self, correlation: Correlation) -> Generator[None, None, None]:
        around = context.set_value(_REQUEST_ID, correlation.request_id)
        if correlation.trace_id:
            flags = TraceFlags(TraceFlags.SAMPLED if correlation.sampled else TraceFlags.DEFAULT)
            parent = SpanContext(correlation.trace_id, correlation.span_id, is_remote=True, trace_flags=flags)
            around = trace.set_span_in_context(NonRecordingSpan(parent), around)
        token = context.attach(around)
        try:
            yield
        finally:
            context.detach(token)

    @override
    @contextmanager
    def run(self, labels: Labels, about: About) -> Generator[Noted, None, None]:
        attributes: dict[str, str | int] = {
            **self._of_run(labels),
            "runstream.node": about.node,
            "runstream.run.id": about.run,
            "runstream.run.epoch": about.epoch,
        }
        if request_id := context.get_value(_REQUEST_ID):
            attributes["runstream.request.id"] = str(request_id)
        with self._span("run", attributes) as noted:
            yield noted

    @override
    @contextmanager
    def step(self, labels: Labels) -> Generator[Noted, None, None]:
        attributes = self._of_run(labels)
        began = perf_counter()
        with self._span("step", attributes) as noted:
            try:
                yield noted
            finally:
                self._steps.record(perf_counter() - began, attributes | {"outcome": noted.outcome})

    @override
    @contextmanager
    def tool(self, name: str) -> Generator[Noted, None, None]:
        attributes = {"tool": name if name in self._known.tools else OTHER}
        began = perf_counter()
        with self._span("tool", attributes) as noted:
            try:
                yield noted
            finally:
                self._tools.record(perf_counter() - began, attributes | {"outcome": noted.outcome})

    @override
    def run_began(self, labels: Labels) -> None:
        self._accepted.add(1, self._of_run(labels))

    @override
    def run_ended(self, labels: Labels, outcome: Outcome, seconds: float) -> None:
        self._runs.record(seconds, self._of_run(labels) | {"outcome": outcome})

    @override
    def appended(self, outcome: str, seconds: float) -> None:
        self._appends.record(seconds, {"outcome": _APPENDS.get(outcome, OTHER)})

    @override
    def took_over(self) -> None:
        self._takeovers.add(1)

    @override
    def fenced(self) -> None:
        self._fences.add(1)

    @override
    def store_paused(self) -> None:
        self._pauses.add(1)

    @override
    def connected(self) -> None:
        self._connections.add(1)

    @override
    def usage_not_kept(self) -> None:
        self._unkept.add(1)

    def _of_run(self, labels: Labels) -> dict[str, str]:
        models = self._known.models.get(labels.provider)
        return {
            "origin": labels.origin,
            "provider": OTHER if models is None else labels.provider,
            "model": labels.model if models and labels.model in models else OTHER,
        }

    @contextmanager
    def _span(self, name: str, attributes: Mapping[str, str | int]) -> Generator[Noted, None, None]:
        """Open a span; what is raised within is not recorded, because its text may hold anything."""
        noted = Noted()
        with self._tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield noted
            finally:
                span.set_attribute("outcome", noted.outcome)
                if noted.outcome == "failed":
                    span.set_status(Status(StatusCode.ERROR))


_APPENDS = {
    "Recorded": "recorded",
    "Conflict": "conflict",
    "Fenced": "fenced",
    "Ended": "ended",
    "Lost": "lost",
    "OutsideWindow": "late",
    "Unavailable": "unavailable",
}
_LEVELS = (
    ("leases", "runstream.leases", "{run}", "Runs that this node executes, those that wait for a slot included."),
    ("permits", "runstream.permits", "{permit}", "Run slots that they hold."),
    ("waiting", "runstream.runs.waiting", "{run}", "Runs of this node that wait for a slot."),
    ("viewers", "runstream.viewers", "{viewer}", "Callers that follow a run through this node."),
    ("silent", "runstream.store.silent", "{partition}", "Partitions of the store that did not answer the last call."),
)


def known_of(models: Mapping[str, Model], tools: Iterable[str]) -> Known:
    """The names that these *models* and *tools* stand for; a provider without a list of models has none."""
    return Known({name: frozenset(model.info.models or ()) for name, model in models.items()}, frozenset(tools))


def _seconds(meter: Meter, name: str, what: str, bounds: tuple[float, ...]) -> metrics.Histogram:
    return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=bounds)


def _observer(levels: Callable[[], Levels], name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(getattr(levels(), name))]

    return observe
