"""What speaks a vendor's JSON: requests of ours into its body, and what it sends into text, progress and a turn.

A codec is pure: what carries its bytes is `providers/api.py`, so it is tried without a network, cut at every byte.
"""

from typing import NamedTuple, Protocol

from actors.ports import ModelRequest, Turn

DONE = b"[DONE]"
"""What some vendors send last; it ends the stream of any (providers §4)."""


class Said(NamedTuple):
    """What one event of a vendor says."""

    text: str = ""
    """Visible text, to be shown at once."""
    progress: bool = False
    """Real work without text: reasoning, arguments of a call, the begin of a part. Pings are none."""
    ended: bool = False
    """Nothing that follows matters."""


class Reader(Protocol):
    """Folds the events of one answer; used once."""

    def read(self, data: bytes) -> Said:
        """Take the data of one event, and return what it says.

        Raises:
            Failed: the vendor reports a failure, or the event is malformed.
        """
        ...

    def turn(self) -> Turn:
        """The turn that the events add up to, asked for once they ended.

        Raises:
            Failed: they ended too early, or what they add up to is no answer.
        """
        ...


class Codec(Protocol):
    """The wire format of one vendor."""

    def path(self, model: str) -> str:
        """Where to send a request for *model*, below the instance's base URL."""
        ...

    def body(self, request: ModelRequest) -> bytes:
        """The JSON that asks for *request* as a stream.

        Raises:
            Failed: UNSUPPORTED_MODALITY for an attachment that this format cannot carry.
        """
        ...

    def reader(self) -> Reader:
        """What reads the events of one answer."""
        ...

    def whole(self, data: bytes) -> Turn:
        """The turn of an answer that came as one JSON document instead of a stream.

        Raises:
            Failed: as by a reader.
        """
        ...
