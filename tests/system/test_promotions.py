"""A replica takes the place of the primary below living hosts: its clock may be off, and it may lack the last moments."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from runstream_client import Approval, ApprovalRequested, Refused, RunResult

from actors.viewing import digest_of
from eventstore.link import Link
from eventstore.recent import KEPT_S
from tests import history
from tests.clocks import CLOCKS
from tests.history import History, Kept, Owned, Read
from tests.http_client import fetch, opened
from tests.strict_values import Object
from tests.system import looks
from tests.system.chaos_client import Seen, nothing, taken
from tests.system.chaos_work import SCRIPTS
from tests.system.cluster import LOST, asking_once
from tests.system.house import House, Shape, house_in
from tests.system.processes import LEASE_MS, POLL_S, Host, asking, headers_of, until
from tests.system.servers import Pair
from tests.system.users import User, asking_for, first

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

LEASE_S = LEASE_MS / 1_000
TICKS = 60
TICKING: dict[str, Any] = {"ticking": {"turns": [{"repeat": {"text": "tick ", "times": TICKS}, "delay_ms": 50}]}}
LONGER: dict[str, Any] = {"ticking": {"turns": [{"repeat": {"text": "tick ", "times": 4 * TICKS}, "delay_ms": 50}]}}
STREAMS = 4
SLACK_S = 1.5
"""A second, and what a busy machine takes longer."""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    yield made
    shutil.rmtree(made)


@CLOCKS
@pytest.mark.parametrize("off_s", [30, -30])
async def test_a_promoted_clock_that_is_off_takes_no_run_from_a_living_node_and_hides_no_dead_one(
    short_folder: Path, off_s: int
) -> None:
    shape = Shape(TICKING | SCRIPTS, ("ann",), hosts=2, redis="pair", promoted_off_s=off_s)
    async with house_in(short_folder, shape) as house, looks.connected(house) as link:
        servers = await _joined(house)
        owned, results, asked = list[Owned](), list[RunResult](), list[Any]()
        keyed = asking("ticking", idempotencyKey="once")
        waiting = [await _asked_for_review(house, *one) for one in (("soon", 20_000), ("late", 600_000))]
        before = await _times(link)
        async with anyio.create_task_group() as watching:
            watching.start_soon(looks.watched, link, owned, 0)
            async with anyio.create_task_group() as tasks:
                begun = [anyio.Event() for _ in range(2 * STREAMS + 1)]
                for number in range(2 * STREAMS):
                    tasks.start_soon(_read, house, number % 2, asking("ticking"), results, begun[number])
                tasks.start_soon(_read, house, 0, keyed, results, begun[-1])
                for one in begun:
                    await one.wait()
                await servers.level()
                await _promoted(house, servers)
                over = anyio.Event()
                tasks.start_soon(_asks_until, house, keyed, asked, over)
                await until(lambda: len(results) == len(begun))
                over.set()
            assert {result.text for result in results} == {"tick " * TICKS}
            watching.cancel_scope.cancel()
        assert {(one.actor, one.epoch) for one in owned} == {(one.actor, 1) for one in owned}
        assert {answer["error"]["code"] for answer in asked if "error" in answer} == {"OPERATION_IN_PROGRESS"}
        assert len({answer["runId"] for answer in asked if "runId" in answer}) <= 1
        await _decided_by_its_clock(house, link, waiting, off_s)
        after = await _times(link)
        assert all(times == sorted(times) for times in after.values())
        assert all(after[actor][: len(times)] == times for actor, times in before.items())
        await _taken_over(house, link)


async def _joined(house: House) -> Pair:
    servers = house.servers
    assert isinstance(servers, Pair)
    await servers.joined()
    return servers


async def _promoted(house: House, servers: Pair) -> None:
    await house.proxy.leads_to(await servers.promoted())


async def _read(house: House, number: int, document: Any, results: list[RunResult], begun: anyio.Event) -> None:
    async with User(house.host(number)) as user, user.stream(document) as stream:
        await first(stream, 3)
        begun.set()
        results.append(await stream.result())


async def _asks_until(house: House, document: Object, answers: list[Any], over: anyio.Event) -> None:
    """Ask the other host for the same again and again, which may never make it believe that nobody works on it."""
    while not over.is_set():
        _, body = await asking_once(house.host(1), "/v1/runs", document, "ann", patience_s=20)
        answers.append(body)
        await anyio.sleep(POLL_S)


async def _asked_for_review(house: House, name: str, expires_ms: int) -> Approval:
    """Begin a run that waits for a person for so long; what is asked."""
    document = asking_for(
        "reviewed",
        name,
        tools=["reviewed"],
        approvals={"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": expires_ms},
        resume={"graceMs": 600_000},
    )
    async with User(house.host(0)) as user, user.stream(document) as stream:
        async for event in stream:
            if isinstance(event, ApprovalRequested):
                return event.approval
    raise AssertionError("nothing was asked")


async def _decided_by_its_clock(house: House, link: Link, waiting: Sequence[Approval], off_s: int) -> None:
    """An expiry is a time of Redis: a clock that is ahead brings it nearer, one that is behind puts it off."""
    soon, late = waiting
    if off_s > 0:
        run = await _settled(link, soon.run_id)
        assert run.of("review.settled")[0]["outcome"] == "expired"
        assert run.of("review.settled")[0]["at_ms"] >= run.of("review.asked")[0]["expires_ms"]
        assert await _decided(house, soon) == (404, "APPROVAL_NOT_FOUND")
    else:
        assert await _decided(house, soon) == (200, "")
    assert await _decided(house, late) == (200, "")
    ended = [late.run_id, *([] if off_s > 0 else [soon.run_id])]
    kept = await _kept_until(link, lambda kept: all(one.ended for one in kept if one.actor in ended))
    assert [one.log[-1].kind for one in kept if one.actor in ended] == ["run.completed"] * len(ended)


async def _decided(house: House, approval: Approval) -> tuple[int, str]:
    """Approve through the other host; the status and the code, if it was refused."""
    try:
        async with User(house.host(1)) as user:
            with anyio.fail_after(20):
                await user.approvals.decide(approval, "approve")
    except Refused as error:
        return error.status, error.code
    return 200, ""


async def _settled(link: Link, run_id: str) -> Kept:
    """Wait until a run's question is answered; the run then."""
    kept = await _kept_until(link, lambda kept: any(one.of("review.settled") for one in kept if one.actor == run_id))
    return next(one for one in kept if one.actor == run_id)


