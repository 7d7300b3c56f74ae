"""A host with one pending approval or one open ticket, to post answers to."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from api.app import Edge
from tests.actors.support import new_memory
from tests.api.asgi_client import Told, sent
from tests.api.asgi_stream import Streaming
from tests.host_rules import host_answer
from tests.scenario_world import World, bearer, patience

DECISIONS = "/v1/approvals/decisions"
PROGRESS = "/v1/tool-executions/progress"
RESULTS = "/v1/tool-executions/results"
PATHS = (DECISIONS, PROGRESS, RESULTS)
ARGUMENTS = '{"text":"Reviewed","ids":[1,2]}'
_ALICE: dict[str, Any] = {
    "subject": "alice",
    "providers": ["mock"],
    "tools": ["write"],
    "approveTools": ["write", "lookup"],
    "applicationTools": [{"name": "lookup", "requiresApproval": False}],
}
CONFIG: dict[str, Any] = {
    "approvals": {"interactive": True},
    "applicationTools": {"enabled": True, "requireApproval": False},
    "tools": [{"name": "write", "requiresApproval": True, "inputSchema": {"type": "object"}, "result": None}],
    "tokens": {
        "alice": _ALICE,
        "idle": {"subject": "alice", "providers": ["mock"]},
        "bob": _ALICE | {"subject": "bob"},
    },
}
OFF = CONFIG | {"approvals": {}, "applicationTools": {}}
_RUN = {"provider": "mock", "model": "demo", "input": "x"}
_REVIEWED = _RUN | {"tools": ["write"], "approvals": {"mode": "interactive", "idlePolicy": "pause"}}


class Waiting:
    """A run that waits for an answer, and the world around it."""

    def __init__(self, world: World, stream: Streaming, event: Mapping[str, Any]) -> None:
        self.world = world
        self.stream = stream
        self.asked: dict[str, Any] = event.get("approval") or event["execution"]

    @property
    def app(self) -> Edge:
        return self.world.nodes[0].app

    @property
    def run_id(self) -> str:
        return str(self.asked["runId"])

    def decision(self, **changes: Any) -> dict[str, Any]:
        """The decision that approves, with *changes*."""
        named = {name: self.asked[name] for name in ("approvalId", "runId", "call")}
        return {**named, "decision": "approve", **changes}

    def ticket(self, **changes: Any) -> dict[str, Any]:
        """What names the ticket, with *changes*."""
        named = {"executionId": self.asked["executionId"], "runId": self.run_id, "callId": self.asked["call"]["id"]}
        return named | changes

    async def post(self, path: str, body: Any, *, who: str = "alice") -> Told:
        """Post *body*, JSON or bytes as they are; the answer is one that a host may send."""
        told = await posted(self.app, path, body, who=who)
        host_answer(told.status, told.headers, told.body)
        return told

    async def rest(self) -> list[str]:
        """The types of what the stream shows from here to its end."""
        return [str(event["type"]) for event in await self.stream.events(None)]


async def posted(app: Any, path: str, body: Any, *, who: str = "alice") -> Told:
    """Post to a host that may have nothing that waits."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {bearer(who)}".encode())]
    return await sent(app, "POST", path.encode(), headers, data)


def code_of(told: Told) -> str:
    """The code that was answered, or nothing for a receipt."""
    return "" if told.status == 200 else str(json.loads(told.body)["error"]["code"])


@asynccontextmanager
async def reviewing(
    arguments: str = ARGUMENTS, around: Callable[[Any], Any] = lambda store: store
) -> AsyncIterator[Waiting]:
    """A run whose call of `write` with *arguments* waits for a decision."""
    async with _waiting("write", arguments, _REVIEWED, "approval.requested", around) as waiting:
        yield waiting


@asynccontextmanager
async def executing(output_schema: Mapping[str, Any] | None = None) -> AsyncIterator[Waiting]:
    """A run whose call of `lookup` waits for the application."""
    tool: dict[str, Any] = {"name": "lookup", "description": "x", "inputSchema": {}}
    if output_schema is not None:
        tool["outputSchema"] = output_schema
    request = _RUN | {"tools": ["lookup"], "applicationTools": [tool]}
    async with _waiting("lookup", "{}", request, "tool.execution.requested", lambda store: store) as waiting:
        yield waiting


@asynccontextmanager
async def _waiting(
    tool: str, arguments: str, request: dict[str, Any], until: str, around: Callable[[Any], Any]
) -> AsyncIterator[Waiting]:
    script: list[dict[str, Any]] = [
        {"toolCalls": [{"id": "c1", "name": tool, "argumentsRaw": arguments}]},
        {"text": "done"},
    ]
    world = World(CONFIG, script, memory=new_memory(), around=around)
    stream = Streaming(request)
    with patience(20):
        async with anyio.create_task_group() as tasks:
            await world.open()
            try:
                tasks.start_soon(stream.carry, world.nodes[0].app, bearer("alice"))
                yield Waiting(world, stream, (await stream.events(until))[-1])
            finally:
                stream.leave()
                await stream.over.wait()
                await world.close()
