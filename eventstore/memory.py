"""The reference store, in its fewest lines: what the Redis store must do, kept in one process.

`Memory` is what Redis would be, shared by any number of `MemoryStore`s, each of which is one node.
No step here waits between its first check and its last write, so each is atomic. Nothing survives the process.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from msgspec.structs import replace

from eventstore import appends, keys
from eventstore.follow import Hub
from eventstore.ledger import MemoryLedger
from eventstore.store import (
    PUSHED_ITEM_BYTES_MAX,
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
    Lost,
    Met,
    Outcome,
    OutsideWindow,
    Page,
    Part,
    Permit,
    Placed,
    Reason,
    Recorded,
    Ripe,
    Snapshot,
    Swept,
    Tail,
)

Name = TypeVar("Name")

MOVED_MS = 2_000
"""How far a sweep moves what it takes."""
JUDGED = frozenset({"lease", "client"})
"""What a sweep that may not judge leaves where it is."""
PASSED_OVER = 8
"""It looks at so many times more members than it may take."""
MET_AT_ONCE = 32
"""Actors that one step of a roll call reads."""
SOON_MS = 250
"""How soon it is to come again."""


class Kept:
    """All that is kept of one actor; the dicts hold the command ids at the first entry of each append."""

    def __init__(self) -> None:
        self.heads = Heads()
        self.log: dict[int, Entry] = {}
        self.feed: dict[int, bytes] = {}
        self.log_commands: dict[int, str] = {}
        self.feed_commands: dict[int, str] = {}
        self.mark = ""
        self.snapshot: Snapshot | None = None


class Memory:
    """What all nodes share: actors, due times, lists, outboxes, permits, and who hears what."""

    def __init__(self, deployment: Deployment, clock: Callable[[], int]) -> None:
        self.deployment = deployment
        self.clock = clock
        self.actors: defaultdict[str, Kept] = defaultdict(Kept)
        self.due: defaultdict[int, dict[tuple[str, Reason], int]] = defaultdict(dict)
        self.listed: defaultdict[tuple[int, str], dict[str, int]] = defaultdict(dict)
        self.outbox: defaultdict[int, list[bytes]] = defaultdict(list)
        self.outbox_ms: defaultdict[int, list[int]] = defaultdict(list)
        self.ledger = MemoryLedger(
            clock, lambda node, holder: self._ring(node, lambda ear: ear.granted(holder)), self._room
        )
        self.nodes: list[MemoryStore] = []

    def append(self, append: Append, partition: int) -> Outcome:
        """Write *append*, or say why not."""
        now = self.clock()
        kept = [self.actors[part.actor] for part in append.parts]
        both = list(zip(append.parts, kept, strict=True))
        if any(_written(append.command, part, of) for part, of in both):
            return Recorded(tuple(Placed(of.heads, _first(part, of)) for part, of in both), now, repeated=True)
        refusal = _refusal(both, now) or _outside(append, now)
        if refusal:
            return refusal
        befores = [of.heads for of in kept]
        for part, of in both:
            _write(append.command, part, of, now)
            self._keep_lease(partition, part, of.heads)
        for due in append.due:
            _put(self.due[partition], (due.actor, due.reason), due.at_ms)
        for entry in append.listed:
            _put(self.listed[partition, entry.name], entry.member, entry.score)
        if append.outbox:
            self.post(partition, append.outbox)
        self._publish(append, partition, both, befores)
        placed = (
            Placed(of.heads, before.feed + 1 if part.items else 0)
            for (part, of), before in zip(both, befores, strict=True)
        )
        return Recorded(tuple(placed), now)

    def post(self, partition: int, entries: Sequence[bytes]) -> None:
        """Write *entries* to an outbox; the times there never go back, as the ids of a stream do not."""
        written_ms = self.outbox_ms[partition]
        now = max([self.clock(), *written_ms[-1:]])
        self.outbox[partition] += entries
        written_ms += [now] * len(entries)

    def prune(self, partition: int, before_ms: int) -> None:
        """Take off an outbox what was written before *before_ms*."""
        old = bisect_left(self.outbox_ms[partition], before_ms)
        del self.outbox[partition][:old], self.outbox_ms[partition][:old]

    def _keep_lease(self, partition: int, part: Part, heads: Heads) -> None:
        if appends.marks(part):
            _put(self.due[partition], (part.actor, "lease"), heads.lease_ms or None)

    def _publish(
        self, append: Append, partition: int, both: Sequence[tuple[Part, Kept]], befores: Sequence[Heads]
    ) -> None:
        for (part, of), before in zip(both, befores, strict=True):
            if part.items or part.events or of.heads.ended != before.ended:
                pushed = part.items if sum(map(len, part.items)) <= PUSHED_ITEM_BYTES_MAX else ()
                for node in self.nodes:
                    node.hub.push(part.actor, before.feed + 1, pushed, of.heads.feed, of.heads.ended)
            if before.owner and (part.epoch is None or part.owner):
                self._rung(before.owner, part.actor)
        if any(due.reason == "work" and due.at_ms is not None for due in append.due):
            self._ring_all(lambda ear: ear.work(partition))

    def _rung(self, name: str, actor: str) -> None:
        self._ring(name, lambda ear: ear.rung(actor))

    def _room(self) -> None:
        self._ring_all(lambda ear: ear.room())

    def _ring_all(self, ring: Callable[[Ear], None]) -> None:
        for name in {node.node for node in self.nodes}:
            self._ring(name, ring)

    def _ring(self, name: str, ring: Callable[[Ear], None]) -> None:
        for node in self.nodes:
            if node.node == name and node.ear is not None:
                ring(node.ear)

    def renew(self, partition: int, node: str, mine: Mapping[str, int], lease_ms: int) -> Mapping[str, Heads | None]:
        """Move the lease ends of those of *mine* that are still *node*'s."""
        return {actor: self._renewed(partition, node, actor, epoch, lease_ms) for actor, epoch in mine.items()}

    def _renewed(self, partition: int, node: str, actor: str, epoch: int, lease_ms: int) -> Heads | None:
        of = self.actors[actor]
        if (of.heads.owner, of.heads.epoch) != (node, epoch):
            return None
        of.heads = replace(of.heads, lease_ms=self.clock() + lease_ms)
        self.due[partition][actor, "lease"] = of.heads.lease_ms
        return of.heads

    def sweep(self, partition: int, most: int, *, judging: bool) -> Swept:
        """Take what is due."""
        now, due = self.clock(), self.due[partition]
        past = sorted((at, "|".join(member), member) for member, at in due.items() if at <= now)
        seen = past if judging else [one for one in past[: most * PASSED_OVER] if one[2][1] not in JUDGED]
        ripe: list[Ripe] = []
        for at, _, (actor, reason) in seen[:most]:
            lease_ms = due.get((actor, "lease"), 0) if reason == "work" else 0
            due[actor, reason] = lease_ms if lease_ms > now else now + MOVED_MS
            if lease_ms <= now:
                ripe.append(Ripe(actor, reason, at))
        again_ms = min(due.values(), default=0)
        return Swept(ripe, now, again_ms if judging or not due else max(again_ms, now + SOON_MS))


