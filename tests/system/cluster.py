"""Several host processes on one Redis, each of which may be killed, paused and started again while clients go on asking."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from eventstore.endpoint import Endpoint, Place
from runstream import tokens
from tests import clocks
from tests.host_rules import host_answer
from tests.http_client import HttpBroken, fetch
from tests.strict_values import Json, Object
from tests.system.processes import (
    DEADLINE_S,
    LEASE_MS,
    POLL_S,
    Host,
    headers_of,
    inline,
    redis_in,
    served,
    token_of,
    until,
)

ROOT = Path(__file__).parent.parent.parent
LOST = (OSError, TimeoutError, HttpBroken, asyncio.IncompleteReadError)
"""What a client meets where no answer comes: it may ask another host."""
PATIENCE_S = 4.0
"""How long a client waits for one answer before it asks another host."""


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
    """One host's answer to one request."""
    body = json.dumps(document).encode()
    headers = headers_of(subject, "application/json")
    answer = await fetch(host.target, "POST", path, headers, body, deadline_s=patience_s)
    return answer.status, host_answer(answer.status, answer.headers, answer.body)


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
