"""Runs that are written without pause while something happens to the servers below them."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from eventstore.store import Append, Conflict, Event, Outcome, Part, Recorded, Store, Unavailable

HOUR_MS = 3_600_000


def run_id(number: int) -> str:
    """A run in partition *number*."""
    return f"{number:08x}-0000-8000-8000-000000000001"


def begin(actor: str, node: str) -> Append:
    part = Part(actor=actor, log=0, events=(Event(b"accepted"),), owner=node, lease_ms=HOUR_MS)
    return Append(command=f"begin-{actor}", parts=(part,))


class Writer:
    """Writes one run, event by event and item by item, and keeps what was acknowledged."""

    def __init__(self, store: Store, actor: str, node: str) -> None:
        self._store = store
        self._node = node
        self._feed = 0
        self.actor = actor
        self.kept: list[str] = []
        """Command ids by version, as acknowledged."""
        self.failed: list[Exception | Outcome] = []
        self.longest_s = 0.0
        """The longest wait for one answer."""

    async def begin(self) -> None:
        first = begin(self.actor, self._node)
        assert isinstance(await self._store.append(first), Recorded)
        self.kept = [first.command]

    async def write(self) -> None:
        """Write for ever, an event and then an item; what is uncertain is sent again unchanged."""
        number = 0
        while True:
            number += 1
            event = Part(actor=self.actor, log=len(self.kept), epoch=1, events=(Event(b"fact"),))
            item = Part(actor=self.actor, feed=self._feed, epoch=1, items=(b"item",))
            append = Append(command=f"{self.actor}-{number}", parts=(event if number % 2 else item,))
            while not await self._settled(append):
                pass
            await anyio.sleep(0.001)

    async def _settled(self, append: Append) -> bool:
        sent_s = time.monotonic()
        try:
            outcome = await self._store.append(append)
        except Unavailable as error:
            self.failed.append(error)
            return False
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - sent_s)
        match outcome:
            case Recorded():
                self.kept += [append.command] if append.parts[0].events else []
                self._feed += len(append.parts[0].items)
            case Conflict(heads=[heads]):  # a failover lost something: go on from there
                self.kept, self._feed = self.kept[: heads.log], heads.feed
                self.failed.append(outcome)
            case _:
                self.failed.append(outcome)
        return True

    async def assert_kept(self) -> None:
        """Fail unless the log holds what was acknowledged, in its order."""
        kept = list(self.kept)
        entries = (await self._store.look(self.actor)).entries
        assert [entry.command for entry in entries[: len(kept)]] == kept


class Load:
    """Several writers at once."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self.writers = writers

    @property
    def failed(self) -> list[Exception | Outcome]:
        return [failure for writer in self.writers for failure in writer.failed]

    @property
    def longest_s(self) -> float:
        return max(writer.longest_s for writer in self.writers)

    async def goes_on(self, more: int = 5, within_s: float = 8.0) -> None:
        """Wait until every run got *more* events than it has now."""
        goals = [len(writer.kept) + more for writer in self.writers]
        with anyio.fail_after(within_s):
            while any(  # noqa: ASYNC110 - what grows is a plain list
                len(writer.kept) < goal for writer, goal in zip(self.writers, goals, strict=True)
            ):
                await anyio.sleep(0.005)

    async def assert_kept(self) -> None:
        for writer in self.writers:
            await writer.assert_kept()


@asynccontextmanager
async def under_load(store: Store, node: str, runs: int = 8) -> AsyncIterator[Load]:
    """Write *runs* runs, one in each partition in turn, until the body ends."""
    load = Load([Writer(store, run_id(number), node) for number in range(runs)])
    for writer in load.writers:
        await writer.begin()
    async with anyio.create_task_group() as tasks:
        for writer in load.writers:
            tasks.start_soon(writer.write)
        await load.goes_on()
        yield load
        tasks.cancel_scope.cancel()
