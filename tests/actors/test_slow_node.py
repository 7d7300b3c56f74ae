"""Ten nodes on one ledger, on a real server, one of them behind a slow link, stalled or gone: the others do not feel it."""

import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest
from msgspec.structs import replace

from actors import run
from actors.ports import Model, ModelContext, ModelRequest, Turn, UserMessage
from eventstore.endpoint import Endpoint
from eventstore.ledger import RedisLedger, ledger_keys
from eventstore.link import Link
from eventstore.redis_store import open_redis_store
from eventstore.socket_link import open_link
from eventstore.store import Caps, Deployment, Unavailable
from tests.actors.support import INFO, FakeModel, asking, ended, types, until, until_so
from tests.actors.working import BRISK, LIMITS, Desk, Held, code_of, once, working
from tests.eventstore.conftest import emptied, valkey
from tests.system.proxy import Proxy, proxy_to

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

SLOW = pytest.mark.skipif("SLOW_TESTS" not in os.environ, reason="waits until a queued job is looked at again")
DEPLOYMENT = Deployment("test", 4, b"k" * 32)
FAST = 9
CAPS = Caps(total=12, per_subject=4, per_account=8, queue_total=1_000, queue_per_subject=1_000)
SUBJECTS = ("ann", "bob", "cat", "dan", "eve")
DELAY_S = 0.3
MODEL_S = 0.02
RUNS, JOBS = 45, 45
SLOWED_AT_MOST = 3.0
"""How many times as long the work of nine may take beside a tenth that is slow: far above what was measured."""
CALM = replace(BRISK, routine_ms=250, reassured_s=1.0)
CALM_JOBS = replace(LIMITS, poll_interval_ms=200)
BRIEF = replace(BRISK, permit_begin_ms=240)
_SUM = re.compile("total$|[sa][|]")
ONE = Caps(total=1, queue_total=9, queue_per_subject=9)


class Busy:
    """A model on two accounts, each of whose calls takes a while; it notes who was inside at once, and how often."""

    def __init__(self) -> None:
        self.inside = Counter[str]()
        self.most = Counter[str]()
        self.calls = Counter[str]()
        self.order: list[str] = []

    def on(self, account: str) -> FakeModel:
        async def answer(request: ModelRequest, context: ModelContext) -> Turn:
            del context
            said = str(_said(request))
            self.calls[said] += 1
            self.order.append(said)
            who = ("all", f"s {said.split(maxsplit=1)[0]}", f"a {account}")
            self.inside.update(who)
            self.most |= self.inside
            await anyio.sleep(MODEL_S)
            self.inside.subtract(who)
            return Turn(text="done")

        model = FakeModel(answer)
        model.info = replace(INFO, id=account, account=account)
        return model

    @property
    def models(self) -> Mapping[str, Model]:
        return {account: self.on(account) for account in ("x", "y")}


def _said(request: ModelRequest) -> str:
    (first, *_) = request.messages
    assert isinstance(first, UserMessage)
    return first.content


class Ledger(NamedTuple):
    """What a test sees of the ledger, over a link of its own."""

    link: Link

    async def sums(self) -> Counter[str]:
        """Weights by what they are counted for."""
        flat = await self.link.call("HGETALL", ledger_keys("runs", "")[1])
        named = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        return Counter({name: int(value) for name, value in named.items() if _SUM.match(name)})

    async def is_empty(self) -> bool:
        counted = await RedisLedger(self.link).counted("runs")
        return (counted.held, counted.waiting, counted.queued) == (0, 0, 0)

    async def holds(self, held: int, waiting: int) -> bool:
        counted = await RedisLedger(self.link).counted("runs")
        return (counted.held, counted.waiting) == (held, waiting)

    async def watched(self, most: Counter[str]) -> None:
        """Note the most that was ever out, until cancelled."""
        while True:
            most |= await self.sums()
            await anyio.sleep(0.002)


class House(NamedTuple):
    """Nine nodes, and how a tenth is opened that a proxy stands before."""

    fast: Sequence[Desk]
    slow: Desk
    proxy: Proxy
    ledger: Ledger


@asynccontextmanager
async def housed(valkey: Endpoint, models: Any, fast: int, caps: Caps, **options: Any) -> AsyncIterator[House]:
    await emptied(valkey)
    chosen: dict[str, Any] = {"node": CALM, "jobs": CALM_JOBS, "caps": lambda _subject, _account: caps} | options
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ledger = Ledger(await enter(open_link(valkey)))
        proxy = await enter(proxy_to(valkey))
        desks: list[Desk] = []
        for number, where in enumerate([*[valkey] * fast, Endpoint(port=proxy.port)]):
            store = await enter(open_redis_store(where, DEPLOYMENT, f"n{number}"))
            desks.append(await enter(working(models, store, **chosen)))
        yield House(desks[:-1], desks[-1], proxy, ledger)
        proxy.slow(0)


