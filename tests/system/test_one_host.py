"""A host with its own Redis that is killed, started again on the same data, and told to end."""

import signal
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from runstream_client import RunCancelled, RunEvent, RunFailed

from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    POLL_S,
    Host,
    alive,
    served,
    settings_text,
    told,
    types,
    until,
)
from tests.system.users import User, asking_for, first, raw, rest

pytestmark = pytest.mark.anyio

KEYED = asking_for("endless", idempotencyKey="k-killed")


async def test_a_killed_host_finds_its_run_again_and_closes_it_and_a_stopped_one_ends_its_streams(folder: Path) -> None:
    settings = folder / "host.toml"
    settings.write_text(settings_text("local", None, folder / "state"))
    with served(settings) as host:
        async with User(host) as user, user.stream(KEYED) as stream:
            shown = raw(await first(stream, 6))
            server = msgspec.json.decode((folder / "state" / "server.json").read_bytes())["pid"]
            host.signal(signal.SIGKILL)
            await host.exited()
        await until(lambda: not alive(server))
    with served(settings) as host:
        await _closed(settings, str(shown[0]["runId"]), shown)
        async with User(host) as user:
            replay = await rest(user.stream(KEYED))
        assert isinstance(replay[-1], RunFailed)
        assert replay[-1].error.code == "OPERATION_UNCERTAIN"
        await _stopped(host)


async def _closed(settings: Path, run_id: str, shown: list[Any]) -> None:
    """What was shown before the kill is still there, and the end came within the lease and 12 s."""
    deadline_s = time.monotonic() + LEASE_MS / 1_000 + 12
    events = await told(settings, "events", run_id)
    while types(events)[-1] != "run.failed":
        assert time.monotonic() < deadline_s, types(events)[-3:]
        await anyio.sleep(POLL_S)
        events = await told(settings, "events", run_id)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[: len(shown)] == shown
    assert (events[-1]["error"]["code"], events[-1]["error"]["outcome"]) == ("OPERATION_UNCERTAIN", "uncertain")
    log = await told(settings, "log", run_id)
    assert log[-1]["event"]["type"] == "run.failed"


async def _stopped(host: Host) -> None:
    """A host that is told to end lets its streams end by themselves, and is gone soon after."""
    document = asking_for("endless")
    ends: list[RunEvent] = []
    begun: list[int] = []
    async with User(host) as user, anyio.create_task_group() as tasks:

        async def watch() -> None:
            async with user.stream(document) as stream:
                await first(stream, 3)
                begun.append(1)
                ends.append((await rest(stream))[-1])

        for _ in range(5):
            tasks.start_soon(watch)
        await until(lambda: len(begun) == 5)
        host.signal(signal.SIGTERM)
        await until(lambda: len(ends) == 5, DEADLINE_S)
    assert await host.exited() < 2
    assert host.process.returncode == 0
    assert [end.error.code for end in ends if isinstance(end, RunCancelled)] == ["CANCELLED"] * 5
    assert all(heard.is_whole and heard.has_ended for heard in user.heard)
