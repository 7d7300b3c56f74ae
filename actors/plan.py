"""An append before it is sent: what a decision writes, and where, and whose the actor is afterwards.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from actors.decider import Companion, Receipt, Refusal, Standing
from eventstore.store import Append, Due, Event, Heads, Listed, Part

S = TypeVar("S")


class Hold:
    """An executor's grip on its actor: its epoch, where its feed stands, and text not yet written."""

    __slots__ = ("actor", "epoch", "feed", "feed_bytes", "pending")

    def __init__(self, actor: str, epoch: int, feed: int, feed_bytes: int = 0) -> None:
        self.actor = actor
        self.epoch = epoch
        self.feed = feed
        self.feed_bytes = feed_bytes
        self.pending: list[bytes] = []
        """Items that go before the next fact's, or with the next delta append."""

    @classmethod
    def of(cls, actor: str, heads: Heads) -> "Hold":
        """The grip of whoever owns *actor* by *heads*."""
        return cls(actor, heads.epoch, heads.feed, heads.feed_bytes)


class Claiming(NamedTuple):
    """The append also makes *node* the owner; *if_parked*: only where nobody is because the actor waits."""

    node: str
    lease_ms: int
    if_parked: bool = False
    feed: int | None = None
    """Where the feed must stand, if that matters: nothing more was shown than the claimant knows of."""


class Planned(NamedTuple, Generic[S]):
    """An append before it is sent, and what the actor will be after it."""

    events: Sequence[Any]
    answer: Receipt | Refusal
    state: S
    feed: Any
    encoded: Sequence[Event]
    items: Sequence[bytes]
    beside: Sequence[Companion]
    before: Standing
    after: Standing

    def append(
        self, actor: str, version: int, command_id: str, hold: Hold | None, claim: Claiming | None, not_after_ms: int
    ) -> Append:
        """The append as the store takes it."""
        part = Part(
            actor=actor,
            log=version,
            events=() if self.after.erased else tuple(self.encoded),
            feed=hold.feed if hold is not None else None if claim is None else claim.feed,
            items=tuple(self.items),
            epoch=None if hold is None else hold.epoch,
            owner=self._owner(hold, claim),
            lease_ms=0 if claim is None else claim.lease_ms,
            ended=self.after.ended,
            erase=self.after.erased,
        )
        return Append(
            command=command_id,
            parts=(part, *map(_part, self.beside)),
            due=(*_due(actor, self.before, self.after), *_beside(self.beside)),
            listed=(*_listed(actor, self.before, self.after), *_listed_beside(self.beside)),
            outbox=tuple(one.audit for one in self.beside if one.audit),
            not_after_ms=not_after_ms,
        )

    def _owner(self, hold: Hold | None, claim: Claiming | None) -> str | None:
        """Whose the actor is from now on: a claim's, nobody's where its executor parks it, else as before."""
        if claim is not None and (not claim.if_parked or (self.before.parked and not self.after.parked)):
            return claim.node
        return "" if hold is not None and (self.after.parked or self.after.released) else None


def _part(companion: Companion) -> Part:
    return Part(
        actor=companion.actor,
        log=companion.log,
        events=() if companion.erased else (Event(companion.event),),
        ended=companion.ended,
        erase=companion.erased,
    )


def _beside(companions: Sequence[Companion]) -> list[Due]:
    return [Due(one.actor, reason, at_ms) for one in companions for reason, at_ms in one.due]


def _listed_beside(companions: Sequence[Companion]) -> list[Listed]:
    return [Listed(name, one.actor, score) for one in companions for name, score in one.listed]


def _due(actor: str, before: Standing, after: Standing) -> list[Due]:
    gone = [Due(actor, reason, None) for reason in before.due if reason not in after.due]
    return gone + [Due(actor, reason, at) for reason, at in after.due.items() if before.due.get(reason) != at]


def _listed(actor: str, before: Standing, after: Standing) -> list[Listed]:
    gone = [Listed(name, actor, None) for name in before.listed if name not in after.listed]
    return gone + [Listed(name, actor, at) for name, at in after.listed.items() if before.listed.get(name) != at]
