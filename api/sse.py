"""Feed items as an event stream: frames, heartbeats, and the loop that sends them (runs §2)."""

from collections.abc import AsyncIterator, Sequence
from time import monotonic

from litestar.types import Send

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
_EARLY_S = 1.0
"""A tick that comes this little before its time still counts, or a gap would be twice as long."""


class Torn(Exception):
    """The stream ended without its terminal event: the socket is destroyed, for any other end would be a lie."""


def frames(items: Sequence[Item]) -> bytes:
    """The frames of *items*, for one send."""
    if len(items) == 1:
        return wire_feed.frame(*items[0])
    return b"".join([wire_feed.frame(number, data) for number, data in items])


class Stream:
    """One viewer's answer: its head goes out with the first items, its end with the terminal one."""

    def __init__(self, send: Send, headers: pipeline.Lines, heartbeat_s: float) -> None:
        self._send = send
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
                    await self._begin()
                await self._send({"type": "http.response.body", "body": frames(items), "more_body": not self.ended})
                self._sent_at = monotonic()
            elif self.begun and monotonic() - self._sent_at >= self._quiet_s:
                await self._send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
                self._sent_at = monotonic()
        if not self.ended:
            raise Torn

    async def _begin(self) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*self._headers, *HEADERS]})
