"""What this node has written and shown, held against a server that comes back and may have lost the end of its history.

A store that was promoted, or restored, may be older than what its clients saw (DESIGN §8). Each new connection to a
history that is not known compares these receipts before anything else is sent; whatever is missing or different is lost.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from eventstore import keys
from eventstore.link import Call, ReplyError
from eventstore.store import Item

log = logging.getLogger(__name__)

ENDS_MAX = 1_024
"""How many of the runs that ended last are remembered."""
_AT_ONCE = 100
"""How many are compared at once."""
_LOG_COMMAND_AT, _FEED_COMMAND_AT = 5, 3
"""Where the first entry of an append has its command id, in a log and in a feed."""


class Receipts:
    """The receipts of one node."""

    def __init__(self) -> None:
        self.partitions = 1
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
        """Compare all receipts with the server behind *call*, whose history has not been seen before."""
        self.history = replication_id
        known = sorted({*self._written, *self._poured, *self._ended, *self._shown})
        held: list[bool] = []
        for at in range(0, len(known), _AT_ONCE):
            held += await asyncio.gather(*(self._holds(call, actor) for actor in known[at : at + _AT_ONCE]))
        for actor in (one for one, holds in zip(known, held, strict=True) if not holds):
            log.error("the history %s lacks what was seen of %s", replication_id, actor)
            self._ended.pop(actor, None)  # it ends once more
            self.on_lost(actor)

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
            if error.code in {"ASK", "MOVED", "CLUSTERDOWN", "TRYAGAIN"}:
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
