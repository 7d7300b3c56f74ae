"""Jobs per second with an instant model, whose turn it is when one subject has queued thousands, turns of sessions, permits.

`python -m bench.jobs` prints what the store was asked for each job, and where the time of one node went.
"""

import cProfile
import io
import pstats
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import uvloop

from actors.sessions import Holder, Wanted
from bench.figures import Figure, compared, rate
from bench.working import DOCUMENT, Instant, counting, nodes, quiet, submit
from eventstore.endpoint import Endpoint
from eventstore.ledger import RedisLedger
from eventstore.local import private_server
from eventstore.socket_link import SocketLink, open_link
from eventstore.store import Caps, Claim, Dispatched
from runstream.host import Host

JOBS, AT_ONCE, ROUNDS = 2_000, 64, 2
BACKLOG, SINGLES, SLOTS, TAKES_S = 10_000, 40, 12, 0.02
TURNS, TALKS = 200, 32
PERMITS = 6_400
ADDED = 19_200
TURNS_MAX = 2


async def figures() -> list[Figure]:
    """Measure all on private servers."""
    found: list[Figure] = []
    for count in (1, 3):
        async with _server() as where:
            found.append(await _throughput(where, count))
    async with _server() as where:
        found += await _fairness(where)
    async with _server() as where:
        found += await _turns(where)
    async with _server() as where, open_link(where) as link:
        ours, raw, ratio = await compared(lambda: _permits(link), lambda: _added(link), ROUNDS)
        found.append(_told("permits: take and give, 64 at once", rate(ours), rate(raw), f"{ratio:.3f}"))
    return found


def _told(name: str, ours: str, raw: str = "-", ratio: str = "-") -> Figure:
    """A row that has no target."""
    return Figure(name, ours, raw, ratio, "-", met=True)


@asynccontextmanager
async def _server() -> AsyncGenerator[Endpoint]:
    with TemporaryDirectory() as folder:
        async with private_server(Path(folder) / "state") as server:
            yield server.endpoint


# Throughput.


async def _throughput(where: Endpoint, count: int) -> Figure:
    model = Instant()
    async with nodes(where, count, model, AT_ONCE) as hosts, open_link(where) as link:
        calls: list[float] = []

        async def done() -> float:
            async with counting([host.store for host in hosts]) as counted:
                per_second = await _completed(hosts, model)
            calls.append(sum(counted.values()) / JOBS)
            return per_second

        ours, raw, ratio = await compared(done, lambda: _added(link), ROUNDS)
    where_run = "one node" if count == 1 else f"{count} nodes in one process"
    name = f"jobs submitted and completed, instant model, {where_run}; {median(calls):.1f} store calls a job"
    return _told(name, rate(ours), rate(raw), f"{ratio:.4f}")


async def _completed(hosts: Sequence[Host], model: Instant) -> float:
    """Submit jobs on all hosts in turn; how many were completed in a second."""
    before, batch = model.begun, uuid.uuid4().hex

    async def one(number: int) -> None:
        await submit(hosts[number % len(hosts)], f"s{number % 8}", f"{batch}.{number}")

    began = time.perf_counter()
    await _all(one, JOBS)
    while model.begun < before + JOBS:  # noqa: ASYNC110 - a bench may look now and then
        await anyio.sleep(0.005)
    await quiet(list(hosts))
    took = time.perf_counter() - began
    assert model.begun == before + JOBS
    return JOBS / took


async def _all(work: Callable[[int], Awaitable[Any]], count: int, at_once: int = AT_ONCE) -> None:
    """Do *work* for the numbers below *count*, some at once."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(some)


async def _added(link: SocketLink) -> float:
    """Plain pipelined XADD of 256 bytes to 64 streams at once; how many in a second."""
    keys = [f"raw:{uuid.uuid4()}" for _ in range(AT_ONCE)]

    async def one(number: int) -> None:
        await link.call("XADD", keys[number % AT_ONCE], "*", "e", b"x" * 256)

    began = time.perf_counter()
    await _all(one, ADDED)
    return ADDED / (time.perf_counter() - began)


# Fairness.


async def _fairness(where: Endpoint) -> list[Figure]:
    """Let one subject queue thousands on three nodes, and another submit one at a time."""
    model = Instant()
    model.open = anyio.Event()
    async with nodes(where, 3, model, SLOTS) as hosts:
        order = Order(hosts)
        await _all(lambda number: submit(hosts[number % 3], "t1", f"b{number}"), BACKLOG)
        model.takes_s = TAKES_S
        model.open.set()
        singles = [await _single(hosts[number % 3], model, order, number) for number in range(SINGLES)]
        assert model.begun < BACKLOG, "the backlog ended too early"
    certain, most, waited_ms = zip(*singles, strict=True)
    name = f"one job of T2 while T1 has {BACKLOG:,} queued, {SLOTS} slots of three nodes, {SINGLES} times"
    return [
        Figure(
            f"{name}: T1's jobs taken up after its own was in the line, most (median); with calls under way, most",
            f"{max(certain)} ({median(certain):g}); {max(most)}",
            "-",
            "-",
            f"at most {TURNS_MAX} turns",
            max(certain) <= TURNS_MAX,
        ),
        _told(
            f"from its submission to its model call while a job takes {TAKES_S * 1_000:g} ms: median (most)",
            f"{median(waited_ms):.1f} ms ({max(waited_ms):.1f} ms)",
        ),
    ]


class Order:
    """The holders that nodes take off the queue from now on, each with the call that took it, in the order of answers."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.taken: list[tuple[int, str]] = []
        self.calls = 0
        for host in hosts:
            self._note(host)

    def _note(self, host: Host) -> None:
        store: Any = host.store
        ask = store.dispatch

        async def noted(*args: Any) -> Sequence[Dispatched]:
            self.calls += 1
            call = self.calls
            found: Sequence[Dispatched] = await ask(*args)
            self.taken.extend((call, one.holder) for one in found)
            return found

        store.dispatch = noted

    def before(self, holder: str, calls: int, taken: int) -> tuple[int, int]:
        """How many came before *holder* that were asked for when *calls* had been made, or answered after *taken* were."""
        at = next(number for number, (_, one) in enumerate(self.taken) if one == holder)
        certain = sum(call > calls for call, _ in self.taken[taken:at])
        return certain, max(0, at - taken)


