"""What both clients share: which flow stands for which call. `Client` and `AsyncClient` only say it aloud."""

import random
import ssl
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from runstream_client import streaming
from runstream_client.calls import Call
from runstream_client.events import RunEvent
from runstream_client.flows import Flow, Nodes, asked
from runstream_client.hands import Hands, Work
from runstream_client.patience import Chance, Patience
from runstream_client.polling import JobEvents
from runstream_client.requests import RunRequest
from runstream_client.streaming import Line
from runstream_client.transport import tls_of
from runstream_client.wire import Token, bases_of, checked_cursor, checked_token

T = TypeVar("T")


class Source(Protocol):
    """Where a stream's events come from."""

    @property
    def last(self) -> RunEvent | None: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def cursor(self) -> str: ...


class Reading(NamedTuple):
    """A flow that delivers events, and what it knows meanwhile."""

    source: Source
    flow: Flow[None]


class Options(NamedTuple):
    """Where a client sends its calls, and how."""

    bases: tuple[str, ...]
    token: Token
    tls: ssl.SSLContext | None
    patience: Patience
    silence_s: float | None
    chance: Chance


def options_of(
    urls: str | Sequence[str],
    token: Token,
    tls: ssl.SSLContext | None,
    patience: Patience,
    silence_s: float | None,
) -> Options:
    """The options of a client.

    Raises:
        Misuse: an address or the token cannot be used.
    """
    if not callable(token):
        checked_token(token)
    bases = bases_of(urls)
    return Options(bases, token, tls_of(tls, bases), patience, silence_s, random.random)


class Core:
    """The flows of one client."""

    def __init__(self, options: Options) -> None:
        self._line = Line(Nodes(len(options.bases)), options.patience, options.chance, options.silence_s)

    def asked(self, call: Call[T]) -> Flow[T]:
        """The flow of one call."""
        return asked(self._line.nodes, call.exchange, call.judge, self._line.silence_s)

    def stream(self, request: RunRequest) -> Reading:
        """A run, read as it happens."""
        stream = streaming.begun(self._line, request)
        return Reading(stream, stream.flow())

    def work(self, request: RunRequest, hands: Hands) -> Reading:
        """A run that is read and worked for; without `resume` nothing of that is sent twice."""
        request = hands.checked().request(request)
        once = self._line._replace(patience=replace(self._line.patience, attempts=0))
        work = Work(self._line if request.get("resume") else once, hands)
        stream = streaming.begun(self._line._replace(hook=work.after), request)
        return Reading(stream, stream.flow())

    def follow(self, run_id: str, cursor: str, hands: Hands | None) -> Reading:
        """A run that somebody began, read from *cursor* on."""
        checked_cursor(cursor)
        if hands is None:
            stream = streaming.followed(self._line, run_id, cursor)
            return Reading(stream, stream.flow())
        work = Work(self._line, hands.checked())
        stream = streaming.followed(self._line._replace(hook=work.after), run_id, cursor)
        return Reading(stream, _one_after_the_other(work.caught_up(run_id, cursor), stream.flow()))

    def job_events(self, job_id: str, after: int) -> Reading:
        """The events of a job, page after page."""
        events = JobEvents(self._line, job_id, after)
        return Reading(events, events.flow())


def _one_after_the_other(first: Flow[None], second: Flow[None]) -> Flow[None]:
    yield from first
    yield from second