async def worked(desks: Sequence[Desk], batch: str) -> float:
    """Have *desks* see runs and jobs of all subjects through; the seconds that the runs took.

    The queue gives jobs to whichever node asks, so how long the last of them takes is up to the slowest.
    """
    began = time.monotonic()

    async def submitted(desk: Desk, numbers: Sequence[int]) -> None:
        for number in numbers:
            subject, account, said = _piece(batch, "job", number)
            job = await desk.submit(said.replace(" ", "-"), subject, provider=account, input=said)
            jobs.append((desk, job.id, subject))

    jobs: list[tuple[Desk, str, str]] = []
    async with anyio.create_task_group() as tasks:
        for number, desk in enumerate(desks):
            tasks.start_soon(submitted, desk, range(number, JOBS, len(desks)))
            for half in (0, 1):
                tasks.start_soon(attached, desk, batch, range(number + half * len(desks), RUNS, 2 * len(desks)))
    took_s = time.monotonic() - began
    for desk, job, subject in jobs:
        assert (await desk.ended(job, subject)).state == "completed"
    return took_s


async def attached(desk: Desk, batch: str, numbers: Sequence[int], done: anyio.Event | None = None) -> None:
    """Have *desk* see runs through, one after the other, until *done*."""
    for number in numbers:
        if done is not None and done.is_set():
            return
        subject, account, said = _piece(batch, "run", number)
        async with desk.host.attend(asking(provider=account, input=said), subject=subject) as seen:
            items = [item async for batch_of in seen.items() for item in batch_of]
        assert b"run.completed" in items[-1].data


