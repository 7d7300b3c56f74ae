"""What is counted over all nodes: permits of a pool, who waits for one, and which jobs any node may take up.

A cache of what the runs say (DESIGN §3): it may be lost, and heals as holders say that they have begun.
`MemoryLedger` is the reference; `RedisLedger` asks `ledger.lua`, which keeps the same rules over sorted sets.
Every call may come twice. Order of line and queue: scheduling §3 and §4, over all nodes. A waiter has no deadline, but
one whose node has been silent for too long is dropped: a waiting holder asks again every `ASK_AGAIN_MS`.
A queued holder need not ask: it stays until the `dispatch` of a node that serves its lane takes it up, or it is given.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from msgspec import Struct, convert
from msgspec.structs import replace

from eventstore import keys
from eventstore.link import Link, ReplyError, Script
from eventstore.store import AUDIT_MS, Caps, Claim, Dispatched, Permit, Taken

ASK_AGAIN_MS: Final = 5_000
"""How often a waiting holder asks again; a lost ring costs that."""
SILENT_MS: Final = 15_000
"""A waiter that has not asked for so long leaves the line; counted in time during which the ledger was spoken to."""
STEP_MS: Final = 3_000
"""The most that one call adds to that time, so that an outage costs nobody's place."""
SUBJECTS_MAX: Final = 32
"""Looks at a subject of a line by one call; the next call goes on where this one stopped."""
GONE_MS: Final = 30_000
"""How long a given permit is remembered against a `begun` that arrives after its `give`."""

Ring: TypeAlias = Callable[[str, str], None]
"""Told the node and the holder of a waiter that was granted its permit."""
Room: TypeAlias = Callable[[], None]
"""Told that queued holders may find room."""


class Counted(NamedTuple):
    """How many permits of a pool are out, lapsed ones included until the next call, and how many wait."""

    held: int
    waiting: int
    queued: int = 0
    """Holders that any node may take up."""
    weight: int = 0
    """What the permits that are out weigh together."""


class Held(Struct, frozen=True):
    claim: Claim
    begin_by_ms: int


class Waiter(Struct, frozen=True):
    """A place in a line, under the caps its holder named when it last asked."""

    claim: Claim
    caps: Caps
    begin_within_ms: int
    at_ms: int
    """In the line: when it last asked, in time during which the ledger was spoken to. In the queue: its place."""
    lane: str = ""
    """In the queue: which nodes may take it up."""


class Line(Struct, frozen=True):
    """Who waits, the earliest first."""

    waiters: Mapping[str, Waiter] = {}
    turns: tuple[str, ...] = ()
    """Subjects with waiting work; the first is next."""


class Pool(Struct, frozen=True):
    """One pool of permits. Mappings are in order of arrival."""

    held: Mapping[str, Held] = {}
    line: Line = Line()
    """Those that asked for a permit and are rung when they have it."""
    queue: Line = Line()
    """Those that any node may take up."""
    gone: Mapping[str, int] = {}
    """Holders that gave their permit back, and until when that is remembered."""
    seen_ms: int = 0
    """Time of the last call that met a line."""
    awake_ms: int = 0
    """Time during which the ledger was spoken to; what a waiter's silence is counted in."""
    audited: str = ""
    """The history on which it was last held against the runs; nothing if it was not, or has forgotten."""


class Step(NamedTuple):
    """What a call makes of a pool, and whom it tells."""

    pool: Pool
    granted: tuple[Claim, ...] = ()
    """Waiters to ring."""
    room: bool = False
    """Whether every node is told that queued holders may find room."""


class Serving(Struct, frozen=True):
    """How a line is served."""

    line: Literal["line", "queue"]
    caps: Caps
    """What holds for all: of a line `total`, of the queue `per_node` too; the rest is each waiter's own."""
    node: str = ""
    """Where what is queued will run."""
    lanes: Collection[str] = ("",)
    """What is served there."""
    most: int = SUBJECTS_MAX


