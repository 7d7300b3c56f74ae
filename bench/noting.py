"""A node in a process of its own that notes its appends: `python -m bench.noting SOCKET`; it prints its port and name first.

Each line on its input is a wish, answered with a line of JSON; it ends with its input.
`report` tells when each item was stored, by the clock that all processes of a machine share, and how long each append
that wrote items took, and forgets them; `grow RUN COUNT` writes text to a run whose model says nothing.
"""

import asyncio
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import uvloop

import runstream
from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, Turn
from api.grants import TokenEntry, token_digest
from api.server import Config, Listening, serve
from bench.serving import TOKEN
from eventstore.store import Append, Part, Recorded
from projections import wire_feed
from runstream import remembering
from runstream.host import Host
from runstream.keeping import JobsSettings
from runstream.sections import SchedulingSettings
from runstream.settings import NodeSection, RedisSettings, Settings

DAY_MS = 24 * 3_600 * 1_000
MANY = 100_000
AT_ONCE = 100


class Pacer:
    """A model that says `2000x20` as 2,000 words, one each 20 ms; `idle` says nothing and waits."""

    info = ProviderInfo(
        id="talker",
        name="Talker",
        vendor="bench",
        auth_mode="none",
        capabilities={"tools": False, "textStreaming": True},
        account="bench",
    )

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        """Say them."""
        if request.model == "idle":
            await anyio.sleep_forever()
        words, pause_ms = map(int, request.model.split("x"))
        due_s = time.perf_counter()
        for _ in range(words):
            context.emit_text("tick ")
            due_s += pause_ms / 1_000
            await anyio.sleep(max(0.0, due_s - time.perf_counter()))
        return Turn(text="tick " * words)

    async def inspect(self) -> Probe | None:
        """Not there."""
        return None


class Noted:
    """What was appended since the last report."""

    def __init__(self, store: Any) -> None:
        self.took_ms: list[float] = []
        self.stored_s: dict[str, dict[int, float]] = {}
        self._append = store.append
        store.append = self._noted

    async def _noted(self, asked: Append) -> Any:
        began = time.perf_counter()
        outcome = await self._append(asked)
        ended = time.perf_counter()
        if isinstance(outcome, Recorded):
            for part, placed in zip(asked.parts, outcome.parts, strict=True):
                numbers = range(placed.first, placed.first + len(part.items))
                self.stored_s.setdefault(part.actor, {}).update(dict.fromkeys(numbers, ended))
                if part.items:
                    self.took_ms.append((ended - began) * 1_000)
        return outcome

    async def report(self) -> Any:
        """Tell it, and forget it."""
        told = {"tookMs": self.took_ms, "storedS": self.stored_s}
        self.took_ms, self.stored_s = [], {}
        return told


async def _grow(host: Host, run_id: str, count: int) -> int:
    """Write *count* deltas to a run; the number of the last."""
    heads = (await host.store.look(run_id)).heads
    number, now_ms = heads.feed, int(time.time() * 1_000)
    (delta,) = wire_feed.deltas(run_id, "a word or two ", now_ms)
    for at in range(0, count, AT_ONCE):
        part = Part(actor=run_id, feed=number, items=(delta,) * AT_ONCE, epoch=heads.epoch)
        outcome = await host.store.append(Append(command=f"grow.{at}", parts=(part,)))
        assert isinstance(outcome, Recorded), outcome
        number += AT_ONCE
    return number


async def _wishes(host: Host, noted: Noted) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while words := (await reader.readline()).decode().split():
        told = await (noted.report() if words[0] == "report" else _grow(host, words[1], int(words[2])))
        print(msgspec.json.encode(told).decode(), flush=True)


async def main(socket: str) -> None:
    """Serve until the input ends."""
    token = TokenEntry(digest=token_digest(TOKEN), subject="bench", providers=("talker",), jobs=("submit", "read"))
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = Settings(
            state_dir=Path(folder),
            profile="standard",
            redis=RedisSettings(socket=Path(socket)),
            tokens=(token,),
            node=NodeSection(lease_ms=3_000),
            scheduling=SchedulingSettings(total=10_000, per_subject=10_000),
            jobs=JobsSettings(retention_ms=DAY_MS, max_jobs=MANY, max_jobs_per_subject=MANY, max_workers=1_000),
        )
        async with runstream.open(settings, {"talker": Pacer()}) as host:
            noted = Noted(host.store)
            listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(
                serve(host.app, Config(port=0, drain_s=0), on_ready=listening.set_result, drain=host.close)
            )
            at = await listening
            remembering.settle()
            print(at.port, host.store.node, flush=True)
            await _wishes(host, noted)
            at.stop()
            await task


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
