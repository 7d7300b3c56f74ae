"""One operation of a run while it lasts: what it reports on the way to the feed, its idle clock, and its end.

While one append is in flight the next reports gather; at least 20 ms lie between two appends of a run,
the first goes at once, and what is left when the operation ends goes with the fact.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import anyio
from msgspec import Struct

from actors.errors import Problem
from actors.plan import Hold

log = logging.getLogger(__name__)

O = TypeVar("O")  # noqa: E741 - an outcome
Phase: TypeAlias = Literal["model", "tool"]

DELTA_GAP_S = 0.020
"""At least this lies between two delta appends of a run (DESIGN §4)."""
PROGRESS_GAP_S = 1.0
"""At most one `run.progress` in this time per operation, the first at once (runs §8)."""
IDLE = Problem("IDLE_TIMEOUT", "No progress within the idle interval.", retryable=True)


class FeedItems(Struct, frozen=True):
    """How text and progress become feed items; handed in by the wiring."""

    deltas: Callable[[str, str, int], Iterable[bytes]]
    progress: Callable[[str, Literal["model", "tool", "context"], int], bytes]


class Activity(Generic[O]):
    """Carries out one operation; used once, on one event loop."""

    phase: ClassVar[Phase]

    def __init__(
        self,
        *,
        pour: Callable[[Hold, Sequence[bytes]], Awaitable[None]],
        hold: Hold,
        items: FeedItems,
        now_ms: Callable[[], int],
        idle_s: float,
        progress_s: float,
    ) -> None:
        self._pour = pour
        self._hold = hold
        self._items = items
        self._now_ms = now_ms
        self._idle_s = idle_s
        self._progress_s = progress_s
        self._shown_progress_s = progress_s - PROGRESS_GAP_S
        self._entries: list[str | None] = []
        """What was reported and the feed does not have: text, or None for progress."""
        self._news = anyio.Event()
        self._over = anyio.Event()
        self._outcome: O | None = None

    async def _carried_out(self, work: Coroutine[Any, Any, O], *, idle: O, lost: O) -> O:
        """Let *work* run and stream what it reports; it is not waited for once the outcome is known.

        The outcome is *idle* when nothing was reported for too long, and *lost* when *work* ended without one.
        What the feed does not have at the end is left in `hold.pending`, to go with the outcome's fact.
        """
        # A task of its own, not of a group: an operation that ignores its cancellation must not hold up the run.
        working = asyncio.create_task(work)
        working.add_done_callback(lambda done: self._ended(done, lost))
        try:
            outcome = await self._poured_until_over(idle)
        finally:
            self._end(lost)  # late reports find it over
            working.cancel()
        self._hold.pending.extend(self._taken())
        return outcome

    async def _poured_until_over(self, idle: O) -> O:
        poured_s = float("-inf")
        while True:
            await self._news_or_idle(idle)
            if self._outcome is None and anyio.current_time() < poured_s + DELTA_GAP_S:
                with anyio.move_on_at(poured_s + DELTA_GAP_S):
                    await self._over.wait()
            if self._outcome is not None:
                return self._outcome
            if items := self._taken():
                poured_s = anyio.current_time()
                await self._pour(self._hold, items)

    async def _news_or_idle(self, idle: O) -> None:
        """Wait for a report or the end; the end comes by itself when nothing was reported for too long."""
        while not self._entries and self._outcome is None:
            self._news = anyio.Event()
            if not self._idle_s:
                await self._news.wait()
                continue
            with anyio.move_on_at(self._progress_s + self._idle_s):
                await self._news.wait()
            if anyio.current_time() >= self._progress_s + self._idle_s:
                self._end(idle)

    def _report_progress(self) -> None:
        if self._outcome is not None:
            return
        self._progress_s = now_s = anyio.current_time()
        if now_s - self._shown_progress_s >= PROGRESS_GAP_S:
            self._shown_progress_s = now_s
            self._entries.append(None)
            self._news.set()

    def _end(self, outcome: O) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._news.set()
            self._over.set()

    def _ended(self, done: asyncio.Task[O], lost: O) -> None:
        if not done.cancelled() and done.exception() is None:
            self._end(done.result())
        elif self._outcome is None:
            log.error("a %s call of run %s ended without an outcome", self.phase, self._hold.actor)
            self._end(lost)

    def _taken(self) -> list[bytes]:
        """Return what was reported since last time as feed items, adjacent text merged."""
        entries, self._entries = self._entries, []
        run_id, now_ms = self._hold.actor, self._now_ms()
        items: list[bytes] = []
        for _, group in groupby(entries, lambda entry: entry is None):
            texts = [entry for entry in group if entry is not None]
            if texts:
                items.extend(self._items.deltas(run_id, "".join(texts), now_ms))
            else:
                items.append(self._items.progress(run_id, self.phase, now_ms))
        return items