def taken(pool: Pool, claim: Claim, caps: Caps, begin_within_ms: int, now_ms: int) -> tuple[Step, Permit]:
    """*pool* once *claim* was made at *now_ms*, and the answer to it."""
    awake = _awake(pool, now_ms)
    asking = Waiter(claim, caps, begin_within_ms, awake.awake_ms)
    if (waiter := awake.line.waiters.get(claim.holder)) is not None:
        known = replace(waiter.claim, node=claim.node, weight=claim.weight)
        waiters = {**awake.line.waiters, claim.holder: replace(asking, claim=known)}
        awake = replace(awake, line=replace(awake.line, waiters=waiters))
    freed = _reaped(awake, now_ms)
    if (permit := freed.held.get(claim.holder)) is not None and claim.weight < permit.claim.weight:
        freed = _weighing(freed, permit, claim.weight)
    served, granted = _pumped(freed, caps, now_ms)
    after, answer = _answered(served, asking, now_ms)
    return _told(pool, freed, Step(after, granted), caps), answer


def begun(pool: Pool, claim: Claim, now_ms: int) -> Pool:
    """*pool* once the permit of *claim* is in use on its node, even if the pool had forgotten it.

    Not if it was given back since.
    """
    if pool.gone.get(claim.holder, 0) > now_ms:
        return pool
    known = pool.held.get(claim.holder, Held(claim, 0)).claim
    permit = Held(replace(known, node=claim.node, weight=claim.weight), 0)
    return replace(_without(pool, claim.holder), held={**pool.held, claim.holder: permit})


def given(pool: Pool, holder: str, caps: Caps, now_ms: int) -> Step:
    """*pool* once *holder* neither holds nor waits nor is queued, and who was granted in its place."""
    awake = _without(_awake(pool, now_ms), holder)
    gone = {name: until for name, until in pool.gone.items() if until > now_ms} | {holder: now_ms + GONE_MS}
    held = {name: permit for name, permit in pool.held.items() if name != holder}
    freed = _reaped(replace(awake, held=held, gone=gone), now_ms)
    return _told(pool, freed, Step(*_pumped(freed, caps, now_ms)), caps)


def enlisted(pool: Pool, queued: Waiter, now_ms: int) -> Step:
    """*pool* with *queued* in the queue, unless its holder has a permit, waits for one, or is queued already."""
    claim, caps = queued.claim, queued.caps
    freed = _reaped(_awake(pool, now_ms), now_ms)
    after, granted = _pumped(freed, caps, now_ms)
    if claim.holder in {*after.held, *after.line.waiters, *after.queue.waiters}:
        return _told(pool, freed, Step(after, granted), caps)
    joined = _joined(after.queue, queued)
    by_place = dict(sorted(joined.waiters.items(), key=lambda named: (named[1].at_ms, named[0])))
    return Step(replace(_known(after, claim.holder), queue=replace(joined, waiters=by_place)), granted, room=True)


def dispatched(pool: Pool, serving: Serving, now_ms: int) -> tuple[Step, tuple[Dispatched, ...]]:
    """*pool* once holders were taken off the queue as *serving* says, and who they are; the line comes first."""
    caps = serving.caps
    freed = _reaped(_awake(pool, now_ms), now_ms)
    pumped, granted = _pumped(freed, caps, now_ms)
    after, claims = _served(pumped, serving, now_ms)
    answer = tuple(Dispatched(claim.holder, after.held[claim.holder].begin_by_ms) for claim in claims)
    return _told(pool, freed, Step(after, granted), caps), answer


