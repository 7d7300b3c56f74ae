"""A server to be measured from outside: `python -m bench.serving host|bare`; prints its port and pid, ends with its input.

`host` is the whole of Runstream on a private Redis; its model says *INCREMENTS* words without pause.
`bare` is an ASGI application on the same server that sends one prepared frame an increment, and nothing else.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import uvloop

import runstream
from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, Turn
from api.grants import TokenEntry, token_digest
from api.server import Config, Listening, serve
from projections import wire_feed
from runstream.settings import SchedulingSettings, Settings

TOKEN = "bench-token-of-more-than-32-characters"
WORD = "a word or two "
RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
YIELD_EVERY = 64


class Talker:
    """A model that says as many words as its name tells, without pause; `idle` says nothing and waits."""

    info = ProviderInfo(
        id="talker",
        name="Talker",
        vendor="bench",
        auth_mode="none",
        capabilities={"tools": False, "textStreaming": True},
    )

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        """Say them."""
        if request.model == "idle":
            await anyio.sleep_forever()
        increments = int(request.model)
        for number in range(increments):
            context.emit_text(WORD)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return Turn(text=WORD * increments)

    async def inspect(self) -> Probe | None:
        """Not there."""
        return None


@asynccontextmanager
async def host_app() -> AsyncGenerator[tuple[Any, Any]]:
    """The whole house on a private Redis."""
    token = TokenEntry(digest=token_digest(TOKEN), subject="bench", providers=("talker",))
    with TemporaryDirectory() as folder:
        settings = Settings(
            state_dir=Path(folder) / "state",
            tokens=(token,),
            scheduling=SchedulingSettings(total=10_000, per_subject=10_000),
        )
        async with runstream.open(settings, {"talker": Talker()}) as host:
            yield host.app, host.close


async def bare_app(scope: Any, receive: Any, send: Any) -> None:
    """One prepared frame an increment; how many, the body's model tells."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    increments = int(body.split(b'"model":"')[1].split(b'"')[0])
    frame = wire_feed.frame(2, next(wire_feed.deltas(RUN_ID, WORD, 1_767_607_200_000)))
    last = wire_feed.item(RUN_ID, "run.completed", {"result": {"text": WORD * increments}}, 1_767_607_200_000)
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(increments):
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": wire_feed.frame(3, last), "more_body": False})


async def main(kind: str) -> None:
    """Serve until the input ends."""
    async with AsyncExitStack() as stack:
        app, close = await stack.enter_async_context(host_app()) if kind == "host" else (bare_app, lambda: None)
        listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(app, Config(port=0, drain_s=1), on_ready=listening.set_result, drain=close))
        at = await listening
        print(at.port, os.getpid(), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        at.stop()
        await task


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
