"""A host inside a program: its runs are started, streamed, read and cancelled without a socket."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from actors import host_runs, kinds, run, upkeep, values
from actors.accounting import Accounts, UsageSink
from actors.audit import Sink
from actors.budgets import Budgets
from actors.decisions import Decisions
from actors.dispatch import HOST_LANE, JOBS_LANE, Worker
from actors.errors import Problem, Refused
from actors.events import RunAccepted, RunEvent
from actors.executor import Surroundings
from actors.foreground import Attended, Feeds, Foreground
from actors.host_runs import HostRuns
from actors.jobs import Jobs
from actors.jobs import Limits as JobLimits
from actors.model_call import FeedItems
from actors.node import Node, NodeSettings, open_node
from actors.ports import AuditSink, Model, Policy, Tool
from actors.request import Features, HostLimits, RunRequest, checked
from actors.resources import ResourceAuthority, ResourceQuestion, UnknownPolicy, judged
from actors.session import Limits as SessionLimits
from actors.sessions import Sessions
from actors.sessions import Surroundings as SessionSurroundings
from actors.shell import FeedOf, Shell
from actors.telemetry import SILENT, Telemetry
from actors.usage import total
from actors.viewing import Viewing
from api import grants
from api.host.dispatcher import dispatched
from api.host.envelope import decoded, request_given
from api.host.reading import Reading
from api.host.service import HostParts, HostService
from eventstore.follow import followed
from eventstore.store import Caps, Entry, Heads, Item, Store
from projections import usage, wire_feed
from runstream.terms import Terms

HEARTBEAT_S = 15.0
"""How often a silent stream says that it is alive (runs §2)."""
HOST_POLL_S = 1.0
"""How often a host without jobs asks for Host runs to be taken up, beside being rung."""
ASKED = Problem("CANCELLED", "The run was cancelled.")


class Options(Struct, frozen=True, kw_only=True):
    """What a host may do, beside its store and its models."""

    limits: HostLimits = HostLimits()
    features: Features = Features(idempotency=True)
    node: NodeSettings = NodeSettings()
    caps: Callable[[str, str], Caps] = lambda _subject, _account: Caps(total=32, per_subject=4)
    """Bounds on run slots for a subject and an account, counted over all nodes."""
    needs_account: bool = False
    """Whether a run on a provider without an account is refused (scheduling §1)."""
    sessions: SessionLimits | None = None
    jobs: JobLimits | None = None
    host: host_runs.Limits | None = None
    """Bounds of the Agent Host protocol, where it is served."""
    host_defaults: Mapping[str, Any] = {}
    """Members of a run request that complete a prompt."""
    authority: Callable[[RunAccepted], Problem | None] = lambda _: None
    """Why whoever submitted a job may not run it any more; asked when it is taken up, and while it runs."""
    budgets: Budgets = Budgets()
    resources: ResourceAuthority | None = None
    """Asked before every step whether the run may consume more."""
    resources_unknown: UnknownPolicy = "reject"
    usage: UsageSink | None = None
    """Where the usage record of each executed run goes."""
    host_id: str = ""
    """What usage records and the resource authority are told; empty: the deployment's id."""
    labels: Mapping[str, str] = {}
    """What usage records say of this host."""
    run_kept_ms: int = upkeep.RETENTION_MS
    """How long a run without a key is kept after its end, and the feed of one with a key."""
    keys: Caps = Caps(total=100_000)
    policy: Policy | None = None
    """The host's own say about calls that need approval."""
    audit: AuditSink | None = None
    """Where records of approvals must be before anything is asked or decided, beside the host's own audit."""
    audit_patience_s: float = 5.0
    """How long the audit sink may take over one record; other nodes take a settlement up after ten seconds."""
    approvals: Caps = Caps(total=1_000)
    tickets: Caps = Caps(total=1_000)
    application_tools_reviewed: bool = True
    """Whether every application tool needs a review, whatever token and definition say (application-tools §5)."""
    heartbeat_s: float = HEARTBEAT_S
    log_bytes_max: int = 8_000_000
    telemetry: Telemetry = SILENT
    """Hears what the node tells of itself."""
    held: bool = False
    """Take nothing up that nobody owns until `Host.begin`."""


DEFAULTS = Options()


def _nothing(*_: object) -> None:
    return None


def _no_items(_feed: object, _event: object) -> tuple[bytes, ...]:
    return ()


def _never(_feed: object, _item: bytes) -> bool:
    return False


NO_FEED = FeedOf(start=_nothing, fold=_nothing, items=_no_items, too_large=_never, thaw=_nothing)
"""Of an actor that nobody follows."""
NO_TOOLS: Mapping[str, Tool] = {}


class Logged(NamedTuple):
    """One event of a run's log, with where it stands."""

    entry: Entry
    event: RunEvent


