"""Hosts that speak the Host protocol, over memory, for tests: who asks, what models do, and what becomes of a run."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from actors.host_runs import Limits
from actors.node import NodeSettings
from actors.ports import Model, ModelContext, ModelRequest, Tool, ToolMessage, Turn
from api.grants import Policy, Principal, host_access
from api.host import dispatcher
from api.host.encoding import Answer
from api.host.service import HostService
from eventstore.memory import Memory
from eventstore.store import Caps, Store
from runstream.host import Host, Options, open_host
from tests.actors.support import FakeModel, until_so
from tests.host_client import Object, envelope, whole

BRISK = NodeSettings(lease_ms=2_000, routine_ms=20, permit_begin_ms=5_000, reassured_s=0.1, drain_s=0.3)
DEFAULTS: Mapping[str, Any] = {"provider": "fake", "model": "m"}
ENDS = frozenset({"completed", "failed", "cancelled", "timed_out"})


def policy(subject: str = "ann", **members: Any) -> Policy:
    """One that may do everything there is in these tests."""
    usual: dict[str, Any] = {
        "providers": ("fake",),
        "tools": ("host", "reviewed"),
        "approve_tools": ("reviewed",),
        "jobs": ("submit", "read", "cancel"),
    }
    return Policy(subject=subject, **usual | members)


class Desk:
    """Where envelopes are handed in at one node."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.who = policy()
        """Who asks, unless it is said."""
        self.faults: list[BaseException] = []
        self._numbers = 0

    async def raw(self, text: bytes, who: Policy | None = None) -> Answer:
        """The answer to the JSON *text*."""
        assert self.host.agent_host is not None
        service = HostService(self.host.agent_host, host_access(None, Principal("", who or self.who)))
        return await dispatcher.answered(text, service, lambda error, _: self.faults.append(error))

    async def asked(self, operation: str, body: Any, key: str = "", who: Policy | None = None) -> Object:
        """The answer to one envelope, if a host may give it."""
        self._numbers += 1
        request_id = f"r-{self._numbers}"
        text = msgspec.json.encode(envelope(operation, body, request_id=request_id, key=key))
        told = whole((await self.raw(text, who)).body)
        assert (told["requestId"], told["operation"]) == (request_id, operation)
        return told

    async def done(self, operation: str, body: Any, who: Policy | None = None) -> Object:
        """The result of one envelope under a fresh key, which must succeed."""
        told = await self.asked(operation, body, str(uuid.uuid4()), who)
        assert told["ok"], told
        result: Object = told["body"]
        return result

    async def code(self, operation: str, body: Any, key: str = "", who: Policy | None = None) -> str:
        """The code of the failure, empty for none."""
        told = await self.asked(operation, body, key or str(uuid.uuid4()), who)
        return "" if told["ok"] else str(told["error"]["code"])

    async def create(self, name: str, who: Policy | None = None, **members: Any) -> Object:
        """Begin a run whose input is its name, unless *members* say otherwise."""
        return await self.done("create_run", creating(name, **members), who)

    async def view(self, name: str, who: Policy | None = None) -> Object:
        return await self.done("get_run", {"runId": name}, who)

    async def events(self, name: str, who: Policy | None = None) -> list[Object]:
        """All events of a run so far, page by page, if the pages are sound."""
        found: list[Object] = []
        while True:
            after = found[-1]["sequence"] if found else 0
            page = await self.done("list_events", {"runId": name, "afterSequence": after, "limit": 3}, who)
            found += page["events"]
            if not page["hasMore"]:
                assert [event["sequence"] for event in found] == list(range(1, len(found) + 1))
                return found

    async def types(self, name: str) -> list[str]:
        return [event["type"] for event in await self.events(name)]

    async def until(self, name: str, true: Callable[[Object], bool]) -> Object:
        """Wait until the view of a run is so."""
        found: list[Object] = []

        async def holds() -> bool:
            found[:] = [await self.view(name)]
            return true(found[0])

        await until_so(holds)
        return found[0]

    async def waiting(self, name: str) -> Object:
        """Wait until a run waits for a decision."""
        return await self.until(name, lambda view: view["status"] == "waiting_for_approval")

    async def ended(self, name: str) -> Object:
        return await self.until(name, lambda view: view["status"] in ENDS)

    async def resolve(self, view: Object, resolution: str = "approved", **members: Any) -> Object:
        """Decide about what *view* waits for."""
        body = {
            "runId": view["runId"],
            "expectedRevision": view["revision"],
            "approvalId": view["approval"]["approvalId"],
            "resolution": resolution,
        }
        return await self.done("resolve_approval", body | members)

    async def resume(self, view: Object, **members: Any) -> Object:
        """Claim what was approved in *view*."""
        body = {
            "runId": view["runId"],
            "expectedRevision": view["revision"],
            "approvalId": view["approval"]["approvalId"],
        }
        return await self.done("resume_run", body | members)

    async def approved(self, name: str) -> None:
        """Approve and resume whatever a run waits for."""
        await self.resolve(await self.waiting(name))
        await self.resume(await self.view(name))


def creating(name: str, **members: Any) -> Object:
    """The body of a creation; `context` is laid over its own."""
    context = {"runId": name} | members.pop("context", {})
    return {"context": context, "input": {"prompt": name}} | members


@asynccontextmanager
async def hosting(model: Model, store: Store, *tools: Tool, **options: Any) -> AsyncIterator[Desk]:
    """Open a host over *store*."""
    chosen = Options(
        node=BRISK,
        heartbeat_s=0.2,
        caps=lambda _subject, _account: Caps(total=32, per_subject=16),
        host=Limits(),
        host_defaults=DEFAULTS,
    )
    named = {tool.definition.name: tool for tool in tools}
    async with open_host(store, {"fake": model}, replace(chosen, **options), named) as host:
        yield Desk(host)


def rounds(*turns: Sequence[Any]) -> FakeModel:
    """A model that asks for the calls of each of *turns*, one turn after another, and is content then."""

    async def answer(request: ModelRequest, _: ModelContext) -> Turn:
        used = sum(isinstance(message, ToolMessage) for message in request.messages)
        ahead = 0
        for calls in turns:
            if used <= ahead:
                return Turn(tool_calls=tuple(calls))
            ahead += len(calls)
        return Turn(text="done", usage={"inputTokens": 3, "outputTokens": 2})

    return FakeModel(answer)


def logs(memory: Memory) -> dict[str, list[bytes]]:
    """The logs of all runs."""
    return {
        actor: [kept.log[number].data for number in sorted(kept.log)]
        for actor, kept in list(memory.actors.items())
        if kept.log and kept.log[1].data.startswith(b'{"type":"run.accepted')
    }


async def gathered(*asked: Awaitable[Any]) -> list[Any]:
    """What each of *asked* gives, all at once."""
    import asyncio  # noqa: PLC0415 - the tests' loop is asyncio's

    return list(await asyncio.gather(*asked))
