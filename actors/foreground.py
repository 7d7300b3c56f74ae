"""A run as its caller holds it: admission, key, acceptance, the stream, and its end when the caller leaves."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET

from actors import errors, run, values
from actors.bounds import Bounds, accept
from actors.companions import KEYS_POOL
from actors.decider import Refusal
from actors.dispatch import POOL
from actors.errors import Problem, Refused
from actors.events import SessionTurn
from actors.fingerprint import fingerprint
from actors.ids import run_of_key, sibling
from actors.node import Node
from actors.plan import Claiming
from actors.request import RunRequest
from actors.sessions import Holder, Sessions, everything_of
from actors.shell import TRIES, Moved, Told, TooLate
from actors.slots import store_by
from eventstore import clock
from eventstore.store import Caps, Claim, Heads, HistoryLost, Item, Permit, Unavailable

log = logging.getLogger(__name__)

BEGIN_TRIES = 3
"""How many permits may lapse, each before its run was stored, until the caller is told to try later."""
SUBJECT_CHARS_MAX = 128
BURNED = Problem("OPERATION_UNCERTAIN", "What the key was used for was refused.", outcome="uncertain")
CLIENT_GONE = Problem("CANCELLED", "The client left.")


class Attended(Protocol):
    """A run (or the replay of one) that a caller is attached to."""

    run_id: str
    resumable: bool
    """Whether the run goes on without this caller, who may come back for the rest, to any node."""

    def items(self) -> AsyncIterator[Sequence[Item]]:
        """Yield feed items in order, several at once where they are ready; an empty batch is a heartbeat tick.

        Ends after the terminal item.
        """
        ...


class Runs(Protocol):
    """What the edge needs of the host to serve `POST /v1/runs`."""

    def attend(
        self,
        request: RunRequest,
        *,
        subject: str,
        streamed: bool,
        waived: frozenset[str] = frozenset(),
        holder: Holder | None = None,
    ) -> AbstractAsyncContextManager[Attended]:
        """Admit, claim and start *request* (or find its replay), and stay attached.

        Once entered the first item (`run.started`) is stored.
        Leaving before the terminal item was yielded cancels the run, for its client is gone; but not at once a run that
        may be resumed: it goes on for its grace.
        *waived* are the application tools that the caller's token lets pass without review.
        *holder* says what the caller may do with sessions; None: everything with its own.

        Raises:
            Refused: steps 16 to 20 of runs §4, after grants: BUSY, QUEUE_FULL, TOOL_STREAM_REQUIRED,
                APPROVAL_STREAM_REQUIRED, IDEMPOTENCY_CONFLICT, OPERATION_IN_PROGRESS, HOST_SHUTTING_DOWN …
            Unavailable: the store did not answer.
        """
        ...


class Feeds(NamedTuple):
    """How a run's feed is read; handed in by the wiring."""

    followed: Callable[[str], AsyncIterator[Sequence[Item]]]
    """Follow a run's feed from its first item until it has ended."""
    replayed: Callable[[str, Sequence[Any]], Sequence[bytes]]
    """Run id and log to the items of its recovery stream."""
    is_terminal: Callable[[bytes], bool]


class _Followed:
    """A run that executes."""

    def __init__(self, run_id: str, feeds: Feeds, node: Node, grace_ms: int) -> None:
        self.run_id = run_id
        self.resumable = grace_ms > 0
        self.grace_ms = grace_ms
        self._feeds = feeds
        self._node = node

    async def items(self) -> AsyncIterator[Sequence[Item]]:
        async for batch in self._feeds.followed(self.run_id):
            if batch and self._feeds.is_terminal(batch[-1].data):
                await self._node.over(self.run_id)
            yield batch


class _Replayed:
    """The stored outcome of a key."""

    resumable = False

    def __init__(self, run_id: str, items: Sequence[bytes]) -> None:
        self.run_id = run_id
        self._items = [Item(number, data) for number, data in enumerate(items, 1)]

    async def items(self) -> AsyncIterator[Sequence[Item]]:
        yield self._items


