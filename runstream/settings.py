"""What an operator may set: one TOML file and the environment, read once into one frozen Struct.

Every key has a default, so no file at all is a usable host on this machine (that still asks for a token to serve).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from typing_extensions import override

from actors.node import NodeSettings
from api.grants import TokenEntry
from eventstore.endpoint import address_of
from runstream.hosting import HostDefaults, HostSettings
from runstream.keeping import IdempotencySettings, JobsSettings, RetentionSettings, SessionsSettings, UsageSettings
from runstream.observing import TelemetrySettings
from runstream.provider_settings import LOOPBACK, ProviderSettings
from runstream.reading import Fault
from runstream.sections import (
    ApplicationToolsSettings,
    ApprovalsSettings,
    BudgetSettings,
    LimitsSettings,
    Many,
    QueueSettings,
    ResourcesSettings,
    SchedulingSettings,
)

__all__ = [
    "CODES",
    "LOOPBACK",
    "ApplicationToolsSettings",
    "ApprovalsSettings",
    "BudgetSettings",
    "HostDefaults",
    "HostSettings",
    "IdempotencySettings",
    "JobsSettings",
    "LimitsSettings",
    "ListenSettings",
    "LogSettings",
    "NodeSection",
    "ProviderSettings",
    "QueueSettings",
    "RedisSettings",
    "ResourcesSettings",
    "RetentionSettings",
    "SchedulingSettings",
    "Secret",
    "SessionsSettings",
    "Settings",
    "SettingsError",
    "TelemetrySettings",
    "UsageSettings",
]

Profile: TypeAlias = Literal["memory", "local", "standard", "strict"]

CODES: Mapping[str, str] = {
    "scheduling": "INVALID_SCHEDULING",
    "resources": "INVALID_SCHEDULING",
    "sessions": "INVALID_SESSION_CONFIG",
    "jobs": "INVALID_JOB_CONFIG",
}
"""The code that the protocol has for a fault in a section (scheduling §1, sessions §1, jobs §6)."""

Module: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*(\.[a-zA-Z_][a-zA-Z0-9_]*)*\Z",
        max_length=200,
        description='the name of a Python module, such as "runstream.example_tools"',
    ),
]
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")


class Secret:
    """A text that shows itself to nobody who does not ask by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    @override
    def __hash__(self) -> int:
        return hash(self._text)

    @override
    def __repr__(self) -> str:
        return "***"


class SettingsError(Exception):
    """The settings cannot be used; *faults* says at which keys and how to mend each."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(f"{fault.key}: {fault.why}" if fault.key else fault.why for fault in faults))
        self.faults = faults


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Which Redis, and our account there."""

    url: str = ""
    username: str = ""
    password: Secret = Secret()
    password_file: Path | None = None
    socket: Path | None = None
    sentinels: tuple[str, ...] = ()
    sentinel_name: str = ""
    sentinel_password: Secret = Secret()
    sentinel_password_file: Path | None = None
    cluster: tuple[str, ...] = ()
    binary: Path | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    start_patience_s: Annotated[float, Meta(ge=0, le=3_600)] = 30.0

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        if self.url:
            yield from _url_faults(self.url)
        for place in self.places[1:]:
            yield Fault(place, f"remove it, or remove redis.{self.places[0]}: they name two servers")
        for name, addresses in (("sentinels", self.sentinels), ("cluster", self.cluster)):
            yield from _address_faults(name, addresses)
        yield from self._sentinel_faults()
        if self.username and not self.password:
            yield Fault("password", "is missing: redis.username needs redis.password or redis.password_file")
        if self.tls and not (self.sentinels or self.cluster):
            yield Fault("tls", "remove it: it is for redis.sentinels and redis.cluster; redis.url says rediss://")
        yield from self._tls_faults()

    def _tls_faults(self) -> Iterator[Fault]:
        for name in ("tls_ca", "tls_certificate", "tls_key"):
            if getattr(self, name) is not None and not self.secure:
                yield Fault(name, "remove it, or let redis.url begin with rediss://, or set redis.tls")
        if (self.tls_certificate is None) != (self.tls_key is None):
            lacks, has = ("certificate", "key") if self.tls_certificate is None else ("key", "certificate")
            yield Fault(f"tls_{lacks}", f"is missing: the server is shown both, so it goes with redis.tls_{has}")

    def _sentinel_faults(self) -> Iterator[Fault]:
        if self.sentinels and not self.sentinel_name:
            yield Fault("sentinel_name", "is missing: name the primary as your sentinels do")
        if self.sentinel_name and not self.sentinels:
            yield Fault("sentinels", 'is missing: list your sentinels as ["host:26379", …], or remove sentinel_name')
        if self.sentinel_password and not self.sentinels:
            yield Fault("sentinel_password", "remove it, or list redis.sentinels")

    @property
    def places(self) -> Sequence[str]:
        """The keys that say where it is; one at most is right."""
        given = {"url": self.url, "socket": self.socket, "sentinels": self.sentinels, "cluster": self.cluster}
        return [name for name, value in given.items() if value]

    @property
    def secure(self) -> bool:
        """Whether connections are TLS."""
        return self.tls or self.url.startswith("rediss://")


