"""What a client does, as generators: they yield the errands that need the world and get the outcome back.

Two drivers run the same flows, one that blocks and one that awaits; nothing here does either.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from runstream_client.errors import ConnectionLost, ProtocolBroken, Unreachable
from runstream_client.strict_json import Unsound, parsed
from runstream_client.wire import BODY_BYTES_MAX, ERROR_BYTES_MAX, GET_S, Exchange, Head, check_version, refusal_of

T = TypeVar("T")


class Opened:
    """An answer whose head came; *handle* belongs to the driver."""

    def __init__(self, head: Head, handle: Any, deadline_s: float | None) -> None:
        self.head = head
        self.handle = handle
        self.deadline_s = deadline_s
        """When all of it must have come, by the driver's clock."""


class Open(NamedTuple):
    """Send a request to a node; the outcome is `Opened`, or `Unreachable` or `ConnectionLost` is raised."""

    node: int
    exchange: Exchange
    silence_s: float | None = None
    """How long the host may say nothing."""


class Read(NamedTuple):
    """Wait for more of an answer; the outcome is bytes, none at its end, or `ConnectionLost` is raised."""

    opened: Opened


class Limit(NamedTuple):
    """Let the rest of an answer take at most this long."""

    opened: Opened
    seconds: float


class Close(NamedTuple):
    """Have done with an answer; one that has not ended takes its connection with it."""

    opened: Opened


class Sleep(NamedTuple):
    """Wait."""

    seconds: float


class Deliver(NamedTuple):
    """Hand something to the caller."""

    item: Any


class Perform(NamedTuple):
    """Call a function of the caller's; the outcome is what it returns, or what it raises."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    aside: Callable[[], "Flow[Any]"] | None = None
    """A flow that the function may run meanwhile: its last argument is a function that does."""


Effect: TypeAlias = Open | Read | Limit | Close | Sleep | Deliver | Perform
Flow: TypeAlias = Generator[Effect, Any, T]


class Nodes:
    """The nodes of a deployment, and the one to ask first: the last that could be reached."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0

    def leave(self, node: int) -> None:
        """Ask the one after *node* from now on."""
        if node == self.current:
            self.current = (node + 1) % self.count


def reached(nodes: Nodes, exchange: Exchange, silence_s: float | None = None) -> Flow[Opened]:
    """Open on the first node that can be reached; what may have been sent is never sent again.

    Raises:
        Unreachable: none can.
    """
    for left in reversed(range(nodes.count)):
        node = nodes.current
        try:
            opened: Opened = yield Open(node, exchange, silence_s)
        except Unreachable:
            nodes.leave(node)
            if not left:
                raise
        else:
            return opened
    raise AssertionError("there is always a node")


def asked(nodes: Nodes, exchange: Exchange, judge: Callable[[Any], T], silence_s: float | None = None) -> Flow[T]:
    """Ask for one JSON answer, and return what *judge* makes of it.

    Raises:
        Refused: the host said no.
        ProtocolBroken: it said what no host may say.
    """
    opened = yield from reached(nodes, exchange, silence_s)
    yield from accepted(opened)
    body = yield from body_of(opened, BODY_BYTES_MAX)
    if len(body) > BODY_BYTES_MAX:
        raise ProtocolBroken("RESPONSE_TOO_LARGE", f"an answer of more than {BODY_BYTES_MAX} bytes")
    yield Close(opened)
    try:
        return judge(parsed(body))
    except Unsound as error:
        raise ProtocolBroken("INVALID_RESPONSE", str(error)) from None


def accepted(opened: Opened) -> Flow[None]:
    """Go on if the host did what it was asked, in the version that was asked (clients §1: status, then version).

    Raises:
        Refused: the host said no.
        ProtocolBroken: it speaks another version.
    """
    if opened.head.accepted:
        check_version(opened.head)
        return
    yield Limit(opened, GET_S)
    try:
        body = yield from body_of(opened, ERROR_BYTES_MAX)
    except ConnectionLost:
        body = b""
    yield Close(opened)
    raise refusal_of(opened.head.status, body)


def body_of(opened: Opened, most: int) -> Flow[bytes]:
    """Read what follows, but little more than *most* bytes."""
    parts: list[bytes] = []
    size = 0
    while size <= most:
        part: bytes = yield Read(opened)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)
