"""What this node has written and shown, held against a server that comes back and may have lost the end of its history.

A store that was promoted, or restored, may be older than what its clients saw (DESIGN §8). Each new connection to a
history that is not known compares these receipts before anything else is sent; whatever is missing or different is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from eventstore import keys
from eventstore.link import Call, ReplyError
from eventstore.store import Item

log = logging.getLogger(__name__)

_AT_ONCE = 256
"""How many are asked for at once, before anything else may be sent."""
_COMMAND_AT = 5
"""Where the first entry of an append has its command id."""


class Receipts:
    """The receipts of one node."""

    def __init__(self) -> None:
        self.partitions = 1
        self.on_lost: Callable[[str], None] = lambda _actor: None
        """Told each actor whose history is lost; must only note it."""
        self._written: dict[str, tuple[int, str]] = {}
        self._shown: dict[str, Item] = {}

    def wrote(self, actor: str, version: int, command: str) -> None:
        """Note that *command* wrote *version* of an actor that this node owns."""
        self._written[actor] = version, command

    def showed(self, actor: str, item: Item) -> None:
        """Note the last item that somebody here was shown."""
        self._shown[actor] = item

    def disowned(self, actor: str) -> None:
        """Note that others write an actor from now on, or nobody."""
        self._written.pop(actor, None)

    def closed(self, actor: str) -> None:
        """Note that nobody here looks at an actor any more."""
        self._shown.pop(actor, None)

    async def check(self, call: Call, replication_id: str, /) -> None:
        """Compare all receipts with the server behind *call*, whose history has not been seen before."""
        actors = sorted({*self._written, *self._shown})
        lost: list[str] = []
        for at in range(0, len(actors), _AT_ONCE):
            some = actors[at : at + _AT_ONCE]
            held = await asyncio.gather(*(self._holds(call, actor) for actor in some))
            lost += [actor for actor, holds in zip(some, held, strict=True) if not holds]
        for actor in lost:
            log.error("the history %s lacks what was seen of %s", replication_id, actor)
            self.on_lost(actor)

    async def _holds(self, call: Call, actor: str) -> bool:
        """Whether the server has what this node has seen of *actor*, or another server is to be asked."""
        tag = keys.tag_of(actor, self.partitions)
        try:
            heads = await call("HMGET", keys.heads(tag, actor), "d", "lo")
            if heads[0] == b"1":
                return True
            return await self._has_written(call, tag, actor) and await self._has_shown(call, tag, actor, heads[1])
        except ReplyError as error:
            if error.code in {"ASK", "MOVED", "CLUSTERDOWN", "TRYAGAIN"}:
                return True
            raise

    async def _has_written(self, call: Call, tag: str, actor: str) -> bool:
        if actor not in self._written:
            return True
        version, command = self._written[actor]
        found = await _entry(call, keys.log(tag, actor), version)
        return len(found) > _COMMAND_AT and found[_COMMAND_AT] == command.encode()

    async def _has_shown(self, call: Call, tag: str, actor: str, oldest: bytes | None) -> bool:
        item = self._shown.get(actor)
        if item is None or item.number < int(oldest or 1):
            return True
        found = await _entry(call, keys.feed(tag, actor), item.number)
        return len(found) > 1 and found[1] == item.data


async def _entry(call: Call, stream: str, number: int) -> Any:
    """Read the fields of one entry; none where it is not there."""
    found = await call("XRANGE", stream, f"{number}-0", f"{number}-0")
    return found[0][1] if found else ()
