"""Asks a run for its next effect, performs it, and tells the run how it went.

The loop is short whatever the rules do: `run.next_effect` decides, this module only carries out.
One executor works on one run, under one epoch; when that is gone it stops and touches nothing.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import anyio
from msgspec import Struct

from actors import by_hand, calls, dispatch, host_key, ids, model_call, prompt, run, session, tool_call, upkeep, values
from actors.activity import IDLE, FeedItems
from actors.audit import Sink
from actors.companions import APPROVALS_POOL, TICKETS_POOL, requested_record
from actors.errors import Fenced, Problem
from actors.events import RunAccepted, ToolCall
from actors.jsontext import strict_json
from actors.model_call import Answered
from actors.plan import Hold
from actors.ports import Model, ModelRequest, Policy, PolicyContext, Tool
from actors.shell import RETRY_MS_MAX, Overfull, Shell, Told, TooLate
from actors.slots import Slot
from actors.telemetry import SILENT, Noted, Telemetry, labels_of, outcome_of
from eventstore.store import Caps, Claim, Heads, Store, Unavailable

log = logging.getLogger(__name__)

_UNKNOWN = Problem("UNKNOWN_PROVIDER", "The run's provider is not configured on this node.")
_UNCONFIRMED = Problem("TOOL_OUTCOME_UNCERTAIN", "The outcome of a tool call is not confirmed.", outcome="uncertain")
_UNREVIEWED = Problem("APPROVAL_REQUIRED", "The call needs approval, and none was arranged or given.")
_UNFIT = Problem("INVALID_TOOL_CALL", "The call cannot be shown to a reviewer or an application as it is.")
_MANY_REVIEWS = Problem("APPROVAL_CAPACITY", "Too many approvals are pending.", retryable=True)
_MANY_TICKETS = Problem("TOOL_EXECUTOR_CAPACITY", "Too many executions are open.", retryable=True)


class Surroundings(Struct, frozen=True, kw_only=True):
    """What every executor of a node shares."""

    shell: Shell[run.State, run.Command, Any]
    store: Store
    models: Mapping[str, Model]
    items: FeedItems
    fresh_id: Callable[[], str]
    """A new random UUID each time."""
    tools: Mapping[str, Tool] = {}
    policy: Policy | None = None
    """The host's own say about calls that need approval, asked before any person."""
    approvals: Caps = Caps(total=1_000)
    """Bound on pending approvals, counted over all nodes."""
    tickets: Caps = Caps(total=1_000)
    """Bound on open executions, counted over all nodes."""
    permit_begin_ms: int = 10_000
    sessions: Shell[session.State, session.Command, Any]
    host_keys: Shell[host_key.State, host_key.Command, Any] | None = None
    resources: Callable[[str, run.Live], Awaitable[Problem | None]] | None = None
    """The host's own say before every step, whether the run may consume more (scheduling §6)."""
    audit: Sink | None = None
    """The host's own place for records of approvals, which must have them before anything is asked or decided."""
    telemetry: Telemetry = SILENT


class _Taken(NamedTuple):
    """A permit, and until when its holder must be stored."""

    claim: Claim
    caps: Caps
    begin_by_ms: int


