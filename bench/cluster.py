"""What several nodes on one Redis do for each other: take over, continue a stream, show what another node writes.

`python -m bench.cluster takeover resume viewers follow appends` measures some of it alone.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec
import uvloop

from bench.figures import HEADER, Figure, rate
from bench.serving import TOKEN
from eventstore.local import PrivateServer, private_server
from eventstore.socket_link import SocketLink, open_link

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LEASE_S = 3.0
"""As `bench.noting` has it."""
KILLS, TAKEOVER_S = 20, 4.0
BEHIND, FIRST_MS, ALL_S, RESUMES = 5_000, 50.0, 0.5, 10
VIEWERS, VIEWED, WORDS, SLOWER, TURNS = 2_000, 50, 2_000, 1.5, 3
FOLLOWED, RUNS, P50_MS, P99_MS = 250, 4, 5.0, 25.0
NODES, FASTER, ROUNDS = 2, 1.3, 2
TALKING, TALKED_S = 400, 3.0
"""Runs that want 50 appends a second each, which is more than two nodes can do here."""


async def figures() -> list[Figure]:
    """Measure all of it."""
    return [figure for name in PARTS for figure in await PARTS[name]()]


class Node:
    """A process of `bench.noting`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, name: str) -> None:
        self.process = process
        self.port = port
        self.name = name

    async def wish(self, words: str) -> Any:
        """Wish for something, and return what it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{words}\n".encode())
        return msgspec.json.decode(await self.process.stdout.readline())

    async def opened(self, head: str, body: str = "") -> Connection:
        """Send a request; the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4_000_000)
        lines = f"{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
        lines += "Accept: text/event-stream\r\n" if head.startswith("GET") else ""
        lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((lines + body).encode())
        return reader, writer

    async def submitted(self, key: str, model: str) -> str:
        """Submit a job; its id."""
        request = {"provider": "talker", "model": model, "input": "hello"}
        reader, writer = await self.opened("POST /v1/jobs/submit", json.dumps({"key": key, "request": request}))
        told = json.loads((await reader.read()).split(b"\r\n\r\n", 1)[1])
        writer.close()
        return str(told["id"])

    async def following(self, run_id: str, after: int = 0) -> Connection:
        """Follow a run's events; the connection."""
        return await self.opened(f"GET /v1/runs/{run_id}/events?after={after}", "")


@asynccontextmanager
async def _server() -> AsyncGenerator[PrivateServer]:
    with TemporaryDirectory() as folder:
        async with private_server(Path(folder) / "state") as server:
            yield server


@asynccontextmanager
async def _node(server: PrivateServer) -> AsyncGenerator[Node]:
    """A node on *server*; it ends with the context, if it lives."""
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-m", "bench.noting", str(server.socket))
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=64_000_000)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, name = (await process.stdout.readline()).split()
        yield Node(process, int(port), name.decode())
    finally:
        with suppress(ConnectionError):
            process.stdin.close()
        await process.wait()


# Takeover.


async def _takeover() -> list[Figure]:
    """Kill one node after the other while it has a job."""
    took: list[float] = []
    async with _server() as server, open_link(server.endpoint) as link, _node(server) as survivor:
        for number in range(KILLS):
            async with _node(server) as victim:
                took.append(await _taken_over(victim, survivor, link, f"k{number}"))
    name = f"kill -9 to the next event of its job by another node, lease {LEASE_S:g} s: median (most)"
    kept = sum(one <= TAKEOVER_S for one in took)
    ours = f"{median(took):.2f} s ({max(took):.2f} s), {kept} of {KILLS}"
    return [Figure(name, ours, "-", "-", f"at most {TAKEOVER_S:g} s, {KILLS} of {KILLS}", kept == KILLS)]


async def _taken_over(victim: Node, survivor: Node, link: SocketLink, key: str) -> float:
    run_id = await _owned(victim, survivor, link, key, "idle")
    (heads,) = await link.call("KEYS", f"*:h:{run_id}")
    killed_s = time.perf_counter()
    victim.process.send_signal(signal.SIGKILL)
    await victim.process.wait()
    before = int(await link.call("HGET", heads, "l"))
    while int(await link.call("HGET", heads, "l")) == before:  # noqa: ASYNC110 - a bench may look now and then
        await asyncio.sleep(0.002)
    return time.perf_counter() - killed_s