class ListenSettings(Struct, frozen=True, kw_only=True):
    """Where clients connect."""

    host: Annotated[str, Meta(min_length=1, description="a host name or address")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 7433
    certificate: Path | None = None
    key: Path | None = None
    origins: tuple[str, ...] = ()

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        if (self.certificate is None) != (self.key is None):
            lacks, has = ("certificate", "key") if self.certificate is None else ("key", "certificate")
            yield Fault(lacks, f"is missing: TLS needs it beside listen.{has}")
        if self.certificate is None and self.host not in LOOPBACK:
            mend = "set listen.certificate and listen.key, or listen on 127.0.0.1 behind a proxy that does TLS"
            yield Fault("host", f"TLS_REQUIRED: plain HTTP is served on localhost, 127.0.0.1 and ::1 only; {mend}")
        for number, origin in enumerate(self.origins):
            if _ORIGIN.fullmatch(origin) is None:
                yield Fault(f"origins[{number}]", "write it as a browser sends it: https://app.example.org, no path")


class NodeSection(Struct, frozen=True, kw_only=True):
    """How this node works."""

    lease_ms: Annotated[int, Meta(ge=3_000, le=300_000)] = 10_000
    routine_ms: Annotated[int, Meta(ge=100, le=10_000)] = 1_000
    drain_s: Annotated[float, Meta(ge=0, le=3_600)] = 10.0
    max_runs: Many | None = None
    repeat_model_calls: bool = False

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        if self.routine_ms * 3 > self.lease_ms:
            yield Fault(
                "routine_ms", "must be at most a third of node.lease_ms, so that a lease survives a lost renewal"
            )

    def node_settings(self) -> NodeSettings:
        """The same as the node knows it."""
        return NodeSettings(
            lease_ms=self.lease_ms,
            routine_ms=self.routine_ms,
            drain_s=self.drain_s,
            repeats_model_calls=self.repeat_model_calls,
        )


class LogSettings(Struct, frozen=True, kw_only=True):
    """What is told on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    json: bool = False


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of a host."""

    state_dir: Path
    profile: Profile = "local"
    partitions: Annotated[int, Meta(ge=1, le=4_096)] = 64
    redis: RedisSettings = RedisSettings()
    listen: ListenSettings = ListenSettings()
    tokens: tuple[TokenEntry, ...] = ()
    providers: tuple[ProviderSettings, ...] = field(
        default=(ProviderSettings(id="scripted", kind="scripted"), ProviderSettings(id="mock", kind="mock"))
    )
    scheduling: SchedulingSettings = SchedulingSettings()
    resources: ResourcesSettings = ResourcesSettings()
    limits: LimitsSettings = LimitsSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    tools: Module | None = None
    approvals: ApprovalsSettings = ApprovalsSettings()
    application_tools: ApplicationToolsSettings = ApplicationToolsSettings()
    sessions: SessionsSettings | None = None
    jobs: JobsSettings | None = None
    host: HostSettings = HostSettings()
    retention: RetentionSettings = RetentionSettings()
    usage: UsageSettings = UsageSettings()
    node: NodeSection = NodeSection()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    def faults(self) -> Iterator[Fault]:
        """Return what breaks a rule that spans sections."""
        external = self.redis.places
        if self.profile in {"standard", "strict"} and not external:
            yield Fault("redis.url", f"is missing: the {self.profile} profile uses a Redis of yours; name it here")
        if self.profile in {"memory", "local"} and external:
            mend = 'remove it, or set profile = "standard" (or "strict")'
            yield Fault(f"redis.{external[0]}", f"the {self.profile} profile uses no Redis but its own; {mend}")
        if self.redis.binary is not None and self.profile != "local":
            yield Fault("redis.binary", "remove it: only the local profile starts a server")
        yield from _twice("providers", "id", [one.id for one in self.providers])
        yield from _twice("tokens", "digest", [one.digest for one in self.tokens])

    @property
    def usage_file(self) -> Path:
        """Where records of usage go."""
        return self.usage.file or Path(self.state_dir) / "usage.jsonl"


def _url_faults(url: str) -> Iterator[Fault]:
    """What is wrong with the address of a Redis; no part of it is repeated."""
    try:
        parts = urlsplit(url)
        port, password = parts.port, parts.password
        database = parts.path.strip("/")
    except ValueError:
        yield Fault("url", "is no address; write it as redis://host:6379/0")
        return
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname or port == 0 or not (database or "0").isdecimal():
        yield Fault("url", "write it as redis://host:6379/0, or rediss://… for TLS; a Unix socket goes to redis.socket")
    if password or parts.username:
        yield Fault("url", "must hold no account; put it into redis.username and redis.password (or password_file)")
    if parts.query or parts.fragment:
        yield Fault("url", "must end after the database number; other keys of [redis] say the rest")


def _address_faults(name: str, addresses: Sequence[str]) -> Iterator[Fault]:
    for number, address in enumerate(addresses):
        try:
            address_of(address)
        except ValueError:
            yield Fault(f"{name}[{number}]", "write it as host:port, without scheme, account or path")


def _twice(section: str, name: str, values: list[str]) -> Iterator[Fault]:
    for number, value in enumerate(values):
        if value in values[:number]:
            yield Fault(
                f"{section}[{number}].{name}", f"is that of {section}[{values.index(value)}] too; each needs its own"
            )
