"""The shell around the pure actors: load, decide, append; on a conflict, again.

Any node may run any command. The cache saves the fold, not the look: a refusal or an empty decision
counts only against heads that were read after the request came.
"""

import logging
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import msgspec

from actors.decider import Companion, Decision, Kind, Receipt, Refusal
from actors.errors import Fenced, Problem
from actors.plan import Claiming, Hold, Planned
from actors.telemetry import SILENT, Telemetry
from eventstore import store as es
from eventstore.store import Append, Due, Event, Heads, Listed, Part, Store, Unavailable

log = logging.getLogger(__name__)

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")

TRIES = 8
"""Conflicts on one log in a row before the command is told to try later; a step has few facts."""
JITTER_MS = (1, 20)
SNAPSHOT_EVENTS = 256
"""How many events an owner records before it keeps the fold again."""
RETRY_MS_MAX = 200
"""So long at most an append that belongs to the node waits before it is sent again."""
AHEAD_MS_MAX = 60_000
"""A last time further ahead of Redis time than this is not believed."""


_ERASED = Problem("OPERATION_UNCERTAIN", "What was recorded of this was erased.", outcome="uncertain")


class TooLate(Exception):
    """The append's window had closed by Redis time; nothing was written."""


class Moved(Exception):
    """An actor beside the one that was told is not as the command said; nothing was written."""


class Overfull(Exception):
    """The feed would be larger than its actor may have it; nothing was written."""


