"""`runstream check`: whether a host could start with these settings, and what to change where it could not."""

import ssl
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Literal, NamedTuple

from msgspec.structs import replace

from eventstore import startup
from eventstore.endpoint import Endpoint, address_of, endpoint_of
from eventstore.link import ConnectionLost, ReplyError, Unfit
from eventstore.local import LocalServerError, private_server
from eventstore.shape import Cluster, Sentinel, Shape, opened
from runstream.models import key_of
from runstream.neighbour import joined
from runstream.reading import Fault
from runstream.settings import RedisSettings, Settings, SettingsError
from runstream.tools import Toolbox, ToolError, load

EXTRAS_MEND = 'pip install "runstream[all]", or the extra of one vendor'


class Verdict(NamedTuple):
    """One thing that was looked at, how it is, and how to mend it."""

    level: Literal["ok", "warning", "error"]
    about: str
    what: str
    mend: str = ""

    @property
    def line(self) -> str:
        """The verdict as a line."""
        return f"{self.level:<8} {self.about:<10} {self.what}{f' -> {self.mend}' if self.mend else ''}"


async def check(settings: Settings) -> Sequence[Verdict]:
    """Look at everything a host needs to start, and return what was found."""
    verdicts = [Verdict("ok", "profile", f"{settings.profile}: {PROMISES[settings.profile]}")]
    verdicts += [verdict async for verdict in _redis(settings)]
    verdicts += [verdict async for verdict in _listening(settings)]
    verdicts += tokens(settings)
    verdicts += providers(settings)
    verdicts += [verdict async for verdict in _keys(settings)]
    verdicts += _keeping(settings)
    verdicts += [verdict async for verdict in _tools(settings)]
    return verdicts


def tokens(settings: Settings) -> Iterator[Verdict]:
    """What is to be said of the token list."""
    if not settings.tokens:
        yield Verdict("warning", "tokens", "there is none, so `runstream serve` will not start", NO_TOKEN_MEND)
        return
    yield Verdict("ok", "tokens", f"{len(settings.tokens)} token(s)")
    known = {provider.id for provider in settings.providers}
    for number, entry in enumerate(settings.tokens):
        for name in entry.providers:
            if name not in known:
                mend = f"the providers are {', '.join(sorted(known)) or 'none'}"
                yield Verdict("warning", f"tokens[{number}]", f"names the provider {name!r}, which is not here", mend)


def providers(settings: Settings) -> Iterator[Verdict]:
    """What is to be said of the provider instances."""
    names = ", ".join(provider.id for provider in settings.providers) or "none"
    yield Verdict("ok" if settings.providers else "warning", "providers", names)
    for number, provider in enumerate(settings.providers):
        if provider.account is None:
            for what, mend in _without_account(settings):
                yield Verdict("warning", f"providers[{number}]", f"has no account, so {what}", mend)


async def _keys(settings: Settings) -> AsyncGenerator[Verdict]:
    """Yield what is to be said of the keys of vendors, and of what asks them; no key is shown."""
    if any(provider.vendor for provider in settings.providers) and find_spec("httpx2") is None:
        yield Verdict(
            "error", "providers", "some ask vendors, and the HTTP client of the extras is missing", EXTRAS_MEND
        )
    for number, provider in enumerate(settings.providers):
        key = None if provider.vendor is None else key_of(provider, provider.vendor)
        if key is not None and not await key.read():
            what = f"has no key in {key.told}, so its runs fail with AUTH_REQUIRED"
            yield Verdict("warning", f"providers[{number}]", what, "put it there")


def _without_account(settings: Settings) -> Iterator[tuple[str, str]]:
    """What a provider cannot do that is bound to no account, and how to mend that."""
    if settings.scheduling.needs_account:
        mend = "set its account, or remove per_account and accounts from [scheduling]"
        yield "every run is refused with ADMISSION_IDENTITY_REQUIRED", mend
    elif settings.resources.budgets().needs_account:
        mend = "set its account, or remove accounts from [resources]"
        yield "every run is refused with ADMISSION_IDENTITY_REQUIRED", mend
    if settings.sessions is not None:
        yield "its sessions are refused with SESSION_ACCOUNT_REQUIRED", "set its account"
    if settings.jobs is not None:
        yield "its jobs are refused with JOB_ACCOUNT_REQUIRED", "set its account"


def _keeping(settings: Settings) -> Iterator[Verdict]:
    """What is to be said of what the host keeps beside runs."""
    for name, section in (("sessions", settings.sessions), ("jobs", settings.jobs)):
        kept = "off" if section is None else f"kept for {section.retention_ms / 3_600_000:g} h"
        yield Verdict("ok", name, kept)
    yield Verdict("ok", "usage", str(settings.usage_file) if settings.usage.enabled else "not recorded")


