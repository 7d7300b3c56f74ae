"""Streams of a run: begun with a POST, and where the request has `resume` continued on any node (extensions §1).

A stream that goes on knows its cursor, so nothing comes twice and nothing is missing; what does is a broken rule.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from runstream_client.asked import Asked
from runstream_client.errors import ClientError, ConnectionLost, ProtocolBroken, Refused, Unreachable
from runstream_client.events import RunEvent
from runstream_client.flows import Close, Deliver, Flow, Nodes, Opened, Read, Sleep, accepted, reached
from runstream_client.patience import Chance, Patience
from runstream_client.reading import RunReader
from runstream_client.wire import EVENTS, Exchange, check_media, events_path, posted

Hook: TypeAlias = Callable[[RunEvent], Flow[None]]
"""What happens after each event was delivered."""
_NO_CONTENT = 204


class _Unanswered(Exception):
    """What an event asked for could not be done."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(str(error))
        self.error = error


class Line(NamedTuple):
    """What a stream needs of its client."""

    nodes: Nodes
    patience: Patience
    chance: Chance
    silence_s: float | None = None
    hook: Hook | None = None


class Stream:
    """One run as its client reads it, over one connection after another."""

    def __init__(self, line: Line, reader: RunReader, request: Mapping[str, Any] | None) -> None:
        self.reader = reader
        self._line = line
        self._request = request
        self._resumes = request is None or bool(request.get("resume"))
        self._keyed = request is not None and bool(request.get("idempotencyKey"))
        self._lost = False
        self._over = False

    @property
    def last(self) -> RunEvent | None:
        """The last event that came."""
        return self.reader.last

    @property
    def run_id(self) -> str | None:
        """The run's id, once it is known."""
        return self.reader.rules.run_id

    @property
    def cursor(self) -> str:
        """What to ask for what follows with."""
        return self.reader.cursor

    def flow(self) -> Flow[None]:
        """Deliver the events to the last one.

        Raises:
            Refused: the host said no.
            ProtocolBroken: it sent what no host may send.
            ConnectionLost, Unreachable: the stream was cut, and cannot be continued, or not any more.
        """
        failures = 0
        while not (self.reader.ended or self._over):
            before, node = self.reader.cursor, self._line.nodes.current
            try:
                yield from self._connection()
            except (ConnectionLost, Unreachable, Refused) as error:
                failures = 1 if self.reader.cursor != before else failures + 1
                if not self._goes_on(error) or failures > self._line.patience.attempts:
                    raise
                self._lost = True
                self._line.nodes.leave(node)
                if not self._follows(error):
                    yield Sleep(self._line.patience.pause_s(failures, self._line.chance(), self.reader.retry_ms))
            except _Unanswered as unanswered:
                raise unanswered.error from None

    def _connection(self) -> Flow[None]:
        """Deliver what one connection brings."""
        line = self._line
        self.reader.begin()
        silence_s = line.patience.silence_s if self._resumes else line.silence_s
        opened = yield from reached(line.nodes, self._exchange(), silence_s)
        yield from accepted(opened)
        self._over = self._follows_a_run and opened.head.status == _NO_CONTENT
        if self._over:
            self._check_over()
        else:
            check_media(opened.head)
            yield from self._delivered(opened)
        yield Close(opened)

    def _check_over(self) -> None:
        """Nothing, if what was seen last, before this stream began, may have been the end (extensions §1)."""
        if self._request is not None or self.reader.last is not None or not self.reader.rules.sequence:
            raise ProtocolBroken("INVALID_STREAM", "the run is said to be over, and its end never came")

    def _delivered(self, opened: Opened) -> Flow[None]:
        while not self.reader.ended:
            data = yield from _more(opened)
            for event in self.reader.feed(data):
                if event.ends:
                    yield Close(opened)
                yield Deliver(event)
                yield from self._answered(event)

    def _answered(self, event: RunEvent) -> Flow[None]:
        """Do what the event asks for; where that fails, the stream is not to blame, and to go on reading is no cure."""
        if self._line.hook is None:
            return
        try:
            yield from self._line.hook(event)
        except ClientError as error:
            raise _Unanswered(error) from error

    def _exchange(self) -> Exchange:
        if self._follows_a_run:
            return Exchange(events_path(str(self.run_id)), accept=EVENTS, last_event_id=self.reader.cursor)
        return posted("v1/runs", self._request, accept=EVENTS)

    @property
    def _follows_a_run(self) -> bool:
        """Whether what follows is asked for, and not the run itself."""
        return self._resumes and self.run_id is not None

    def _goes_on(self, error: ClientError) -> bool:
        """Whether the run can be asked about again without doing anything twice."""
        if not self._resumes:
            return False
        known = self.run_id is not None
        if isinstance(error, Refused):
            return self._follows(error) or (error.retryable and (known or self._lost))
        return known or self._keyed or isinstance(error, Unreachable)

    def _follows(self, error: ClientError) -> bool:
        """Whether the host told which run has the key: then that run is followed, from its first event.

        One that others began may have handed out tickets already, so whoever executes them does not join it.
        """
        if not isinstance(error, Refused) or error.code != "OPERATION_IN_PROGRESS" or self.run_id is not None:
            return False
        run_id = error.members.get("runId")
        if isinstance(run_id, str) and run_id and (self._lost or self._line.hook is None):
            self.reader.rules.run_id = run_id
            return True
        return False


def _more(opened: Opened) -> Flow[bytes]:
    """Read on; a stream that ends before its run did is incomplete, however it ended (clients §2)."""
    try:
        data: bytes = yield Read(opened)
    except ConnectionLost as error:
        raise ConnectionLost("INCOMPLETE_STREAM", error.message) from error
    if not data:
        raise ConnectionLost("INCOMPLETE_STREAM", "the stream ended before the run did")
    return data


def begun(line: Line, request: Mapping[str, Any]) -> Stream:
    """The stream of a run that *request* begins."""
    return Stream(line, RunReader(Asked(request)), request)


def followed(line: Line, run_id: str, cursor: str) -> Stream:
    """The stream of a run that somebody began, after *cursor*."""
    return Stream(line, RunReader(Asked(None), run_id=run_id, cursor=cursor), None)
