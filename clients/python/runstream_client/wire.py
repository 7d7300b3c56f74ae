"""What goes over the wire and back: addresses, requests, and what the head of an answer says (clients §1).

Nothing here waits; a driver sends an `Exchange` and brings the head of its answer.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from msgspec import UNSET

from runstream_client.errors import Misuse, ProtocolBroken, Refused
from runstream_client.results import Envelope
from runstream_client.shapes import shaped
from runstream_client.strict_json import Unsound, encoded, parsed

VERSION = "1.0"
GET_S = 10.0
"""All that a GET may take."""
BODY_BYTES_MAX = 2_000_000
ERROR_BYTES_MAX = 64_000
TOKEN_CHARACTERS_MAX = 4_096
CURSOR_CHARACTERS_MAX = 1_000
NODES_MAX = 64
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
JSON, EVENTS = "application/json", "text/event-stream"
_TOO_MANY_REQUESTS = 429
_SERVER_FAILED = 500

Token: TypeAlias = str | Callable[[], str]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class Exchange(NamedTuple):
    """One request, whichever node it goes to; a POST exactly if there is a body."""

    path: str
    """Below the base address, without a leading slash."""
    body: bytes | None = None
    accept: str = JSON
    within_s: float | None = None
    """All that the answer may take."""
    last_event_id: str = ""


class Head(NamedTuple):
    """The head of an answer; header lines may repeat."""

    status: int
    headers: Headers

    def values(self, name: bytes) -> list[bytes]:
        """What each header line of this name says."""
        return [value.strip() for found, value in self.headers if found.lower() == name.lower()]

    @property
    def accepted(self) -> bool:
        """Whether the host did what it was asked."""
        return 200 <= self.status < 300  # noqa: PLR2004 - the class of statuses that HTTP calls successful


def got(path: str) -> Exchange:
    """A GET of *path*."""
    return Exchange(path, within_s=GET_S)


def posted(path: str, document: Any, *, accept: str = JSON) -> Exchange:
    """A POST of *document*.

    Raises:
        Misuse: it is no JSON.
    """
    try:
        return Exchange(path, encoded(document), accept)
    except (ValueError, TypeError, RecursionError) as error:
        raise Misuse("INVALID_REQUEST", f"the request is not JSON: {error}") from None


def events_path(run_id: str) -> str:
    """Where the events of a run are (extensions §1), whatever its id is made of."""
    return f"v1/runs/{quote(run_id, safe='')}/events"


def base_of(url: str) -> str:
    """*url* with a slash at its end, so that paths can be put after it.

    Raises:
        Misuse: `INSECURE_TRANSPORT` for what is neither https nor http on this machine, or hides more than an address.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _insecure("is no address") from None
    if re.search(r"[\x00-\x20\x7f]", url) or not url.isascii() or parts.scheme not in {"http", "https"}:
        raise _insecure("is no address of a host")
    if not parts.hostname or port == 0 or "@" in parts.netloc or "?" in url or "#" in url:
        raise _insecure("may hold a host, a port and a path, and nothing else")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise _insecure("would show the token to everyone on the way: use https")
    return parts.scheme + url[len(parts.scheme) :].rstrip("/") + "/"


def bases_of(urls: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of the nodes of one deployment.

    Raises:
        Misuse: one of them is none, or there is none, or there are too many.
    """
    bases = tuple(base_of(url) for url in ([urls] if isinstance(urls, str) else urls))
    if not 1 <= len(bases) <= NODES_MAX:
        raise Misuse("INVALID_REQUEST", f"a client speaks to 1 to {NODES_MAX} nodes")
    return bases


def _insecure(why: str) -> Misuse:
    return Misuse("INSECURE_TRANSPORT", f"the address of a host {why}")


def header_lines(exchange: Exchange, token: Token) -> list[tuple[bytes, bytes]]:
    """The header lines of a request.

    Raises:
        Misuse: there is no token that a header can carry.
    """
    lines = [
        ("Authorization", f"Bearer {checked_token(token)}"),
        ("AgenticDriver-Version", VERSION),
        ("AgenticDriver-Accept-Optional-Events", "true"),
        ("Accept", exchange.accept),
        ("Accept-Encoding", "identity"),
    ]
    if exchange.body is not None:
        lines += [("Content-Type", JSON), ("Content-Length", str(len(exchange.body)))]
    if exchange.last_event_id:
        lines.append(("Last-Event-ID", exchange.last_event_id))
    return [(name.encode(), value.encode()) for name, value in lines]


def checked_token(token: Token) -> str:
    """The token to send now.

    Raises:
        Misuse: `AUTH_UNAVAILABLE` where whoever should bring it failed, `AUTH_REQUIRED` for what no header can carry.
    """
    if callable(token):
        try:
            token = token()
        except Exception as error:
            raise Misuse("AUTH_UNAVAILABLE", "no token could be had") from error
    if not _can_be_carried(token):
        raise Misuse("AUTH_REQUIRED", "a token is printable ASCII without spaces")
    return token


def _can_be_carried(token: object) -> bool:
    """Whether it is a token at all: an environment that lacks a variable brings something else."""
    return isinstance(token, str) and len(token) <= TOKEN_CHARACTERS_MAX and bool(re.fullmatch(r"[!-~]+", token))


def checked_cursor(cursor: str) -> str:
    """*cursor*, if a host may have told it.

    Raises:
        Misuse: `INVALID_CURSOR` for what no header can carry.
    """
    if len(cursor) > CURSOR_CHARACTERS_MAX or re.fullmatch(r"[!-~]*", cursor) is None:
        raise Misuse("INVALID_CURSOR", "a cursor is printable ASCII without spaces, and not long")
    return cursor


def check_version(head: Head) -> None:
    """Nothing, if the host speaks this version, or does not say.

    Raises:
        ProtocolBroken: `UNSUPPORTED_PROTOCOL_VERSION`.
    """
    said = head.values(b"AgenticDriver-Version")
    if said not in ([], [VERSION.encode()]):
        raise ProtocolBroken("UNSUPPORTED_PROTOCOL_VERSION", b", ".join(said).decode("latin-1"))


def check_media(head: Head) -> None:
    """Nothing, if what follows is an event stream.

    Raises:
        ProtocolBroken: `INVALID_RESPONSE`.
    """
    said = head.values(b"Content-Type")
    media = said[0].partition(b";")[0].strip().lower().decode("latin-1") if said else ""
    if media != EVENTS:
        raise ProtocolBroken("INVALID_RESPONSE", f"{media or 'something'} in place of an event stream")


def refusal_of(status: int, body: bytes) -> Refused:
    """The error that a host told in *body*, or one made of the status where it told none."""
    try:
        if len(body) > ERROR_BYTES_MAX:
            raise Unsound("too long")
        value = parsed(body)
        error = shaped(Envelope, value).error
    except Unsound:
        retryable = status == _TOO_MANY_REQUESTS or status >= _SERVER_FAILED
        return Refused("HTTP_ERROR", f"status {status}", status=status, retryable=retryable)
    return Refused(
        error.code,
        error.message,
        status=status,
        retryable=error.retryable,
        outcome=None if error.outcome is UNSET else error.outcome,
        members=value["error"],
    )
