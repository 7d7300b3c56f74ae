"""The audit sink outside, as a commit barrier: what it did not take was neither asked nor decided (approvals §9).

Without a sink nothing here does anything: then the record that is written in the append of its fact is all there is.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from actors import calls, companions, run
from actors.errors import Fenced
from actors.events import ReviewSettled, ReviewSettling
from actors.jsontext import strict_json
from actors.ports import AuditSink
from actors.shell import RETRY_MS_MAX, Shell, Told
from eventstore.store import HistoryLost, Unavailable

log = logging.getLogger(__name__)

E = TypeVar("E")


class Sink(Struct, frozen=True):
    """A sink, and how long it may take over one record."""

    keep: AuditSink
    patience_s: float = 5.0

    async def took(self, record: Mapping[str, Any], record_id: str) -> bool:
        """Hand *record* over under its id; False for whatever else happens than that it was kept."""
        answers: list[object] = []

        async def hand_over() -> None:
            try:
                # Of its own copy a sink may do what it likes.
                copy = cast(
                    "dict[str, Any]", strict_json(msgspec.json.encode({"id": record_id} | dict(record)).decode())
                )
                keep: Callable[[Mapping[str, Any]], Awaitable[object]] = self.keep
                answers.append(await keep(copy))
            except Exception as error:  # noqa: BLE001 - it fails closed, and its words may be private
                log.error("the audit sink failed on %s: %s", record_id, type(error).__qualname__)

        with anyio.move_on_after(self.patience_s):
            async with anyio.create_task_group() as tasks:  # a sink that cancels itself ends alone
                tasks.start_soon(hand_over)
        kept = len(answers) == 1 and answers[0] is None
        if not kept:
            log.error("the audit sink did not take %s", record_id)
        return kept


class Settlements:
    """Carries settlements through the sink, for the whole node."""

    def __init__(
        self,
        shell: Shell[run.State, run.Command, Any],
        sink: Sink | None,
        told: Callable[[str, run.Command], Awaitable[Told]],
        tasks: TaskGroup,
    ) -> None:
        self._shell = shell
        self._sink = sink
        self._told = told
        self._tasks = tasks
        self._working: dict[str, int] = {}
        """How many records of a run are on their way."""
        self._none = anyio.Event()

    def recorded(self, run_id: str, command: run.Command, before: run.State, told: Told) -> None:
        """Note what this node has just recorded: an expiry to be carried through, or an end that settled an approval."""
        if self._sink is None or not isinstance(before, run.Live) or before.open is None:
            return
        settled = _find(told.events, ReviewSettled)
        settling = _find(told.events, ReviewSettling)
        if settling is not None and not settling.by:
            self._tasks.start_soon(self._taken_up, run_id, told.state)
        elif settled is not None and not isinstance(command, calls.FinishSettling):
            self._tasks.start_soon(self._sent_afterwards, self._sink, run_id, before, settled)

    def take_up(self, run_id: str, state: run.State) -> None:
        """Carry a settlement on that was left, unless this node is at it."""
        if run_id not in self._working:
            self._tasks.start_soon(self._taken_up, run_id, state)

    async def finished(self, run_id: str, state: run.State) -> ReviewSettled | None:
        """Send the record of what is being settled in *state*, and settle it, or end the run where the sink did not take it.

        None says that nothing was decided.
        """
        settling = state.open.settling if isinstance(state, run.Live) and state.open is not None else None
        if not isinstance(state, run.Live) or settling is None:
            return None
        approval_id, settled = settling.approval_id, calls.settled(settling)
        with self._at_work(run_id):
            took = self._sink is not None and await self._sent(self._sink, run_id, state, settled)
            command = calls.FinishSettling(approval_id) if took else calls.AuditFailed(approval_id)
            told = await self._patiently(run_id, command)
        if told is None:
            return None
        if told.events:
            return _find(told.events, ReviewSettled)
        # Somebody else was faster: another node with the same record, or the run's end.
        is_settled = took or isinstance(told.state, run.Live)
        events = await self._shell.events(run_id) if is_settled else ()
        return next((one for one in events if isinstance(one, ReviewSettled) and one.approval_id == approval_id), None)

    async def over(self) -> None:
        """Wait until no record is on its way."""
        while self._working:
            await self._none.wait()

    async def _taken_up(self, run_id: str, state: run.State) -> None:
        try:
            await self.finished(run_id, state)
        except Exception:
            log.exception("a settlement of run %s waits for the sweep", run_id)

    async def _sent(self, sink: Sink, run_id: str, live: run.Live, settled: ReviewSettled) -> bool:
        record = companions.resolved_record(run_id, live, settled)
        return await sink.took(record, f"{settled.approval_id}.resolved")

    async def _sent_afterwards(self, sink: Sink, run_id: str, live: run.Live, settled: ReviewSettled) -> None:
        """Tell the sink of an end that could not wait for it."""
        with self._at_work(run_id):
            if not await self._sent(sink, run_id, live, settled):
                log.warning("run %s ended, and the audit sink does not know of its approval", run_id)

    async def _patiently(self, run_id: str, command: run.Command) -> Told | None:
        """Tell the run, through an outage too; None where it is beyond being told."""
        while True:
            try:
                return await self._told(run_id, command)
            except (Unavailable, Fenced) as pause:  # fenced: it changed hands meanwhile
                wait_ms = pause.retry_after_ms if isinstance(pause, Unavailable) else RETRY_MS_MAX
                await anyio.sleep(min(wait_ms, RETRY_MS_MAX) / 1_000)
            except HistoryLost:
                log.exception("the store lost the history of run %s", run_id)
                return None

    @contextmanager
    def _at_work(self, run_id: str) -> Generator[None]:
        self._working[run_id] = self._working.get(run_id, 0) + 1
        try:
            yield
        finally:
            self._working[run_id] -= 1
            if not self._working[run_id]:
                del self._working[run_id]
                none, self._none = self._none, anyio.Event()
                none.set()


def _find(events: Iterable[object], kind: type[E]) -> E | None:
    return next((event for event in events if isinstance(event, kind)), None)
