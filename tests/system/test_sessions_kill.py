"""Conversations that go on turn by turn on whichever host, while one host after the other is killed in mid-turn.

What is random comes from a printed seed.
"""

import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.strict_answers import ANSWERS
from tests.strict_values import Object
from tests.system.cluster import LOST, Cluster, asking_once, cluster_in, drawn, seeded
from tests.system.processes import LEASE_MS, POLL_S, gathered

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

HOSTS, TALKERS = 3, 5
FOUND_S = LEASE_MS / 1_000 + 2
"""Within this time after a kill a session is ready or interrupted."""
ONE_SLOT = "bo"
SECTIONS = """
sessions = { retention_ms = 86_400_000 }
scheduling = { total = 30, per_subject = 20, subjects = { bo = 1 }, queue = { total = 10, per_subject = 10 } }
"""
SCRIPTS: Object = {"echo": {"turns": [{"echo": True}]}}
QUICK, LONG, ENDLESS = "session-first", "conformance-progress", "conformance-stall"


class Talk:
    """One conversation as its client knows it."""

    def __init__(self, cluster: Cluster, subject: str, chance: random.Random) -> None:
        self.cluster = cluster
        self.subject = subject
        self.chance = chance
        self.id = ""
        self.revision = 0
        self.ends: Counter[str] = Counter()

    async def begin(self) -> None:
        wanted: Object = {"provider": "mock", "model": "demo", "mode": "history"}
        snapshot: Any = await self.cluster.told("/v1/sessions/create", wanted, self.subject, self.chance)
        ANSWERS["session-create"](wanted, snapshot)
        self.id, self.revision = snapshot["session"]["id"], 0

    async def turn(self, number: int, said: str) -> Any:
        """Take a turn on a host that may die of it; the answer, or None if none came."""
        document: Object = {"provider": "mock", "model": "demo", "input": said}
        document["session"] = {"id": self.id, "revision": self.revision}
        try:
            status, body = await asking_once(self.cluster.host(number), "/v1/runs", document, self.subject, 20)
        except LOST:
            return None
        return body if status == 200 else {"code": body["error"]["code"]}  # type: ignore[index, call-overload]

    async def read(self) -> Any:
        named: Object = {"id": self.id}
        snapshot: Any = await self.cluster.told("/v1/sessions/read", named, self.subject, self.chance)
        ANSWERS["session-read"](named, snapshot)
        assert len(snapshot["history"]) == 2 * snapshot["session"]["revision"]
        return snapshot["session"]

    async def running(self) -> None:
        """Wait until a turn of it is running."""
        with anyio.fail_after(FOUND_S):
            while (await self.read())["state"] != "running":  # noqa: ASYNC110 - nor does a host set an event of ours
                await anyio.sleep(POLL_S)

    async def found(self) -> Any:
        """How it stands once no turn is running any more, which must be soon."""
        began = time.monotonic()
        while (session := await self.read())["state"] == "running":
            assert time.monotonic() < began + FOUND_S, "the session is stuck"
            await anyio.sleep(POLL_S)
        self.ends[session["state"]] += 1
        return session

    async def go_on(self, over: anyio.Event) -> None:
        """Take turns on whichever host, until one that began when all was over."""
        await self.begin()
        last = False
        while not last:
            last = over.is_set()
            answer = await self.turn(self.chance.choice(self.cluster.up), self.chance.choice((QUICK, LONG)))
            if answer is not None:
                assert "code" not in answer, answer
                assert answer["session"]["revision"] == self.revision + 1
                self.revision += 1
                self.ends["completed"] += 1
                continue
            session = await self.found()
            assert session["revision"] - self.revision in ({0, 1} if session["state"] == "ready" else {0})
            self.revision = session["revision"]
            if session["state"] == "interrupted":
                (refused,) = [await self.turn(number, QUICK) for number in self.cluster.up[:1]]
                assert refused is None or refused["code"] == "SESSION_INTERRUPTED"
                await self.begin()


@pytest.fixture
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with cluster_in(folder, HOSTS, SCRIPTS, ("ann", ONE_SLOT), SECTIONS) as cluster:
        yield cluster


async def test_a_session_is_ready_or_interrupted_soon_after_its_host_was_killed(cluster: Cluster) -> None:
    seed = await seeded()
    talks = [Talk(cluster, "ann", drawn(seed + number)) for number in range(TALKERS)]
    holding, queued = [Talk(cluster, ONE_SLOT, drawn(seed + 100 + number)) for number in range(2)]
    over = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for talk in talks:
            tasks.start_soon(talk.go_on, over)
        for number, talk in enumerate((holding, queued)):
            await talk.begin()
            tasks.start_soon(talk.turn, number, ENDLESS)
            await talk.running()
        await cluster.kill(1)
        tasks.start_soon(cluster.start, 1)
        await cluster.kill(0)
        waited, interrupted = await gathered([queued.found, holding.found], 2)
        assert (waited["state"], waited["revision"]) == ("ready", 0), "no model had heard of that turn"
        assert (interrupted["state"], interrupted["revision"]) == ("interrupted", 0)
        assert (await queued.turn(2, QUICK))["session"]["revision"] == 1, "the slot of the dead is free"
        over.set()
    ends = sum((talk.ends for talk in talks), Counter[str]())
    print(dict(ends))  # noqa: T201
    assert ends["completed"] > TALKERS
