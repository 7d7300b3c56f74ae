"""Durable appends per second of one node, 64 runs at once, against plain pipelined XADD over the same connection code."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from bench.figures import Figure, compared, rate
from eventstore.local import private_server
from eventstore.redis_store import RedisStore, open_redis_store
from eventstore.socket_link import SocketLink, open_link
from eventstore.store import Append, Deployment, Event, Part, Recorded

RUNS = 64
EACH = 300
PAYLOAD = b"x" * 256
TARGET = 0.5

Made = Callable[[str, int], Append]


async def figures() -> list[Figure]:
    """Measure a log event, and a text delta (feed, epoch and publish)."""
    async with _opened() as (store, link):
        return [
            await _figure("appends: one 256-byte log event, 64 runs at once", store, link, _fact),
            await _figure("appends: one 256-byte text delta, 64 runs at once", store, link, _delta),
        ]


async def _figure(name: str, store: RedisStore, link: SocketLink, made: Made) -> Figure:
    ours, raw, ratio = await compared(lambda: _appended(store, made), lambda: _added(link))
    return Figure(name, rate(ours), rate(raw), f"{ratio:.2f}", f"at least {TARGET}", ratio >= TARGET)


@asynccontextmanager
async def _opened() -> AsyncGenerator[tuple[RedisStore, SocketLink]]:
    with TemporaryDirectory() as folder:
        async with private_server(Path(folder) / "state") as server:
            deployment = Deployment("bench", 64, b"k" * 32)
            async with (
                open_link(server.endpoint) as link,
                open_redis_store(server.endpoint, deployment, "n1") as store,
            ):
                yield store, link


def _fact(actor: str, number: int) -> Append:
    return Append(command=f"x1.{number}", parts=(Part(actor=actor, log=number, events=(Event(PAYLOAD),), epoch=1),))


def _delta(actor: str, number: int) -> Append:
    return Append(command=f"d1.{number}", parts=(Part(actor=actor, feed=number, items=(PAYLOAD,), epoch=1),))


async def _appended(store: RedisStore, made: Made) -> float:
    actors = [str(uuid.uuid4()) for _ in range(RUNS)]
    for actor in actors:
        claim = Part(actor=actor, log=0, events=(Event(b"{}", 1),), items=(b"{}",), owner="n1", lease_ms=60_000)
        assert isinstance(await store.append(Append(command="c", parts=(claim,))), Recorded)

    async def one(actor: str) -> None:
        for number in range(1, EACH + 1):
            assert isinstance(await store.append(made(actor, number)), Recorded)

    return await _timed(one, actors)


async def _added(link: SocketLink) -> float:
    async def one(key: str) -> None:
        for number in range(1, EACH + 1):
            await link.call("XADD", key, f"{number}-0", "e", PAYLOAD)

    keys = [f"raw:{uuid.uuid4()}" for _ in range(RUNS)]
    return await _timed(one, keys)


async def _timed(work: Callable[[str], Coroutine[Any, Any, None]], names: list[str]) -> float:
    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(work, name)
    return RUNS * EACH / (time.perf_counter() - begun)
