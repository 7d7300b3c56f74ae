"""A run's log as AgenticDriver events, to the byte.

An item is the event's JSON with a hole where its number goes, at a fixed distance from the end:
encoded once, numbered by the store, renumbered for a replay without decoding.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from actors import events
from actors.errors import Problem
from actors.events import Usage, timestamp
from projections import session_view
from projections.session_view import SessionInfo

FRAME_BYTES_MAX = 2_000_000
"""What a client reads of one frame, its `id:` and `event:` lines included (clients §2)."""
JOB_EVENT_BYTES_MAX = 1_500_000
"""What a page of a job's events may hold (jobs §2)."""
FRAME_OVERHEAD_BYTES = 128
"""Room for number, `id:`, `event:` and `data:`."""
DELTA_CHARS_MAX = 65_536

_encode = msgspec.json.Encoder().encode
_TYPE_AT = len(b'{"type":"')
_SUFFIX_BYTES = len(b',"timestamp":"2026-01-05T10:00:00.000Z"}')
_TERMINAL = (b"run.completed", b"run.failed", b"run.cancelled")
_NOT_REPLAYED = frozenset(
    {b"text.delta", b"run.progress", b"approval.requested", b"approval.resolved", b"tool.execution.requested"}
)
_UNCERTAIN = Problem("OPERATION_UNCERTAIN", "The outcome of this operation is not known.", outcome="uncertain")


class Result(Struct, frozen=True, rename="camel"):
    """RunResult (runs §7); members that are not set are left out."""

    run_id: str
    provider: str
    model: str
    text: str
    usage: Usage
    steps: int
    finish_reason: Literal["stop", "length"]
    output: Raw | UnsetType = UNSET
    sources: Raw | UnsetType = UNSET
    artifacts: Raw | UnsetType = UNSET
    session: SessionInfo | UnsetType = UNSET


class Feed(NamedTuple):
    """What the projection remembers of a run."""

    run_id: str
    provider: str = ""
    model: str = ""
    call: events.ToolCall | None = None
    """The last call that came up."""
    job: bool = False
    started: bool = False
    """Of a job: whether it was taken up, and `run.started` stands in the feed."""
    session: events.SessionTurn | None = None
    by_hand: bool = False
    """Of a Host run: its reviews are the Host's alone, and job pages show it."""


def start(run_id: str) -> Feed:
    """The projection of *run_id* before its first event."""
    return Feed(run_id)


def thaw(frozen: bytes) -> Feed:
    """The projection whose JSON is *frozen*."""
    return msgspec.json.decode(frozen, type=Feed)


def fold(feed: Feed, event: events.RunEvent) -> Feed:
    """The projection after *event*."""
    match event:
        case events.RunAccepted(provider=provider, model=model, origin=origin, session=turn, host=host):
            job, by_hand = origin == "job", host is not None
            return feed._replace(provider=provider, model=model, job=job, session=turn, by_hand=by_hand)
        case events.RunStarted():
            return feed._replace(started=True)
        case events.ToolCalled(call=call):
            return feed._replace(call=call)
        case _:
            return feed


def items(feed: Feed, event: events.RunEvent) -> Sequence[bytes]:
    """The items that *event* adds; *feed* is the projection after it."""
    match event:
        case events.RunAccepted(at_ms=at_ms):
            return () if feed.job else (_started(feed, at_ms),)
        case events.RunStarted(at_ms=at_ms):
            return (_started(feed, at_ms),) if feed.job else ()
        case events.StepStarted():
            return (item(feed.run_id, "step.started", {"step": event.step}, event.at_ms),)
        case events.TurnCompleted():
            return tuple(_turn(feed.run_id, event))
        case events.RunCompleted():
            return (item(feed.run_id, "run.completed", {"result": _result(feed, event)}, event.at_ms),)
        case events.RunFailed(problem=problem):
            return _end(feed, "run.failed", problem, event.at_ms)
        case events.RunCancelled(problem=problem):
            return _end(feed, "run.cancelled", problem, event.at_ms)
        case events.ToolCalled(call=call):
            return (item(feed.run_id, "tool.called", {"call": call}, event.at_ms),)
        case events.ReviewAsked() | events.ReviewSettled():
            return () if feed.by_hand else (_reviewed(feed, event),)
        case events.TicketOffered(execution_id=execution_id):
            offered = {"executionId": execution_id, "runId": feed.run_id, "call": feed.call}
            return (item(feed.run_id, "tool.execution.requested", {"execution": offered}, event.at_ms),)
        case events.ToolProgressed(shown=shown):
            return (progress(feed.run_id, "tool", event.at_ms),) if shown else ()
        case events.ToolCompleted():
            completed: dict[str, Any] = {"callId": event.call_id, "output": event.output}
            return (item(feed.run_id, "tool.completed", completed, event.at_ms),)
        case (
            events.RunClaimed()
            | events.RunHandedOver()
            | events.RunErased()
            | events.KeyReserved()
            | events.KeyBurned()
            | events.ReviewSettling()
            | events.RunResumed()
            | events.CallCleared()
            | events.ToolStarted()
        ):
            return ()


def replayed(run_id: str, log: Iterable[events.RunEvent]) -> list[bytes]:
    """The recovery stream of a keyed run (idempotency §5): no deltas, no progress, a loss told as uncertain."""
    feed = start(run_id)
    kept: list[bytes] = []
    for event in log:
        told = _as_replayed(event)
        feed = fold(feed, told)
        kept.extend(one for one in items(feed, told) if event_type(one) not in _NOT_REPLAYED)
    return kept


def resolved(run_id: str, call_id: str, settled: events.ReviewSettled) -> dict[str, str]:
    """The resolution object, the same in the event and in the receipt (approvals §3)."""
    return {
        "approvalId": settled.approval_id,
        "runId": run_id,
        "callId": call_id,
        "outcome": settled.outcome,
        "decidedAt": timestamp(settled.at_ms),
    }


