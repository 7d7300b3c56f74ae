"""Feed items as an event stream: frames, heartbeats, and the loop that sends them (runs §2)."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic

import anyio
from litestar.types import Receive, Send

from actors.viewing import digest_of
from api import pipeline
from eventstore.store import Item
from projections import wire_feed

HEARTBEAT = b": heartbeat\n\n"
HEADERS: pipeline.Lines = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
)
_OF_THE_RUN = b'{"type":"run.'
"""How every terminal item begins; nearly all others do not, and are told apart at once."""
RETRY_MS = (500, 3_000)
"""After how long a client comes back whose host closes; random, so that not all come at once."""
_EARLY_S = 1.0
"""A tick that comes this little before its time still counts, or a gap would be twice as long."""


class Torn(Exception):
    """The stream ended without its terminal event: the socket is destroyed, for any other end would be a lie."""


@asynccontextmanager
async def while_wanted(receive: Receive, closing: anyio.Event) -> AsyncGenerator[None]:
    """Let the body go on until its end, the client's leaving, or the host's closing; the last two cut it short silently."""
    async with anyio.create_task_group() as tasks:

        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async def closed() -> None:
            await closing.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(left)
        tasks.start_soon(closed)
        yield
        tasks.cancel_scope.cancel()


def frames(items: Sequence[Item]) -> bytes:
    """The frames of *items*, for one send."""
    if len(items) == 1:
        return wire_feed.frame(*items[0])
    return b"".join([wire_feed.frame(number, data) for number, data in items])


def dated_frames(items: Sequence[Item]) -> bytes:
    """The frames of *items* as our own route tells them: each id says what was seen under it."""
    return b"".join([_dated(number, data) for number, data in items])


def _dated(number: int, data: bytes) -> bytes:
    line, _, rest = wire_feed.frame(number, data).partition(b"\n")
    return b"%b.%b\n%b" % (line, digest_of(data).encode(), rest)


class Stream:
    """One viewer's answer: its head goes out with the first items, its end with the terminal one."""

    def __init__(
        self,
        send: Send,
        headers: pipeline.Lines,
        heartbeat_s: float,
        *,
        frames: Callable[[Sequence[Item]], bytes] = frames,
    ) -> None:
        self._send = send
        self._frames = frames
        self._headers = headers
        self._quiet_s = heartbeat_s - _EARLY_S
        self._sent_at = 0.0
        self.begun = False
        self.ended = False

    async def follow(self, batches: AsyncIterator[Sequence[Item]]) -> None:
        """Send *batches* until the terminal item.

        A send that waits for the socket holds up the next batch, and with it any heartbeat.

        Raises:
            Torn: the batches ended without one.
        """
        async for items in batches:
            if self.ended:
                continue
            if items:
                last = items[-1].data
                self.ended = last.startswith(_OF_THE_RUN) and wire_feed.is_terminal(last)
                if not self.begun:
                    await self.begin()
                body = self._frames(items)
                await self._send({"type": "http.response.body", "body": body, "more_body": not self.ended})
                self._sent_at = monotonic()
            elif self.begun and monotonic() - self._sent_at >= self._quiet_s:
                await self._send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
                self._sent_at = monotonic()
        if not self.ended:
            raise Torn

    async def part(self, retry_ms: int) -> None:
        """End in the middle: the host closes, and the client may go on elsewhere after *retry_ms*."""
        if not self.begun:
            await self.begin()
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"retry: %d\n\n" % retry_ms, "more_body": False})

    async def begin(self) -> None:
        """Send the head."""
        self.begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*self._headers, *HEADERS]})
