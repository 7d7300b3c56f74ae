"""Calls the roll of a deployment: every actor whose heads are kept, some at a time, so that no server is held up."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from eventstore import keys, words
from eventstore.comparing import Piped
from eventstore.link import ConnectionLost, Link, ReplyError, Word
from eventstore.store import Heads, Met, Unavailable

SCANNED: Final = 512
"""Keys that one step of a scan passes over: less than a millisecond of a server."""
MET_AT_ONCE: Final = 32
"""Actors that are read at once; each may have accepted a request of the largest size."""
EPITAPH_BYTES_MAX: Final = 4_096
"""An epitaph is a subject, an origin and a fingerprint; a snapshot is longer, and nobody wants it here."""


async def called(links: Sequence[Link], piped: Piped, tag_of: Callable[[str], str]) -> AsyncGenerator[Sequence[Met]]:
    """Read every actor on the primaries behind *links*; one that is there all the while is met, maybe twice.

    Raises:
        Unavailable: a primary did not answer: a scan cannot be gone on with elsewhere.
    """
    for link in links:
        async for actors in _named(link):
            for at in range(0, len(actors), MET_AT_ONCE):
                yield await met(actors[at : at + MET_AT_ONCE], piped, tag_of)


async def met(actors: Sequence[str], piped: Piped, tag_of: Callable[[str], str]) -> list[Met]:
    """Read *actors*, in their order; raises `Unavailable`."""
    asked = [words for actor in actors for words in _asked(tag_of(actor), actor)]
    replies = await piped(*asked) if asked else ()
    at = range(0, len(replies), 3)
    return [_met(actor, *replies[number : number + 3]) for actor, number in zip(actors, at, strict=True)]


async def _named(link: Link) -> AsyncGenerator[Sequence[str]]:
    cursor: bytes | int = 0
    while True:
        try:
            cursor, found = await link.call("SCAN", cursor, "MATCH", keys.heads_pattern(), "COUNT", SCANNED)
        except (ConnectionLost, ReplyError) as error:
            raise Unavailable(str(error)) from error
        yield [keys.actor_of(key) for key in map(bytes.decode, found) if keys.kind_of(key) == "heads"]
        if cursor == b"0":
            return


def _asked(tag: str, actor: str) -> Sequence[Sequence[Word]]:
    """What is asked of an actor; where there is a snapshot and no epitaph, only its beginning comes, and is not looked at."""
    return (
        ("HMGET", keys.heads(tag, actor), *words.FIELDS),
        ("XRANGE", keys.log(tag, actor), "-", "+", "COUNT", 1),
        ("GETRANGE", keys.snapshot(tag, actor), 0, EPITAPH_BYTES_MAX - 1),
    )


def _met(actor: str, fields: Sequence[bytes | None], log: Sequence[Any], kept: bytes) -> Met:
    heads: Heads = words.heads(fields)
    epitaph = words.snapshot(kept) if heads.erased and kept else None
    if epitaph is not None:
        return Met(actor, heads, epitaph.data)
    return Met(actor, heads, words.entries(log, "")[0].data if log and heads.log else b"")
