"""Builds the parts from the settings, as one async context manager."""

import logging
import secrets
import socket
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from actors.accounting import UsageSink
from actors.ports import AuditSink, Model, Policy
from actors.request import Features
from actors.resources import ResourceAuthority
from actors.telemetry import ABOUT, SILENT, About, Telemetry
from api.app import create_app
from api.grants import Principals, Tokens, still_allows
from api.parts import ALWAYS, Gate, Parts
from api.wire import readiness
from eventstore import clock, startup
from eventstore.endpoint import Endpoint
from eventstore.link import Call, OnConnected
from eventstore.local import private_server
from eventstore.receipts import Receipts
from eventstore.redis_store import open_store_through
from eventstore.shape import Shape, opened
from eventstore.store import Caps, Deployment, Store
from providers.discovery import Discovery
from runstream.checking import PROMISES, shape
from runstream.host import Host, Options, open_host
from runstream.models import open_models
from runstream.observing import Heard
from runstream.reading import Fault
from runstream.settings import HostDefaults, Settings, SettingsError
from runstream.tools import Toolbox, load
from runstream.usage_log import JsonLines

DAY_MS = 24 * 3_600 * 1_000
log = logging.getLogger(__name__)


@asynccontextmanager
async def open_settings(  # noqa: PLR0913 - what a program may bring along
    settings: Settings,
    models: Mapping[str, Model] | None = None,
    *,
    policy: Policy | None = None,
    audit: AuditSink | None = None,
    resources: ResourceAuthority | None = None,
    usage: UsageSink | None = None,
    held: bool = False,
    patient: bool = False,
) -> AsyncGenerator[Host]:
    """Open a host as *settings* say; *models* take the place of its providers, *policy* is asked about reviewed calls.

    *audit* must have the record of an approval before anything is asked or decided.
    *resources* is asked before every step, and *usage* gets the records of what was used in place of the file.
    A *held* host takes nothing up that nobody owns until `Host.begin`.
    A *patient* one waits for a Redis that is not there yet, as long as `redis.start_patience_s`.

    Raises:
        SettingsError: they break a rule.
        ToolError: the tools that they name cannot be used.
        LocalServerError: the private server cannot be had.
        StartupRefused: the Redis does not keep what the profile promises, or is not ours.
        ReplyError: it refuses our account, or pauses.
        Unfit: its certificate is not trusted.
        ConnectionLost: nothing answers there.
    """
    if faults := (*settings.faults(), *_faults_within(settings)):
        raise SettingsError(faults)
    failed: Exception | None = None
    async with AsyncExitStack() as stack:
        known = models if models is not None else await stack.enter_async_context(open_models(settings))
        tools = Toolbox(await load(settings.tools) if settings.tools else ())
        node = _node_id()
        ABOUT.set(About(node))
        heard = await stack.enter_async_context(_listening(settings, node, known, tools))
        _promise(settings)
        store = await startup.patiently(
            lambda: stack.enter_async_context(_store(settings, node, heard.telemetry)),
            settings.redis.start_patience_s if patient else 0,
        )
        principals = Tokens(settings.tokens)
        options = replace(
            _options(settings, principals, known), policy=policy, audit=audit, resources=resources, held=held
        )
        options = replace(options, telemetry=heard.telemetry, usage=options.usage if usage is None else usage)
        host = await stack.enter_async_context(open_host(store, known, options, tools))
        discovery = await stack.enter_async_context(Discovery(known))
        host.app = create_app(_parts(settings, host, discovery, principals, heard))
        try:
            yield host
        except Exception as error:  # noqa: BLE001 - raised again below, as it is and not in a group
            failed = error
    if failed is not None:
        raise failed


def _faults_within(settings: Settings) -> Iterator[Fault]:
    """What breaks the sections' own rules; a file is judged when it is read, settings made by a program here."""
    for name in settings.__struct_fields__:
        section: Any = getattr(settings, name)
        many = isinstance(section, tuple)
        sections = cast("tuple[Any, ...]", section) if many else (section,)
        for number, one in enumerate(sections):
            place = f"{name}[{number}]" if many else name
            for fault in one.faults() if hasattr(one, "faults") else ():
                yield Fault(f"{place}.{fault.key}" if fault.key else place, fault.why)


def _options(settings: Settings, known: Principals, known_models: Mapping[str, Model]) -> Options:
    completing = settings.host.defaults or HostDefaults()
    provider = completing.provider or next(iter(known_models), "")
    keys, approvals, application = settings.idempotency, settings.approvals, settings.application_tools
    usage = JsonLines(settings.usage_file, sync=settings.usage.sync) if settings.usage.enabled else None
    return Options(
        limits=settings.limits.host_limits(),
        features=Features(
            idempotency=keys.enabled,
            approvals=approvals.interactive,
            approvals_may_pause=approvals.allow_idle_pause,
            application_tools=application.enabled,
        ),
        node=replace(settings.node.node_settings(), audit_kept_ms=settings.retention.audit_days * DAY_MS),
        caps=lambda subject, account: replace(
            settings.scheduling.caps(subject, account), per_node=settings.node.max_runs or 0
        ),
        needs_account=settings.scheduling.needs_account,
        sessions=None if settings.sessions is None else settings.sessions.limits(),
        jobs=None if settings.jobs is None else settings.jobs.limits(),
        host=settings.host.limits() if settings.host.enabled else None,
        host_defaults=completing.members(provider, _first_model(known_models.get(provider))),
        authority=partial(still_allows, known),
        budgets=settings.resources.budgets(),
        resources_unknown=settings.resources.authority_unknown,
        usage=usage,
        host_id=settings.usage.host_id or "",
        labels=settings.usage.labels,
        run_kept_ms=settings.retention.run_days * DAY_MS,
        keys=Caps(total=keys.max_entries),
        approvals=Caps(total=approvals.max_pending),
        tickets=Caps(total=application.max_pending),
        application_tools_reviewed=application.require_approval,
    )


