"""From a delta committed in Redis to its frame at an SSE client of the same node, while nothing else happens."""

import asyncio
import time
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import anyio

import runstream
from actors.ports import ModelContext, ModelRequest, Probe, Turn
from api.grants import TokenEntry, token_digest
from api.server import Config, Listening, serve
from bench.figures import Figure
from bench.serving import TOKEN, Talker
from bench.streams import opened_run
from eventstore.store import Append, Recorded
from runstream.settings import Settings

DELTAS = 200
TARGET_MS = 2.0


class Ticker:
    """Says a word every 25 ms."""

    info = Talker.info

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:  # noqa: ARG002 - the port
        """Say them."""
        for _ in range(DELTAS):
            context.emit_text("tick ")
            await anyio.sleep(0.025)
        return Turn(text="tick " * DELTAS)

    async def inspect(self) -> Probe | None:
        """Not there."""
        return None


async def figures() -> list[Figure]:
    """Measure it."""
    token = TokenEntry(digest=token_digest(TOKEN), subject="bench", providers=("talker",))
    with TemporaryDirectory() as folder:
        settings = Settings(state_dir=Path(folder) / "state", tokens=(token,))
        async with runstream.open(settings, {"talker": Ticker()}) as host:
            committed = _watched(host.store)
            listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
            served = asyncio.create_task(
                serve(host.app, Config(port=0), on_ready=listening.set_result, drain=host.close)
            )
            at = await listening
            delays = await _delays(at.port, committed)
            at.stop()
            await served
    p50, p99 = quantiles(delays, n=100)[49], quantiles(delays, n=100)[98]
    name = "delta committed to delivered, same node, idle: p50 (p99)"
    return [Figure(name, f"{p50:.2f} ms ({p99:.2f} ms)", "-", "-", f"p50 under {TARGET_MS} ms", p50 < TARGET_MS)]


def _watched(store: Any) -> dict[int, float]:
    """Note when each item was committed: when the append that wrote it was answered."""
    committed: dict[int, float] = {}
    append = store.append

    async def noted(asked: Append) -> Any:
        outcome = await append(asked)
        if isinstance(outcome, Recorded):
            for part, placed in zip(asked.parts, outcome.parts, strict=True):
                committed.update((placed.first + n, time.perf_counter()) for n in range(len(part.items)))
        return outcome

    store.append = noted
    return committed


async def _delays(port: int, committed: dict[int, float]) -> list[float]:
    reader, writer = await opened_run(port, "ticker")
    delays: list[float] = []
    number = 0
    while line := await reader.readline():
        if line.startswith(b"id: "):
            number = int(line[4:])
        if line == b"event: text.delta\n":
            delays.append(max(0.0, time.perf_counter() - committed[number]) * 1_000)
    writer.close()
    return delays
