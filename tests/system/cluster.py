"""Several host processes on one Redis, each of which may be killed, paused and started again while clients go on asking."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from runstream_client import Execution, Refused, TicketCall

from eventstore.endpoint import Endpoint, Place
from runstream import tokens
from tests import clocks
from tests.http_client import HttpBroken
from tests.strict_values import Json, Object
from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    POLL_S,
    Host,
    inline,
    redis_in,
    served,
    token_of,
    until,
)
from tests.system.users import User

ROOT = Path(__file__).parent.parent.parent
LOST = (OSError, TimeoutError, HttpBroken, asyncio.IncompleteReadError)
"""What a client meets where no answer comes: it may ask another host. What `runstream_client` raises then is among it."""
PATIENCE_S = 4.0
"""How long a client waits for one answer before it asks another host."""


CALLS: Mapping[str, Callable[[User, Any], Awaitable[object]]] = {
    "/v1/runs": lambda user, sent: user.run(sent),
    "/v1/approvals/decisions": lambda user, sent: user.approvals.decide_by_id(
        sent["approvalId"], sent["runId"], TicketCall(**sent["call"]), sent["decision"]
    ),
    "/v1/tool-executions/results": lambda user, sent: user.tools.result(_execution(sent), sent["output"]),
    "/v1/jobs/submit": lambda user, sent: user.jobs.submit(
        sent["key"], sent["request"], interactive=sent.get("interactive", False)
    ),
    "/v1/jobs/read": lambda user, sent: user.jobs.read(sent["id"]),
    "/v1/jobs/cancel": lambda user, sent: user.jobs.cancel(sent["id"]),
    "/v1/jobs/events": lambda user, sent: user.jobs.page(sent["id"], sent["after"], sent.get("limit")),
    "/v1/sessions/create": lambda user, sent: user.sessions.create(sent),
    "/v1/sessions/read": lambda user, sent: user.sessions.read(sent["id"]),
    "/v1/sessions/delete": lambda user, sent: user.sessions.delete(sent["id"]),
}
"""How the client is asked for what the protocol has under each path."""


def _execution(sent: Any) -> Execution:
    call = TicketCall(id=sent["callId"], name="any", arguments={})
    return Execution(execution_id=sent["executionId"], run_id=sent["runId"], call=call)


class Cluster:
    """Hosts by their numbers; one that was killed is not there until it has started again."""

    def __init__(
        self, place: Place, calls: Path, settings: Sequence[Path], off_s: Mapping[int, int] | None = None
    ) -> None:
        self.place = place
        """Where Redis is."""
        self._off_s = off_s or {}
        """By how much the clock of a host is ahead."""
        self.calls = calls
        self._settings = settings
        self._stacks = [ExitStack() for _ in settings]
        self._hosts: dict[int, Host] = {}

    @property
    def up(self) -> list[int]:
        """The numbers of the hosts that run, paused or not."""
        return sorted(self._hosts)

    def host(self, number: int) -> Host:
        """The host of this number; raises `ConnectionRefusedError` while there is none."""
        if number not in self._hosts:
            raise ConnectionRefusedError(number)
        return self._hosts[number]

    async def start(self, number: int) -> None:
        environment = {"NOTED_CALLS": str(self.calls), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        clock = clocks.off_by(self._off_s.get(number, 0))
        serving = served(self._settings[number], {**os.environ, **environment, **clock})
        self._hosts[number] = await anyio.to_thread.run_sync(self._stacks[number].enter_context, serving)

    async def kill(self, number: int) -> None:
        """End a host without a word."""
        host = self._hosts.pop(number)
        host.signal(signal.SIGKILL)
        await host.exited()
        await anyio.to_thread.run_sync(self._stacks[number].close)

    async def pause(self, number: int, seconds: float) -> None:
        """Stop a host for so long that others take over what it has, and let it go on."""
        host, began = self._hosts[number], time.monotonic()
        host.signal(signal.SIGSTOP)
        try:
            await until(lambda: time.monotonic() > began + seconds)
        finally:
            host.signal(signal.SIGCONT)

    def close(self) -> None:
        """End all hosts."""
        for stack in self._stacks:
            stack.close()

    async def told(self, path: str, document: Object, subject: str, chance: random.Random, first: int = -1) -> Object:
        """The answer to a request that may be sent twice, from whichever host gives one; *first* is asked first."""
        status, body = await self.answered(path, document, subject, chance, first)
        assert status == 200, body
        assert isinstance(body, dict)
        return body

    async def answered(
        self, path: str, document: Object, subject: str, chance: random.Random, first: int = -1
    ) -> tuple[int, Json]:
        """The same, a refusal that asking again does not mend included."""
        asked = first
        with anyio.fail_after(DEADLINE_S):
            while True:
                number = asked if asked in self._hosts else chance.choice(self.up or [0])
                try:
                    status, body = await asking_once(self.host(number), path, document, subject)
                except LOST:
                    asked = -1
                else:
                    error: Any = body["error"] if status != 200 and isinstance(body, dict) else {"retryable": False}
                    if not error["retryable"]:
                        return status, body
                await anyio.sleep(POLL_S)


async def asking_once(
    host: Host, path: str, document: Object, subject: str, patience_s: float = PATIENCE_S
) -> tuple[int, Json]:
    """One host's answer to one request; the client believes it, and a host may give it."""
    async with User(host, subject=subject) as user:
        with anyio.fail_after(patience_s), suppress(Refused):
            await CALLS[path](user, document)
    (heard,) = user.heard
    if not heard.is_whole:
        raise ConnectionResetError(heard.body)
    return heard.status, json.loads(heard.body)


