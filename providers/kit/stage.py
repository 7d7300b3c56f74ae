"""What an adapter's author writes: a vendor that answers as it is told, and the adapter connected to it.

Nothing here waits, reads a clock or rolls a die.
"""

from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from actors.ports import Model, ToolCall

SECRET = "private-4711-words"
"""What no error, no log and no event may repeat."""


class Answer(Struct, frozen=True, kw_only=True):
    """What the vendor is to do with one request."""

    thought: str = ""
    """Reasoning, which is no visible text."""
    text: tuple[str, ...] = ()
    """Visible text in the pieces in which it is streamed."""
    calls: tuple[ToolCall, ...] = ()
    state: str = ""
    """Something of the vendor's own that must come back with the next step, if the vendor has such a thing."""
    counted: tuple[int, int, int, int] | None = None
    """Tokens read, of these cached, tokens written, of these reasoning."""
    end: Literal["stop", "length", "refusal", "error", "silence", "cut"] = "stop"
    """`error` tells a failure in the stream, with `SECRET` in it; `silence` goes on for ever; `cut` just ends."""
    status: int = 200
    """Another one is answered at once, with `SECRET` in the body."""
    retry_after: str | None = None


class Played(Protocol):
    """A vendor at work."""

    @property
    def model(self) -> Model:
        """The adapter."""
        ...

    @property
    def name(self) -> str:
        """The id of a model that it may be asked for."""
        ...

    def received(self, text: str) -> bool:
        """Whether *text* was in what the last request carried, as JSON writes it."""
        ...

    async def left(self) -> None:
        """Return as soon as the vendor sees that nobody listens to it any more."""
        ...


class Stage(Protocol):
    """Puts vendors on."""

    def playing(self, *answers: Answer) -> AbstractAsyncContextManager[Played]:
        """Open a vendor that gives *answers*, one for each request, and the last one to whatever follows."""
        ...
