"""A TLS port in front of a server that speaks none itself, and one that lets nobody in."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from eventstore.endpoint import Endpoint

_Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_HANDSHAKE = b"\x16"
"""How a client that wants TLS begins."""


@asynccontextmanager
async def relay(server: Endpoint, tls: ssl.SSLContext, *, plain: bool = False) -> AsyncGenerator[int]:
    """Relay what comes to a port on loopback, over TLS, to *server* and back; *plain* lets in who wants none as well."""

    async def serve(plug: socket.socket) -> None:
        with suppress(OSError):  # of either end
            secure = not plain or await _first(plug) == _HANDSHAKE
            async with (
                _ended(_accepted(plug, tls if secure else None)) as (reader, writer),
                _ended(_opened(server)) as (from_server, to_server),
            ):
                await asyncio.gather(_pumped(reader, to_server), _pumped(from_server, writer))
                await writer.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_each, listening, tasks, serve)
            yield listening.getsockname()[1]
            tasks.cancel_scope.cancel()


async def _each(
    listening: socket.socket, tasks: TaskGroup, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        plug, _ = await loop.sock_accept(listening)
        tasks.start_soon(serve, plug)


async def _first(plug: socket.socket) -> bytes:
    """What comes first, which stays to be read."""
    await anyio.wait_readable(plug)
    return plug.recv(1, socket.MSG_PEEK)


@asynccontextmanager
async def _ended(opening: Coroutine[Any, Any, _Ends]) -> AsyncGenerator[_Ends]:
    reader, writer = await opening
    try:
        yield reader, writer
    finally:
        if not writer.transport.is_closing():
            writer.transport.abort()


async def _accepted(plug: socket.socket, tls: ssl.SSLContext | None) -> _Ends:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, plug, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _opened(server: Endpoint) -> _Ends:
    if server.path:
        return await asyncio.open_unix_connection(server.path)
    return await asyncio.open_connection(server.host, server.port)


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        sink.write(data)
        await sink.drain()
    sink.close()


@asynccontextmanager
async def turned_away(tls: ssl.SSLContext) -> AsyncGenerator[int]:
    """Shake hands as a real server does, which tells a client what is wrong with its certificate before it leaves."""
    with socket.create_server(("localhost", 0)) as listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _turn_away, listening, tls)
            yield listening.getsockname()[1]
            listening.shutdown(socket.SHUT_RDWR)


def _turn_away(listening: socket.socket, tls: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            plug, _ = listening.accept()
            with tls.wrap_socket(plug, server_side=True, do_handshake_on_connect=False) as secure:
                with suppress(ssl.SSLError):
                    secure.do_handshake()
                while socket.socket.recv(secure, 65_536):  # in the clear, so that closing resets nothing
                    pass