class Host:
    """One node, ready to run."""

    def __init__(self, store: Store, options: Options, node: Node, terms: Terms) -> None:
        self.store = store
        self.models = node.around.models
        self.tools = node.around.tools
        self.options = options
        self.node = node
        self.app: Any = None
        """The ASGI application of this host, for a server or to be mounted; set by `runstream.open`."""
        self.terms = terms
        self.catalog = terms.catalog
        feeds = Feeds(self._from_the_first, wire_feed.replayed, wire_feed.is_terminal)
        self.viewing = Viewing(node, self.follow)
        """Where whoever owns a run follows it, from any cursor."""
        self.decisions = Decisions(node)
        """Where people and applications answer."""
        self.sessions = _sessions(node, options, terms)
        """Conversations, where this host keeps any."""
        self.jobs = None if options.jobs is None else Jobs(node, terms.bounds, options.jobs, self.sessions)
        """Detached jobs, where this host takes any on."""
        self.runs = Foreground(node, feeds, terms.bounds, options.keys, self.sessions)
        self.agent_host = _agent_host(node, options, terms)
        """The Agent Host protocol over the same runs, where it is served."""

    def checked(self, document: Mapping[str, Any]) -> RunRequest:
        """The request that *document* states, if this host can run it (runs §3, §4).

        Raises:
            Refused: with the code of the first rule that is broken.
        """
        return checked(document, self.catalog)

    def attend(
        self, request: RunRequest | Mapping[str, Any], *, subject: str = "local", streamed: bool = True
    ) -> AbstractAsyncContextManager[Attended]:
        """Start a run (or find the replay of its key) and stay attached; leaving before its end cancels it.

        Raises:
            Refused: the request is not one this host can run, or there is no room.
            Unavailable: the store did not answer.
        """
        checked_request = request if isinstance(request, RunRequest) else self.checked(request)
        return self.runs.attend(checked_request, subject=subject, streamed=streamed)

    def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Yield a run's feed items after number *after* until its end; an empty batch is a heartbeat.

        Raises:
            Refused: this is no run's id.
        """
        return followed(self.store, _id(run_id), after, heartbeat_s=self.options.heartbeat_s)

    async def events(self, run_id: str) -> list[bytes]:
        """Read the AgenticDriver events of a run so far, each as JSON.

        Raises:
            Refused: this is no run's id.
        """
        found: list[bytes] = []
        after = 0
        while (page := await self.store.page(_id(run_id), after)).items:
            found.extend(wire_feed.numbered(item.number, item.data) for item in page.items)
            after = page.items[-1].number
        return found

    async def log(self, run_id: str, after: int = 0) -> list[Logged]:
        """Read a run's log after version *after*.

        Raises:
            Refused: this is no run's id.
        """
        look = await self.store.look(_id(run_id), after)
        return [Logged(entry, kinds.RUN.decode(entry.data)) for entry in look.entries]

    async def state(self, run_id: str) -> tuple[run.State, Heads]:
        """Read a run as it stands, and its heads.

        Raises:
            Refused: there is no such run, or this is no run's id.
        """
        state, heads = await self.node.around.shell.state(_id(run_id))
        if isinstance(state, run.New) and not heads.log:
            raise Refused("RUN_NOT_FOUND", "There is no such run.")
        return state, heads

    async def envelope(self, envelope: Mapping[str, Any] | bytes, policy: grants.Policy) -> dict[str, Any]:
        """Answer an Agent Host envelope, as whoever *policy* says; whatever it is, the answer is one of the protocol's.

        Raises:
            Refused: this host does not serve the protocol.
        """
        if self.agent_host is None:
            raise Refused("NOT_FOUND", "This host does not serve the Agent Host protocol.")
        service = HostService(self.agent_host, grants.host_access(None, grants.Principal("", policy)))
        asked = decoded(envelope) if isinstance(envelope, bytes) else request_given(envelope)
        told: dict[str, Any] = msgspec.json.decode((await dispatched(asked, service)).body)
        return told

    async def cancel(self, run_id: str) -> None:
        """End a run wherever it executes; nothing happens to one that has ended.

        Raises:
            Refused: there is no such run, or this is no run's id.
        """
        await self.state(run_id)
        await self.node.around.shell.tell(_id(run_id), run.Cancel(ASKED), command_id=str(uuid.uuid4()))

    def begin(self) -> None:
        """Take up what nobody owns from now on: queued jobs, and runs whose node is gone."""
        self.node.open.set()

    def close(self) -> None:
        """Begin the end: nothing more is taken on, and what runs is ended when its time is up."""
        self.node.close()

    async def drain(self) -> None:
        """Take nothing more on, and end or hand over what runs."""
        await self.node.drain()

    async def _from_the_first(self, run_id: str) -> AsyncIterator[Sequence[Item]]:
        async with aclosing(self.follow(run_id)) as batches:
            async for batch in batches:
                yield batch


def _id(text: str) -> str:
    """*text* as a run's id, in the form that it is stored under."""
    lowered = text.strip().lower()
    if not values.is_actor_id(lowered):
        raise Refused("INVALID_REQUEST", "a run's id is a UUID, as run.started shows it")
    return lowered


