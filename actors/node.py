"""A node: executes what it holds, keeps its leases, takes over what nobody holds, and drains.

Everything here is a second's routine or the consequence of a hint; what is true is in the logs.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import islice
from math import inf
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from actors import companions, errors, run, upkeep
from actors.accounting import Accounts
from actors.audit import Settlements
from actors.chores import Chores
from actors.clients import Clients
from actors.dispatch import POOL, Worker
from actors.errors import Problem
from actors.events import Origin
from actors.executor import Executor, Slot, Surroundings
from actors.plan import Claiming, Hold
from actors.shell import RETRY_MS_MAX, Moved, Told
from actors.telemetry import ABOUT, About, Levels, Outcome, labels_of, tell_change
from eventstore.leases import Holding, Watch
from eventstore.store import Caps, Claim, Heads, HistoryLost, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

RENEWED_AT_ONCE_MAX = 64
SWEPT_S_MIN = 0.1
"""A partition is swept no more often, whatever is due there."""
SWEPT_APART = 8
"""Into how many parts of a routine the sweeps are spread, for all at once would hold up what else is sent."""
CLIENTS_S = 0.25
"""How often it is looked whose attached clients must be made known again; the shortest grace is a second."""
SHUTTING_DOWN = Problem("CANCELLED", "The host is shutting down.")
_HISTORY_LOST = Problem("HISTORY_LOST", "The store lost what was recorded of this run.", outcome="uncertain")
_INTERNAL = Problem("INTERNAL_ERROR", "The run failed unexpectedly.")


class NodeSettings(Struct, frozen=True, kw_only=True):
    """How a node works; times by its own clock."""

    lease_ms: int = 10_000
    routine_ms: int = 1_000
    """How often leases are renewed and due sets are swept."""
    permit_begin_ms: int = 10_000
    """A granted slot lapses unless its run is stored within this time."""
    reassured_s: float = 5.0
    """How often a waiter asks again, and a running permit is said to be in use."""
    drain_s: float = 10.0
    """How long plain foreground runs may go on after SIGTERM."""
    repeats_model_calls: bool = False
    """Whether a model call that a lost node had in flight is made again, if nothing of it was shown; else the run ends."""
    janitor_s: float = 3_600.0
    """How often outboxes are pruned."""
    audit_kept_ms: int = 365 * 24 * 3_600 * 1_000
    """How long the audit of approvals is kept."""

    def store_by(self, begin_by_ms: int) -> int:
        """By when a run must be stored whose slot lapses at *begin_by_ms*; 0 is no bound.

        In the rest of the time the ledger is told that the slot is in use, or it would be given to another too.
        """
        return begin_by_ms and begin_by_ms - self.permit_begin_ms // 3


class Execution:
    """One run in this node's hands."""

    __slots__ = (
        "claim",
        "executor",
        "from_line",
        "hold",
        "holding",
        "in_use",
        "is_job",
        "outcome",
        "over",
        "scope",
        "slot",
    )

    def __init__(
        self, hold: Hold, holding: Holding, claim: Claim | None, slot: Slot, origin: Origin = "foreground"
    ) -> None:
        self.hold = hold
        self.holding = holding
        self.claim = claim
        self.is_job = origin == "job"
        self.from_line = origin != "foreground"
        """Whether it was taken up from the line of those that any node may begin."""
        self.slot = slot
        self.in_use = False
        """Whether the ledger was told that the slot does not lapse."""
        self.over = anyio.Event()
        """Nothing is executed any more, and the slot was given back."""
        self.scope = anyio.CancelScope()
        self.executor: Executor | None = None
        self.outcome: Outcome = "interrupted"
        """How the run ended, as far as this node saw."""


