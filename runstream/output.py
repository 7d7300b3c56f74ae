"""Where commands print: text for a terminal is made harmless, and what is for programs goes out as it is."""

import sys
from typing import TextIO

import msgspec

from runstream.tables import neutral


class Output:
    """Standard output, written at once."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._shown = self._stream.isatty()
        self._line_open = False

    async def text(self, text: str) -> None:
        """Write a piece of a model's answer."""
        await self._written(neutral(text) if self._shown else text.encode(errors="replace").decode())
        if text:
            self._line_open = not text.endswith("\n")

    async def line(self, text: str = "") -> None:
        """Write a line, after ending one that is open."""
        await self.ended()
        await self._written(f"{text}\n")

    async def ended(self) -> None:
        """End the line that is open."""
        if self._line_open:
            self._line_open = False
            await self._written("\n")

    async def json(self, data: bytes) -> None:
        """Write one JSON value as a line."""
        await self._written(f"{data.decode()}\n")

    async def pretty(self, data: bytes) -> None:
        """Write one JSON value over several lines for people, in one for programs."""
        await self.json(msgspec.json.format(data, indent=2) if self._shown else data)

    async def _written(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
