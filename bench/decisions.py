"""From a person's decision on one node to the run going on at another, and what runs cost that wait for one."""

import gc
import os
import resource
import sys
import time
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import uvloop

from bench.figures import Figure
from bench.waiting import DOCUMENT, REVIEWER, node, start_job
from eventstore.endpoint import Endpoint
from eventstore.local import private_server
from projections import wire_feed
from runstream.host import Host

CALLS, RUNS = 50, 8
WAITING = 10_000
AT_ONCE = 64
TARGET_MS = 50.0
TARGET_MB = 100.0
WATCHED_S = 5.0


async def figures() -> list[Figure]:
    """Measure both on a private server."""
    with TemporaryDirectory() as folder:
        async with private_server(Path(folder) / "a") as server:
            figures = await _decided(server.endpoint)
        async with private_server(Path(folder) / "b") as server:
            figures += await _waiting(str(server.socket))
    return figures


async def _decided(where: Endpoint) -> list[Figure]:
    """Decide on one node about calls of runs whose stream is on another, each with connections of its own."""
    resumed: list[float] = []
    completed: list[float] = []
    async with node(where, "a", CALLS) as one, node(where, "b", CALLS) as two:
        for _ in range(RUNS):
            await _one_run(one, two, resumed, completed)
    assert len(resumed) == len(completed) == CALLS * RUNS
    return [
        _latency("receipt on node B to the next event on node A's stream", resumed),
        _latency("decision sent on node B to the tool's output on node A's stream", completed),
    ]


async def _one_run(one: Host, two: Host, resumed: list[float], completed: list[float]) -> None:
    sent = 0.0
    receipts: list[float] = []
    resolved: list[float] = []
    async with one.attend(DOCUMENT, subject="bench") as attended, anyio.create_task_group() as tasks:

        async def decide(approval_id: str, call: dict[str, Any]) -> None:
            await two.decisions.decide(REVIEWER, approval_id, attended.run_id, call, "approve")
            receipts.append(time.perf_counter())

        async for batch in attended.items():
            now = time.perf_counter()
            for item in batch:
                match msgspec.json.decode(wire_feed.numbered(item.number, item.data)):
                    case {"type": "approval.requested", "approval": {"approvalId": approval_id, "call": call}}:
                        sent = now
                        tasks.start_soon(decide, approval_id, call)
                    case {"type": "approval.resolved"}:
                        resolved.append(now)
                    case {"type": "tool.completed"}:
                        completed.append((now - sent) * 1_000)
                    case _:
                        pass
    resumed += [max(0.0, shown - told) * 1_000 for shown, told in zip(resolved, receipts, strict=True)]


def _latency(name: str, delays: list[float]) -> Figure:
    p50, p99 = quantiles(delays, n=100)[49], quantiles(delays, n=100)[98]
    ours = f"{p50:.2f} ms ({p99:.2f} ms)"
    return Figure(f"{name}: p50 (p99)", ours, "-", "-", f"p99 under {TARGET_MS:g} ms", p99 < TARGET_MS)


async def _waiting(socket: str) -> list[Figure]:
    """Measure the waiting runs in a process of their own, so that its memory is theirs."""
    told = await anyio.run_process([sys.executable, "-m", "bench.decisions", socket], stderr=None)
    megabytes, idle, busy = map(float, told.stdout.split())
    return [
        Figure(
            f"memory of {WAITING:,} runs that wait for a person, on one node",
            f"{megabytes:.1f} MB",
            "-",
            "-",
            f"under {TARGET_MB:g} MB",
            megabytes < TARGET_MB,
        ),
        Figure(
            f"CPU of that node while they wait (and of one without any), over {WATCHED_S:g} s",
            f"{busy:.2%} of a core",
            f"{idle:.2%}",
            "-",
            "no more than without",
            busy <= idle + 0.01,
        ),
    ]


async def _measured(socket: str) -> None:
    async with node(Endpoint(path=socket), "w") as host:
        await start_job(host)
        idle, before = await _cpu(), _resident()
        places = anyio.CapacityLimiter(AT_ONCE)

        async def start() -> None:
            async with places:
                await start_job(host)

        async with anyio.create_task_group() as tasks:
            for _ in range(WAITING):
                tasks.start_soon(start)
        while host.node.executing:  # noqa: ASYNC110 - a bench may look now and then
            await anyio.sleep(0.1)
        print((_resident() - before) / 1e6, idle, await _cpu())
        sys.stdout.flush()
        os._exit(0)  # nobody waits for these runs


async def _cpu() -> float:
    """Of a core, over a while."""
    gc.collect()
    await anyio.sleep(1)
    began, used = time.perf_counter(), _used()
    await anyio.sleep(WATCHED_S)
    return (_used() - used) / (time.perf_counter() - began)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    uvloop.run(_measured(sys.argv[1]))
