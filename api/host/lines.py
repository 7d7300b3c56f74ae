"""Envelopes as lines: one JSON envelope a line, each way, in any order; answers are matched by their `requestId`.

Every line has a bound, and so has what is answered at once: beyond it nothing more is read. Answers that are ready
together are sent together. A peer that takes nothing for a stated time is given up.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from api.host import dispatcher, encoding
from api.host.dispatcher import Noted, Service, nothing_noted
from api.host.failures import Failure

Receive: TypeAlias = Callable[[], Awaitable[bytes]]
"""The next bytes; none at the end."""
Send: TypeAlias = Callable[[bytes], Awaitable[None]]


class Bounds(Struct, frozen=True, kw_only=True):
    """What a peer may take."""

    line_bytes_max: int = 1_000_000
    at_once_max: int = 64
    stall_s: float = 60


class Stalled(Exception):
    """The peer takes nothing any more."""


TOO_LONG = Failure("invalid_request", "The line is longer than the host accepts.")
BOUNDS = Bounds()


async def served(
    receive: Receive,
    send: Send,
    service: Service,
    *,
    closing: anyio.Event,
    bounds: Bounds = BOUNDS,
    noted: Noted = nothing_noted,
) -> None:
    """Answer lines until there are no more, or *closing* is set; what was begun by then is answered.

    Raises:
        Stalled: the peer did not take an answer in time.
    """
    room = anyio.Semaphore(bounds.at_once_max, fast_acquire=True)
    outbox = _Outbox(send, bounds.stall_s, room.release)

    async def answered(line: bytes | None) -> None:
        if line is None:
            await outbox.put(encoding.failed("", "get_run", TOO_LONG).body)
        else:
            await outbox.put((await dispatcher.answered(line, service, noted)).body)

    async with anyio.create_task_group() as answering, anyio.create_task_group() as reading:

        async def closed() -> None:
            await closing.wait()
            reading.cancel_scope.cancel()

        reading.start_soon(closed)
        async for line in lines(receive, bounds.line_bytes_max):
            await room.acquire()
            answering.start_soon(answered, line)
        reading.cancel_scope.cancel()


class _Outbox:
    """Answers on their way to one peer."""

    def __init__(self, send: Send, stall_s: float, sent: Callable[[], None]) -> None:
        self._send = send
        self._stall_s = stall_s
        self._sent = sent
        """Told of each answer that was sent."""
        self._ready: list[bytes] = []
        self._sending = False

    async def put(self, answer: bytes) -> None:
        """Have *answer* sent: by whoever sends already, or else here, with what else is ready then.

        Raises:
            Stalled: the peer did not take it in time.
        """
        self._ready.append(answer)
        if self._sending:
            return
        self._sending = True
        await checkpoint()  # what came with this one's facts is ready by then
        while self._ready:
            batch, self._ready = self._ready, []
            with anyio.move_on_after(self._stall_s) as patience:
                await self._send(b"\n".join([*batch, b""]))
            if patience.cancelled_caught:
                raise Stalled
            for _ in batch:
                self._sent()
        self._sending = False


async def lines(receive: Receive, bytes_max: int) -> AsyncIterator[bytes | None]:
    """Yield the lines that come, without their ends; None for one that is longer than *bytes_max*, which is not kept.

    Blank ones are left out; the last one needs no end.
    """
    kept, too_long = bytearray(), False
    while chunk := await receive():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            kept += end
            if too_long or len(kept) > bytes_max:
                yield None
            elif line := bytes(kept).strip():
                yield line
            kept, too_long = bytearray(), False
        if too_long or len(kept) + len(rest) > bytes_max:
            kept, too_long = bytearray(), True
        else:
            kept += rest
    if too_long:
        yield None
    elif line := bytes(kept).strip():
        yield line
