"""What a user of hosts does, with the client of `clients/python`; and every answer that it gets is judged by the rules for hosts.

The client says what may be believed, and the rules what may be sent, which is less: both must be content.
"""

import json
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

import httpcore
from runstream_client import AsyncClient, AsyncEventStream, ClientError, RunEvent
from runstream_client.transport import pool_options
from typing_extensions import override

from tests.host_rules import host_answer, host_headers, host_rules, values
from tests.system.processes import Host, asking, token_of
from tests.system.proxy import Proxy

ENDS = (b"event: run.completed\n", b"event: run.failed\n", b"event: run.cancelled\n")
RETRY = b"retry: "
"""How a stream ends whose run goes on elsewhere (extensions §1)."""


class Heard:
    """One answer as it came."""

    def __init__(self, request: httpcore.Request, response: httpcore.Response) -> None:
        self._request: Any = request
        self.status = response.status
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
        self.body = b""
        self.is_whole = False

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events."""
        return any(value.startswith("text/event-stream") for value in values(self.headers, "Content-Type"))

    @property
    def has_ended(self) -> bool:
        """Whether a run ended in it."""
        return any(end in self.body for end in ENDS)

    @property
    def port(self) -> int:
        """Where it was asked for."""
        return int(self._request.url.port)

    async def judge(self) -> None:
        """Raise `AssertionError` if no host may send it, as far as it came."""
        if self.is_stream:
            host_headers(self.status, self.headers, stream=True)
            document: Any = json.loads(b"".join([part async for part in self._request.stream]) or b"null")
            if document is not None:  # a stream that is continued has ids of its own
                *frames, rest = self.body.split(b"\n\n")
                assert not rest or not self.is_whole, rest
                told = [frame for frame in frames if not frame.startswith(RETRY)]
                host_rules(b"".join(frame + b"\n\n" for frame in told), document, complete=self.has_ended)
        elif self.is_whole:
            host_answer(self.status, self.headers, self.body)


class _Noted:
    """A body that is noted as it comes; of a stream in which a run ended, also what the client does not look at."""

    def __init__(self, inner: Any, heard: Heard) -> None:
        self._inner = inner
        self._parts: AsyncIterator[bytes] = aiter(inner)
        self._heard = heard

    def __aiter__(self) -> "_Noted":
        return self

    async def __anext__(self) -> bytes:
        try:
            part = await anext(self._parts)
        except StopAsyncIteration:
            self._heard.is_whole = True
            raise
        self._heard.body += part
        return part

    async def aclose(self) -> None:
        if self._heard.is_stream and self._heard.has_ended:
            async for _ in self:
                pass
        await self._inner.aclose()


class _Pool(httpcore.AsyncConnectionPool):
    def __init__(self, heard: list[Heard]) -> None:
        super().__init__(**pool_options(None))
        self._heard = heard

    @override
    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        response = await super().handle_async_request(request)
        heard = Heard(request, response)
        self._heard.append(heard)
        response.stream = _Noted(response.stream, heard)
        return response


class User(AsyncClient):
    """Somebody who uses *hosts*, or ways to them; whatever was sent to them is judged when they leave."""

    def __init__(self, *hosts: Host | Proxy, subject: str = "ann", **options: Any) -> None:
        ports = [host.port if isinstance(host, Proxy) else host.target.port for host in hosts]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        super().__init__(urls, token=token_of(subject), **options)
        self.heard: list[Heard] = []
        self._driver.pool = _Pool(self.heard)

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, at)
        if kind is None or issubclass(kind, ClientError):
            for heard in self.heard:
                await heard.judge()


def asking_for(model: str, text: str = "hello", **members: Any) -> Any:
    """A run of one of the scripts."""
    return asking(model, text, **members)


async def first(stream: AsyncEventStream, count: int) -> list[RunEvent]:
    """The next *count* events."""
    return [await anext(stream) for _ in range(count)]


async def rest(stream: AsyncEventStream) -> list[RunEvent]:
    """All events that follow."""
    return [event async for event in stream]


def raw(events: Sequence[RunEvent]) -> list[dict[str, Any]]:
    """The events as they came."""
    return [event.raw for event in events]
