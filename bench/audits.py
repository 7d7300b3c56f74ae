"""What it costs to hold the ledger against the runs: 10,000 that wait for a person, each with a slot, a place, room and an approval."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import anyio

from actors import holdings
from actors.auditing import Auditor
from actors.node import NodeSettings
from bench.decisions import AT_ONCE, WAITING
from bench.figures import Figure
from bench.waiting import node, start_job
from eventstore import keys
from eventstore.endpoint import Endpoint
from eventstore.link import Link
from eventstore.local import private_server
from eventstore.socket_link import open_link
from runstream.host import Host

BY_HAND = NodeSettings(drain_s=0, audited_s=1_000_000.0)
"""Audits come only when they are asked for."""
ASKED = 1_000
TURNS = 3
PROBED_S = 0.005


class Cost(NamedTuple):
    """What an audit took."""

    wall_s: float
    node_s: float
    server_s: float
    longest_ms: float
    """The longest that a small command of somebody else waited meanwhile."""


async def figures() -> list[Figure]:
    """Measure on a private server."""
    with TemporaryDirectory() as folder:
        async with private_server(Path(folder)) as server:
            where = server.endpoint
            async with node(where, "a", settings=BY_HAND) as host, open_link(where) as link:
                await _begin(host)
                await host.node.auditor.audit()  # the jobs of `start_job` took no places: now they have
                return [*(await _audits(host, link, where)), await _asked(host, link)]


async def _begin(host: Host) -> None:
    places = anyio.CapacityLimiter(AT_ONCE)

    async def start() -> None:
        async with places:
            await start_job(host)

    async with anyio.create_task_group() as tasks:
        for _ in range(WAITING):
            tasks.start_soon(start)
    while host.node.executing:  # noqa: ASYNC110 - a bench may look now and then
        await anyio.sleep(0.1)


async def _audits(host: Host, link: Link, where: Endpoint) -> list[Figure]:
    sound, emptied = list[Cost](), list[Cost]()
    for _ in range(TURNS):
        await link.pipeline([("HDEL", keys.ledger("by", pool), "audited") for pool in holdings.POOLS])
        sound.append(await _cost(host.node.auditor, link, where))
        await link.pipeline([("DEL", keys.ledger(word, pool)) for word in ("held", "by") for pool in holdings.POOLS])
        emptied.append(await _cost(host.node.auditor, link, where))
    held = sum([len(await host.store.held(pool)) for pool in holdings.POOLS])
    runs = f"{WAITING:,} runs that wait, {held:,} permits"
    return [
        _figure(f"audit of a ledger that forgot nothing: {runs}", sound),
        _figure(f"audit of a ledger that was emptied: {runs}", emptied),
    ]


async def _cost(auditor: Auditor, link: Link, where: Endpoint) -> Cost:
    waits, taken = list[float](), list[float]()
    server_s = await _served(link)
    async with open_link(where) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(_probe, other, waits)
        wall_s, node_s = time.perf_counter(), time.process_time()
        await auditor.audit()
        taken += [time.perf_counter() - wall_s, time.process_time() - node_s]
        tasks.cancel_scope.cancel()
    return Cost(taken[0], taken[1], await _served(link) - server_s, max(waits) * 1_000)


async def _probe(link: Link, waits: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await link.call("PING")
        waits.append(time.perf_counter() - began)
        await anyio.sleep(PROBED_S)


async def _asked(host: Host, link: Link) -> Figure:
    """Measure the question whether an audit is due, which each node asks every ten seconds."""
    served = await _served(link)
    for _ in range(ASKED):
        await host.store.begin_audit(holdings.POOLS)
    cost_us = (await _served(link) - served) / ASKED * 1e6
    return Figure(
        "whether an audit is due, asked once: CPU of the server", f"{cost_us:.0f} µs", "-", "-", "-", met=True
    )


async def _served(link: Link) -> float:
    """CPU time of the server so far, in seconds."""
    told = (await link.call("INFO", "cpu")).decode()
    found = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    return float(found["used_cpu_user_main_thread"]) + float(found["used_cpu_sys_main_thread"])


def _figure(name: str, costs: list[Cost]) -> Figure:
    wall, ours, server, _ = (sorted(each)[len(costs) // 2] for each in zip(*costs, strict=True))
    longest = max(cost.longest_ms for cost in costs)
    told = f"{wall:.1f} s, CPU {ours:.1f} s of the node, {server:.2f} s of the server; a PING waited {longest:.0f} ms at most"
    return Figure(f"{name}, {TURNS} times: medians", told, "-", "-", "-", met=True)
