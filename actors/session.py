"""One conversation: its history, its one running turn, and what a next turn finds.

A turn is reserved with the acceptance of its run and ends with it, in the same append (DESIGN §3): those events are the
run's companions, and this actor's own commands are only the others.
Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from actors.decider import Companion, Decision, Receipt, Refusal, Standing
from actors.errors import Problem
from actors.events import (
    SessionCreated,
    SessionDeleted,
    SessionEvent,
    SessionMode,
    SessionTurn,
    Stored,
    ToolCompleted,
    TurnCommitted,
    TurnCompleted,
    TurnReleased,
    TurnReserved,
    Visible,
)
from actors.shapes import units
from eventstore.store import Reason

MESSAGES_MAX = 2_048
"""Messages that a model is told (sessions §4)."""
CONTENT_UNITS_MAX = 100_000
"""Characters of one visible message."""
_EMPTY = b'{"history":[],"messages":[]}'
_encode = msgspec.json.Encoder().encode

NOT_FOUND = Problem("SESSION_NOT_FOUND", "There is no such session.")
DELETED = Problem("SESSION_DELETED", "The session was deleted.")
MISMATCH = Problem("SESSION_PROVIDER_MISMATCH", "The session belongs to another provider or model.")
UNSUPPORTED = Problem("UNSUPPORTED_CONTINUATION", "The provider cannot continue sessions of this mode.")
TOO_LARGE = Problem("SESSION_CONTEXT_LIMIT", "The session would be larger than may be kept.")
UNFIT = Problem("INVALID_SESSION_STATE", "The provider's state is no JSON, and cannot be kept.")


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of sessions on this host (sessions §1)."""

    retention_ms: int
    max_entries: int = 1_000
    max_messages: int = 100
    max_record_bytes: int = 1_000_000


# Commands.


class Create(Struct, frozen=True, tag="create", kw_only=True):
    """Begin a conversation."""

    subject: str
    provider: str
    model: str
    account: str
    mode: SessionMode
    history: tuple[Visible, ...] = ()
    instructions: str | None = None
    limits: Limits


class Delete(Struct, frozen=True, tag="delete"):
    """Forget a conversation of which no turn is running."""


class Expire(Struct, frozen=True, tag="expire"):
    """Forget a conversation that nobody went on with, if that is so by now."""


Command: TypeAlias = Create | Delete | Expire

# States.


class New(Struct, frozen=True, tag="new"):
    """Nothing was begun yet."""


class Size(Struct, frozen=True, gc=False):
    """How much a session holds: visible messages, messages for a model, and bytes as sessions §4 counts them."""

    visible: int = 0
    messages: int = 0
    record_bytes: int = len(_EMPTY)

    def with_visible(self, added: Iterable[Visible]) -> "Size":
        """The size with *added* to the visible history."""
        size = self
        for one in added:
            size = Size(size.visible + 1, size.messages, size.record_bytes + _length(one, size.visible))
        return size

    def with_messages(self, added: Iterable[Stored | Visible]) -> "Size":
        """The size with *added* to what a model is told."""
        size = self
        for one in added:
            size = Size(size.visible, size.messages + 1, size.record_bytes + _length(one, size.messages))
        return size


class Open(Struct, frozen=True, gc=False, tag="open"):
    """A conversation: ready, running a turn, or interrupted for good."""

    created: SessionCreated
    revision: int
    updated_ms: int
    history: tuple[Visible, ...]
    size: Size
    stored: tuple[Stored, ...] = ()
    """In native mode, every message after the history it was created with."""
    running: str = ""
    """The run of the turn that is under way."""
    interrupted: bool = False

    @property
    def expires_ms(self) -> int:
        """When it is forgotten; means nothing while a turn runs."""
        return self.updated_ms + self.created.retention_ms


class Gone(Struct, frozen=True, tag="gone"):
    """Deleted or expired."""


State: TypeAlias = New | Open | Gone


