"""One connection to each primary of a cluster, kept while it is one."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from eventstore.endpoint import Endpoint
from eventstore.link import ConnectionLost, ReplyError
from eventstore.slots import Primary, Slots


class Vessel(Protocol):
    """What mends itself while it is tended: a `SocketLink` or a `SocketMessages`."""

    async def connect(self) -> None:
        """Connect once."""
        ...

    async def tend(self) -> None:
        """Reconnect for ever."""
        ...

    def close(self) -> None:
        """Leave the server."""
        ...


V = TypeVar("V", bound=Vessel)


class Fleet(Generic[V]):
    """What *make* makes for each primary of *slots*, tended in *tasks*."""

    def __init__(self, slots: Slots, make: Callable[[Primary], V], tasks: TaskGroup) -> None:
        self._slots = slots
        self._make = make
        self._tasks = tasks
        self._all: dict[Endpoint, tuple[V, anyio.CancelScope]] = {}

    def of(self, key: str) -> V:
        """The one for the primary of *key*; raises `ReplyError` where there is none."""
        kept = self._all.get(self._slots.of(key))
        if kept is None:
            raise ReplyError(f"CLUSTERDOWN the primary of {key} was just heard of")
        return kept[0]

    def all(self) -> list[V]:
        """The one of each primary that is known now."""
        return [made for made, _ in self._all.values()]

    async def launch(self) -> None:
        """Connect to every primary.

        Raises:
            ReplyError: one refused the account.
            Unfit: one was refused.
        """
        for primary in self._slots.primaries:
            made = self._made(primary)
            try:
                await made.connect()
            except (OSError, ConnectionLost):  # the others serve meanwhile
                self._slots.doubt()
            self._keep(primary, made)

    async def match(self) -> None:
        """Leave who is no primary any more, and have those that are new connected to."""
        for primary in self._all.keys() - self._slots.primaries:
            made, scope = self._all.pop(primary)
            scope.cancel()
            made.close()
        for primary in self._slots.primaries - self._all.keys():
            self._keep(primary, self._made(primary))

    def close(self) -> None:
        """Leave all."""
        for made, _ in self._all.values():
            made.close()

    def _made(self, primary: Endpoint) -> V:
        return self._make(Primary(self._slots, primary))

    def _keep(self, primary: Endpoint, made: V) -> None:
        scope = anyio.CancelScope()
        self._all[primary] = (made, scope)
        self._tasks.start_soon(_tended, made, scope)


async def _tended(vessel: Vessel, scope: anyio.CancelScope) -> None:
    with scope:
        await vessel.tend()
