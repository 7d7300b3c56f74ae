"""The private server: one for a folder, on the same data each time, and gone with whoever started it."""

import fcntl
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import Process

from eventstore import local
from eventstore.endpoint import Endpoint
from eventstore.local import LocalServerError, Patience, private_server
from eventstore.socket_link import bare_call, open_link

pytestmark = pytest.mark.anyio

HOST = """
import anyio, os, signal, sys
from pathlib import Path
from eventstore import local
from eventstore.endpoint import Endpoint
if sys.argv[2] == "unwatched":
    local._WATCHDOG = "exit 0"
async def dies_at_once(command, **more):
    await start(command, **more)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "dying":
    start, anyio.open_process = anyio.open_process, dies_at_once
async def main():
    async with local.private_server(Path(sys.argv[1])) as server:
        print(server.pid, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@asynccontextmanager
async def host(state_dir: Path, watched: str = "watched") -> AsyncGenerator[tuple[int, int]]:
    """Another process that owns the server; its id and the server's."""
    process = await anyio.open_process([sys.executable, "-c", HOST, str(state_dir), watched], stderr=None)
    assert process.stdout is not None
    try:
        with anyio.fail_after(20):
            yield process.pid, int(await process.stdout.receive())
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def gone(state_dir: Path) -> None:
    """Wait until no server has the folder's data."""
    with anyio.fail_after(10), (state_dir / "server.lock").open("rb") as lock:
        while not local._locked(lock):  # noqa: ASYNC110 - a file lock cannot be awaited
            await anyio.sleep(0.01)


def mode(path: Path) -> int:
    """The permissions of *path*."""
    return path.stat().st_mode & 0o777


def held(state_dir: Path) -> bool:
    """Whether a server has the folder's data."""
    with (state_dir / "server.lock").open("rb") as lock:
        return not local._locked(lock)


async def test_a_server_starts_again_on_the_same_data(state_dir: Path) -> None:
    for turn in (1, 2, 3):
        async with private_server(state_dir) as server, open_link(server.endpoint) as link:
            assert await link.call("INCR", "turns") == turn
            assert await link.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
            assert await link.call("CONFIG", "GET", "port") == [b"port", b"0"]
            assert server.version >= (7, 0)
        assert not held(state_dir)
    assert mode(state_dir) == 0o700
    assert b"eady to accept connections" in (state_dir / "redis.log").read_bytes()


@pytest.mark.parametrize("binary", local._candidates(), ids=lambda path: path.name)
async def test_every_binary_that_is_found_works(state_dir: Path, binary: Path) -> None:
    async with private_server(state_dir, binary) as server, bare_call(server.endpoint) as call:
        assert await call("PING") == b"PONG"
        assert server.binary == binary


async def test_a_second_owner_is_told_who_has_the_folder(state_dir: Path) -> None:
    async with private_server(state_dir) as server:
        with pytest.raises(LocalServerError, match=f"in use by process {os.getpid()}"):
            async with private_server(state_dir):
                pass
        async with bare_call(server.endpoint) as call:
            assert await call("PING") == b"PONG"


async def test_a_killed_owner_leaves_no_server_behind(state_dir: Path) -> None:
    async with host(state_dir) as (owner, _):
        assert held(state_dir)
        os.kill(owner, signal.SIGKILL)
        await gone(state_dir)


async def test_a_server_left_behind_is_stopped_before_the_next_one_starts(state_dir: Path) -> None:
    async with host(state_dir, "unwatched") as (owner, first):
        async with bare_call(Endpoint(path=str(state_dir / "redis.sock"))) as call:
            await call("SET", "a", "kept")
        os.kill(owner, signal.SIGKILL)
    assert held(state_dir)
    async with private_server(state_dir) as server, bare_call(server.endpoint) as call:
        assert server.pid != first
        assert await call("GET", "a") == b"kept"
        assert (await call("INFO", "server")).count(b"process_id:%d\r" % server.pid) == 1


async def test_an_owner_killed_before_it_has_a_watchdog_leaves_a_server_that_is_known_again(state_dir: Path) -> None:
    with pytest.raises(anyio.EndOfStream):
        async with host(state_dir, "dying"):
            pass
    with anyio.fail_after(10):
        while not (state_dir / "redis.sock").exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.01)
    assert held(state_dir)
    async with private_server(state_dir, patience=Patience(stop_s=2)) as server, bare_call(server.endpoint) as call:
        assert await call("PING") == b"PONG"


