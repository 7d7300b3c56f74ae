"""Conversations for tests: models that keep what they were asked, hosts that keep sessions, and what became of both."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import codec
from actors.errors import Refused
from actors.events import RunAccepted, RunEvent, SessionMode, Visible
from actors.node import NodeSettings
from actors.ports import (
    AssistantMessage,
    Message,
    Model,
    ModelContext,
    ModelRequest,
    Tool,
    ToolMessage,
    Turn,
    UserMessage,
)
from actors.session import Limits
from actors.sessions import Holder, Sessions, Shown, Wanted, everything_of
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import Store
from projections import wire_feed
from runstream.host import Host
from tests.actors.reviewing import call, tooled
from tests.actors.support import INFO, Answering, Clock, FakeModel, asking, items_of, new_memory
from tests.eventstore.conftest import DEPLOYMENT, emptied

ALL_OPERATIONS = everything_of("ann").operations
KEPT = Limits(retention_ms=600_000)
"""Of sessions that outlive every test, unless its clock is put forward."""
STEADY = NodeSettings(lease_ms=20_000, routine_ms=25, permit_begin_ms=20_000, reassured_s=1, drain_s=0.05)
"""For hosts that nobody loses, however slow the machine is."""
CONTINUING = {"tools": True, "textStreaming": True, "historyContinuation": True, "nativeContinuation": True}

Opening = Callable[[str], Awaitable[Any]]
"""Opens the store of a node by its name."""


# Models.


class Listener(FakeModel):
    """A model that keeps what it was asked, and may wait until it is released."""

    def __init__(self, answering: Answering, **info: Any) -> None:
        super().__init__(self._heard)
        self.info = replace(INFO, **({"account": "acct", "capabilities": CONTINUING} | info))
        self.asked: list[ModelRequest] = []
        self.release = anyio.Event()
        self._says = answering

    async def _heard(self, request: ModelRequest, context: ModelContext) -> Turn:
        self.asked.append(request)
        return await self._says(request, context)

    def told(self, number: int = -1) -> list[tuple[str, str]]:
        """Who said what in the messages of one call."""
        return [(_role(message), message.content) for message in self.asked[number].messages]


def counting(**info: Any) -> Listener:
    """A model that says which of its answers this is."""

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        return Turn(text=f"answer {model.calls}")

    model = Listener(answer, **info)
    return model


def holding() -> Listener:
    """A model that answers once it is released."""

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        await model.release.wait()
        return Turn(text="late")

    model = Listener(answer)
    return model


def calling(*names: str, ids: Callable[[int], str] = "c{}".format) -> Listener:
    """A model that uses each of *names* in every turn, and is content then; *ids* names the calls by their number."""

    async def answer(request: ModelRequest, _: ModelContext) -> Turn:
        used = _used(request.messages)
        if used == len(names):
            return Turn(text="done", native=Raw(b'{"kept":2}'))
        return Turn(text="well", tool_calls=(call(names[used], ids(model.calls)),), native=Raw(b'{"kept":1}'))

    model = Listener(answer)
    return model


def _used(messages: Sequence[Message]) -> int:
    """How many tools were used since somebody asked last."""
    last = max(number for number, one in enumerate(messages) if isinstance(one, UserMessage))
    return sum(isinstance(one, ToolMessage) for one in messages[last:])


def _role(message: Message) -> str:
    if isinstance(message, AssistantMessage):
        return "assistant"
    return "tool" if isinstance(message, ToolMessage) else "user"


# Hosts.


class House:
    """One deployment in memory, whose time a test may put forward."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = new_memory(self.clock)

    def store(self, name: str) -> MemoryStore:
        return MemoryStore(self.memory, name)

    async def counted(self, pool: str = "sessions") -> int:
        return (await self.memory.ledger.counted(pool)).held