async def _times(link: Link) -> dict[str, list[int]]:
    """When what happened happened, of every actor."""
    return {one.actor: [entry.event["at_ms"] for entry in one.log] for one in await looks.kept_in(link)}


async def _taken_over(house: House, link: Link) -> None:
    """Kill a host; what it had is another's, or over, within a lease and a second."""
    async with User(house.host(1)) as user, user.stream(asking_for("ticking", "the last")) as stream:
        await first(stream, 3)
        await house.kill(1)
        began_s = time.monotonic()
        await _kept_until(link, lambda kept: any(one.actor == stream.run_id and one.ended for one in kept))
        assert time.monotonic() - began_s < LEASE_S + SLACK_S


async def _kept_until(link: Link, true: Callable[[list[Kept]], bool]) -> list[Kept]:
    """Wait for what hosts bring about in Redis; what it holds then."""
    with anyio.fail_after(LEASE_S * 2 + 10):
        while not true(kept := await looks.kept_in(link)):  # noqa: ASYNC110 - another process sets no event of ours
            await anyio.sleep(POLL_S)
    return kept


async def test_a_promotion_that_lost_the_last_moments_is_felt_by_nobody(short_folder: Path) -> None:
    shape = Shape(TICKING | SCRIPTS, ("ann",), hosts=3, redis="pair")
    async with house_in(short_folder, shape) as house, looks.connected(house) as link:
        servers = await _joined(house)
        shown = {name: Seen([], []) for name in ("owner", "viewer", "begun", "ended")}
        async with anyio.create_task_group() as tasks:

            async def read(name: str, number: int, document: Object, run_id: str = "") -> None:
                await _seen_by(house.host(number), document, run_id, shown[name])

            tasks.start_soon(read, "owner", 0, asking("ticking"))
            await until(lambda: len(shown["owner"].events) >= 3)
            tasks.start_soon(read, "viewer", 1, {}, shown["owner"].run_id)
            await until(lambda: len(shown["viewer"].events) >= 3)
            await servers.parted()
            marks = {name: len(shown[name].events) for name in ("owner", "viewer")}
            tasks.start_soon(read, "begun", 1, asking("ticking", "after that"))
            tasks.start_soon(read, "ended", 2, asking("say", "and this"))
            await until(lambda: shown["ended"].is_over and len(shown["begun"].events) >= 3)
            await until(lambda: all(len(shown[name].events) > mark + 2 for name, mark in marks.items()))
            await _promoted(house, servers)
        kept = await _kept_until(link, lambda kept: len(kept) == 3 and all(one.ended for one in kept))
        assert [one.log[-1].kind for one in kept] == ["run.completed"] * 3
        reads = [Read(name, seen.run_id, 0, seen.events, over=seen.is_over) for name, seen in shown.items()]
        assert all(read.over for read in reads)
        assert history.faults(History(kept=kept, reads=reads)) == []


