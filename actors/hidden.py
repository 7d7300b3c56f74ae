"""What old clients must not see in the pages of an interactive job, and how its events are counted without it (DESIGN §7).

Nothing here waits, reads a clock or rolls a die.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from actors import codec
from actors.events import ReviewAsked, ReviewSettled, TicketOffered
from eventstore.store import Entry, Item

_HIDDEN = (ReviewAsked, ReviewSettled, TicketOffered)


def hidden(log: Iterable[Entry]) -> list[int]:
    """The numbers of the feed items that pages leave out, ascending; each such event has one item, its last."""
    return [entry.feed_head for entry in log if isinstance(codec.decode_run(entry.data), _HIDDEN)]


def shown_before(number: int, left_out: Sequence[int]) -> int:
    """How many of the items up to *number* pages show."""
    return number - bisect_left(left_out, number + 1)


def feed_number(shown: int, left_out: Sequence[int]) -> int:
    """The number, in the feed, of the item that pages show as number *shown*."""
    number = shown
    for one in left_out:
        if one > number:
            break
        number += 1
    return number


def renumbered(items: Iterable[Item], left_out: Sequence[int]) -> list[Item]:
    """Those of *items* that pages show, under the numbers that they have there."""
    away = set(left_out)
    return [Item(shown_before(item.number, left_out), item.data) for item in items if item.number not in away]