@pytest.fixture(params=["memory", "valkey"])
async def opening(request: pytest.FixtureRequest) -> AsyncIterator[Opening]:
    """How nodes of one deployment are opened, on memory and on a server."""
    if request.param == "memory":
        memory = new_memory()

        async def remembered(name: str) -> Store:
            return MemoryStore(memory, name)

        yield remembered
        return
    endpoint = request.getfixturevalue("valkey")
    await emptied(endpoint)
    async with AsyncExitStack() as stack:

        async def connected(name: str) -> Store:
            return await stack.enter_async_context(open_redis_store(endpoint, DEPLOYMENT, name))

        yield connected


def keeping(model: Model, store: Any, *tools: Tool, **options: Any) -> Any:
    """A host that keeps sessions."""
    return tooled(model, store, *tools, **({"sessions": KEPT, "node": STEADY} | options))


@asynccontextmanager
async def two_nodes(model: Model, opening: Opening, *tools: Tool, **options: Any) -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts of one deployment, with one model that both ask."""
    first, second = await opening("n1"), await opening("n2")
    async with (
        keeping(model, first, *tools, **options) as one,
        keeping(model, second, *tools, **options) as two,
    ):
        yield one, two


def sessions_of(host: Host) -> Sessions:
    """The sessions of a host that keeps them."""
    assert host.sessions is not None
    return host.sessions


# Asking.


def holder(
    subject: str = "ann", *, operations: frozenset[str] = ALL_OPERATIONS, providers: Sequence[str] = ("fake", "none")
) -> Holder:
    return Holder(subject, lambda provider: provider in providers, operations)


def wanted(mode: SessionMode = "history", **members: Any) -> Wanted:
    named: dict[str, Any] = {"provider": "fake", "model": "m", "mode": mode}
    return Wanted(**(named | members))


def visible(*contents: str) -> tuple[Visible, ...]:
    """A history in which both speak in turn."""
    return tuple(Visible("assistant" if number % 2 else "user", one) for number, one in enumerate(contents))


async def opened(host: Host, mode: SessionMode = "history", **members: Any) -> str:
    """The id of a new session of ann's."""
    return (await sessions_of(host).create(holder(), wanted(mode, **members))).id


async def read(host: Host, session_id: str) -> Shown:
    return await sessions_of(host).read(holder(), session_id)


async def delete(host: Host, session_id: str) -> None:
    await sessions_of(host).delete(holder(), session_id)


def turn(session_id: str, revision: int = 0, **members: Any) -> dict[str, Any]:
    """The request of a session's turn."""
    return asking(session={"id": session_id, "revision": revision}, **members)


async def taken(host: Host, document: dict[str, Any], subject: str = "ann") -> Any:
    """Make a turn; answers its last event."""
    return events(await items_of(host, document, subject))[-1]


def events(items: Sequence[Any]) -> list[Any]:
    return [msgspec.json.decode(wire_feed.numbered(item.number, item.data)) for item in items]


async def code(asked: Awaitable[Any]) -> str:
    """The code with which *asked* is refused, or the end of the run that it was."""
    try:
        answer = await asked
    except Refused as refused:
        return refused.code
    return str(answer["type"]) if isinstance(answer, dict) else ""


# What was written.


async def log_of(store: Store, run_id: str) -> list[RunEvent]:
    return [codec.decode_run(entry.data) for entry in (await store.look(run_id)).entries]


def logs_of(memory: Memory, session_id: str = "") -> dict[str, list[RunEvent]]:
    """The logs of all runs (of one session), by their ids."""
    found: dict[str, list[RunEvent]] = {}
    for actor, kept in list(memory.actors.items()):
        if not kept.log or not kept.log[1].data.startswith(b'{"type":"run.accepted"'):
            continue
        log = [codec.decode_run(kept.log[version].data) for version in sorted(kept.log)]
        assert isinstance(log[0], RunAccepted)
        if not session_id or (log[0].session is not None and log[0].session.id == session_id):
            found[actor] = log
    return found


async def holds_nothing(memory: Memory, pools: Sequence[str]) -> bool:
    """Whether nobody has a place in any of *pools*."""
    return not any([(await memory.ledger.counted(pool)).held for pool in pools])
