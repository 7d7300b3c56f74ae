"""Runs that wait for a person, and whose node is this one: what the measurements of decisions begin with."""

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Raw

from actors import run
from actors.decisions import Caller
from actors.dispatch import POOL
from actors.events import ToolFact
from actors.node import NodeSettings
from actors.plan import Claiming
from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, ToolCall, ToolMessage, Turn
from actors.request import Features
from eventstore import clock
from eventstore.endpoint import Endpoint
from eventstore.redis_store import open_redis_store
from eventstore.store import Caps, Claim, Deployment
from runstream.host import Host, Options, open_host
from runstream.tools import tool

DEPLOYMENT = Deployment("bench", 64, b"bench")
SETTINGS = NodeSettings(drain_s=0)
DOCUMENT: Mapping[str, Any] = {
    "provider": "asking",
    "model": "m",
    "input": "Look it up.",
    "tools": ["look_up"],
    "approvals": {"mode": "interactive", "idlePolicy": "pause"},
    "maxSteps": 64,
}


def _any(_provider: str, _tool: str) -> bool:
    return True


REVIEWER = Caller("bench", _any, _any)


@tool(requires_approval=True)
async def look_up(query: str) -> dict[str, str]:
    """Look something up."""
    return {"found": query}


class Asking:
    """A model that asks for *calls* calls, a call a step, and then answers."""

    info = ProviderInfo(
        id="asking",
        name="Asking",
        vendor="bench",
        auth_mode="none",
        capabilities={"tools": True, "textStreaming": True},
    )

    def __init__(self, calls: int) -> None:
        self._calls = calls

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:  # noqa: ARG002 - the port
        """Ask, or answer."""
        made = sum(isinstance(message, ToolMessage) for message in request.messages)
        if made == self._calls:
            return Turn(text="done")
        return Turn(tool_calls=(ToolCall(f"c{made}", "look_up", Raw(b'{"query":"solar"}')),))

    async def inspect(self) -> Probe | None:
        """Not there."""
        return None


@asynccontextmanager
async def node(where: Endpoint, name: str, calls: int = 1, settings: NodeSettings = SETTINGS) -> AsyncGenerator[Host]:
    """Open a host with connections of its own."""
    options = Options(
        features=Features(approvals=True),
        node=settings,
        caps=lambda _subject, _account: Caps(total=0),
        approvals=Caps(total=100_000),
    )
    async with (
        open_redis_store(where, DEPLOYMENT, name) as store,
        open_host(store, {"asking": Asking(calls)}, options, {"look_up": look_up}) as host,
    ):
        yield host


async def start_job(host: Host) -> str:
    """Start a run that no client is attached to."""
    store, around, fact = host.store, host.node.around, look_up.definition
    claim = Claim(POOL, str(uuid.uuid4()), store.node, "bench")
    permit = await store.take(claim, host.node.caps("bench", ""), 60_000)
    command = run.Accept(
        subject="bench",
        request=host.checked(DOCUMENT),
        admitted=True,
        max_steps=64,
        max_output_tokens=100,
        max_attempts=1,
        idle_timeout_ms=0,
        origin="job",
        permit=claim.holder,
        tools=(ToolFact(fact.name, fact.description, fact.input_schema, requires_approval=True),),
    )
    run_id, sent = str(uuid.uuid4()), clock.mono_ms()
    claiming = Claiming(store.node, host.node.settings.lease_ms)
    told = await around.shell.tell(
        run_id, command, command_id=claim.holder, claim=claiming, fresh=True, not_after_ms=permit.begin_by_ms
    )
    host.node.execute(run_id, told, sent, claim)
    return run_id
