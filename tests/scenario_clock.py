"""The time of a scenario: the hosts' clock, which may be put forward, and ours, which may run out."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel

SLOWNESS = 500
"""How much slower the host's time goes than ours, where a scenario moves it: a millisecond is half a second."""


class Clock:
    """The hosts' time, for their store and their event loop alike; it nearly stands, and moves when it is told to."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._loop_s = asyncio.get_running_loop().time()
        self._store_ms = time.time_ns() // 1_000_000
        self._timers_ms = 0
        self._ahead_ms = 0

    def advance(self, ms: int, *, timers: bool) -> None:
        """Put the time forward; without *timers* only the store knows of it."""
        self._ahead_ms += ms
        self._timers_ms += ms if timers else 0

    def store_ms(self) -> int:
        return self._store_ms + self._ahead_ms + int(self._passed_s() * 1_000)

    def loop_s(self) -> float:
        return self._loop_s + self._timers_ms / 1_000 + self._passed_s()

    def _passed_s(self) -> float:
        return (time.monotonic() - self._began_s) / SLOWNESS


@contextmanager
def moved_by(clock: Clock | None) -> Iterator[None]:
    """Let the running event loop go by *clock*."""
    loop: Any = asyncio.get_running_loop()
    if clock is not None:
        loop.time = clock.loop_s
    try:
        yield
    finally:
        if clock is not None:
            del loop.time


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Give the body so much real time, however the loop's clock goes; raises TimeoutError."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        timer = threading.Timer(seconds, loop.call_soon_threadsafe, (scope.cancel,))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
    if scope.cancelled_caught:
        raise TimeoutError


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes; time may stand, so nothing is waited for in between but turns of the loop."""
    while not await holds():
        await anyio.lowlevel.checkpoint()