async def shape(settings: Settings) -> Shape:
    """Return where the Redis of the settings is, and our account there.

    Raises:
        SettingsError: a file that TLS needs cannot be used.
    """
    redis = settings.redis
    secure = _tls(redis) if redis.secure else None
    account = Endpoint(user=redis.username, password=redis.password.reveal(), tls=secure)
    if redis.cluster:
        return Cluster(_each(redis.cluster, account))
    if redis.sentinels:
        watcher = Endpoint(password=redis.sentinel_password.reveal(), tls=secure)
        return Sentinel(name=redis.sentinel_name, sentinels=_each(redis.sentinels, watcher), account=account)
    if redis.socket is not None:
        return replace(account, path=str(redis.socket))
    return replace(endpoint_of(redis.url, secure), user=account.user, password=account.password)


def _tls(redis: RedisSettings) -> ssl.SSLContext:
    """What TLS connections trust, and what they show."""
    try:
        context = ssl.create_default_context(cafile=redis.tls_ca)
    except OSError as error:
        raise SettingsError((Fault("redis.tls_ca", f"holds no certificates to trust: {_why(error)}"),)) from error
    if redis.tls_certificate is not None:
        try:
            context.load_cert_chain(redis.tls_certificate, redis.tls_key, password=lambda: b"")
        except OSError as error:
            why = f"cannot be used with redis.tls_key: {_why(error)}"
            raise SettingsError((Fault("redis.tls_certificate", why),)) from error
    return context


def _why(error: OSError) -> str:
    return (error.reason or "unreadable").replace("_", " ") if isinstance(error, ssl.SSLError) else str(error.strerror)


def _each(addresses: Sequence[str], account: Endpoint) -> tuple[Endpoint, ...]:
    """The servers at *addresses*, each with *account*."""
    pairs = map(address_of, addresses)
    return tuple(replace(account, host=host, port=port) for host, port in pairs)


async def _redis(settings: Settings) -> AsyncGenerator[Verdict]:
    if settings.profile == "memory":
        yield Verdict("ok", "redis", "none is needed")
        return
    try:
        async with _server(settings) as (where, how), opened(where) as doors:
            told = await startup.facts_of_all(doors)
            for server, facts in told.items():
                version = facts.info.get("redis_version", "of an unknown version")
                yield Verdict("ok", "redis", f"{how}{version} at {server}")
            for finding in startup.findings_of_all(settings.profile, told, settings.node.lease_ms):
                yield Verdict(finding.level, "redis", finding.what, finding.mend)
    except LocalServerError as error:
        yield Verdict("error", "redis", str(error))
    except (ConnectionLost, ReplyError, SettingsError, Unfit) as error:
        yield Verdict("error", "redis", str(error), "start it, or correct [redis] in the settings")


async def _tools(settings: Settings) -> AsyncGenerator[Verdict]:
    if settings.tools is None:
        return
    try:
        toolbox = Toolbox(await load(settings.tools))
    except ToolError as error:
        yield Verdict("error", "tools", str(error), "correct the module, or tools in the settings")
        return
    yield Verdict("ok", "tools", ", ".join(toolbox))
    known = set(toolbox)
    for number, entry in enumerate(settings.tokens):
        for name in entry.tools:
            if name not in known:
                mend = f"the tools are {', '.join(sorted(known))}"
                yield Verdict("warning", f"tokens[{number}]", f"names the tool {name!r}, which is not here", mend)


@asynccontextmanager
async def _server(settings: Settings) -> AsyncGenerator[tuple[Shape, str]]:
    """The server to ask: the one that a living host holds, a private one started for the question, or yours."""
    near = await joined(settings)
    if near.redis != settings.redis:
        yield await shape(near), "held by a running host: "
    elif settings.profile == "local":
        async with private_server(settings.state_dir, settings.redis.binary) as server:
            yield server.endpoint, f"private server {server.binary.name} "
    else:
        yield await shape(settings), ""


async def _listening(settings: Settings) -> AsyncGenerator[Verdict]:
    listen = settings.listen
    if listen.certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(listen.certificate, listen.key)
        except OSError as error:
            what = f"certificate or key cannot be used: {error.strerror or 'unreadable'}"
            yield Verdict("error", "listen", what, "correct listen.certificate and listen.key")
            return
    scheme = "http" if listen.certificate is None else "https"
    yield Verdict("ok", "listen", f"{scheme}://{listen.host}:{listen.port}")


NO_TOKEN_MEND = "make one with `runstream token new`, and put the entry it prints into the settings file"
PROMISES = {
    "memory": "nothing survives the process",
    "local": "a private server in the state folder; runs survive a restart",
    "standard": "your Redis; its crash may lose the last second",
    "strict": "your Redis; what was acknowledged is kept",
}