def _answered(pool: Pool, asking: Waiter, now_ms: int) -> tuple[Pool, Permit]:
    """The answer to *asking* once everybody who could be granted was."""
    claim, caps = asking.claim, asking.caps
    if (held := pool.held.get(claim.holder)) is not None:
        more = claim.weight - held.claim.weight
        if more > 0 and not _fits(pool, held.claim, caps, more):
            return pool, Permit("busy", 0)
        return _weighing(pool, held, claim.weight), Permit("granted", held.begin_by_ms)
    if claim.holder in pool.line.waiters:
        return pool, Permit("queued", 0)
    if _fits(pool, claim, caps, claim.weight):
        return _granted(pool, asking, now_ms), Permit("granted", now_ms + asking.begin_within_ms)
    if claim.holder in pool.queue.waiters:
        return pool, Permit("queued", 0)
    if caps.queue_total == 0:
        return pool, Permit("busy", 0)
    queued = sum(waiter.claim.subject == claim.subject for waiter in pool.line.waiters.values())
    if len(pool.line.waiters) >= caps.queue_total or not _below(queued, caps.queue_per_subject):
        return pool, Permit("full", 0)
    return replace(_known(pool, claim.holder), line=_joined(pool.line, asking), seen_ms=now_ms), Permit("queued", 0)


def _pumped(pool: Pool, caps: Caps, now_ms: int) -> tuple[Pool, tuple[Claim, ...]]:
    """*pool* after granting to those who wait in the line, and who they are."""
    return _served(pool, Serving("line", caps), now_ms)


def _served(pool: Pool, serving: Serving, now_ms: int) -> tuple[Pool, tuple[Claim, ...]]:
    """*pool* after granting to whoever is next while there is room: subjects in rotation, each by place."""
    granted: tuple[Claim, ...] = ()
    fruitless = 0
    for _ in range(SUBJECTS_MAX):
        line = _line(pool, serving)
        if fruitless == len(line.turns) or len(granted) == serving.most or not _open(pool, serving):
            break
        subject, *others = line.turns
        pool = replace(pool, **{serving.line: replace(line, turns=(*others, subject))})
        waiter = _first(pool, subject, serving)
        if waiter is None:
            fruitless += 1
        else:
            pool, granted, fruitless = _granted(pool, waiter, now_ms), (*granted, waiter.claim), 0
    return pool, granted


def _first(pool: Pool, subject: str, serving: Serving) -> Waiter | None:
    """The earliest waiter of *subject* that may have a permit, looking at the first of each lane and account."""
    heads: dict[tuple[str, str], Waiter] = {}
    for waiter in _line(pool, serving).waiters.values():
        if waiter.claim.subject == subject and waiter.lane in serving.lanes:
            heads.setdefault((waiter.lane, waiter.claim.account), _as_served(waiter, serving))
    return next((head for head in heads.values() if _fits(pool, head.claim, head.caps, head.claim.weight)), None)


def _line(pool: Pool, serving: Serving) -> Line:
    return pool.line if serving.line == "line" else pool.queue


def _as_served(waiter: Waiter, serving: Serving) -> Waiter:
    """*waiter* under what holds for all, and where it will run."""
    if serving.line == "line":
        return replace(waiter, caps=replace(waiter.caps, total=serving.caps.total))
    caps = replace(waiter.caps, total=serving.caps.total, per_node=serving.caps.per_node)
    return replace(waiter, claim=replace(waiter.claim, node=serving.node), caps=caps)


def _open(pool: Pool, serving: Serving) -> bool:
    """Whether there is room for anybody at all."""
    on_node = sum(permit.claim.weight for permit in pool.held.values() if permit.claim.node == serving.node)
    return _below(_weight(pool), serving.caps.total) and (
        serving.line == "line" or _below(on_node, serving.caps.per_node)
    )


def _fits(pool: Pool, claim: Claim, caps: Caps, more: int) -> bool:
    """Whether every bound of *caps* leaves room for *more* on behalf of *claim*."""
    out = [permit.claim for permit in pool.held.values()]
    sums = (
        (caps.total, sum(c.weight for c in out)),
        (caps.per_subject, sum(c.weight for c in out if c.subject == claim.subject)),
        (caps.per_account if claim.account else 0, sum(c.weight for c in out if c.account == claim.account)),
        (caps.per_node, sum(c.weight for c in out if c.node == claim.node)),
    )
    return all(cap == 0 or used + more <= cap for cap, used in sums)


def _below(count: int, cap: int) -> bool:
    return cap == 0 or count < cap


