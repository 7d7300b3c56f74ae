"""A client without a socket that waits for a whole answer, and may leave before it comes."""

import json
from typing import Any

import anyio

from tests.api.asgi_client import Told
from tests.strict_client import Headers, Object


class Asking:
    """One `POST /v1/runs` for JSON, under way."""

    def __init__(self, request: Object) -> None:
        self.request = request
        self.over = anyio.Event()
        """The application is done with the request."""
        self._gone = anyio.Event()
        self._messages: list[Any] = []

    async def carry(self, app: Any, bearer: str) -> None:
        """Send the request and take what comes until the application is done."""
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {bearer}".encode())]
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
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        bodies = [json.dumps(self.request).encode()]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self._messages.append(message)

        try:
            await app(scope, receive, send)
        finally:
            self.over.set()

    def leave(self) -> None:
        """Drop the connection."""
        self._gone.set()

    async def told(self) -> Told:
        """Wait for the answer."""
        await self.over.wait()
        start, *rest = self._messages
        lines: Headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        whole = not rest[-1].get("more_body", False)
        return Told(start["status"], lines, b"".join(message.get("body", b"") for message in rest), whole)
