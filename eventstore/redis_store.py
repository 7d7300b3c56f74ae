"""The store on Redis: scripts and pipelines over two links, and a hub for those who follow.

Nothing is sent again but what may be: an append is recognised by its command id, all else is repeatable by nature.
Only `now_ms`, `history`, `listen` and `partition_of` are plain: they touch nothing but this node's own memory and clock.
"""

import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from eventstore import appends, clock, keys, roll, words
from eventstore.barrier import Barrier, KeptEnds, Short, end_of, open_barrier, proof
from eventstore.comparing import keep_comparing
from eventstore.endpoint import chores
from eventstore.follow import Hub
from eventstore.ledger import RedisLedger
from eventstore.link import ConnectionLost, Link, Messages, OnConnected, ReplyError, Word, passing
from eventstore.receipts import Receipts
from eventstore.shape import Doors, OpenLink, OpenMessages, Shape, opened
from eventstore.store import (
    Append,
    Caps,
    Claim,
    Conflict,
    Deployment,
    Dispatched,
    Ear,
    Ended,
    Entry,
    Fenced,
    Heads,
    HistoryLost,
    Item,
    Look,
    Met,
    Outcome,
    Page,
    Permit,
    Placed,
    Reason,
    Recorded,
    Snapshot,
    Swept,
    Tail,
    Unavailable,
)

Answer = TypeVar("Answer")

PATIENCE_S: Final = 5.0
BACK_MS_MAX: Final = 60_000
"""For so long time stands still here where Redis time went back; one that went back further is believed."""
_DELAY_S, _DELAY_S_MAX = 0.01, 0.5
_PAGES = 4
"""Pages that are asked for at once, so that the server reads the next while this node takes in the last."""
_NEAR, _PAGE = 64, 500
"""Entries that a look of a hot actor reads on the command connection; entries of one bulk reply."""
_FIRST_ITEMS, _GROWTH = 16, 4
"""Items of a page's first reply, whose sizes are not known; how much more the next may hold."""
_RENEWED_MAX = 64
_log = logging.getLogger(__name__)


