"""One Host idempotency key: which request it was claimed for, and how that went (Host runtime §8, DESIGN §3).

It conflicts across run ids too, so it is an actor of its own, in the key's partition. What it says is true because the
run's log says so first: the change is written under a command id made of the key, and the outcome is recorded after it.
Nothing here waits, reads a clock or rolls a die.
"""

from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from actors.decider import Decision, Receipt, Refusal, Standing
from actors.errors import Problem
from actors.events import HostKeyEvent, HostKeyForgotten, HostKeyReserved, HostKeySettled

KEPT_MS = 8 * 24 * 3_600 * 1_000
"""How long a key is kept; a day longer than a run is by default, whose id and revision guard against a second effect."""
CONFLICT = Problem("HOST_KEY_CONFLICT", "The idempotency key was used for another request.")

# Commands.


class Reserve(Struct, frozen=True, tag="reserve"):
    """Claim the key for a request about the run *run_id*."""

    subject: str
    fingerprint: str
    run_id: str


class Settle(Struct, frozen=True, tag="settle"):
    """Record how the request went."""

    outcome: Raw
    applied: bool


class Forget(Struct, frozen=True, tag="forget"):
    """Its time is over, if that is so by now."""


Command: TypeAlias = Reserve | Settle | Forget

# States.


class New(Struct, frozen=True, tag="new"):
    """Never used."""


class Reserved(Struct, frozen=True, tag="reserved"):
    """Claimed, and how it went is not recorded: whoever comes again finishes it."""

    reserved: HostKeyReserved


class Settled(Struct, frozen=True, tag="settled"):
    """Claimed, and done."""

    reserved: HostKeyReserved
    outcome: Raw
    applied: bool


class Gone(Struct, frozen=True, tag="gone"):
    """Forgotten."""


State: TypeAlias = New | Reserved | Settled | Gone


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """What *command* causes; whoever was first has the key."""
    match state, command:
        case New(), Reserve(subject, fingerprint, run_id):
            return Decision([HostKeyReserved(now_ms, subject, fingerprint, run_id)], Receipt("new"))
        case ((Reserved() | Settled()), Reserve()) if state.reserved.fingerprint != command.fingerprint:
            return Decision([], Refusal(CONFLICT))
        case Reserved(), Settle(outcome, applied):
            return Decision([HostKeySettled(now_ms, outcome, applied)], Receipt())
        case Settled(applied=False), Settle(outcome, applied=True):
            # A twin was refused first, and then this one changed the run: its log is the truth.
            return Decision([HostKeySettled(now_ms, outcome, applied=True)], Receipt())
        case ((Reserved() | Settled()), Forget()) if now_ms >= state.reserved.at_ms + KEPT_MS:
            return Decision([HostKeyForgotten(now_ms)], Receipt())
        case _:
            return Decision([], Receipt("already"))


def evolve(state: State, event: HostKeyEvent) -> State:
    """The state after *event*; events are facts, so this never refuses one."""
    match event:
        case HostKeyReserved():
            return Reserved(event)
        case HostKeySettled(outcome=outcome, applied=applied):
            if not isinstance(state, Reserved | Settled):
                return state
            # A copy, since the bytes of an event may lie within a larger message.
            return Settled(state.reserved, msgspec.Raw(bytes(outcome)), applied)
        case HostKeyForgotten():
            return Gone()


def standing(state: State) -> Standing:
    """What the store must know: a key is forgotten in time, with its payload."""
    match state:
        case New():
            return Standing()
        case Reserved() | Settled():
            return Standing(due={"retention": state.reserved.at_ms + KEPT_MS})
        case Gone():
            return Standing(ended=True, erased=True, due={"permit": 0})
