"""What is counted over all nodes: permits of a pool, and who waits for one.

A cache of what the runs say (DESIGN §3): it may be lost, and heals as holders say that they have begun.
`MemoryLedger` is the reference; `RedisLedger` asks `ledger.lua`, which keeps the same rules over sorted sets.
Every call may come twice. Order of the line: scheduling §3 and §4, over all nodes; a waiter has no deadline, but one
whose node has been silent for too long is dropped. A waiting holder asks again every `ASK_AGAIN_MS`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from msgspec import Struct, convert
from msgspec.structs import replace

from eventstore import keys
from eventstore.link import Link, Script
from eventstore.store import Caps, Claim, Permit, Taken

ASK_AGAIN_MS: Final = 5_000
"""How often a waiting holder asks again; a lost ring costs that."""
SILENT_MS: Final = 15_000
"""A waiter that has not asked for so long leaves the line; counted in time during which the ledger was spoken to."""
STEP_MS: Final = 3_000
"""The most that one call adds to that time, so that an outage costs nobody's place."""
SUBJECTS_MAX: Final = 32
"""Looks at a subject by one call; the next call goes on where this one stopped."""
GONE_MS: Final = 30_000
"""How long a given permit is remembered against a `begun` that arrives after its `give`."""

Ring: TypeAlias = Callable[[str, str], None]
"""Told the node and the holder of a waiter that was granted its permit."""


class Counted(NamedTuple):
    """How many permits of a pool are out, lapsed ones included until the next call, and how many wait."""

    held: int
    waiting: int


class Held(Struct, frozen=True):
    claim: Claim
    begin_by_ms: int


class Waiter(Struct, frozen=True):
    """A place in the line, under the caps its holder named when it last asked."""

    claim: Claim
    caps: Caps
    begin_within_ms: int
    asked_ms: int


class Pool(Struct, frozen=True):
    """One pool of permits. Mappings are in order of arrival."""

    held: Mapping[str, Held] = {}
    line: Mapping[str, Waiter] = {}
    turns: tuple[str, ...] = ()
    """Subjects with waiting work; the first is next."""
    gone: Mapping[str, int] = {}
    """Holders that gave their permit back, and until when that is remembered."""
    seen_ms: int = 0
    """Time of the last call that met a line."""
    awake_ms: int = 0
    """Time during which the ledger was spoken to; what a waiter's silence is counted in."""


class Answered(NamedTuple):
    pool: Pool
    permit: Permit
    granted: tuple[Claim, ...] = ()
    """Waiters to ring."""


class Pumped(NamedTuple):
    pool: Pool
    granted: tuple[Claim, ...]


def taken(pool: Pool, claim: Claim, caps: Caps, begin_within_ms: int, now_ms: int) -> Answered:
    """*pool* once *claim* was made at *now_ms*, and the answer to it."""
    pool = _awake(pool, now_ms)
    if (waiter := pool.line.get(claim.holder)) is not None:
        waiter = Waiter(replace(waiter.claim, node=claim.node), caps, begin_within_ms, pool.awake_ms)
        pool = replace(pool, line={**pool.line, claim.holder: waiter})
    pool, granted = _pumped(_reaped(pool, now_ms), caps.total, now_ms)
    return _answered(pool, Waiter(claim, caps, begin_within_ms, pool.awake_ms), now_ms)._replace(granted=granted)


def begun(pool: Pool, claim: Claim, now_ms: int) -> Pool:
    """*pool* once the permit of *claim* is in use, even if the pool had forgotten it; not if it was given back since."""
    if pool.gone.get(claim.holder, 0) > now_ms:
        return pool
    known = pool.held.get(claim.holder, Held(claim, 0))
    return replace(_without(pool, claim.holder), held={**pool.held, claim.holder: replace(known, begin_by_ms=0)})


def given(pool: Pool, holder: str, total: int, now_ms: int) -> Pumped:
    """*pool* once *holder* neither holds nor waits, and who was granted in its place."""
    pool = _without(_awake(pool, now_ms), holder)
    gone = {name: until for name, until in pool.gone.items() if until > now_ms} | {holder: now_ms + GONE_MS}
    held = {name: permit for name, permit in pool.held.items() if name != holder}
    return _pumped(_reaped(replace(pool, held=held, gone=gone), now_ms), total, now_ms)


