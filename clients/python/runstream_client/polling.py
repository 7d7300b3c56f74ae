"""The events of a job, page after page, until it has ended: whoever reads them never sees a page (jobs §2)."""

from collections.abc import Callable
from typing import TypeVar

from runstream_client import calls
from runstream_client.calls import Call
from runstream_client.errors import ConnectionLost, Refused, Unreachable
from runstream_client.events import RunEvent
from runstream_client.flows import Deliver, Flow, Sleep, asked
from runstream_client.records import JobPage
from runstream_client.streaming import Line

T = TypeVar("T")


class JobEvents:
    """The events of a job after a number, as they come."""

    def __init__(self, line: Line, job_id: str, after: int) -> None:
        self.last: RunEvent | None = None
        self.after = after
        """The number of the last event that came."""
        self._line = line
        self._job_id = job_id

    @property
    def run_id(self) -> str | None:
        """The run's id, once it is known."""
        return self.last.run_id if self.last else None

    @property
    def cursor(self) -> str:
        """The number of the last event that came, as a text."""
        return str(self.after)

    def flow(self) -> Flow[None]:
        """Deliver the events to the last one; looks that bring nothing grow rarer.

        Raises:
            Refused: the host said no.
            ProtocolBroken: a page is no page of this job.
        """
        looks = 0
        while True:
            page: JobPage = yield from patiently(self._line, self._page)
            for event in page.events:
                self.last, self.after = event, event.sequence
                yield Deliver(event)
            if page.job.ended and not page.has_more:
                return
            looks = 0 if page.events else looks + 1
            if not page.has_more:
                yield Sleep(self._line.patience.idle_s(max(looks, 1), self._line.chance()))

    def _page(self) -> Call[JobPage]:
        return calls.job_events(self._job_id, self.after, None)


def patiently(line: Line, call: Callable[[], Call[T]]) -> Flow[T]:
    """Ask what may be asked again, since it changes nothing, until there is an answer or patience is at its end."""
    for left in reversed(range(line.patience.attempts + 1)):
        node = line.nodes.current
        try:
            exchange, judge = call()
            return (yield from asked(line.nodes, exchange, judge, line.patience.silence_s))
        except (ConnectionLost, Unreachable, Refused) as error:
            if not left or (isinstance(error, Refused) and not error.retryable):
                raise
        line.nodes.leave(node)
        yield Sleep(line.patience.pause_s(line.patience.attempts + 1 - left, line.chance()))
    raise AssertionError("there is always an attempt")
