"""Agent Host envelopes a second for `get_run`, over standard input and output and over HTTP, against a bare echo.

The host is a process of its own on a private Redis; the echo answers as many bytes to each request and does nothing else,
over the same pipe, or as an ASGI application on the same server.
`python -m bench.envelopes host|bare` is such an HTTP server; it prints its port and ends with its input.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

import runstream
from api.grants import TokenEntry, token_digest
from api.server import Config, Listening, serve
from bench.figures import Figure, compared, rate
from runstream.settings import Settings

ENVELOPES = 2_048
ROUNDS = 3
AT_ONCE = 64
CONNECTIONS = 16
TOKEN = "bench-token-of-more-than-32-characters"
GRANTS: dict[str, Any] = {"subject": "bench", "providers": ("scripted",), "jobs": ("submit",)}
SETTINGS = """
[host.principal]
subject = "bench"
providers = ["scripted"]
jobs = ["submit"]
[host.defaults]
model = "echo"
[log]
level = "error"
"""
ECHO = """
import sys
answer = b"x" * int(sys.argv[1]) + b"\\n"
for _ in sys.stdin.buffer:
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
"""


def envelope(operation: str, key: str = "", **body: Any) -> bytes:
    """One envelope, without its line end."""
    return json.dumps(
        {
            "protocolVersion": "2026-07-01",
            "requestId": "bench",
            "idempotencyKey": key,
            "operation": operation,
            "metadata": {},
            "body": body,
        }
    ).encode()


GET = envelope("get_run", runId="run-1")
CREATE = envelope("create_run", "k-1", context={"runId": "run-1"}, input={"prompt": "Hello", "model": "echo"})
Ask = Callable[[bytes], Awaitable[bytes]]


async def figures() -> list[Figure]:
    """Measure both ways."""
    return [
        _row("stdio", f"{AT_ONCE} at once", *await _over_stdio()),
        _row("HTTP", f"{CONNECTIONS} connections", *await _over_http()),
    ]


def _row(way: str, how: str, ours: float, raw: float, ratio: float) -> Figure:
    name = f"Host envelopes over {way}: `get_run` of an ended run, {how}"
    return Figure(name, rate(ours), rate(raw), f"{ratio:.3f}", "-", met=True)


async def _over_stdio() -> tuple[float, float, float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        file = folder / "s.toml"
        file.write_text(SETTINGS, encoding="utf-8")
        options = ["--stdio", "--config", str(file), "--state-dir", str(folder / "state")]
        host = await stack.enter_async_context(_process("-m", "runstream", "host", *options))
        size = len(await _ended(lambda line: _asked(host, line)))
        echo = await stack.enter_async_context(_process("-c", ECHO, str(size)))
        return await compared(lambda: _pumped(host), lambda: _pumped(echo), ROUNDS)


async def _asked(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    return (await process.stdout.readline()).rstrip()


async def _pumped(process: asyncio.subprocess.Process) -> float:
    """Envelopes a second, with so many under way."""
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.perf_counter()
    process.stdin.write((GET + b"\n") * AT_ONCE)
    for number in range(ENVELOPES):
        await process.stdout.readline()
        if number < ENVELOPES - AT_ONCE:
            process.stdin.write(GET + b"\n")
    return ENVELOPES / (time.perf_counter() - began)


async def _over_http() -> tuple[float, float, float]:
    async with AsyncExitStack() as stack:
        host = await _port(await stack.enter_async_context(_process("-m", "bench.envelopes", "host")))
        size = len(await _ended(lambda body: _posted(host, body)))
        bare = await _port(await stack.enter_async_context(_process("-m", "bench.envelopes", "bare", str(size))))
        return await compared(lambda: _posting(host), lambda: _posting(bare), ROUNDS)


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    return int(await process.stdout.readline())


async def _posting(port: int) -> float:
    """Envelopes a second over so many connections."""
    began = time.perf_counter()
    each = ENVELOPES // CONNECTIONS
    await asyncio.gather(*(_posted(port, GET, each) for _ in range(CONNECTIONS)))
    return each * CONNECTIONS / (time.perf_counter() - began)


async def _posted(port: int, body: bytes, times: int = 1) -> bytes:
    """The last answer to *body*, posted over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = (
        f"POST /host/v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    answer = b""
    for _ in range(times):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        answer = await reader.readexactly(length)
    writer.close()
    return answer


async def _ended(ask: Ask) -> bytes:
    """Begin the run, and wait for its end; the answer that tells it."""
    assert json.loads(await ask(CREATE))["ok"]
    while True:
        answer = await ask(GET)
        if json.loads(answer)["body"]["status"] == "completed":
            return answer
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _process(*words: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()  # which ends all of them
        await process.wait()


async def _bare(scope: Any, receive: Any, send: Any) -> None:
    """As many bytes as were asked for, for each request."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    body = b"x" * int(sys.argv[2])
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _serving(kind: str) -> None:
    async with AsyncExitStack() as stack:
        app: Any = _bare
        if kind == "host":
            folder = Path(stack.enter_context(TemporaryDirectory()))
            token = TokenEntry(digest=token_digest(TOKEN), **GRANTS)
            app = (await stack.enter_async_context(runstream.open(Settings(state_dir=folder, tokens=(token,))))).app
        listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        config = Config(port=0, drain_s=1)
        task = asyncio.create_task(serve(app, config, on_ready=listening.set_result, drain=lambda: None))
        at = await listening
        print(at.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        at.stop()
        await task


if __name__ == "__main__":
    uvloop.run(_serving(sys.argv[1]))