def _piece(batch: str, kind: str, number: int) -> tuple[str, str, str]:
    """Whose a piece of work is, on which account, and what it says."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    return subject, "xy"[number % 2], f"{subject} {batch} {kind} {number}"


async def test_nine_nodes_do_not_feel_a_tenth_that_is_slow(valkey: Endpoint) -> None:
    busy, most, done = Busy(), Counter[str](), anyio.Event()
    async with (
        housed(valkey, busy.models, FAST, CAPS) as (fast, slow, proxy, ledger),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ledger.watched, most)
        alone_s = await worked(fast, "alone")
        proxy.slow(DELAY_S)
        async with anyio.create_task_group() as clients:
            for number in range(4):
                clients.start_soon(attached, slow, "slow", range(number, 1_000, 4), done)
            assert await worked(fast, "beside") < SLOWED_AT_MOST * alone_s + 3
            done.set()
        await until_so(ledger.is_empty)
        tasks.cancel_scope.cancel()
    within(CAPS, most)
    within(CAPS, busy.most)
    assert set(busy.calls.values()) == {1}, "each waiter is served once"
    assert len(busy.calls) >= 2 * (RUNS + JOBS) + 4


def within(caps: Caps, most: Counter[str]) -> None:
    """Fail if there was ever more than *caps* allow, of what the ledger counts or of what was inside."""
    bounds = {"total": caps.total, "all": caps.total, "s": caps.per_subject, "a": caps.per_account}
    assert most
    for name, weight in most.items():
        assert weight <= bounds[name if name in bounds else name[0]], (name, weight)


async def test_subjects_take_turns_though_a_node_is_slow(valkey: Endpoint) -> None:
    busy = Busy()
    async with housed(valkey, busy.models, 2, replace(CAPS, per_subject=0, total=4), held=True) as (
        fast,
        slow,
        proxy,
        _,
    ):
        flood = [await fast[0].submit(f"a{n}", "ann", provider="x", input=f"ann {n}") for n in range(40)]
        rest = [
            (await fast[1].submit(f"{who}{n}", who, provider="x", input=f"{who} {n}"), who)
            for who in SUBJECTS[1:]
            for n in range(5)
        ]
        proxy.slow(DELAY_S / 2)
        for desk in (*fast, slow):
            desk.host.begin()
        for job, who in rest:
            assert (await fast[0].ended(job, who)).state == "completed"
        last = max(number for number, said in enumerate(busy.order) if not said.startswith("ann"))
        before = sum(said.startswith("ann") for said in busy.order[:last])
        assert before <= 5 + 2 * 4, "a turn of its own for each turn of another, and what a node that is slow holds up"
        for job in flood:
            assert (await fast[0].ended(job, "ann")).state == "completed"
    assert set(busy.calls.values()) == {1}


async def test_a_slot_that_lapses_while_its_node_is_stalled_goes_to_the_next_and_comes_to_nothing_there(
    valkey: Endpoint,
) -> None:
    held = Held()
    async with (
        housed(valkey, held.model, 1, ONE, node=BRIEF) as ([fast], slow, proxy, ledger),
        AsyncExitStack() as stack,
    ):
        first = await stack.enter_async_context(fast.host.attend(asking(input="first")))
        await until(lambda: held.inside == ["first"])
        late = await stack.enter_async_context(slow.host.attend(asking(input="late"), subject="bob"))
        await until_so(lambda: ledger.holds(1, 1))
        then = await stack.enter_async_context(fast.host.attend(asking(input="then"), subject="cat"))
        await until_so(lambda: ledger.holds(1, 2))
        proxy.slow(0.6)
        rings = heard_by(slow)
        held.let_go("first")
        await until(lambda: held.inside == ["then"])
        assert await ledger.holds(1, 0), "the stalled node's waiter had its turn"
        await until(lambda: bool(rings))  # of the slot that it lost meanwhile
        proxy.slow(0)
        for _ in range(2):  # whatever it sent then has arrived
            await slow.host.store.look(late.run_id)
        await until_so(lambda: ledger.holds(1, 1))
        assert (held.inside, await started(fast, late.run_id)) == (["then"], False)
        held.let_go("then", "late")
        for one in (first, late, then):
            once([kind for kind in await types_of(fast, one.run_id) if kind.startswith("run.")])
        await until_so(ledger.is_empty)
    assert (held.most, held.begun) == (1, ["first", "then", "late"])


def heard_by(desk: Desk) -> list[str]:
    """The holders of whose slots the node of *desk* hears from now on."""
    rings: list[str] = []
    node: Any = desk.host.node
    granted = node.granted

    def noted(holder: str) -> None:
        rings.append(holder)
        granted(holder)

    node.granted = noted
    return rings


async def started(desk: Desk, run_id: str) -> bool:
    state, _ = await desk.host.state(run_id)
    assert isinstance(state, run.Live)
    return state.started


async def test_what_is_granted_to_a_node_that_hears_of_it_too_late_is_not_begun_there(valkey: Endpoint) -> None:
    held = Held()
    async with housed(valkey, held.model, 1, ONE, node=BRIEF) as ([fast], slow, proxy, ledger):
        proxy.slow(BRIEF.permit_begin_ms / 1_000)
        assert await code_of(attended(slow, "late")) == "", (
            "it tries again, and tells its caller that the store is slow"
        )
        proxy.slow(0)
        job = await fast.submit("job")
        await until(lambda: held.inside == ["job"])
        held.let_go("job")
        assert (await fast.ended(job)).state == "completed"
        await until_so(ledger.is_empty)
    assert (held.most, held.begun) == (1, ["job"])


async def attended(desk: Desk, said: str) -> None:
    with pytest.raises(Unavailable):
        async with desk.host.attend(asking(input=said)):
            raise AssertionError("it was begun")


@SLOW
@pytest.mark.slow
async def test_a_job_that_a_stalled_node_took_up_is_begun_by_another(valkey: Endpoint) -> None:
    held = Held()
    async with housed(valkey, held.model, 1, ONE, node=BRIEF, held=True) as ([fast], slow, proxy, ledger):
        job = await fast.submit("job")
        proxy.slow(BRIEF.permit_begin_ms / 1_000)
        slow.host.begin()
        await until_so(lambda: ledger.holds(1, 0))
        fast.host.begin()
        await until(lambda: held.inside == ["job"])
        await until_so(lambda: owned_by(fast, job.id))
        proxy.slow(0)
        held.let_go("job")
        once([kind for kind in await fast.types((await fast.ended(job)).id) if kind.startswith("run.")])
        await until_so(ledger.is_empty)
    assert held.begun == ["job"]


async def owned_by(desk: Desk, run_id: str) -> bool:
    return (await desk.host.store.look(run_id)).heads.owner == desk.host.store.node


async def types_of(desk: Desk, run_id: str) -> list[str]:
    return types(await ended(desk.host, run_id))


async def test_the_slots_and_places_of_a_node_that_is_gone_come_back(valkey: Endpoint) -> None:
    held = Held()
    caps = Caps(total=2, queue_total=20, queue_per_subject=20)
    async with housed(valkey, held.model, FAST, caps) as (fast, slow, proxy, ledger), AsyncExitStack() as stack:
        lost = [
            await stack.enter_async_context(slow.host.attend(asking(input=f"lost {n}"), subject="bob"))
            for n in range(3)
        ]
        await until(lambda: len(held.inside) == 2)
        next_ones = [
            await stack.enter_async_context(desk.host.attend(asking(input=f"next {number}"), subject=f"s{number}"))
            for number, desk in enumerate(fast)
        ]
        await until_so(lambda: ledger.holds(2, 1 + FAST))
        proxy.gone = True
        await proxy.cut()
        held.let_go(*(f"next {number}" for number in range(FAST)))
        for one in next_ones:
            assert (await types_of(fast[0], one.run_id))[-1] == "run.completed"
        for one in lost:
            kinds = [kind for kind in await types_of(fast[0], one.run_id) if kind.startswith("run.")]
            assert kinds == ["run.started", "run.failed"]
        await until_so(ledger.is_empty)
        held.let_go("lost 0", "lost 1", "lost 2")  # what is still in the hands of the node that is cut off
        proxy.gone = False
    assert Counter(held.begun) == Counter([f"next {number}" for number in range(FAST)] + ["lost 0", "lost 1"])