def _agent_host(node: Node, options: Options, terms: Terms) -> HostParts | None:
    if options.host is None or node.around.host_keys is None:
        return None
    return HostParts(
        runs=HostRuns(node, node.around.host_keys, terms.bounds, options.host),
        reading=Reading(node.around.store),
        catalog=terms.catalog,
        defaults=options.host_defaults,
        fresh_id=node.around.fresh_id,
    )


def _sessions(node: Node, options: Options, terms: Terms) -> Sessions | None:
    if options.sessions is None:
        return None
    around = node.around
    surroundings = SessionSurroundings(
        store=around.store,
        sessions=around.sessions,
        runs=around.shell,
        fresh_id=around.fresh_id,
        providers=terms.catalog.providers,
        account_of=terms.account_of,
        swept=node.sweeps.all,
        permit_begin_ms=options.node.permit_begin_ms,
    )
    return Sessions(surroundings, options.sessions)


@asynccontextmanager
async def open_host(
    store: Store, models: Mapping[str, Model], options: Options = DEFAULTS, tools: Mapping[str, Tool] = NO_TOOLS
) -> AsyncGenerator[Host]:
    """Run a host over an open *store*; leaving drains it."""
    terms = Terms(models, tools, options)
    around = Surroundings(
        shell=Shell(
            store,
            kinds.RUN,
            FeedOf(wire_feed.start, wire_feed.fold, wire_feed.items, wire_feed.too_large, wire_feed.thaw),
            log_bytes_max=options.log_bytes_max,
            telemetry=options.telemetry,
        ),
        sessions=Shell(store, kinds.SESSION, NO_FEED, telemetry=options.telemetry),
        host_keys=Shell(store, kinds.HOST_KEY, NO_FEED, telemetry=options.telemetry),
        store=store,
        models=models,
        items=FeedItems(wire_feed.deltas, wire_feed.progress),
        fresh_id=lambda: str(uuid.uuid4()),
        tools=tools,
        policy=options.policy,
        approvals=options.approvals,
        tickets=options.tickets,
        permit_begin_ms=options.node.permit_begin_ms,
        telemetry=options.telemetry,
        audit=None if options.audit is None else Sink(options.audit, options.audit_patience_s),
        resources=None if options.resources is None else _judging(options, options.resources, store),
    )

    def prepare(node: Node) -> None:
        jobs, of_host = options.jobs, options.host
        if jobs is not None or of_host is not None:
            node.worker = Worker(
                node,
                lanes=[lane for lane, part in ((JOBS_LANE, jobs), (HOST_LANE, of_host)) if part is not None],
                workers_max=max(0 if jobs is None else jobs.max_workers, 0 if of_host is None else of_host.max_workers),
                poll_s=HOST_POLL_S if jobs is None else jobs.poll_interval_ms / 1_000,
                bytes_max=0 if jobs is None else jobs.max_bytes,
                why_not=terms.why_not,
                authority=options.authority,
            )
        if options.usage is not None:
            node.accounts = Accounts(
                options.usage,
                record_of=partial(_record, options, models, store),
                read=around.shell.events,
                settle=lambda run_id: store.settle(run_id, "usage"),
                telemetry=options.telemetry,
            )

    async with open_node(around, options.node, options.caps, prepare) as node:
        host = Host(store, options, node, terms)
        if not options.held:
            host.begin()
        yield host


def _judging(
    options: Options, authority: ResourceAuthority, store: Store
) -> Callable[[str, run.Live], Awaitable[Problem | None]]:
    """How the resource authority is asked about a run's next step."""

    def asked(run_id: str, state: run.Live) -> Awaitable[Problem | None]:
        accepted = state.accepted
        question = ResourceQuestion(
            provider=accepted.provider,
            subject=accepted.subject,
            host_id=options.host_id or store.deployment.id,
            account=accepted.account or None,
            run_id=run_id,
            model=accepted.model,
            step=state.step + 1,
            usage=total(state.usages),
        )
        return judged(authority, question, options.resources_unknown)

    return asked


def _record(
    options: Options, models: Mapping[str, Model], store: Store, run_id: str, log: Sequence[RunEvent]
) -> Mapping[str, Any] | None:
    """The usage record of the run with this *log* (runs §11); None where none is owed."""
    first = log[0] if log else None
    if not isinstance(first, RunAccepted):
        return None
    model = models.get(first.provider)
    info = model.info if model is not None else None
    facts = usage.Accounting(
        host_id=options.host_id or store.deployment.id,
        account=first.account or None,
        vendor=info.vendor if info else first.provider,
        auth_mode=info.auth_mode if info else "none",
        source=info.usage_source if info else "adapter-report",
        labels=options.labels,
    )
    return usage.record(run_id, log, facts)
