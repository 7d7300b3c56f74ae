"""Hosts on one Redis that all can be harmed: killed, paused, drained; the server stopped or started again; a node cut off.

Node 0 reaches a Redis that is alone through a proxy, the others through its socket; a pair all reach through the proxy.
The primary that a sentinel watches is looked for by all, behind a proxy; and so are those of a cluster, without any.
"""

import json
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
import anyio.to_thread

from api.grants import ApplicationToolGrant
from runstream import tokens
from tests.strict_values import Object
from tests.system.cluster import Cluster
from tests.system.processes import LEASE_MS, inline, token_of
from tests.system.proxy import Proxy, proxy_to
from tests.system.servers import KEPT, NAME, STRICT, Alone, Servers, Watched, alone_in, pair_in, watched_in
from tests.system.spread import Spread, spread_in

PARTITIONS = 4

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
    redis: Literal["alone", "pair", "watched", "spread"] = "alone"
    off_s: Mapping[int, int] = {}
    """By how much the clock of a host is ahead."""
    promoted_off_s: int = 0
    """By how much the clock of the replica of a pair is ahead."""


class House(Cluster):
    """A cluster whose Redis can be harmed too."""

    def __init__(
        self, servers: Servers, calls: Path, settings: Sequence[Path], proxy: Proxy, off_s: Mapping[int, int]
    ) -> None:
        super().__init__(servers, calls, settings, off_s)
        self.servers = servers
        self.proxy = proxy
        self.ways = servers.ways if isinstance(servers, Watched) else [proxy]
        """What can be harmed between hosts and Redis."""

    @property
    def replaceable(self) -> bool:
        """Whether another server may take the place of a primary."""
        return isinstance(self.servers, Watched | Spread)

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


@asynccontextmanager
async def house_in(folder: Path, shape: Shape) -> AsyncIterator[House]:
    """Run a house in *folder*, whose path must be short enough for sockets."""
    async with _servers_in(folder, shape) as servers, proxy_to(await servers()) as proxy:
        settings = [folder / f"n{number}.toml" for number in range(shape.hosts)]
        for number, path in enumerate(settings):
            path.write_text(_text(_where(number, servers, proxy), folder / path.stem, shape))
        house = House(servers, folder / "calls", settings, proxy, shape.off_s)
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(shape.hosts):
                    tasks.start_soon(house.start, number)
            yield house
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(house.close)


def _servers_in(folder: Path, shape: Shape) -> AbstractAsyncContextManager[Servers]:
    match shape.redis:
        case "alone":
            return alone_in(folder)
        case "pair":
            return pair_in(folder, shape.promoted_off_s)
        case "watched":
            return watched_in(folder)
        case "spread":
            return spread_in(folder, PARTITIONS, *KEPT, *STRICT)


def _where(number: int, servers: Servers, proxy: Proxy) -> Object:
    """The place of Redis in the settings of a host."""
    if isinstance(servers, Spread):
        return {"cluster": [repr(seed) for seed in servers.cluster.seeds]}
    if isinstance(servers, Watched):
        return {"sentinels": [repr(servers.sentinel.endpoint)], "sentinel_name": NAME}
    if isinstance(servers, Alone) and number:
        return {"socket": str(servers.redis.socket)}
    return {"url": f"redis://127.0.0.1:{proxy.port}/0"}


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
profile = "{"strict" if shape.redis in {"watched", "spread"} else "standard"}"
partitions = {PARTITIONS}
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
