"""A TLS port in front of a server that speaks none itself, and one that lets nobody in."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread

from eventstore.endpoint import Endpoint


@asynccontextmanager
async def relay(server: Endpoint, tls: ssl.SSLContext) -> AsyncGenerator[int]:
    """Relay what comes to a port on loopback, over TLS, to *server* and back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # of either end
            from_server, to_server = await _opened(server)
            await asyncio.gather(_pumped(reader, to_server), _pumped(from_server, writer))
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "localhost", 0, ssl=tls)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def _opened(server: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