async def test_a_promotion_that_lost_more_is_told_to_all_who_saw_it(short_folder: Path) -> None:
    shape = Shape(LONGER | SCRIPTS, ("ann",), hosts=3, redis="pair")
    async with house_in(short_folder, shape) as house, looks.connected(house) as link:
        servers = await _joined(house)
        shown = {name: Seen([], []) for name in ("owner", "viewer", "ended", "begun")}
        async with anyio.create_task_group() as tasks:

            async def read(name: str, number: int, document: Object, run_id: str = "") -> None:
                await _seen_by(house.host(number), document, run_id, shown[name])

            tasks.start_soon(read, "owner", 0, asking("ticking", resume={"graceMs": 60_000}))
            await until(lambda: len(shown["owner"].events) >= 3)
            tasks.start_soon(read, "viewer", 1, {}, shown["owner"].run_id)
            job = await asking_once(house.host(0), "/v1/jobs/submit", {"key": "j", "request": asking("ticking")}, "ann")
            tasks.start_soon(read, "ended", 0, asking("long", resume={"graceMs": 60_000}))
            await until(lambda: min(len(shown[name].events) for name in ("viewer", "ended")) >= 3)
            assert job[0] == 200
            await servers.parted()
            marks = {name: len(seen.events) for name, seen in shown.items()}
            tasks.start_soon(read, "begun", 1, asking("ticking", "after that"))
            await until(lambda: shown["ended"].is_over and len(shown["begun"].events) >= 3)
            begun_s = time.monotonic()
            await until(lambda: time.monotonic() > begun_s + KEPT_S + SLACK_S)
            assert all(len(shown[name].events) > marks[name] + 2 for name in ("owner", "viewer"))
            await _promoted(house, servers)
        kept = await _kept_until(link, lambda kept: len(kept) == 3 and all(one.ended for one in kept))
        assert [one.lost for one in kept] == [True] * 3
        reads = [Read(name, seen.run_id, 0, seen.events, over=seen.is_over) for name, seen in shown.items()]
        assert history.faults(History(kept=kept, reads=reads)) == []
        for name, code in (
            ("owner", "HISTORY_LOST"),
            ("viewer", "HISTORY_LOST"),
            ("ended", "HISTORY_LOST"),
            ("begun", "RUN_NOT_FOUND"),
        ):
            for number in range(3):
                assert await _refused(house, number, shown[name]) == code, (name, number)


async def _seen_by(host: Host, document: Object, run_id: str, seen: Seen) -> None:
    """Begin a run, or follow the one that is named, until its stream ends or breaks."""
    method, path = ("GET", f"/v1/runs/{run_id}/events") if run_id else ("POST", "/v1/runs")
    body = None if run_id else json.dumps(document).encode()
    with suppress(*LOST):
        async with opened(host.target, method, path, headers_of("ann", "text/event-stream"), body) as stream:
            await taken(stream, seen, nothing, 0)


async def _refused(house: House, number: int, seen: Seen) -> str:
    """The code with which a host refuses the last cursor of a reader."""
    last, data = seen.events[-1]
    cursor = ("Last-Event-ID", f"{last}.{digest_of(data)}")
    path, headers = f"/v1/runs/{seen.run_id}/events", [*headers_of("ann", "application/json"), cursor]
    answer = await fetch(house.host(number).target, "GET", path, headers)
    assert answer.status >= 400, answer.body[:200]
    return str(json.loads(answer.body)["error"]["code"])
