"""Which primary of a cluster serves which slot: asked anew whenever somebody doubts it, and told to whoever depends on it.

Commands are never redirected here: a slot that is elsewhere is a pause, and the next try goes by the new map.
"""

import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, Final, TypeAlias

import anyio
from msgspec.structs import replace
from typing_extensions import override

from eventstore import keys
from eventstore.endpoint import TROUBLE, Endpoint, beside, nobody
from eventstore.link import ConnectionLost, ReplyError, Word
from eventstore.socket_link import Limits, bare_call

DOUBTFUL: Final = frozenset({"ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "TRYAGAIN"})
"""Errors after which the map is looked at again."""
DELAY_S_MAX: Final = 0.5
"""The longest pause between two attempts to connect to a primary; each attempt is a doubt."""
_BETWEEN_S: Final = 0.1
"""The least time between two looks, however many doubt."""
_LOOK: Final = Limits(connect_s=1.0, patience_s=1.0, silence_s=1.0)
_LOOK_S: Final = 1.5

OnMap: TypeAlias = Callable[[], Awaitable[None]]

_log = logging.getLogger(__name__)


@lru_cache(maxsize=16_384)
def _slot(tag: str) -> int:
    return keys.slot(tag)


def slot_of(key: str) -> int:
    """The slot of *key*, which begins with its hash tag."""
    return _slot(key[1 : key.index("}")])


def key_in(words: Sequence[Word]) -> str | None:
    """The first key or channel among *words*; each of ours begins with its hash tag. A command without one has None."""
    return next((word for word in words if isinstance(word, str) and word.startswith("{")), None)


class Primary:
    """A `Whereabouts` that stays where it is, and doubts the map whenever somebody has to connect."""

    def __init__(self, slots: "Slots", endpoint: Endpoint) -> None:
        self._slots = slots
        self._endpoint = endpoint

    @override
    def __repr__(self) -> str:
        """Name the address."""
        return repr(self._endpoint)

    async def __call__(self) -> Endpoint:
        """Tell the address."""
        self._slots.doubt()
        return self._endpoint


class Slots:
    """The map as last heard of; made by `open_slots`."""

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        self._seeds = tuple(seeds)
        self._serving: list[Endpoint | None] = [None] * keys.SLOTS
        self._doubted = anyio.Event()
        self.primaries: frozenset[Endpoint] = frozenset()
        self._watchers: list[OnMap] = []

    def of(self, key: str) -> Endpoint:
        """The primary of *key*; raises `ReplyError` where none is known."""
        primary = self._serving[slot_of(key)]
        if primary is None:
            raise ReplyError(f"CLUSTERDOWN no primary is known for the slot of {key}")
        return primary

    @contextmanager
    def watched(self, on_map: OnMap) -> Generator[None]:
        """Have *on_map* called after each change, one after the other; it must not take long."""
        self._watchers.append(on_map)
        try:
            yield
        finally:
            self._watchers.remove(on_map)

    def doubt(self) -> None:
        """Have the map looked at again, soon."""
        self._doubted.set()

    def doubt_for(self, error: Exception) -> None:
        """The same, if *error* gives reason to."""
        if isinstance(error, ConnectionLost) or (isinstance(error, ReplyError) and error.code in DOUBTFUL):
            self._doubted.set()

    async def tend(self) -> None:
        """Look again whenever there is doubt; run beside everything that goes by the map."""
        while True:
            await self._doubted.wait()
            self._doubted = anyio.Event()
            try:
                await self.look()
            except TROUBLE as error:
                _log.debug("the map of the cluster cannot be had: %s", error)  # each link tells of its outage
            await anyio.sleep(_BETWEEN_S * random.uniform(1.0, 1.5))  # noqa: S311 - spreads nodes, guards nothing

    async def look(self) -> None:
        """Ask one server after the other, in any order, until one knows the map.

        Raises:
            ConnectionLost: none does now.
            Unfit: none does, and who was asked refuses our account or shows a certificate that is not trusted.
        """
        known = list(self.primaries.union(self._seeds))
        random.shuffle(known)
        why: list[tuple[Endpoint, Exception]] = []
        for server in known:
            try:
                with anyio.fail_after(_LOOK_S):
                    serving = await _told(server)
            except TROUBLE as error:
                why.append((server, error))
                continue
            if any(serving):
                await self._take(serving)
                return
            why.append((server, ConnectionLost("it knows of no slots")))
        raise nobody("nobody knows the cluster", why)

    async def _take(self, serving: list[Endpoint | None]) -> None:
        if serving == self._serving:
            return
        self._serving = serving
        self.primaries = frozenset(primary for primary in serving if primary is not None)
        for watcher in list(self._watchers):
            await watcher()


async def _told(server: Endpoint) -> list[Endpoint | None]:
    """Ask *server* which primary serves which slot."""
    async with bare_call(server, _LOOK) as call:
        return serving(await call("CLUSTER", "SLOTS"), server)


def serving(answer: Sequence[Any], server: Endpoint) -> list[Endpoint | None]:
    """The primary of each slot in the *answer* of *server*, which may leave out its own host."""
    found: list[Endpoint | None] = [None] * keys.SLOTS
    for first, last, (host, port, *_), *_ in answer:
        name = (host or b"").decode()
        if name != "?":  # a name that the cluster itself does not know yet
            primary = replace(server, host=name or server.host, port=port)
            found[first : last + 1] = [primary] * (last + 1 - first)
    return found


@asynccontextmanager
async def open_slots(seeds: Sequence[Endpoint]) -> AsyncGenerator[Slots]:
    """Find the cluster by any of *seeds*, whose account and TLS hold for all its servers, and follow its changes.

    Raises:
        ConnectionLost: none of them knows the map now.
        Unfit: none does, and who was asked refuses our account or shows a certificate that is not trusted.
    """
    slots = Slots(seeds)
    await slots.look()
    async with beside(slots.tend):
        yield slots