def _first_model(model: Model | None) -> str:
    """The model that completes a prompt where none is set."""
    return "" if model is None else next(iter(model.info.models or ()), "")


def _parts(settings: Settings, host: Host, discovery: Discovery, known: Principals, heard: Heard) -> Parts:
    return Parts(
        runs=host.runs,
        answers=host.decisions,
        viewer=host.viewing,
        sessions=host.sessions,
        jobs=host.jobs,
        host=host.agent_host,
        catalog=host.catalog,
        tokens=known,
        discovery=discovery,
        gate=_gate(host),
        allowed_origins=frozenset(settings.listen.origins),
        features=(*ALWAYS, "idempotency") if settings.idempotency.enabled else ALWAYS,
        tls=settings.listen.certificate is not None,
        facts=lambda: _facts(host),
        exposition=heard.exposition,
        telemetry=heard.telemetry,
        diagnostics=settings.telemetry.traces,
    )


def _facts(host: Host) -> readiness.Facts:
    node = host.node
    return readiness.Facts(
        starting=not node.open.is_set(),
        draining=node.closing.is_set(),
        touched_ms=node.sweeps.touched_ms(),
        now_ms=clock.mono_ms(),
        silent_ms_max=max(readiness.SILENT_MS_MAX, 2 * node.settings.routine_ms),
    )


def _gate(host: Host) -> Gate:
    gate = Gate()
    gate.closing = host.node.closing
    return gate


def _counted(guard: startup.Guard, telemetry: Telemetry) -> OnConnected:
    async def connected(call: Call) -> None:
        await guard(call)
        telemetry.connected()

    return connected


@asynccontextmanager
async def _listening(
    settings: Settings, node: str, models: Mapping[str, Model], tools: Iterable[str]
) -> AsyncGenerator[Heard]:
    """Open whatever hears what the node tells of itself."""
    if not settings.telemetry.enabled:
        yield Heard(SILENT)
        return
    # Imported here, because hosts that tell nothing do without.
    from runstream.exporting import open_telemetry  # noqa: PLC0415
    from runstream.telemetry import known_of  # noqa: PLC0415

    async with open_telemetry(settings.telemetry, node, known_of(models, tools)) as heard:
        yield heard


def _promise(settings: Settings) -> None:
    level = logging.WARNING if settings.profile == "memory" else logging.INFO
    log.log(level, "profile %s: %s", settings.profile, PROMISES[settings.profile])


@asynccontextmanager
async def _store(settings: Settings, node: str, telemetry: Telemetry) -> AsyncGenerator[Store]:
    if settings.profile == "memory":
        async with _emulated(settings, node) as store:
            yield store
        return
    receipts = Receipts()

    async def met(call: Call, replication_id: str) -> None:
        if guard.pinned is not None:  # else all servers were asked at once, below
            failover = not isinstance(where, Endpoint)
            await startup.look_again(call, settings.profile, settings.node.lease_ms, failover=failover)
        await receipts.check(call, replication_id)

    guard = startup.Guard(on_unknown=met)
    async with _server(settings) as where, opened(where, _counted(guard, telemetry)) as doors:
        told = await startup.facts_of_all(doors)
        warnings = startup.checked(startup.findings_of_all(settings.profile, told, settings.node.lease_ms))
        async with doors.link() as link:
            guard.pinned = await startup.deployment(link, _fresh(settings))
        for finding in warnings:
            log.warning("%s: %s", finding.what, finding.mend)
        replicas = startup.awaited(settings.profile, told.values())
        async with open_store_through(doors, guard.pinned, node, replicas=replicas, receipts=receipts) as store:
            yield store


def _emulated(settings: Settings, node: str) -> AbstractAsyncContextManager[Store]:
    # Imported here, because the emulation takes a third of a second and other profiles do without.
    from fakeredis import FakeServer  # noqa: PLC0415

    from eventstore.fake_store import open_fake_store  # noqa: PLC0415

    return open_fake_store(FakeServer(), _fresh(settings), node)


@asynccontextmanager
async def _server(settings: Settings) -> AsyncGenerator[Shape]:
    if settings.profile != "local":
        yield await shape(settings)
        return
    async with private_server(settings.state_dir, settings.redis.binary) as server:
        yield server.endpoint


def _fresh(settings: Settings) -> Deployment:
    """A deployment as it would be, were it created now."""
    return Deployment(str(uuid.uuid4()), settings.partitions, secrets.token_bytes(32))


def _node_id() -> str:
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"
