"""Jobs of many clients over three hosts, of which one after the other is killed, or paused beyond its lease.

What is random comes from a printed seed.
"""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from actors import kinds
from actors.events import RunCancelled, RunCompleted, RunEvent, RunFailed, RunStarted, ToolCalled, ToolStarted
from eventstore import keys, words
from eventstore.ledger import Counted, RedisLedger
from eventstore.link import Link
from eventstore.socket_link import open_link
from tests import strict_jobs
from tests.strict_events import TERMINAL
from tests.strict_values import Object
from tests.system.cluster import Cluster, cluster_in, drawn, seeded
from tests.system.processes import LEASE_MS, POLL_S, gathered, types, until

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

IN_FULL = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="2,000 jobs: set SLOW_TESTS=1")
HOSTS, CLIENTS = 3, 16
PAUSED_S = LEASE_MS / 1_000 * 1.5
SUBJECTS = ("ann", "bo", "cy", "di")
SECTIONS = """
jobs = { retention_ms = 86_400_000, max_jobs = 100_000, max_jobs_per_subject = 100_000, max_bytes = 100_000_000_000 }
scheduling = { total = 30, per_subject = 12 }
"""
SCRIPTS: Object = {
    "quick": {"turns": [{"wait_ms": 20, "tool_calls": [{"name": "note", "arguments": {"n": 1}}]}, {"echo": True}]},
    "slow": {
        "turns": [
            {"wait_ms": 300, "tool_calls": [{"name": "note", "arguments": {"n": 1}}]},
            {"echo": True, "delay_ms": 60},
        ]
    },
    "twice": {
        "turns": [
            {"stream": ["One ", "moment."], "delay_ms": 40, "tool_calls": [{"name": "note", "arguments": {"n": 1}}]},
            {"wait_ms": 100, "tool_calls": [{"name": "note", "arguments": {"n": 2}}]},
            {"echo": True, "delay_ms": 40},
        ]
    },
}
CALLS: Mapping[str, int] = {"quick": 1, "slow": 1, "twice": 2}


class Size(NamedTuple):
    """How many jobs, and after which shares of their calls a host is killed, or paused."""

    jobs: int
    kills: tuple[float, ...]
    pauses: tuple[float, ...]
    within_s: float


SHORT = Size(150, (0.05, 0.2), (0.25,), 60)
FULL = Size(2_000, tuple(n / 30 for n in range(1, 29) if n % 7), tuple(n / 30 for n in range(7, 29, 7)), 900)


class Wanted(NamedTuple):
    """A job as its client wants it."""

    key: str
    subject: str
    model: str
    repeated: bool
    cancelled: bool

    @property
    def submission(self) -> Object:
        request: Object = {
            "provider": "scripted",
            "model": self.model,
            "input": f"{self.key} goes on",
            "tools": ["note"],
        }
        return {"key": self.key, "request": request}


