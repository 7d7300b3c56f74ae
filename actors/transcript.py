"""The turns and tool outputs of a run so far; a value that grows by one without copying all it holds."""

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from actors.events import ToolCompleted, TurnCompleted

BLOCK = 64

Said: TypeAlias = TurnCompleted | ToolCompleted


class Transcript(Struct, frozen=True, gc=False):
    """Turns and outputs in order, kept in full blocks and the one that is being filled."""

    full: tuple[tuple[Said, ...], ...] = ()
    filling: tuple[Said, ...] = ()

    def __len__(self) -> int:
        return len(self.full) * BLOCK + len(self.filling)

    def __iter__(self) -> Iterator[Said]:
        for block in self.full:
            yield from block
        yield from self.filling

    def __bool__(self) -> bool:
        return bool(self.filling or self.full)

    def followed_by(self, said: Said) -> "Transcript":
        """The transcript with one more of either."""
        filled = (*self.filling, said)
        return Transcript((*self.full, filled)) if len(filled) == BLOCK else Transcript(self.full, filled)
