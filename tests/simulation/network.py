"""The network between nodes and their store: it delays, loses, cuts and says things late, as one seed has it.

Each node has one connection to each partition (and to the ledger), which keeps its order. When a connection breaks, all
that is under way on it is lost to the asker; what the server has taken in may still be carried out, even after what was
sent on the next connection. As the real store does, an asker asks again until its patience ends, and then is told
`Unavailable`, whatever becomes of the call.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import anyio
import msgspec
from typing_extensions import override

from eventstore import appends
from eventstore.follow import Hub
from eventstore.memory import Kept, Memory, MemoryStore
from eventstore.store import Append, Ear, Outcome, Recorded, Tail, Unavailable
from tests.simulation.loop import VirtualLoop, at_once, of_machine

PATIENCE_S = 1.0
LEDGER = -1
"""The ledger, as a partition of its own."""
_DELAY_S, _DELAY_S_MAX = 0.01, 0.25


class Weather(NamedTuple):
    """How likely what is of each message."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    slow: float = 0.0
    hint_lost: float = 0.0


FAIR = Weather()


class Wrote(NamedTuple):
    """An append that reached the store, and how it was answered there."""

    node: str
    append: Append
    outcome: Outcome


class Broken(Exception):
    """The connection is gone."""


class Connection:
    """One connection: requests are carried out, and answered, in their order."""

    def __init__(self) -> None:
        self.asked_s = 0.0
        self.answered_s = 0.0
        self.waiting: dict[asyncio.Future[Any], None] = {}
        self.broken = False


