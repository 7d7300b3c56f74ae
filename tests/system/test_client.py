"""The published client against two real hosts: one is killed in the middle, and the client goes on at the other."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from runstream_client import (
    Approval,
    AsyncClient,
    Client,
    Decision,
    RunCompleted,
    RunError,
    RunEvent,
    RunRequest,
    TextDelta,
    Tool,
)

from api.grants import ApplicationToolGrant
from runstream import tokens
from tests.system.processes import DEADLINE_S, Host, inline, redis_in, served, settings_text, token_of

pytestmark = pytest.mark.anyio

SCRIPTS: dict[str, Any] = {
    "talking": {"turns": [{"repeat": {"text": "tick ", "times": 200}, "delay_ms": 25}]},
    "asking": {
        "turns": [{"text": "May I?", "tool_calls": [{"name": "sign", "arguments": {"n": 1}}]}, {"text": "done"}]
    },
    "chatty": {"turns": [{"repeat": {"text": "x", "times": 300}}]},
}
README = Path(__file__).parents[2] / "clients" / "python" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"^ {2}(\S+)$", re.MULTILINE)
SAYS = ("Hello there", "stop", "up to", "three books about tides", "tides on the second shelf", "run.completed")
"""What each example of the client's README prints among other things."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Two(NamedTuple):
    """Two hosts on one Redis, of which the first is killed."""

    killed: Host
    left: Host

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{host.target.port}" for host in self]


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    folder = Path(tempfile.mkdtemp(prefix="rs-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        redis = stack.enter_context(redis_in(folder))
        paths = [folder / f"{name}.toml" for name in ("killed", "left")]
        for path in paths:
            path.write_text(_settings(redis.socket, folder / path.stem))
        with ThreadPoolExecutor() as pool:
            killed, left = pool.map(lambda path: stack.enter_context(served(path)), paths)
        yield Two(killed, left)


def _settings(socket: Path, state_dir: Path) -> str:
    names = ("sign",)
    grants: Any = {"providers": ("scripted",), "approve_tools": names, "jobs": ("submit", "read", "cancel")}
    grants["application_tools"] = tuple(map(ApplicationToolGrant, names))
    grants["sessions"] = ("create", "read", "continue", "delete")
    entry = tokens.toml(tokens.entry_for(token_of("app"), subject="app", **grants))
    scripts = "\n".join(f"{name} = {inline(script)}" for name, script in SCRIPTS.items())
    common = settings_text("standard", socket, state_dir)
    common = common.replace('kind = "scripted"\n', 'kind = "scripted"\naccount = "the-scripts"\n')
    common = common.replace("[providers.scripts]\n", f"[providers.scripts]\n{scripts}\n")
    asking = "approvals = { interactive = true }\napplication_tools = { enabled = true }\n"
    kept = "".join(f"{name} = {{ retention_ms = 86_400_000 }}\n" for name in ("jobs", "sessions"))
    return asking + kept + common + entry


def request(model: str, **more: Any) -> RunRequest:
    asked: Any = {"provider": "scripted", "model": model, "input": "hello", **more}
    found: RunRequest = asked
    return found


def text_of(events: list[RunEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_streams_whose_host_is_killed_go_on_at_the_other_without_a_gap_or_a_repeat(two: Two) -> None:
    talked: list[RunEvent] = []
    worked: list[RunEvent] = []
    failed: list[RunError] = []
    signed: list[Any] = []
    enough = anyio.Event()

    async def talk(client: AsyncClient) -> None:
        async with client.stream(request("talking", resume={"graceMs": 30_000})) as stream:
            async for event in stream:
                talked.append(event)
                if len(talked) == 6:
                    enough.set()
            try:
                await stream.result()
            except RunError as error:
                failed.append(error)

    async def kill_and_approve(approval: Approval) -> Decision:
        await enough.wait()
        two.killed.signal(signal.SIGKILL)
        await two.killed.exited()
        return "approve" if approval.call.arguments == {"n": 1} else "deny"

    async def sign(arguments: dict[str, Any]) -> dict[str, Any]:
        signed.append(arguments)
        return {"signed": True}

    tool = Tool(name="sign", description="Sign it.", input_schema=SCHEMA, function=sign)
    asking = request("asking", resume={"graceMs": 30_000}, approvals={"mode": "interactive", "idlePolicy": "pause"})
    with anyio.fail_after(DEADLINE_S):
        async with AsyncClient(two.urls, token=token_of("app")) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(talk, client)
            async with client.work(asking, tools=[tool], approve=kill_and_approve) as stream:
                worked += [event async for event in stream]

    for events in (talked, worked):
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert {event.run_id for event in events} == {events[0].run_id}
    assert isinstance(worked[-1], RunCompleted)
    assert signed == [{"n": 1}]
    # A model's call dies with its host, and nobody can say how it would have gone on: that is told, after what was said.
    assert [(error.code, error.outcome) for error in failed] == [("OPERATION_UNCERTAIN", "uncertain")]
    assert text_of(talked) == "tick " * text_of(talked).count("tick ")
    with Client(two.urls, token=token_of("app")) as again:
        for events in (talked, worked):
            kept = await anyio.to_thread.run_sync(list, again.follow(events[0].run_id))
            assert [event.raw for event in kept] == [event.raw for event in events]


async def test_the_events_of_a_job_come_to_their_end_whichever_hosts_are_left(two: Two) -> None:
    with anyio.fail_after(DEADLINE_S):
        async with AsyncClient(two.urls, token=token_of("app")) as client:
            job = await client.jobs.submit("chatty-1", request("chatty"))
            assert (await client.jobs.submit("chatty-1", request("chatty"))).id == job.id
            stream = client.job_events(job.id)
            events = [event async for event in stream]
            result = await stream.result()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert text_of(events) == result.text == "x" * 300


async def test_a_job_with_people_in_it_is_worked_for_by_its_id(two: Two) -> None:
    asking = request("asking", approvals={"mode": "interactive", "idlePolicy": "pause"}, tools=["sign"])
    asking["applicationTools"] = [{"name": "sign", "description": "Sign it.", "inputSchema": SCHEMA}]
    tool = Tool(name="sign", description="Sign it.", input_schema=SCHEMA, function=lambda arguments: arguments["n"])
    with anyio.fail_after(DEADLINE_S):
        async with AsyncClient(two.urls, token=token_of("app")) as client:
            job = await client.jobs.submit("people-1", asking, interactive=True)
            result = await client.follow(job.run_id, tools=[tool], approve=lambda _: "approve").result()
            assert (await client.approvals.pending()).approvals == ()
            assert (await client.job_events(job.id).result()).text == result.text == "done"


@pytest.mark.repo
async def test_the_examples_of_the_client_run_on_the_host_that_they_are_for(tmp_path: Path) -> None:
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    (settings,) = [text for kind, text in blocks if kind == "toml"]
    (command,) = [line for _, text in blocks for line in text.splitlines() if "runstream token new" in line]
    examples = [text for kind, text in blocks if kind == "python"]
    words = command.removeprefix("$ runstream ").removesuffix(" >> host.toml").split()
    token = await _said(["-m", "runstream", *words], os.environ)
    path = tmp_path / "host.toml"
    path.write_text(f"listen = {{ port = 0 }}\n{settings}{token.stdout.decode()}")
    with served(path) as host:
        found = {"RUNSTREAM_URL": f"http://127.0.0.1:{host.target.port}"}
        found["RUNSTREAM_TOKEN"] = TOKEN.findall(token.stderr.decode())[0]
        for code, says in zip(examples, SAYS, strict=True):
            done = await _said(["-W", "error", "-c", code], os.environ | found)
            assert says in done.stdout.decode()


async def _said(words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[bytes]":
    """What a Python says to *words*."""
    with anyio.fail_after(DEADLINE_S):
        done = await anyio.run_process([sys.executable, *words], env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done


async def test_a_host_keeps_what_the_conformance_of_hosts_asks_for(two: Two) -> None:
    words = [sys.executable, "-m", "runstream_client.conformance", "-q", "-k", "test_host", "--host", two.urls[1]]
    environment = os.environ | {"RUNSTREAM_TOKEN": token_of("app"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with anyio.fail_after(4 * DEADLINE_S):
        done = await anyio.run_process([*words, "--model", "echo"], env=environment, check=False)
    assert done.returncode == 0, done.stdout.decode()[-4_000:] + done.stderr.decode()[-1_000:]
