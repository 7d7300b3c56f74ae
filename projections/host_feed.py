"""The log as Agent Host events, folded when read: sequence is revision, contiguous from 1 (Host mapping §2, §4).

Nothing of it is stored, so nothing can be lost. Text, steps and progress have no event here.
Continuations, inputs, tool outputs and their keys stay behind.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from actors import events
from projections import host_result
from projections.host_result import End, Spent, Status

NEEDS_REVIEW = "needs review"
"""Why a call waits for a person, as far as a run knows."""


class HostEvent(Struct, frozen=True, kw_only=True):
    """One Host event of the run *run_id*, which is its name for whoever asked."""

    run_id: str
    sequence: int
    type: str
    status: Status
    at_ms: int
    step_id: str = ""
    """No event of ours belongs to a step."""
    call_id: str = ""
    data: Any = None
    metadata: Mapping[str, str] = {}


class Approval(Struct, frozen=True, kw_only=True):
    """The approval that a run waits for, or that was claimed last; nothing here continues anything."""

    id: str
    call_id: str
    tool: str
    created_ms: int
    approved: bool = False
    reason: str = NEEDS_REVIEW
    resolved_ms: int | None = None
    metadata: Mapping[str, str] = {}


class Feed(Struct, frozen=True, kw_only=True):
    """What the fold remembers of a run."""

    name: str
    sequence: int = 0
    accepted: events.RunAccepted | None = None
    started: bool = False
    status: Status = "created"
    updated_ms: int = 0
    approval: Approval | None = None
    settled: events.ReviewSettled | None = None
    """The last answer of a person, or its lack."""
    tools: Mapping[str, str] = {}
    """Names of the calls of the last turn, by their ids."""
    call_id: str = ""
    """Of the call that came up last."""
    spent: Spent = Spent()
    end: End | None = None

    @property
    def by_hand(self) -> bool:
        """Whether it waits to be resumed."""
        return self.accepted is not None and self.accepted.host is not None


def start(name: str) -> Feed:
    """The fold of the run that is called *name*, before its first event."""
    return Feed(name=name)


def told(feed: Feed, event: events.RunEvent) -> tuple[Feed, Sequence[HostEvent]]:
    """The fold after *event*, and the Host events that it is."""
    after = _folded(feed, event)
    made = [_numbered(after, at, one) for at, one in enumerate(_events(feed, after, event), feed.sequence + 1)]
    if not made:
        return after, made
    last = made[-1]
    return replace(after, sequence=last.sequence, status=last.status, updated_ms=last.at_ms), made


def whole(name: str, log: Iterable[events.RunEvent]) -> tuple[Feed, list[HostEvent]]:
    """The fold of a whole *log*, and all its Host events."""
    feed, made = start(name), list[HostEvent]()
    for event in log:
        feed, more = told(feed, event)
        made.extend(more)
    return feed, made


def _folded(feed: Feed, event: events.RunEvent) -> Feed:
    match event:
        case events.RunAccepted():
            return replace(feed, accepted=event)
        case events.RunStarted():
            return replace(feed, started=True)
        case events.TurnCompleted(tool_calls=calls, usage=usage):
            return replace(feed, tools={call.id: call.name for call in calls}, spent=feed.spent.plus(usage))
        case events.ToolCalled(call=call):
            return replace(feed, call_id=call.id)
        case events.ReviewAsked(at_ms=at_ms, approval_id=approval_id):
            call_id = event.call_id or feed.call_id
            asked = Approval(id=approval_id, call_id=call_id, tool=feed.tools.get(call_id, ""), created_ms=at_ms)
            return replace(feed, approval=asked)
        case events.ReviewSettled(outcome="approved") if feed.approval is not None:
            return replace(feed, approval=_approved(feed.approval, event), settled=event)
        case events.ReviewSettled():
            return replace(feed, settled=event)
        case events.RunCompleted():
            return replace(feed, approval=None, end=host_result.completed(feed.name, event, feed.spent))
        case events.RunFailed():
            return replace(feed, approval=None, end=host_result.failed(feed.name, event, feed.spent, feed.settled))
        case events.RunCancelled():
            return replace(feed, approval=None, end=host_result.cancelled(feed.name, event, feed.spent))
        case _:
            return feed


def _approved(asked: Approval, event: events.ReviewSettled) -> Approval:
    return replace(asked, approved=True, reason=event.reason, resolved_ms=event.at_ms, metadata=event.metadata)


class _Made(Struct, frozen=True):
    """A Host event without its number."""

    type: str
    status: Status
    at_ms: int
    call_id: str = ""
    data: Any = None


def _numbered(feed: Feed, number: int, made: _Made) -> HostEvent:
    return HostEvent(
        run_id=feed.name,
        sequence=number,
        type=made.type,
        status=made.status,
        at_ms=made.at_ms,
        call_id=made.call_id,
        data=made.data,
    )


def _events(before: Feed, after: Feed, event: events.RunEvent) -> list[_Made]:
    """The Host events that *event* is; `actors.revisions.added` must count alike."""
    reviewed = before.approval or after.approval
    call_id = "" if reviewed is None else reviewed.call_id
    match event:
        case events.RunAccepted(at_ms=at_ms):
            return [_Made("run_created", "created", at_ms)]
        case events.RunStarted(at_ms=at_ms):
            return [_Made("run_started", "running", at_ms)]
        case events.ReviewAsked(at_ms=at_ms, approval_id=approval_id):
            tool = "" if after.approval is None else after.approval.tool
            data = {"approval_id": approval_id, "tool_name": tool, "reason": NEEDS_REVIEW}
            return [_Made("approval_required", "waiting_for_approval", at_ms, event.call_id or before.call_id, data)]
        case events.ReviewSettled(at_ms=at_ms, approval_id=approval_id, outcome="approved"):
            data = {"approval_id": approval_id, "resolution": "approved", "reason": event.reason}
            granted = _Made("approval_granted", "waiting_for_approval", at_ms, call_id, data)
            resumed = _Made("run_resumed", "running", at_ms, call_id, {"approval_id": approval_id})
            return [granted] if before.by_hand else [granted, resumed]
        case events.RunResumed(at_ms=at_ms, approval_id=approval_id, again=again):
            name = "run_resume_reclaimed" if again else "run_resumed"
            return [_Made(name, "running", at_ms, call_id, {"approval_id": approval_id})]
        case events.ToolCompleted(at_ms=at_ms):
            admitted = {"tool_name": event.name, "succeeded": True, "error_category": "none"}
            return [_Made("tool_result_admitted", "running", at_ms, event.call_id, admitted)]
        case events.RunCompleted(at_ms=at_ms) | events.RunFailed(at_ms=at_ms) | events.RunCancelled(at_ms=at_ms):
            return _ended(before, after, event, at_ms)
        case _:
            return []


def _ended(
    before: Feed, after: Feed, event: events.RunCompleted | events.RunFailed | events.RunCancelled, at_ms: int
) -> list[_Made]:
    """The end; what never began, begins before it fails (DESIGN §5)."""
    assert after.end is not None  # noqa: S101 - folded just now
    end = after.end
    call_id = before.approval.call_id if end.type == "approval_denied" and before.approval is not None else ""
    made = _Made(end.type, end.status, at_ms, call_id, end.data)
    if before.started or not isinstance(event, events.RunFailed):
        return [made]
    return [_Made("run_started", "running", at_ms), made]
