"""Reads an event stream to the letter: bytes in any pieces come in, frames go out (clients §2).

Nothing here waits or knows what a frame's data means.
"""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

from runstream_client.errors import ProtocolBroken

FRAME_BYTES_MAX = 2_000_000
"""Over all lines of a frame, comments and field names included, without what ends them."""
_TOKEN = re.compile(rb"[^\r\n]+|\r\n|\r|\n")
_ENDS = (b"\n", b"\r", b"\r\n")
_RETRY_MS_MAX = 3_600_000


class Frame(NamedTuple):
    """The data of one frame, and its `id` if it had one."""

    data: str
    id: str | None


class FrameReader:
    """Turns the bytes of one stream into frames."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        """After how long to come back, where the host said so."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._held: bytes | None = b""
        self._line: list[str] = []
        self._data: list[str] = []
        self._id: str | None = None
        self._bytes = 0
        self._after_cr = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that *data* ends; whoever stops asking leaves the rest unexamined.

        Raises:
            ProtocolBroken: `INVALID_STREAM` for bytes that are not UTF-8, `RESPONSE_TOO_LARGE`.
        """
        for found in _TOKEN.finditer(self._begun(data)):
            token = found[0]
            if token not in _ENDS:
                self._take(token)
            elif (token != b"\n" or not self._after_cr) and (frame := self._line_ended()):
                self._after_cr = token == b"\r"
                yield frame
            self._after_cr = token == b"\r"

    def _begun(self, data: bytes) -> bytes:
        """*data* without the byte order mark of the stream; held back while it may be one."""
        if self._held is None:
            return data
        data = self._held + data
        if len(data) < len(codecs.BOM_UTF8) and codecs.BOM_UTF8.startswith(data):
            self._held = data
            return b""
        self._held = None
        return data.removeprefix(codecs.BOM_UTF8)

    def _take(self, part: bytes) -> None:
        room = FRAME_BYTES_MAX - self._bytes
        self._bytes += len(part)
        self._decode(part[:room])
        if len(part) > room:
            raise ProtocolBroken("RESPONSE_TOO_LARGE", f"a frame of more than {FRAME_BYTES_MAX} bytes")

    def _decode(self, part: bytes, *, final: bool = False) -> None:
        try:
            self._line.append(self._decoder.decode(part, final))
        except UnicodeDecodeError as error:
            raise ProtocolBroken("INVALID_STREAM", f"not UTF-8: {error.reason}") from None

    def _line_ended(self) -> Frame | None:
        self._decode(b"", final=True)
        line = "".join(self._line)
        self._line.clear()
        if line:
            self._field(line)
            return None
        return self._frame_ended()

    def _field(self, line: str) -> None:
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if not colon:
            return
        match name:
            case "data":
                self._data.append(value)
            case "id":
                self._id = value
            case "retry" if value.isascii() and value.isdigit() and len(value) < len(str(_RETRY_MS_MAX)) + 1:
                self.retry_ms = min(int(value), _RETRY_MS_MAX)
            case _:
                pass

    def _frame_ended(self) -> Frame | None:
        frame = Frame("\n".join(self._data), self._id) if self._data else None
        self._data.clear()
        self._id = None
        self._bytes = 0
        return frame
