"""A way between one node and its Redis that may be slow, lose replies, break, or end in one direction only.

Commands always arrive in their order, for TCP keeps it: replies are lost by losing them all from then on, and then the
connection, so that what was executed is not known to be.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

import anyio

from eventstore.endpoint import Endpoint

_PIECE_BYTES = 65_536
_BROKEN = (OSError, asyncio.IncompleteReadError)

Side = Literal["node", "redis"]


class Proxy:
    """Listens on a loopback port and carries each connection to a server."""

    def __init__(self, server: Endpoint) -> None:
        self.port = 0
        self.lost = 0
        """Bytes that were dropped."""
        self._server = server
        self.gone = False
        """Whether no new connection is carried."""
        self._delay_s = 0.0
        self._dropping = False
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        """Of each connection the way to the node, and the way to Redis."""
        self._ended: set[asyncio.StreamWriter] = set()
        """Ways that take nothing more."""

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def slow(self, by_s: float) -> None:
        """Let each piece take *by_s* longer from now on, either way."""
        self._delay_s = by_s

    async def delayed(self, by_s: float, for_s: float) -> None:
        """Let each piece take *by_s* longer, either way, for a while."""
        self.slow(by_s)
        try:
            await anyio.sleep(for_s)
        finally:
            self.slow(0.0)

    async def dropped(self, for_s: float) -> None:
        """Carry commands but no replies, and then break all connections."""
        self._dropping = True
        try:
            await anyio.sleep(for_s)
        finally:
            await self.cut()
            self._dropping = False

    async def leads_to(self, server: Endpoint) -> None:
        """Carry new connections to *server*, and break those there are."""
        self._server = server
        await self.cut()

    async def cut(self) -> None:
        """Break all connections at once."""
        for pair in list(self._open):
            for writer in pair:
                writer.transport.abort()

    async def half_closed(self, side: Side) -> None:
        """End what *side* hears, and leave the other direction open."""
        for node, redis in list(self._open):
            await self._end(node if side == "node" else redis)

    async def carry(self, reader: asyncio.StreamReader, node: asyncio.StreamWriter) -> None:
        """Carry one connection until both directions have ended."""
        try:
            if self.gone:
                raise ConnectionRefusedError
            answers, redis = await _connected(self._server)
        except OSError:
            node.transport.abort()
            return
        pair = (node, redis)
        self._open.add(pair)
        try:
            await asyncio.gather(self._pump(reader, redis, replies=False), self._pump(answers, node, replies=True))
        finally:
            self._open.discard(pair)
            self._ended.difference_update(pair)
            for writer in pair:
                writer.transport.abort()

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        if writer not in self._ended and not writer.is_closing():
            self._ended.add(writer)
            writer.write_eof()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        """Carry one direction to its end, which the other side then hears of."""
        try:
            while piece := await reader.read(_PIECE_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if (replies and self._dropping) or writer in self._ended:
                    self.lost += len(piece)
                    continue
                writer.write(piece)
                await writer.drain()
            await self._end(writer)
        except _BROKEN:
            writer.transport.abort()


async def _connected(server: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if server.path:
        return await asyncio.open_unix_connection(server.path)
    return await asyncio.open_connection(server.host, server.port)


@asynccontextmanager
async def proxy_to(server: Endpoint, port: int = 0) -> AsyncGenerator[Proxy]:
    """Run a proxy to *server*, on *port* or on one that is free."""
    proxy = Proxy(server)
    tasks: set[asyncio.Task[None]] = set()

    def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listening = await asyncio.start_server(begun, "127.0.0.1", port)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()