def _weight(pool: Pool) -> int:
    return sum(permit.claim.weight for permit in pool.held.values())


def _weighing(pool: Pool, permit: Held, weight: int) -> Pool:
    """*pool* in which *permit*, which it holds, weighs *weight*."""
    claim = replace(permit.claim, weight=weight)
    return replace(pool, held={**pool.held, claim.holder: replace(permit, claim=claim)})


def _granted(pool: Pool, waiter: Waiter, now_ms: int) -> Pool:
    """*pool* with *waiter* holding a permit that it must begin in time."""
    permit = Held(waiter.claim, now_ms + waiter.begin_within_ms)
    pool = _known(_without(pool, waiter.claim.holder), waiter.claim.holder)
    return replace(pool, held={**pool.held, waiter.claim.holder: permit})


def _known(pool: Pool, holder: str) -> Pool:
    return replace(pool, gone={name: until for name, until in pool.gone.items() if name != holder})


def _joined(line: Line, waiter: Waiter) -> Line:
    subject = waiter.claim.subject
    turns = line.turns if subject in line.turns else (*line.turns, subject)
    return Line({**line.waiters, waiter.claim.holder: waiter}, turns)


def _without(pool: Pool, *holders: str) -> Pool:
    """*pool* with none of *holders* in the line or the queue."""
    return replace(pool, line=_left(pool.line, holders), queue=_left(pool.queue, holders))


def _left(line: Line, holders: Sequence[str]) -> Line:
    """*line* without *holders*; a subject without waiting work has no turn."""
    waiters = {name: waiter for name, waiter in line.waiters.items() if name not in holders}
    subjects = {waiter.claim.subject for waiter in waiters.values()}
    return Line(waiters, tuple(subject for subject in line.turns if subject in subjects))


def _awake(pool: Pool, now_ms: int) -> Pool:
    """*pool* with the time that it was spoken to; nothing to count while nobody waits."""
    if not pool.line.waiters:
        return pool
    step = max(0, min(now_ms - pool.seen_ms, STEP_MS))
    return replace(pool, seen_ms=now_ms, awake_ms=pool.awake_ms + step)


def _reaped(pool: Pool, now_ms: int) -> Pool:
    """*pool* without permits that were not begun in time and without silent waiters."""
    held = {name: permit for name, permit in pool.held.items() if not 0 < permit.begin_by_ms <= now_ms}
    waiters = pool.line.waiters
    silent = [name for name, waiter in waiters.items() if waiter.at_ms <= pool.awake_ms - SILENT_MS]
    return replace(pool, held=held, line=_left(pool.line, silent))


def _told(before: Pool, freed: Pool, step: Step, caps: Caps) -> Step:
    """*step*, with room for queued holders if from *before* to *freed* something was given back and some is left."""
    gave = _weight(freed) < _weight(before)
    return step._replace(room=gave and bool(step.pool.queue.turns) and _below(_weight(step.pool), caps.total))


