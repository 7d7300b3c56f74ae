"""Reads one run: frames come in, events that a client may believe go out (clients §3).

Nothing here waits. A reader goes on over several connections: it remembers what came, and takes neither a gap nor a repeat.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET

from runstream_client.asked import Asked, check_result, needed, same
from runstream_client.errors import ClientError, ProtocolBroken, RunError
from runstream_client.events import (
    KINDS,
    RAW,
    ApprovalRequested,
    ApprovalResolved,
    EventHead,
    ExecutionRequested,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
)
from runstream_client.results import RunResult
from runstream_client.shapes import shaped
from runstream_client.sse import Frame, FrameReader
from runstream_client.strict_json import Unsound, parsed

TICKETS_MAX = 2_048


class Unsupported(Exception):
    """An event that may not be skipped, and that the client did not ask for or does not know."""


class EventRules:
    """The rules of one run's events, seen so far up to *sequence*."""

    def __init__(self, asked: Asked, *, run_id: str | None = None, sequence: int = 0) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self._asked = asked
        self._tickets: set[str] = set()
        self._calls: set[str] = set()

    def accept(self, value: Any) -> RunEvent | None:
        """*value* as the next event, or `None` for one that is advisory and unknown.

        Raises:
            Unsound: no host may send it.
            Unsupported: it was not negotiated.
        """
        head = shaped(EventHead, value)
        self._check_head(head)
        if head.type not in KINDS:
            if head.optional is True:
                return None
            raise Unsupported(head.type)
        self._check_negotiated(head.type)
        event = shaped(KINDS[head.type], {**value, RAW: value})
        self._check(event)
        return event

    def _check_head(self, head: EventHead) -> None:
        same(head.sequence, self.sequence + 1, f"sequence than {self.sequence + 1}")
        needed(self.run_id in {None, head.run_id}, "an event of another run")
        needed((head.type == "run.started") == (head.sequence == 1), "run.started comes first, and once")
        self.run_id, self.sequence = head.run_id, head.sequence

    def _check_negotiated(self, kind: str) -> None:
        if kind.startswith("approval.") and not self._asked.approvals:
            raise Unsupported(kind)
        if kind == "tool.execution.requested" and not self._asked.application_tools:
            raise Unsupported(kind)

    def _check(self, event: RunEvent) -> None:
        request = self._asked.request
        match event:
            case RunStarted() if request is not None:
                same(event.provider, request["provider"], "provider")
                same(event.model, request["model"], "model")
            case ApprovalRequested(approval=approval):
                same(approval.run_id, self.run_id, "run of an approval")
                if request is not None:
                    same(approval.idle_policy, request["approvals"].get("idlePolicy"), "idle policy")
            case ApprovalResolved(resolution=resolution):
                same(resolution.run_id, self.run_id, "run of a decision")
            case ExecutionRequested():
                self._check_ticket(event)
            case RunCompleted(result=result):
                same(result.run_id, self.run_id, "run of a result")
                check_result(self._asked, result)
            case _:
                pass

    def _check_ticket(self, event: ExecutionRequested) -> None:
        ticket = event.execution
        same(ticket.run_id, self.run_id, "run of a ticket")
        needed(self._asked.offers(ticket.call.name), "a ticket for a tool that was not offered")
        needed(ticket.execution_id not in self._tickets, "a ticket that came twice")
        needed(ticket.call.id not in self._calls, "two tickets for one call")
        needed(len(self._tickets) < TICKETS_MAX, "more tickets than a run may have")
        self._tickets.add(ticket.execution_id)
        self._calls.add(ticket.call.id)


class RunReader:
    """Reads the events of one run out of the streams that tell of it, one after another."""

    def __init__(self, asked: Asked, *, run_id: str | None = None, cursor: str = "") -> None:
        self.rules = EventRules(asked, run_id=run_id, sequence=number_of(cursor))
        self.last: RunEvent | None = None
        self.cursor = cursor
        """What to ask for what follows with: the number of the last event, with its digest where one was told."""
        self._frames = FrameReader()

    @property
    def ended(self) -> bool:
        """Whether the run's last event came."""
        return self.last is not None and self.last.ends

    @property
    def retry_ms(self) -> int | None:
        """After how long the host wants to be asked again, if it said so on this connection."""
        return self._frames.retry_ms

    def begin(self) -> None:
        """Take what comes from now on as another connection's; an unfinished frame is forgotten."""
        self._frames = FrameReader()

    def feed(self, data: bytes) -> Iterator[RunEvent]:
        """The events that *data* completes, up to the last one of the run; what follows that is not examined.

        Raises:
            ProtocolBroken: the host broke a rule.
        """
        for frame in self._frames.feed(data):
            event = self._accepted(frame)
            self.cursor = _cursor_of(frame, self.rules.sequence)
            if event is not None:
                self.last = event
                yield event
            if self.ended:
                return

    def _accepted(self, frame: Frame) -> RunEvent | None:
        return _told("INVALID_STREAM", lambda: self.rules.accept(parsed(frame.data)))


def _told(code: str, accept: Callable[[], RunEvent | None]) -> RunEvent | None:
    try:
        return accept()
    except Unsound as error:
        raise ProtocolBroken(code, str(error)) from None
    except Unsupported as error:
        raise ProtocolBroken("UNSUPPORTED_EVENT", str(error)) from None


def number_of(cursor: str) -> int:
    """The number of the event that *cursor* stands after."""
    number = cursor.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _cursor_of(frame: Frame, sequence: int) -> str:
    """The cursor after *frame*: its own id where that names this event, else the number."""
    dated = frame.id is not None and frame.id.partition(".")[0] == str(sequence) and frame.id.isprintable()
    return frame.id if dated and frame.id is not None and frame.id.isascii() else str(sequence)


def result_of(last: RunEvent | None) -> RunResult:
    """What a run came to whose last event is *last*.

    Raises:
        RunError: it ended without a result.
    """
    match last:
        case RunCompleted(result=result):
            return result
        case RunFailed(error=error) | RunCancelled(error=error):
            raise RunError(
                error.code,
                error.message,
                run_id=last.run_id,
                cancelled=isinstance(last, RunCancelled),
                retryable=error.retryable,
                outcome=None if error.outcome is UNSET else error.outcome,
            )
        case _:
            raise ClientError("INCOMPLETE_STREAM", "the last event of the run did not come")
