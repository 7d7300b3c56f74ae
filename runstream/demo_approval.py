"""`runstream demo-approval`: a run on one node whose tool call a person decides about through another node."""

import json
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
import msgspec
from anyio.streams.text import TextReceiveStream
from runstream_client import ApprovalRequested, AsyncClient, RunCancelled, RunCompleted, RunRequest, TicketCall
from runstream_client import RunFailed as RunEndedFailed

from eventstore import keys
from eventstore.local import private_server
from eventstore.socket_link import open_link
from runstream import tokens
from runstream.output import Output
from runstream.running import RunFailed
from runstream.settings import Settings
from runstream.tables import EVENT_HEADER, event_line, neutral, problem_line

PARTITIONS = Settings(state_dir=Path()).partitions
TOOL = "post_notice"
START_S = 30.0
NOTICE = {"board": "Canteen", "text": "The lift is out of order until Thursday."}
SCRIPTS = {
    "careful": {
        "turns": [
            {"text": "I would like to pin a notice.", "tool_calls": [{"name": TOOL, "arguments": NOTICE}]},
            {"reply": "Done. The tool answered $result."},
        ]
    }
}
DOCUMENT: RunRequest = {
    "provider": "scripted",
    "model": "careful",
    "input": "Tell everybody about the lift.",
    "tools": [TOOL],
    "approvals": {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 600_000},
}

Answer = Literal["approve", "deny"]


class _Node(NamedTuple):
    name: str
    url: str
    token: str


async def demo_approval(answer: Answer | None, state_dir: Path | None, output: Output, program: str) -> None:
    """Run the demonstration; *answer* is the decision, or None to ask on the terminal.

    Raises:
        RunFailed: the run ended without a result, though nobody denied its call.
    """
    folder = state_dir or Path(await anyio.mkdtemp(prefix="runstream-approval-"))
    token = await tokens.fresh()
    await output.line("starting a private Redis and two hosts on it …")
    async with private_server(folder) as server:
        text = _settings(server.socket, token)
        async with _served("A", folder, text, token) as one, _served("B", folder, text, token) as two:
            for node in (one, two):
                await output.line(f"node {node.name} ready at {node.url}")
            await output.line("\nThe run goes to node A, the decision to node B; neither is told of the other.\n")
            await output.line(f"node  {EVENT_HEADER}")
            run_id, result = await _shown(one, two, answer, output)
        await output.line(f"\nresult:\n  {neutral(result)}\n\naudit:")
        async with open_link(server.endpoint) as link:
            for tag in keys.tags(PARTITIONS):
                for _, fields in await link.call("XRANGE", keys.outbox(tag), "-", "+"):
                    await output.line(f"  {neutral(fields[1].decode())}")
    await output.line(f"\nThe run is kept in {folder}. Look at it again, as often as you like:")
    where = f"--state-dir {shlex.quote(str(folder))}"
    for command in ("events", "log"):
        await output.line(f"  {program} {command} {run_id} {where}")


async def _shown(one: _Node, two: _Node, answer: Answer | None, output: Output) -> tuple[str, str]:
    """Follow the run on one node and decide through the other; the run's id and what it came to."""
    denied = False
    async with (
        AsyncClient(one.url, token=one.token) as first,
        AsyncClient(two.url, token=two.token) as second,
        first.stream(DOCUMENT) as stream,
    ):
        async for event in stream:
            await output.line(f"{one.name:<4}  {event_line(event.raw)}")
            match event:
                case ApprovalRequested(approval=approval):
                    decision = await _decided(approval.call, answer, output)
                    denied = decision == "deny"
                    receipt = await second.approvals.decide(approval, decision)
                    told = f"receipt: {receipt.outcome} at {receipt.decided_at}"
                    await output.line(f"{two.name:<4}  {'':>5}  {'':<12}  {'(decision)':<24}  {told}")
                case RunCompleted(run_id=run_id, result=result):
                    return run_id, result.text
                case RunEndedFailed(run_id=run_id) | RunCancelled(run_id=run_id):
                    told = problem_line(event.raw["error"])
                    if not denied:
                        raise RunFailed(told)
                    return run_id, told
                case _:
                    pass
    raise RunFailed("INCOMPLETE_STREAM: the connection ended before the run did")


async def _decided(call: TicketCall, answer: Answer | None, output: Output) -> Answer:
    """Show the exact call, and take the answer of the person at the terminal where none was given."""
    await output.line(f"\n      The model wants to call {neutral(call.name, keep='')} with")
    for line in json.dumps(call.arguments, indent=2, ensure_ascii=False).splitlines():
        await output.line(f"        {neutral(line, keep='')}")
    if answer is not None or not sys.stdin.isatty():
        why = "as you said" if answer else "since nobody can be asked here (--no denies)"
        await output.line(f"      Node B is told to {answer or 'approve'} it, {why}.\n")
        return answer or "approve"
    while True:
        await output.text("      Allow exactly this call? [y/n] ")
        said = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        match said.strip().lower():
            case "y" | "yes":
                return "approve"
            case "n" | "no":
                return "deny"
            case _ if not said:
                return "deny"
            case _:
                pass


def _settings(socket: Path, token: str) -> str:
    """The settings file of either node."""
    entry = tokens.entry_for(token, subject="demo", providers=("scripted",), tools=(TOOL,), approve_tools=(TOOL,))
    return f"""profile = "standard"
tools = "runstream.demo_tools"

[redis]
socket = {json.dumps(str(socket))}

[listen]
port = 0

[node]
drain_s = 0.5

[log]
level = "error"

[approvals]
interactive = true

{tokens.toml(entry)}

[[providers]]
id = "scripted"
kind = "scripted"
scripts = "scripts.json"
"""


@asynccontextmanager
async def _served(name: str, folder: Path, settings: str, token: str) -> AsyncGenerator[_Node]:
    """Run a host in a process of its own beside the body, and let it drain afterwards."""
    file = anyio.Path(folder) / f"node-{name.lower()}.toml"
    await (file.parent / "scripts.json").write_bytes(msgspec.json.encode(SCRIPTS))
    await file.write_text(settings)
    words = [sys.executable, "-m", "runstream", "serve", "--config", str(file)]
    # A session of its own, so that Ctrl-C reaches the demonstration alone, which then ends its hosts in order.
    async with await anyio.open_process(
        words, stderr=None, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield _Node(name, await _address(process), token)
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.terminate()
                await process.wait()


async def _address(process: anyio.abc.Process) -> str:
    """Wait for the line with which a host says where it listens."""
    told = ""
    if process.stdout is not None:
        with anyio.move_on_after(START_S):
            async for text in TextReceiveStream(process.stdout):
                told += text
                if "\n" in told:
                    break
    if not told.startswith("listening on "):
        raise RunFailed("a host of the demonstration did not start; what it said is above")
    return told.removeprefix("listening on ").strip()
