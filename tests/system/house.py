"""Hosts on one Redis that all can be harmed: killed, paused, drained; the server stopped or started again; a node cut off.

Node 0 reaches Redis through a proxy, the others through its socket.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from api.grants import ApplicationToolGrant
from runstream import tokens
from tests.strict_values import Object
from tests.system.cluster import Cluster
from tests.system.processes import LEASE_MS, Redis, inline, redis_in, token_of
from tests.system.proxy import Proxy, proxy_to

LOOK: Object = {
    "name": "look",
    "description": "Look something up.",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
"""The tool that clients execute themselves."""


class Shape(NamedTuple):
    """How a house is built."""

    scripts: Object
    subjects: Sequence[str]
    hosts: int
    lease_ms: int = LEASE_MS


class House(Cluster):
    """A cluster whose Redis can be harmed too."""

    def __init__(self, redis: Redis, calls: Path, settings: Sequence[Path], proxy: Proxy, server: ExitStack) -> None:
        super().__init__(redis, calls, settings)
        self.proxy = proxy
        self._server = server

    async def drain(self, number: int) -> None:
        """Tell a host to end, and wait until it has."""
        host = self._hosts.pop(number)
        host.signal(signal.SIGTERM)
        try:
            await host.exited()
        except TimeoutError:
            host.signal(signal.SIGKILL)
            said = await anyio.Path(host.settings.with_suffix(".stderr")).read_text()
            raise AssertionError(f"host {number} was told to end and did not: {said[-2_000:]}") from None
        await anyio.to_thread.run_sync(self._stacks[number].close)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Let Redis answer nothing."""
        self.redis.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.redis.process.send_signal(signal.SIGCONT)

    async def restart_redis(self) -> None:
        """End Redis and start it again with what its append-only file holds."""
        await anyio.to_thread.run_sync(self._server.close)
        serving = redis_in(self.redis.socket.parent)
        self.redis = await anyio.to_thread.run_sync(self._server.enter_context, serving)


@asynccontextmanager
async def house_in(folder: Path, shape: Shape) -> AsyncIterator[House]:
    """Run a house in *folder*, whose path must be short enough for sockets."""
    with ExitStack() as server:
        redis = server.enter_context(redis_in(folder))
        async with proxy_to(redis.socket) as proxy:
            settings = [folder / f"n{number}.toml" for number in range(shape.hosts)]
            for number, path in enumerate(settings):
                where: Object = (
                    {"socket": str(redis.socket)} if number else {"url": f"redis://127.0.0.1:{proxy.port}/0"}
                )
                path.write_text(_text(where, folder / path.stem, shape))
            house = House(redis, folder / "calls", settings, proxy, server)
            try:
                async with anyio.create_task_group() as tasks:
                    for number in range(shape.hosts):
                        tasks.start_soon(house.start, number)
                yield house
            finally:
                with anyio.CancelScope(shield=True):
                    os.kill(house.redis.process.pid, signal.SIGCONT)
                    await anyio.to_thread.run_sync(house.close)


def _text(where: Object, state_dir: Path, shape: Shape) -> str:
    grants: dict[str, Any] = {
        "providers": ("scripted",),
        "tools": ("note", "reviewed"),
        "approve_tools": ("reviewed",),
        "application_tools": (ApplicationToolGrant(name="look", requires_approval=False),),
        "jobs": ("submit", "read", "cancel"),
        "sessions": ("create", "read", "continue", "delete"),
    }
    entries = [tokens.toml(tokens.entry_for(token_of(one), subject=one, **grants)) for one in shape.subjects]
    return f"""
state_dir = {json.dumps(str(state_dir))}
profile = "standard"
partitions = 4
tools = "tests.system.chaos_tools"
redis = {inline(where)}
listen = {{ port = 0 }}
node = {{ lease_ms = {shape.lease_ms}, routine_ms = 500, drain_s = 0.5 }}
scheduling = {{ total = 400, per_subject = 200 }}
approvals = {{ interactive = true }}
application_tools = {{ enabled = true, require_approval = false }}
sessions = {{ retention_ms = 86_400_000, max_entries = 10_000 }}
jobs = {{ retention_ms = 86_400_000, max_jobs = 100_000, max_jobs_per_subject = 100_000, max_bytes = 100_000_000_000 }}

[[providers]]
id = "scripted"
kind = "scripted"
account = "the-scripts"

[providers.scripts]
{chr(10).join(f"{name} = {inline(script)}" for name, script in shape.scripts.items())}

{chr(10).join(entries)}
"""
