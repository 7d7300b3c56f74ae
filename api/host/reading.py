"""Runs as the Host shows them: folded from their logs whenever somebody looks, and followed as they grow.

Folds of small logs are kept in memory, to be continued at the next look; what is told is never older than that look.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import anyio

from actors import codec, host_names
from actors.events import RunAccepted
from eventstore.store import HistoryLost, Look, Store, Tail, Unavailable
from projections import host_feed
from projections.host_feed import Feed, HostEvent

KEPT_MAX = 1_000
KEPT_BYTES_MAX = 65_536
"""Of a log whose fold is kept; a larger one may hold a large result, and is folded again."""
RETRY_S = 0.2


class Seen(NamedTuple):
    """A run as one look found it."""

    actor: str
    accepted: RunAccepted
    feed: Feed


class Gone(Exception):
    """The run's payload was erased while it was followed."""


class Reading:
    """Reads the runs of a deployment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folds: OrderedDict[tuple[str, str], _Fold] = OrderedDict()
        self._history = ""
        """The history that the folds are of."""

    async def found(self, subject: str, name: str) -> Seen | None:
        """Look up what *subject* calls *name*, to be shown.

        Raises:
            Unavailable: the store did not answer.
            HistoryLost: it lost what it should keep.
        """
        id_key = self._store.deployment.id_key
        return await host_names.meant(id_key, subject, name, lambda actor: self._seen(subject, name, actor))

    async def events(self, seen: Seen) -> list[HostEvent]:
        """Read all events of a run."""
        look = await self._store.look(seen.actor)
        if look.heads.ended:
            await self._store.confirm_end(seen.actor)
        return host_feed.whole(seen.feed.name, (codec.decode_run(entry.data) for entry in look.entries))[1]

    async def follow(self, seen: Seen, after: int, heartbeat_s: float) -> AsyncGenerator[Sequence[HostEvent]]:
        """Yield the events of a run after number *after* as they come, until its end; an empty batch is a heartbeat.

        What is heard is a hint that the log grew, whether or not its feed did; the log is what is read.
        An outage is a pause. Close it with `aclosing`.

        Raises:
            Gone: the run was erased meanwhile.
            HistoryLost: the store lost what it should keep.
        """
        fold, history = _Fold(host_feed.start(seen.feed.name)), self._store.history()
        tail: Tail | None = None
        async with AsyncExitStack() as stack:
            while fold.feed.end is None:
                try:
                    if tail is None:
                        tail = await stack.enter_async_context(self._store.follow(seen.actor))
                    if (now := self._store.history()) != history:
                        await self._compare(seen, fold)
                        history = now
                    look = await self._store.look(seen.actor, fold.version)
                    if look.heads.erased:
                        raise Gone
                    if look.heads.log < fold.version:
                        raise HistoryLost(seen.actor)
                    if look.heads.ended:
                        await self._store.confirm_end(seen.actor)
                    fold, events = _further(fold, look)
                    if fresh := [event for event in events if event.sequence > after]:
                        yield fresh
                    if fold.feed.end is None and await tail.heard(heartbeat_s) is None:
                        yield ()
                except Unavailable:
                    yield ()
                    await anyio.sleep(RETRY_S)

    async def _compare(self, seen: Seen, fold: "_Fold") -> None:
        """Nothing, if what was folded is in the log still, whose server has another history now.

        Raises:
            HistoryLost: something else is there, or nothing.
        """
        look = await self._store.look(seen.actor)
        same = [entry for entry in look.entries if entry.version <= fold.version]
        again, _ = _further(_Fold(host_feed.start(seen.feed.name)), look._replace(entries=same))
        if again != fold and not look.heads.erased:
            raise HistoryLost(seen.actor)

    async def _seen(self, subject: str, name: str, actor: str) -> Seen | None:
        if (history := self._store.history()) != self._history:
            self._folds.clear()
            self._history = history
        fold = self._folds.get((actor, name)) or _Fold(host_feed.start(name))
        look = await self._store.look(actor, fold.version)
        if look.heads.erased or look.heads.log < fold.version:
            fold = _Fold(host_feed.start(name))
            look = await self._store.look(actor)
        if look.entries and not fold.version and not codec.is_of_run(look.entries[0].data):
            return None
        if look.heads.ended:
            await self._store.confirm_end(actor)
        fold, _ = _further(fold, look)
        self._keep((actor, name), fold)
        feed, accepted = fold.feed, fold.feed.accepted
        if look.heads.erased or accepted is None:
            return None
        ended_ms = None if feed.end is None else feed.updated_ms
        is_known = host_names.is_known(accepted, ended_ms, subject, self._store.now_ms())
        return Seen(actor, accepted, feed) if is_known else None

    def _keep(self, key: tuple[str, str], fold: "_Fold") -> None:
        if not fold.version or fold.log_bytes > KEPT_BYTES_MAX:
            self._folds.pop(key, None)
            return
        self._folds[key] = fold
        self._folds.move_to_end(key)
        if len(self._folds) > KEPT_MAX:
            self._folds.popitem(last=False)


class _Fold(NamedTuple):
    """A log as far as it was folded."""

    feed: Feed
    version: int = 0
    log_bytes: int = 0


def _further(fold: _Fold, look: Look) -> tuple[_Fold, list[HostEvent]]:
    """The fold after what *look* found, and the events in it."""
    feed, version, log_bytes = fold
    made: list[HostEvent] = []
    for entry in look.entries:
        feed, more = host_feed.told(feed, codec.decode_run(entry.data))
        made.extend(more)
        version = entry.version
        log_bytes += len(entry.data)
    return _Fold(feed, version, log_bytes), made
