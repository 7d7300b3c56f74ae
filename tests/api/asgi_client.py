"""A client without a socket: one request straight into an ASGI application, on the test's own event loop."""

from typing import Any, NamedTuple

import anyio

from tests.strict_client import Headers

PATIENCE_S = 5


class Told(NamedTuple):
    """What the application sent."""

    status: int
    headers: Headers
    body: bytes
    whole: bool


async def sent(app: Any, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> Told:
    """Send one request, wait for the end of the answer, and hang up; raises TimeoutError if there is no end."""
    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.decode("utf-8", "surrogateescape"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
    messages: list[Any] = []
    ended = anyio.Event()

    async def receive() -> dict[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            ended.set()

    with anyio.fail_after(PATIENCE_S):
        await app(scope, receive, send)
    start, *rest = messages
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    return Told(start["status"], lines, b"".join(message["body"] for message in rest), ended.is_set())
