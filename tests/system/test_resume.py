"""A stream that begins on one host and goes on at another: the client leaves, the host is killed, the host is told to end."""

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from runstream_client import (
    ApprovalRequested,
    ExecutionRequested,
    RunCompleted,
    RunEvent,
    RunFailed,
    TextDelta,
)

from api.grants import ApplicationToolGrant
from eventstore.endpoint import Endpoint
from runstream import tokens
from tests.system.processes import (
    LEASE_MS,
    Host,
    gathered,
    inline,
    redis_in,
    served,
    settings_text,
    token_of,
)
from tests.system.proxy import proxy_to
from tests.system.users import User, asking_for, first, raw, rest

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

ROOT = Path(__file__).parent.parent.parent
STEP: dict[str, Any] = {"stream": ["step "], "delay_ms": 30, "tool_calls": [{"name": "note", "arguments": {"n": 1}}]}
SCRIPTS: dict[str, Any] = {
    "talking": {"turns": [{"repeat": {"text": "tick ", "times": 60}, "delay_ms": 25}]},
    "walking": {"turns": [*[STEP] * 40, {"text": "there"}]},
    "asking": {"turns": [{"tool_calls": [{"name": "sign", "arguments": {"n": 1}}]}, {"text": "done"}]},
}
RESUME: dict[str, Any] = {"resume": {"graceMs": 30_000}}
SIGNING: dict[str, Any] = {
    "tools": ["sign"],
    "applicationTools": [{"name": "sign", "description": "Sign it.", "inputSchema": {"type": "object"}}],
    "approvals": {"mode": "interactive", "idlePolicy": "pause"},
}


class Town(NamedTuple):
    """Three hosts on one Redis, of which one is left at the end, and what their tools left behind."""

    killed: Host
    told: Host
    left: Host
    calls: Path


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    folder = Path(tempfile.mkdtemp(prefix="rs-"))
    calls = folder / "calls"
    environment = os.environ | {
        "NOTED_CALLS": str(calls),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        redis = stack.enter_context(redis_in(folder))
        paths = [folder / f"{name}.toml" for name in ("killed", "told", "left")]
        for path in paths:
            path.write_text(_settings(redis.socket, folder / path.stem))
        with ThreadPoolExecutor() as pool:
            hosts = list(pool.map(lambda path: stack.enter_context(served(path, environment)), paths))
        killed, ended, left = hosts
        yield Town(killed, ended, left, calls)


def _settings(socket: Path, state_dir: Path) -> str:
    grants: Any = {"providers": ("scripted",), "tools": ("note",), "approve_tools": ("sign",)}
    grants["application_tools"] = (ApplicationToolGrant("sign"),)
    entry = tokens.toml(tokens.entry_for(token_of("walker"), subject="walker", **grants))
    scripts = "\n".join(f"{name} = {inline(script)}" for name, script in SCRIPTS.items())
    common = settings_text("standard", socket, state_dir, drain_s=5)
    asking = "approvals = { interactive = true }\napplication_tools = { enabled = true }\n"
    return (
        'tools = "tests.system.noted"\n'
        + asking
        + common.replace("[providers.scripts]\n", f"[providers.scripts]\n{scripts}\n")
        + entry
    )


def numbers(events: Sequence[RunEvent]) -> list[int]:
    return [event.sequence for event in events]


def noted(town: Town, run_id: str) -> list[str]:
    """The calls of a run, in their order."""
    lines = town.calls.read_text().splitlines() if town.calls.exists() else []
    return [line.split()[1] for line in lines if line.startswith(run_id)]


async def test_a_client_whose_connection_broke_goes_on_at_another_host(town: Town) -> None:
    told = Endpoint(host="127.0.0.1", port=town.told.target.port)
    async with proxy_to(told) as way, User(way, town.left, subject="walker") as user:
        async with user.stream(asking_for("talking", **RESUME)) as stream:
            events = await first(stream, 6)
            await way.cut()
            events += await rest(stream)
        assert [heard.port for heard in user.heard] == [way.port, town.left.target.port]
    assert numbers(events) == list(range(1, len(events) + 1))
    assert isinstance(events[-1], RunCompleted)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "tick " * 60
    async with User(town.told, subject="walker") as user:
        assert raw(await rest(user.follow(events[0].run_id))) == raw(events)


async def test_a_run_that_waits_for_a_person_outlives_the_kill_of_its_host(town: Town) -> None:
    async with (
        User(town.killed, subject="walker") as user,
        user.stream(asking_for("asking", **RESUME, **SIGNING)) as stream,
        user.stream(asking_for("talking", **RESUME)) as other,
    ):
        events, lost = await first(stream, 4), await first(other, 4)
        while not isinstance(events[-1], ApprovalRequested):
            events += await first(stream, 1)
        town.killed.signal(signal.SIGKILL)
        await town.killed.exited()
    async with User(town.left, subject="walker") as user:
        (waiting,) = (await user.approvals.pending()).approvals
        assert waiting.run_id == stream.run_id
        await user.approvals.decide(waiting, "approve")
        async with user.follow(waiting.run_id, stream.cursor) as following:
            while not isinstance(events[-1], ExecutionRequested):
                events += await first(following, 1)
            await user.tools.result(events[-1].execution, 1)
            events += await rest(following)
        assert numbers(events) == list(range(1, len(events) + 1))
        assert isinstance(events[-1], RunCompleted)
        with anyio.fail_after(LEASE_MS / 1_000 + 10):
            interrupted = lost + await rest(user.follow(str(other.run_id), other.cursor))
    assert numbers(interrupted) == list(range(1, len(interrupted) + 1))
    assert isinstance(interrupted[-1], RunFailed)
    assert interrupted[-1].error.code == "OPERATION_UNCERTAIN"


async def test_a_host_that_is_told_to_end_lets_another_carry_its_runs_on(town: Town) -> None:
    document = asking_for("walking", **RESUME, tools=["note"], maxSteps=64)
    async with User(town.told, town.left, subject="walker") as user, user.stream(document) as stream:
        events = await first(stream, 20)
        async with user.follow(str(stream.run_id), stream.cursor) as second:
            watched = await first(second, 2)
            town.told.signal(signal.SIGTERM)
            following, further = await gathered([partial(rest, stream), partial(rest, second)], 2)
    for heard in user.heard[:2]:
        assert re.search(rb"\n\nretry: [0-9]+\n\n$", heard.body)
        assert not heard.has_ended
    events += following
    assert numbers(events) == list(range(1, len(events) + 1))
    assert isinstance(events[-1], RunCompleted)
    assert raw(watched + further) == raw(events)[20:]
    assert await town.told.exited() < 6
    assert town.told.process.returncode == 0
    calls = noted(town, events[0].run_id)
    assert len(calls) == len(set(calls)) == 40
