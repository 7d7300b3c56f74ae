"""Conversations as their owners use them, on any node: begun, read, deleted, and continued by runs.

The order of checks is the protocol's (sessions §3); who is first is decided by the session's log.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from actors import run, session, values
from actors.companions import SESSIONS_POOL
from actors.decider import Refusal
from actors.errors import Problem, Refused
from actors.events import SessionEvent, SessionMode, SessionTurn, Visible
from actors.request import ProviderFacts, RunRequest
from actors.shell import TRIES, Shell, TooLate
from eventstore.store import Caps, Claim, Store, Unavailable

CAPABILITIES: Mapping[SessionMode, str] = {"history": "historyContinuation", "native": "nativeContinuation"}


class Holder(NamedTuple):
    """Who asks, and what it may do."""

    subject: str
    may_use: Callable[[str], bool]
    """Of a provider."""
    operations: frozenset[str]
    """Of create, read, continue and delete."""


def everything_of(subject: str) -> Holder:
    """*subject* as somebody who may do everything with its own sessions."""

    def any_provider(_: str) -> bool:
        return True

    return Holder(subject, any_provider, frozenset({"create", "read", "continue", "delete"}))


class Wanted(NamedTuple):
    """A conversation as it is asked for."""

    provider: str
    model: str
    mode: SessionMode
    history: tuple[Visible, ...] = ()
    instructions: str | None = None


class Shown(NamedTuple):
    """A session as one look found it."""

    id: str
    state: session.Open


class Surroundings(NamedTuple):
    """What the sessions of a node work with."""

    store: Store
    sessions: Shell[session.State, session.Command, SessionEvent]
    runs: Shell[run.State, run.Command, object]
    fresh_id: Callable[[], str]
    providers: Mapping[str, ProviderFacts]
    account_of: Callable[[str], str]
    """The account that a provider is bound to; empty for none."""
    swept: Callable[[], Awaitable[None]]
    """Do now what is due everywhere: what has expired makes room."""
    permit_begin_ms: int


class Sessions:
    """Keeps the conversations of a deployment."""

    def __init__(self, around: Surroundings, limits: session.Limits) -> None:
        self._around = around
        self._limits = limits
        self._caps = Caps(total=limits.max_entries)

    async def create(self, holder: Holder, wanted: Wanted) -> Shown:
        """Begin a conversation.

        Raises:
            Refused: FORBIDDEN, UNKNOWN_PROVIDER, UNSUPPORTED_CONTINUATION, UNSUPPORTED_MODEL, SESSION_ACCOUNT_REQUIRED,
                SESSION_CAPACITY, SESSION_CONTEXT_LIMIT, in this order (sessions §3).
            Unavailable: the store did not answer.
        """
        account = self._account_for(holder, wanted)
        for _ in range(TRIES):
            try:
                return await self._created(holder.subject, wanted, account)
            except TooLate:
                continue
        raise Unavailable("no session could be stored within the time that its place is kept")

    async def read(self, holder: Holder, session_id: str) -> Shown:
        """Look at a conversation; its history while a turn runs is that before the turn.

        Raises:
            Refused: SESSION_NOT_FOUND, FORBIDDEN, SESSION_ACCOUNT_REQUIRED, SESSION_ACCOUNT_CHANGED, in this order.
            Unavailable: the store did not answer.
        """
        state, _ = await self._found(holder, session_id, "read")
        self._check_account(state)
        return Shown(session_id, state)

    async def delete(self, holder: Holder, session_id: str) -> None:
        """Forget a conversation, and cancel the turn that runs, in one step.

        Raises:
            Refused: SESSION_NOT_FOUND, FORBIDDEN, in this order.
            Unavailable: the store did not answer.
        """
        for _ in range(TRIES):
            state, _ = await self._found(holder, session_id, "delete")
            if await self._deleted(session_id, state):
                await self._around.store.give(SESSIONS_POOL, session_id, self._caps)
                await self._around.store.settle(session_id, "permit")
                return
        raise Unavailable("the session's turns begin and end too fast to delete it", 100)

    async def reserved(self, holder: Holder, request: RunRequest) -> SessionTurn:
        """What the session finds that *request* names, for its next turn, which is to be accepted with it.

        Raises:
            Refused: as `read`, then why it cannot be the next turn (sessions §3).
            Unavailable: the store did not answer.
        """
        named = request.session
        assert named is not None  # noqa: S101 - asked for turns only
        state, version = await self._found(holder, named.id, "continue")
        self._check_account(state)
        wish = session.Wish(
            provider=request.provider,
            model=request.model,
            revision=named.revision,
            input=request.input,
            continues=self._continues(state.created.provider, state.created.mode),
        )
        turn = session.turn(named.id, state, version, wish, self._limits)
        if isinstance(turn, Problem):
            raise Refused.of(turn)
        return turn

    async def allowed(self, holder: Holder, request: RunRequest) -> None:
        """Check that a turn's outcome may be told again: its session is there, and could still be continued (sessions §7).

        Raises:
            Refused: as `read`, SESSION_PROVIDER_MISMATCH or UNSUPPORTED_CONTINUATION.
        """
        named = request.session
        assert named is not None  # noqa: S101 - asked for turns only
        state, _ = await self._found(holder, named.id, "continue")
        self._check_account(state)
        created = state.created
        if (request.provider, request.model) != (created.provider, created.model):
            raise Refused.of(session.MISMATCH)
        if not self._continues(created.provider, created.mode):
            raise Refused.of(session.UNSUPPORTED)

    async def _found(self, holder: Holder, session_id: str, operation: str) -> tuple[session.Open, int]:
        """Look a session up for an operation, with the version of its log."""
        if not values.is_actor_id(session_id):
            raise Refused.of(session.NOT_FOUND)
        state, heads = await self._around.sessions.state(session_id)
        opened = session.found(state, holder.subject, self._around.store.now_ms())
        if opened is None:
            raise Refused.of(session.NOT_FOUND)
        if not holder.may_use(opened.created.provider) or operation not in holder.operations:
            raise Refused("FORBIDDEN", "This token does not allow the operation.")
        return opened, heads.log

    def _account_for(self, holder: Holder, wanted: Wanted) -> str:
        if "create" not in holder.operations or not holder.may_use(wanted.provider):
            raise Refused("FORBIDDEN", "This token does not allow the operation.")
        facts = self._around.providers.get(wanted.provider)
        if facts is None:
            raise Refused("UNKNOWN_PROVIDER", "There is no such provider instance")
        if not self._continues(wanted.provider, wanted.mode):
            raise Refused.of(session.UNSUPPORTED)
        if facts.models is not None and wanted.model not in facts.models:
            raise Refused("UNSUPPORTED_MODEL", "This provider instance does not offer that model")
        account = self._around.account_of(wanted.provider)
        if not account:
            raise Refused("SESSION_ACCOUNT_REQUIRED", "This provider instance is bound to no account.")
        return account

    async def _created(self, subject: str, wanted: Wanted, account: str) -> Shown:
        store, session_id = self._around.store, self._around.fresh_id()
        claim = Claim(SESSIONS_POOL, session_id, store.node, subject)
        begin_by_ms = await self._place(claim)
        command = session.Create(
            subject=subject,
            provider=wanted.provider,
            model=wanted.model,
            account=account,
            mode=wanted.mode,
            history=wanted.history,
            instructions=wanted.instructions,
            limits=self._limits,
        )
        told = await self._around.sessions.tell(
            session_id, command, command_id=session_id, fresh=True, not_after_ms=begin_by_ms
        )
        if isinstance(told.answer, Refusal):
            await store.give(SESSIONS_POOL, session_id, self._caps)
            raise Refused.of(told.answer.problem)
        await store.begun(claim)
        assert isinstance(told.state, session.Open)  # noqa: S101 - a random id is new
        return Shown(session_id, told.state)

    async def _place(self, claim: Claim) -> int:
        """Take a place among the sessions; what has expired by now makes room first."""
        take = self._around.store.take
        permit = await take(claim, self._caps, self._around.permit_begin_ms)
        if permit.taken != "granted":
            await self._around.swept()
            permit = await take(claim, self._caps, self._around.permit_begin_ms)
        if permit.taken != "granted":
            raise Refused("SESSION_CAPACITY", "No further session can be kept.")
        return permit.begin_by_ms

    async def _deleted(self, session_id: str, state: session.Open) -> bool:
        """Delete it as it stands; False where it has moved on."""
        command_id = self._around.fresh_id()
        if state.running:
            ended = run.Cancel(session.DELETED, "deleted")
            return bool((await self._around.runs.tell(state.running, ended, command_id=command_id)).events)
        told = await self._around.sessions.tell(session_id, session.Delete(), command_id=command_id)
        return bool(told.events)

    def _check_account(self, state: session.Open) -> None:
        account = self._around.account_of(state.created.provider)
        if not account:
            raise Refused("SESSION_ACCOUNT_REQUIRED", "This provider instance is bound to no account any more.")
        if account != state.created.account:
            raise Refused("SESSION_ACCOUNT_CHANGED", "The provider instance is bound to another account by now.")

    def _continues(self, provider: str, mode: SessionMode) -> bool:
        facts = self._around.providers.get(provider)
        return facts is not None and facts.capabilities.get(CAPABILITIES[mode]) is True
