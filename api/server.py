"""The application on a socket: uvicorn within bounds, TLS, and an end that lets streams finish.

Shutdown is told to the host first, so that runs end themselves and their streams with them; only then does the server stop.
"""

import asyncio
import contextlib
import functools
import signal
import socket
import stat
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from ssl import SSLError, TLSVersion
from types import FrameType
from typing import Any, cast

import uvicorn
from msgspec import Struct
from typing_extensions import override

from api.connection import Bounds, GuardedConnection

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
KEEP_ALIVE_S = 5
_PROBE_TCP = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A peer that vanished without a word is noticed within 30 s, even where nothing is sent."""


class Config(Struct, frozen=True, kw_only=True):
    """Where and how to listen. Port 0 takes a free one; a *unix_socket* takes the place of host and port."""

    host: str = "127.0.0.1"
    port: int = 7433
    certificate: str | None = None
    key: str | None = None
    unix_socket: str | None = None
    drain_s: float = 10
    """How long open streams get to end themselves before they are cut."""
    bounds: Bounds = Bounds()

    @property
    def tls(self) -> bool:
        """Whether what is served is served over TLS."""
        return self.certificate is not None


class NotServed(Exception):
    """The host cannot listen as it is told to; the message says what to change."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Listening(Struct, frozen=True):
    """A server that takes connections; *stop* begins its end as a signal would."""

    url: str
    port: int
    stop: Callable[[], None]


def checked_config(config: Config) -> Config:
    """*config*, if it may be served.

    Raises:
        NotServed: TLS_REQUIRED for plain HTTP off loopback, INVALID_TLS for half a certificate.
    """
    if (config.certificate is None) != (config.key is None):
        raise NotServed("INVALID_TLS", "certificate and key belong together: set both or neither")
    if config.unix_socket is None and not config.tls and config.host not in LOOPBACK:
        raise NotServed(
            "TLS_REQUIRED",
            f"plain HTTP is served on loopback only: set certificate and key, or host to 127.0.0.1 (it is {config.host})",
        )
    return config


async def serve(
    app: Any, config: Config, *, on_ready: Callable[[Listening], None], drain: Callable[[], None]
) -> int | None:
    """Serve *app* until SIGTERM, SIGINT or `Listening.stop`; return the signal that ended it, if one did.

    *on_ready* is called once connections are taken, *drain* once when the end begins.

    Raises:
        NotServed: it cannot listen as *config* says.
    """
    checked_config(config)
    server = _Server(_uvicorn_config(app, config), drain)
    with _listener(config) as listener:
        server.ready = lambda: on_ready(_listening(config, listener, server.stop))
        await server.serve([listener])
    return server.ended_by


class _Server(uvicorn.Server):
    """uvicorn's server, told about the end by one door and never killing its own process."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready: Callable[[], None] = lambda: None
        self.ended_by: int | None = None
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._draining = False

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def stop(self) -> None:
        """Begin the end: tell the host, then let the server's loop notice."""
        if not self._draining:
            self._draining = True
            self._drain()
        self.should_exit = True

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A signal may come between any two instructions; the loop is where the rest of the host lives.
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.ended_by = self.ended_by or sig
        self._loop.call_soon_threadsafe(self.stop)

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Listen to signals, where a thread may, and give them back; whoever serves decides what a signal ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _uvicorn_config(app: Any, config: Config) -> uvicorn.Config:
    made = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", functools.partial(GuardedConnection, bounds=config.bounds)),
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=cast("int", config.drain_s),
        ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )
    try:
        made.load()
    except (OSError, SSLError) as error:
        raise NotServed("INVALID_TLS", f"certificate or key cannot be used: {error.strerror or 'unreadable'}") from None
    if made.ssl is not None:
        made.ssl.minimum_version = TLSVersion.TLSv1_2
    return made


@contextlib.contextmanager
def _listener(config: Config) -> Generator[socket.socket, None, None]:
    """Open the listening socket, and leave nothing of it behind."""
    try:
        listener = unix_socket(Path(config.unix_socket)) if config.unix_socket else _tcp_socket(config)
    except OSError as error:
        where = config.unix_socket or f"{config.host}:{config.port}"
        raise NotServed("ADDRESS_UNAVAILABLE", f"cannot listen on {where}: {error.strerror or error}") from None
    try:
        yield listener
    finally:
        listener.close()
        if config.unix_socket:
            Path(config.unix_socket).unlink(missing_ok=True)


def _tcp_socket(config: Config) -> socket.socket:
    found = socket.getaddrinfo(config.host.strip("[]"), config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.create_server(cast("tuple[str, int]", address[:2]), family=family, backlog=2_048)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBE_TCP:
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    listener.settimeout(0)
    return listener


def unix_socket(path: Path) -> socket.socket:
    """A socket at *path* that only its owner may use; one that nobody listens on any more is taken over."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(2_048)
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _listening(config: Config, listener: socket.socket, stop: Callable[[], None]) -> Listening:
    if config.unix_socket:
        return Listening(f"unix:{config.unix_socket}", 0, stop)
    address: Sequence[Any] = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return Listening(f"{'https' if config.tls else 'http'}://{host}:{address[1]}", address[1], stop)
