"""Who is attached to runs that may be resumed: each is a lease of its own, put off while some node serves the client.

The lease is the due member `client` (DESIGN §7); when it lapses the run is cancelled, by whichever node finds it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from actors.errors import Problem
from eventstore.store import Store, Unavailable

log = logging.getLogger(__name__)

GONE = Problem("CANCELLED", "The client left.")


class Clients:
    """The clients that this node serves."""

    def __init__(self, store: Store, start_soon: Callable[..., object]) -> None:
        self._store = store
        self._start_soon = start_soon
        self._here: Counter[str] = Counter()
        self._grace_ms: dict[str, int] = {}
        self._put_off_ms: dict[str, int] = {}
        self._under_way: set[str] = set()
        """Whose lease is being put off, and that is not answered yet."""
        self.viewers = 0
        """Callers that follow a run here, those without a lease included."""

    @contextmanager
    def attached(self, run_id: str, grace_ms: int) -> Generator[None, None, None]:
        """Count a caller that follows *run_id*, and keep its lease."""
        self.viewers += 1
        try:
            with self._leased(run_id, grace_ms):
                yield
        finally:
            self.viewers -= 1

    @contextmanager
    def _leased(self, run_id: str, grace_ms: int) -> Generator[None, None, None]:
        """Keep the lease of the client of *run_id* alive; once it leaves, it has *grace_ms* to come back. 0: it has none."""
        if not grace_ms:
            yield
            return
        self._here[run_id] += 1
        self._grace_ms[run_id] = grace_ms
        self._start_soon(self._put_off, run_id, grace_ms)
        try:
            yield
        finally:
            self._here[run_id] -= 1
            self._start_soon(self._put_off, run_id, grace_ms)

    def has(self, run_id: str) -> bool:
        """Whether a client of *run_id* is attached here."""
        return self._here[run_id] > 0

    async def keep(self) -> None:
        """Put off every lease that is a third spent, without waiting for the answers: one partition's pause is only its own."""
        for run_id, grace_ms in list(self._grace_ms.items()):
            spent_ms = self._store.now_ms() - self._put_off_ms.get(run_id, 0)
            if self.has(run_id) and spent_ms >= grace_ms // 3 and run_id not in self._under_way:
                self._under_way.add(run_id)
                self._start_soon(self._keep, run_id, grace_ms)

    async def _keep(self, run_id: str, grace_ms: int) -> None:
        try:
            await self._put_off(run_id, grace_ms)
        finally:
            self._under_way.discard(run_id)

    async def _put_off(self, run_id: str, grace_ms: int) -> None:
        """Give the lease its whole time again; of a caller that has left by now nothing else is kept."""
        now_ms = self._store.now_ms()
        try:
            await self._store.settle(run_id, "client", now_ms + grace_ms)
            self._put_off_ms[run_id] = now_ms
        except Unavailable:
            log.info("the client of run %s is attached, which could not be stored", run_id)
        if not self.has(run_id):
            for known in (self._here, self._grace_ms, self._put_off_ms):
                known.pop(run_id, None)
