"""Runs as the Host shows them: folded from their logs whenever somebody looks, and followed as they grow.

Only the fold of a run that goes on is kept in memory, to be continued at the next look; a log is never behind its run.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import anyio

from actors import codec, ids, upkeep, values
from actors.events import RunAccepted
from eventstore.store import Look, Store, Tail, Unavailable
from projections import host_feed
from projections.host_feed import Feed, HostEvent

KEPT_MAX = 1_000
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
        self._folds: OrderedDict[tuple[str, str], tuple[int, Feed]] = OrderedDict()

    async def found(self, subject: str, name: str) -> Seen | None:
        """Look a run up: by its Host name first, then as the subject's wire run of that id (Host mapping §3).

        Raises:
            Unavailable: the store did not answer.
            HistoryLost: it lost what it should keep.
        """
        named = await self._seen(subject, name, ids.run_of_host(self._store.deployment.id_key, subject, name))
        if named is not None or not values.is_actor_id(name):
            return named
        other = await self._seen(subject, name, name)
        return None if other is None or other.accepted.host is not None else other

    async def events(self, seen: Seen) -> list[HostEvent]:
        """Read all events of a run."""
        look = await self._store.look(seen.actor)
        return host_feed.whole(seen.feed.name, (codec.decode_run(entry.data) for entry in look.entries))[1]

    async def follow(self, seen: Seen, after: int, heartbeat_s: float) -> AsyncGenerator[Sequence[HostEvent]]:
        """Yield the events of a run after number *after* as they come, until its end; an empty batch is a heartbeat.

        What is heard is a hint that the log grew, whether or not its feed did; the log is what is read.
        An outage is a pause. Close it with `aclosing`.

        Raises:
            Gone: the run was erased meanwhile.
            HistoryLost: the store lost what it should keep.
        """
        feed, version = host_feed.start(seen.feed.name), 0
        tail: Tail | None = None
        async with AsyncExitStack() as stack:
            while feed.end is None:
                try:
                    if tail is None:
                        tail = await stack.enter_async_context(self._store.follow(seen.actor))
                    look = await self._store.look(seen.actor, version)
                    if look.heads.erased:
                        raise Gone
                    feed, version, events = _further(feed, version, look)
                    if fresh := [event for event in events if event.sequence > after]:
                        yield fresh
                    if feed.end is None and await tail.heard(heartbeat_s) is None:
                        yield ()
                except Unavailable:
                    yield ()
                    await anyio.sleep(RETRY_S)

    async def _seen(self, subject: str, name: str, actor: str) -> Seen | None:
        version, feed = self._folds.get((actor, name), (0, host_feed.start(name)))
        look = await self._store.look(actor, version)
        if look.heads.erased or look.heads.log < version:
            self._folds.pop((actor, name), None)
            version, feed = 0, host_feed.start(name)
            look = await self._store.look(actor)
        if look.entries and not codec.is_of_run(look.entries[0].data) and not version:
            return None
        feed, version, _ = _further(feed, version, look)
        self._keep((actor, name), version, feed)
        accepted = feed.accepted
        if look.heads.erased or accepted is None or accepted.subject != subject:
            return None
        kept_ms = accepted.retention_ms or upkeep.RETENTION_MS
        if feed.end is not None and self._store.now_ms() >= feed.updated_ms + kept_ms:
            return None
        return Seen(actor, accepted, feed)

    def _keep(self, key: tuple[str, str], version: int, feed: Feed) -> None:
        """Keep the fold of a run that goes on; results, which may be large, are folded again."""
        if feed.end is not None or not version:
            self._folds.pop(key, None)
            return
        self._folds[key] = (version, feed)
        self._folds.move_to_end(key)
        if len(self._folds) > KEPT_MAX:
            self._folds.popitem(last=False)


def _further(feed: Feed, version: int, look: Look) -> tuple[Feed, int, list[HostEvent]]:
    """The fold after what *look* found, and the events in it."""
    made: list[HostEvent] = []
    for entry in look.entries:
        feed, more = host_feed.told(feed, codec.decode_run(entry.data))
        made.extend(more)
        version = entry.version
    return feed, version, made