async def _owned(node: Node, other: Node, link: SocketLink, key: str, model: str) -> str:
    """Submit a job that *node* takes, for *other* stands still meanwhile; its id, once it is in its model."""
    other.process.send_signal(signal.SIGSTOP)
    try:
        run_id = await node.submitted(key, model)
        (heads,) = await link.call("KEYS", f"*:h:{run_id}")
        while int(await link.call("HGET", heads, "w")) < 2:  # noqa: ASYNC110 - a bench may look now and then
            await asyncio.sleep(0.005)
    finally:
        other.process.send_signal(signal.SIGCONT)
    assert (await link.call("HGET", heads, "o")).decode() == node.name
    return run_id


# Continuing a stream.


async def _resume() -> list[Figure]:
    """Read a long run through a node that never heard of it."""
    firsts: list[float] = []
    alls: list[float] = []
    async with _server() as server, _node(server) as one, _node(server) as two, open_link(server.endpoint) as link:
        for number in range(RESUMES):
            run_id = await _owned(one, two, link, f"k{number}", "idle")
            last = await one.wish(f"grow {run_id} {BEHIND}")
            first, whole = await _caught_up(two, run_id, last - BEHIND, last)
            firsts.append(first * 1_000)
            alls.append(whole)
    name = f"a stream continued on another node, {BEHIND:,} events behind, {RESUMES} times"
    at_first = f"{median(firsts):.1f} ms ({max(firsts):.1f} ms)"
    in_all = f"{median(alls):.2f} s ({max(alls):.2f} s)"
    soon, all_soon = max(firsts) < FIRST_MS, max(alls) <= ALL_S
    return [
        Figure(f"{name}: first event, median (most)", at_first, "-", "-", f"under {FIRST_MS:g} ms", soon),
        Figure("the same: all of them", in_all, "-", "-", f"within {ALL_S:g} s", all_soon),
    ]


async def _caught_up(node: Node, run_id: str, after: int, last: int) -> tuple[float, float]:
    """Seconds until the first event came, and until the last one."""
    began = time.perf_counter()
    reader, writer = await node.following(run_id, after)
    await reader.readuntil(b"\nid: ")
    first = time.perf_counter() - began
    await reader.readuntil(b"id: %d." % last)
    whole = time.perf_counter() - began
    writer.close()
    return first, whole


# Viewers.


async def _viewers() -> list[Figure]:
    """Measure appends of one run beside many idle viewers of others, and what those cost Redis."""
    alone: list[float] = []
    beside: list[float] = []
    async with _server() as server, _node(server) as node, open_link(server.endpoint) as link:
        runs = [await node.submitted(f"idle.{number}", "idle") for number in range(VIEWED)]
        await _spoken(node, "warm", 100)
        connections = now = await _connections(link)
        for turn in range(TURNS):
            alone.append(await _spoken(node, f"alone.{turn}", WORDS))
            async with _watched(node, runs):
                beside.append(await _spoken(node, f"beside.{turn}", WORDS))
                now = await _connections(link)
    ratios = sorted(two / one for one, two in zip(alone, beside, strict=True))
    ratio = median(ratios)
    name = f"one run of {WORDS:,} events beside {_viewers_possible():,} idle viewers of {VIEWED} other runs that this node has"
    return [
        Figure(
            f"{name}: p99 of its appends, against without them, {TURNS} times in turn: median (most)",
            f"{median(beside):.2f} ms ({max(beside):.2f} ms)",
            f"{median(alone):.2f} ms ({max(alone):.2f} ms)",
            f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            f"at most {SLOWER}",
            ratio <= SLOWER,
        ),
        Figure(
            "the same: connections to Redis, against without them",
            str(now),
            str(connections),
            "-",
            "constant",
            now == connections,
        ),
    ]


@asynccontextmanager
async def _watched(node: Node, runs: Sequence[str]) -> AsyncGenerator[None]:
    """Let viewers follow the runs, as many as may be; they have read what there was."""
    viewers: list[Connection] = []
    try:
        for number in range(_viewers_possible()):
            viewers.append(await node.following(runs[number % len(runs)]))
            await viewers[-1][0].readuntil(b'"step":1')
        yield
    finally:
        for _, writer in viewers:
            writer.close()


def _viewers_possible() -> int:
    """As many as files may be open, with some to spare."""
    return min(VIEWERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)


async def _spoken(node: Node, key: str, words: int) -> float:
    """Let a job say *words*; the p99 of its appends in milliseconds."""
    await node.wish("report")
    reader, writer = await node.following(await node.submitted(key, f"{words}x20"))
    while b"event: run.completed" not in await reader.readline():
        pass
    writer.close()
    took_ms: list[float] = (await node.wish("report"))["tookMs"]
    return quantiles(took_ms, n=100)[98]


