"""A provider instance as discovery shows it, with its health and catalog (providers §1 and §2).

Nothing here waits, reads a clock or rolls a die.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from actors.ports import AuthMode, Probe, ProviderInfo

Status: TypeAlias = Literal["ready", "unauthenticated", "unavailable", "unsupported", "unknown"]


class Verdict(NamedTuple):
    """What a probe's code says of an instance, with its fixed public text."""

    status: Status
    message: str


VERDICTS: Mapping[str, Verdict] = {
    "CATALOG_AVAILABLE": Verdict("ready", "The instance listed its models."),
    "AUTH_REQUIRED": Verdict("unauthenticated", "No credential is configured."),
    "AUTH_REJECTED": Verdict("unauthenticated", "The credential was rejected."),
    "CLI_AUTH_REQUIRED": Verdict("unauthenticated", "The native program is not signed in."),
    "ACCESS_DENIED": Verdict("unsupported", "The credential may not list models."),
    "DISCOVERY_UNSUPPORTED": Verdict("unsupported", "This instance offers no health probe."),
    "CLI_UPGRADE_REQUIRED": Verdict("unsupported", "The native program is too old."),
    "RATE_LIMITED": Verdict("unavailable", "The provider limits the rate of requests."),
    "PROVIDER_UNREACHABLE": Verdict("unavailable", "The provider could not be reached."),
    "INVALID_DISCOVERY_RESPONSE": Verdict("unavailable", "The probe returned malformed data."),
    "CLI_UNAVAILABLE": Verdict("unavailable", "The native program is missing."),
    "DISCOVERY_TIMEOUT": Verdict("unavailable", "The probe took too long."),
    "DISCOVERY_FAILED": Verdict("unavailable", "The probe failed."),
    "CLI_SESSION_PRESENT": Verdict("unknown", "A native session is present."),
    "CLI_CATALOG_AVAILABLE": Verdict("unknown", "The native program listed its models."),
    "CLI_STATUS_UNKNOWN": Verdict("unknown", "The native program did not tell its state."),
}
CATALOG_CODES = ("CATALOG_AVAILABLE", "CLI_CATALOG_AVAILABLE")
MEDIA_TYPES = ("text/plain", "text/markdown", "image/png", "image/jpeg", "image/webp", "application/pdf")
MODELS_MAX = 1_000

_INSTANCE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}")
MODEL = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}")
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class Health(Struct, frozen=True, rename="camel"):
    status: Status
    code: str
    message: str
    checked_at: str


class Catalog(Struct, frozen=True):
    source: Literal["provider", "configured", "unavailable"]
    models: tuple[str, ...]
    complete: bool


class Provider(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One member of `GET /v1/providers`; what is None is left out."""

    id: str
    name: str
    vendor: str
    auth_mode: AuthMode
    capabilities: Mapping[str, bool]
    health: Health
    model_catalog: Catalog
    models: tuple[str, ...] | None = None
    input_media_types: Mapping[str, Sequence[str]] | None = None
    usage_stat_id: str | None = None
    connection: Mapping[str, Any] | None = None


def provider(info: ProviderInfo, probe: Probe, checked_ms: int) -> Provider:
    """How an instance stands after a sound *probe* of that time."""
    return Provider(
        id=info.id,
        name=info.name,
        vendor=info.vendor,
        auth_mode=info.auth_mode,
        capabilities=info.capabilities,
        health=health(probe.code, checked_ms),
        model_catalog=catalog(info, probe),
        models=info.models,
        input_media_types=info.input_media_types or None,
        usage_stat_id=info.usage_stat_id,
        connection=None if probe.connection is None else {**probe.connection, "checkedAt": _instant(checked_ms)},
    )


def health(code: str, checked_ms: int) -> Health:
    """What *code* says of an instance."""
    verdict = VERDICTS[code]
    return Health(verdict.status, code, verdict.message, _instant(checked_ms))


def catalog(info: ProviderInfo, probe: Probe) -> Catalog:
    """The models that the *probe* listed, else those the configuration allows."""
    if probe.code in CATALOG_CODES:
        return Catalog("provider", probe.models or (), probe.complete)
    if info.models is None:
        return Catalog("unavailable", (), complete=False)
    return Catalog("configured", info.models[:MODELS_MAX], complete=False)


def fault(info: ProviderInfo) -> str | None:
    """What a strict client would refuse in a configured *info*, or None."""
    known = {"tools", "textStreaming"} <= info.capabilities.keys()
    models = info.models or ()
    media = info.input_media_types
    checks = {
        "id": bool(_INSTANCE.fullmatch(info.id)),
        "name": _showable(info.name),
        "vendor": _showable(info.vendor),
        "capabilities": known and all(type(value) is bool for value in info.capabilities.values()),
        "models": all(MODEL.fullmatch(model) for model in models) and len({*models}) == len(models),
        "input_media_types": len(media) <= MODELS_MAX and all(_media(info, *item) for item in media.items()),
        "usage_stat_id": info.usage_stat_id is None or _showable(info.usage_stat_id),
    }
    return next((name for name, holds in checks.items() if not holds), None)


def _showable(text: str) -> bool:
    return bool(text) and text == text.strip() and not CONTROL.search(text)


def _media(info: ProviderInfo, model: str, types: Sequence[str]) -> bool:
    known = bool(MODEL.fullmatch(model)) if info.models is None else model in info.models
    return known and len({*types}) == len(types) and {*types} <= {*MEDIA_TYPES}


def _instant(time_ms: int) -> str:
    second, millisecond = divmod(time_ms, 1_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{millisecond:03d}Z"