async def seeded() -> int:
    """Draw a seed, or take the one that is to be played again, and print it."""
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(1_000_000))  # noqa: S311 - no secret
    print(f"seed {seed}")  # noqa: T201 - so that a failure can be played again
    return seed


def drawn(seed: int | str) -> random.Random:
    """Chance that is the same for the same seed."""
    return random.Random(seed)  # noqa: S311 - no secret


@asynccontextmanager
async def cluster_in(
    folder: Path, count: int, scripts: Object, subjects: Sequence[str], sections: str
) -> AsyncIterator[Cluster]:
    """Run *count* hosts on a Redis of their own in *folder*; its path must be short enough for sockets."""
    with redis_in(folder) as redis:
        settings = [folder / f"n{number}.toml" for number in range(count)]
        for path in settings:
            path.write_text(_text(redis.socket, folder / path.stem, scripts, subjects, sections))
        cluster = Cluster(Endpoint(path=str(redis.socket)), folder / "calls", settings)
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(cluster.start, number)
            yield cluster
        finally:
            await anyio.to_thread.run_sync(cluster.close)


def _text(socket: Path, state_dir: Path, scripts: Object, subjects: Sequence[str], sections: str) -> str:
    grants: dict[str, Any] = {
        "providers": ("scripted", "mock"),
        "tools": ("note",),
        "jobs": ("submit", "read", "cancel"),
        "sessions": ("create", "read", "continue", "delete"),
    }
    entries = [tokens.toml(tokens.entry_for(token_of(one), subject=one, **grants)) for one in subjects]
    return f"""
state_dir = {json.dumps(str(state_dir))}
profile = "standard"
partitions = 4
tools = "tests.system.noted"
redis = {{ socket = {json.dumps(str(socket))} }}
listen = {{ port = 0 }}
node = {{ lease_ms = {LEASE_MS}, routine_ms = 500, drain_s = 0 }}
{sections}

[[providers]]
id = "mock"
kind = "mock"
account = "the-mock"

[[providers]]
id = "scripted"
kind = "scripted"
account = "the-scripts"

[providers.scripts]
{chr(10).join(f"{name} = {inline(script)}" for name, script in scripts.items())}

{chr(10).join(entries)}
"""
