"""The owner of a run dies between the decision that is stored and the tool that starts; another node finds what is left."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

import runstream
from actors.events import ReviewSettled, RunCompleted, RunEvent, RunFailed, ToolStarted
from runstream.host import Host
from runstream.sources import read_settings
from tests.actors.reviewing import anybody, call, using
from tests.system.processes import DEADLINE_S, LEASE_MS, redis_in
from tests.system.waiting_run import CALL

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

ROOT = Path(__file__).parent.parent.parent
TOGETHER = 5
FEW, MANY = 5, 100
IN_FULL = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="100 processes: set SLOW_TESTS=1")


class House(NamedTuple):
    """What the processes share."""

    settings: Path
    calls: Path
    survivor: Host

    def ran(self, run_id: str) -> list[int]:
        """The processes in which the tool of a run was called."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [int(pid) for named, _, pid in map(str.split, lines) if named == run_id]


@asynccontextmanager
async def house(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """A Redis, and in this process the node that outlives all others."""
    calls, file = folder / "calls", folder / "settings.toml"
    monkeypatch.setenv("RECORDED_CALLS", str(calls))
    with redis_in(folder) as redis:
        file.write_text(
            f"""
profile = "standard"
partitions = 4
tools = "tests.system.recorded"
redis = {{ socket = "{redis.socket}" }}
approvals = {{ interactive = true }}
host = {{ enabled = false }}
node = {{ lease_ms = {LEASE_MS}, routine_ms = 250, drain_s = 0 }}
scheduling = {{ total = 1000, per_subject = 1000 }}
"""
        )
        settings = await read_settings(file, {}, folder)
        async with runstream.open(settings, {"fake": using(call("reviewed"))}) as survivor:
            yield House(file, calls, survivor)


@asynccontextmanager
async def victim(house: House, origin: str, when: str) -> AsyncIterator[Any]:
    words = [sys.executable, "-m", "tests.system.waiting_run", str(house.settings), origin, when]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    async with await anyio.open_process(
        words, stdin=subprocess.PIPE, stderr=None, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def killed(house: House, origin: str, when: str) -> tuple[str, list[RunEvent]]:
    """Start a run in a process that dies around the start of its tool; its id, and its log once it has ended."""
    with anyio.fail_after(DEADLINE_S):
        async with victim(house, origin, when) as process:
            run_id, approval_id = msgspec.json.decode(await process.stdout.receive())
            if origin == "job":  # whoever decides owns a run that waits for nobody's client
                await process.stdin.send(b"approve\n")
            else:
                await house.survivor.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
            assert await process.wait() == -signal.SIGKILL
        async for _ in house.survivor.follow(run_id):
            pass
        log = [logged.event for logged in await house.survivor.log(run_id)]
    (settled,) = [event for event in log if isinstance(event, ReviewSettled)]
    assert settled.outcome == "approved"
    assert not house.survivor.node.executing.get(run_id) or await _let_go(house, run_id)
    return run_id, log


async def _let_go(house: House, run_id: str) -> bool:
    await house.survivor.node.over(run_id)
    return run_id not in house.survivor.node.executing


async def _a_job_goes_on(house: House) -> None:
    run_id, log = await killed(house, "job", "before")
    assert isinstance(log[-1], RunCompleted)
    assert sum(isinstance(event, ToolStarted) for event in log) == 1
    assert house.ran(run_id) == [os.getpid()]


async def _a_foreground_run_is_interrupted(house: House) -> None:
    run_id, log = await killed(house, "foreground", "before")
    assert isinstance(log[-1], RunFailed)
    assert (log[-1].problem.code, log[-1].cause) == ("OPERATION_UNCERTAIN", "node")
    assert house.ran(run_id) == []


async def _a_started_call_is_uncertain(house: House) -> None:
    run_id, log = await killed(house, "job", "after")
    assert isinstance(log[-1], RunFailed)
    assert (log[-1].problem.code, log[-1].problem.outcome) == ("JOB_INTERRUPTED", "uncertain")
    assert house.ran(run_id) == []


async def _a_stopped_owner_finds_what_was_decided_meanwhile(house: House) -> None:
    with anyio.fail_after(DEADLINE_S):
        async with victim(house, "foreground", "never") as process:
            run_id, approval_id = msgspec.json.decode(await process.stdout.receive())
            process.send_signal(signal.SIGSTOP)
            await house.survivor.decisions.decide(anybody(), approval_id, run_id, CALL, "approve")
            process.send_signal(signal.SIGCONT)
            async for _ in house.survivor.follow(run_id):
                pass
            log = [logged.event for logged in await house.survivor.log(run_id)]
            assert isinstance(log[-1], RunCompleted)
            assert house.ran(run_id) == [process.pid]


CASES = {
    "stopped": _a_stopped_owner_finds_what_was_decided_meanwhile,
    "job": _a_job_goes_on,
    "foreground": _a_foreground_run_is_interrupted,
    "started": _a_started_call_is_uncertain,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("times", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, IN_FULL])])
async def test_no_tool_runs_twice_and_no_run_is_stuck_when_its_owner_dies_after_the_decision(
    case: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = anyio.CapacityLimiter(TOGETHER)

    async def once(lived_in: House) -> None:
        async with places:
            await CASES[case](lived_in)

    async with house(tmp_path, monkeypatch) as lived_in, anyio.create_task_group() as tasks:
        for _ in range(times):
            tasks.start_soon(once, lived_in)
