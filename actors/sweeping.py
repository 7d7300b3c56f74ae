"""Sweeps: what is due in each partition is found and done, and what a node saw of a partition says whom it may judge."""

import logging
from math import inf
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from actors.chores import Chores
from eventstore import clock
from eventstore.leases import Watch
from eventstore.store import Heads, Unavailable

if TYPE_CHECKING:
    from actors.node import Node

log = logging.getLogger(__name__)

SWEPT_S_MIN = 0.1
"""A partition is swept no more often, whatever is due there."""
SWEPT_APART = 8
"""Into how many parts of a routine the sweeps are spread, for all at once would hold up what else is sent."""


class Sweeps:
    """Sweeps all partitions, for one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._store = node.around.store
        self._lease_ms = node.settings.lease_ms
        self._chores = Chores(node)
        self._watches: dict[int, Watch] = {}

    def keep(self, tasks: TaskGroup) -> None:
        """Sweep until *tasks* are cancelled."""
        for partition in range(self._store.deployment.partitions):
            tasks.start_soon(self._keep, partition)

    async def all(self) -> None:
        """Do what is due everywhere, now."""
        async with anyio.create_task_group() as tasks:
            for partition in range(self._store.deployment.partitions):
                tasks.start_soon(self._sweep, partition)

    def may_judge(self, actor: str, heads: Heads) -> bool:
        """Tell whether the lease in *heads* may be treated as lapsed by this node (DESIGN §5)."""
        own_ms, now_ms = clock.mono_ms(), self._store.now_ms()
        watch = self._watches.get(self._store.partition_of(actor), Watch())
        unbroken = watch.continues(own_ms, now_ms, self._store.history())
        return heads.lease_ms <= now_ms and unbroken and watch.may_judge(self._lease_ms, own_ms)

    def touched_ms(self) -> list[int | None]:
        """When each partition answered last, by this node's clock: None if not yet, 0 if its last call failed."""
        watches = map(self._watches.get, range(self._store.deployment.partitions))
        return [None if one is None else 0 if one.row is None else one.row.last_ms for one in watches]

    async def _keep(self, partition: int) -> None:
        """Sweep a partition each routine, and in between when something there is due."""
        routine_s = self._node.settings.routine_ms / 1_000
        longest_s = routine_s * (partition % SWEPT_APART + 1) / SWEPT_APART
        while True:
            began, due = anyio.current_time(), inf
            try:
                due = await self._sweep(partition)
            except Exception:
                log.exception("to sweep partition %d failed and is tried again", partition)
            await anyio.sleep_until(min(began + longest_s, max(began + SWEPT_S_MIN, due)))
            longest_s = routine_s

    async def _sweep(self, partition: int) -> float:
        """Do what is due there; when the next is due by the loop's clock, never where nothing is."""
        store, watch = self._store, self._watches.get(partition, Watch())
        try:
            judging = self._node.claims and watch.may_judge(self._lease_ms, clock.mono_ms())
            swept = await store.sweep(partition, judging=judging)
        except Unavailable:
            if watch.row is not None:
                self._node.around.telemetry.store_paused()
            self._watches[partition] = watch.failed()
            return inf
        due = anyio.current_time() + (swept.next_ms - swept.now_ms) / 1_000 if swept.next_ms else inf
        watch = self._watches[partition] = watch.answered(clock.mono_ms(), swept.now_ms, store.history())
        judging = watch.may_judge(self._lease_ms, clock.mono_ms())
        for one in swept.ripe:
            await self._chores.do(one, judging=judging)
        return due
