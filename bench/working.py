"""Hosts that take jobs and sessions on, with a model that costs nothing: what the measurements of jobs begin with."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from actors.jobs import Limits as JobLimits
from actors.jobs import Submitter
from actors.node import NodeSettings
from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, Turn
from actors.session import Limits as SessionLimits
from eventstore.endpoint import Endpoint
from eventstore.redis_store import open_redis_store
from eventstore.store import Caps, Deployment, Store
from runstream.host import Host, Options, open_host

DEPLOYMENT = Deployment("bench", 64, b"k" * 32)
DOCUMENT: Mapping[str, Any] = {"provider": "instant", "model": "m", "input": "Well?"}
DAY_MS = 24 * 3_600 * 1_000
MANY = 100_000
STORE_CALLS = (
    "append", "look", "page", "save", "take", "begun", "give", "enlist", "dispatch", "settle", "renew", "sweep",
)  # fmt: skip


class Instant:
    """A model that answers at once, unless it is held, or told to take its time; it notes who was answered when."""

    info = ProviderInfo(
        id="instant",
        name="Instant",
        vendor="bench",
        auth_mode="none",
        capabilities={"tools": False, "textStreaming": True, "historyContinuation": True},
        account="bench",
    )

    def __init__(self) -> None:
        self.begun = 0
        self.takes_s = 0.0
        self.open = anyio.Event()
        self.open.set()
        self.awaited: dict[str, float] = {}
        """When a run with one of these inputs began."""

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:  # noqa: ARG002 - the port
        """Answer."""
        self.begun += 1
        said = request.messages[-1].content
        if said in self.awaited:
            self.awaited[said] = time.perf_counter()
        await self.open.wait()
        if self.takes_s:
            await anyio.sleep(self.takes_s)
        return Turn(text="Yes.")

    async def inspect(self) -> Probe | None:
        """Not there."""
        return None


@asynccontextmanager
async def nodes(where: Endpoint, count: int, model: Instant, slots: int) -> AsyncGenerator[list[Host]]:
    """Open hosts with connections of their own, *slots* for all of them together."""
    options = Options(
        node=NodeSettings(drain_s=0),
        caps=lambda _subject, _account: Caps(total=slots),
        jobs=JobLimits(retention_ms=DAY_MS, max_jobs=MANY, max_jobs_per_subject=MANY, max_bytes=MANY * DAY_MS),
        sessions=SessionLimits(retention_ms=DAY_MS, max_entries=MANY),
    )
    async with AsyncExitStack() as stack:
        hosts: list[Host] = []
        for number in range(count):
            store = await stack.enter_async_context(open_redis_store(where, DEPLOYMENT, f"n{number}"))
            hosts.append(await stack.enter_async_context(open_host(store, {"instant": model}, options)))
        yield hosts


async def submit(host: Host, subject: str, key: str, said: str = "Well?") -> str:
    """Submit a job; its id."""
    assert host.jobs is not None
    request = host.checked({**DOCUMENT, "input": said})
    return (await host.jobs.submit(Submitter(subject, "bench"), key, request)).id


async def quiet(hosts: list[Host]) -> None:
    """Wait until no host has anything in its hands."""
    while any(host.node.executing for host in hosts):  # noqa: ASYNC110 - a bench may look now and then
        await anyio.sleep(0.005)


@asynccontextmanager
async def counting(stores: list[Store]) -> AsyncGenerator[Counter[str]]:
    """Count what the *stores* are asked."""
    calls = Counter[str]()
    known = [(store, name, getattr(store, name)) for store in stores for name in STORE_CALLS]
    for store, name, call in known:
        setattr(store, name, _counted(calls, name, call))
    try:
        yield calls
    finally:
        for store, name, _ in known:
            delattr(store, name)


def _counted(calls: Counter[str], name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    def counted(*args: Any, **options: Any) -> Awaitable[Any]:
        calls[name] += 1
        return call(*args, **options)

    return counted
