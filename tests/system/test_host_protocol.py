"""The Agent Host protocol over real processes and a real Redis: two protocols at once, a node that is killed, the adapters."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from runstream_client import RunCancelled

import runstream
from actors import ids
from runstream import tokens
from runstream.sources import read_settings
from tests.host_client import Object, envelope, whole
from tests.http_client import fetch, opened
from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    POLL_S,
    Host,
    Reading,
    headers_of,
    inline,
    redis_in,
    served,
    token_of,
)
from tests.system.users import User, asking_for, first, rest

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

ROOT = Path(__file__).parent.parent.parent
ENDS = {"completed", "failed", "cancelled", "timed_out"}
SAY: Object = {"text": "done"}
SCRIPTS: Object = {
    "echo": {"turns": [{"echo": True}]},
    "reviewed": {"turns": [{"tool_calls": [{"name": "reviewed", "arguments": {"n": 2}}]}, SAY]},
    "pausing": {"turns": [{"wait_ms": 2_500, "text": "done"}]},
    "endless": {"turns": [{"repeat": {"text": "tick ", "times": 100_000}, "delay_ms": 20}]},
}
GRANTS: dict[str, Any] = {
    "providers": ("scripted",),
    "tools": ("reviewed",),
    "approve_tools": ("reviewed",),
    "jobs": ("submit", "read", "cancel"),
}


def settings(folder: Path, name: str, socket: Path) -> Path:
    """A settings file of one node."""
    path = folder / f"{name}.toml"
    members = {name: list(value) for name, value in GRANTS.items()}
    path.write_text(
        f"""
state_dir = {json.dumps(str(folder / name))}
profile = "standard"
partitions = 4
tools = "tests.system.recorded"
redis = {{ socket = {json.dumps(str(socket))} }}
listen = {{ port = 0 }}
node = {{ lease_ms = {LEASE_MS}, routine_ms = 250, drain_s = 0.5, repeat_model_calls = true }}
approvals = {{ interactive = true }}
jobs = {{ retention_ms = 86_400_000 }}
log = {{ level = "warning" }}

[host.principal]
subject = "ann"
{chr(10).join(f"{name} = {json.dumps(value)}" for name, value in members.items())}

[host.defaults]
model = "echo"

[[providers]]
id = "scripted"
kind = "scripted"

[providers.scripts]
{chr(10).join(f"{name} = {inline(script)}" for name, script in SCRIPTS.items())}

{tokens.toml(tokens.entry_for(token_of("ann"), subject="ann", **GRANTS))}
"""
    )
    return path


@pytest.fixture(scope="module")
def house() -> Iterator[tuple[Path, Path, Path]]:
    """A Redis, and the settings of two nodes on it, in a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="rs-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        with redis_in(folder) as redis:
            patch.setenv("RECORDED_CALLS", str(folder / "calls"))
            patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
            yield folder, settings(folder, "one", redis.socket), settings(folder, "two", redis.socket)


