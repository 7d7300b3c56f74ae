"""Two hosts on one Redis, as a plain load balancer would use them; then one is paused, cut off or flooded."""

import random
import signal
import time
from functools import partial
from typing import Any

import anyio
import pytest
from runstream_client import AsyncEventStream, Refused, RunError, RunEvent, RunResult, TextDelta

from eventstore.endpoint import Endpoint
from eventstore.socket_link import open_link
from tests.system.conftest import Pair
from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    SUBJECTS,
    Host,
    Reading,
    asking,
    gathered,
    streaming,
    told,
    types,
    until,
)
from tests.system.users import User, asking_for, first, raw, rest

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
    async with User(pair.one) as one, User(pair.two) as two:
        assert (await one.stream(asking_for("echo", "a few words")).result()).text
        result = await two.run(asking_for("json", outputSchema={"type": "object"}))
        assert result.output == {"ok": True}
        keyed = asking_for("echo", "once", idempotencyKey="k-once")
        assert await one.stream(keyed).result() == await two.stream(keyed).result()
        with pytest.raises(Refused) as refused:
            await two.run(keyed | {"input": "twice"})
        assert refused.value.status == 409


async def test_a_stream_tells_a_run_that_fails_from_a_request_that_is_refused(pair: Pair) -> None:
    failing, unknown = asking_for("json", outputSchema={"type": "string"}), asking_for("echo", provider="nobody")
    async with User(pair.one) as user:
        for asked, kind in ((failing, RunError), (unknown, Refused)):
            with pytest.raises(kind) as streamed:
                await user.stream(asked).result()
            with pytest.raises(Refused) as answered:
                await user.run(asked)
            assert streamed.value.code == answered.value.code


async def test_a_client_that_leaves_cancels_its_run_within_two_seconds(pair: Pair) -> None:
    async with User(pair.one) as user, user.stream(asking_for("endless")) as stream:
        await first(stream, 3)
    left_s, run_id = time.time(), str(stream.run_id)
    log = await told(pair.two.settings, "log", run_id)
    while log[-1]["event"]["type"] not in ENDS:
        assert time.time() < left_s + 5
        log = await told(pair.two.settings, "log", run_id)
    assert log[-1]["event"]["type"] == "run.cancelled"
    assert log[-1]["event"]["at_ms"] / 1_000 < left_s + 2


async def test_forty_submits_of_one_key_over_both_hosts_are_one_run(pair: Pair) -> None:
    keyed = asking_for("marked", "one two three four", idempotencyKey="k-forty")
    async with User(pair.one) as one, User(pair.two) as two:
        answers = await gathered([partial(outcome, user, keyed) for user in (one, two) * 20], 40)
    assert {answer for answer in answers if isinstance(answer, str)} <= {"OPERATION_IN_PROGRESS"}
    assert len({answer.run_id for answer in answers if isinstance(answer, RunResult)}) == 1


async def outcome(user: User, request: Any) -> RunResult | str:
    """What a run came to, or the code with which it was refused."""
    try:
        return await user.run(request)
    except Refused as error:
        return error.code


async def test_losing_the_scripts_under_load_fails_nothing(pair: Pair) -> None:
    async with open_link(Endpoint(path=str(pair.redis.socket))) as link, anyio.create_task_group() as tasks:

        async def flush() -> None:
            while True:
                await link.call("SCRIPT", "FLUSH")
                await anyio.sleep(0.05)

        tasks.start_soon(flush)
        async with User(pair.one) as one, User(pair.two) as two:
            streams = [user.stream(asking_for("marked", "one two three")) for user in (one, two) * 20]
            results = await gathered([stream.result for stream in streams], 10)
        assert len(results) == 40
        tasks.cancel_scope.cancel()


async def test_a_redis_that_pauses_is_a_pause_of_the_stream(pair: Pair) -> None:
    async with User(pair.one) as user, user.stream(asking_for("ticking")) as stream:
        events = await first(stream, 5)
        before = await _while_redis_pauses(pair, stream, events)
        result = await stream.result()
    assert events[: len(before)] == before
    assert result.text == "tick " * 120
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "tick " * 120


async def _while_redis_pauses(pair: Pair, stream: AsyncEventStream, events: list[RunEvent]) -> list[RunEvent]:
    """Read to the end while Redis pauses for 3 s; what had been shown by then, and all that while."""
    before: list[RunEvent] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - others look at them meanwhile

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        pair.redis.process.send_signal(signal.SIGSTOP)
        try:
            paused_s = time.monotonic()
            await until(lambda: time.monotonic() > paused_s + 0.5)
            before += events
            await until(lambda: time.monotonic() > paused_s + 3)
            assert events == before
        finally:
            pair.redis.process.send_signal(signal.SIGCONT)
    return before


async def test_a_host_paused_beyond_its_lease_loses_its_run_and_writes_nothing_more(pair: Pair) -> None:
    document = asking_for("endless", idempotencyKey="k-paused")
    async with User(pair.one) as user:
        async with user.stream(document) as stream:
            shown = await first(stream, 3)
            pair.one.signal(signal.SIGSTOP)
            try:
                events = await ended(pair, shown[0].run_id, within_s=LEASE_MS / 1_000 * 2 + 15)
            finally:
                pair.one.signal(signal.SIGCONT)
            error: Any = events[-1]["error"]
            assert (events[-1]["type"], error["code"], error["outcome"]) == (
                "run.failed",
                "OPERATION_UNCERTAIN",
                "uncertain",
            )
            assert raw(shown + await rest(stream)) == events
        assert await told(pair.two.settings, "events", shown[0].run_id) == events
        with pytest.raises(RunError, match="OPERATION_UNCERTAIN"):
            await user.stream(document).result()
        assert (await user.stream(asking_for("echo")).result()).text


async def test_nobody_sees_what_belongs_to_another_whoever_leaves_when(pair: Pair) -> None:
    dice = random.Random(13)  # noqa: S311 - the same visitors each time

    def visit(number: int) -> Any:
        subject, host = f"s{number % SUBJECTS}", (pair.one, pair.two)[number % 2]
        stay_s = dice.uniform(0, 0.3) if number % 20 else DEADLINE_S
        return lambda: visited(host, subject, f"marker-{subject}-of-{number}-end", stay_s)

    seen: list[tuple[str, bytes]] = await gathered([visit(number) for number in range(1_000)], 60)
    for marker, sent in seen:
        markers = {word for word in sent.replace(b'"', b" ").split() if word.startswith(b"marker-")}
        assert markers <= {marker.encode()}, (marker, markers)
    assert any(b"run.completed" in sent for _, sent in seen)
    assert any(b"run.completed" not in sent for _, sent in seen)
    for host in (pair.one, pair.two):
        async with User(host) as user:
            assert (await user.stream(asking_for("echo")).result()).text


async def visited(host: Host, subject: str, marker: str, stay_s: float) -> tuple[str, bytes]:
    """What a client was sent that leaves after *stay_s*."""
    reading: Reading | None = None
    with anyio.move_on_after(stay_s):
        async with streaming(host, asking("marked", f"{marker} {marker} {marker} {marker}"), subject) as stream:
            reading = Reading(stream)
            await reading.rest()
    return marker, reading.raw if reading else b""