class Wish(Struct, frozen=True, kw_only=True):
    """What a run asks of the session it continues."""

    provider: str
    model: str
    revision: int
    input: str
    continues: bool
    """Whether the provider still can continue sessions of this mode."""


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """What *command* causes."""
    match state, command:
        case New(), Create():
            return _begun(command, now_ms)
        case Open(running=""), Delete():
            return Decision([SessionDeleted(now_ms)], Receipt())
        case Open(running=""), Expire() if now_ms >= state.expires_ms:
            return Decision([SessionDeleted(now_ms, expired=True)], Receipt())
        case Open(), Delete():
            return Decision([], Refusal(Problem("SESSION_BUSY", "A turn is running; it is deleted with its run.")))
        case _:
            return Decision([], Receipt("already"))


def evolve(state: State, event: SessionEvent) -> State:
    """The state after *event*; events are facts, so this never refuses one."""
    match event:
        case SessionCreated(at_ms=at_ms, history=history):
            return Open(event, 0, at_ms, history, _first_size(event))
        case TurnReserved(run_id=run_id):
            return _changed(state, running=run_id)
        case TurnCommitted():
            return _committed(state, event)
        case TurnReleased(at_ms=at_ms, interrupted=interrupted):
            return _ended(state, at_ms, interrupted=interrupted)
        case SessionDeleted():
            return Gone()


def standing(state: State) -> Standing:
    """What the store must know: an open session is forgotten in time, one that is over leaves nothing but its permit."""
    match state:
        case New():
            return Standing()
        case Open(running=""):
            return Standing(due={"retention": state.expires_ms})
        case Open():
            return Standing()
        case Gone():
            return Standing(ended=True, erased=True, due={"permit": 0})


def found(state: State, subject: str, now_ms: int) -> Open | None:
    """The session as *subject* may see it: not another's, and not one that is due to be forgotten."""
    if not isinstance(state, Open) or state.created.subject != subject:
        return None
    return None if not state.running and now_ms >= state.expires_ms else state


def turn(session_id: str, state: Open, version: int, wish: Wish, limits: Limits) -> SessionTurn | Problem:
    """What a run finds that is the session's next turn, or why it cannot be (sessions §3); *version* is the log's."""
    created = state.created
    if (wish.provider, wish.model) != (created.provider, created.model):
        return MISMATCH
    if not wish.continues:
        return UNSUPPORTED
    if wish.revision != state.revision:
        return Problem("SESSION_REVISION_CONFLICT", "The session stands at another revision.")
    if state.running:
        return Problem("SESSION_BUSY", "Another turn is running.")
    if state.interrupted:
        return Problem("SESSION_INTERRUPTED", "An earlier turn was interrupted; begin another session.")
    asked = Visible("user", wish.input)
    grown = state.size.with_visible([asked]).with_messages([asked])
    if state.size.visible + 2 > limits.max_messages or _too_large(grown, limits.max_record_bytes, [asked]):
        return TOO_LARGE
    return SessionTurn(
        session_id,
        version + 1,
        state.revision,
        created.mode,
        created.at_ms,
        state.updated_ms,
        created.retention_ms,
        state.size.visible,
        state.size.messages,
        state.size.record_bytes,
        limits.max_record_bytes,
        tuple(call.id for one in state.stored for call in one.tool_calls),
    )


def refusal_of_step(taken: SessionTurn, asked: str, said: Iterable[TurnCompleted | ToolCompleted]) -> Problem | None:
    """Why a turn in which *said* was said may not ask a model again (sessions §4)."""
    grown = _size(taken).with_visible([Visible("user", asked)]).with_messages(stored(asked, said))
    return TOO_LARGE if _too_large(grown, taken.record_bytes_max, ()) else None


def refusal_of_commit(taken: SessionTurn, asked: str, said: Sequence[TurnCompleted | ToolCompleted]) -> Problem | None:
    """Why a turn that is answered may not become part of its session."""
    shown = _shown(asked, said)
    told = stored(asked, said) if taken.mode == "native" else shown
    grown = _size(taken).with_visible(shown).with_messages(told)
    return TOO_LARGE if _too_large(grown, taken.record_bytes_max, shown) else None


def reserved(taken: SessionTurn, run_id: str, at_ms: int) -> Companion:
    """What the acceptance of a turn's run writes here."""
    event = TurnReserved(at_ms, run_id)
    return Companion(taken.id, taken.version - 1, _encode(event), due=(("retention", None),))


