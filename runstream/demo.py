"""`runstream demo`: a private Redis, a host on a free port, and one run sent to it as any client would."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from api.server import Listening
from runstream import running, tokens
from runstream.client import Remote, remote_events
from runstream.output import Output
from runstream.serving import serve_host
from runstream.settings import ListenSettings, NodeSection, Settings
from runstream.tables import EVENT_HEADER, neutral

PROVIDER, MODEL = "scripted", "demo"
QUICK = NodeSection(drain_s=0.5)
"""Nobody waits for a demonstration that was stopped."""


async def demo(text: str, state_dir: Path | None, output: Output, program: str) -> None:
    """Run the demonstration on *text*; its history stays in *state_dir*, or in a new temporary folder.

    Raises:
        RunFailed: the run ended without a result.
    """
    folder = state_dir or Path(await anyio.mkdtemp(prefix="runstream-demo-"))
    made = tokens.Made(token := await tokens.fresh(), tokens.entry_for(token, subject="demo", providers=(PROVIDER,)))
    settings = Settings(state_dir=folder, listen=ListenSettings(port=0), tokens=(made.entry,), node=QUICK)
    document = running.document_of(text, provider=PROVIDER, model=MODEL)
    await output.line("starting a private Redis and a host …")
    shown = _Shown(output)
    async with _served(settings) as url:
        await output.line(f"host ready at {url}; sending {len(text)} characters to {PROVIDER}/{MODEL}\n")
        await output.line(EVENT_HEADER)
        events = shown.kept(remote_events(Remote(url, made.token), document))
        await running.run(events, output, "table", shown.started)
    await output.line(f"\nresult:\n  {neutral(shown.text)}\n")
    await output.line(f"The run is kept in {folder}. Look at it again, as often as you like:")
    for command in ("events", "log"):
        await output.line(f"  {program} {command} {shown.run_id} --state-dir {shlex.quote(str(folder))}")


class _Shown:
    """What the demonstration remembers of its run."""

    def __init__(self, output: Output) -> None:
        self.run_id = self.text = ""
        self._output = output

    def started(self, run_id: str) -> None:
        self.run_id = run_id

    async def kept(self, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Pass *events* on, and keep the result's text."""
        async for data in events:
            match msgspec.json.decode(data):
                case {"type": "run.completed", "result": {"text": str(text)}}:
                    self.text = text
                case _:
                    pass
            yield data


@asynccontextmanager
async def _served(settings: Settings) -> AsyncGenerator[str]:
    """Serve a host beside the body, and let it drain afterwards."""
    listening: list[Listening] = []
    ready = anyio.Event()

    def on_ready(found: Listening) -> None:
        listening.append(found)
        ready.set()

    async def served() -> None:
        await serve_host(settings, on_ready)
        ready.set()

    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served)
        await ready.wait()
        try:
            yield listening[0].url
        except Exception as error:  # noqa: BLE001 - raised again once the host has ended in order
            failure = error
        listening[0].stop()
    if failure is not None:
        raise failure
