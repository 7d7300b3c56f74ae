"""Usage records on their way out: each executed run's goes to the sink, again and again until it was kept (runs §11).

A run's due member `usage` stands for the record that is owed; only a record that was kept, or that nobody needs, settles it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio

from actors.events import RunEvent
from actors.telemetry import SILENT, Telemetry

log = logging.getLogger(__name__)

DELIVERY_S = 2.0
"""How long the sink may take over one record, now; a later sweep tries again."""
DELIVERIES_MAX = 256
"""Records on their way at once; what comes beyond is left to a later sweep, because each holds its run's log."""


class UsageSink(Protocol):
    """Keeps usage records outside."""

    async def __call__(self, record: Mapping[str, Any], /) -> None:
        """Keep *record* for good before returning; whatever is raised says that it was not kept.

        It may come again under the same `eventId`, from any node, and is the same then. After `DELIVERY_S` it is cancelled.
        """
        ...


class Accounts:
    """Delivers the records of a node."""

    def __init__(
        self,
        sink: UsageSink,
        *,
        record_of: Callable[[str, Sequence[RunEvent]], Mapping[str, Any] | None],
        read: Callable[[str], Awaitable[Sequence[RunEvent]]],
        settle: Callable[[str], Awaitable[None]],
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._sink = sink
        self._record_of = record_of
        self._read = read
        self._settle = settle
        self._telemetry = telemetry
        self._working: dict[str, anyio.Event] = {}

    async def account(self, run_id: str) -> None:
        """Deliver the record of the ended run *run_id* and settle it; whatever fails is left to a later sweep.

        Who asks while it is on its way waits for that.
        """
        if (over := self._working.get(run_id)) is not None:
            await over.wait()
        elif len(self._working) < DELIVERIES_MAX:
            over = self._working[run_id] = anyio.Event()
            try:
                await self._accounted(run_id)
            except Exception as error:  # noqa: BLE001 - the run ended as it ended, and what failed may hold its words
                log.error("the usage of run %s waits for a later sweep: %s", run_id, type(error).__qualname__)
            finally:
                del self._working[run_id]
                over.set()

    async def _accounted(self, run_id: str) -> None:
        record = self._record_of(run_id, await self._read(run_id))
        if record is None or await self._kept(run_id, record):
            await self._settle(run_id)

    async def _kept(self, run_id: str, record: Mapping[str, Any]) -> bool:
        """Hand *record* to the sink; False for whatever else happens than that it was kept in time."""
        kept: list[bool] = []

        async def hand_over() -> None:
            try:
                await self._sink(record)
                kept.append(True)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a sink must not end the host
                log.error("the usage sink failed on run %s: %s", run_id, type(error).__qualname__)

        with anyio.move_on_after(DELIVERY_S) as patience:
            async with anyio.create_task_group() as tasks:  # a sink that cancels itself ends alone
                tasks.start_soon(hand_over)
        if patience.cancelled_caught:
            log.error("the usage sink was too slow on run %s", run_id)
        if not kept:
            self._telemetry.usage_not_kept()
        return bool(kept)