def committed(
    taken: SessionTurn, run_id: str, asked: str, said: Sequence[TurnCompleted | ToolCompleted], at_ms: int
) -> Companion:
    """What the completion of a turn's run writes here."""
    kept = tuple(stored(asked, said)) if taken.mode == "native" else ()
    shown = _shown(asked, said)
    event = TurnCommitted(_after(taken, at_ms), run_id, (shown[0], shown[1]), kept)
    return Companion(taken.id, taken.version, _encode(event), due=_forgotten(taken, at_ms))


def released(taken: SessionTurn, run_id: str, at_ms: int, *, interrupted: bool) -> Companion:
    """What any other end of a turn's run writes here."""
    event = TurnReleased(_after(taken, at_ms), run_id, interrupted)
    return Companion(taken.id, taken.version, _encode(event), due=_forgotten(taken, at_ms))


def deleted(taken: SessionTurn, at_ms: int) -> Companion:
    """What the end of a run writes here that was cancelled because its session is deleted."""
    due: tuple[tuple[Reason, int | None], ...] = (("retention", None), ("permit", at_ms))
    return Companion(taken.id, taken.version, _encode(SessionDeleted(at_ms)), ended=True, erased=True, due=due)


def stored(asked: str, said: Iterable[TurnCompleted | ToolCompleted]) -> Iterator[Stored]:
    """Return the messages of a turn as the next one tells them to a model in native mode."""
    yield Stored("user", asked)
    for one in said:
        if isinstance(one, TurnCompleted):
            yield Stored("assistant", one.text, one.tool_calls, one.native)
        else:
            yield Stored("tool", bytes(one.output).decode(), call_id=one.call_id, name=one.name)


def _begun(command: Create, now_ms: int) -> Decision:
    created = SessionCreated(
        now_ms,
        command.subject,
        command.provider,
        command.model,
        command.account,
        command.mode,
        command.limits.retention_ms,
        command.history,
        command.instructions,
    )
    size = _first_size(created)
    if size.visible > command.limits.max_messages or _too_large(size, command.limits.max_record_bytes, created.history):
        return Decision([], Refusal(TOO_LARGE))
    return Decision([created], Receipt())


def _first_size(created: SessionCreated) -> Size:
    size = Size().with_visible(created.history).with_messages(created.history)
    if created.instructions is None:
        return size
    told = len(b',"instructions":') + len(_encode(created.instructions))
    return Size(size.visible, size.messages, size.record_bytes + told)


def _size(taken: SessionTurn) -> Size:
    return Size(taken.visible, taken.messages, taken.record_bytes)


def _too_large(size: Size, bytes_max: int, shown: Iterable[Visible]) -> bool:
    too_long = any(units(one.content) > CONTENT_UNITS_MAX for one in shown)
    return too_long or size.messages > MESSAGES_MAX or size.record_bytes > bytes_max


def _length(one: Stored | Visible, before: int) -> int:
    """Bytes that *one* adds to a list with *before* members."""
    return len(_encode(one)) + (1 if before else 0)


def _shown(asked: str, said: Sequence[TurnCompleted | ToolCompleted]) -> tuple[Visible, Visible]:
    answer = said[-1] if said else None
    return Visible("user", asked), Visible("assistant", answer.text if isinstance(answer, TurnCompleted) else "")


def _committed(state: State, event: TurnCommitted) -> State:
    if not isinstance(state, Open):
        return state
    told = event.stored if state.created.mode == "native" else event.said
    return msgspec.structs.replace(
        state,
        revision=state.revision + 1,
        updated_ms=event.at_ms,
        history=state.history + event.said,
        stored=state.stored + event.stored,
        size=state.size.with_visible(event.said).with_messages(told),
        running="",
    )


def _ended(state: State, at_ms: int, *, interrupted: bool) -> State:
    if not isinstance(state, Open):
        return state
    return msgspec.structs.replace(state, updated_ms=at_ms, running="", interrupted=state.interrupted or interrupted)


def _changed(state: State, **changes: object) -> State:
    return msgspec.structs.replace(state, **changes) if isinstance(state, Open) else state


def _after(taken: SessionTurn, at_ms: int) -> int:
    """*at_ms*, but never before the session's last change: another node's clock may have written that."""
    return max(at_ms, taken.updated_ms)


def _forgotten(taken: SessionTurn, at_ms: int) -> tuple[tuple[Reason, int | None], ...]:
    return (("retention", _after(taken, at_ms) + taken.retention_ms),)
