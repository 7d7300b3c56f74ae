"""What every actor is to its shell: three pure functions and how its events look as bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from actors.errors import Problem
from eventstore.store import Reason

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")


class Receipt(NamedTuple):
    """The command was carried out, or what it asks for is already so; *note* says which where it matters."""

    note: str = ""


class Refusal(NamedTuple):
    """The command was refused for the sender's reasons; events may have been written all the same."""

    problem: Problem


class Decision(NamedTuple):
    """What a command causes, and what its sender is told; the answer follows from the events."""

    events: Sequence[Any]
    answer: Receipt | Refusal


class Standing(Struct, frozen=True):
    """What the store must know of a state: whether it ended, and when something must happen to it."""

    ended: bool = False
    parked: bool = False
    """Only a person or an application can carry it on, and no client is attached: it needs no owner meanwhile."""
    released: bool = False
    """Its owner let go of it, for whoever takes it up."""
    erased: bool = False
    """Its payload goes in the step that ends it, and with it the event that says so."""
    due: Mapping[Reason, int] = {}
    listed: Mapping[str, int] = {}
    """List name to score, for example `runs:<subject>` to the time it was accepted."""


class Companion(NamedTuple):
    """One event of another actor of the same partition, written in the same append."""

    actor: str
    log: int
    """The exact version its log must have."""
    event: bytes
    ended: bool = False
    erased: bool = False
    """Its payload goes in the same step, and with it *event*."""
    due: tuple[tuple[Reason, int | None], ...] = ()
    """What must happen to it when; None clears."""
    listed: tuple[tuple[str, int | None], ...] = ()
    """In which lists it stands from now on, with its score there; None takes it off."""
    audit: bytes = b""
    """A record for the audit stream; empty for none."""


class Kind(Struct, Generic[S, C, E], frozen=True):
    """One kind of actor, as the shell needs it."""

    name: str
    initial: S
    decide: Callable[[S, C, int], Decision]
    evolve: Callable[[S, E], S]
    standing: Callable[[S], Standing]
    encode: Callable[[E], bytes]
    decode: Callable[[bytes], E]
    overflow: Callable[[str], C]
    """The command that ends an actor whose next record would be too large; takes the reason's code."""
    companions: Callable[[str, S, E, S], Iterable[Companion]]
    """Of actor id, state before, event and state after: what else is written with the event."""
    is_slow: Callable[[S, C], bool]
    """Whether deciding may take long enough to be done in a thread, as a pure function may be."""
    feed_max: Callable[[S], int]
    """How many bytes the feed may have; 0 is no bound of its own."""
    epitaph: Callable[[S, int], bytes]
    """The event that stays for ever of a state whose payload is erased at a time; empty for none."""
    freeze: Callable[[S], bytes]
    """A state as JSON, for a snapshot."""
    thaw: Callable[[bytes], S]
    """The state that `freeze` made; raises `msgspec.MsgspecError` for one it cannot read."""
    shape: str
    """Changes whenever snapshots made before must not be read any more."""