class Frozen(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot: the fold, and what else a shell keeps of an actor."""

    shape: str
    state: msgspec.Raw
    feed: msgspec.Raw
    log_bytes: int
    handled: tuple[str, ...]


class FeedOf(NamedTuple):
    """How an actor's events become feed items; the wiring hands this in, the shell never imports a feed."""

    start: Callable[[str], Any]
    fold: Callable[[Any, Any], Any]
    """The projection's state after an event."""
    items: Callable[[Any, Any], Sequence[bytes]]
    """The items that an event adds, given the projection's state after it."""
    too_large: Callable[[Any, bytes], bool]
    """Whether an item is larger than those who read the feed take, given the projection's state."""
    thaw: Callable[[bytes], Any]
    """The projection's state from its JSON."""


class Told(NamedTuple):
    """How a command went; *events* are what it caused, now or at its first coming."""

    events: Sequence[Any]
    answer: Receipt | Refusal
    state: Any
    heads: Heads
    now_ms: int


class _Hot(Generic[S]):
    """One actor in memory: a cache of its fold."""

    __slots__ = ("actor", "feed", "handled", "heads", "history", "lock", "log_bytes", "snapshot", "state", "version")

    def __init__(self, actor: str, state: S, feed: Any, history: str) -> None:
        self.actor = actor
        self.lock = anyio.Lock(fast_acquire=True)
        self.begin(state, feed, history)

    def begin(self, state: S, feed: Any, history: str) -> None:
        """Know nothing but how an actor begins."""
        self.history = history
        """The history of the store that what follows is of."""
        self.state = state
        self.feed = feed
        self.version = 0
        self.snapshot = 0
        """Version of the last snapshot."""
        self.heads = Heads()
        self.log_bytes = 0
        self.handled: dict[str, list[Any]] = {}


class Shell(Generic[S, C, E]):
    """Runs commands on the actors of one kind."""

    def __init__(
        self,
        store: Store,
        kind: Kind[S, C, E],
        feed: FeedOf,
        *,
        hot_max: int = 10_000,
        log_bytes_max: int = 8_000_000,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._store = store
        self._kind = kind
        self._feed = feed
        self._hot: OrderedDict[str, _Hot[S]] = OrderedDict()
        self._hot_max = hot_max
        self._log_bytes_max = log_bytes_max
        self._telemetry = telemetry
        self.changed: Callable[[str, Any], None] = lambda _actor, _state: None
        """Called with each newer state this node learns of; must only note it."""
        self.recorded: Callable[[str, C, S, Told], None] = lambda _actor, _command, _before, _told: None
        """Called with each command that this node has recorded events of, and the state before; must only note it."""

    async def state(self, actor: str) -> tuple[S, Heads]:
        """Read the actor as it stands now.

        Raises:
            HistoryLost: the store came back older than what this node saw, or lacks what its heads promise; what is left
                is there for whoever asks again.
        """
        async with self._held(actor) as hot:
            try:
                await self._catch_up(hot)
            except es.HistoryLost:
                self._hot.pop(actor, None)
                raise
            return hot.state, hot.heads

    async def events(self, actor: str) -> list[E]:
        """Read the actor's whole log."""
        return [self._kind.decode(entry.data) for entry in (await self._store.look(actor)).entries]

    async def caused(self, actor: str, command_id: str) -> list[E]:
        """Read what a command has written of the actor."""
        entries = (await self._store.look(actor)).entries
        return [self._kind.decode(entry.data) for entry in entries if entry.command == command_id]

    def known(self, actor: str) -> S:
        """The last state this node knows, without asking."""
        hot = self._hot.get(actor)
        return self._kind.initial if hot is None else hot.state

    def version(self, actor: str) -> int:
        """How far this node knows the actor's log, without asking."""
        hot = self._hot.get(actor)
        return 0 if hot is None else hot.version

    def forget(self, actor: str) -> None:
        """Keep nothing of an actor in memory that nobody works on; whoever asks for it loads it again."""
        hot = self._hot.get(actor)
        if hot is not None and not hot.lock.statistics().locked:
            del self._hot[actor]

    def discard(self, actor: str) -> None:
        """Believe nothing of an actor that is in memory: the store says otherwise."""
        self._hot.pop(actor, None)

    async def tell(
        self,
        actor: str,
        command: C,
        *,
        command_id: str,
        hold: Hold | None = None,
        claim: Claiming | None = None,
        fresh: bool = False,
        not_after_ms: int = 0,
    ) -> Told:
        """Carry out *command*. *fresh* says that what is known here is probably all there is, so the first look is saved.

        Raises:
            Fenced: *hold* or *claim* is not, or no longer, ours.
            TooLate: the window closed.
            Moved: an actor that the command writes beside this one is not where the command says.
            Unavailable: the store did not answer; sent again under the same id it counts once.
            HistoryLost: the store lost what its heads promise.
        """
        async with self._held(actor) as hot:
            try:
                return await self._told(hot, command, command_id, hold, claim, fresh=fresh, not_after_ms=not_after_ms)
            except (Unavailable, es.HistoryLost, anyio.get_cancelled_exc_class()):
                self._hot.pop(actor, None)
                raise

    async def pour(self, hold: Hold, items: Sequence[bytes]) -> None:
        """Append *items* to the feed of a held actor: text and progress, no fact.

        Raises:
            Fenced: the actor is not ours any more.
            Overfull: its feed may not hold them.
        """
        most = self._kind.feed_max(self.known(hold.actor))
        if most and hold.feed_bytes + sum(map(len, items)) > most:
            raise Overfull
        command = f"d{hold.epoch}.{hold.feed}"
        while True:
            part = Part(actor=hold.actor, feed=hold.feed, items=tuple(items), epoch=hold.epoch)
            match await self._appended(Append(command=command, parts=(part,))):
                case es.Recorded(parts=(placed,)):
                    hold.feed = placed.first + len(items) - 1
                    hold.feed_bytes += sum(map(len, items))
                    return
                case es.Conflict(heads=(heads,)):
                    _move(hold, heads)
                    command = f"d{hold.epoch}.{hold.feed}"
                case es.Lost(actor=actor):
                    raise es.HistoryLost(actor)
                case _:
                    raise Fenced

    async def erase(self, actor: str, *, command_id: str) -> None:
        """Take the streams of an ended actor away; its heads answer for ever."""
        async with self._held(actor) as hot:
            await self._catch_up(hot)
            if not hot.heads.ended or hot.heads.erased:
                return
            listed = tuple(Listed(name, actor, None) for name in self._kind.standing(hot.state).listed)
            epitaph = self._kind.epitaph(hot.state, self._now_ms(hot))
            part = Part(actor=actor, log=hot.version, erase=True, epitaph=epitaph)
            due = (Due(actor, "retention", None),)
            await self._appended(Append(command=command_id, parts=(part,), due=due, listed=listed))
            self._hot.pop(actor, None)

    async def trim(self, actor: str, *, command_id: str) -> None:
        """Take the feed of an ended actor away; its log stays."""
        heads = (await self._store.look(actor)).heads
        if heads.ended and not heads.erased:
            part = Part(actor=actor, log=heads.log, trim=heads.oldest <= heads.feed)
            await self._appended(Append(command=command_id, parts=(part,), due=(Due(actor, "retention", None),)))
            self._hot.pop(actor, None)

    async def erase_companion(self, actor: str, *, command_id: str) -> None:
        """Take the streams of an ended companion away; this shell cannot read them, and need not."""
        heads = (await self._store.look(actor)).heads
        if heads.ended and not heads.erased:
            part = Part(actor=actor, log=heads.log, erase=True)
            await self._appended(Append(command=command_id, parts=(part,), due=(Due(actor, "retention", None),)))

    async def _told(
        self,
        hot: _Hot[S],
        command: C,
        command_id: str,
        hold: Hold | None,
        claim: Claiming | None,
        *,
        fresh: bool,
        not_after_ms: int,
    ) -> Told:
        looked = hold is None and not fresh
        if looked:
            await self._catch_up(hot)
        for attempt in range(TRIES):
            if hot.heads.erased:
                return Told((), self._after_life(hot, command), hot.state, hot.heads, self._now_ms(hot))
            if command_id in hot.handled:
                return Told(hot.handled[command_id], Receipt("repeated"), hot.state, hot.heads, self._now_ms(hot))
            now_ms = self._now_ms(hot)
            decision = await self._decided(hot.state, command, now_ms)
            if not decision.events:
                if looked:
                    return Told((), decision.answer, hot.state, hot.heads, now_ms)
                await self._catch_up(hot)
                looked = True
                continue
            planned = self._planned(hot, decision, hold, now_ms)
            if not planned.events:
                return Told((), planned.answer, hot.state, hot.heads, now_ms)
            append = planned.append(hot.actor, hot.version, command_id, hold, claim, not_after_ms)
            outcome = await self._sent(append, patient=hold is not None)
            if isinstance(outcome, es.Recorded):
                before = hot.state
                told = await self._recorded(hot, planned, outcome, command_id, hold)
                self.recorded(hot.actor, command, before, told)
                return told
            await self._learnt(hot, append.parts[0], outcome, hold)
            looked = True
            if attempt:
                await anyio.sleep(random.uniform(*JITTER_MS) / 1_000)  # noqa: S311 - jitter, no secret
        raise Unavailable("this actor is written to by many at once", 100)

    def _after_life(self, hot: _Hot[S], command: C) -> Receipt | Refusal:
        """What a command is told of an actor whose payload is gone; nothing can be written any more."""
        decision = self._kind.decide(hot.state, command, self._now_ms(hot))
        return Refusal(_ERASED) if decision.events else decision.answer

    async def _decided(self, state: S, command: C, now_ms: int) -> Decision:
        """Decide, in a thread where judging may take long: a pure function may run anywhere."""
        if self._kind.is_slow(state, command):
            return await anyio.to_thread.run_sync(self._kind.decide, state, command, now_ms)
        return self._kind.decide(state, command, now_ms)

    async def _recorded(
        self, hot: _Hot[S], planned: Planned[S], outcome: es.Recorded, command_id: str, hold: Hold | None
    ) -> Told:
        placed = outcome.parts[0]
        events = planned.events
        if outcome.repeated:
            await self._catch_up(hot)
            events = hot.handled.get(command_id, events)
        else:
            self._advance(hot, planned, placed.heads, command_id)
        if hold is not None:
            hold.feed = placed.first + len(planned.items) - 1 if planned.items else hold.feed
            hold.feed_bytes += sum(map(len, planned.items))
            hold.pending.clear()
            await self._kept(hot)
        return Told(events, planned.answer, hot.state, hot.heads, outcome.now_ms)

    async def _learnt(self, hot: _Hot[S], own: Part, outcome: es.Outcome, hold: Hold | None) -> None:
        """Catch up with what kept an append from being written, so that it may be decided again; *own* is the actor's part."""
        match outcome:
            case es.Conflict(heads=(heads, *_)):
                if heads.log == own.log and own.feed in {None, heads.feed}:
                    raise Moved
                if hold is not None:
                    _move(hold, heads)
                await self._catch_up(hot)
            case es.Ended(heads=(heads, *_)):
                if not heads.ended and heads.log == own.log:
                    raise Moved
                await self._catch_up(hot)
            case es.OutsideWindow():
                raise TooLate
            case es.Lost(actor=actor):
                raise es.HistoryLost(actor)
            case _:
                await self._catch_up(hot)
                raise Fenced

    def _planned(self, hot: _Hot[S], decision: Decision, hold: Hold | None, now_ms: int) -> Planned[S]:
        pending = () if hold is None else tuple(hold.pending)
        planned = self._projected(hot, decision, pending)
        code = self._oversized(hot, planned, hold)
        if code is None:
            return planned
        decision = self._kind.decide(hot.state, self._kind.overflow(code), now_ms)
        if not decision.events:  # nothing has begun that could be ended
            decision = Decision([], Refusal(Problem(code, "The request is larger than a record may be.")))
        return self._projected(hot, decision, pending)

    def _projected(self, hot: _Hot[S], decision: Decision, pending: Sequence[bytes]) -> Planned[S]:
        state, feed = hot.state, hot.feed
        items = list(pending)
        events: list[Event] = []
        beside: list[Companion] = []
        for event in decision.events:
            before, state = state, self._kind.evolve(state, event)
            beside.extend(self._kind.companions(hot.actor, before, event, state))
            feed = self._feed.fold(feed, event)
            items.extend(self._feed.items(feed, event))
            events.append(Event(self._kind.encode(event), len(items)))
        return Planned(
            decision.events,
            decision.answer,
            state,
            feed,
            events,
            items,
            beside,
            self._kind.standing(hot.state),
            self._kind.standing(state),
        )

    def _oversized(self, hot: _Hot[S], planned: Planned[S], hold: Hold | None) -> str | None:
        if any(self._feed.too_large(planned.feed, item) for item in planned.items):
            return "RESPONSE_TOO_LARGE"
        grown = hot.log_bytes + sum(len(event.data) for event in planned.encoded)
        most = self._kind.feed_max(hot.state)
        before = max(hot.heads.feed_bytes, 0 if hold is None else hold.feed_bytes)
        overfull = most and before + sum(map(len, planned.items)) > most
        return "OPERATION_RECORD_LIMIT" if overfull or grown > self._log_bytes_max else None

    def _advance(self, hot: _Hot[S], planned: Planned[S], heads: Heads, command_id: str) -> None:
        hot.state, hot.feed, hot.heads = planned.state, planned.feed, heads
        hot.version = heads.log
        hot.log_bytes += sum(len(event.data) for event in planned.encoded)
        hot.handled[command_id] = list(planned.events)
        self.changed(hot.actor, hot.state)

    async def _kept(self, hot: _Hot[S]) -> None:
        """Keep the fold where many events came since it was kept last."""
        if hot.version - hot.snapshot < SNAPSHOT_EVENTS or hot.heads.ended:
            return
        frozen = Frozen(
            self._kind.shape,
            msgspec.Raw(self._kind.freeze(hot.state)),
            msgspec.Raw(msgspec.json.encode(hot.feed)),
            hot.log_bytes,
            tuple(hot.handled),
        )
        try:
            await self._store.save(hot.actor, es.Snapshot(hot.version, msgspec.json.encode(frozen)))
        except Unavailable:
            log.info("no snapshot of %s at version %d: the store pauses", hot.actor, hot.version)
        hot.snapshot = hot.version

    def _thawed(self, hot: _Hot[S], snapshot: es.Snapshot) -> bool:
        """Take over the fold that *snapshot* kept, unless another shape of code made it."""
        try:
            frozen = msgspec.json.decode(snapshot.data, type=Frozen)
            if frozen.shape != self._kind.shape:
                return False
            hot.state, hot.feed = self._kind.thaw(bytes(frozen.state)), self._feed.thaw(bytes(frozen.feed))
        except msgspec.MsgspecError:
            return False
        hot.version = hot.snapshot = snapshot.version
        hot.log_bytes = frozen.log_bytes
        hot.handled = {command: [] for command in frozen.handled}
        return True

    async def _catch_up(self, hot: _Hot[S]) -> None:
        history = self._store.history()
        after = hot.version if hot.history == history else 0  # another may have something else under the same versions
        look = await self._store.look(hot.actor, after, snapshot=not after)
        if look.heads.log < hot.version:  # the store came back older than what was seen
            raise es.HistoryLost(hot.actor)
        if not after:
            hot.begin(self._kind.initial, self._feed.start(hot.actor), history)
        if look.snapshot is not None and not look.heads.erased and not self._thawed(hot, look.snapshot):
            look = await self._store.look(hot.actor)
        hot.heads = look.heads
        if look.heads.erased:
            await self._dig_up(hot, look)
        elif look.entries:
            self._fold(hot, look.entries)
            self.changed(hot.actor, hot.state)

    async def _dig_up(self, hot: _Hot[S], look: es.Look) -> None:
        """Take an erased actor as its epitaph tells it; without one nothing is known of it but that it was."""
        if look.snapshot is None and hot.version:
            look = await self._store.look(hot.actor, snapshot=True)
        hot.state, hot.version = self._kind.initial, look.heads.log
        if look.snapshot is not None and look.snapshot.data:
            hot.state = self._kind.evolve(self._kind.initial, self._kind.decode(look.snapshot.data))

    def _fold(self, hot: _Hot[S], entries: Sequence[es.Entry]) -> None:
        """Take *entries* in; the loop that a rebuild spends its time in, so nothing is looked up twice."""
        decode, evolve, fold = self._kind.decode, self._kind.evolve, self._feed.fold
        state, feed, handled = hot.state, hot.feed, hot.handled
        for _, _, command, data in entries:
            event = decode(data)
            state = evolve(state, event)
            feed = fold(feed, event)
            if command in handled:
                handled[command].append(event)
            else:
                handled[command] = [event]
        hot.state, hot.feed = state, feed
        hot.version = entries[-1].version
        hot.log_bytes += sum(len(entry.data) for entry in entries)

    async def _appended(self, append: Append) -> es.Outcome:
        """Send until it is answered: what is written belongs to the node, not to a caller's patience."""
        while True:
            try:
                return await self._store.append(append)
            except Unavailable as pause:
                await anyio.sleep(min(pause.retry_after_ms, RETRY_MS_MAX) / 1_000)

    async def _sent(self, append: Append, *, patient: bool) -> es.Outcome:
        told, began = "Unavailable", perf_counter()
        try:
            outcome = await (self._appended(append) if patient else self._store.append(append))
            told = type(outcome).__name__
            return outcome
        finally:
            self._telemetry.appended(told, perf_counter() - began)

    def _now_ms(self, hot: _Hot[S]) -> int:
        now_ms, last_ms = self._store.now_ms(), hot.heads.last_ms
        if last_ms > now_ms + AHEAD_MS_MAX:
            log.error("the last time of %s is %d ms ahead of Redis time", hot.actor, last_ms - now_ms)
            return now_ms
        return max(now_ms, last_ms)

    @asynccontextmanager
    async def _held(self, actor: str) -> AsyncGenerator[_Hot[S]]:
        hot = self._hot.get(actor)
        if hot is None:
            hot = self._hot[actor] = _Hot(actor, self._kind.initial, self._feed.start(actor), self._store.history())
            self._evict()
        self._hot.move_to_end(actor)
        async with hot.lock:
            yield hot

    def _evict(self) -> None:
        while len(self._hot) > self._hot_max:
            oldest = next(iter(self._hot))
            if self._hot[oldest].lock.statistics().locked:
                self._hot.move_to_end(oldest)
                return
            del self._hot[oldest]


def _move(hold: Hold, heads: Heads) -> None:
    """Take it that the feed stands where *heads* say, after what others wrote.

    Raises:
        HistoryLost: it stands before what its only executor wrote.
    """
    if heads.feed < hold.feed:
        raise es.HistoryLost(hold.actor)
    hold.feed, hold.feed_bytes = heads.feed, heads.feed_bytes