def _answered(pool: Pool, asking: Waiter, now_ms: int) -> Answered:
    """The answer to *asking* once everybody who could be granted was."""
    claim, caps = asking.claim, asking.caps
    if (permit := pool.held.get(claim.holder)) is not None:
        return Answered(pool, Permit("granted", permit.begin_by_ms))
    if claim.holder in pool.line:
        return Answered(pool, Permit("queued", 0))
    if _below(len(pool.held), caps.total) and _eligible(pool, asking):
        pool = _granted(pool, asking, now_ms)
        return Answered(pool, Permit("granted", pool.held[claim.holder].begin_by_ms))
    if caps.queue_total == 0:
        return Answered(pool, Permit("busy", 0))
    queued = sum(waiter.claim.subject == claim.subject for waiter in pool.line.values())
    if len(pool.line) >= caps.queue_total or not _below(queued, caps.queue_per_subject):
        return Answered(pool, Permit("full", 0))
    turns = pool.turns if claim.subject in pool.turns else (*pool.turns, claim.subject)
    pool = replace(_known(pool, claim.holder), line={**pool.line, claim.holder: asking}, turns=turns, seen_ms=now_ms)
    return Answered(pool, Permit("queued", 0))


def _pumped(pool: Pool, total: int, now_ms: int) -> Pumped:
    """*pool* after granting to whoever is next while there is room: subjects in rotation, each first in, first out."""
    granted: tuple[Claim, ...] = ()
    fruitless = 0
    for _ in range(SUBJECTS_MAX):
        if fruitless == len(pool.turns) or not _below(len(pool.held), total):
            break
        subject, *others = pool.turns
        pool = replace(pool, turns=(*others, subject))
        waiter = _first(pool, subject)
        if waiter is None:
            fruitless += 1
        else:
            pool, granted, fruitless = _granted(pool, waiter, now_ms), (*granted, waiter.claim), 0
    return Pumped(pool, granted)


def _first(pool: Pool, subject: str) -> Waiter | None:
    """The earliest waiter of *subject* that may have a permit, looking at the first of each account."""
    heads: dict[str, Waiter] = {}
    for waiter in pool.line.values():
        if waiter.claim.subject == subject:
            heads.setdefault(waiter.claim.account, waiter)
    return next((waiter for waiter in heads.values() if _eligible(pool, waiter)), None)


def _eligible(pool: Pool, waiter: Waiter) -> bool:
    subjects = Counter(permit.claim.subject for permit in pool.held.values())
    accounts = Counter(permit.claim.account for permit in pool.held.values() if permit.claim.account)
    return _below(subjects[waiter.claim.subject], waiter.caps.per_subject) and _below(
        accounts[waiter.claim.account], waiter.caps.per_account
    )


def _below(count: int, cap: int) -> bool:
    return cap == 0 or count < cap


def _granted(pool: Pool, waiter: Waiter, now_ms: int) -> Pool:
    """*pool* with *waiter* holding a permit that it must begin in time."""
    permit = Held(waiter.claim, now_ms + waiter.begin_within_ms)
    pool = _known(_without(pool, waiter.claim.holder), waiter.claim.holder)
    return replace(pool, held={**pool.held, waiter.claim.holder: permit})


def _known(pool: Pool, holder: str) -> Pool:
    return replace(pool, gone={name: until for name, until in pool.gone.items() if name != holder})


def _without(pool: Pool, *holders: str) -> Pool:
    """*pool* with none of *holders* in the line; a subject without waiting work has no turn."""
    line = {name: waiter for name, waiter in pool.line.items() if name not in holders}
    subjects = {waiter.claim.subject for waiter in line.values()}
    return replace(pool, line=line, turns=tuple(subject for subject in pool.turns if subject in subjects))


def _awake(pool: Pool, now_ms: int) -> Pool:
    """*pool* with the time that it was spoken to; nothing to count while nobody waits."""
    if not pool.line:
        return pool
    step = max(0, min(now_ms - pool.seen_ms, STEP_MS))
    return replace(pool, seen_ms=now_ms, awake_ms=pool.awake_ms + step)