class Executor:
    """Carries out one run."""

    def __init__(
        self,
        around: Surroundings,
        hold: Hold,
        *,
        slot: Slot,
        may_start: Callable[[], Awaitable[None]],
        leaving: anyio.Event | None = None,
        grown: Callable[[str, RunAccepted, int], Awaitable[bool]] | None = None,
    ) -> None:
        self._around = around
        self._hold = hold
        self._slot = slot
        self._may_start = may_start
        self._leaving = leaving or anyio.Event()
        """Set when the node shuts down, and lets go of what another can carry on."""
        self._grown = grown
        """Takes the room that a job's growing record needs; False if there is none."""
        self._room_bytes: int | None = None
        """What the ledger keeps for the job's record, as far as this executor knows."""
        self._told = 0
        self._progress_s = anyio.current_time()
        self._news = anyio.Event()
        self._permit: _Taken | None = None
        """Of the approval or ticket that this executor asked for last."""

    def wake(self) -> None:
        """Say that the run's state has changed, maybe by somebody else's command."""
        self._news.set()

    async def work(self, state: run.State) -> None:
        """Carry the run on until nothing is left to do, or until it waits and needs no owner for that.

        Raises:
            Fenced: another node owns the run, or it has ended.
        """
        while (effect := run.next_effect(state)) is not None and not _needs_nobody(state):
            if self._leaving.is_set() and run.may_hand_over(state):
                state = await self._tell(run.HandOver(self._around.store.node))
                continue
            command = await self._performed(effect, state)
            state = await (self._caught_up() if command is None else self._tell(command))
            if not await self._has_room(state):
                state = await self._tell(run.overflow("OPERATION_RECORD_LIMIT"))

    async def give_back(self) -> None:
        """Give back the permit of an approval or a ticket that is over; the due set does the same, a second later."""
        taken, self._permit = self._permit, None
        if taken is not None:
            await self._around.store.give(taken.claim.pool, taken.claim.holder, taken.caps)

    async def _performed(self, effect: run.Effect, state: run.State) -> run.Command | None:
        """Perform *effect*; None says that somebody else moved the run on."""
        if not isinstance(state, run.Live):
            return None
        match effect:
            case run.AwaitPermit():
                await (self._granted_or_leaving() if run.resumable(state) else self._slot.granted.wait())
                self._progress_s = anyio.current_time()
                return run.Start() if self._slot.granted.is_set() else None
            case run.BeginStep(step):
                refused = await self._judged(state)
                await self._may_start()
                return run.EnterStep(step) if refused is None else run.Fail(refused)
            case run.CallModel():
                await self._may_start()
                telling = self._around.telemetry.step(labels_of(state.accepted))
                return await _noted(telling, self._called(effect, state))
            case calls.Review(call, interactive):
                return await self._reviewed(call, state, interactive=interactive)
            case calls.StartTool():
                await self._may_start()
                return calls.BeginTool()
            case calls.RunTool(call):
                return await _noted(self._around.telemetry.tool(call.name), self._executed(call, state))
            case calls.OfferTicket(call):
                return await self._offered(call, state)
            case calls.Wait():
                return await self._waited(effect, state)

    async def _granted_or_leaving(self) -> None:
        """Wait for the slot, or until the node shuts down."""
        async with anyio.create_task_group() as waiting:

            async def heard(news: anyio.Event) -> None:
                await news.wait()
                waiting.cancel_scope.cancel()

            waiting.start_soon(heard, self._slot.granted)
            waiting.start_soon(heard, self._leaving)

    async def _called(self, effect: run.CallModel, state: run.Live) -> run.Command:
        model = self._around.models.get(effect.provider)
        if model is None:
            return run.Fail(_UNKNOWN)
        asked = await self._in_session(effect.request, state)
        call = model_call.Call(**self._activity(state))
        try:
            outcome = await call.made(model, asked, state.accepted.subject)
        except Overfull:
            return run.overflow("OPERATION_RECORD_LIMIT")
        self._progress_s = anyio.current_time()
        if isinstance(outcome, Answered):
            return run.Answer(effect.step, outcome.turn, outcome.streamed, self._around.fresh_id())
        if outcome == run.Fail(model_call.UNFIT) and state.accepted.session is not None:
            return run.Fail(session.UNFIT)
        return outcome

    async def _in_session(self, asked: ModelRequest, state: run.Live) -> ModelRequest:
        """Put what was said in the run's session before what its model is *asked*."""
        turn = state.accepted.session
        while turn is not None:
            try:
                opened, _ = await self._around.sessions.state(turn.id)
            except Unavailable as pause:
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)
                continue
            # Of a session that is gone there is nothing to say, and its run has ended with it.
            return prompt.in_session(asked, state.request, opened) if isinstance(opened, session.Open) else asked
        return asked

    async def _judged(self, state: run.Live) -> Problem | None:
        """Ask the resource authority, if there is one; the idle limit stands still meanwhile."""
        if self._around.resources is None:
            return None
        asked_s = anyio.current_time()
        refused = await self._around.resources(self._hold.actor, state)
        self._progress_s += anyio.current_time() - asked_s
        return refused

    async def _poured(self, hold: Hold, items: Sequence[bytes]) -> None:
        """Append *items* to the feed; raises `Overfull` where a job has no room for them."""
        await self._around.shell.pour(hold, items)
        if not await self._has_room(self._around.shell.known(hold.actor)):
            raise Overfull

    async def _has_room(self, state: run.State) -> bool:
        """Take the room that a job's record needs by now; False if there is none."""
        if self._grown is None or not isinstance(state, run.Live):
            return True
        kept = dispatch.room_bytes(state.accepted) if self._room_bytes is None else self._room_bytes
        needed = dispatch.room_bytes(state.accepted, self._hold.feed_bytes)
        while needed > kept:
            try:
                has_room = await self._grown(self._hold.actor, state.accepted, needed)
            except Unavailable as pause:
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)
                continue
            self._room_bytes = needed
            return has_room
        return True

    async def _reviewed(self, call: ToolCall, state: run.Live, *, interactive: bool) -> run.Command:
        """Ask the host's policy, then have a person asked, as far as there are such (approvals §5)."""
        policy = self._around.policy
        if policy is None and not interactive:
            return run.Fail(_UNREVIEWED)
        if policy is not None:
            context = PolicyContext(self._hold.actor, state.accepted.subject, state.accepted.provider)
            if not await _allowed(policy, call, context):
                return run.Fail(_UNREVIEWED)
        if not interactive:
            return calls.Clear()
        if not values.representable(call.id, call.name, strict_json(bytes(call.arguments).decode())):
            return run.Fail(_UNFIT)
        approval_id = self._sibling()
        if not await self._permitted(APPROVALS_POOL, approval_id, state, self._around.approvals):
            return run.Fail(_MANY_REVIEWS)
        return await self._audited(approval_id, call, state)

    async def _audited(self, approval_id: str, call: ToolCall, state: run.Live) -> run.Command:
        """Have the audit sink know of a question before it is put."""
        sink, asked = self._around.audit, by_hand.reviewer(state)
        if sink is None or asked is None:
            return calls.AskReview(approval_id)
        asked_ms = max(self._around.store.now_ms(), 0 if state.open is None else state.open.active_ms)
        question = calls.review(approval_id, asked, asked_ms, "" if state.open is not None else call.id)
        record = requested_record(self._hold.actor, state.accepted, call, question)
        if await sink.took(record, f"{approval_id}.requested"):
            return calls.AskReview(approval_id, asked_ms)
        with suppress(Unavailable):  # a permit that is not begun lapses
            await self.give_back()
        return run.Fail(calls.UNAUDITED)

    async def _executed(self, call: ToolCall, state: run.Live) -> run.Command:
        tool = self._around.tools.get(call.name)
        if tool is None:
            return run.Fail(_UNCONFIRMED)
        try:
            outcome = await tool_call.Call(**self._activity(state)).made(tool, call, state.accepted.subject)
        except Overfull:
            return run.overflow("OPERATION_RECORD_LIMIT")
        self._progress_s = anyio.current_time()
        match outcome:
            case tool_call.Output(value):
                return calls.Return(call.id, value)
            case tool_call.Failed():
                return run.Fail(_UNCONFIRMED)
            case tool_call.Idle():
                return run.Cancel(IDLE, "idle")

    async def _offered(self, call: ToolCall, state: run.Live) -> run.Command:
        if not values.representable(call.id, call.name, strict_json(bytes(call.arguments).decode())):
            return run.Fail(_UNFIT)
        execution_id = self._sibling()
        if not await self._permitted(TICKETS_POOL, execution_id, state, self._around.tickets):
            return run.Fail(_MANY_TICKETS)
        return calls.Offer(execution_id)

    async def _waited(self, wait: calls.Wait, state: run.Live) -> run.Command | None:
        """Wait until somebody moved the run on, or until a time has come; the due set minds the times as well."""
        idle_ms = state.accepted.idle_timeout_ms
        times: list[tuple[int, run.Command]] = []
        if wait.expires_ms is not None:
            times.append((wait.expires_ms, calls.Expire(awaits_audit=self._around.audit is not None)))
        if wait.active_ms is not None and idle_ms:
            times.append((wait.active_ms + idle_ms, calls.IdleOut(idle_ms)))
        at_ms, command = min(times, key=lambda time: time[0], default=(None, None))
        while self._around.shell.known(self._hold.actor) is state:
            self._news = anyio.Event()
            if at_ms is None:
                await self._news.wait()
            elif (left_ms := at_ms - self._around.store.now_ms()) > 0:
                with anyio.move_on_after(left_ms / 1_000):
                    await self._news.wait()
            else:
                return command
        return None

    async def _caught_up(self) -> run.State:
        """The run as somebody else moved it on; what it waited for may have been progress, or none."""
        while True:
            try:
                state, heads = await self._around.shell.state(self._hold.actor)
            except Unavailable as pause:
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)
                continue
            self._progress_s = anyio.current_time()
            if isinstance(state, run.Live) and state.open is not None:
                self._progress_s -= max(0, self._around.store.now_ms() - state.open.active_ms) / 1_000
            return self._ours(state, heads)

    def _ours(self, state: run.State, heads: Heads) -> run.State:
        """*state*, which is ours to carry on.

        Raises:
            Fenced: by *heads* it is another's, whose started calls must not be made here again.
        """
        mine = (heads.owner, heads.epoch) == (self._around.store.node, self._hold.epoch)
        if not mine and isinstance(state, run.Live) and not _needs_nobody(state):
            raise Fenced
        return state

    def _activity(self, state: run.Live) -> dict[str, Any]:
        return {
            "pour": self._poured,
            "hold": self._hold,
            "items": self._around.items,
            "now_ms": self._around.store.now_ms,
            "idle_s": state.accepted.idle_timeout_ms / 1_000,
            "progress_s": self._progress_s,
        }

    def _sibling(self) -> str:
        return ids.sibling(self._hold.actor, self._around.fresh_id())

    async def _permitted(self, pool: str, holder: str, state: run.Live, caps: Caps) -> bool:
        """Take a permit for an approval or a ticket; one that is not asked for within its time lapses."""
        claim = Claim(pool, holder, self._around.store.node, state.accepted.subject)
        while True:
            try:
                await self.give_back()
                permit = await self._around.store.take(claim, caps, self._around.permit_begin_ms)
            except Unavailable as pause:
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)
                continue
            if permit.taken == "granted":
                self._permit = _Taken(claim, caps, permit.begin_by_ms)
            return permit.taken == "granted"

    async def _tell(self, command: run.Command) -> run.State:
        """Tell the run how it went; what needs a permit is recorded while that holds, or asked for again."""
        self._told += 1
        command_id = f"x{self._hold.epoch}.{self._told}"
        shell, actor = self._around.shell, self._hold.actor
        permit = self._permit if isinstance(command, calls.AskReview | calls.Offer) else None
        starts = isinstance(command, run.Start)
        not_after_ms = self._slot.store_by_ms if starts else 0 if permit is None else permit.begin_by_ms
        while True:
            try:
                told: Told = await shell.tell(
                    actor, command, command_id=command_id, hold=self._hold, not_after_ms=not_after_ms
                )
                self._slot.started = self._slot.started or starts
                if permit is not None and _waits_under(told.state, permit.claim.holder):
                    await self._around.store.begun(permit.claim)
            except Unavailable as pause:  # an outage is a pause of the run, not its end
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)
            except TooLate:
                if starts:
                    self._slot.lapse()
                return await self._caught_up()
            else:
                return self._ours(told.state, told.heads)


async def _noted(telling: AbstractContextManager[Noted], errand: Awaitable[run.Command]) -> run.Command:
    """Do *errand*, and note how it went."""
    with telling as noted:
        command = await errand
        noted.outcome = outcome_of(command)
    return command


def _waits_under(state: run.State, holder: str) -> bool:
    """Whether the run waits under the permit of *holder*; where it was moved on meanwhile, the permit lapses."""
    open_call = state.open if isinstance(state, run.Live) else None
    return open_call is not None and holder in {open_call.approval_id, open_call.execution_id}


def _needs_nobody(state: run.State) -> bool:
    standing = upkeep.standing(state)
    return standing.parked or standing.released


async def _allowed(policy: Policy, call: ToolCall, context: PolicyContext) -> bool:
    """Ask *policy*; whatever it raises refuses the call."""
    try:
        return await policy(call, context) is True
    except Exception as error:  # noqa: BLE001 - it fails closed
        log.error("the policy failed on a call of run %s: %s", context.run_id, type(error).__qualname__)
        return False