class Desk:
    """Where envelopes are posted at one node."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._keys = 0

    async def done(self, operation: str, body: Object) -> Object:
        """The result of an envelope, which must succeed."""
        self._keys += 1
        key = f"{self.host.process.pid}.{self._keys}"
        answer = await fetch(
            self.host.target,
            "POST",
            "/host/v1",
            headers_of("ann", "application/json"),
            json.dumps(envelope(operation, body, key=key)).encode(),
            deadline_s=DEADLINE_S,
        )
        told = whole(answer.body)
        assert (answer.status, told["error"]) == (200, None)
        result: Object = told["body"]
        return result

    async def create(self, name: str, model: str, **members: Any) -> None:
        given = {"prompt": name, "model": model, **members}
        told = await self.done("create_run", {"context": {"runId": name}, "input": given})
        assert told == {"runId": name, "revision": 2, "status": "running"}

    async def until(self, name: str, *statuses: str) -> Object:
        with anyio.fail_after(DEADLINE_S):
            while (view := await self.done("get_run", {"runId": name}))["status"] not in statuses:  # noqa: ASYNC110
                await anyio.sleep(POLL_S)
        return view

    async def decided(self, view: Object) -> Object:
        body = {
            "runId": view["runId"],
            "expectedRevision": view["revision"],
            "approvalId": view["approval"]["approvalId"],
            "resolution": "approved",
        }
        return await self.done("resolve_approval", body)

    async def resumed(self, name: str) -> Object:
        view = await self.done("get_run", {"runId": name})
        named = {"runId": name, "expectedRevision": view["revision"], "approvalId": view["approval"]["approvalId"]}
        return await self.done("resume_run", named)

    @asynccontextmanager
    async def following(self, name: str, after: int = 0) -> AsyncIterator[Reading]:
        """A run's events as they come."""
        headers = [*headers_of("ann", "text/event-stream"), ("Last-Event-ID", str(after))]
        target = f"/host/v1/runs/{quote(name, safe='')}/events"
        async with opened(self.host.target, "GET", target, headers, deadline_s=DEADLINE_S) as stream:
            assert stream.status == 200
            yield Reading(stream)


