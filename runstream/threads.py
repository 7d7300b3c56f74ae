"""Threads for work that waits: bounded, left to themselves when nobody waits any more, and no hindrance to an exit."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

R = TypeVar("R")

THREADS_MAX = 32
"""Synchronous tools that run at once on an event loop; one that ignores its end keeps its place until it returns."""

_places: RunVar[anyio.CapacityLimiter] = RunVar("runstream.threads")


async def in_thread(work: Callable[[], R], name: str) -> R:
    """Do *work* in a thread and return its result; when cancelled, leave the thread to itself.

    It is a thread of its own and no anyio worker: an abandoned one keeps its place here until it ends, so that there
    are never more, and it does not keep the process from ending.
    """
    limiter, place = _limiter(), object()
    await limiter.acquire_on_behalf_of(place)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[list[R], Exception | None]] = loop.create_future()

    def settle(results: list[R], error: Exception | None) -> None:
        limiter.release_on_behalf_of(place)
        if not done.done():
            done.set_result((results, error))

    def run() -> None:
        results, error = _tried(work)
        with suppress(RuntimeError):  # the loop is gone, and whoever waited with it
            loop.call_soon_threadsafe(settle, results, error)

    try:
        threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"tool {name}", daemon=True).start()
    except RuntimeError:  # the system has no more of them
        limiter.release_on_behalf_of(place)
        raise
    results, error = await done
    if error is not None:
        raise error
    return results[0]


def _tried(work: Callable[[], R]) -> tuple[list[R], Exception | None]:
    try:
        return [work()], None
    except Exception as error:  # noqa: BLE001 - raised again where it is waited for
        return [], error
    except BaseException as error:  # noqa: BLE001 - a tool that exits must not end the host
        return [], RuntimeError(type(error).__qualname__)


def _limiter() -> anyio.CapacityLimiter:
    try:
        return _places.get()
    except LookupError:
        _places.set(limiter := anyio.CapacityLimiter(THREADS_MAX))
        return limiter
