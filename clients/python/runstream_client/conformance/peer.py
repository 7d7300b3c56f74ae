"""A host that is none: it answers what it was told to, in the pieces it was told, and may stall, cut off or lie."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

DEADLINE_S = 20.0
_TLS = b"\x16"
"""How whoever wants encryption begins; this peer has none."""
_RESET = struct.pack("ii", 1, 0)


class Reply(NamedTuple):
    """One answer; *ending* says what becomes of the connection after the last piece."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    ending: Literal["close", "hold", "reset"] = "close"
    head: bytes | None = None
    """In place of a head made of status and headers."""


class Asked(NamedTuple):
    """A request that came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Peer:
    """Answers requests with *replies*, in their order, and notes what it was asked."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.replies: deque[Reply] = deque()
        self.asked: list[Asked] = []
        self.left = threading.Event()
        """Set once a client has left an answer that was held."""
        self._ending = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def answering(self, *replies: Reply) -> None:
        """Forget what was, and answer with *replies* from now on."""
        self.replies = deque(replies)
        self.asked.clear()
        self.left.clear()

    def asked_for(self, count: int) -> None:
        """Wait until so many requests came."""
        deadline_s = time.monotonic() + DEADLINE_S
        while len(self.asked) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{len(self.asked)} requests, and not {count}")
            time.sleep(0.001)

    def serve(self) -> None:
        """Take connections until `close`."""
        while not self._ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._served, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and let go of those that are held."""
        self._ending.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _served(self, raw: socket.socket) -> None:
        with raw, contextlib.suppress(OSError):
            raw.settimeout(DEADLINE_S)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._tls.wrap_socket(raw, server_side=True) if self._tls else raw as connection:
                request = _request(connection)
                if request is None:
                    return
                self.asked.append(request)
                self._answered(connection, self.replies.popleft() if self.replies else Reply(status=500))

    def _answered(self, connection: socket.socket, reply: Reply) -> None:
        connection.sendall(_head(reply) if reply.head is None else reply.head)
        try:
            for piece in reply.pieces:
                connection.sendall(piece)
        except OSError:
            if reply.ending == "hold":
                self.left.set()
            raise
        if reply.ending == "hold":
            self._held(connection)
        elif reply.ending == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _held(self, connection: socket.socket) -> None:
        connection.settimeout(0.05)
        while not self._ending.is_set():
            try:
                if not connection.recv(65_536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.left.set()


@contextlib.contextmanager
def peer(tls: ssl.SSLContext | None = None) -> Generator[Peer]:
    """Run a peer beside the block."""
    made = Peer(tls)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join(DEADLINE_S)


def _head(reply: Reply) -> bytes:
    given = {name.lower() for name, _ in reply.headers}
    lines = [*reply.headers, ("Connection", "close")]
    if reply.ending == "close" and "content-length" not in given and "transfer-encoding" not in given:
        lines.append(("Content-Length", str(sum(map(len, reply.pieces)))))
    text = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"HTTP/1.1 {reply.status} Said\r\n{text}\r\n".encode("latin-1")


def _request(connection: socket.socket) -> Asked | None:
    raw = b""
    while b"\r\n\r\n" not in raw:
        part = connection.recv(65_536)
        raw += part
        if not part or raw.startswith(_TLS):
            return None
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65_536)
    method, path, _ = first.split(" ")
    return Asked(method, path, headers, body)


def events(*pieces: bytes, **more: Any) -> Reply:
    """An event stream."""
    lines = (("AgenticDriver-Version", "1.0"), ("Content-Type", "text/event-stream"))
    return Reply(pieces, headers=lines, **more)


def json_of(body: bytes, **more: Any) -> Reply:
    """A JSON answer."""
    lines = (("AgenticDriver-Version", "1.0"), ("Content-Type", "application/json"))
    return Reply([body], headers=lines, **more)