class RedisStore:
    """One node's view of a store, whatever its shape; made by `open_redis_store`."""

    def __init__(  # noqa: PLR0913 - what a store is made of
        self,
        deployment: Deployment,
        node: str,
        commands: Link,
        bulk: Link,
        *,
        publish: str,
        patience_s: float,
        barrier: Barrier | None = None,
        receipts: Receipts | None = None,
    ) -> None:
        self.node = node
        self.deployment = deployment
        self._tags = keys.tags(deployment.partitions)
        self._commands = commands
        self._bulk = bulk
        self._ledger = RedisLedger(commands, publish)
        self._publish = publish
        self._patience_s = patience_s
        self._barrier = barrier
        self._kept_ends = KeptEnds()
        self._receipts = receipts or Receipts()
        self._receipts.partitions = deployment.partitions
        self._receipts.publish = publish
        self._receipts.on_lost = self._lose
        self._hub: Hub | None = None
        self._tasks: TaskGroup
        self._owned: dict[str, words.Ours] = {}
        self._ear: Ear | None = None
        self._ahead_ms = 0
        self._last_ms = 0

    async def append(self, append: Append) -> Outcome:
        """Write *append* or say why not; with a barrier, answer only once what was written is kept."""
        outcome = await self._appended(append)
        if not isinstance(outcome, Recorded):
            return outcome
        self._note_receipts(append, outcome)
        if self._barrier is not None:
            await self._kept(append, self._barrier)
        return outcome

    def _note_receipts(self, append: Append, outcome: Recorded) -> None:
        """Keep *append*, should the store come back older, and what shows that it was written."""
        self._receipts.recent.wrote(append)
        part, command = append.parts[0], append.command
        if part.ended and part.events:
            self._receipts.ended(part.actor, (part.log or 0) + 1, command)
        elif part.actor in self._owned:
            if part.events:
                self._receipts.wrote(part.actor, (part.log or 0) + 1, command)
            if part.items and (first := outcome.parts[0].first):
                self._receipts.poured(part.actor, first, command)

    async def _appended(self, append: Append) -> Outcome:
        ours = self._owned.get(append.parts[0].actor) if append.parts else None
        quick = None if ours is None else words.quick(append, ours, self._publish)
        if ours is None or quick is None:
            return await self._written(append)
        asked_s = time.monotonic()
        try:
            answer = await self._commands.script(*quick)
        except (ConnectionLost, ReplyError) as error:
            outcome = await self._asked_again(
                lambda: self._decided(append, self._tag_of(append.parts[0].actor)), error, asked_s
            )
            return await self._noted(append, outcome)
        if answer is None:
            return await self._written(append)
        part = append.parts[0]
        heads = ours.heads = words.written(part, ours.heads, answer)
        if not part.items:
            self.hub.push(part.actor, heads.feed + 1, (), heads.feed, ended=False)  # the log grew: some follow that
            return Recorded((Placed(heads, 0),), self._heard(answer))
        first = heads.feed - len(part.items) + 1
        self.hub.push(part.actor, first, part.items, heads.feed, ended=False)
        return Recorded((Placed(heads, first),), self.now_ms())

    async def _kept(self, append: Append, barrier: Barrier) -> None:
        """Wait until *append* is kept, and forget what is known of its actors where that is uncertain."""
        shown = proof(append, self._tag_of(append.parts[0].actor))
        if shown is None:
            return
        history = self.history()
        try:
            await barrier.passed(shown)
        except Short as error:
            for part in append.parts:
                self._disown(part.actor)
            raise Unavailable(f"uncertain: {error}") from error
        for part in append.parts:
            if part.ended:
                self._kept_ends.add(part.actor, history)

    async def _written(self, append: Append) -> Outcome:
        tag = self._tag_of(append.parts[0].actor) if append.parts else ""
        appends.partition(append, self.deployment.partitions)
        return await self._noted(append, await self._asked(lambda: self._decided(append, tag)))

    async def _noted(self, append: Append, outcome: Outcome) -> Outcome:
        """Hand on what *outcome* says of items and owners."""
        self._heard(outcome.now_ms)
        if isinstance(outcome, Recorded) and not outcome.repeated:
            for part, (heads, first) in zip(append.parts, outcome.parts, strict=True):
                if first or part.events:
                    self.hub.push(part.actor, first or heads.feed + 1, part.items, heads.feed, heads.ended)
        for part, heads in zip(append.parts, _heads_of(outcome), strict=False):
            await self._note_owner(part.actor, heads)
        return outcome

    async def look(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Look:
        """Read heads and log; a second time where an erasure may have come between two replies."""
        tag = self._tag_of(actor)
        found = await self._snapshot(tag, actor) if snapshot else None
        found = found if found and found.version > after else None
        for _ in range(2):
            look = await self._look(tag, actor, found.version if found else after)
            if look.heads.erased:  # what was found may be older than the erasure
                return look._replace(snapshot=await self._snapshot(tag, actor) if snapshot else None)
            if found and found.version > look.heads.log:  # kept by a future that was lost
                found = None
            elif len(look.entries) == max(0, look.heads.log - (found.version if found else after)):
                return look._replace(snapshot=found)
        raise HistoryLost(actor)

    async def page(self, actor: str, after: int, bytes_max: int = 262_144) -> Page:
        """Read heads and the feed; a second time where an erasure or trim may have come between two replies."""
        tag = self._tag_of(actor)
        for _ in range(2):
            page = await self._page(tag, actor, after, bytes_max)
            if page is not None:
                if page.items and self.hub.shows(actor):
                    self._receipts.showed(actor, page.items[-1])
                return page
        raise HistoryLost(actor)

    async def save(self, actor: str, snapshot: Snapshot) -> None:
        """Keep *snapshot* as a cache."""
        tag = self._tag_of(actor)
        kept = (keys.heads(tag, actor), keys.snapshot(tag, actor))
        await self._asked(lambda: self._bulk.script(words.SAVE, kept, (snapshot.version, snapshot.data)))

    async def renew(self, partition: int, mine: Mapping[str, int], lease_ms: int) -> Mapping[str, Heads | None]:
        """Move the lease ends of what is still this node's."""
        renewed: dict[str, Heads | None] = {}
        pairs = list(mine.items())
        for at in range(0, len(pairs), _RENEWED_MAX):
            renewed |= await self._renew(self._tags[partition], pairs[at : at + _RENEWED_MAX], lease_ms)
        for actor, heads in renewed.items():
            if actor in self._owned and heads is None:
                self._disown(actor)
            elif actor in self._owned and heads is not None:
                self._owned[actor].heads = heads
        return renewed

    async def sweep(self, partition: int, most: int = 32, *, judging: bool = True) -> Swept:
        """Take due members whose time has come."""
        due = (keys.due(self._tags[partition]),)
        answer = await self._asked(lambda: self._commands.script(words.SWEEP, due, (most, int(judging))))
        return Swept(words.ripe(answer), self._heard(answer[0]), answer[1])

    async def settle(self, actor: str, reason: Reason, at_ms: int | None = None) -> None:
        """Clear a due member whose matter is done, or put it off."""
        due, member = keys.due(self._tag_of(actor)), f"{actor}|{reason}"
        said: tuple[Word, ...] = ("ZREM", due, member) if at_ms is None else ("ZADD", due, "XX", at_ms, member)
        await self._asked(lambda: self._commands.call(*said))

    async def confirm_end(self, actor: str) -> None:
        """Return once the end of *actor* may be told; without a barrier, whatever was read may be."""
        history = self.history()
        if self._barrier is None or self._kept_ends.has(actor, history):
            return
        try:
            await self._barrier.passed(end_of(self._tag_of(actor), actor))
        except Short as error:
            raise Unavailable(f"uncertain: {error}") from error
        self._kept_ends.add(actor, history)

    async def post(self, actor: str, entry: bytes) -> None:
        """Write to the outbox."""
        await self._asked(lambda: self._commands.call("XADD", keys.outbox(self._tag_of(actor)), "*", "d", entry))

    async def listed(self, name: str, most: int) -> Sequence[tuple[str, int]]:
        """Read the first members of a list of each partition."""
        asked = [("ZRANGE", keys.listed(tag, name), 0, most - 1, "WITHSCORES") for tag in self._tags]
        found = await self._piped(self._bulk, *asked)
        members = [(part[at].decode(), int(part[at + 1])) for part in found for at in range(0, len(part), 2)]
        return sorted(members, key=lambda member: (member[1], member[0]))

    async def prune(self, partition: int, before_ms: int) -> None:
        """Take off the outbox what was written before *before_ms*."""
        outbox = keys.outbox(self._tags[partition])
        await self._asked(lambda: self._bulk.call("XTRIM", outbox, "MINID", before_ms))

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit."""
        return await self._asked(lambda: self._ledger.take(claim, caps, begin_within_ms))

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use."""
        await self._asked(lambda: self._ledger.begun(claim))

    async def enlist(self, claim: Claim, caps: Caps, queued_ms: int, begin_within_ms: int, lane: str = "") -> None:
        """Put a holder into the queue, once."""
        await self._asked(lambda: self._ledger.enlist(claim, caps, queued_ms, begin_within_ms, lane))

    async def dispatch(self, pool: str, most: int, caps: Caps, lanes: Collection[str] = ("",)) -> Sequence[Dispatched]:
        """Take up to *most* holders of *lanes* off the queue for this node."""
        return await self._asked(lambda: self._ledger.dispatch(pool, self.node, most, caps, lanes))

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line or the queue."""
        await self._asked(lambda: self._ledger.give(pool, holder, caps))

    async def held(self, pool: str) -> Collection[str]:
        """Read who holds a permit of *pool* that was begun."""
        return await self._asked(lambda: self._ledger.held(pool))

    async def begin_audit(self, pools: Collection[str]) -> str:
        """Take the audit of *pools* on, if it is due and nobody is at it."""
        return await self._asked(lambda: self._ledger.begin_audit(pools, self.node))

    async def keep_audit(self) -> None:
        """Give a sign that this node is at it."""
        await self._asked(lambda: self._ledger.keep_audit(self.node))

    async def end_audit(self, pools: Collection[str], history: str) -> bool:
        """Note that *pools* say what the runs say."""
        return await self._asked(lambda: self._ledger.end_audit(pools, history))

    async def meet(self, actors: Sequence[str]) -> Sequence[Met]:
        """Read what each of *actors* is."""
        return await roll.met(actors, partial(self._piped, self._bulk), self._tag_of)

    def roll(self) -> AsyncGenerator[Sequence[Met]]:
        """Read all actors, some at a time."""
        return roll.called(self._bulk.primaries(), partial(self._piped, self._bulk), self._tag_of)

    def follow(self, actor: str) -> AbstractAsyncContextManager[Tail]:
        """A tail of *actor*."""
        return self.hub.tail(actor)

    def listen(self, ear: Ear) -> None:
        """Name the one who hears this node's rings."""
        self._ear = ear

    def partition_of(self, actor: str) -> int:
        """The partition of *actor*."""
        return keys.partition(actor, self.deployment.partitions)

    def now_ms(self) -> int:
        """Redis time as estimated; never less than before, unless it went back by more than anybody should wait for."""
        now_ms = clock.mono_ms() + self._ahead_ms
        if self._last_ms > now_ms + BACK_MS_MAX:
            _log.error("Redis time went back by %d ms", self._last_ms - now_ms)
            self._last_ms = now_ms
        self._last_ms = max(self._last_ms, now_ms)
        return self._last_ms

    def history(self) -> str:
        """The history that the server was on when it was connected to last."""
        return self._receipts.history

    @property
    def hub(self) -> Hub:
        """The tails of this node."""
        if self._hub is None:
            raise RuntimeError("the store is not open")
        return self._hub

    async def attend(self, messages: Messages, tasks: TaskGroup) -> None:
        """Follow and hear rings over *messages*, which brings what it hears to `hear`; wait for it in *tasks*."""
        self._tasks = tasks
        self._hub = Hub(messages, self._channel_of, receipts=self._receipts, compared=True)
        rings = [keys.node_channel(tag, self.node) for tag in (*self._tags, keys.LEDGER_TAG)]
        async with anyio.create_task_group() as all_of_them:
            for channel in (*rings, keys.room_channel(), *map(keys.work_channel, self._tags)):
                all_of_them.start_soon(messages.subscribe, channel)
        await self._asked(self._told_time)

    async def compare(self) -> None:
        """Tell all readers where their feeds stand, again and again, until cancelled."""
        await keep_comparing(self.hub, self._tag_of, partial(self._piped, self._bulk))

    def hear(self, channel: str, data: bytes) -> None:
        """Hand on what was published on *channel*."""
        tag, _, rest = channel.partition(":")
        word, _, name = rest.partition(":")
        match word:
            case "c":
                self.hub.hear(name, data)
            case "n" if tag == keys.LEDGER_TAG:
                self._ring(lambda ear: ear.granted(data.decode()))
            case "n":
                self.hub.nudge(data.decode())
                self._ring(lambda ear: ear.rung(data.decode()))
            case "room":
                self._ring(lambda ear: ear.room())
            case _:
                self._ring(lambda ear: ear.work(self._tags.index(tag)))

    def _lose(self, actor: str) -> None:
        """Say that the history of *actor* is lost, to whoever follows it and to whoever works on it."""
        self.hub.lose(actor)
        self._ring(lambda ear: ear.lost(actor))

    def lose_touch(self) -> None:
        """Note that messages may have been lost."""
        if self._hub is not None:
            self._hub.gap()

    def _ring(self, ring: Callable[[Ear], None]) -> None:
        if self._ear is not None:
            ring(self._ear)

    async def _decided(self, append: Append, tag: str) -> Outcome:
        return words.outcome(append, await self._commands.script(*words.append(append, tag, self._publish)))

    async def _told_time(self) -> None:
        self._heard(words.milliseconds(await self._commands.call("TIME")))

    async def _asked(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until there is an answer or patience ends; the first time without further ado."""
        asked_s = time.monotonic()
        try:
            return await ask()
        except (ConnectionLost, ReplyError) as error:
            return await self._asked_again(ask, error, asked_s)

    async def _asked_again(
        self, ask: Callable[[], Awaitable[Answer]], error: ConnectionLost | ReplyError, asked_s: float
    ) -> Answer:
        """Ask again after *error*, with growing delays, until patience that began at *asked_s* ends."""
        delay_s = _DELAY_S
        with anyio.move_on_after(self._patience_s - (time.monotonic() - asked_s)):
            while passing(error):
                await anyio.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads callers, guards nothing
                delay_s = min(2 * delay_s, _DELAY_S_MAX)
                try:
                    return await ask()
                except (ConnectionLost, ReplyError) as again:
                    error = again
            raise error
        raise Unavailable(str(error)) from error

    async def _look(self, tag: str, actor: str, after: int) -> Look:
        log = keys.log(tag, actor)
        link, most = (self._commands, _NEAR) if after else (self._bulk, _PAGE)
        replies = await self._piped(
            link,
            ("HMGET", keys.heads(tag, actor), *words.FIELDS),
            ("XRANGE", log, f"{after + 1}-0", "+", "COUNT", most),
            ("TIME",),
        )
        heads, found = words.heads(replies[0]), replies[1]
        now_ms = self._heard(words.milliseconds(replies[2]))
        command = "" if not found or words.begins(found[0]) else await self._command_at(log, after)
        entries = words.entries(found, command)
        while found and entries[-1].version < heads.log:
            first = entries[-1].version + 1
            starts = range(first, min(heads.log + 1, first + _PAGES * _PAGE), _PAGE)
            pages = [("XRANGE", log, f"{n}-0", f"{min(n + _PAGE - 1, heads.log)}-0") for n in starts]
            found = [entry for page in await self._piped(self._bulk, *pages) for entry in page]
            entries += words.entries(found, entries[-1].command)
        return Look(heads, _known(entries, heads), None, now_ms)

    async def _snapshot(self, tag: str, actor: str) -> Snapshot | None:
        return words.snapshot(await self._asked(lambda: self._bulk.call("GET", keys.snapshot(tag, actor))))

    async def _command_at(self, log: str, version: int) -> str:
        """Find the command that wrote *version*: that of the nearest entry before it that names one."""
        while version > 0:
            found = (await self._piped(self._bulk, ("XREVRANGE", log, f"{version}-0", "-", "COUNT", 8)))[0]
            named = next((entry for entry in found if words.begins(entry)), None)
            if named or not found:
                return words.entries([named], "")[0].command if named else ""
            version = words.number(found[-1]) - 1
        return ""

    async def _page(self, tag: str, actor: str, after: int, bytes_max: int) -> Page | None:
        """Read a page; None where an item is missing."""
        items: list[Item] = []
        count = _FIRST_ITEMS
        while True:
            start = items[-1].number if items else after
            replies = await self._piped(
                self._bulk,
                ("HMGET", keys.heads(tag, actor), *words.FIELDS),
                ("XRANGE", keys.feed(tag, actor), f"{start + 1}-0", "+", "COUNT", count),
            )
            heads, found = words.heads(replies[0]), words.items(replies[1])
            if after + 1 < heads.oldest or start >= heads.feed:
                return Page(heads, items if after + 1 >= heads.oldest else [])
            for number, item in enumerate(found, start + 1):
                if item.number > heads.feed or bytes_max <= 0:
                    return Page(heads, items)
                if item.number != number:
                    return None
                items.append(item)
                bytes_max -= len(item.data)
            if not found:
                return None
            if bytes_max <= 0 or items[-1].number >= heads.feed:
                return Page(heads, items)
            mean = max(1, heads.feed_bytes // heads.feed)
            count = max(1, min(count * _GROWTH, bytes_max // mean + 1, _PAGE))

    async def _renew(self, tag: str, some: Sequence[tuple[str, int]], lease_ms: int) -> dict[str, Heads | None]:
        actors = [actor for actor, _ in some]
        streams = [keys.due(tag), *(keys.heads(tag, actor) for actor in actors)]
        args: list[Word] = [self.node, lease_ms, *(word for pair in some for word in pair)]
        answer = await self._asked(lambda: self._commands.script(words.RENEW, streams, args))
        self._heard(answer[0])
        return words.renewed(actors, answer)

    async def _piped(self, link: Link, *commands: Sequence[Word]) -> list[Any]:
        async def replies() -> list[Any]:
            found = await link.pipeline(commands)
            for reply in found:
                if isinstance(reply, ReplyError):
                    raise reply
            return found

        return await self._asked(replies)

    async def _note_owner(self, actor: str, heads: Heads) -> None:
        ours, known = heads.owner == self.node, actor in self._owned
        if ours and known:
            self._owned[actor].heads = heads
        elif ours:
            self._owned[actor] = words.Ours(self._tag_of(actor), actor, heads)
            await self.hub.own(actor)
        elif known and not ours:
            self._disown(actor)

    def _disown(self, actor: str) -> None:
        """Forget that *actor* is ours; its readers hear of it again beside whoever is waiting for an answer."""
        self._owned.pop(actor, None)
        self._receipts.disowned(actor)
        self.hub.disown(actor)
        if self.hub.shows(actor):
            self._tasks.start_soon(self.hub.rejoin, actor)

    def _tag_of(self, actor: str) -> str:
        return self._tags[keys.partition(actor, self.deployment.partitions)]

    def _channel_of(self, actor: str) -> str:
        return keys.items_channel(self._tag_of(actor), actor)

    def _heard(self, redis_ms: int) -> int:
        self._ahead_ms = redis_ms - clock.mono_ms()
        return redis_ms


def _heads_of(outcome: Outcome) -> Sequence[Heads]:
    """The heads that *outcome* tells, if any."""
    match outcome:
        case Recorded(parts=placed):
            return [part.heads for part in placed]
        case Conflict(heads=heads) | Fenced(heads=heads) | Ended(heads=heads):
            return heads
        case _:
            return ()


def _known(entries: list[Entry], heads: Heads) -> list[Entry]:
    """Those of *entries* that the heads know; none of what is erased."""
    beyond = sum(entry.version > heads.log for entry in entries[-_PAGE:])
    return [] if heads.erased else entries[: len(entries) - beyond]


@asynccontextmanager
async def open_store_over(  # noqa: PLR0913 - what a store is made of
    link: OpenLink,
    messages: OpenMessages,
    deployment: Deployment,
    node: str,
    *,
    publish: str = "PUBLISH",
    patience_s: float = PATIENCE_S,
    barrier: Barrier | None = None,
    receipts: Receipts | None = None,
) -> AsyncGenerator[RedisStore]:
    """Open a store over what *link* (twice) and *messages* open; *receipts* are compared by whoever guards *link*."""
    async with link() as commands, link() as bulk:
        store = RedisStore(
            deployment,
            node,
            commands,
            bulk,
            publish=publish,
            patience_s=patience_s,
            barrier=barrier,
            receipts=receipts,
        )
        async with messages(store.hear, store.lose_touch) as heard, chores() as tasks:
            await store.attend(heard, tasks)
            tasks.start_soon(store.compare)
            yield store


@asynccontextmanager
async def open_store_through(
    doors: Doors,
    deployment: Deployment,
    node: str,
    *,
    patience_s: float = PATIENCE_S,
    replicas: int = 0,
    receipts: Receipts | None = None,
) -> AsyncGenerator[RedisStore]:
    """Open a store through *doors*; what it says was written, *replicas* replicas have."""
    async with AsyncExitStack() as stack:
        opening = open_barrier(doors.road, replicas, patience_s) if replicas else None
        barrier = await stack.enter_async_context(opening) if opening else None
        yield await stack.enter_async_context(
            open_store_over(
                doors.link,
                doors.messages,
                deployment,
                node,
                publish=doors.publish,
                patience_s=patience_s,
                barrier=barrier,
                receipts=receipts,
            )
        )


@asynccontextmanager
async def open_redis_store(
    shape: Shape,
    deployment: Deployment,
    node: str,
    *,
    on_connected: OnConnected | None = None,
    patience_s: float = PATIENCE_S,
    replicas: int = 0,
) -> AsyncGenerator[RedisStore]:
    """Open a store on the servers of *shape*; *on_connected* must accept each connection before it is used."""
    async with (
        opened(shape, on_connected) as doors,
        open_store_through(doors, deployment, node, patience_s=patience_s, replicas=replicas) as store,
    ):
        yield store
