"""Text deltas per second from provider to SSE client through Redis, and memory per idle viewer; each host in a process."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, compared, rate
from bench.serving import TOKEN

TARGET = 0.4
IDLE_VIEWERS = 500
IDLE_KB = 40
_TERMINAL = b"\nevent: run."


class Served(NamedTuple):
    """A server in a process of its own."""

    port: int
    pid: int

    @property
    def resident_kb(self) -> int:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * 4


async def figures() -> list[Figure]:
    """Measure one viewer, 200 viewers on 200 runs, and idle ones."""
    async with served("host") as host, served("bare") as bare:
        return [
            await _streamed("text deltas/s, 1 viewer", host, bare, viewers=1, increments=100_000),
            await _streamed("text deltas/s, 200 viewers on 200 runs", host, bare, viewers=200, increments=2_000),
            await _idle(host),
        ]


async def _streamed(name: str, host: Served, bare: Served, *, viewers: int, increments: int) -> Figure:
    async def of(server: Served) -> float:
        begun = time.perf_counter()
        await asyncio.gather(*[_read(server.port, str(increments)) for _ in range(viewers)])
        return viewers * increments / (time.perf_counter() - begun)

    ours, raw, ratio = await compared(lambda: of(host), lambda: of(bare), rounds=3)
    return Figure(name, rate(ours), rate(raw), f"{ratio:.2f}", f"at least {TARGET}", ratio >= TARGET)


async def _idle(host: Served) -> Figure:
    opened = [await opened_run(host.port, "idle") for _ in range(20)]  # what is allocated once is not a viewer's
    before = host.resident_kb
    viewers = [await opened_run(host.port, "idle") for _ in range(IDLE_VIEWERS)]
    each = (host.resident_kb - before) / IDLE_VIEWERS
    for _, writer in opened + viewers:
        writer.close()
    name = f"memory per idle SSE viewer and its run, {IDLE_VIEWERS} of them"
    return Figure(name, f"{each:.0f} KB", "-", "-", f"at most {IDLE_KB} KB", each <= IDLE_KB)


async def opened_run(port: int, model: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a run and wait until it calls its model."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_000_000)
    body = f'{{"provider":"talker","model":"{model}","input":"hello"}}'.encode()
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    if model == "idle":
        await reader.readuntil(b'"step":1')
    return reader, writer


async def _read(port: int, model: str) -> None:
    """Read a whole stream, and look that it ended well."""
    reader, writer = await opened_run(port, model)
    tail = b""
    while data := await reader.read(1_048_576):
        tail = (tail + data)[-2_097_152:]
    assert b"event: run.completed" in tail, tail[-300:]
    writer.close()


@asynccontextmanager
async def served(kind: str) -> AsyncGenerator[Served]:
    """A server of *kind* in a process; it ends with the context."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.serving", kind, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, pid = (await process.stdout.readline()).split()
        yield Served(int(port), int(pid))
    finally:
        process.stdin.close()
        await process.wait()