async def test_a_server_whose_watchdog_cannot_be_started_is_stopped(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = anyio.open_process, list[Process]()

    async def only_one(command: list[str], **more: Any) -> Process:
        if started:
            raise BlockingIOError("no more processes")
        started.append(await start(command, **more))
        return started[0]

    monkeypatch.setattr(anyio, "open_process", only_one)
    with pytest.raises(BlockingIOError):
        async with private_server(state_dir):
            pass
    try:
        assert started[0].returncode is not None
    finally:
        if started[0].returncode is None:
            started[0].kill()


async def test_an_owner_may_be_killed_and_started_again_at_once(state_dir: Path) -> None:
    async with host(state_dir) as (owner, _):
        os.kill(owner, signal.SIGKILL)
    async with private_server(state_dir) as server, bare_call(server.endpoint) as call:
        assert await call("PING") == b"PONG"


async def test_a_server_that_does_not_know_our_token_is_left_alone(state_dir: Path) -> None:
    async with host(state_dir, "unwatched") as (owner, pid):
        os.kill(owner, signal.SIGKILL)
    try:
        record = msgspec.json.decode((state_dir / "server.json").read_bytes())
        (state_dir / "server.json").write_bytes(msgspec.json.encode({**record, "token": "other"}))
        with pytest.raises(LocalServerError, match="does not answer as ours"):
            async with private_server(state_dir, patience=Patience(stop_s=0.1)):
                pass
        assert held(state_dir)
    finally:
        os.kill(pid, signal.SIGKILL)
        await gone(state_dir)


async def test_a_lock_that_nobody_explains_is_an_error_not_a_second_server(state_dir: Path) -> None:
    local._make_private(state_dir)
    with (state_dir / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalServerError, match=r"server\.lock"):
            async with private_server(state_dir, patience=Patience(stop_s=0.05)):
                pass
    async with private_server(state_dir):
        pass


async def test_a_folder_with_a_long_name_has_its_socket_elsewhere(state_dir: Path) -> None:
    deep = state_dir / ("x" * 120)
    for _ in range(2):
        async with private_server(deep) as server, bare_call(server.endpoint) as call:
            assert await call("PING") == b"PONG"
            assert len(os.fsencode(server.socket)) <= local.SOCKET_PATH_BYTES_MAX
            assert mode(server.socket.parent) == 0o700
    with pytest.raises(LocalServerError, match="TMPDIR"):
        local._socket_path(deep, deep, 0)


async def test_a_folder_that_cannot_be_used_is_named() -> None:
    with pytest.raises(LocalServerError, match="choose another state folder"):
        async with private_server(Path(__file__) / "state"):
            pass


@pytest.mark.parametrize("name", ["host.lock", "server.lock", "redis.log", "server.json.new"])
async def test_a_folder_that_takes_a_file_of_ours_no_more_is_named(state_dir: Path, name: str) -> None:
    (state_dir / name).mkdir(parents=True)
    with pytest.raises(LocalServerError, match="state cannot be used: Is a directory; choose another state folder"):
        async with private_server(state_dir):
            pass
    if (state_dir / "server.lock").is_file():
        await gone(state_dir)


async def test_a_folder_of_another_user_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(LocalServerError, match="another user"):
        async with private_server(state_dir):
            pass


async def test_a_binary_that_does_not_fit_is_named(state_dir: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.7 sha=0'\n")
    old.chmod(0o755)
    for binary in (old, tmp_path / "missing", tmp_path):
        with pytest.raises(LocalServerError, match="name another binary"):
            async with private_server(state_dir, binary):
                pass


async def test_data_is_read_by_a_server_of_the_kind_that_wrote_it(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alien = tmp_path / "redis-server"  # found first, and not able to read what the other wrote
    alien.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Other server v=7.0.15 sha=0' && exit\nexit 1\n")
    alien.chmod(0o755)
    known = local._candidates()[-1]
    monkeypatch.setattr(local, "_candidates", lambda: [known])
    async with private_server(state_dir) as server, bare_call(server.endpoint) as call:
        await call("SET", "kept", "1")
    monkeypatch.setattr(local, "_candidates", lambda: [alien])
    with pytest.raises(LocalServerError, match="ended with 1"):
        async with private_server(state_dir):
            pass
    assert "may not be able to read it" in caplog.text
    monkeypatch.setattr(local, "_candidates", lambda: [alien, known])
    async with private_server(state_dir) as server, bare_call(server.endpoint) as call:
        assert server.binary == known
        assert await call("GET", "kept") == b"1"


async def test_no_binary_at_all_is_said(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_candidates", list)
    with pytest.raises(LocalServerError, match="install"):
        async with private_server(state_dir):
            pass


async def test_a_server_that_does_not_start_is_quoted(state_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo v=7.2.0 || { echo no memory for this; exit 3; }\n')
    broken.chmod(0o755)
    with pytest.raises(LocalServerError, match=r"ended with 3.*no memory for this"):
        async with private_server(state_dir, broken):
            pass


async def test_a_server_that_never_answers_is_given_up(state_dir: Path, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text('#!/bin/sh\n[ "$1" = --version ] && echo v=7.2.0 && exit\ntrap "" TERM\nexec sleep 60\n')
    mute.chmod(0o755)
    with pytest.raises(LocalServerError, match="does not answer"):
        async with private_server(state_dir, mute, Patience(ready_s=0.2, stop_s=0.1)):
            pass
    assert not held(state_dir)


async def test_a_server_that_dies_is_mourned_and_its_end_is_no_error(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with private_server(state_dir) as server:
        os.kill(server.pid, signal.SIGKILL)
        with anyio.fail_after(5):
            while "ended with -9" not in caplog.text:  # noqa: ASYNC110 - another process's end
                await anyio.sleep(0.01)
    assert not held(state_dir)


async def test_a_log_that_has_grown_is_put_aside(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOG_BYTES_MAX", 10)
    for _ in range(2):
        async with private_server(state_dir):
            pass
    assert (state_dir / "redis.log.old").exists()


async def test_an_error_of_the_body_leaves_as_it_was_raised(state_dir: Path) -> None:
    with pytest.raises(KeyError):
        async with private_server(state_dir):
            raise KeyError("mine")
    assert not held(state_dir)
