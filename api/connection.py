"""One HTTP connection, guarded: uvicorn's protocol with the bounds it lacks (overview §1).

- A head has a time and a size, a whole request a time; what is late or garbled gets a typed answer, then the end.
- A socket that takes nothing for a stated time is cut.
- A client that leaves is noticed although it has sent requests ahead, which uvicorn does not.
- A request that the end of the drain time overtakes gets no answer that uvicorn would make up.
- An answer to HTTP/1.0 comes without chunks.
- Trailers are dropped: they would join the headers of a request that was already judged.
"""

import asyncio
from typing import Any, cast

from msgspec import Struct
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from actors.errors import Problem
from api import pipeline, problems


class Bounds(Struct, frozen=True, kw_only=True):
    """What a connection may take."""

    head_s: float = 10
    head_bytes_max: int = 32_768
    receive_s: float = 30
    stall_s: float = 60
    ahead_max: int = 8
    """Requests read before the one in front of them is answered."""
    ahead_bytes_max: int = 1_000_000


class GuardedConnection(HttpToolsProtocol):
    """An HTTP/1.1 connection within *bounds*."""

    def __init__(self, *args: Any, bounds: Bounds, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._running: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._in_head = False
        self._in_message = False
        self._head_bytes = 0
        self._head_read = 0
        self._fresh = 0
        self._begun_at = 0.0
        self._ahead_bytes = 0
        self._deaf = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_by(self._bounds.head_s)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._stop_stall()
        self.pipeline.clear()
        running = self._running
        super().connection_lost(exc)
        if running is not None:
            # The base class tells only the last request that came.
            running.disconnected = running.disconnected or not running.response_complete
            running.message_event.set()

    @override
    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        # A line of a head is counted when it is whole; until then what was read of it is, but not a body in front of it.
        self._fresh = 0 if self._in_message else len(data)
        self._head_read += len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and self._head_read > self._bounds.head_bytes_max:
            self.refuse(problems.GARBLED)
        elif self._deadline is None and self._idle() and not self.transport.is_closing():
            # Blank lines between requests are no request; they do not keep a connection open.
            self._expect_by(self._bounds.head_s)

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._head_bytes, self._head_read, self._fresh = 0, self._fresh, 0
        self._begun_at = self.loop.time()
        self._expect_by(self._bounds.head_s)

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        cast("dict[str, Any]", self.scope)["extensions"] = {pipeline.TARGET: self.url}
        self._expect_by(self._bounds.receive_s - (self.loop.time() - self._begun_at))
        if self.pipeline and self._may_read_ahead():
            self.flow.resume_reading()

    @override
    def on_body(self, body: bytes) -> None:
        if self.cycle is self._running or self.cycle.response_complete:
            super().on_body(body)
            return
        self._ahead_bytes += len(body)
        if self._may_read_ahead():
            self.cycle.body += body
        else:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._expect_nothing()
        self._in_message = False
        super().on_message_complete()
        # Of a request that was answered before it was whole, the base class would wait for more for good.
        self.cycle.more_body = False

    @override
    def on_response_complete(self) -> None:
        self._running = None
        if not self.pipeline:
            self._ahead_bytes = 0
        super().on_response_complete()
        if self._running is None:
            self._watch_stall()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_stall()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is None or self.transport.is_closing():
            self._watch_stall()
        else:
            self._stop_stall()

    @override
    def shutdown(self) -> None:
        """End the connection once its answer is out; a request that is still coming is refused."""
        if self._running is not None and self._running is self.cycle and self.cycle.more_body:
            self.refuse(problems.CLOSING)
            return
        if self._running is not None:
            self._running.keep_alive = False
        self.pipeline.clear()
        super().shutdown()

    @override
    def send_400_response(self, msg: str) -> None:
        self.refuse(problems.GARBLED)

    def refuse(self, problem: Problem) -> None:
        """Answer *problem* and close; behind a whole request, or an answer that has begun, only listen no more."""
        if self.transport.is_closing():
            return
        self._expect_nothing()
        cycle = self._running
        if cycle is not None and (cycle.response_started or cycle is not self.cycle or not cycle.more_body):
            cycle.keep_alive = False
            self.pipeline.clear()
            self._deaf = True
            return
        if cycle is not None or self._idle_or_in_head():
            self.transport.write(_refusal(problem, tls=self.scheme == "https"))
        self.transport.close()
        self._watch_stall()

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if not self.flow.write_paused:
            self._stop_stall()

        async def served(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, _unframed(cycle, send) if scope["http_version"] == "1.0" else send)
            except asyncio.CancelledError:
                # The drain time is over, and what becomes of the request is not known here: no answer says so best.
                cycle.disconnected = True
                self.transport.abort()
                raise
            finally:
                if not cycle.response_complete:
                    self._watch_stall()  # the base class closes

        super()._start_asgi_task(cycle, served)

    @override
    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a request to upgrade is answered as if it had not asked."""

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._bounds.head_bytes_max:
            # The parser turns it into a refusal.
            raise ValueError("the head or the trailers are too large")

    def _idle(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or (cycle.response_complete and not cycle.more_body)

    def _idle_or_in_head(self) -> bool:
        return self._in_head or self._idle()

    def _may_read_ahead(self) -> bool:
        return len(self.pipeline) <= self._bounds.ahead_max and self._ahead_bytes <= self._bounds.ahead_bytes_max

    def _expect_by(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(max(seconds, 0), self._late)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self.refuse(problems.LATE)

    def _watch_stall(self) -> None:
        """Cut the connection unless what it has not sent becomes less; for times in which nobody writes."""
        self._stop_stall()
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent:
            self._stall = self.loop.call_later(self._bounds.stall_s, self._stalled)

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        if self.transport.get_write_buffer_size() >= self._unsent:
            self.transport.abort()
        else:
            self._watch_stall()


def _unframed(cycle: RequestResponseCycle, send: Any) -> Any:
    """*send* for HTTP/1.0, which has no chunks: the end of the connection is that of an answer without a length."""
    sized = True

    async def plainly(message: Any) -> None:
        nonlocal sized
        if message["type"] == "http.response.start":
            sized = any(name == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if sized else False
        elif not sized:
            cycle.expected_content_length = len(message["body"])
        await send(message)

    return plainly


def _refusal(problem: Problem, *, tls: bool) -> bytes:
    """A whole answer, for a request that never reaches the application."""
    told = pipeline.refused(pipeline.base(tls=tls), problem)
    lines = [*told.headers, (b"content-length", b"%d" % len(told.body)), (b"connection", b"close")]
    head = b"".join(b"%b: %b\r\n" % line for line in lines)
    return b"HTTP/1.1 %d Refused\r\n%b\r\n%b" % (told.status, head, told.body)
