"""Two hosts on one Redis, as a plain load balancer would use them; then one is paused, cut off or flooded."""

import random
import signal
import time
from collections import Counter
from typing import Any

import anyio
import pytest

from eventstore.endpoint import Endpoint
from eventstore.socket_link import open_link
from tests.host_rules import host_rules
from tests.system.conftest import Pair
from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    SUBJECTS,
    Host,
    Reading,
    answered,
    asking,
    frames,
    gathered,
    streamed,
    streaming,
    told,
    types,
    until,
)

pytestmark = pytest.mark.anyio

ENDS = {"run.completed", "run.failed", "run.cancelled"}


async def ended(pair: Pair, run_id: str, within_s: float) -> list[Any]:
    """The events of a run once it has ended, read by a third process."""
    deadline_s = time.monotonic() + within_s
    while True:
        events = await told(pair.two.settings, "events", run_id)
        if types(events)[-1] in ENDS:
            return events
        assert time.monotonic() < deadline_s, types(events)


async def test_a_run_is_streamed_answered_and_replayed_on_either_host(pair: Pair) -> None:
    events = await streamed(pair.one, asking("echo", "a few words"))
    assert types(events)[-1] == "run.completed"
    status, result = await answered(pair.two, asking("json", outputSchema={"type": "object"}))
    assert (status, result["output"]) == (200, {"ok": True})  # type: ignore[index, call-overload]
    keyed = asking("echo", "once", idempotencyKey="k-once")
    first, again = await streamed(pair.one, keyed), await streamed(pair.two, keyed)
    assert again[-1]["result"] == first[-1]["result"]
    assert (await answered(pair.two, keyed | {"input": "twice"}))[0] == 409


async def test_a_client_that_leaves_cancels_its_run_within_two_seconds(pair: Pair) -> None:
    async with streaming(pair.one, asking("endless")) as stream:
        (first, *_) = await Reading(stream).until(3)
    left_s = time.time()
    run_id = str(first["runId"])
    log = await told(pair.two.settings, "log", run_id)
    while log[-1]["event"]["type"] not in ENDS:
        assert time.time() < left_s + 5
        log = await told(pair.two.settings, "log", run_id)
    assert log[-1]["event"]["type"] == "run.cancelled"
    assert log[-1]["event"]["at_ms"] / 1_000 < left_s + 2


async def test_forty_submits_of_one_key_over_both_hosts_are_one_run(pair: Pair) -> None:
    keyed = asking("marked", "one two three four", idempotencyKey="k-forty")
    hosts = (pair.one, pair.two) * 20
    answers = await gathered([lambda host=host: answered(host, keyed) for host in hosts], 40)  # type: ignore[misc]
    kinds = Counter(status if status == 200 else body["error"]["code"] for status, body in answers)
    assert set(kinds) <= {200, "OPERATION_IN_PROGRESS"}
    assert len({body["runId"] for status, body in answers if status == 200}) == 1


async def test_losing_the_scripts_under_load_fails_nothing(pair: Pair) -> None:
    async with open_link(Endpoint(path=str(pair.redis.socket))) as link, anyio.create_task_group() as tasks:

        async def flush() -> None:
            while True:
                await link.call("SCRIPT", "FLUSH")
                await anyio.sleep(0.05)

        tasks.start_soon(flush)
        works = [
            lambda host=host: streamed(host, asking("marked", "one two three")) for host in (pair.one, pair.two) * 20
        ]
        runs = await gathered(works, 10)
        assert {types(events)[-1] for events in runs} == {"run.completed"}
        tasks.cancel_scope.cancel()


async def test_a_redis_that_pauses_is_a_pause_of_the_stream(pair: Pair) -> None:
    document = asking("ticking")
    async with streaming(pair.one, document) as stream:
        reading = Reading(stream)
        await reading.until(5)
        before = await _while_redis_pauses(pair, reading)
    events = host_rules(reading.raw, document)
    assert events[: len(before)] == before
    assert events[-1]["result"]["text"] == "tick " * 120  # type: ignore[index, call-overload]
    text = "".join(str(event["text"]) for event in events if event["type"] == "text.delta")
    assert text == "tick " * 120


async def _while_redis_pauses(pair: Pair, reading: Reading) -> list[Any]:
    """Read to the end while Redis pauses for 3 s; what had been shown by then, and all that while."""
    before: list[Any] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.rest)
        pair.redis.process.send_signal(signal.SIGSTOP)
        try:
            paused_s = time.monotonic()
            await until(lambda: time.monotonic() > paused_s + 0.5)
            before += frames(reading.raw)
            await until(lambda: time.monotonic() > paused_s + 3)
            assert frames(reading.raw) == before
        finally:
            pair.redis.process.send_signal(signal.SIGCONT)
    return before


async def test_a_host_paused_beyond_its_lease_loses_its_run_and_writes_nothing_more(pair: Pair) -> None:
    document = asking("endless", idempotencyKey="k-paused")
    async with streaming(pair.one, document) as stream:
        reading = Reading(stream)
        (first, *_) = await reading.until(3)
        pair.one.signal(signal.SIGSTOP)
        try:
            events = await ended(pair, str(first["runId"]), within_s=LEASE_MS / 1_000 * 2 + 15)
        finally:
            pair.one.signal(signal.SIGCONT)
        error: Any = events[-1]["error"]
        assert (events[-1]["type"], error["code"], error["outcome"]) == (
            "run.failed",
            "OPERATION_UNCERTAIN",
            "uncertain",
        )
        assert host_rules(await reading.rest(), document) == events
    assert await told(pair.two.settings, "events", str(first["runId"])) == events
    replay = await streamed(pair.one, document)
    assert (types(replay)[-1], replay[-1]["error"]["code"]) == ("run.failed", "OPERATION_UNCERTAIN")  # type: ignore[index, call-overload]
    assert types(await streamed(pair.one, asking("echo")))[-1] == "run.completed"


async def test_nobody_sees_what_belongs_to_another_whoever_leaves_when(pair: Pair) -> None:
    dice = random.Random(13)  # noqa: S311 - the same visitors each time

    def visit(number: int) -> Any:
        subject, host = f"s{number % SUBJECTS}", (pair.one, pair.two)[number % 2]
        stay_s = dice.uniform(0, 0.3) if number % 20 else DEADLINE_S
        return lambda: visited(host, subject, f"marker-{subject}-of-{number}-end", stay_s)

    seen: list[tuple[str, bytes]] = await gathered([visit(number) for number in range(1_000)], 60)
    for marker, raw in seen:
        markers = {word for word in raw.replace(b'"', b" ").split() if word.startswith(b"marker-")}
        assert markers <= {marker.encode()}, (marker, markers)
    assert any(b"run.completed" in raw for _, raw in seen)
    assert any(b"run.completed" not in raw for _, raw in seen)
    for host in (pair.one, pair.two):
        assert types(await streamed(host, asking("echo")))[-1] == "run.completed"


async def visited(host: Host, subject: str, marker: str, stay_s: float) -> tuple[str, bytes]:
    """What a client was sent that leaves after *stay_s*."""
    reading: Reading | None = None
    with anyio.move_on_after(stay_s):
        async with streaming(host, asking("marked", f"{marker} {marker} {marker} {marker}"), subject) as stream:
            reading = Reading(stream)
            await reading.rest()
    return marker, reading.raw if reading else b""