def _reaped(pool: Pool, now_ms: int) -> Pool:
    """*pool* without permits that were not begun in time and without silent waiters."""
    held = {name: permit for name, permit in pool.held.items() if not 0 < permit.begin_by_ms <= now_ms}
    silent = [name for name, waiter in pool.line.items() if waiter.asked_ms <= pool.awake_ms - SILENT_MS]
    return _without(replace(pool, held=held), *silent)


class MemoryLedger:
    """The reference: one process, any number of nodes."""

    def __init__(self, clock: Callable[[], int], ring: Ring = lambda _node, _holder: None) -> None:
        self._clock = clock
        self._ring = ring
        self._pools: dict[str, Pool] = {}

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit; asking again under one holder is asking once. A begun permit has begin-by 0."""
        answer = taken(self._pool(claim.pool), claim, caps, begin_within_ms, self._clock())
        self._keep(claim.pool, Pumped(answer.pool, answer.granted))
        return answer.permit

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use."""
        self._pools[claim.pool] = begun(self._pool(claim.pool), claim, self._clock())

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line."""
        self._keep(pool, given(self._pool(pool), holder, caps.total, self._clock()))

    async def counted(self, pool: str) -> Counted:
        """Count permits and waiters of *pool*."""
        now = self._pool(pool)
        return Counted(len(now.held), len(now.line))

    def _pool(self, name: str) -> Pool:
        return self._pools.get(name, Pool())

    def _keep(self, name: str, pumped: Pumped) -> None:
        self._pools[name] = pumped.pool
        for claim in pumped.granted:
            self._ring(claim.node, claim.holder)


_LUA: Final = Path(__file__).with_name("ledger.lua").read_text(encoding="utf-8")
_TAKE: Final = Script("ledger", _LUA)
_SETTLE: Final = Script("ledger-settle", _LUA, allow_oom=True)
"""The same script, where it must run though memory is full: it frees what it can."""


def ledger_keys(pool: str, holder: str) -> tuple[str, ...]:
    """The keys that a call for *holder* touches, as `ledger.lua` lists them."""
    of_pool = (keys.ledger("held", pool), keys.ledger("by", pool), keys.ledger("line", pool))
    return (*of_pool, keys.ledger("turn", pool), keys.ledger("asked", pool), keys.ledger("gone", f"{pool}:{holder}"))


class RedisLedger:
    """The ledger of a deployment on Redis; raises what its link raises, and then every call may be sent again."""

    def __init__(self, link: Link, publish_command: str = "PUBLISH") -> None:
        self._link = link
        self._rings = (publish_command, keys.node_channel(keys.LEDGER_TAG, ""))

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit; asking again under one holder is asking once. A begun permit has begin-by 0."""
        bounds = (caps.total, begin_within_ms, caps.per_subject, caps.per_account)
        queue = (caps.queue_total, caps.queue_per_subject)
        answer = await self._run(_TAKE, "take", claim.pool, claim.holder, *bounds, *queue, *_names(claim))
        return Permit(convert(answer[0].decode(), Taken), int(answer[1]))

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use."""
        await self._run(_SETTLE, "begun", claim.pool, claim.holder, *_names(claim))

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line."""
        await self._run(_SETTLE, "give", pool, holder, caps.total)

    async def counted(self, pool: str) -> Counted:
        """Count permits and waiters of *pool*."""
        held, _, line, *_ = ledger_keys(pool, "")
        return Counted(await self._link.call("ZCARD", held), await self._link.call("ZCARD", line))

    async def _run(self, script: Script, verb: str, pool: str, holder: str, *args: str | int) -> list[bytes]:
        words = (verb, holder, *self._rings, *args)
        answer: list[bytes] = await self._link.script(script, ledger_keys(pool, holder), words)
        return answer


def _names(claim: Claim) -> tuple[str, str, str]:
    """Subject and account of *claim*, quoted so that the script may join them, and its node."""
    return quote(claim.subject, safe=""), quote(claim.account, safe=""), claim.node