def _met(actor: str, of: Kept) -> Met:
    if of.heads.erased:
        return Met(actor, of.heads, of.snapshot.data if of.snapshot else b"")
    return Met(actor, of.heads, of.log[1].data if 1 in of.log else b"")


def _by_score(member: tuple[str, int]) -> tuple[int, str]:
    return member[1], member[0]


def _put(mapping: dict[Name, int], name: Name, value: int | None) -> None:
    if value is None:
        mapping.pop(name, None)
    else:
        mapping[name] = value


def _written(command: str, part: Part, of: Kept) -> bool:
    """Whether *command* has already done *part*: the entry right after the expected head is its own."""
    if part.events and of.log_commands.get((part.log or 0) + 1) == command:
        return True
    if part.items and part.feed is not None and of.feed_commands.get(part.feed + 1) == command:
        return True
    return appends.marks(part) and of.mark == command


def _first(part: Part, of: Kept) -> int:
    """The number that the first item of *part* was given when it was written."""
    if not part.items:
        return 0
    if part.feed is not None:
        return part.feed + 1
    entry = of.log.get((part.log or 0) + 1)
    return entry.feed_head - part.events[0].items + 1 if entry else 0


def _refusal(both: Sequence[tuple[Part, Kept]], now: int) -> Conflict | Fenced | Ended | Lost | None:
    """Why *both* may not be written, in the order in which the checks are made."""
    heads = tuple(of.heads for _, of in both)
    if any(part.epoch not in {None, of.heads.epoch} for part, of in both):
        return Fenced(heads, now)
    if any(of.heads.ended and not (part.erase or part.trim) for part, of in both):
        return Ended(heads, now)
    if any(_astray(part, of.heads) for part, of in both):
        return Conflict(heads, now)
    for part, of in both:
        if not of.heads.erased and _lost(part, of):
            return Lost(part.actor, now)
    if any(part.owner and of.heads.owner and of.heads.lease_ms > now for part, of in both):
        return Fenced(heads, now)
    return None


