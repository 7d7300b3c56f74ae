"""What both drivers tell httpcore, and what they make of its errors.

httpcore follows no redirect, decodes nothing, keeps no cookie, reads no environment and repeats no request.
"""

import ssl
from typing import Any
from urllib.parse import urlsplit

import httpcore

from runstream_client.errors import ClientError, ConnectionLost, Misuse, Unreachable
from runstream_client.flows import Open
from runstream_client.wire import Head, Token, header_lines

CONNECT_S = 8.0
"""Less than all that a GET may take, so that a host that cannot be reached is told from one that is slow."""
WRITE_S = 30.0
CONNECTIONS_MAX = 1_000
IDLE_CONNECTIONS_MAX = 10
IDLE_S = 2.0
"""How long a connection may wait for its next request: less than the 5 s after which hosts close it."""
_NOTHING_SENT = (
    httpcore.ConnectError,
    httpcore.ConnectTimeout,
    httpcore.PoolTimeout,
    httpcore.UnsupportedProtocol,
    httpcore.ProxyError,
)
FAILURES = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, *_NOTHING_SENT, OSError)
"""What a driver turns into an error of this package; a timeout of its own is an `OSError` too."""


def tls_of(tls: ssl.SSLContext | None, bases: tuple[str, ...]) -> ssl.SSLContext | None:
    """The context for https: *tls*, which may trust an authority of its own, or the system's; none where none is needed.

    Raises:
        Misuse: it would let anybody pass for the host.
    """
    if tls is None:
        return ssl.create_default_context() if any(base.startswith("https:") for base in bases) else None
    if tls.verify_mode is not ssl.CERT_REQUIRED or not tls.check_hostname:
        raise Misuse("INSECURE_TRANSPORT", "certificates and names of hosts are always verified")
    return tls


def pool_options(tls: ssl.SSLContext | None) -> dict[str, Any]:
    """How either pool of connections is made."""
    return {
        "ssl_context": tls,
        "max_connections": CONNECTIONS_MAX,
        "max_keepalive_connections": IDLE_CONNECTIONS_MAX,
        "keepalive_expiry": IDLE_S,
        "retries": 0,
    }


def request_of(bases: tuple[str, ...], token: Token, effect: Open) -> httpcore.Request:
    """The request that *effect* asks for."""
    exchange = effect.exchange
    url = bases[effect.node] + exchange.path
    host = (b"Host", urlsplit(url).netloc.encode())
    timeouts = {"connect": CONNECT_S, "read": effect.silence_s, "write": WRITE_S, "pool": CONNECT_S}
    return httpcore.Request(
        "GET" if exchange.body is None else "POST",
        url,
        headers=[host, *header_lines(exchange, token)],
        content=exchange.body,
        extensions={"timeout": timeouts},
    )


def head_of(response: httpcore.Response) -> Head:
    """The head of an answer, repeated lines and all."""
    return Head(response.status, response.headers)


def lost_by(error: Exception, effect: object, bases: tuple[str, ...]) -> ClientError:
    """What *error* means for whoever asked for *effect*."""
    why = _why(error)
    if isinstance(effect, Open) and isinstance(error, _NOTHING_SENT):
        return Unreachable("UNREACHABLE", f"{bases[effect.node]} does not answer: {why}")
    return ConnectionLost("CONNECTION_LOST", why)


def _why(error: Exception) -> str:
    """What *error* says, or the first of those behind it that says something."""
    found: BaseException | None = error
    while found is not None and not str(found):
        found = found.__cause__ or found.__context__
    return str(found) if found is not None else type(error).__name__