class Soak:
    """One soak: what was asked for, and what clients were told."""

    def __init__(self, cluster: Cluster, size: Size, seed: int) -> None:
        self.cluster = cluster
        self.size = size
        self.seed = seed
        chance = drawn(seed)
        self.wanted = [self._wanted(number, chance) for number in range(size.jobs)]
        self.ids: dict[str, set[str]] = {one.key: set() for one in self.wanted}
        self.jobs: dict[str, Any] = {}
        self.harm: Counter[str] = Counter()
        self._whole = set(range(HOSTS))
        self._over = False

    def _wanted(self, number: int, chance: random.Random) -> Wanted:
        model = chance.choices(tuple(CALLS), (3, 4, 3))[0]
        return Wanted(
            f"k{number}",
            chance.choice(SUBJECTS),
            model,
            repeated=chance.random() < 0.2,
            cancelled=chance.random() < 0.1,
        )

    @property
    def calls(self) -> list[str]:
        """Which calls were executed, as the tool noted them: run and call."""
        noted = self.cluster.calls
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [line.rsplit(" ", 1)[0] for line in lines]

    async def run(self) -> None:
        """Submit everything and wait for its end, while hosts are harmed."""
        with anyio.fail_after(self.size.within_s):
            async with anyio.create_task_group() as harming:
                harming.start_soon(self._harmed)
                await gathered([partial(self._client, number) for number in range(CLIENTS)], CLIENTS)
                await gathered([partial(self._waiter, number) for number in range(CLIENTS)], CLIENTS)
                self._over = True

    async def _harmed(self) -> None:
        """Kill and pause as many calls are done; what is cancelled or lost makes none, so the plan may end early."""
        chance = drawn(self.seed + 1)
        plan = sorted([(at, "kill") for at in self.size.kills] + [(at, "pause") for at in self.size.pauses])
        expected = sum(CALLS[one.model] for one in self.wanted)
        async with anyio.create_task_group() as tasks:
            for share, harm in plan:
                await until(partial(self._ripe, share * expected), self.size.within_s)
                if self._over:
                    return
                number = chance.choice(sorted(self._whole))
                self._whole.remove(number)
                self.harm[harm] += 1
                tasks.start_soon(self._harm, harm, number)

    def _ripe(self, calls: float) -> bool:
        """Whether so many calls are done, and one host will be left whole; or all is over."""
        return self._over or (len(self._whole) > 1 and len(self.calls) >= calls)

    async def _harm(self, harm: str, number: int) -> None:
        if harm == "kill":
            await self.cluster.kill(number)
            await self.cluster.start(number)
        else:
            await self.cluster.pause(number, PAUSED_S)
        self._whole.add(number)

    async def _client(self, number: int) -> None:
        chance = drawn(self.seed + 100 + number)
        for one in self.wanted[number::CLIENTS]:
            hosts = drawn(f"{self.seed} {one.key}").sample(range(HOSTS), 2 if one.repeated else 1)
            async with anyio.create_task_group() as tasks:
                for first in hosts:
                    tasks.start_soon(self._submitted, one, first, chance)
            if one.cancelled:
                (job_id,) = self.ids[one.key]
                job = await self.cluster.told("/v1/jobs/cancel", {"id": job_id}, one.subject, chance)
                strict_jobs.job({"id": job_id}, job)
                assert job["state"] in strict_jobs.ENDED

    async def _submitted(self, one: Wanted, first: int, chance: random.Random) -> None:
        job = await self.cluster.told("/v1/jobs/submit", one.submission, one.subject, chance, first)
        strict_jobs.job_submitted(one.submission, job)
        self.ids[one.key].add(str(job["id"]))

    async def _waiter(self, number: int) -> None:
        chance = drawn(self.seed + 200 + number)
        for one in self.wanted[number::CLIENTS]:
            for job_id in self.ids[one.key]:
                while True:
                    job = await self.cluster.told("/v1/jobs/read", {"id": job_id}, one.subject, chance)
                    strict_jobs.job({"id": job_id}, job)
                    if job["state"] in strict_jobs.ENDED:
                        break
                    await anyio.sleep(POLL_S)
                self.jobs[job_id] = job

    async def pages(self, one: Wanted, job_id: str, chance: random.Random) -> list[Any]:
        """All events of a job, read in pages of chance sizes from whichever host, each page judged."""
        events: list[Any] = []
        while True:
            asked: Object = {"id": job_id, "after": len(events), "limit": chance.choice((4, 10, 100))}
            page: Any = await self.cluster.told("/v1/jobs/events", asked, one.subject, chance)
            strict_jobs.job_page(asked, page)
            assert page["job"] == self.jobs[job_id]
            events += page["events"]
            if not page["hasMore"]:
                return events


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def cluster(short_folder: Path) -> AsyncIterator[Cluster]:
    async with cluster_in(short_folder, HOSTS, SCRIPTS, SUBJECTS, SECTIONS) as cluster:
        yield cluster


