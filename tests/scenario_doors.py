"""The store of one node as its host has it: nothing can be taken up while its door is shut, and it can be cut off."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import anyio

from eventstore.store import Append, Caps, Dispatched, Ear, Outcome

_ERRANDS = frozenset(
    ["append", "look", "page", "save", "renew", "sweep", "settle", "post", "prune", "take", "begun", "enlist", "give"],
)


class Doorway:
    """What a host has for a store."""

    def __init__(self, store: Any, *, shut: bool) -> None:
        self.shut = shut
        """Whether no queued job comes to this node."""
        self.cut = False
        """Whether the process is dead: nothing that it asks is ever answered, or even heard."""
        self.cut_after = b""
        """What an event holds whose append is the last that this process sees done; empty for none."""
        self._store = store
        self._ears: list[Ear] = []

    def listen(self, ear: Ear) -> None:
        self._ears.append(ear)
        self._store.listen(ear)

    async def dispatch(self, pool: str, most: int, caps: Caps, lanes: Collection[str]) -> Sequence[Dispatched]:
        if self.cut:
            await anyio.sleep_forever()
        taken: Sequence[Dispatched] = () if self.shut else await self._store.dispatch(pool, most, caps, lanes)
        return taken

    def open(self) -> None:
        """Let queued jobs come."""
        self.shut = False
        for ear in self._ears:
            ear.room()

    async def append(self, append: Append) -> Outcome:
        if self.cut:
            await anyio.sleep_forever()
        outcome: Outcome = await self._store.append(append)
        written = [event.data for part in append.parts for event in part.events]
        if self.cut_after and any(self.cut_after in data for data in written):
            self.cut = True
            await anyio.sleep_forever()
        return outcome

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._unless_cut(found) if name in _ERRANDS else found

    def _unless_cut(self, errand: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def carried_out(*words: Any, **more: Any) -> Any:
            if self.cut:
                await anyio.sleep_forever()
            return await errand(*words, **more)

        return carried_out
