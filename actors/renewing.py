"""Renewals: the leases of what a node executes are put off each routine, partition by partition."""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import anyio

from eventstore import clock
from eventstore.store import Unavailable

if TYPE_CHECKING:
    from actors.node import Execution, Node

log = logging.getLogger(__name__)

RENEWED_AT_ONCE_MAX = 64


class Renewals:
    """Keeps the leases of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._under_way: set[int] = set()
        """Which partitions have a renewal that is not answered yet."""
        self._behind: set[str] = set()
        """Which runs are being caught up with."""
        self._answered = anyio.Event()

    async def renew(self) -> None:
        """Ask for more time for all that is executed, without waiting for the answers."""
        mine: dict[int, dict[str, int]] = {}
        for actor, execution in self._node.executing.items():
            mine.setdefault(self._node.around.store.partition_of(actor), {})[actor] = execution.hold.epoch
        for partition in mine.keys() - self._under_way:  # one partition's pause is only its own
            self._under_way.add(partition)
            self._node.tasks.start_soon(self._renew_in, partition, mine[partition])

    async def answered(self) -> None:
        """Wait for the next answer."""
        await self._answered.wait()

    async def _renew_in(self, partition: int, epochs: Mapping[str, int]) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                for some in _chunks(epochs, RENEWED_AT_ONCE_MAX):
                    tasks.start_soon(self._renew_some, partition, some)
        except Exception:
            log.exception("to renew leases in partition %d failed and is tried again", partition)
        finally:
            self._under_way.discard(partition)
        answered, self._answered = self._answered, anyio.Event()
        answered.set()

    async def _renew_some(self, partition: int, epochs: Mapping[str, int]) -> None:
        sent = clock.mono_ms()
        try:
            answer = await self._node.around.store.renew(partition, epochs, self._node.settings.lease_ms)
        except Unavailable:
            return
        for actor, heads in answer.items():
            execution = self._node.executing.get(actor)
            if execution is None or execution.hold.epoch != epochs[actor]:
                continue
            if heads is not None:
                execution.holding = execution.holding.renewed(sent)
            behind = heads is None or heads.log > self._node.around.shell.version(actor)
            if behind and actor not in self._behind:  # what it is busy with must not cost the others their leases
                self._behind.add(actor)
                self._node.tasks.start_soon(self._catch_up, actor, execution if heads is None else None)

    async def _catch_up(self, actor: str, gone: "Execution | None") -> None:
        """Learn what others wrote to *actor*, and stop what is *gone*: it is not ours any more."""
        try:
            await self._node.caught_up(actor)
        finally:
            self._behind.discard(actor)
        if gone is not None:
            gone.scope.cancel()


def _chunks(epochs: Mapping[str, int], size: int) -> Iterator[dict[str, int]]:
    items = iter(epochs.items())
    while chunk := dict(islice(items, size)):
        yield chunk
