"""What this node wrote in the last moments, sent again to a server that came back and may lack it (DESIGN §8).

An append carries its command id and the exact heads it was written on, so it is sent unchanged: where it is there, that is
seen; where it is lost and nothing took its place, it is written again; where something did, it is refused.
Several nodes may have written to one actor in turn. What one of them cannot write yet, because what another wrote before
is missing, is tried again a little later.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from eventstore import keys, words
from eventstore.link import ELSEWHERE, Call, ReplyError, passing
from eventstore.store import Append, Conflict, Fenced

log = logging.getLogger(__name__)

KEPT_S: Final = 2.0
"""How long before the last append one is remembered."""
APPENDS_MAX: Final = 2_048
"""How many are remembered at most."""
BYTES_MAX: Final = 16_777_216
"""How many bytes of events and items are remembered at most, but for the last append."""
ROUNDS: Final = 5
PAUSE_S: Final = 0.1
"""Between two rounds, in which other nodes write what they wrote."""
_AT_ONCE: Final = 256


class Where(NamedTuple):
    """What an append is said with: the deployment's number of partitions, and PUBLISH or SPUBLISH."""

    partitions: int
    publish: str


class Recent:
    """The appends of the last moments, the oldest first."""

    def __init__(self) -> None:
        self._written: deque[tuple[float, Append, int]] = deque()
        """When each was written, and its bytes."""
        self._bytes = 0

    def wrote(self, append: Append) -> None:
        """Remember that *append* was written."""
        at_s, size, written = time.monotonic(), _size(append), self._written
        written.append((at_s, append, size))
        self._bytes += size
        oldest_s = at_s - KEPT_S
        while written[0][0] < oldest_s or len(written) > APPENDS_MAX or (self._bytes > BYTES_MAX and len(written) > 1):
            self._bytes -= written.popleft()[2]

    async def send_again(self, call: Call, where: Where) -> int:
        """Send all to the server behind *call*; how many it had lost and has now.

        Raises:
            ReplyError: the server takes no writes now.
        """
        restored, left = 0, [append for _, append, _ in self._written]
        if not left:
            return 0
        digest = await call("SCRIPT", "LOAD", words.APPEND.text)
        for number in range(ROUNDS):
            if number:
                await asyncio.sleep(PAUSE_S)
            behind: list[Append] = []
            for at in range(0, len(left), _AT_ONCE):
                some = left[at : at + _AT_ONCE]
                answers = await asyncio.gather(*(_sent(call, one, where, digest) for one in some))
                restored += sum(answer is not None and answer[0] == 0 for answer in answers)
                behind += [one for one, answer in zip(some, answers, strict=True) if _is_behind(one, answer)]
            left = behind
            if not left:
                break
        return restored


def _size(append: Append) -> int:
    """How many bytes *append* writes; in loops, because each append of a node comes by here."""
    size = 0
    for part in append.parts:
        for event in part.events:
            size += len(event.data)
        for item in part.items:
            size += len(item)
    return size


async def _sent(call: Call, append: Append, where: Where, digest: bytes) -> Any:
    """Send *append*; the answer of the script, or None where another server is to be asked, or this one will not have it.

    One script for all: a server that takes no writes runs it until it writes, so that nothing waits where nothing was lost.

    Raises:
        ReplyError: the server takes no writes now.
    """
    said = words.append(append, keys.tag_of(append.parts[0].actor, where.partitions), where.publish)
    try:
        return await call("EVALSHA", digest, len(said.keys), *said.keys, *said.args)
    except ReplyError as error:
        if error.code in ELSEWHERE:
            return None
        if passing(error):
            raise
        log.error("an append to %s cannot be sent again: %s", append.parts[0].actor, error)
        return None


def _is_behind(append: Append, answer: Sequence[Any] | None) -> bool:
    """Whether *append* was refused because something before it is missing."""
    if answer is None:
        return False
    match words.outcome(append, answer):
        case Conflict(heads=heads):
            pairs = list(zip(append.parts, heads, strict=True))
            logs = any(part.log is not None and head.log < part.log for part, head in pairs)
            return logs or any(part.feed is not None and head.feed < part.feed for part, head in pairs)
        case Fenced(heads=heads):
            pairs = list(zip(append.parts, heads, strict=True))
            return any(part.epoch is not None and head.epoch < part.epoch for part, head in pairs)
        case _:
            return False