class Network:
    """What lies between the nodes and the memory."""

    def __init__(self, loop: VirtualLoop, memory: Memory, chance: random.Random, say: Callable[..., None]) -> None:
        self.loop = loop
        self.memory = memory
        self.chance = chance
        self.say = say
        self.weather = FAIR
        self.down = False
        """Nobody reaches anything."""
        self.cut: set[tuple[str, int]] = set()
        """Who does not reach what; an empty name: nobody."""
        self.wrote: list[Wrote] = []
        self.unjust: list[str] = []
        """What an audit gave back though its holder lives."""
        self._world = of_machine("")
        self._lines: dict[tuple[str, int], Connection] = {}

    def reaches(self, node: str, place: int) -> bool:
        return not (self.down or (node, place) in self.cut or ("", place) in self.cut)

    def sever(self) -> None:
        """Break what does not reach its end any more."""
        for node, place in list(self._lines):
            if not self.reaches(node, place):
                self._break(node, place)

    def send(self, node: str, place: int, verb: str, work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        """Carry a call there and its answer back, if all goes well."""
        now, chance, weather = self.loop.time(), self.chance, self.weather
        if not self.reaches(node, place):
            if chance.random() < 0.7:
                self._later(now + chance.uniform(0.001, 0.05), self._fail, answer)
            return  # else nothing comes back at all
        line = self._lines.setdefault((node, place), Connection())
        line.waiting[answer] = None
        if chance.random() < weather.request_lost:
            self._later(now + chance.uniform(0, 0.02), self._break, node, place, line)
            if chance.random() < 0.5:
                return
        delay = chance.uniform(0.0002, 0.004)
        if chance.random() < weather.slow:
            delay = chance.uniform(0.05, 2 * PATIENCE_S)
        line.asked_s = max(line.asked_s, now + delay)
        self._later(line.asked_s, self._arrived, node, place, line, verb, work, answer)

    def whisper(self, node: str, tell: Callable[..., None], *words: Any, after_s: float = 0.0) -> float:
        """Tell a node something, late or never; when."""
        if self.down or self.chance.random() < self.weather.hint_lost or (node, LEDGER) in self.cut:
            return -1.0
        delay = self.chance.uniform(0.0005, 0.005)
        if self.chance.random() < self.weather.slow:
            delay = self.chance.uniform(0.05, 0.5)
        at = max(after_s, self.loop.time() + delay)
        self.loop.call_at(at, tell, *words, context=of_machine(node))
        return at

    def _arrived(
        self, node: str, place: int, line: Connection, verb: str, work: Callable[[], Any], answer: asyncio.Future[Any]
    ) -> None:
        chance = self.chance
        if (line.broken or not self.reaches(node, place)) and chance.random() < 0.5:
            self._break(node, place, line)
            return
        try:
            told, failed = work(), None
        except Exception as error:  # noqa: BLE001 - the asker's
            told, failed = None, error
        if chance.random() < self.weather.reply_lost:
            self.say("lost the reply", node, place, verb)
            self._break(node, place, line)
            return
        line.answered_s = max(line.answered_s, self.loop.time() + chance.uniform(0.0002, 0.004))
        self._later(line.answered_s, self._answered, node, place, line, answer, told, failed)

    def _answered(
        self, node: str, place: int, line: Connection, answer: asyncio.Future[Any], told: Any, failed: Any
    ) -> None:
        if line.broken or not self.reaches(node, place):
            self._break(node, place, line)
            return
        line.waiting.pop(answer, None)
        if answer.done():
            return
        if failed is None:
            answer.set_result(told)
        else:
            answer.set_exception(failed)

    def _break(self, node: str, place: int, line: Connection | None = None) -> None:
        """Break a connection, and everything that waits on it."""
        known = self._lines.get((node, place))
        broken = line or known
        if broken is None or broken.broken:
            return
        broken.broken = True
        if known is broken:
            del self._lines[node, place]
        for answer in broken.waiting:
            self._fail(answer)

    def _fail(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(Broken())

    def _later(self, at_s: float, work: Callable[..., None], *words: Any) -> None:
        self.loop.call_at(at_s, work, *words, context=self._world)


class LateEar:
    """Passes rings on to a node, late, or not at all."""

    def __init__(self, network: Network, node: str, ear: Ear) -> None:
        self._network = network
        self._node = node
        self._ear = ear

    def rung(self, actor: str) -> None:
        self._network.whisper(self._node, self._ear.rung, actor)

    def work(self, partition: int) -> None:
        self._network.whisper(self._node, self._ear.work, partition)

    def granted(self, holder: str) -> None:
        self._network.whisper(self._node, self._ear.granted, holder)

    def lost(self, actor: str) -> None: ...

    def room(self) -> None:
        self._network.whisper(self._node, self._ear.room)


class LateHub(Hub):
    """A hub that hears late, in order, and sometimes not; then a gap is noticed later, or not even that."""

    def __init__(self, network: Network, node: str, hub: Any) -> None:
        super().__init__(hub._messages, hub._channel_of)
        self._network = network
        self._node = node
        self._last_s = 0.0

    @override
    def push(self, actor: str, first: int, items: Sequence[bytes], head: int, ended: bool) -> None:
        if actor not in self._tails:
            return
        heard = super().push
        at = self._network.whisper(self._node, heard, actor, first, items, head, ended, after_s=self._last_s)
        self._last_s = max(self._last_s, at)
        if at < 0 and self._network.chance.random() < 0.7:
            self._network.loop.call_later(0.3, self.gap, context=of_machine(self._node))


class Wire:
    """A node's store, over the network."""

    def __init__(self, network: Network, node: str, mono_ms: Callable[[], int]) -> None:
        self.node = node
        self.deployment = network.memory.deployment
        self._network = network
        self._loop = network.loop
        self._mono_ms = mono_ms
        self._ahead_ms: int | None = None
        self._last_ms = 0
        self._near: Any = MemoryStore(network.memory, node)
        self._near.hub = LateHub(network, node, self._near.hub)

    def unplug(self) -> None:
        """Hear nothing any more."""
        self._network.memory.nodes.remove(self._near)

    async def append(self, append: Append) -> Outcome:
        place = appends.partition(append, self.deployment.partitions)

        def written() -> Outcome:
            outcome: Outcome = at_once(self._near.append(append))
            self._network.wrote.append(Wrote(self.node, append, outcome))
            self._network.say("append", self.node, append, outcome)
            return outcome

        outcome: Outcome = await self._asked(place, "append", written)
        if isinstance(outcome, Recorded) or hasattr(outcome, "now_ms"):
            self._heard(outcome.now_ms)
        return outcome

    async def look(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Any:
        look = await self._at(actor, "look", actor, after, snapshot=snapshot)
        self._heard(look.now_ms)
        return look

    async def page(self, actor: str, after: int, bytes_max: int = 262_144) -> Any:
        return await self._at(actor, "page", actor, after, bytes_max)

    async def save(self, actor: str, snapshot: Any) -> None:
        await self._at(actor, "save", actor, snapshot)

    async def settle(self, actor: str, reason: Any, at_ms: int | None = None) -> None:
        await self._at(actor, "settle", actor, reason, at_ms)

    async def confirm_end(self, actor: str) -> None:
        await self._at(actor, "confirm_end", actor)

    async def post(self, actor: str, entry: bytes) -> None:
        await self._at(actor, "post", actor, entry)

    async def renew(self, partition: int, mine: Any, lease_ms: int) -> Any:
        return await self._over(partition, "renew", partition, mine, lease_ms)

    async def sweep(self, partition: int, most: int = 32, *, judging: bool = True) -> Any:
        swept = await self._over(partition, "sweep", partition, most, judging=judging)
        self._heard(swept.now_ms)
        return swept

    async def listed(self, name: str, most: int) -> Any:
        return await self._over(0, "listed", name, most)

    async def prune(self, partition: int, before_ms: int) -> None:
        await self._over(partition, "prune", partition, before_ms)

    async def take(self, claim: Any, caps: Any, begin_within_ms: int) -> Any:
        return await self._over(LEDGER, "take", claim, caps, begin_within_ms)

    async def begun(self, claim: Any) -> None:
        await self._over(LEDGER, "begun", claim)

    async def enlist(self, claim: Any, caps: Any, queued_ms: int, begin_within_ms: int, lane: str = "") -> None:
        await self._over(LEDGER, "enlist", claim, caps, queued_ms, begin_within_ms, lane)

    async def dispatch(self, pool: str, most: int, caps: Any, lanes: Any = ("",)) -> Any:
        return await self._over(LEDGER, "dispatch", pool, most, caps, lanes)

    async def give(self, pool: str, holder: str, caps: Any) -> None:
        if self._is_auditing() and _lives(self._network.memory, pool, holder):
            self._network.unjust.append(f"{holder} of {pool} lives, and an audit gave its permit back")
        await self._over(LEDGER, "give", pool, holder, caps)

    def _is_auditing(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.get_name().endswith("Auditor.keep")

    async def held(self, pool: str) -> Any:
        return await self._over(LEDGER, "held", pool)

    async def begin_audit(self, pools: Any) -> Any:
        return await self._over(LEDGER, "begin_audit", pools)

    async def keep_audit(self) -> None:
        await self._over(LEDGER, "keep_audit")

    async def end_audit(self, pools: Any, history: str) -> Any:
        return await self._over(LEDGER, "end_audit", pools, history)

    async def meet(self, actors: Sequence[str]) -> Any:
        met: list[Any] = []
        for actor in actors:
            met += await self._at(actor, "meet", [actor])
        return met

    async def roll(self) -> AsyncGenerator[Any]:
        async for some in self._near.roll():
            yield await self.meet([met.actor for met in some])

    def follow(self, actor: str) -> AbstractAsyncContextManager[Tail]:
        return self._followed(actor)

    def listen(self, ear: Ear) -> None:
        self._near.listen(LateEar(self._network, self.node, ear))

    def partition_of(self, actor: str) -> int:
        found: int = self._near.partition_of(actor)
        return found

    def now_ms(self) -> int:
        """The store's time as the last answer told it, by this node's clock; never less than before."""
        ahead_ms = self._ahead_ms
        if ahead_ms is None:
            ahead_ms = self._network.memory.clock() - self._mono_ms()
        self._last_ms = max(self._last_ms, self._mono_ms() + ahead_ms)
        return self._last_ms

    def history(self) -> str:
        return str(self._near.history())

    def _heard(self, redis_ms: int) -> None:
        self._ahead_ms = redis_ms - self._mono_ms()

    @asynccontextmanager
    async def _followed(self, actor: str) -> AsyncGenerator[Tail]:
        await self._asked(self.partition_of(actor), "subscribe", lambda: None)
        async with self._near.hub.tail(actor) as tail:
            yield tail

    async def _at(self, actor: str, verb: str, *words: Any, **named: Any) -> Any:
        return await self._over(self.partition_of(actor), verb, *words, **named)

    async def _over(self, place: int, verb: str, *words: Any, **named: Any) -> Any:
        return await self._asked(place, verb, lambda: at_once(getattr(self._near, verb)(*words, **named)))

    async def _asked(self, place: int, verb: str, work: Callable[[], Any]) -> Any:
        """Ask until there is an answer, or patience ends."""
        until_s, delay_s = self._loop.time() + PATIENCE_S, _DELAY_S
        while True:
            answer: asyncio.Future[Any] = self._loop.create_future()
            self._network.send(self.node, place, verb, work, answer)
            timer = self._loop.call_at(until_s, self._network._fail, answer)
            try:
                return await answer
            except Broken:
                delay_s = min(2 * delay_s, _DELAY_S_MAX)
                pause_s = delay_s * self._network.chance.uniform(0.5, 1.5)
                if self._loop.time() + pause_s >= until_s:
                    raise Unavailable("the network") from None
                await anyio.sleep(pause_s)
            finally:
                timer.cancel()


def _lives(memory: Memory, pool: str, holder: str) -> bool:
    """Whether an actor that has not ended holds a permit of *pool* as *holder*."""
    return any(
        kept.heads.log and not kept.heads.ended and holder in _holds(pool, actor, kept)
        for actor, kept in memory.actors.items()
    )


def _holds(pool: str, actor: str, kept: Kept) -> set[str]:
    """The names under which an actor that has not ended holds something of *pool*."""
    first = msgspec.json.decode(kept.log[1].data)
    kind, origin = str(first["type"]).partition(".")[0], first.get("origin", "foreground")
    places = {"approval": {"approvals"}, "ticket": {"tickets"}, "session": {"sessions"}}.get(kind, set())
    if kind == "run":
        places = {"job": {"jobs", "job-bytes"}, "host": {"host-runs"}}.get(origin, set())
        begins = b'{"type":"run.claimed"' if origin == "host" else b'{"type":"run.started"'
        if pool == "runs" and any(entry.data.startswith(begins) for entry in kept.log.values()):
            return {first.get("permit", "")}
    return {actor} if pool in places else set()
