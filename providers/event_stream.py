"""The data of server-sent events, taken out of bytes that may be cut anywhere (clients §2, providers §4).

Nothing here waits, reads a clock or rolls a die.
"""

import re
from collections.abc import Iterator

from providers.failures import failed

EVENT_BYTES_MAX = 2_000_000
"""Of all lines of one event, comments and field names included."""
STREAM_BYTES_MAX = 10_000_000
"""Of the data of all events together."""

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventStream:
    """Reads one stream: feed it what arrives, and it yields the data of each event that is complete."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0
        self._data: list[bytes] = []
        self._event_bytes = 0
        self._data_bytes = 0
        self._began = False
        self._after_return = False

    def fed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of the events that *chunk* completes, in order, as UTF-8.

        Raises:
            Failed: INVALID_STREAM for what is no UTF-8, RESPONSE_TOO_LARGE beyond a bound.
        """
        self._rest += chunk
        if not self._begun():
            return
        if self._after_return and self._rest:
            # A line feed that comes with the next bytes belongs to the carriage return before it.
            self._after_return = False
            if self._rest.startswith(b"\n"):
                del self._rest[:1]
        start = 0
        while found := _END_OF_LINE.search(self._rest, max(start, self._looked)):
            yield from self._line(bytes(self._rest[start : found.start()]))
            start = found.end()
        self._after_return = self._after_return or self._rest.endswith(b"\r")
        del self._rest[:start]
        self._looked = len(self._rest)
        if self._event_bytes + len(self._rest) > EVENT_BYTES_MAX:
            raise failed("RESPONSE_TOO_LARGE")

    def _begun(self) -> bool:
        """Whether enough came to tell a byte order mark from text; the mark is dropped."""
        if not self._began:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return False
            self._began = True
            if self._rest.startswith(_BOM):
                del self._rest[: len(_BOM)]
        return True

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            ended, self._data, self._event_bytes = self._data, [], 0
            if ended:
                yield b"\n".join(ended)
            return
        self._event_bytes += len(line)
        check_text(line)
        if line.startswith(b"data:"):
            value = line.removeprefix(b"data:").removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value)
        if self._event_bytes > EVENT_BYTES_MAX or self._data_bytes > STREAM_BYTES_MAX:
            raise failed("RESPONSE_TOO_LARGE")


def check_text(data: bytes) -> None:
    """Nothing, for UTF-8.

    Raises:
        Failed: INVALID_STREAM for anything else.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        raise failed("INVALID_STREAM") from None