def deltas(run_id: str, text: str, at_ms: int) -> Iterator[bytes]:
    """Return *text* as `text.delta` items, each small enough for any client."""
    for begin in range(0, len(text), DELTA_CHARS_MAX):
        piece = text[begin : begin + DELTA_CHARS_MAX]
        yield _sealed(b'{"type":"text.delta","text":' + _encode(piece), run_id, at_ms)


def progress(run_id: str, phase: Literal["model", "tool", "context"], at_ms: int) -> bytes:
    """A `run.progress` item."""
    return item(run_id, "run.progress", {"phase": phase}, at_ms)


def item(run_id: str, kind: str, payload: dict[str, Any], at_ms: int) -> bytes:
    """One item of type *kind* with its hole; *payload* holds the members beside the envelope."""
    return _sealed(_encode({"type": kind} | payload)[:-1], run_id, at_ms)


def numbered(number: int, data: bytes) -> bytes:
    """The event's JSON with *number* in the hole."""
    return b"%b%d%b" % (data[:-_SUFFIX_BYTES], number, data[-_SUFFIX_BYTES:])


def frame(number: int, data: bytes) -> bytes:
    """The SSE frame of one item (runs §2)."""
    return b"id: %d\nevent: %b\ndata: %b%d%b\n\n" % (
        number,
        data[_TYPE_AT : data.index(b'"', _TYPE_AT)],
        data[:-_SUFFIX_BYTES],
        number,
        data[-_SUFFIX_BYTES:],
    )


def event_type(data: bytes) -> bytes:
    """The event's type."""
    return data[_TYPE_AT : data.index(b'"', _TYPE_AT)]


def without_session(data: bytes) -> bytes:
    """The item of a session's turn without `result.session`, which no page of a job may have (jobs §9).

    It is the last member of the result, so the last that is written like it is the one.
    """
    if event_type(data) != b"run.completed" or (at := data.rfind(b',"session":{"id":"')) < 0:
        return data
    return data[:at] + data[data.index(b"}", at) + 1 :]


def is_terminal(data: bytes) -> bool:
    """Whether nothing may follow this item."""
    return event_type(data) in _TERMINAL


def too_large(feed: Feed, data: bytes) -> bool:
    """Whether a client would reject the item's frame, or the page that it stands in."""
    return len(data) + FRAME_OVERHEAD_BYTES > (JOB_EVENT_BYTES_MAX if feed.job or feed.by_hand else FRAME_BYTES_MAX)


def _started(feed: Feed, at_ms: int) -> bytes:
    return item(feed.run_id, "run.started", {"provider": feed.provider, "model": feed.model}, at_ms)


def _end(feed: Feed, kind: str, problem: Problem, at_ms: int) -> Sequence[bytes]:
    """The end, and before it the beginning of a job that was never taken up (DESIGN §5)."""
    end = item(feed.run_id, kind, {"error": problem}, at_ms)
    return (_started(feed, at_ms), end) if feed.job and not feed.started else (end,)


def _reviewed(feed: Feed, event: events.ReviewAsked | events.ReviewSettled) -> bytes:
    if isinstance(event, events.ReviewAsked):
        return item(feed.run_id, "approval.requested", {"approval": _asked(feed, event)}, event.at_ms)
    resolution = resolved(feed.run_id, feed.call.id if feed.call else "", event)
    return item(feed.run_id, "approval.resolved", {"resolution": resolution}, event.at_ms)


def _asked(feed: Feed, asked: events.ReviewAsked) -> dict[str, Any]:
    approval = {
        "approvalId": asked.approval_id,
        "runId": feed.run_id,
        "call": feed.call,
        "requestedAt": timestamp(asked.at_ms),
        "idlePolicy": asked.idle_policy,
    }
    return approval if asked.expires_ms is None else approval | {"expiresAt": timestamp(asked.expires_ms)}


def _turn(run_id: str, turn: events.TurnCompleted) -> Iterator[bytes]:
    if turn.usage is not None:
        yield item(run_id, "usage.reported", {"step": turn.step, "usage": turn.usage}, turn.at_ms)
    if not turn.streamed:
        yield from deltas(run_id, turn.text, turn.at_ms)


def _result(feed: Feed, event: events.RunCompleted) -> Result:
    return Result(
        run_id=feed.run_id,
        provider=feed.provider,
        model=feed.model,
        text=event.text,
        usage=event.usage,
        steps=event.steps,
        finish_reason=event.finish_reason,
        output=event.output,
        sources=event.sources,
        artifacts=event.artifacts,
        session=UNSET
        if feed.session is None
        else session_view.committed(feed.session, feed.provider, feed.model, event.at_ms),
    )


def _as_replayed(event: events.RunEvent) -> events.RunEvent:
    match event:
        case (
            events.RunFailed(cause="client" | "node" | "overflow" | "history")
            | events.RunCancelled(cause="client" | "node" | "overflow")
        ):
            return events.RunFailed(event.at_ms, _UNCERTAIN, event.cause)
        case _:
            return event


def _sealed(head: bytes, run_id: str, at_ms: int) -> bytes:
    data = b'%b,"runId":"%b","sequence":,"timestamp":"%b"}' % (head, run_id.encode(), timestamp(at_ms).encode())
    return _one_line(data)


def _one_line(data: bytes) -> bytes:
    """Escape what some stream readers take for a line end: U+0085, U+2028, U+2029 (JSON leaves them as they are)."""
    if b"\xe2\x80" in data:
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    if b"\xc2\x85" in data:
        data = data.replace(b"\xc2\x85", b"\\u0085")
    return data