def types(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


async def test_one_run_is_driven_through_both_protocols_at_once_on_two_nodes(house: tuple[Path, Path, Path]) -> None:
    folder, first, second = house
    with served(first) as host_one, served(second) as host_two:
        one, two = Desk(host_one), Desk(host_two)
        await one.create("both", "reviewed", tools=["reviewed"])
        async with two.following("both") as reading, one.following("both") as beside:
            view = await two.until("both", "waiting_for_approval")
            actor = await _actor(first, "both")
            job = await _job(host_two, "read", {"id": actor})
            assert (job["state"], job["model"]) == ("running", "reviewed")
            assert types(await reading.until(3)) == ["run_created", "run_started", "approval_required"]
            await one.decided(view)
            assert types(await reading.until(4))[-1] == "approval_granted"
            await two.resumed("both")
            whole_stream = await reading.rest()
            assert await beside.rest() == whole_stream
        page = await two.done("list_events", {"runId": "both"})
        assert page["events"] == [json.loads(frame.split(b"data: ")[1]) for frame in whole_stream.split(b"\n\n")[:-1]]
        assert types(page["events"])[-2:] == ["tool_result_admitted", "run_completed"]
        events = await _job(host_one, "events", {"id": actor, "after": 0})
        assert types(events["events"])[-1] == "run.completed"
        assert not [kind for kind in types(events["events"]) if kind.startswith("approval.")]
        assert [line.split()[0] for line in calls(folder)] == [actor]
        async with two.following("both", after=4) as reading:
            assert (await reading.rest()) == whole_stream[whole_stream.index(b"id: 5\n") :]
        await _a_foreground_run_is_ended_through_the_host(host_one, two)


async def _a_foreground_run_is_ended_through_the_host(wire: Host, desk: Desk) -> None:
    async with User(wire) as user, user.stream(asking_for("endless")) as stream:
        (begun, *_) = await first(stream, 4)
        name = begun.run_id
        view = await desk.done("get_run", {"runId": name})
        assert (view["status"], view["revision"]) == ("running", 2)
        await desk.done("cancel_run", {"runId": name, "expectedRevision": 2, "reason": "enough"})
        assert isinstance((await rest(stream))[-1], RunCancelled)
    assert (await desk.done("get_run", {"runId": name}))["error"] == "enough"


async def test_a_run_whose_node_is_killed_is_carried_on_by_another(house: tuple[Path, Path, Path]) -> None:
    folder, first, second = house
    before = len(calls(folder))
    with served(first) as host_one:
        one = Desk(host_one)
        await one.create("waits", "reviewed", tools=["reviewed"])
        await one.create("thinks", "pausing")
        await one.until("waits", "waiting_for_approval")
        await _called(first, "thinks")
        with served(second) as host_two:
            host_one.signal(signal.SIGKILL)
            two = Desk(host_two)
            await two.decided(await two.until("waits", "waiting_for_approval"))
            await two.resumed("waits")
            assert (await two.until("waits", *ENDS))["status"] == "completed"
            assert len(calls(folder)) == before + 1
            view = await two.until("thinks", *ENDS)
            assert (view["status"], view["result"]["content"], view["revision"]) == ("completed", "done", 3)


async def _called(file: Path, name: str) -> None:
    """Wait until the run's model was called."""
    actor = await _actor(file, name)
    async with runstream.open(await read_settings(file, {}, ROOT), held=True) as host:
        with anyio.fail_after(DEADLINE_S):
            while "StepStarted" not in [type(one.event).__name__ for one in await host.log(actor)]:  # noqa: ASYNC110
                await anyio.sleep(POLL_S)


async def _actor(file: Path, name: str) -> str:
    async with runstream.open(await read_settings(file, {}, ROOT), held=True) as host:
        return ids.run_of_host(host.store.deployment.id_key, "ann", name)


async def _job(host: Host, operation: str, body: Object) -> Any:
    headers, data = headers_of("ann", "application/json"), json.dumps(body).encode()
    answer = await fetch(host.target, "POST", f"/v1/jobs/{operation}", headers, data, deadline_s=DEADLINE_S)
    assert answer.status == 200, answer.body
    return answer.json()


# The local adapters.


@asynccontextmanager
async def sidecar(file: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `runstream host` until the block ends."""
    words = [sys.executable, "-m", "runstream", "host", *options, "--config", str(file)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        with anyio.fail_after(DEADLINE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def line(operation: str, body: Object, request_id: str) -> bytes:
    return json.dumps(envelope(operation, body, request_id=request_id, key=f"side-{request_id}")).encode() + b"\n"


async def test_a_sidecar_talks_over_its_pipe_and_ends_with_it(house: tuple[Path, Path, Path]) -> None:
    _, first, _ = house
    async with sidecar(first, "--stdio") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given = {"context": {"runId": "piped"}, "input": {"prompt": "over a pipe"}}
        process.stdin.write(line("create_run", given, "a") + b"{}\n" + line("get_run", {"runId": "nope"}, "b"))
        told = [whole(await process.stdout.readline()) for _ in range(3)]
        by_id = {answer["requestId"]: answer for answer in told}
        assert by_id["a"]["body"]["status"] == "running"
        assert (by_id["b"]["error"]["code"], by_id[""]["error"]["code"]) == ("not_found", "invalid_request")
        view: Object = {"status": ""}
        while view["status"] not in ENDS:
            process.stdin.write(line("get_run", {"runId": "piped"}, "c"))
            view = whole(await process.stdout.readline())["body"]
        assert view["result"]["content"] == "over a pipe"
        process.stdin.write_eof()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0


async def test_a_socket_is_its_owners_alone_and_ends_cleanly_with_its_host(house: tuple[Path, Path, Path]) -> None:
    folder, first, _ = house
    path = folder / "h.sock"
    async with sidecar(first, "--socket", str(path)) as process:
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode().strip() == f"listening on unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        peers = [await asyncio.open_unix_connection(str(path)) for _ in range(3)]
        for number, (reader, writer) in enumerate(peers):
            writer.write(line("get_run", {"runId": "nope"}, f"s{number}"))
            assert whole(await reader.readline())["requestId"] == f"s{number}"
        peers[0][1].close()
        process.terminate()
        assert await peers[1][0].read() == b""
        assert await process.wait() == 0
        for _, writer in peers[1:]:
            writer.close()
    assert not path.exists()


async def test_a_sidecar_without_a_principal_says_what_to_set(house: tuple[Path, Path, Path]) -> None:
    file = house[0] / "nobody.toml"
    file.write_text(f'profile = "memory"\nstate_dir = {json.dumps(str(house[0] / "nobody"))}\n')
    async with sidecar(file, "--stdio") as process:
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()
        assert await process.wait() == 2
        assert "host.principal" in said
