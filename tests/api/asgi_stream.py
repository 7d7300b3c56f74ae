"""A client without a socket that reads an event stream as it comes, and may leave it."""

import json
from typing import Any

import anyio

from tests.host_rules import host_answer, host_headers, host_rules
from tests.strict_client import Headers, Json, Object, StreamCheck

_STREAM_HEADERS = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]


class Streaming:
    """One `POST /v1/runs`, read by the strictest client."""

    def __init__(self, request: Object) -> None:
        self.request = request
        self.check = StreamCheck(request)
        self.raw = b""
        self.status = 0
        self.headers: Headers = []
        self.over = anyio.Event()
        """The application is done with the request."""
        self.left = False
        self._gone = anyio.Event()
        self._news = anyio.Event()
        self._read = 0

    async def carry(self, app: Any, bearer: str) -> None:
        """Send the request and take what comes until the application is done."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/runs",
            "raw_path": b"/v1/runs",
            "query_string": b"",
            "root_path": "",
            "headers": [*_STREAM_HEADERS, (b"authorization", f"Bearer {bearer}".encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        bodies = [json.dumps(self.request).encode()]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        try:
            await app(scope, receive, self._take)
        finally:
            self.over.set()
            self._wake()

    def leave(self) -> None:
        """Drop the connection."""
        self.left = True
        self._gone.set()

    async def events(self, until: str | None) -> list[Object]:
        """The next events, to the first of type *until* or to the end."""
        found: list[Object] = []
        while True:
            for event in self.check.events[self._read :]:
                self._read += 1
                found.append(event)
                if event["type"] == until:
                    return found
            if self.over.is_set():
                assert until is None, f"no {until} after {self.check.types}"
                return found
            await self._news.wait()

    def refusal(self) -> Json:
        """The error that was answered instead of a stream."""
        assert self.over.is_set()
        return host_answer(self.status, self.headers, self.raw)

    def judge(self) -> None:
        """Nothing, if a host may send what came."""
        host_headers(self.status, self.headers, stream=True)
        host_rules(self.raw, self.request, complete=not self.left)

    async def _take(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        elif not self.left:
            body = message.get("body", b"")
            self.raw += body
            if self.status == 200:
                self.check.feed(body)
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