@pytest.mark.parametrize("size", [SHORT, pytest.param(FULL, marks=[IN_FULL, pytest.mark.slow])], ids=["150", "2000"])
async def test_each_job_ends_once_whichever_hosts_are_killed_or_paused(cluster: Cluster, size: Size) -> None:
    seed = await seeded()
    soak, began = Soak(cluster, size, seed), time.monotonic()
    await soak.run()
    print(f"{size.jobs} jobs in {time.monotonic() - began:.1f} s, {dict(soak.harm)}")  # noqa: T201
    assert soak.harm["kill"] > 1
    _one_job_a_key(soak)
    await _sound_pages(soak)
    _no_effect_twice(soak)
    async with open_link(cluster.place) as link:
        await _sound_logs(soak, link)
        await _tidy(link)


def _one_job_a_key(soak: Soak) -> None:
    assert all(len(ids) == 1 for ids in soak.ids.values()), {key: ids for key, ids in soak.ids.items() if len(ids) != 1}
    assert len(soak.jobs) == soak.size.jobs
    print(dict(Counter(job["state"] for job in soak.jobs.values())))  # noqa: T201


async def _sound_pages(soak: Soak) -> None:
    chance = drawn(soak.seed + 300)
    await gathered([partial(_sound_page, soak, one, chance) for one in soak.wanted], CLIENTS)


async def _sound_page(soak: Soak, one: Wanted, chance: random.Random) -> None:
    (job_id,) = soak.ids[one.key]
    events = await soak.pages(one, job_id, chance)
    assert [event["sequence"] for event in events] == list(range(1, soak.jobs[job_id]["cursor"] + 1))
    assert [kind for kind in types(events) if kind in TERMINAL] == types(events)[-1:], types(events)
    assert types(events).count("run.started") == 1
    state = soak.jobs[job_id]["state"]
    assert state in {"completed", "interrupted", "cancelled"}, events[-1]
    assert state != "interrupted" or events[-1]["error"]["outcome"] == "uncertain"
    assert state != "cancelled" or one.cancelled
    assert state != "completed" or types(events).count("tool.completed") == CALLS[one.model]


def _no_effect_twice(soak: Soak) -> None:
    calls = Counter(soak.calls)
    assert {call: times for call, times in calls.items() if times > 1} == {}
    per_run = Counter(call.split()[0] for call in calls)
    for one in soak.wanted:
        (job_id,) = soak.ids[one.key]
        if soak.jobs[job_id]["state"] == "completed":
            assert per_run[job_id] == CALLS[one.model]


async def _sound_logs(soak: Soak, link: Link) -> None:
    """The truth itself: one end a job, no call started twice, and no actor but the jobs."""
    actors = {key.decode().rsplit(":", 1)[1]: key.decode() for key in await link.call("KEYS", "*:l:*")}
    assert actors.keys() == soak.jobs.keys()
    for key in actors.values():
        found = words.entries(await link.call("XRANGE", key, "-", "+"), "")
        log: list[RunEvent] = [kinds.RUN.decode(entry.data) for entry in found]
        ends = [event for event in log if isinstance(event, RunCompleted | RunFailed | RunCancelled)]
        assert ends == log[-1:], log
        assert sum(isinstance(event, RunStarted) for event in log) <= 1, log
        calls = [type(event) for event in log if isinstance(event, ToolCalled | ToolStarted)]
        assert (ToolStarted, ToolStarted) not in pairwise(calls), log


async def _tidy(link: Link) -> None:
    """Nothing holds a slot, nothing waits for one, and every key has its lifetime."""
    ledger = RedisLedger(link)
    with anyio.fail_after(LEASE_MS / 1_000 + 12):
        while await ledger.counted("runs") != Counted(0, 0):  # noqa: ASYNC110 - another process sets no event of ours
            await anyio.sleep(POLL_S)
    strange = [key.decode() for key in await link.call("KEYS", "*") if keys.kind_of(key.decode()) is None]
    assert strange == []