class Node:
    """What one process does for the runs of its deployment."""

    def __init__(
        self,
        around: Surroundings,
        settings: NodeSettings,
        caps: Callable[[str, str], Caps],
        tasks: TaskGroup,
    ) -> None:
        self.around = around
        self.settings = settings
        self.caps = caps
        """Bounds of the slots' pool for a subject and an account."""
        self.open = anyio.Event()
        """Set once this node may take up what nobody owns: a listener must be bound first (jobs §4)."""
        self.closing = anyio.Event()
        self.executing: dict[str, Execution] = {}
        self.tasks = tasks
        self.left = False
        """Whether nothing can be begun here any more: what ran was ended by the drain."""
        self.worker: Worker | None = None
        """Takes queued jobs up, where this host has jobs."""
        self.accounts: Accounts | None = None
        """Delivers usage records, where this host has somewhere to put them."""
        self._watches: dict[int, Watch] = {}
        self._renewed = anyio.Event()
        self._news = anyio.Event()
        self._rung: set[str] = set()
        self._granted: set[str] = set()
        self._waiters: dict[str, Execution] = {}
        self._idle = anyio.Event()
        self.settlements = Settlements(around.shell, around.audit, self.told, tasks)
        self.clients = Clients(around.store, self.soon)
        self._chores = Chores(self)
        self._renewing: set[int] = set()
        """Which partitions have a renewal that is not answered yet."""
        around.shell.changed = self._changed
        around.shell.recorded = self._recorded
        around.telemetry.watch(self.levels)
        around.store.listen(self)

    # What the store tells.

    def rung(self, actor: str) -> None:
        """Note that somebody else wrote to an actor of ours."""
        self._rung.add(actor)
        self._news.set()

    def work(self, partition: int) -> None:
        """Note that something is due; the sweep finds it."""

    def granted(self, holder: str) -> None:
        """Note that a waiting run of ours has its slot."""
        self._granted.add(holder)
        self._news.set()

    def lost(self, actor: str) -> None:
        """Note that the store came back without the end of a run of ours."""
        self.around.shell.discard(actor)
        self.end_soon(actor, run.Fail(_HISTORY_LOST, "history"))

    def room(self) -> None:
        """Note that a queued job may find room."""
        if self.worker is not None:
            self.worker.room()

    # What the host asks.

    def execute(self, run_id: str, told: Told, sent_mono_ms: int, claim: Claim | None) -> None:
        """Carry out a run that *told* makes ours from now on; it begins at once and ends by itself.

        Where the answer came so late that the run is another's by now, or in our hands already, nothing is done.
        """
        state, hold, before = told.state, Hold.of(run_id, told.heads), self.executing.get(run_id)
        known = before is not None and before.hold.epoch == hold.epoch
        if told.heads.owner != self.around.store.node or known or not isinstance(state, run.Live):
            return
        slot = Slot(started=state.started)
        lease = Holding(sent_mono_ms, self.settings.lease_ms)
        execution = Execution(hold, lease, claim, slot, state.accepted.origin)
        if claim is not None and not slot.started:
            self._waiters[claim.holder] = execution
        self.executing[hold.actor] = execution
        self.tasks.start_soon(self._executed, state, execution)

    async def told(
        self, run_id: str, command: run.Command, not_after_ms: int = 0, command_id: str = "", *, fresh: bool = False
    ) -> Told:
        """Tell the run; where it waited and belonged to nobody, it is this node's from here, in the same append.

        *command_id* is that of a command which may come again from another node; else a new one is made.
        *fresh* says that the run was looked at just now.
        """
        sent, command_id = mono_ms(), command_id or self.around.fresh_id()
        claim = Claiming(self.around.store.node, self.settings.lease_ms, if_parked=True)
        named: dict[str, Any] = {"command_id": command_id, "not_after_ms": not_after_ms}
        try:
            told = await self.around.shell.tell(run_id, command, claim=claim, fresh=fresh, **named)
        except errors.Fenced:  # it waits, and yet somebody took it over just now: then that node carries it on
            told = await self.around.shell.tell(run_id, command, **named)
        if told.events:
            self.execute(run_id, told, sent, self.claim_of(told.state))
        return told

    async def over(self, actor: str) -> None:
        """Wait until *actor* is not executed here any more, so that whoever saw its end finds its slot free."""
        execution = self.executing.get(actor)
        if execution is not None:
            with anyio.move_on_after(1):
                await execution.over.wait()

    def end_soon(self, actor: str, command: run.Cancel | run.Fail) -> None:
        """End a run whatever becomes of the asker: the append belongs to the node."""
        self.soon(self._end, actor, command)

    def soon(self, work: Callable[..., Any], *args: Any) -> None:
        """Do *work* beside all else; a node that was left does nothing any more, for what ran was ended by its drain."""
        if not self.left:
            self.tasks.start_soon(work, *args)

    async def carried_out(self, work: Callable[[], Awaitable[T]], undo: Callable[[T], None]) -> T:
        """Do *work* as the node's own: a caller that leaves ends its waiting, and then *undo* gets the result."""
        outcome: list[T | Exception] = []
        left = False
        done = anyio.Event()

        async def carry_out() -> None:
            try:
                outcome.append(await work())
            except Exception as error:  # noqa: BLE001 - raised again where the caller waits
                outcome.append(error)
            finally:
                done.set()
            if left:
                _undone(outcome[0], undo)

        self.tasks.start_soon(carry_out)
        try:
            await done.wait()
        except BaseException:
            left = True
            if outcome:
                _undone(outcome[0], undo)
            raise
        if not outcome:
            raise errors.Refused("HOST_SHUTTING_DOWN", "The host is shutting down.", retryable=True)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def may_judge(self, actor: str, heads: Heads) -> bool:
        """Tell whether the lease in *heads* may be treated as lapsed by this node (DESIGN §5)."""
        store, own_ms = self.around.store, mono_ms()
        now_ms, watch = store.now_ms(), self._watches.get(store.partition_of(actor), Watch())
        unbroken = watch.continues(own_ms, now_ms, store.history())
        return heads.lease_ms <= now_ms and unbroken and watch.may_judge(self.settings.lease_ms, own_ms)

    async def take_over(self, actor: str) -> None:
        """Claim a run whose lease has lapsed, and end it or carry it on as its origin says.

        Raises:
            Fenced: its owner is alive after all, or somebody else was faster.
        """
        store, settings = self.around.store, self.settings
        feed = await self._nothing_shown(actor) if settings.repeats_model_calls else None
        sent = mono_ms()
        told = await self.around.shell.tell(
            actor,
            run.TakeOver(store.node, repeats=feed is not None),
            command_id=f"t{self.around.fresh_id()}",
            claim=Claiming(store.node, settings.lease_ms, feed=feed),
        )
        if not isinstance(told.state, run.Live):
            await self.released(actor)
        elif told.events:
            about = About(store.node, actor, told.heads.epoch)
            log.warning("took over run %s at epoch %s", actor, about.epoch, extra=about._asdict())
            self.around.telemetry.took_over()
            self.execute(actor, told, sent, self.claim_of(told.state))

    async def _nothing_shown(self, actor: str) -> int | None:
        """Where the feed of *actor* stands, if nothing was shown since its last fact: the call in flight may be made again."""
        look = await self.around.store.look(actor)
        shown = look.entries[-1].feed_head if look.entries else -1
        return look.heads.feed if look.heads.feed == shown else None

    def claim_of(self, state: run.State) -> Claim | None:
        """The ledger's claim that a run holds, if it holds one."""
        if not isinstance(state, run.Live | run.Ended) or not state.accepted.permit:
            return None
        accepted = state.accepted
        return Claim(POOL, accepted.permit, self.around.store.node, accepted.subject, accepted.account)

    def close(self) -> None:
        """Begin to drain, and let it go on by itself."""
        if not self.closing.is_set():
            self.closing.set()
            self.tasks.start_soon(self.drain)

    async def drain(self) -> None:
        """Take nothing more on; let runs end until the deadline, then cancel them and wait until they are stored."""
        self.closing.set()
        for actor in [one for one, execution in self.executing.items() if not execution.slot.granted.is_set()]:
            if not run.may_hand_over(self.around.shell.known(actor)):
                self.end_soon(actor, run.Cancel(SHUTTING_DOWN, "shutdown"))
        with anyio.move_on_after(self.settings.drain_s):
            await self._all_over()
        for actor in self.executing:
            self.end_soon(actor, run.Cancel(SHUTTING_DOWN, "shutdown"))
        with anyio.move_on_after(self.settings.drain_s):
            await self._all_over()
        with anyio.move_on_after(self.settings.drain_s):
            await self.settlements.over()

    async def _all_over(self) -> None:
        while self.executing:
            await self._idle.wait()

    # Executing.

    async def _executed(self, state: run.Live, execution: Execution) -> None:
        actor = execution.hold.actor
        executor = execution.executor = Executor(
            self.around,
            execution.hold,
            slot=execution.slot,
            may_start=lambda: self._may_start(execution),
            leaving=self.closing,
            grown=self.worker.grown if execution.is_job and self.worker is not None else None,
        )
        try:
            await self._worked(executor, state, execution)
        except errors.Fenced:
            self.around.telemetry.fenced()
            log.info("run %s is no longer ours", actor)
        except HistoryLost:
            log.exception("the store lost the history of run %s", actor)
            self.end_soon(actor, run.Fail(_HISTORY_LOST, "history"))
        except Exception:
            log.exception("executing run %s failed", actor)
            self.end_soon(actor, run.Fail(_INTERNAL))
        await self.released(actor, executor)
        if self.executing.get(actor) is execution:
            del self.executing[actor]
            left = upkeep.standing(self.around.shell.known(actor))
            if left.parked and not execution.in_use:  # it keeps its slot, and nobody says so any more
                await self._reassured(execution)
            if left.parked or left.released:
                self.around.shell.forget(actor)
        if execution.claim is not None:
            self._waiters.pop(execution.claim.holder, None)
        execution.over.set()
        self.room()
        idle, self._idle = self._idle, anyio.Event()
        idle.set()

    async def _worked(self, executor: Executor, state: run.Live, execution: Execution) -> None:
        """Let *executor* work, and tell of it."""
        about = About(self.around.store.node, execution.hold.actor, execution.hold.epoch)
        ABOUT.set(about)
        with self.around.telemetry.run(labels_of(state.accepted), about) as noted:
            try:
                with execution.scope:
                    await executor.work(state)
            finally:
                noted.outcome = execution.outcome

    async def _may_start(self, execution: Execution) -> None:
        """Wait while the lease is too near its end to start anything new."""
        while not execution.holding.may_start(mono_ms()):
            await self._renewed.wait()

    async def _end(self, actor: str, command: run.Cancel | run.Fail) -> None:
        command_id, fresh = self.around.fresh_id(), False
        ABOUT.set(About(self.around.store.node, actor))
        while True:
            try:
                await self.around.shell.tell(actor, command, command_id=command_id)
            except Unavailable as pause:
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)
                continue
            except (HistoryLost, Moved) as error:
                if isinstance(error, HistoryLost) and not fresh:  # what this node believed; what is left can be ended
                    fresh = True
                    continue
                log.exception("run %s cannot be ended: what it should write to is not as it was left", actor)
            return

    async def released(self, actor: str, executor: Executor | None = None, *, accounts: bool = True) -> None:
        """Give back the permits of a run that ended, and deliver its record; the due set reminds whoever is left."""
        try:
            state = self.around.shell.known(actor)
            if not isinstance(state, run.Ended):
                state, _ = await self.around.shell.state(actor)
            if isinstance(state, run.Ended) and executor is not None:
                await executor.give_back()
            claim = self.claim_of(state)
            if isinstance(state, run.Ended) and claim is not None:
                await self.around.store.give(POOL, claim.holder, self.caps(claim.subject, claim.account))
                await self.around.store.settle(actor, "permit")
                self.room()
            if accounts and isinstance(state, run.Ended) and state.accepted.accounted and state.executed:
                self.tasks.start_soon(self.account, actor)
        except (Unavailable, HistoryLost):
            log.warning("the permit of run %s waits for the sweep", actor)

    async def account(self, actor: str) -> None:
        """Deliver the usage record of an ended run; where nobody takes it, none is owed."""
        if self.accounts is None:
            await self.around.store.settle(actor, "usage")
        else:
            await self.accounts.account(actor)

    def caps_of(self, pool: str) -> Caps:
        """Bounds of a pool in which nobody waits."""
        known = {companions.APPROVALS_POOL: self.around.approvals, companions.TICKETS_POOL: self.around.tickets}
        return known.get(pool, self.caps("", "") if pool == POOL else Caps(total=0))

    @property
    def claims(self) -> bool:
        """Whether this node takes up what nobody owns."""
        return self.open.is_set() and not self.closing.is_set()

    def mono_ms(self) -> int:
        """This node's clock."""
        return mono_ms()

    def touched_ms(self) -> list[int | None]:
        """When each partition answered last, by this node's clock: None if not yet, 0 if its last call failed."""
        watches = map(self._watches.get, range(self.around.store.deployment.partitions))
        return [None if one is None else 0 if one.row is None else one.row.last_ms for one in watches]

    def levels(self) -> Levels:
        """How this node stands."""
        waiting = sum(not one.slot.granted.is_set() for one in self.executing.values())
        permits = sum(one.slot.granted.is_set() and one.claim is not None for one in self.executing.values())
        silent = sum(not at for at in self.touched_ms())
        return Levels(len(self.executing), permits, waiting, self.clients.viewers, silent)

    async def swept(self) -> None:
        """Do what is due everywhere, now."""
        async with anyio.create_task_group() as tasks:
            for partition in range(self.around.store.deployment.partitions):
                tasks.start_soon(self._sweep_one, partition)

    def _changed(self, actor: str, state: Any) -> None:
        execution = self.executing.get(actor)
        if execution is None:
            return
        if isinstance(state, run.Ended):
            execution.outcome = state.kind
            execution.scope.cancel()
        elif execution.executor is not None:
            execution.executor.wake()

    def _recorded(self, actor: str, command: run.Command, before: run.State, told: Told) -> None:
        self.settlements.recorded(actor, command, before, told)
        tell_change(self.around.telemetry, before, told.state, told.now_ms)

    # Routines.

    async def routine(self) -> None:
        """Renew, sweep and hear until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear, tasks)
            tasks.start_soon(self._every, self.settings.routine_ms / 1_000, self._renew)
            for partition in range(self.around.store.deployment.partitions):
                tasks.start_soon(self._sweep, partition)
            tasks.start_soon(self._every, self.settings.reassured_s, self._reassure)
            tasks.start_soon(self._every, self.settings.permit_begin_ms / 10_000, self._confirm)
            tasks.start_soon(self._every, self.settings.janitor_s, self._prune)
            tasks.start_soon(self._every, CLIENTS_S, self.clients.keep)
            if self.worker is not None:
                tasks.start_soon(self.worker.work)

    async def _every(self, seconds: float, work: Callable[[], Any]) -> None:
        while True:
            began = anyio.current_time()
            try:
                await work()
            except Exception:
                log.exception("a routine failed and goes on")
            await anyio.sleep_until(began + seconds)

    async def _hear(self, tasks: TaskGroup) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            granted, self._granted = self._granted, set()
            for execution in map(self._waiters.get, granted):
                if execution is not None:  # the ring may be old, so the ledger is asked
                    tasks.start_soon(self._reassured, execution)
            rung, self._rung = self._rung, set()
            for actor in rung & self.executing.keys():
                tasks.start_soon(self._caught_up, actor)

    async def _caught_up(self, actor: str) -> None:
        try:
            await self.around.shell.state(actor)
        except (Unavailable, HistoryLost):
            self._rung.add(actor)  # the next ring or renewal tries again

    async def _renew(self) -> None:
        mine: dict[int, dict[str, int]] = {}
        for actor, execution in self.executing.items():
            mine.setdefault(self.around.store.partition_of(actor), {})[actor] = execution.hold.epoch
        for partition in mine.keys() - self._renewing:  # one partition's pause is only its own
            self._renewing.add(partition)
            self.tasks.start_soon(self._renew_in, partition, mine[partition])

    async def _renew_in(self, partition: int, epochs: Mapping[str, int]) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                for some in _chunks(epochs, RENEWED_AT_ONCE_MAX):
                    tasks.start_soon(self._renew_some, partition, some)
        except Exception:
            log.exception("to renew leases in partition %d failed and is tried again", partition)
        finally:
            self._renewing.discard(partition)
        renewed, self._renewed = self._renewed, anyio.Event()
        renewed.set()

    async def _renew_some(self, partition: int, epochs: Mapping[str, int]) -> None:
        sent = mono_ms()
        try:
            answer = await self.around.store.renew(partition, epochs, self.settings.lease_ms)
        except Unavailable:
            return
        for actor, heads in answer.items():
            execution = self.executing.get(actor)
            if execution is None or execution.hold.epoch != epochs[actor]:
                continue
            if heads is None:
                await self._caught_up(actor)
                execution.scope.cancel()
            else:
                execution.holding = execution.holding.renewed(sent)
                if heads.log > self.around.shell.version(actor):
                    await self._caught_up(actor)

    async def _sweep(self, partition: int) -> None:
        """Sweep a partition each routine, and in between when something there is due."""
        routine_s = self.settings.routine_ms / 1_000
        longest_s = routine_s * (partition % SWEPT_APART + 1) / SWEPT_APART
        while True:
            began, due = anyio.current_time(), inf
            try:
                due = await self._sweep_one(partition)
            except Exception:
                log.exception("to sweep partition %d failed and is tried again", partition)
            await anyio.sleep_until(min(began + longest_s, max(began + SWEPT_S_MIN, due)))
            longest_s = routine_s

    async def _sweep_one(self, partition: int) -> float:
        """Do what is due there; when the next is due by the loop's clock, never where nothing is."""
        store, watch = self.around.store, self._watches.get(partition, Watch())
        try:
            judging = self.claims and watch.may_judge(self.settings.lease_ms, mono_ms())
            swept = await store.sweep(partition, judging=judging)
        except Unavailable:
            if watch.row is not None:
                self.around.telemetry.store_paused()
            self._watches[partition] = watch.failed()
            return inf
        due = anyio.current_time() + (swept.next_ms - swept.now_ms) / 1_000 if swept.next_ms else inf
        self._watches[partition] = watch.answered(mono_ms(), swept.now_ms, store.history())
        judging = self._watches[partition].may_judge(self.settings.lease_ms, mono_ms())
        for one in swept.ripe:
            await self._chores.do(one, judging=judging)
        return due

    async def _prune(self) -> None:
        """Take off the outboxes what need not be kept any longer."""
        store = self.around.store
        for partition in range(store.deployment.partitions):
            with suppress(Unavailable):  # the next round comes
                await store.prune(partition, store.now_ms() - self.settings.audit_kept_ms)

    async def _reassure(self) -> None:
        """Ask again for waiting permits, and say that running ones are in use, should the ledger have forgotten."""
        async with anyio.create_task_group() as tasks:
            for execution in self.executing.values():
                tasks.start_soon(self._reassured, execution)

    async def _confirm(self) -> None:
        """Say of permits that are in use that they are, before they lapse."""
        async with anyio.create_task_group() as tasks:
            for execution in self.executing.values():
                if execution.slot.started and not execution.in_use:
                    tasks.start_soon(self._reassured, execution)

    async def _reassured(self, execution: Execution) -> None:
        """Tell the ledger that a permit is in use, or ask for it; all at once, lest a slow store cost the last their place."""
        store, claim, slot = self.around.store, execution.claim, execution.slot
        if claim is None:
            return
        try:
            if slot.started:
                await store.begun(claim)
                execution.in_use = True
            elif not slot.granted.is_set():
                caps = self.caps(claim.subject, claim.account)
                permit = await store.take(claim, caps, self.settings.permit_begin_ms)
                if permit.taken == "granted":
                    slot.grant(self.settings.store_by(permit.begin_by_ms))
        except Unavailable:
            log.debug("the ledger does not answer for run %s", execution.hold.actor)
        except Exception:
            log.exception("the ledger cannot be asked for run %s; that goes on", execution.hold.actor)


@asynccontextmanager
async def open_node(
    around: Surroundings,
    settings: NodeSettings,
    caps: Callable[[str, str], Caps],
    prepare: Callable[[Node], None] = lambda _: None,
) -> AsyncGenerator[Node]:
    """Run a node, once *prepare* has given it what it needs; leaving drains it first.

    What the body raises comes out as it is, not in a group.
    """
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        node = Node(around, settings, caps, tasks)
        prepare(node)
        tasks.start_soon(node.routine)
        try:
            yield node
        except Exception as error:  # noqa: BLE001 - raised again below
            failed = error
        finally:
            with anyio.CancelScope(shield=True):
                await node.drain()
                node.left = True
            tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _undone(outcome: T | Exception, undo: Callable[[T], None]) -> None:
    if not isinstance(outcome, Exception):
        undo(outcome)


def mono_ms() -> int:
    """This node's clock, which runs during suspend where the system has one that does."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _chunks(epochs: Mapping[str, int], size: int) -> Iterator[dict[str, int]]:
    items = iter(epochs.items())
    while chunk := dict(islice(items, size)):
        yield chunk
