"""A host in a process of its own that starts one run without a client, and dies of SIGKILL around the start of its tool.

`python -m tests.system.waiting_run SETTINGS ORIGIN before|after|never`; it prints the ids of the run and of its approval.
A line on its input makes it approve the call itself.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec

import runstream
from actors import run
from eventstore.store import Append
from runstream.host import Host
from runstream.sources import read_settings
from tests.actors.reviewing import REVIEWED, anybody, begun, call, using

CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}


async def main(file: str, origin: Any, when: str) -> None:
    settings = await read_settings(Path(file), {}, Path.home())
    async with runstream.open(settings, {"fake": using(call("reviewed"))}) as host:
        _mined(host, when)
        run_id = await begun(host, REVIEWED, origin=origin)
        approval_id = await _asked(host, run_id)
        _say(msgspec.json.encode([run_id, approval_id]).decode())
        if await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            await host.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
            _say("decided")
        await anyio.sleep_forever()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _asked(host: Host, run_id: str) -> str:
    async for _ in host.follow(run_id):
        state, _ = await host.state(run_id)
        if isinstance(state, run.Live) and state.open is not None and state.open.approval_id:
            return state.open.approval_id
    raise AssertionError("the run ended without asking")


def _mined(host: Host, when: str) -> None:
    """Let the process die just before or just after the start of a tool is stored."""
    store: Any = host.store
    append = store.append

    async def mined(asked: Append) -> Any:
        starts = any(b'"tool.started"' in event.data for part in asked.parts for event in part.events)
        if starts and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = await append(asked)
        if starts and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    store.append = mined


if __name__ == "__main__":
    words = sys.argv[1:]
    anyio.run(main, words[0], words[1], words[2])
