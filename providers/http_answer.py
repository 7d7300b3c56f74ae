"""The answer to a request over HTTP, as it comes, with a bound on all of it (providers §4)."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import httpx2

from providers.event_stream import EventStream, check_text
from providers.failures import failed

BODY_BYTES_MAX = 2_000_000
"""Of an answer that is one document."""
LINGER_S = 0.1
"""How long the rest of an answered stream is waited for, so that its connection serves the next request."""
LINGER_BYTES_MAX = 65_536
BROKEN = (httpx2.TransportError, ssl.SSLError)
"""What tells that there is no connection; the other end may still refuse ours once the TLS handshake is over."""


class TooLarge(Exception):
    """An answer of more bytes than were asked for."""


class Answer:
    """The answer to a POST, as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = response.aiter_raw()
        self.is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the data of each event.

        Raises:
            Failed: the connection broke, or the bytes are no event stream within its bounds.
        """
        stream = EventStream()
        try:
            async for chunk in self._chunks:
                for data in stream.fed(chunk):
                    yield data
        except BROKEN:
            raise failed("INTERNAL_ERROR") from None

    async def document(self) -> bytes:
        """Return the whole body.

        Raises:
            Failed: the connection broke, or the body is too large or no UTF-8.
        """
        try:
            body = await bounded(self._chunks, BODY_BYTES_MAX)
        except TooLarge:
            raise failed("RESPONSE_TOO_LARGE") from None
        except BROKEN:
            raise failed("INTERNAL_ERROR") from None
        check_text(body)
        return body

    async def linger(self) -> None:
        """Take what still comes after the last event that matters; a connection read to its end is used again."""
        with anyio.move_on_after(LINGER_S):
            try:
                await bounded(self._chunks, LINGER_BYTES_MAX)
            except (TooLarge, *BROKEN):
                return


async def bounded(chunks: AsyncGenerator[bytes], bytes_max: int) -> bytes:
    """Return all *chunks*.

    Raises:
        TooLarge: they are more than *bytes_max*, and not read further.
    """
    body = bytearray()
    async with aclosing(chunks):
        async for chunk in chunks:
            body += chunk
            if len(body) > bytes_max:
                raise TooLarge
    return bytes(body)
