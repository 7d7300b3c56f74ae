"""Tools, reviews and tickets for tests: by value for the pure ones, and a small world with nodes for the others."""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors import run
from actors.bounds import accept
from actors.decisions import Caller
from actors.dispatch import POOL
from actors.events import Origin, RunEvent, ToolCall, ToolFact
from actors.node import NodeSettings
from actors.plan import Claiming
from actors.ports import Model, ModelContext, ModelRequest, Tool, ToolContext, ToolDefinition, ToolMessage, Turn
from actors.request import Features
from eventstore import clock
from eventstore.memory import Memory
from eventstore.store import Caps, Claim, Store
from runstream.host import Host, Options, open_host
from tests.actors.runs import ARTIFACT, NOW, folded
from tests.actors.runs import accept as accepting
from tests.actors.support import FakeModel, asking

APPROVAL = "0b6c2a52-1111-4f7e-9a41-5f2f5f3b7c10"
TICKET = "0b6c2a52-2222-4f7e-9a41-5f2f5f3b7c10"
SCHEMA = Raw(b'{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}')
FAST = NodeSettings(lease_ms=120, routine_ms=10, permit_begin_ms=5_000, reassured_s=0.05, drain_s=0.01)
ALL_FEATURES = Features(idempotency=True, approvals=True, application_tools=True)

# By value.


def fact(name: str, **members: Any) -> ToolFact:
    return ToolFact(name, f"Does {name}.", SCHEMA, **members)


HOST, REVIEWED = fact("host"), fact("reviewed", requires_approval=True)
APPLICATION = fact("app", application=True, output_schema=Raw(b'{"type":"integer"}'))
REVIEWED_APPLICATION = fact("careful", application=True, requires_approval=True)
FACTS = (HOST, REVIEWED, APPLICATION, REVIEWED_APPLICATION)
INTERACTIVE = {"mode": "interactive", "idlePolicy": "continue"}


def call(name: str, call_id: str = "c1", arguments: bytes = b'{"n":1}') -> ToolCall:
    return ToolCall(call_id, name, Raw(arguments))


def defined(tool: ToolFact) -> dict[str, Any]:
    """The definition of an application tool as a request carries it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": msgspec.json.decode(tool.input_schema),
        "requiresApproval": tool.requires_approval,
    }


def wanted(*tools: ToolFact, approvals: Mapping[str, Any] | None = INTERACTIVE, **members: Any) -> dict[str, Any]:
    """The members of a request that names *tools*."""
    names: dict[str, Any] = {"tools": [tool.name for tool in tools]}
    applications = [defined(tool) for tool in tools if tool.application]
    if applications:
        names["applicationTools"] = applications
    if approvals is not None:
        names["approvals"] = dict(approvals)
    return names | members


def accepted(
    *tools: ToolFact, origin: Origin = "foreground", idle_timeout_ms: int = 0, max_steps: int = 8, **members: Any
) -> run.Accept:
    command = accepting(max_steps=max_steps, **wanted(*tools, **members))
    return replace(command, tools=tools, origin=origin, idle_timeout_ms=idle_timeout_ms)


def proposing(*calls: ToolCall, step: int = 1, text: str = "") -> run.Answer:
    return run.Answer(step, Turn(text=text, tool_calls=calls), streamed=False, artifact_id=ARTIFACT)


class Story:
    """A run by value: what it was told, and what became of it."""

    def __init__(self, begin: run.Accept) -> None:
        self.now_ms = NOW
        self.state: run.State = run.New()
        self.log: list[RunEvent] = []
        self.tell(begin)

    def tell(self, command: run.Command, *, after_ms: int = 0) -> Any:
        """Tell it *command*, and return what that caused."""
        self.now_ms += after_ms
        decision = run.decide(self.state, command, self.now_ms)
        self.log += decision.events
        self.state = folded(decision.events, self.state)
        return decision

    def effect(self) -> run.Effect | None:
        return run.next_effect(self.state)


def proposed(*calls: ToolCall, tools: Sequence[ToolFact] = FACTS, **members: Any) -> Story:
    """A run whose model has just asked for *calls*."""
    story = Story(accepted(*tools, **members))
    story.tell(run.EnterStep(1))
    story.tell(proposing(*calls))
    return story


def tags(events: Sequence[Any]) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in events]


# A small world.


class CountingTool:
    """A host tool that remembers what it saw."""

    def __init__(self, name: str = "host", *, reviewed: bool = False, idempotent: bool = False) -> None:
        self.definition = ToolDefinition(name, f"Does {name}.", SCHEMA)
        self.requires_approval = reviewed
        self.idempotent = idempotent
        self.output_bytes_max = 1_000
        self.seen: list[tuple[str, str, dict[str, Any]]] = []

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        self.seen.append((context.run_id, context.call_id, dict(arguments)))
        return {"done": len(self.seen)}


def using(*calls: ToolCall) -> FakeModel:
    """A model that asks for *calls*, and is content once it has their outputs."""

    async def answer(request: ModelRequest, _: ModelContext) -> Turn:
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return Turn(text="done")
        return Turn(tool_calls=calls)

    return FakeModel(answer)


@asynccontextmanager
async def tooled(model: Model, store: Store, *tools: Tool, **options: Any) -> AsyncIterator[Host]:
    """A host with *tools* that allows all there is, and reviews no application tool that does not ask for it."""
    chosen = Options(
        node=FAST,
        heartbeat_s=0.2,
        caps=lambda _subject, _account: Caps(total=100_000),
        features=ALL_FEATURES,
        application_tools_reviewed=False,
    )
    named = {tool.definition.name: tool for tool in tools}
    async with open_host(store, {"fake": model}, replace(chosen, **options), named) as host:
        yield host


def anybody(subject: str = "ann") -> Caller:
    return Caller(subject, lambda _provider, _tool: True, lambda _provider, _tool: True)


async def begun(host: Host, *tools: ToolFact, origin: Origin = "job", **members: Any) -> str:
    """Start a run that no client is attached to; jobs have no route yet."""
    request = host.checked(asking(**wanted(*tools, **members)))
    bounds = host.terms.bounds(request, "ann", frozenset(tool.name for tool in tools))
    store, node = host.store, host.node
    claim = Claim(POOL, str(uuid.uuid4()), store.node, "ann")
    permit = await store.take(claim, node.caps("ann", ""), node.settings.permit_begin_ms)
    command = accept(request, bounds, subject="ann", admitted=True, origin=origin, permit=claim.holder)
    run_id, sent = str(uuid.uuid4()), clock.mono_ms()
    told = await node.around.shell.tell(
        run_id,
        command,
        command_id=claim.holder,
        claim=Claiming(store.node, node.settings.lease_ms),
        fresh=True,
        not_after_ms=permit.begin_by_ms,
    )
    node.execute(run_id, told, sent, claim)
    return run_id


def companions_of(memory: Memory, kind: str) -> dict[str, Any]:
    """The approvals (or tickets) there are, by their ids."""
    begin = f'{{"type":"{kind}.'.encode()
    return {
        actor: kept for actor, kept in list(memory.actors.items()) if kept.log and kept.log[1].data.startswith(begin)
    }


def open_companion(memory: Memory, kind: str) -> str:
    """The one that waits; empty for none."""
    return next((actor for actor, kept in companions_of(memory, kind).items() if not kept.heads.ended), "")


def audit(memory: Memory) -> list[dict[str, Any]]:
    """All audit records, partition by partition."""
    return [msgspec.json.decode(record) for records in memory.outbox.values() for record in records]
