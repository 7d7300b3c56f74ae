"""The section of the settings that says what the host tells of itself: metrics and traces."""

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from actors.telemetry import Telemetry
from runstream.reading import Fault


class Heard(NamedTuple):
    """Who hears what the node tells of itself, and the text of its metrics where they can be had here."""

    telemetry: Telemetry
    exposition: Callable[[], bytes] | None = None


class TelemetrySettings(Struct, frozen=True, kw_only=True):
    """What is measured, and where it goes."""

    metrics: bool = False
    traces: bool = False
    otlp_endpoint: str = ""
    service_name: Annotated[str, Meta(min_length=1, max_length=200)] = "runstream"

    @property
    def enabled(self) -> bool:
        """Whether anything is told at all."""
        return self.metrics or self.traces

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules; no part of the address is repeated, since it may hold a secret."""
        if self.otlp_endpoint and not _is_address(self.otlp_endpoint):
            yield Fault("otlp_endpoint", "write it as http://collector:4318, without an account, a query or a fragment")
        if self.otlp_endpoint and not self.enabled:
            yield Fault("otlp_endpoint", "remove it, or set telemetry.metrics or telemetry.traces to true")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    extra = parts.username or parts.password or parts.query or parts.fragment
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0 and not extra
