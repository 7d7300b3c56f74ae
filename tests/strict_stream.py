"""The strictest client's reading of an event stream: bytes in any pieces, lines, frames, events.

Nothing here waits, reads a clock or opens a socket.
"""

import codecs
import re
from collections.abc import Iterable

from tests.strict_events import TERMINAL, EventRules, Unsupported
from tests.strict_values import Json, Object, Unsound, member, members, string

FRAME_BYTES_MAX = 2_000_000
_LINE_END = re.compile(rb"[\r\n]")


class ClientError(Exception):
    """What the client raises: its own code, or the one that the host sent."""

    def __init__(self, code: str, why: str = "", *, retryable: bool = False, outcome: str | None = None) -> None:
        super().__init__(f"{code}: {why}")
        self.code, self.why, self.retryable, self.outcome = code, why, retryable, outcome


class SseLines:
    """Splits bytes into the lines of an event stream and counts the bytes of each frame."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._line: list[str] = []
        self._frame_bytes = 0
        self._after_cr = False
        self._start: bytes | None = b""

    def feed(self, data: bytes) -> Iterable[str]:
        """The lines that end within *data*, one by one; whoever stops asking leaves the rest unexamined."""
        data = self._without_bom(data)
        at = 0
        while at < len(data):
            if self._after_cr and data[at] == 0x0A:
                at += 1
                self._after_cr = False
                continue
            self._after_cr = False
            found = _LINE_END.search(data, at)
            end = found.start() if found else len(data)
            self._take(data[at:end])
            if found is None:
                return
            at = found.end()
            self._after_cr = found[0] == b"\r"
            yield self._ended()

    def _without_bom(self, data: bytes) -> bytes:
        """*data*, held back while it may still be the byte order mark of the stream."""
        if self._start is None:
            return data
        seen = self._start + data
        self._start = seen if len(seen) < len(codecs.BOM_UTF8) and codecs.BOM_UTF8.startswith(seen) else None
        return b"" if self._start is not None else seen.removeprefix(codecs.BOM_UTF8)

    def _take(self, piece: bytes) -> None:
        room = FRAME_BYTES_MAX - self._frame_bytes
        self._decode(piece[:room])
        if len(piece) > room:
            raise ClientError("RESPONSE_TOO_LARGE", f"a frame of more than {FRAME_BYTES_MAX} bytes")
        self._frame_bytes += len(piece)

    def _ended(self) -> str:
        self._decode(b"", final=True)
        line = "".join(self._line)
        self._line.clear()
        if not line:
            self._frame_bytes = 0
        return line

    def _decode(self, piece: bytes, *, final: bool = False) -> None:
        try:
            self._line.append(self._decoder.decode(piece, final))
        except UnicodeDecodeError as error:
            raise ClientError("INVALID_STREAM", str(error)) from error


class StreamCheck:
    """One run's event stream, read as the strictest client reads it."""

    def __init__(self, request: Object) -> None:
        self.events: list[Object] = []
        self.terminal: Object | None = None
        self._lines = SseLines()
        self._data: list[str] = []
        self._rules = EventRules(request)

    @property
    def types(self) -> list[str]:
        """The types delivered so far, in order."""
        return [string(event["type"]) for event in self.events]

    def feed(self, data: bytes) -> list[Object]:
        """The events that *data* completes; raises `ClientError`. After a terminal event nothing is examined."""
        before = len(self.events)
        if self.terminal is None:
            for line in self._lines.feed(data):
                self._read(line)
                if self.terminal is not None:
                    break
        return self.events[before:]

    def close(self) -> None:
        """Nothing, if the stream may end here; otherwise `ClientError` INCOMPLETE_STREAM."""
        if self.terminal is None:
            raise ClientError("INCOMPLETE_STREAM", f"ended after {self.types}")

    def result(self) -> Json:
        """The result of the ended run, or its terminal error as `ClientError`."""
        self.close()
        ended = self.terminal or {}
        if "error" in ended and ended["type"] != "run.completed":
            raise told(ended["error"])
        return ended["result"]

    def _read(self, line: str) -> None:
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            data = "\n".join(self._data)
            self._data.clear()
            self._dispatch(data)

    def _dispatch(self, data: str) -> None:
        try:
            event = self._rules.accept(data)
        except Unsound as error:
            raise ClientError("INVALID_STREAM", str(error)) from error
        except Unsupported as error:
            raise ClientError("UNSUPPORTED_EVENT", str(error)) from error
        if event is not None:
            self.events.append(event)
            self.terminal = event if event["type"] in TERMINAL else None


def told(error: Json) -> ClientError:
    """The error that a host told in *error*, a sound error object."""
    outcome = members(error).get("outcome")
    return ClientError(
        string(member(error, "code")),
        string(member(error, "message")),
        retryable=member(error, "retryable") is True,
        outcome=string(outcome) if outcome is not None else None,
    )
