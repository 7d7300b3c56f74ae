"""A house with a ledger in it, in memory, on fakeredis or on a real server, whose time the tests set."""

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Protocol

from msgspec.structs import replace

from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server, open_fake_link
from eventstore.ledger import Counted, MemoryLedger, RedisLedger
from eventstore.link import Link, Script, Word
from eventstore.socket_link import open_link
from eventstore.store import Caps, Claim, Dispatched, Permit, Taken

WITHIN_MS = 10_000
ONE = Caps(total=1, per_subject=1, queue_total=100, queue_per_subject=100)
START_MS = 1_800_000_000_000


class Ledger(Protocol):
    """What both ledgers are."""

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit: ...
    async def begun(self, claim: Claim) -> None: ...
    async def give(self, pool: str, holder: str, caps: Caps) -> None: ...
    async def enlist(self, claim: Claim, caps: Caps, queued_ms: int, begin_within_ms: int, lane: str = "") -> None: ...
    async def dispatch(
        self, pool: str, node: str, most: int, caps: Caps, lanes: Collection[str] = ("",)
    ) -> Sequence[Dispatched]: ...
    async def counted(self, pool: str) -> Counted: ...
    async def held(self, pool: str) -> Collection[str]: ...
    async def begin_audit(self, pools: Collection[str], node: str, /) -> str: ...
    async def keep_audit(self, node: str, /) -> None: ...
    async def end_audit(self, pools: Collection[str], history: str) -> bool: ...


class HeldClock:
    """A link on which scripts read their time from a key that the test sets."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def call(self, *words: Word) -> Any:
        return await self._link.call(*words)

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        return await self._link.pipeline(commands)

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        return await self._link.script(held_still(script), keys, args)

    def primaries(self) -> Sequence[Link]:
        return (self,)


@cache
def held_still(script: Script) -> Script:
    """*script* with its time from a key."""
    text = script.text.replace('redis.call("TIME")', 'redis.call("HMGET", "{g}:clock", "s", "us")')
    assert text != script.text
    return replace(script, text=text)


class House:
    """One ledger whose time stands still between `later`s, and whose rings are kept."""

    def __init__(self, link: Link | None = None) -> None:
        self.now_ms = START_MS
        self._heard: list[tuple[str, str]] = []
        self._rooms = 0
        self.link = None if link is None else HeldClock(link)
        self.ledger: Ledger = (
            MemoryLedger(lambda: self.now_ms, lambda node, holder: self._heard.append((node, holder)), self._roomy)
            if self.link is None
            else RedisLedger(self.link, publish_command="RPUSH")
        )

    def _roomy(self) -> None:
        self._rooms += 1

    async def later(self, ms: int) -> None:
        self.now_ms += ms
        if self.link is not None:
            await self.link.call("HSET", "{g}:clock", "s", self.now_ms // 1_000, "us", self.now_ms % 1_000 * 1_000)

    async def rings(self) -> list[tuple[str, str]]:
        """Who was rung since the last time, by node."""
        if self.link is not None:
            for node in ("n1", "n2"):
                rung = await self.link.call("LRANGE", f"{{g}}:n:{node}", 0, -1)
                self._heard += [(node, holder.decode()) for holder in rung]
                await self.link.call("DEL", f"{{g}}:n:{node}")
        heard, self._heard = self._heard, []
        return sorted(heard, key=lambda ring: ring[0])

    async def rooms(self) -> int:
        """How often all nodes were told of room since the last time."""
        if self.link is not None:
            self._rooms += await self.link.call("LLEN", "{g}:room")
            await self.link.call("DEL", "{g}:room")
        rooms, self._rooms = self._rooms, 0
        return rooms

    async def ask(
        self,
        holder: str,
        subject: str = "alice",
        caps: Caps = ONE,
        account: str = "",
        node: str = "n1",
        weight: int = 1,
    ) -> Taken:
        claim = Claim("runs", holder, node, subject, account, weight)
        return (await self.ledger.take(claim, caps, WITHIN_MS)).taken

    async def enlist(
        self, holder: str, subject: str = "alice", caps: Caps = ONE, account: str = "", weight: int = 1, at_ms: int = 0
    ) -> None:
        claim = Claim("runs", holder, "", subject, account, weight)
        await self.ledger.enlist(claim, caps, at_ms or self.now_ms, WITHIN_MS)

    async def enlist_in(self, lane: str, holder: str, subject: str, account: str = "", at_ms: int = 0) -> None:
        """Queue *holder* for the nodes that serve *lane*."""
        claim = Claim("runs", holder, "", subject, account)
        wide = Caps(total=1_000, queue_total=100, queue_per_subject=100)
        await self.ledger.enlist(claim, wide, at_ms or self.now_ms, WITHIN_MS, lane)

    async def dispatch(
        self, node: str = "n1", most: int = 32, caps: Caps = ONE, lanes: Collection[str] = ("",)
    ) -> list[str]:
        """Who was taken off the queue for *node*."""
        return [taken.holder for taken in await self.ledger.dispatch("runs", node, most, caps, lanes)]

    async def begun(self, holder: str, subject: str = "alice", account: str = "", node: str = "n1") -> None:
        await self.ledger.begun(Claim("runs", holder, node, subject, account))

    async def give(self, holder: str, caps: Caps = ONE) -> None:
        await self.ledger.give("runs", holder, caps)

    async def served(self, holder: str, caps: Caps = ONE) -> list[str]:
        """Give *holder*'s permit back, and say who was rung."""
        await self.give(holder, caps)
        return [holder for _, holder in await self.rings()]


async def opened(kind: str, server: Endpoint, stack: AsyncExitStack) -> House:
    """A house with an empty ledger of that kind."""
    if kind == "memory":
        return House()
    link: Link = await stack.enter_async_context(open_fake_link(fake_server()) if kind == "fake" else open_link(server))
    await link.call("FLUSHALL")
    house = House(link)
    await house.later(0)
    return house
