"""A node: executes what it holds, keeps its leases, takes over what nobody holds, and drains.

Everything here is a second's routine or the consequence of a hint; what is true is in the logs.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from actors import companions, errors, run, upkeep
from actors.accounting import Accounts
from actors.audit import Settlements
from actors.auditing import Auditor
from actors.clients import Clients
from actors.dispatch import POOL, Worker
from actors.errors import Problem
from actors.events import Origin
from actors.executor import Executor, Surroundings
from actors.plan import Claiming, Hold
from actors.renewing import Renewals
from actors.shell import RETRY_MS_MAX, Moved, Told
from actors.slots import Slot, Slots
from actors.sweeping import Sweeps
from actors.telemetry import ABOUT, About, Levels, Outcome, labels_of, tell_change
from eventstore import clock
from eventstore.leases import Holding
from eventstore.store import Caps, Claim, HistoryLost, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

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
    audited_s: float = 10.0
    """How often it is asked whether the ledger may have forgotten something."""
    audited_again_s: float = 60.0
    """How long a holder that is not there must have been missing: longer than it takes to store what was given a place."""
    janitor_s: float = 3_600.0
    """How often outboxes are pruned."""
    audit_kept_ms: int = 365 * 24 * 3_600 * 1_000
    """How long the audit of approvals is kept."""


class Execution:
    """One run in this node's hands."""

    __slots__ = ("executor", "hold", "holding", "origin", "outcome", "over", "scope", "slot")

    def __init__(self, hold: Hold, holding: Holding, slot: Slot, origin: Origin = "foreground") -> None:
        self.hold = hold
        self.holding = holding
        self.slot = slot
        self.origin = origin
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
        self._news = anyio.Event()
        self._rung: set[str] = set()
        self._granted: set[str] = set()
        self._idle = anyio.Event()
        self.settlements = Settlements(around.shell, around.audit, self.told, tasks)
        self.clients = Clients(around.store, self.soon)
        self.slots = Slots(around.store, caps, settings.permit_begin_ms)
        self.sweeps = Sweeps(self)
        self.auditor = Auditor(self)
        self._renewals = Renewals(self)
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
        lease = Holding(sent_mono_ms, self.settings.lease_ms)
        execution = Execution(hold, lease, Slot(claim, started=state.started), state.accepted.origin)
        self.slots.hold(execution.slot)
        self.executing[hold.actor] = execution
        self.tasks.start_soon(self._executed, state, execution)

    async def told(
        self, run_id: str, command: run.Command, not_after_ms: int = 0, command_id: str = "", *, fresh: bool = False
    ) -> Told:
        """Tell the run; where it waited and belonged to nobody, it is this node's from here, in the same append.

        *command_id* is that of a command which may come again from another node; else a new one is made.
        *fresh* says that the run was looked at just now.
        """
        sent, command_id = clock.mono_ms(), command_id or self.around.fresh_id()
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

    async def take_over(self, actor: str) -> None:
        """Claim a run whose lease has lapsed, and end it or carry it on as its origin says.

        Raises:
            Fenced: its owner is alive after all, or somebody else was faster.
        """
        store, settings = self.around.store, self.settings
        feed = await self._nothing_shown(actor) if settings.repeats_model_calls else None
        sent = clock.mono_ms()
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
            grown=self.worker.grown if execution.origin == "job" and self.worker is not None else None,
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
            if left.parked and not execution.slot.in_use:  # it is kept, and nobody says so any more
                await self.slots.tell(execution.slot)
            if left.parked or left.released:
                self.around.shell.forget(actor)
        self.slots.leave(execution.slot)
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
        while not execution.holding.may_start(clock.mono_ms()):
            await self._renewals.answered()

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

    def levels(self) -> Levels:
        """How this node stands."""
        waiting = sum(not one.slot.granted.is_set() for one in self.executing.values())
        permits = sum(one.slot.granted.is_set() and one.slot.claim is not None for one in self.executing.values())
        silent = sum(not at for at in self.sweeps.touched_ms())
        return Levels(len(self.executing), permits, waiting, self.clients.viewers, silent)

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
            tasks.start_soon(self._every, self.settings.routine_ms / 1_000, self._renewals.renew)
            self.sweeps.keep(tasks)
            tasks.start_soon(self._every, self.settings.reassured_s, self.slots.reassure)
            tasks.start_soon(self._every, self.settings.permit_begin_ms / 10_000, self.slots.confirm)
            tasks.start_soon(self._every, self.settings.janitor_s, self._prune)
            tasks.start_soon(self._every, CLIENTS_S, self.clients.keep)
            tasks.start_soon(self.auditor.keep)
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
            for slot in map(self.slots.waiting, granted):
                if slot is not None:  # the ring may be old, so the ledger is asked
                    tasks.start_soon(self.slots.tell, slot)
            rung, self._rung = self._rung, set()
            for actor in rung & self.executing.keys():
                tasks.start_soon(self.caught_up, actor)

    async def caught_up(self, actor: str) -> None:
        """Read what others wrote to *actor*."""
        try:
            await self.around.shell.state(actor)
        except (Unavailable, HistoryLost):
            self._rung.add(actor)  # the next ring or renewal tries again

    async def _prune(self) -> None:
        """Take off the outboxes what need not be kept any longer."""
        store = self.around.store
        for partition in range(store.deployment.partitions):
            with suppress(Unavailable):  # the next round comes
                await store.prune(partition, store.now_ms() - self.settings.audit_kept_ms)


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