def _astray(part: Part, heads: Heads) -> bool:
    """Whether *heads* are not where *part* says."""
    exact = part.log in {None, heads.log} and part.feed in {None, heads.feed}
    return not exact or (part.trim and not heads.ended)


def _lost(part: Part, of: Kept) -> bool:
    """Whether a stream that *part* names or writes is missing, or there without a head."""
    log = part.log is not None and bool(of.log) != (of.heads.log > 0)
    feed = (part.feed is not None or bool(part.items)) and bool(of.feed) != (of.heads.feed >= of.heads.oldest)
    return log or feed


def _outside(append: Append, now: int) -> OutsideWindow | None:
    late = append.not_after_ms and now >= append.not_after_ms
    return OutsideWindow(now) if late or now < append.not_before_ms else None


def _write(command: str, part: Part, of: Kept, now: int) -> None:
    before, of.heads = of.heads, appends.after(part, of.heads, now)
    for n, event in enumerate(part.events, before.log + 1):
        of.log[n] = Entry(n, before.feed + event.items, command, event.data)
    of.feed.update(enumerate(part.items, before.feed + 1))
    if part.events:
        of.log_commands[before.log + 1] = command
    if part.items:
        of.feed_commands[before.feed + 1] = command
    if appends.marks(part):
        of.mark = command
    if part.erase and not before.erased:
        of.snapshot = None
        of.log.clear()
        of.log_commands.clear()
    if part.erase or part.trim:
        of.feed.clear()
        of.feed_commands.clear()
    if part.epitaph and of.snapshot is None:
        of.snapshot = Snapshot(of.heads.log, part.epitaph)


class _Silence:
    """The messages of a hub to which everything is pushed."""

    async def subscribe(self, channel: str) -> None: ...

    async def unsubscribe(self, channel: str) -> None: ...


