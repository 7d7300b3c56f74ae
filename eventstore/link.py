"""A connection to one primary: commands of the whole node share it, pipelined as they come.

Nothing blocking is ever sent here. A caller that goes away leaves its reply to be read and dropped, never to another.
Nothing is sent twice by this module: a broken connection fails what was sent with `ConnectionLost`, and the sender decides.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

Word: TypeAlias = bytes | str | int

PAUSES: Final = frozenset(
    {
        "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "OOM", "READONLY",
        "TRYAGAIN",
    }
)  # fmt: skip
"""Errors that mean the partition pauses; the same words are sent again."""
ELSEWHERE: Final = frozenset({"ASK", "CLUSTERDOWN", "MOVED", "TRYAGAIN"})
"""Those of them that say that another server has the key, or that nobody has it now."""


class ReplyError(Exception):
    """The server answered with an error; *code* is its first word, for example `NOSCRIPT`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class ConnectionLost(Exception):
    """The connection is gone; whether the command was carried out is not known."""


class Unfit(Exception):
    """The server answered, but must not be used as it is; the text says what to change. Raised by `OnConnected`."""


def passing(error: Exception) -> bool:
    """Whether *error* may be gone at the next try, though nobody changes a setting."""
    return error.code in PAUSES if isinstance(error, ReplyError) else not isinstance(error, Unfit)


class Script(Struct, frozen=True):
    """A Lua script; *allow_oom* marks one that must run when memory is full (renewals, claims, ends)."""

    name: str
    text: str
    allow_oom: bool = False


class Link(Protocol):
    """The seam between the store and a server: raw replies (bytes, int, None, lists), in the order of the calls."""

    async def call(self, *words: Word) -> Any:
        """Send one command and return its reply; raises `ReplyError` or `ConnectionLost`."""
        ...

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send commands in one write; a `ReplyError` stands in its place as a value."""
        ...

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Run *script* by its digest, loading it once where the server forgot it."""
        ...

    def primaries(self) -> Sequence["Link"]:
        """A link to each primary that is known now."""
        ...


class Call(Protocol):
    """One command on one very connection, before anybody else may use it."""

    async def __call__(self, *words: Word) -> Any:
        """Send one command and return its reply; raises `ReplyError` or `ConnectionLost`."""
        ...


class OnConnected(Protocol):
    """What a new connection must pass before other commands are sent on it; raises `Unfit` to refuse it."""

    async def __call__(self, call: Call, /) -> None:
        """Look at the server through *call*."""
        ...


class Messages(Protocol):
    """A subscribing connection: any number of channels on one socket, pinged each second."""

    async def subscribe(self, channel: str) -> None:
        """Subscribe, returning once the server confirmed it; again after each reconnect, by itself."""
        ...

    async def unsubscribe(self, channel: str) -> None:
        """Leave *channel*; takes effect in the order of the calls, without waiting for the server."""
        ...