class MemoryLedger:
    """The reference: one process, any number of nodes."""

    def __init__(
        self, clock: Callable[[], int], ring: Ring = lambda _node, _holder: None, room: Room = lambda: None
    ) -> None:
        self._clock = clock
        self._ring = ring
        self._room = room
        self._pools: dict[str, Pool] = {}
        self._auditor_until_ms = 0
        self.history = "memory"
        """What names the history that the ledger is on."""

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit; asking again under one holder is asking once. A begun permit has begin-by 0."""
        step, permit = taken(self._pool(claim.pool), claim, caps, begin_within_ms, self._clock())
        self._keep(claim.pool, step)
        return permit

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use."""
        self._pools[claim.pool] = begun(self._pool(claim.pool), claim, self._clock())

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line or the queue."""
        self._keep(pool, given(self._pool(pool), holder, caps, self._clock()))

    async def enlist(self, claim: Claim, caps: Caps, queued_ms: int, begin_within_ms: int, lane: str = "") -> None:
        """Put a holder into the queue, once."""
        queued = Waiter(claim, caps, begin_within_ms, queued_ms, lane)
        self._keep(claim.pool, enlisted(self._pool(claim.pool), queued, self._clock()))

    async def dispatch(
        self, pool: str, node: str, most: int, caps: Caps, lanes: Collection[str] = ("",)
    ) -> Sequence[Dispatched]:
        """Take up to *most* holders of *lanes* off the queue for *node*."""
        step, answer = dispatched(self._pool(pool), Serving("queue", caps, node, lanes, most), self._clock())
        self._keep(pool, step)
        return answer

    async def held(self, pool: str) -> Collection[str]:
        """Read who holds a permit of *pool* that was begun."""
        return [holder for holder, permit in self._pool(pool).held.items() if permit.begin_by_ms == 0]

    async def begin_audit(self, pools: Collection[str], _node: str) -> str:
        """Take the audit on, if it is due and nobody is at it: the history it is about; else nothing."""
        is_due = any(self._pool(pool).audited != self.history for pool in pools)
        if not is_due or self._clock() < self._auditor_until_ms:
            return ""
        await self.keep_audit(_node)
        return self.history

    async def keep_audit(self, _node: str) -> None:
        """Give a sign that a node is at it."""
        self._auditor_until_ms = self._clock() + AUDIT_MS

    async def end_audit(self, pools: Collection[str], history: str) -> bool:
        """Note that *pools* say what the runs say, if the ledger still is on *history*."""
        if history == self.history:
            self._pools |= {pool: replace(self._pool(pool), audited=history) for pool in pools}
        self._auditor_until_ms = 0
        return history == self.history

    async def counted(self, pool: str) -> Counted:
        """Count permits and waiters of *pool*."""
        now = self._pool(pool)
        return Counted(len(now.held), len(now.line.waiters), len(now.queue.waiters), _weight(now))

    def _pool(self, name: str) -> Pool:
        return self._pools.get(name, Pool())

    def _keep(self, name: str, step: Step) -> None:
        self._pools[name] = step.pool
        for claim in step.granted:
            self._ring(claim.node, claim.holder)
        if step.room:
            self._room()


_LUA: Final = Path(__file__).with_name("ledger.lua").read_text(encoding="utf-8")
_TAKE: Final = Script("ledger", _LUA)
_HELD_AT_ONCE: Final = 512
"""Holders that one step of a scan reads."""
_SETTLE: Final = Script("ledger-settle", _LUA, allow_oom=True)
"""The same script, where it must run though memory is full: it frees what it can."""


def ledger_keys(pool: str, holder: str) -> tuple[str, ...]:
    """The keys that a call for *holder* touches, as `ledger.lua` lists them."""
    of_pool = (keys.ledger("held", pool), keys.ledger("by", pool), keys.ledger("line", pool))
    of_holder = (keys.ledger("turn", pool), keys.ledger("asked", pool), keys.ledger("gone", f"{pool}:{holder}"))
    return (*of_pool, *of_holder, keys.ledger("queue", pool), keys.ledger("qturn", pool))


class RedisLedger:
    """The ledger of a deployment on Redis; raises what its link raises, and then every call may be sent again."""

    def __init__(self, link: Link, publish_command: str = "PUBLISH") -> None:
        self._link = link
        self._rings = (publish_command, keys.node_channel(keys.LEDGER_TAG, ""), keys.room_channel())

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit; asking again under one holder is asking once. A begun permit has begin-by 0."""
        queue = (caps.queue_total, caps.queue_per_subject)
        bounds = _bounds(caps, begin_within_ms)
        answer = await self._run(_TAKE, "take", claim.pool, claim.holder, *bounds, *_names(claim), *queue)
        return Permit(convert(answer[0].decode(), Taken), int(answer[1]))

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use."""
        await self._run(_SETTLE, "begun", claim.pool, claim.holder, *_names(claim))

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line or the queue."""
        await self._run(_SETTLE, "give", pool, holder, caps.total)

    async def enlist(self, claim: Claim, caps: Caps, queued_ms: int, begin_within_ms: int, lane: str = "") -> None:
        """Put a holder into the queue, once."""
        bounds = _bounds(caps, begin_within_ms)
        await self._run(_TAKE, "enlist", claim.pool, claim.holder, *bounds, *_names(claim), queued_ms, lane)

    async def dispatch(
        self, pool: str, node: str, most: int, caps: Caps, lanes: Collection[str] = ("",)
    ) -> Sequence[Dispatched]:
        """Take up to *most* holders of *lanes* off the queue for *node*."""
        bounds = (caps.total, caps.per_node, most)
        _, _, _, *found = await self._run(_TAKE, "dispatch", pool, "", *bounds, node, f"|{'|'.join(lanes)}|")
        pairs = zip(found[::2], found[1::2], strict=True)
        return [Dispatched(holder.decode(), int(begin_by)) for holder, begin_by in pairs]

    async def held(self, pool: str) -> Collection[str]:
        """Read who holds a permit of *pool* that was begun, in steps that hold nobody up."""
        begun, cursor = set[str](), b"0"
        while True:
            cursor, found = await self._link.call("ZSCAN", keys.ledger("held", pool), cursor, "COUNT", _HELD_AT_ONCE)
            pairs = zip(found[::2], found[1::2], strict=True)
            begun.update(holder.decode() for holder, begin_by in pairs if begin_by == b"0")
            if cursor == b"0":
                return begun

    async def begin_audit(self, pools: Collection[str], node: str) -> str:
        """Take the audit on, if it is due and nobody is at it: the history it is about; else nothing."""
        marks = [("HGET", keys.ledger("by", pool), "audited") for pool in pools]
        history = await self._history()
        if all(mark == history.encode() for mark in await self._piped(marks)):
            return ""
        taken = await self._link.call("SET", keys.auditor(), node, "NX", "PX", AUDIT_MS)
        return history if taken else ""

    async def keep_audit(self, node: str) -> None:
        """Give a sign that *node* is at it."""
        await self._link.call("SET", keys.auditor(), node, "PX", AUDIT_MS)

    async def end_audit(self, pools: Collection[str], history: str) -> bool:
        """Note that *pools* say what the runs say, if the ledger still is on *history*."""
        is_same = history == await self._history()
        if is_same:
            await self._piped([("HSET", keys.ledger("by", pool), "audited", history) for pool in pools])
        await self._link.call("DEL", keys.auditor())
        return is_same

    async def counted(self, pool: str) -> Counted:
        """Count permits and waiters of *pool*."""
        held, by, line, *_, queue, _ = ledger_keys(pool, "")
        held_n, waiting, queued = [await self._link.call("ZCARD", key) for key in (held, line, queue)]
        return Counted(held_n, waiting, queued, int(await self._link.call("HGET", by, "total") or 0))

    async def _history(self) -> str:
        """What names the histories of all primaries together: whichever goes back, ledger and runs may differ."""
        infos = [await primary.call("INFO", "replication") for primary in self._link.primaries()]
        return ",".join(sorted(map(_replication_id, infos)))

    async def _piped(self, commands: Sequence[Sequence[str]]) -> list[Any]:
        replies = await self._link.pipeline(commands)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        return replies

    async def _run(self, script: Script, verb: str, pool: str, holder: str, *args: str | int) -> list[bytes]:
        words = (verb, holder, *self._rings, *args)
        answer: list[bytes] = await self._link.script(script, ledger_keys(pool, holder), words)
        return answer


def _replication_id(info: bytes) -> str:
    """What names a server's history, from its `INFO replication`."""
    return next(line for line in info.decode().splitlines() if line.startswith("master_replid:")).partition(":")[2]


def _bounds(caps: Caps, begin_within_ms: int) -> tuple[int, ...]:
    return caps.total, begin_within_ms, caps.per_subject, caps.per_account, caps.per_node


def _names(claim: Claim) -> tuple[int, str, str, str]:
    """Weight of *claim*, its subject and account, quoted so that the script may join them, and its node."""
    return claim.weight, quote(claim.subject, safe=""), quote(claim.account, safe=""), claim.node
