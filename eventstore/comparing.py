"""Tells the readers of a node where their feeds stand, again and again: what they heard was only a hint (DESIGN §6)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import anyio

from eventstore import keys
from eventstore.follow import Hub
from eventstore.link import Word
from eventstore.store import Unavailable

COMPARED_S: Final = 10.0
"""How often all heads are asked for: whatever nobody heard of is found within this time."""
_AT_ONCE: Final = 256
log = logging.getLogger(__name__)


class Piped(Protocol):
    """Commands to one primary in one write."""

    def __call__(self, *commands: Sequence[Word]) -> Awaitable[Sequence[Any]]:
        """Send them; raises `Unavailable` where nothing answers."""
        ...


async def keep_comparing(hub: Hub, tag_of: Callable[[str], str], piped: Piped) -> None:
    """Compare the heads of all that is read through *hub* with what was heard, until cancelled."""
    while True:
        await anyio.sleep(COMPARED_S)
        for tag, actors in _by_tag(hub.followed, tag_of).items():
            for at in range(0, len(actors), _AT_ONCE):
                await _tried(hub, tag, actors[at : at + _AT_ONCE], piped)


async def _tried(hub: Hub, tag: str, actors: Sequence[str], piped: Piped) -> None:
    """Compare some, if that can be done now: the next round comes, and a node does not end of it."""
    try:
        await _compare(hub, tag, actors, piped)
    except Unavailable:
        log.debug("partition %s does not answer, and was not compared", tag)
    except Exception:
        log.exception("to compare the heads of partition %s failed and is tried again", tag)


async def _compare(hub: Hub, tag: str, actors: Sequence[str], piped: Piped) -> None:
    found = await piped(*[("HMGET", keys.heads(tag, actor), "w", "x") for actor in actors])
    for actor, (head, ended) in zip(actors, found, strict=True):
        hub.compare(actor, int(head or 0), ended=ended == b"1")


def _by_tag(actors: Sequence[str], tag_of: Callable[[str], str]) -> dict[str, list[str]]:
    """*actors* by their partition."""
    found: dict[str, list[str]] = {}
    for actor in actors:
        found.setdefault(tag_of(actor), []).append(actor)
    return found
