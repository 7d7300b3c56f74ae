"""What every store asks of an append first: that a repeat of it could be told from a new one; and what it makes of heads.

Nothing here waits, reads a clock or rolls a die.
"""

from eventstore import keys
from eventstore.store import Append, Heads, Part


def flaw(append: Append) -> str | None:
    """What makes *append* one that no store may write; a fault of its sender, whatever the heads are."""
    parts = append.parts
    if all(part.log is None and part.feed is None for part in parts):
        return "an append names at least one exact head"
    if len(parts) > 1 and len({part.actor for part in parts}) < len(parts):
        return "an actor has one part in an append"
    if append.outbox and not any(part.events or part.items for part in parts):
        return "an append to the outbox writes an event or an item, by which a repeat is seen"
    if any(due.reason == "lease" for due in append.due):
        return "the store itself keeps the due time of a lease"
    return next((why for part in parts if (why := _flaw(part))), None)


def _flaw(part: Part) -> str | None:
    if part.events and part.log is None:
        return "events need the exact version of the log"
    if part.items and part.feed is None and not part.events:
        return "items numbered by the store need an event, by which a repeat is seen"
    if part.events and not part.events[-1].items <= len(part.items):
        return "an event counts more items than its part has"
    if part.erase and (part.events or part.items or part.owner):
        return "an erasure writes nothing and claims nothing"
    if part.epitaph and not part.erase:
        return "an epitaph is what an erasure leaves"
    if part.trim and part != Part(actor=part.actor, log=part.log, trim=True):
        return "a trim names the exact log and does nothing else to its actor"
    if part.owner and part.epoch is None and not part.events:
        return "a claim without event names the epoch it found, so that a late repeat is fenced"
    return None


def partition(append: Append, partitions: int) -> int:
    """The one partition that *append* touches.

    Raises:
        ValueError: no store may write *append*, whatever the heads are.
    """
    if why := flaw(append):
        raise ValueError(why)
    first = keys.partition(append.parts[0].actor, partitions)
    others = [*(part.actor for part in append.parts[1:]), *(due.actor for due in append.due)]
    if any(keys.partition(actor, partitions) != first for actor in others):
        raise ValueError("an append touches one partition")
    return first


def marks(part: Part) -> bool:
    """Whether *part* changes owner, end or what is kept: a repeat of that is seen by its command alone."""
    return part.owner is not None or part.ended or part.erase or part.trim


def after(part: Part, heads: Heads, now_ms: int) -> Heads:
    """The heads once *part* is written at *now_ms* over *heads*."""
    ends = (part.ended or part.erase) and not heads.ended
    claims = bool(part.owner) and not part.ended
    feed = heads.feed + len(part.items)
    held = claims or (part.owner is None and not ends)
    return Heads(
        log=heads.log + len(part.events),
        feed=feed,
        feed_bytes=heads.feed_bytes + sum(map(len, part.items)),
        oldest=feed + 1 if part.erase or part.trim else heads.oldest,
        last_ms=max(heads.last_ms, now_ms) if part.events else heads.last_ms,
        epoch=heads.epoch + ends + claims,
        owner=(part.owner or "") if claims else heads.owner if held else "",
        lease_ms=now_ms + part.lease_ms if claims else heads.lease_ms if held else 0,
        ended=heads.ended or ends,
        erased=heads.erased or part.erase,
    )