async def _connections(link: SocketLink) -> int:
    return len((await link.call("CLIENT", "LIST")).splitlines())


# Following.


async def _follow() -> list[Figure]:
    """Follow runs through a node that does not execute them."""
    async with _server() as server, _node(server) as one, _node(server) as two, open_link(server.endpoint) as link:
        seen = await asyncio.gather(*(_seen(one, two, link, f"k{number}") for number in range(RUNS)))
        stored = (await one.wish("report"))["storedS"]
    delays = [
        max(0.0, came - stored[run_id][number]) * 1_000 for run_id, items in seen for number, came in items.items()
    ]
    p50, p99 = quantiles(delays, n=100)[49], quantiles(delays, n=100)[98]
    name = f"delta stored by one node to shown by another, {RUNS} runs, 100 events/s together: p50 (p99)"
    met = p50 < P50_MS and p99 < P99_MS
    return [Figure(name, f"{p50:.2f} ms ({p99:.2f} ms)", "-", "-", f"under {P50_MS:g} ms ({P99_MS:g} ms)", met)]


async def _seen(one: Node, two: Node, link: SocketLink, key: str) -> tuple[str, dict[str, float]]:
    """When each text delta of a job of node one came through node two."""
    run_id = await _owned(one, two, link, key, f"{FOLLOWED}x{RUNS * 10}")
    reader, writer = await two.following(run_id, 2)
    came: dict[str, float] = {}
    at = ""
    while line := await reader.readline():
        if line.startswith(b"id: "):
            at = line[4:].split(b".")[0].decode()
        if line == b"event: text.delta\n":
            came[at] = time.perf_counter()
        if line == b"event: run.completed\n":
            break
    writer.close()
    return run_id, came


# Appends of two nodes.


async def _appends() -> list[Figure]:
    """Let one node append as fast as it can, and then two at once: as whole nodes, and as nothing but their stores."""
    return [
        await _together(f"text deltas of {TALKING} runs that talk without pause, whole nodes", _talked, FASTER),
        await _together("log events of 256 bytes, 64 runs at once each, stores alone", _appended),
    ]


async def _together(
    name: str, measure: Callable[[PrivateServer, int], Awaitable[float]], target: float | None = None
) -> Figure:
    single: list[float] = []
    double: list[float] = []
    for _ in range(ROUNDS):
        for count, found in ((1, single), (NODES, double)):
            async with _server() as server:
                found.append(await measure(server, count))
    ratio = median(two / one for one, two in zip(single, double, strict=True))
    told = f"appends of {NODES} nodes, {os.cpu_count()} cores, against one node: {name}"
    ours, raw = rate(median(double)), rate(median(single))
    wanted = "-" if target is None else f"at least {target}"
    return Figure(told, ours, raw, f"{ratio:.2f}", wanted, target is None or ratio >= target)


async def _talked(server: PrivateServer, count: int) -> float:
    """Appends in a second of *count* nodes together, each with its share of the runs."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(_node(server)) for _ in range(count)]
        talking = [nodes[number % count].submitted(f"k{number}", "100000x10") for number in range(TALKING)]
        await asyncio.gather(*talking)
        await asyncio.sleep(TALKED_S / 2)
        await asyncio.gather(*(node.wish("report") for node in nodes))
        began = time.perf_counter()
        await asyncio.sleep(TALKED_S)
        reports = await asyncio.gather(*(node.wish("report") for node in nodes))
        took = time.perf_counter() - began
        for node in nodes:
            node.process.send_signal(signal.SIGKILL)
    return sum(len(report["tookMs"]) for report in reports) / took


async def _appended(server: PrivateServer, count: int) -> float:
    """Appends in a second of *count* processes together."""
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-m", "bench.appending", str(server.socket))
    writers = [await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe) for _ in range(count)]
    for one in writers:
        assert one.stdout is not None
        await one.stdout.readline()
    told = await asyncio.gather(*(one.communicate(b"go\n") for one in writers))
    return sum(float(out) for out, _ in told)


PARTS = {"takeover": _takeover, "resume": _resume, "viewers": _viewers, "follow": _follow, "appends": _appends}


async def main(names: Sequence[str]) -> None:
    """Print the rows, and how busy the machine was beside each."""
    print(HEADER, flush=True)
    for name in names or PARTS:
        for figure in await PARTS[name]():
            print(figure.row, f" load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1:]))
