"""`runstream host`: the Agent Host protocol for programs on this machine, over standard input and output or a Unix socket.

Who speaks is whom the settings name in `[host.principal]`; the socket's file mode says who may connect.
"""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio

import runstream
from api.grants import Policy, Principal, host_access
from api.host import lines
from api.host.dispatcher import Service
from api.host.service import HostService
from api.parts import Faults
from api.server import NotServed, unix_socket
from runstream.host import Host
from runstream.reading import Fault
from runstream.settings import Settings, SettingsError
from runstream.threads import in_thread

CHUNK_BYTES = 65_536
CONNECTIONS_MAX = 64
Talk: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def serve_stdio(settings: Settings) -> None:
    """Answer the envelopes of standard input on standard output, until that ends or a signal comes.

    Raises:
        SettingsError: nobody is named who could speak.
    """
    async with _opened(settings) as (service, closing, faults):
        receive, send = await _stdin(), await _stdout()
        await lines.served(receive, send, service, closing=closing, noted=faults.note)


async def serve_socket(settings: Settings, path: Path, on_ready: Callable[[Path], None]) -> None:
    """Answer the envelopes of whoever connects to the Unix socket at *path*, until a signal comes.

    Raises:
        SettingsError: nobody is named who could speak.
        NotServed: the socket cannot be had.
    """
    async with _opened(settings) as (service, closing, faults):
        with _listener(path) as listener:
            talk = partial(_talked, service, closing, faults)
            await _listened(listener, settings.node.drain_s, lambda: on_ready(path), talk, closing)


async def _listened(
    listener: socket.socket, drain_s: float, ready: Callable[[], None], talk: Talk, closing: anyio.Event
) -> None:
    """Talk with whoever connects, with so many at once, until *closing* is set."""
    peers: dict[asyncio.Task[Any] | None, anyio.CancelScope] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            if len(peers) < CONNECTIONS_MAX:
                with anyio.CancelScope() as peers[task]:
                    await talk(reader, writer)
        finally:
            peers.pop(task, None)
            writer.transport.abort()  # what was sent has left; a peer that does not take the rest must not keep it

    async with await asyncio.start_unix_server(connected, sock=listener, limit=CHUNK_BYTES) as server:
        ready()
        await closing.wait()
        server.close()
        if peers:
            await asyncio.wait([task for task in peers if task is not None], timeout=drain_s)
        for scope in list(peers.values()):
            scope.cancel()


async def _talked(
    service: Service, closing: anyio.Event, faults: Faults, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer one peer's lines until it leaves."""

    async def receive() -> bytes:
        try:
            return await reader.read(CHUNK_BYTES)
        except ConnectionError:
            return b""

    try:
        await lines.served(receive, _sender(writer), service, closing=closing, noted=faults.note)
    except* (ConnectionError, lines.Stalled):
        pass  # the peer has left, or takes nothing
    except* Exception as errors:  # noqa: BLE001 - one peer's fault ends nobody else
        faults.note(errors, "socket")


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Service, anyio.Event, Faults]]:
    """Open a host for the principal of the settings; the event is set once a signal says to end."""
    policy = _policy(settings)
    async with runstream.open(settings) as host, anyio.create_task_group() as tasks:
        closing, faults = anyio.Event(), Faults()

        async def hear() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    closing.set()
                    return

        tasks.start_soon(hear)
        yield _service(host, policy), closing, faults
        tasks.cancel_scope.cancel()


def _policy(settings: Settings) -> Policy:
    faults = [
        Fault(f"host.{key}", why)
        for holds, key, why in (
            (settings.host.enabled, "enabled", "is false: set it to true to serve the Agent Host protocol"),
            (
                settings.host.principal is not None,
                "principal",
                "is missing: say whose runs these are, and what they may",
            ),
        )
        if not holds
    ]
    if faults or settings.host.principal is None:
        raise SettingsError(tuple(faults))
    return settings.host.principal


def _service(host: Host, policy: Policy) -> Service:
    assert host.agent_host is not None  # noqa: S101 - the settings enable it
    return HostService(host.agent_host, host_access(None, Principal("", policy)))


@contextmanager
def _listener(path: Path) -> Generator[socket.socket]:
    try:
        listener = unix_socket(path)
    except OSError as error:
        raise NotServed("ADDRESS_UNAVAILABLE", f"cannot listen on {path}: {error.strerror or error}") from None
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _stdin() -> lines.Receive:
    """How standard input is read: a pipe by the event loop, a plain file in a thread."""
    if _is_piped(sys.stdin.fileno()):
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return lambda: reader.read(CHUNK_BYTES)
    descriptor = sys.stdin.fileno()
    return lambda: in_thread(lambda: os.read(descriptor, CHUNK_BYTES), "standard input")


async def _stdout() -> lines.Send:
    """How standard output is written: a pipe by the event loop, anything else in a thread."""
    descriptor = sys.stdout.fileno()
    if not _is_piped(descriptor):

        async def write(data: bytes) -> None:
            await in_thread(lambda: _written(descriptor, data), "standard output")

        return write
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    return _sender(asyncio.StreamWriter(transport, protocol, None, loop))


def _sender(writer: asyncio.StreamWriter) -> lines.Send:
    """How *writer* sends: until nothing is left in its buffer, which would be lost at the end of the process."""
    writer.transport.set_write_buffer_limits(0)

    async def send(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return send


def _written(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _is_piped(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