class MemoryStore:
    """One node's view of a `Memory`."""

    def __init__(self, memory: Memory, node: str) -> None:
        self.node = node
        self.deployment = memory.deployment
        self._memory = memory
        self._last_ms = 0
        self.ear: Ear | None = None
        self.hub = Hub(_Silence(), lambda actor: actor)
        memory.nodes.append(self)

    async def append(self, append: Append) -> Outcome:
        """Write *append* or say why not."""
        return self._memory.append(append, appends.partition(append, self.deployment.partitions))

    async def look(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Look:
        """Read heads, the log after version *after*, and the snapshot if it reaches further."""
        of = self._memory.actors.get(actor) or Kept()
        kept = of.snapshot if snapshot and of.snapshot and (of.heads.erased or of.snapshot.version > after) else None
        log = range((kept.version if kept else after) + 1, of.heads.log + 1)
        if not of.heads.erased and not all(version in of.log for version in log):
            raise HistoryLost(actor)
        entries = [of.log[version] for version in log if version in of.log]
        return Look(of.heads, entries, kept, self._memory.clock())

    async def page(self, actor: str, after: int, bytes_max: int = 262_144) -> Page:
        """Read the feed after number *after*; nothing below the oldest kept."""
        of = self._memory.actors.get(actor) or Kept()
        if after + 1 < of.heads.oldest:
            return Page(of.heads, [])
        items: list[Item] = []
        for number in range(after + 1, of.heads.feed + 1):
            if number not in of.feed:
                raise HistoryLost(actor)
            items.append(Item(number, of.feed[number]))
            bytes_max -= len(of.feed[number])
            if bytes_max <= 0:
                break
        return Page(of.heads, items)

    async def save(self, actor: str, snapshot: Snapshot) -> None:
        """Keep *snapshot* unless its actor is erased or its log is shorter."""
        of = self._memory.actors.get(actor)
        if of and not of.heads.erased and snapshot.version <= of.heads.log:
            of.snapshot = snapshot

    async def renew(self, partition: int, mine: Mapping[str, int], lease_ms: int) -> Mapping[str, Heads | None]:
        """Move the lease ends of what is still this node's."""
        return self._memory.renew(partition, self.node, mine, lease_ms)

    async def sweep(self, partition: int, most: int = 32, *, judging: bool = True) -> Swept:
        """Take due members whose time has come."""
        return self._memory.sweep(partition, most, judging=judging)

    async def settle(self, actor: str, reason: Reason, at_ms: int | None = None) -> None:
        """Clear a due member whose matter is done, or put it off."""
        due = self._memory.due[self.partition_of(actor)]
        if (actor, reason) in due:
            _put(due, (actor, reason), at_ms)

    async def confirm_end(self, actor: str) -> None:
        """There is no second server that could lack it."""

    async def post(self, actor: str, entry: bytes) -> None:
        """Write to the outbox."""
        self._memory.post(self.partition_of(actor), (entry,))

    async def listed(self, name: str, most: int) -> Sequence[tuple[str, int]]:
        """Read the first members of a list of each partition."""
        parts = [members for (_, known), members in self._memory.listed.items() if known == name]
        firsts = [sorted(members.items(), key=_by_score)[:most] for members in parts]
        return sorted([one for part in firsts for one in part], key=_by_score)

    async def prune(self, partition: int, before_ms: int) -> None:
        """Take off the outbox what was written before *before_ms*."""
        self._memory.prune(partition, before_ms)

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit."""
        return await self._memory.ledger.take(claim, caps, begin_within_ms)

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use."""
        await self._memory.ledger.begun(claim)

    async def enlist(self, claim: Claim, caps: Caps, queued_ms: int, begin_within_ms: int, lane: str = "") -> None:
        """Put a holder into the queue, once."""
        await self._memory.ledger.enlist(claim, caps, queued_ms, begin_within_ms, lane)

    async def dispatch(self, pool: str, most: int, caps: Caps, lanes: Collection[str] = ("",)) -> Sequence[Dispatched]:
        """Take up to *most* holders of *lanes* off the queue for this node."""
        return await self._memory.ledger.dispatch(pool, self.node, most, caps, lanes)

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line or the queue."""
        await self._memory.ledger.give(pool, holder, caps)

    async def held(self, pool: str) -> Collection[str]:
        """Read who holds a permit of *pool* that was begun."""
        return await self._memory.ledger.held(pool)

    async def begin_audit(self, pools: Collection[str]) -> str:
        """Take the audit of *pools* on, if it is due and nobody is at it."""
        return await self._memory.ledger.begin_audit(pools, self.node)

    async def keep_audit(self) -> None:
        """Give a sign that this node is at it."""
        await self._memory.ledger.keep_audit(self.node)

    async def end_audit(self, pools: Collection[str], history: str) -> bool:
        """Note that *pools* say what the runs say."""
        return await self._memory.ledger.end_audit(pools, history)

    async def meet(self, actors: Sequence[str]) -> Sequence[Met]:
        """Read what each of *actors* is."""
        return [_met(actor, self._memory.actors.get(actor) or Kept()) for actor in actors]

    async def roll(self) -> AsyncGenerator[Sequence[Met]]:
        """Read all actors, some at a time."""
        known = [actor for actor, of in self._memory.actors.items() if of.heads != Heads()]
        for at in range(0, len(known), MET_AT_ONCE):
            yield await self.meet(known[at : at + MET_AT_ONCE])

    def follow(self, actor: str) -> AbstractAsyncContextManager[Tail]:
        """A tail of *actor*."""
        return self.hub.tail(actor)

    def listen(self, ear: Ear) -> None:
        """Name the one who hears this node's rings."""
        self.ear = ear

    def partition_of(self, actor: str) -> int:
        """The partition of *actor*."""
        return keys.partition(actor, self.deployment.partitions)

    def now_ms(self) -> int:
        """The clock's time, never less than before."""
        self._last_ms = max(self._last_ms, self._memory.clock())
        return self._last_ms

    def history(self) -> str:
        """The only one there is."""
        return ""
