"""What this node has written and shown, held against a server that comes back and may have lost the end of its history.

A store that was promoted, or restored, may be older than what its clients saw (DESIGN §8). On each new connection to a
history that is not known, what was written in the last moments is sent again before anything else, and then these receipts
are compared; whatever is missing or different is lost.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from eventstore import keys
from eventstore.link import ELSEWHERE, Call, ReplyError, passing
from eventstore.recent import Recent, Where
from eventstore.store import Item

log = logging.getLogger(__name__)

ENDS_MAX = 1_024
"""How many of the runs that ended last are remembered."""
GRACE_S = 1.0
"""How long what is missing may take to be written again by the node that wrote it."""
PATIENCE_S = 10.0
"""How long a server that takes no writes is waited for, until what it lacks is taken for lost; nothing is read meanwhile."""
_AT_ONCE = 100
"""How many are compared at once."""
_LOG_COMMAND_AT, _FEED_COMMAND_AT = 5, 3
"""Where the first entry of an append has its command id, in a log and in a feed."""


class Receipts:
    """The receipts of one node; what is missing has *grace_s* to be written again by the node that wrote it."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.recent = Recent()
        self.partitions = 1
        self.publish = "PUBLISH"
        self._grace_s = grace_s
        self._met_s: dict[str, float] = {}
        """When a history was met first that takes no writes."""
        self.on_lost: Callable[[str], None] = lambda _actor: None
        """Told each actor whose history is lost; must only note it."""
        self.history = ""
        """The history that was met last."""
        self._written: dict[str, tuple[int, str]] = {}
        self._poured: dict[str, tuple[int, str]] = {}
        self._ended: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._shown: dict[str, Item] = {}

    def wrote(self, actor: str, version: int, command: str) -> None:
        """Note that *command* wrote *version* of an actor that this node owns."""
        self._written[actor] = version, command

    def poured(self, actor: str, number: int, command: str) -> None:
        """Note that *command* wrote item *number* of an actor that this node owns."""
        self._poured[actor] = number, command

    def ended(self, actor: str, version: int, command: str) -> None:
        """Note that *command*, of this node, ended an actor with *version*; of many the last ones are remembered."""
        self._ended[actor] = version, command
        if len(self._ended) > ENDS_MAX:
            self._ended.popitem(last=False)

    def showed(self, actor: str, item: Item) -> None:
        """Note the furthest item that somebody here was shown: one below it may be of a history that is shorter."""
        known = self._shown.get(actor)
        if known is None or item.number > known.number:
            self._shown[actor] = item

    def disowned(self, actor: str) -> None:
        """Note that others write an actor from now on, or nobody."""
        self._written.pop(actor, None)
        self._poured.pop(actor, None)

    def closed(self, actor: str) -> None:
        """Note that nobody here looks at an actor any more."""
        self._shown.pop(actor, None)

    async def check(self, call: Call, replication_id: str, /) -> None:
        """Compare all receipts with the server behind *call*, whose history has not been seen before.

        Raises:
            ReplyError: something may be missing, and the server takes no writes yet.
        """
        self.history = replication_id
        lacking: Sequence[str] = ()
        try:
            if restored := await self.recent.send_again(call, Where(self.partitions, self.publish)):
                log.warning("the history %s lacked %d of the last appends: sent again", replication_id, restored)
            lacking = await self._lacking(call, self._known())
            lacking = lacking and await self._restored(call, lacking)
        except ReplyError as error:
            if not passing(error) or self._waits(replication_id):
                raise
            lacking = await self._lacking(call, self._known())
        for actor in lacking:
            log.error("the history %s lacks what was seen of %s", replication_id, actor)
            self._ended.pop(actor, None)  # it ends once more
            self.on_lost(actor)

    def _known(self) -> Sequence[str]:
        """Of whom there is a receipt."""
        return sorted({*self._written, *self._poured, *self._ended, *self._shown})

    def _waits(self, replication_id: str) -> bool:
        """Whether it may still be waited until a server takes writes."""
        now_s = time.monotonic()
        self._met_s = {one: met_s for one, met_s in self._met_s.items() if now_s < met_s + 10 * PATIENCE_S}
        return now_s < self._met_s.setdefault(replication_id, now_s) + PATIENCE_S

    async def _restored(self, call: Call, lacking: Sequence[str]) -> Sequence[str]:
        """Wait until others may have written again what is missing; what then still is.

        Raises:
            ReplyError: nobody can write there yet.
        """
        await call("INCR", keys.barrier(keys.tag_of(lacking[0], self.partitions)))
        over_s = time.monotonic() + self._grace_s
        while lacking and time.monotonic() < over_s:
            await asyncio.sleep(self._grace_s / 10)
            lacking = await self._lacking(call, lacking)
        return lacking

    async def _lacking(self, call: Call, known: Sequence[str]) -> Sequence[str]:
        """Which of *known* the server lacks something of."""
        held: list[bool] = []
        for at in range(0, len(known), _AT_ONCE):
            held += await asyncio.gather(*(self._holds(call, actor) for actor in known[at : at + _AT_ONCE]))
        return [one for one, holds in zip(known, held, strict=True) if not holds]

    async def _holds(self, call: Call, actor: str) -> bool:
        """Whether the server has what this node has seen of *actor*, or another server is to be asked."""
        tag = keys.tag_of(actor, self.partitions)
        try:
            heads = await call("HMGET", keys.heads(tag, actor), "d", "lo")
            if heads[0] == b"1":
                return True
            return (
                await _wrote(call, keys.log(tag, actor), self._written.get(actor), _LOG_COMMAND_AT)
                and await _wrote(call, keys.log(tag, actor), self._ended.get(actor), _LOG_COMMAND_AT)
                and await _wrote(call, keys.feed(tag, actor), self._poured.get(actor), _FEED_COMMAND_AT)
                and await self._has_shown(call, tag, actor, heads[1])
            )
        except ReplyError as error:
            if error.code in ELSEWHERE:
                return True
            raise

    async def _has_shown(self, call: Call, tag: str, actor: str, oldest: bytes | None) -> bool:
        item = self._shown.get(actor)
        if item is None or item.number < int(oldest or 1):
            return True
        found = await _entry(call, keys.feed(tag, actor), item.number)
        return len(found) > 1 and found[1] == item.data


async def _wrote(call: Call, stream: str, receipt: tuple[int, str] | None, at: int) -> bool:
    """Whether the entry that *receipt* numbers has its command *at* that place."""
    if receipt is None:
        return True
    number, command = receipt
    found = await _entry(call, stream, number)
    return len(found) > at and found[at] == command.encode()


async def _entry(call: Call, stream: str, number: int) -> Any:
    """Read the fields of one entry; none where it is not there."""
    found = await call("XRANGE", stream, f"{number}-0", f"{number}-0")
    return found[0][1] if found else ()
