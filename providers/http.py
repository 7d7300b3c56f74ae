"""HTTP to one vendor: requests whose answer is streamed, with a bound on everything that comes back (providers §4).

Nothing is tried again but a 429, no redirect is followed, and no word of an answer gets into an error or a log.
"""

import logging
import re
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2

from actors.ports import Retry
from providers import retry
from providers.failures import failed, of_status
from providers.http_answer import BROKEN, Answer, bounded

CONNECT_S = 10.0
"""For a connection, and for a free place in the pool."""
WRITE_S = 60.0
"""Between two pieces of a request that the vendor takes."""
CONNECTIONS_MAX = 1_000
IDLE_CONNECTIONS_MAX = 20
CLOSE_S = 1.0
SILENT_S = 60
"""After which the system asks whether the vendor's machine is still there: a slow vendor may think as long as it likes."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_TOO_MANY = 429
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_log = logging.getLogger(__name__)


class Http:
    """One vendor's address; *name* is the instance's in logs."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        name: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._name = name
        self._sleep = sleep
        self._wall = wall

    @asynccontextmanager
    async def posted(self, path: str, headers: Mapping[str, str], body: bytes, policy: Retry) -> AsyncGenerator[Answer]:
        """Post *body*, again after a 429 as *policy* says; leaving this closes a connection that is not read to its end.

        Raises:
            Failed: there was no answer, or one that is no success.
        """
        response = await self._admitted(path, headers, body, policy)
        try:
            self._check(response)
            yield Answer(response)
        finally:
            await _closed(response)

    async def got(self, path: str, headers: Mapping[str, str], bytes_max: int) -> tuple[int, bytes]:
        """Return the status and, of a success, the body of a GET.

        Raises:
            ConnectionError: there was no whole answer.
            TooLarge: the body has more than *bytes_max* bytes.
        """
        try:
            response = await self._client.send(self._client.build_request("GET", path, headers=headers), stream=True)
            try:
                body = await bounded(response.aiter_raw(), bytes_max) if response.is_success else b""
            finally:
                await _closed(response)
        except BROKEN:
            raise ConnectionError from None
        return response.status_code, body

    async def _admitted(self, path: str, headers: Mapping[str, str], body: bytes, policy: Retry) -> httpx2.Response:
        """Return the first answer that is no 429, waiting as long as vendor and *policy* ask (runs §10)."""
        for attempt in count(1):
            response = await self._sent(path, headers, body)
            if response.status_code != _TOO_MANY:
                return response
            hint_ms = retry.hint_ms(response.headers.get_list("retry-after"), self._wall() * 1_000)
            wait_ms = None if hint_ms is None else retry.wait_ms(attempt, hint_ms, policy)
            if wait_ms is None:
                return response
            await _closed(response)
            await self._sleep(wait_ms / 1_000)
        raise AssertionError  # pragma: no cover - counting has no end

    async def _sent(self, path: str, headers: Mapping[str, str], body: bytes) -> httpx2.Response:
        watched = {"trace": _watched}
        request = self._client.build_request("POST", path, headers=headers, content=body, extensions=watched)
        try:
            return await self._client.send(request, stream=True)
        except BROKEN as error:
            _log.warning("provider %s was not reached: %s", self._name, type(error).__name__)
            raise failed("PROVIDER_UNREACHABLE") from None

    def _check(self, response: httpx2.Response) -> None:
        problem = of_status(response.status_code)
        if problem is not None:
            told = response.headers.get("request-id") or response.headers.get("x-request-id") or ""
            known = told if _REQUEST_ID.fullmatch(told) else "unknown"
            _log.warning("provider %s answered %d, request %s", self._name, response.status_code, known)
            raise problem
        if response.headers.get("content-encoding", "identity") != "identity":
            raise failed("INVALID_PROVIDER_RESPONSE")


@asynccontextmanager
async def open_http(base_url: str, name: str) -> AsyncGenerator[Http]:
    """Open connections to *base_url*, which ends in a slash; what the environment says of proxies is for other hosts."""
    remote = urlsplit(base_url).hostname not in LOOPBACK
    secure = base_url.startswith("https:")  # else no certificate is looked at, and loading them takes its time
    limits = httpx2.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=IDLE_CONNECTIONS_MAX)
    headers = {"accept-encoding": "identity", "user-agent": "runstream"}
    timeout = httpx2.Timeout(None, connect=CONNECT_S, pool=CONNECT_S, write=WRITE_S)
    async with httpx2.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=timeout,
        limits=limits,
        follow_redirects=False,
        trust_env=remote,
        verify=secure,
        # Whatever a vendor would have us carry from one subject's call to another's is left with it.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    ) as client:
        yield Http(client, name)


async def _watched(event: str, told: Mapping[str, Any]) -> None:
    """Let the system notice that the other end of a new connection is gone for good."""
    if event != "connection.connect_tcp.complete":
        return
    sock = told["return_value"].get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS, which asks after two hours
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)


async def _closed(response: httpx2.Response) -> None:
    with anyio.move_on_after(CLOSE_S, shield=True):
        await response.aclose()
