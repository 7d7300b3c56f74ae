"""Streams through the real edge over runs kept in memory, against a bare ASGI application that streams the same bytes.

Run as `python -m bench.edge`: frames per second for 1 and for 200 clients, each as a ratio, and memory per idle viewer.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvloop

from actors.foreground import Attended
from actors.request import RunRequest
from actors.sessions import Holder
from api.app import create_app
from api.server import Config, Listening, serve
from eventstore.store import Item
from projections import wire_feed
from providers.discovery import Discovery
from providers.mock import Mock
from tests.api import hosted

AT_MS = 1_767_607_200_000
RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
BODY = json.dumps(hosted.RUN).encode()
REQUEST = (
    f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {hosted.TOKENS['reader']}\r\n"
    f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY


def feed(frames: int) -> list[Item]:
    """A run that says *frames* short words."""
    started = wire_feed.item(RUN_ID, "run.started", {"provider": "mock", "model": "demo"}, AT_MS)
    word = next(wire_feed.deltas(RUN_ID, "a word or two", AT_MS))
    ended = wire_feed.item(RUN_ID, "run.cancelled", {"error": {"code": "CANCELLED"}}, AT_MS)
    return [Item(number, data) for number, data in enumerate([started, *[word] * (frames - 2), ended], 1)]


class Prepared:
    """A run whose items are all there, given *batch* at a time; or, without items, one that waits."""

    run_id = RUN_ID
    resumable = False

    def __init__(self, items: Sequence[Item], batch: int) -> None:
        self.batches = [items[at : at + batch] for at in range(0, len(items), batch)]

    async def items(self) -> AsyncIterator[Sequence[Item]]:
        """Yield all of it, and let others have their turn between batches."""
        for batch in self.batches:
            yield batch
            await asyncio.sleep(0)
        if not self.batches[-1:] or not wire_feed.is_terminal(self.batches[-1][-1].data):
            await anyio.sleep_forever()


class PreparedRuns:
    """Every request gets the same run."""

    def __init__(self, items: Sequence[Item], batch: int) -> None:
        self.run = Prepared(items, batch)

    @asynccontextmanager
    async def attend(
        self,
        request: RunRequest,  # noqa: ARG002 - the port's
        *,
        subject: str,  # noqa: ARG002
        streamed: bool,  # noqa: ARG002
        waived: frozenset[str] = frozenset(),  # noqa: ARG002
        holder: Holder | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[Attended, None]:
        """Attend it."""
        yield self.run


def bare(items: Sequence[Item], batch: int) -> Any:
    """An ASGI application that sends the same bytes, prepared beforehand, in the same pieces."""
    run = Prepared(items, batch)
    pieces = [b"".join(wire_feed.frame(*item) for item in one) for one in run.batches]
    waits = not wire_feed.is_terminal(items[-1].data)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        while waits and (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[int, None]:
    """Serve *app* in this process; the port."""
    ready: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    config = Config(port=0, drain_s=1)
    task = asyncio.create_task(serve(app, config, on_ready=ready.set_result, drain=lambda: None))
    listening = await ready
    try:
        yield listening.port
    finally:
        listening.stop()
        await task


LOADER = """
import asyncio, sys, time
port, clients, request, opening = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), sys.argv[4] == "open"
class Reader(asyncio.Protocol):
    def __init__(self, done):
        self.done, self.tail = done, b""
    def connection_made(self, transport):
        transport.write(request)
    def data_received(self, data):
        self.tail = self.tail[-5:] + data[-5:]
        if self.tail.endswith(b"0\\r\\n\\r\\n") or opening:
            self.done.set_result(None) if not self.done.done() else None
    def connection_lost(self, exc):
        if not self.done.done():
            self.done.set_exception(EOFError())
async def main():
    loop = asyncio.get_running_loop()
    dones = [loop.create_future() for _ in range(clients)]
    begun = time.perf_counter()
    for done in dones:
        await loop.create_connection(lambda done=done: Reader(done), "127.0.0.1", port)
    await asyncio.gather(*dones)
    print(time.perf_counter() - begun, flush=True)
    if opening:
        await loop.run_in_executor(None, sys.stdin.readline)
import uvloop
uvloop.run(main())
"""


async def cost(app: Any, python: str, clients: int, frames: int) -> tuple[float, float]:
    """Seconds of this process, and seconds by the clock, that a frame takes; *clients* read from another process."""
    async with served(app) as port:
        arguments = (str(port), str(clients), REQUEST.hex(), "read")
        used = time.process_time()
        process = await asyncio.create_subprocess_exec(python, "-c", LOADER, *arguments, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return (time.process_time() - used) / (clients * frames), float(out) / (clients * frames)


async def best(app: Any, python: str, clients: int, frames: int, rounds: int) -> tuple[float, float]:
    """The least of both over *rounds*: what others on the machine take is no cost of ours."""
    costs = [await cost(app, python, clients, frames) for _ in range(rounds)]
    return min(one for one, _ in costs), min(one for _, one in costs)


async def idle_bytes(app: Any, python: str, clients: int) -> float:
    """Resident bytes per viewer that only waits."""
    async with served(app) as port:
        arguments = (str(port), str(clients), REQUEST.hex(), "open")
        before = resident()
        process = await asyncio.create_subprocess_exec(
            python, "-c", LOADER, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        used = (resident() - before) / clients
        await process.communicate(b"\n")
        return used


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4_096


async def main(python: str, rounds: int) -> None:
    """Print the table."""
    print(
        "| clients | ready at once | bare, a frame per send | bare, as ready | edge | ratio to the first | to the second |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    async with Discovery({"mock": Mock()}) as discovery:
        for clients, frames, ready in ((1, 50_000, 1), (1, 100_000, 16), (200, 500, 1), (200, 1_000, 16)):
            items = feed(frames)
            edge = create_app(hosted.parts(PreparedRuns(items, ready), discovery))
            apps = (bare(items, 1), bare(items, ready), edge)
            single, same, ours = [(await best(app, python, clients, frames, rounds))[0] for app in apps]
            told = " | ".join(f"{1 / one:,.0f}" for one in (single, same, ours))
            print(f"| {clients} | {ready} | {told} | {single / ours:.2f} | {same / ours:.2f} |", flush=True)
        waiting = feed(3)[:2]
        app = create_app(hosted.parts(PreparedRuns(waiting, 2), discovery))
        used = await idle_bytes(bare(waiting, 2), python, 1_000), await idle_bytes(app, python, 1_000)
        print(f"\nmemory per idle viewer: bare {used[0] / 1_024:.1f} KB, edge {used[1] / 1_024:.1f} KB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    import sys

    begun = time.monotonic()
    uvloop.run(main(sys.executable, parser.parse_args().rounds))
    print(f"took {time.monotonic() - begun:.0f} s")
