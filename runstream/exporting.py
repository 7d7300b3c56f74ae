"""Where what a node tells of itself goes: Prometheus' text, a collector, or the OpenTelemetry of the program around us.

The SDK and what sends are extras, so they are imported where they are wanted.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

import anyio
from opentelemetry import metrics, trace

from runstream.observing import Heard, TelemetrySettings
from runstream.reading import Fault
from runstream.settings import SettingsError
from runstream.telemetry import Known, Otel

NAME = "runstream"
FLUSH_S = 5.0
"""How long the last metrics and spans may take to leave when the host ends."""
_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_telemetry(settings: TelemetrySettings, node: str, known: Known) -> AsyncGenerator[Heard]:
    """Tell of *node* as *settings* want it; without the extras, to whatever OpenTelemetry the program around us set up.

    Raises:
        SettingsError: an address is given, and the extra that sends there is not installed.
    """
    resource = {"service.name": settings.service_name, "service.instance.id": node, "service.version": version(NAME)}
    meters, exposition = _meters(settings, resource) if settings.metrics else (metrics.NoOpMeterProvider(), None)
    tracers = _tracers(settings, resource) if settings.traces else trace.NoOpTracerProvider()
    try:
        yield Heard(Otel(meters.get_meter(NAME), tracers.get_tracer(NAME), known), exposition)
    finally:
        for provider in (meters, tracers):
            await _flushed(provider)


def _meters(settings: TelemetrySettings, resource: Mapping[str, str]) -> tuple[Any, Callable[[], bytes] | None]:
    """Whom metrics are told to, and how to read them here."""
    readers: list[Any] = []
    exposition = None
    try:
        reader, exposition = _prometheus()
        readers.append(reader)
    except ImportError:
        _log.warning("GET /metrics answers 404: install the extra `prometheus`")
    if settings.otlp_endpoint:
        exporter = _otlp("metric_exporter").OTLPMetricExporter(
            endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/metrics"
        )
        readers.append(import_module("opentelemetry.sdk.metrics.export").PeriodicExportingMetricReader(exporter))
    if not readers:
        return metrics.get_meter_provider(), None
    sdk = import_module("opentelemetry.sdk.metrics")
    return sdk.MeterProvider(readers, _resource(resource), shutdown_on_exit=False), exposition


def _prometheus() -> tuple[Any, Callable[[], bytes]]:
    """A reader with a registry of its own, and the text of that."""
    client = import_module("prometheus_client")
    registry = client.CollectorRegistry()
    reader = import_module("opentelemetry.exporter.prometheus").PrometheusMetricReader(
        scope_info_enabled=False, registry=registry
    )

    def exposition() -> bytes:
        return bytes(client.generate_latest(registry))

    return reader, exposition


def _tracers(settings: TelemetrySettings, resource: Mapping[str, str]) -> Any:
    """Whom spans are told to."""
    if not settings.otlp_endpoint:
        return trace.get_tracer_provider()
    exporter = _otlp("trace_exporter").OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
    provider = import_module("opentelemetry.sdk.trace").TracerProvider(
        resource=_resource(resource), shutdown_on_exit=False
    )
    provider.add_span_processor(import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter))
    return provider


def _otlp(module: str) -> Any:
    try:
        return import_module(f"opentelemetry.exporter.otlp.proto.http.{module}")
    except ImportError:
        mend = "needs the extra `telemetry`, which is not installed"
        raise SettingsError((Fault("telemetry.otlp_endpoint", mend),)) from None


def _resource(attributes: Mapping[str, str]) -> Any:
    return import_module("opentelemetry.sdk.resources").Resource.create(dict(attributes))


async def _flushed(provider: Any) -> None:
    """Let what was told last leave, within bounds; a provider of the program around us is not ours to end."""
    if hasattr(provider, "shutdown") and provider not in (metrics.get_meter_provider(), trace.get_tracer_provider()):
        with anyio.move_on_after(FLUSH_S, shield=True):
            await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)
