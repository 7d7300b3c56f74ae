"""A small world for the tests of actors: a memory store, a model that does as it is told, and a host over both."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
from msgspec.structs import replace

from actors.node import NodeSettings
from actors.ports import Model, ModelContext, ModelRequest, Probe, ProviderInfo, Turn
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Caps, Deployment, Item, Store
from projections import wire_feed
from runstream.host import Host, Options, open_host

DEADLINE_S = 20.0
POLL_S = 0.002
QUICK = NodeSettings(lease_ms=600, routine_ms=50, permit_begin_ms=5_000, reassured_s=0.1, drain_s=0.3)
ROOMY = Caps(total=32, per_subject=8)
INFO = ProviderInfo(
    id="fake",
    name="Fake",
    vendor="fake",
    auth_mode="none",
    capabilities={"tools": True, "textStreaming": True},
)

Answering = Callable[[ModelRequest, ModelContext], Awaitable[Turn]]


class FakeModel:
    """Answers by the function it is given, and counts."""

    def __init__(self, answering: Answering) -> None:
        self.info = INFO
        self.calls = 0
        self._answering = answering

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        self.calls += 1
        return await self._answering(request, context)

    async def inspect(self) -> Probe | None:
        return None


def saying(text: str, *, pieces: Sequence[str] = ()) -> FakeModel:
    async def answer(_: ModelRequest, context: ModelContext) -> Turn:
        for piece in pieces:
            context.emit_text(piece)
        return Turn(text=text, usage={"inputTokens": 3, "outputTokens": 2})

    return FakeModel(answer)


def stalling(*pieces: str) -> FakeModel:
    async def answer(_: ModelRequest, context: ModelContext) -> Turn:
        for piece in pieces:
            context.emit_text(piece)
        await anyio.sleep_forever()
        raise AssertionError

    return FakeModel(answer)


def asking(**members: Any) -> dict[str, Any]:
    return {"provider": "fake", "model": "m", "input": "hello"} | members


class Clock:
    """A memory's time, which a test may put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


def new_memory(clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> Memory:
    return Memory(Deployment("test", 4, b"k" * 32), clock)


@asynccontextmanager
async def hosted(
    model: Model, store: Store | None = None, *, caps: Caps = ROOMY, **options: Any
) -> AsyncIterator[Host]:
    chosen = Options(node=QUICK, heartbeat_s=0.2, caps=lambda _subject, _account: caps)
    async with open_host(store or MemoryStore(new_memory(), "n1"), {"fake": model}, replace(chosen, **options)) as host:
        yield host


async def items_of(host: Host, document: dict[str, Any], subject: str = "ann") -> list[Item]:
    """All items of a run, from its start to its end."""
    with anyio.fail_after(DEADLINE_S):
        async with host.attend(document, subject=subject) as attended:
            return [item async for batch in attended.items() for item in batch]


async def ended(host: Host, run_id: str) -> list[Item]:
    """All items of a run that somebody started, once it has ended."""
    with anyio.fail_after(DEADLINE_S):
        async with aclosing(host.follow(run_id)) as batches:
            return [item async for batch in batches for item in batch]


def types(items: Sequence[Item]) -> list[str]:
    return [wire_feed.event_type(item.data).decode() for item in items]


async def until(true: Callable[[], bool]) -> None:
    """Wait for a condition that some other task brings about."""

    async def holds() -> bool:
        return true()

    await until_so(holds)


async def until_so(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition that takes a question to know."""
    with anyio.fail_after(DEADLINE_S):
        while not await true():  # noqa: ASYNC110 - what tests look at sets no event
            await anyio.sleep(POLL_S)


async def free(memory: Memory) -> bool:
    """Whether no run holds a slot."""
    return not (await memory.ledger.counted("runs")).held