class Foreground:
    """Starts runs for callers of this node."""

    def __init__(
        self,
        node: Node,
        feeds: Feeds,
        bounds: Callable[[RunRequest, str, frozenset[str]], Bounds],
        keys: Caps,
        sessions: Sessions | None = None,
    ) -> None:
        self._node = node
        self._feeds = feeds
        self._bounds = bounds
        self._sessions = sessions
        self._keys = keys
        """Bound on keys with an outcome, kept for ever; another key is refused with OPERATION_STORE_FULL."""

    @asynccontextmanager
    async def attend(
        self,
        request: RunRequest,
        *,
        subject: str,
        streamed: bool,
        waived: frozenset[str] = frozenset(),
        holder: Holder | None = None,
    ) -> AsyncGenerator[Attended]:
        """Serve `Runs.attend`."""
        if self._node.closing.is_set():
            raise Refused("HOST_SHUTTING_DOWN", "The host is shutting down.", retryable=True)
        if not 1 <= len(subject) <= SUBJECT_CHARS_MAX:
            raise Refused("INVALID_SCHEDULING_IDENTITY", f"A subject has 1 to {SUBJECT_CHARS_MAX} characters.")
        asked = _Asked(request, holder or everything_of(subject), waived, streamed)
        # What is begun belongs to the node: a caller that leaves meanwhile leaves a run that is cancelled, not a lost one.
        attended = await self._node.carried_out(lambda: self._begun(asked), self._left)
        grace_ms = attended.grace_ms if isinstance(attended, _Followed) else 0
        try:
            with self._node.clients.attached(attended.run_id, grace_ms):
                yield attended
        finally:
            self._left(attended)

    def _left(self, attended: Attended) -> None:
        if not isinstance(attended, _Followed) or attended.resumable:
            return
        if attended.run_id in self._node.executing:
            self._node.end_soon(attended.run_id, run.Cancel(CLIENT_GONE, "client"))

    async def _begun(self, asked: "_Asked") -> Attended:
        """Take a permit and begin, again if the permit lapsed before the run was stored.

        Raises:
            Unavailable: the store is too slow to begin within the time that a permit is kept.
        """
        for _ in range(BEGIN_TRIES):
            try:
                return await self._tried(asked)
            except TooLate:
                continue
        raise Unavailable("no run could be stored within the time that its slot is kept")

    async def _tried(self, asked: "_Asked") -> Attended:
        """Take a permit and begin; the permit comes back unless a run was begun with it."""
        store, subject = self._node.around.store, asked.holder.subject
        bounds = self._bounds(asked.request, subject, asked.waived)
        claim = Claim(POOL, self._permit_id(asked.request, subject), store.node, subject, bounds.account)
        caps = self._node.caps(subject, bounds.account)
        attended: Attended | None = None
        answering = True
        try:
            permit = await store.take(claim, caps, self._node.settings.permit_begin_ms)
            _check_permit(permit)
            _check_streamed(asked.request, streamed=asked.streamed)
            begun = _Begun(asked.request, asked.holder, bounds, claim, permit)
            attended = await (self._claimed(begun) if asked.request.idempotency_key else self._unkeyed(begun))
        except Unavailable:
            # Whoever asked has waited long enough to be told.
            answering = False
            self._node.soon(self._given_back, claim, caps)
            raise
        else:
            return attended
        finally:
            if answering and not isinstance(attended, _Followed):
                await store.give(POOL, claim.holder, caps)

    async def _given_back(self, claim: Claim, caps: Caps) -> None:
        """Give a slot back that may have been taken; where that fails too, it lapses."""
        try:
            await self._node.around.store.give(POOL, claim.holder, caps)
        except Unavailable:
            log.debug("the ledger does not take back the slot %s", claim.holder)

    def _permit_id(self, request: RunRequest, subject: str) -> str:
        """A new holder of a slot, whose beginning leads to its run: the id of that, or of its key."""
        around = self._node.around
        fresh_id = around.fresh_id()
        if request.idempotency_key:
            return f"{run_of_key(around.store.deployment.id_key, subject, request.idempotency_key)}:{fresh_id}"
        return fresh_id if request.session is None else _run_in(request.session.id, fresh_id)

    async def _unkeyed(self, begun: "_Begun") -> Attended:
        run_id = begun.claim.holder
        _check_bound(begun.bounds)
        if begun.request.session is None:
            told = await self._accept(run_id, begun, "", fresh=True)
        else:
            told = await self._turn(run_id, begun, "")
        assert isinstance(told, _Followed)  # noqa: S101 - a random id is new
        return told

    async def _claimed(self, begun: "_Begun") -> Attended:
        """Serve a key; what the store cannot tell of it is uncertain (idempotency §7)."""
        try:
            return await (self._keyed(begun) if begun.request.session is None else self._keyed_turn(begun))
        except (Unavailable, HistoryLost) as error:
            raise Refused("OPERATION_STORE_ERROR", "The operation's record cannot be read.", uncertain=True) from error

    async def _keyed(self, begun: "_Begun") -> Attended:
        """Claim the key, or answer from what it stands for (idempotency §3)."""
        around = self._node.around
        run_id = run_of_key(around.store.deployment.id_key, begun.claim.subject, begun.request.idempotency_key or "")
        print_of = fingerprint(begun.request)
        state, _ = await around.shell.state(run_id)
        if isinstance(state, run.New):
            _check_bound(begun.bounds)
            await self._take_key(run_id, begun.claim)
        met = await self._accept(run_id, begun, print_of, fresh=isinstance(state, run.New))
        return met if isinstance(met, _Followed) else await self._replayed(run_id, met.state, met.heads)

    async def _keyed_turn(self, begun: "_Begun") -> Attended:
        """Claim the key of a session's turn, whose run lives with the session; or answer from what it stands for."""
        around, session_id = self._node.around, begun.request.session.id if begun.request.session else ""
        key_id = run_of_key(around.store.deployment.id_key, begun.claim.subject, begun.request.idempotency_key or "")
        state, _ = await around.shell.state(key_id)
        if isinstance(state, run.New):
            _check_bound(begun.bounds)
            await self._take_key(key_id, begun.claim)
        reserve = run.ReserveKey(
            begun.claim.subject, fingerprint(begun.request), _run_in(session_id, around.fresh_id())
        )
        told = await around.shell.tell(key_id, reserve, command_id=begun.claim.holder)
        if isinstance(told.answer, Refusal):
            raise Refused.of(told.answer.problem)
        assert isinstance(told.state, run.Reserved)  # noqa: S101 - a plain run has another fingerprint
        if not told.events:
            await self._check_access(begun)
        return await self._stood_for(key_id, told.state, begun)

    async def _stood_for(self, key_id: str, key: run.Reserved, begun: "_Begun") -> Attended:
        """Run the turn that a key stands for, once: who comes again finishes what was begun, or finds how it went."""
        shell = self._node.around.shell
        state, heads = await shell.state(key.run_id)
        if isinstance(state, run.New) and key.burned:
            raise Refused.of(BURNED)
        if isinstance(state, run.New):
            try:
                met = await self._turn(key.run_id, begun, key.fingerprint)
            except Refused:
                state, heads = await shell.state(key.run_id)
                if isinstance(state, run.New):
                    await shell.tell(key_id, run.BurnKey(), command_id=self._node.around.fresh_id())
                    raise
            else:
                return met if isinstance(met, _Followed) else await self._replayed(key.run_id, met.state, met.heads)
        return await self._replayed(key.run_id, state, heads)

    async def _turn(self, run_id: str, begun: "_Begun", print_of: str) -> "_Followed | Told":
        """Reserve the session's next turn and accept its run, in one append; look again where another was faster."""
        if self._sessions is None:
            raise Refused("SESSIONS_UNAVAILABLE", "This host keeps no sessions")
        for _ in range(TRIES):
            turn = await self._sessions.reserved(begun.holder, begun.request)
            try:
                return await self._accept(run_id, begun, print_of, fresh=not print_of, turn=turn)
            except Moved:
                continue
        raise Unavailable("the session is written to by many at once", 100)

    async def _check_access(self, begun: "_Begun") -> None:
        if self._sessions is not None:
            await self._sessions.allowed(begun.holder, begun.request)

    async def _take_key(self, run_id: str, claim: Claim) -> None:
        store = self._node.around.store
        key = Claim(KEYS_POOL, run_id, store.node, claim.subject)
        permit = await store.take(key, self._keys, self._node.settings.permit_begin_ms)
        if permit.taken != "granted":
            raise Refused("OPERATION_STORE_FULL", "No further idempotency key can be kept.")
        await store.begun(key)

    async def _accept(
        self, run_id: str, begun: "_Begun", print_of: str, *, fresh: bool, turn: SessionTurn | None = None
    ) -> "_Followed | Told":
        """Store the run and execute it; an earlier run of the same key is answered as it stands."""
        node = self._node
        command = accept(
            begun.request,
            begun.bounds,
            subject=begun.claim.subject,
            admitted=begun.permit.taken == "granted",
            fingerprint=print_of,
            permit=begun.claim.holder,
            session=turn,
        )
        sent = clock.mono_ms()
        told = await node.around.shell.tell(
            run_id,
            command,
            command_id=begun.claim.holder,
            claim=Claiming(node.around.store.node, node.settings.lease_ms),
            fresh=fresh,
            not_after_ms=store_by(begun.permit.begin_by_ms, node.settings.permit_begin_ms) if command.admitted else 0,
        )
        if isinstance(told.answer, Refusal):
            raise Refused.of(told.answer.problem)
        if not told.events:
            return told
        node.execute(run_id, told, sent, begun.claim)
        return _Followed(run_id, self._feeds, node, run.grace_ms(told.state))

    async def _replayed(self, run_id: str, state: run.State, heads: Heads) -> Attended:
        if isinstance(state, run.Live):
            await self._end_lost(run_id, heads, resumes=run.resumable(state))
        await self._node.around.store.confirm_end(run_id)
        events = await self._node.around.shell.events(run_id)
        return _Replayed(run_id, self._feeds.replayed(run_id, events))

    async def _end_lost(self, run_id: str, heads: Heads, *, resumes: bool) -> None:
        """End a run that its node has left; one that a living node works on is in progress."""
        named = run_id if resumes else UNSET
        in_progress = Refused(
            "OPERATION_IN_PROGRESS", "The operation is still executing.", retryable=True, run_id=named
        )
        if resumes or run_id in self._node.executing or not self._node.sweeps.may_judge(run_id, heads):
            raise in_progress
        try:
            await self._node.take_over(run_id)
        except errors.Fenced:
            raise in_progress from None


