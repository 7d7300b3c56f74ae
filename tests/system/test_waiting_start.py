"""Hosts that are started before their Redis."""

import signal
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.system.processes import DEADLINE_S, redis_in, served, settings_text, until
from tests.system.users import User, asking_for

pytestmark = pytest.mark.anyio

WAITING = "waiting up to 30 s for Redis: "
AT_ONCE_S = 3.0


@pytest.fixture
def early(folder: Path) -> Path:
    """The settings of a host whose Redis is not there yet."""
    path = folder / f"{time.monotonic_ns()}.toml"
    path.write_text(settings_text("standard", folder / "r.sock", folder / "state"))
    return path


def said(settings: Path) -> str:
    errors = settings.with_suffix(".stderr")
    return errors.read_text() if errors.exists() else ""


async def test_a_host_serves_as_soon_as_its_redis_is_there(early: Path, folder: Path) -> None:
    serving = served(early)
    async with anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def serve() -> None:
            host = await anyio.to_thread.run_sync(serving.__enter__)
            try:
                async with User(host) as user:
                    assert (await user.stream(asking_for("echo")).result()).text
            finally:
                await anyio.to_thread.run_sync(serving.__exit__, None, None, None)
                done.set()

        tasks.start_soon(serve)
        await until(lambda: WAITING in said(early))
        with redis_in(folder):
            await done.wait()
    assert said(early).count("waiting") == 1


async def test_a_host_that_waits_ends_at_once_when_it_is_told_to(early: Path) -> None:
    words = [sys.executable, "-m", "runstream", "serve", "--config", str(early)]
    async with await anyio.open_process(words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = b""
        with anyio.fail_after(DEADLINE_S):
            while WAITING.encode() not in told:
                told += await process.stderr.receive()
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(AT_ONCE_S):
            told += b"".join([piece async for piece in process.stderr])
            assert [piece async for piece in process.stdout] == []
            assert await process.wait() == 0
    assert len(told.splitlines()) == 2, "the profile, and what is waited for"
