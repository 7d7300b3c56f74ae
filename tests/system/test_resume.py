"""A stream that begins on one host and goes on at another: the client leaves, the host is killed, the host is told to end."""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest

from api.grants import ApplicationToolGrant
from runstream import tokens
from tests.http_client import Stream, fetch, opened
from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    Host,
    Reading,
    asking,
    frames,
    headers_of,
    inline,
    redis_in,
    served,
    settings_text,
    streaming,
    token_of,
    types,
)

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


@asynccontextmanager
async def continued(host: Host, run_id: str, cursor: object) -> AsyncIterator[Stream]:
    headers = [*headers_of("walker", "text/event-stream"), ("Last-Event-ID", str(cursor))]
    async with opened(host.target, "GET", f"/v1/runs/{run_id}/events", headers, deadline_s=DEADLINE_S) as stream:
        assert stream.status == 200, await stream.body()
        yield stream


async def rest(host: Host, run_id: str, cursor: object) -> list[Any]:
    """What follows *cursor*, to the end."""
    async with continued(host, run_id, cursor) as stream:
        return frames(await Reading(stream).rest())


async def told(host: Host, path: str, document: dict[str, Any]) -> Any:
    body, headers = json.dumps(document).encode(), headers_of("walker", "application/json")
    answer = await fetch(host.target, "POST", path, headers, body, deadline_s=DEADLINE_S)
    assert answer.status == 200, answer.body
    return answer.json()


def numbers(events: list[Any]) -> list[int]:
    return [event["sequence"] for event in events]


def noted(town: Town, run_id: str) -> list[str]:
    """The calls of a run, in their order."""
    lines = town.calls.read_text().splitlines() if town.calls.exists() else []
    return [line.split()[1] for line in lines if line.startswith(run_id)]


async def test_a_client_whose_connection_broke_goes_on_at_another_host(town: Town) -> None:
    async with streaming(town.told, asking("talking", **RESUME), "walker") as stream:
        first: list[Any] = await Reading(stream).until(6)
        stream.connection.abort()
    following = await rest(town.left, first[0]["runId"], first[-1]["sequence"])
    events = first + following
    assert numbers(events) == list(range(1, len(events) + 1))
    assert types(events)[-1] == "run.completed"
    assert "".join(event["text"] for event in events if event["type"] == "text.delta") == "tick " * 60
    assert await rest(town.told, first[0]["runId"], "") == events


async def test_a_run_that_waits_for_a_person_outlives_the_kill_of_its_host(town: Town) -> None:
    document = asking("asking", **RESUME, **SIGNING)
    async with (
        streaming(town.killed, document, "walker") as stream,
        streaming(town.killed, asking("talking", **RESUME), "walker") as other,
    ):
        first: list[Any] = await Reading(stream).until(4)
        lost: list[Any] = await Reading(other).until(4)
        while types(first)[-1] != "approval.requested":
            first = await Reading(stream).until(len(first) + 1)
        town.killed.signal(signal.SIGKILL)
        await town.killed.exited()
    run_id = first[0]["runId"]
    (waiting,) = (await told(town.left, "/v1/approvals/list", {}))["approvals"]
    assert waiting["runId"] == run_id
    decision = {name: waiting[name] for name in ("approvalId", "runId", "call")} | {"decision": "approve"}
    await told(town.left, "/v1/approvals/decisions", decision)
    async with continued(town.left, run_id, first[-1]["sequence"]) as stream:
        reading = Reading(stream)
        ticket: Any = (await reading.until(2))[-1]["execution"]
        result = {"executionId": ticket["executionId"], "runId": run_id, "callId": ticket["call"]["id"], "output": 1}
        await told(town.left, "/v1/tool-executions/results", result)
        events = first + frames(await reading.rest())
    assert numbers(events) == list(range(1, len(events) + 1))
    assert types(events)[-1] == "run.completed"
    with anyio.fail_after(LEASE_MS / 1_000 + 10):
        interrupted = lost + await rest(town.left, lost[0]["runId"], lost[-1]["sequence"])
    assert numbers(interrupted) == list(range(1, len(interrupted) + 1))
    assert interrupted[-1]["error"]["code"] == "OPERATION_UNCERTAIN"


async def test_a_host_that_is_told_to_end_lets_another_carry_its_runs_on(town: Town) -> None:
    document = asking("walking", **RESUME, tools=["note"], maxSteps=64)
    async with streaming(town.told, document, "walker") as stream:
        reading = Reading(stream)
        first: list[Any] = await reading.until(20)
        run_id = first[0]["runId"]
        async with continued(town.told, run_id, first[-1]["sequence"]) as second:
            watching = Reading(second)
            await watching.until(2)
            town.told.signal(signal.SIGTERM)
            raws = [await reading.rest(), await watching.rest()]
    for raw in raws:
        assert re.search(rb"\n\nretry: [0-9]+\n\n$", raw)
        assert b"event: run.completed" not in raw
        assert b"event: run.cancelled" not in raw
    first = frames(raws[0])
    second_events: list[Any] = frames(raws[1])
    assert second_events == first[second_events[0]["sequence"] - 1 :][: len(second_events)]
    events = first + await rest(town.left, run_id, first[-1]["sequence"])
    assert numbers(events) == list(range(1, len(events) + 1))
    assert types(events)[-1] == "run.completed"
    assert await town.told.exited() < 6
    assert town.told.process.returncode == 0
    calls = noted(town, run_id)
    assert len(calls) == len(set(calls)) == 40