class _Asked(NamedTuple):
    """A request, and who asks."""

    request: RunRequest
    holder: Holder
    waived: frozenset[str]
    streamed: bool


class _Begun(NamedTuple):
    """A request on its way to becoming a run."""

    request: RunRequest
    holder: Holder
    bounds: Bounds
    claim: Claim
    permit: Permit


def _run_in(session_id: str, fresh_id: str) -> str:
    """The id of a run of the session *session_id*; of one that cannot exist, anything: it is refused anyway."""
    return sibling(session_id, fresh_id) if values.is_actor_id(session_id) else fresh_id


def _check_bound(bounds: Bounds) -> None:
    if bounds.unbound:
        raise Refused("ADMISSION_IDENTITY_REQUIRED", "This provider instance is bound to no account.")


def _check_permit(permit: Permit) -> None:
    if permit.taken == "busy":
        raise Refused("BUSY", "All run slots are in use.", retryable=True)
    if permit.taken == "full":
        raise Refused("QUEUE_FULL", "All run slots are in use and the waiting line is full.", retryable=True)


def _check_streamed(request: RunRequest, *, streamed: bool) -> None:
    if request.application_tools is not None and not streamed:
        raise Refused("TOOL_STREAM_REQUIRED", "Application tools need an event stream.")
    if request.approvals is not None and not streamed:
        raise Refused("APPROVAL_STREAM_REQUIRED", "Interactive approvals need an event stream.")
