"""The same seams over fakeredis, for the `memory` profile and the contract suite.

A fake server answers within the call, so nothing is ever half read; the turns of the loop around it let others in
between, as a socket would.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel
import fakeredis
from fakeredis.aioredis import FakeAsyncRedisConnection
from redis.exceptions import RedisError

from eventstore.endpoint import beside
from eventstore.link import Link, OnConnected, ReplyError, Script, Word

_VERSION = (7,)


def fake_server() -> fakeredis.FakeServer:
    """A server of its own; links made over the same one see the same data."""
    return fakeredis.FakeServer(version=_VERSION)


class FakeLink:
    """A `Link` to a fake server; made by `open_fake_link`."""

    def __init__(self, server: fakeredis.FakeServer) -> None:
        self._client: Any = fakeredis.FakeRedis(
            server=server, version=_VERSION, protocol=2, single_connection_client=True
        )
        self._client.response_callbacks.clear()

    async def call(self, *words: Word) -> Any:
        await anyio.lowlevel.checkpoint()
        reply = self._reply(words)
        await anyio.lowlevel.checkpoint()  # a caller may be cancelled after the command was carried out
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        await anyio.lowlevel.checkpoint()
        replies: list[Any] = []
        for words in commands:
            replies.append(self._reply(words))
            await anyio.lowlevel.checkpoint()
        return replies

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        return await self.call("EVAL", script.text, len(keys), *keys, *args)

    def primaries(self) -> Sequence[Link]:
        return (self,)

    def close(self) -> None:
        self._client.close()

    def _reply(self, words: Sequence[Word]) -> Any:
        if words[0] == "INFO":  # which fakeredis does not know; there is one history for as long as there is a server
            return b"# Replication\r\nrole:master\r\nmaster_replid:fake\r\n"
        try:
            return _raw(self._client.execute_command(*words))
        except RedisError as error:
            return ReplyError(_error_text(error))


class FakeMessages:
    """A `Messages` on a fake server; made by `open_fake_messages`."""

    def __init__(self, server: fakeredis.FakeServer, on_message: Callable[[str, bytes], None]) -> None:
        self._on_message = on_message
        self._connection: Any = FakeAsyncRedisConnection(
            server=server, version=_VERSION, protocol=2, socket_timeout=None
        )

    async def subscribe(self, channel: str) -> None:
        await self._connection.send_command("SUBSCRIBE", channel)  # carried out when this returns

    async def unsubscribe(self, channel: str) -> None:
        await self._connection.send_command("UNSUBSCRIBE", channel)

    async def connect(self) -> None:
        """Connect, so that later calls reach the server without waiting."""
        await self._connection.connect()

    async def read(self) -> None:
        """Take what the server sends, for ever; run beside everything that uses the messages."""
        while True:
            match await self._connection.read_response(disconnect_on_error=False):
                case [b"message", channel, data]:
                    self._on_message(channel.decode(), data)
                case _:
                    pass

    async def close(self) -> None:
        """Leave the server."""
        await self._connection.disconnect()


@asynccontextmanager
async def open_fake_link(
    server: fakeredis.FakeServer, *, on_connected: OnConnected | None = None
) -> AsyncGenerator[FakeLink]:
    """Connect to *server*; *on_connected* runs first, as it does on a socket."""
    link = FakeLink(server)
    try:
        if on_connected is not None:
            await on_connected(link.call)
        yield link
    finally:
        link.close()


@asynccontextmanager
async def open_fake_messages(
    server: fakeredis.FakeServer, on_message: Callable[[str, bytes], None]
) -> AsyncGenerator[FakeMessages]:
    """Subscribe on *server*; there is never a gap, because nothing is ever lost between two objects."""
    messages = FakeMessages(server, on_message)
    await messages.connect()
    try:
        async with beside(messages.read):
            yield messages
    finally:
        with anyio.CancelScope(shield=True):
            await messages.close()


def _raw(reply: Any) -> Any:
    """*reply* as a socket would bring it: errors inside it as ours."""
    match reply:
        case [*parts]:
            return [_raw(part) for part in parts]
        case RedisError():
            return ReplyError(_error_text(reply))
        case _:
            return reply


def _error_text(error: RedisError) -> str:
    """The error's text beginning with its code, which the client library took off the common ones."""
    text = str(error)
    return text if text.split(" ", 1)[0].isupper() else f"ERR {text}"