async def _single(host: Host, model: Instant, order: Order, number: int) -> tuple[int, int, float]:
    """Submit one job of T2; how many others were taken up since it was in the line, for certain and at most; its wait."""
    said = f"single {number}"
    model.awaited[said] = 0.0
    began = time.perf_counter()
    store: Any = host.store
    enlist = store.enlist
    stood: list[tuple[int, int]] = []

    async def noted(*args: Any) -> None:
        await enlist(*args)
        if args[0].subject == "t2":
            stood.append((order.calls, len(order.taken)))

    store.enlist = noted
    job_id = await submit(host, "t2", f"k{number}", said)
    store.enlist = enlist
    while not model.awaited[said]:  # noqa: ASYNC110 - a bench may look now and then
        await anyio.sleep(0.001)
    certain, most = order.before(job_id, *stood[0])
    return certain, most, (model.awaited[said] - began) * 1_000


# Sessions and permits.


async def _turns(where: Endpoint) -> list[Figure]:
    """Continue one session, and then many at once."""
    async with nodes(where, 1, Instant(), AT_ONCE) as (host,), open_link(where) as link:
        one, raw, ratio = await compared(lambda: _continued(host, 1), lambda: _added(link), ROUNDS)
        many, _, of_many = await compared(lambda: _continued(host, TALKS), lambda: _added(link), ROUNDS)
    return [
        _told("turns of one session, each when the last has ended", rate(one), rate(raw), f"{ratio:.4f}"),
        _told(f"turns of {TALKS} sessions at once", rate(many), rate(raw), f"{of_many:.4f}"),
    ]


def _any(_provider: str) -> bool:
    return True


async def _continued(host: Host, talks: int) -> float:
    holder = Holder("bench", _any, frozenset({"create", "continue"}))
    sessions = host.sessions
    assert sessions is not None
    known = [(await sessions.create(holder, Wanted("instant", "m", "history"))).id for _ in range(talks)]
    each = TURNS // talks + 1 if talks > 1 else 49

    async def talk(number: int) -> None:
        for revision in range(each):
            document = {**DOCUMENT, "session": {"id": known[number], "revision": revision}}
            async with host.attend(document, subject="bench", streamed=False) as attended:
                last = b""
                async for batch in attended.items():
                    last = batch[-1].data if batch else last
                assert b"run.completed" in last

    began = time.perf_counter()
    await _all(talk, talks, talks)
    return talks * each / (time.perf_counter() - began)


async def _permits(link: SocketLink) -> float:
    ledger, caps = RedisLedger(link), Caps(total=1_000, per_subject=500)

    async def one(number: int) -> None:
        holder = str(uuid.uuid4())
        await ledger.take(Claim("bench", holder, "n1", f"s{number % 8}"), caps, 10_000)
        await ledger.give("bench", holder, caps)

    began = time.perf_counter()
    await _all(one, PERMITS)
    return PERMITS / (time.perf_counter() - began)


# Where the time goes.


async def _explained() -> None:
    model, profile, text = Instant(), cProfile.Profile(), io.StringIO()
    async with _server() as where, nodes(where, 1, model, AT_ONCE) as hosts, open_link(where) as link:
        await _completed(hosts, model)
        await link.call("CONFIG", "RESETSTAT")
        began = time.process_time()
        async with counting([hosts[0].store]) as calls:
            per_second = await _completed(hosts, model)
        used = time.process_time() - began
        spent = await link.call("INFO", "commandstats")
        print(f"{per_second:.0f} jobs/s, {used / JOBS * 1e6:.0f} µs of the node's CPU a job; store calls a job:")
        print(_each(calls))
        print(spent.decode())
        profile.enable()
        await _completed(hosts, model)
        profile.disable()
    for key in ("tottime", "cumulative"):
        pstats.Stats(profile, stream=text).sort_stats(key).print_stats(40)
    print(text.getvalue())


def _each(calls: Counter[str]) -> str:
    return ", ".join(f"{name} {count / JOBS:.2f}" for name, count in calls.most_common())


if __name__ == "__main__":
    uvloop.run(_explained())
