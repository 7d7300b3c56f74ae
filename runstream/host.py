"""A host inside a program: its runs are started, streamed, read and cancelled without a socket."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, NamedTuple

from msgspec import UNSET, Struct

from actors import kinds, run
from actors.audit import Sink
from actors.decisions import Decisions
from actors.errors import Problem, Refused
from actors.events import RunEvent, ToolFact
from actors.executor import Surroundings
from actors.foreground import Attended, Bounds, Feeds, Foreground
from actors.model_call import FeedItems
from actors.node import Node, NodeSettings, open_node
from actors.ports import AuditSink, Model, Policy, Tool
from actors.request import (
    Catalog,
    Features,
    HostLimits,
    ProviderFacts,
    RunRequest,
    ToolFacts,
    attempts,
    checked,
    idle_timeout_ms,
    max_output_tokens,
    max_steps,
)
from actors.request_parts import ApplicationTool
from actors.shell import FeedOf, Shell
from eventstore.follow import followed
from eventstore.store import Caps, Entry, Heads, Item, Store
from projections import wire_feed

HEARTBEAT_S = 15.0
"""How often a silent stream says that it is alive (runs §2)."""
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


DEFAULTS = Options()
NO_TOOLS: Mapping[str, Tool] = {}


class Logged(NamedTuple):
    """One event of a run's log, with where it stands."""

    entry: Entry
    event: RunEvent


class Host:
    """One node, ready to run."""

    def __init__(self, store: Store, options: Options, node: Node) -> None:
        self.store = store
        self.models = node.around.models
        self.tools = node.around.tools
        self.options = options
        self.node = node
        self.app: Any = None
        """The ASGI application of this host, for a server or to be mounted; set by `runstream.open`."""
        self.catalog = _catalog(self.models, self.tools, options)
        feeds = Feeds(self._from_the_first, wire_feed.replayed, wire_feed.is_terminal)
        self.decisions = Decisions(node)
        """Where people and applications answer."""
        self.runs = Foreground(node, feeds, self._bounds, options.keys)

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
        """Yield a run's feed items after number *after* until its end; an empty batch is a heartbeat."""
        return followed(self.store, run_id, after, heartbeat_s=self.options.heartbeat_s)

    async def events(self, run_id: str) -> list[bytes]:
        """Read the AgenticDriver events of a run so far, each as JSON."""
        found: list[bytes] = []
        after = 0
        while (page := await self.store.page(run_id, after)).items:
            found.extend(wire_feed.numbered(item.number, item.data) for item in page.items)
            after = page.items[-1].number
        return found

    async def log(self, run_id: str, after: int = 0) -> list[Logged]:
        """Read a run's log after version *after*."""
        look = await self.store.look(run_id, after)
        return [Logged(entry, kinds.RUN.decode(entry.data)) for entry in look.entries]

    async def state(self, run_id: str) -> tuple[run.State, Heads]:
        """Read a run as it stands, and its heads.

        Raises:
            Refused: there is no such run.
        """
        state, heads = await self.node.around.shell.state(run_id)
        if isinstance(state, run.New) and not heads.log:
            raise Refused("RUN_NOT_FOUND", "There is no such run.")
        return state, heads

    async def cancel(self, run_id: str) -> None:
        """End a run wherever it executes; nothing happens to one that has ended.

        Raises:
            Refused: there is no such run.
        """
        await self.state(run_id)
        await self.node.around.shell.tell(run_id, run.Cancel(ASKED), command_id=str(uuid.uuid4()))

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

    def _bounds(self, request: RunRequest, waived: frozenset[str]) -> Bounds:
        limits, account = self.options.limits, self.models[request.provider].info.account or ""
        if self.options.needs_account and not account:
            raise Refused("ADMISSION_IDENTITY_REQUIRED", "This provider instance is bound to no account.")
        return Bounds(
            max_steps=max_steps(request, limits),
            max_output_tokens=max_output_tokens(request, limits),
            max_attempts=attempts(request, limits),
            idle_timeout_ms=idle_timeout_ms(request, limits) or 0,
            account=account,
            tools=tuple(self._facts(request, waived)),
        )

    def _facts(self, request: RunRequest, waived: frozenset[str]) -> Iterator[ToolFact]:
        """What is known of the run's tools, in the order of the request."""
        defined = {tool.name: tool for tool in request.application_tools or ()}
        for name in request.tools or ():
            if name in defined:
                yield self._application_fact(defined[name], waived)
            else:
                yield _host_fact(self.tools[name])

    def _application_fact(self, tool: ApplicationTool, waived: frozenset[str]) -> ToolFact:
        reviewed = self.options.application_tools_reviewed or tool.requires_approval is True or tool.name not in waived
        return ToolFact(
            tool.name,
            tool.description,
            tool.input_schema,
            application=True,
            requires_approval=reviewed,
            output_schema=UNSET if tool.output_schema is None else tool.output_schema,
        )


@asynccontextmanager
async def open_host(
    store: Store, models: Mapping[str, Model], options: Options = DEFAULTS, tools: Mapping[str, Tool] = NO_TOOLS
) -> AsyncGenerator[Host]:
    """Run a host over an open *store*; leaving drains it."""
    shell: Shell[run.State, run.Command, RunEvent] = Shell(
        store,
        kinds.RUN,
        FeedOf(wire_feed.start, wire_feed.fold, wire_feed.items, wire_feed.too_large, wire_feed.thaw),
        log_bytes_max=options.log_bytes_max,
    )
    around = Surroundings(
        shell=shell,
        store=store,
        models=models,
        items=FeedItems(wire_feed.deltas, wire_feed.progress),
        fresh_id=lambda: str(uuid.uuid4()),
        tools=tools,
        policy=options.policy,
        approvals=options.approvals,
        tickets=options.tickets,
        permit_begin_ms=options.node.permit_begin_ms,
        audit=None if options.audit is None else Sink(options.audit, options.audit_patience_s),
    )
    async with open_node(around, options.node, options.caps) as node:
        yield Host(store, options, node)


def _host_fact(tool: Tool) -> ToolFact:
    definition = tool.definition
    return ToolFact(
        definition.name,
        definition.description,
        definition.input_schema,
        requires_approval=tool.requires_approval,
        idempotent=tool.idempotent,
    )


def _catalog(models: Mapping[str, Model], tools: Mapping[str, Tool], options: Options) -> Catalog:
    facts = {
        name: ProviderFacts(
            models=model.info.models,
            capabilities=model.info.capabilities,
            input_media_types={one: tuple(kinds) for one, kinds in model.info.input_media_types.items()},
        )
        for name, model in models.items()
    }
    known = {name: ToolFacts(requires_approval=tool.requires_approval) for name, tool in tools.items()}
    return Catalog(providers=facts, tools=known, limits=options.limits, features=options.features)
