"""`runstream cluster`: several nodes on one private Redis on this machine, for trying what happens when one of them dies.

Each node is a process of its own, as in production; one that ends is started again at the same address.
Where nginx is installed it stands before them, so that a client needs one address.
"""

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.abc import Process

from eventstore.local import private_server
from runstream import tokens
from runstream.output import Output
from runstream.running import RunFailed

log = logging.getLogger(__name__)

STARTED_AGAIN_S = 1.0
GRACE_S = 30.0
NODES_MAX = 9
EXAMPLE_TOOLS = ("word_count", "convert_temperature")
"""Those of `runstream.example_tools`."""


class Plan(NamedTuple):
    """What is to be started, and where."""

    folder: Path
    port: int
    """Of the balancer; node *n* listens on the *n*th port after it."""
    nodes: int
    nginx: str | None
    """The program, if there is one."""
    restarts: bool

    def url(self, number: int) -> str:
        """Where node *number* listens, counted from 1; 0 is the balancer."""
        return f"http://127.0.0.1:{self.port + number}"

    @property
    def front(self) -> str:
        """Where a client is sent."""
        return self.url(0) if self.nginx else self.url(1)


def settings_of(plan: Plan, number: int, socket: Path, entry: str) -> str:
    """The settings file of node *number*."""
    return f"""profile = "standard"
state_dir = {json.dumps(str(plan.folder / f"node-{number}"))}
tools = "runstream.example_tools"

[redis]
socket = {json.dumps(str(socket))}

[listen]
port = {plan.port + number}

[node]
lease_ms = 3_000
routine_ms = 500
drain_s = 3

[approvals]
interactive = true

[application_tools]
enabled = true

[sessions]
retention_ms = 86_400_000

[jobs]
retention_ms = 86_400_000

[log]
level = "error"

{entry}

[[providers]]
id = "scripted"
kind = "scripted"
account = "house"
"""


def balancer_of(plan: Plan) -> str:
    """The configuration of nginx: events pass unbuffered, and no request is sent twice."""
    servers = "\n".join(f"    server 127.0.0.1:{plan.port + number};" for number in range(1, plan.nodes + 1))
    return f"""daemon off;
pid {plan.folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
  access_log off;
  client_body_temp_path {plan.folder}/nginx-body;
  proxy_temp_path {plan.folder}/nginx-proxy;
  upstream nodes {{
    least_conn;
{servers}
  }}
  server {{
    listen 127.0.0.1:{plan.port};
    location / {{
      proxy_pass http://nodes;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_buffering off;
      proxy_read_timeout 1h;
      proxy_next_upstream error;
      client_max_body_size 2m;
    }}
  }}
}}
"""


async def cluster(nodes: int, port: int, state_dir: Path | None, output: Output, *, restarts: bool) -> None:
    """Run a cluster until SIGINT or SIGTERM, then let its nodes drain.

    Raises:
        RunFailed: a node or the balancer could not be started.
    """
    folder = state_dir or Path(await anyio.mkdtemp(prefix="runstream-cluster-"))
    plan = Plan(folder, port, nodes, shutil.which("nginx"), restarts)
    token = await tokens.fresh()
    entry = tokens.toml(
        tokens.entry_for(
            token,
            subject="me",
            providers=("scripted",),
            tools=EXAMPLE_TOOLS,
            approve_tools=EXAMPLE_TOOLS,
            jobs=("submit", "read", "cancel"),
            sessions=("create", "read", "continue", "delete"),
        )
    )
    async with private_server(folder) as server, anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as starting:
            for name, words in await _programs(plan, server.socket, entry):
                starting.start_soon(tasks.start, _kept_running, name, words, plan, output)
        await _told(plan, token, output)
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                break
        await output.line("\nletting the nodes drain …")
        tasks.cancel_scope.cancel()


async def _programs(plan: Plan, socket: Path, entry: str) -> Sequence[tuple[str, Sequence[str]]]:
    """Write the settings of all that is to run; the name and the words of each."""
    programs: list[tuple[str, Sequence[str]]] = []
    for number in range(1, plan.nodes + 1):
        file = plan.folder / f"node-{number}.toml"
        await anyio.Path(file).write_text(settings_of(plan, number, socket, entry))
        programs.append((f"node {number}", (sys.executable, "-m", "runstream", "serve", "--config", str(file))))
    if plan.nginx:
        file = plan.folder / "nginx.conf"
        await anyio.Path(file).write_text(balancer_of(plan))
        programs.append(("nginx", (plan.nginx, "-c", str(file), "-p", str(plan.folder))))
    return programs


async def _told(plan: Plan, token: str, output: Output) -> None:
    """Say what runs where, and what can be tried."""
    await output.line(f"\ntoken  {token}")
    if plan.nginx:
        await output.line(f"all    {plan.url(0)}   (nginx, least connections)")
    else:
        await output.line("       nginx is not installed: name a node yourself")
    await output.line(
        f"\nThe nodes share the Redis in {plan.folder}. Kill one (kill -9 <pid>), stop it, start a job and"
    )
    await output.line("read it through another. Ctrl-C ends everything.\n")
    await output.line(f"  curl -N {plan.front}/v1/runs -H 'Authorization: Bearer {token}' \\")
    await output.line("    -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \\")
    await output.line(
        '    -d \'{"provider": "scripted", "model": "slow", "input": "hi", "resume": {"graceMs": 60000}}\''
    )


async def _kept_running(
    name: str,
    words: Sequence[str],
    plan: Plan,
    output: Output,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a process, and again whenever it ends."""
    started = False
    while True:
        async with _process(words) as process:
            await _ready(process, name)
            where = f"  {plan.url(int(name[-1]))}" if name != "nginx" else ""
            await output.line(f"{name:<7}pid {process.pid}{where}")
            if not started:
                started = True
                task_status.started()
            await process.wait()
        code = process.returncode or 0
        why = f"by signal {-code}" if code < 0 else f"with {code}"
        await output.line(f"{name:<7}ended {why}")
        if not plan.restarts:
            return
        await anyio.sleep(STARTED_AGAIN_S)


async def _ready(process: Process, name: str) -> None:
    """Wait until a host says where it listens; nginx says nothing.

    Raises:
        RunFailed: it ended before.
    """
    if name == "nginx" or process.stdout is None:
        return
    told = b""
    with anyio.move_on_after(GRACE_S):
        async for text in process.stdout:
            told += text
            if b"\n" in told:
                return
    raise RunFailed(f"{name} did not start; what it said is above")


@asynccontextmanager
async def _process(words: Sequence[str]) -> AsyncGenerator[Process]:
    """A process of its own session, told to end, and waited for, when the body is left."""
    async with await anyio.open_process(
        words, stderr=None, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(GRACE_S):
                if process.returncode is None:
                    process.terminate()
                await process.wait()
