"""Answers as they go out: results, checked as a client will check them, and failures (Host protocol §4, §8, §9).

What cannot be said truly is not said at all: the whole answer is `internal` then, and nothing of it leaks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from actors.events import HostContext
from api.host import names
from api.host.failures import INTERNAL, VERSION, Failure
from api.host.requests import ListEvents, Operation
from projections.host_feed import Approval, HostEvent
from projections.host_result import Status
from projections.views import HostView

Json: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class Submission(NamedTuple):
    """What a change made of a run."""

    run_id: str
    revision: int
    status: Status


class EventPage(NamedTuple):
    """Some of a run's events."""

    events: Sequence[HostEvent]
    next_sequence: int
    has_more: bool


Result: TypeAlias = Submission | HostView | EventPage


class Unsayable(Exception):
    """A result breaks what clients are promised; the message says which rule, and is for the log."""


class Answer(NamedTuple):
    """An answer, encoded; *code* is that of its failure, empty for none."""

    body: bytes
    code: str


def succeeded(request_id: str, operation: Operation, body: Json) -> Answer:
    """The answer that tells a result."""
    return Answer(_encode(_envelope(request_id, operation, body, None)), "")


def failed(request_id: str, operation: Operation, failure: Failure) -> Answer:
    """The answer that tells *failure*; an internal one keeps nothing but whether to try again."""
    if failure.code == "internal":
        failure = Failure("internal", INTERNAL.message, failure.retryable)
    error = {
        "code": failure.code,
        "message": failure.message,
        "retryable": failure.retryable,
        "details": failure.details,
        "metadata": names.clean(failure.metadata),
    }
    return Answer(_encode(_envelope(request_id, operation, {}, error)), failure.code)


def told(result: Result, asked: object) -> Json:
    """The body that tells *result* to whom *asked* for it.

    Raises:
        Unsayable: it breaks a rule.
    """
    match result:
        case Submission():
            return _submission(result)
        case HostView():
            return _view(result)
        case EventPage():
            if not isinstance(asked, ListEvents):
                raise Unsayable("a page that nobody asked for")
            _check_page(result, asked)
            return _page(result)


def event(one: HostEvent) -> Json:
    """An event as pages and streams tell it.

    Raises:
        Unsayable: it has no run, type or number.
    """
    _need(bool(one.run_id) and bool(one.type) and one.sequence >= 1, "encoding")
    return {
        "runId": one.run_id,
        "sequence": one.sequence,
        "type": one.type,
        "status": one.status,
        "stepId": one.step_id,
        "toolCallId": one.call_id,
        "timestampUnixMs": one.at_ms,
        "data": one.data,
        "metadata": names.clean(one.metadata),
    }


def _envelope(request_id: str, operation: Operation, body: Json, error: Json | None) -> Json:
    return {
        "protocolVersion": VERSION,
        "requestId": request_id,
        "operation": operation,
        "ok": error is None,
        "body": body,
        "error": error,
    }


def _submission(one: Submission) -> Json:
    _need(bool(one.run_id) and one.revision >= 1, "submission")
    return {"runId": one.run_id, "revision": one.revision, "status": one.status}


def _view(view: HostView) -> Json:
    _need(bool(view.run_id) and view.revision >= 1, "view")
    _need(view.context.run_id in {"", view.run_id}, "context of another run")
    return {
        "runId": view.run_id,
        "revision": view.revision,
        "status": view.status,
        "context": context(view.context),
        "createdAtUnixMs": view.created_ms,
        "updatedAtUnixMs": view.updated_ms,
        "completedAtUnixMs": view.completed_ms,
        "approval": None if view.approval is None else _approval(view.approval),
        "result": view.result,
        "error": view.error,
        "metadata": names.clean(view.metadata),
    }


def context(one: HostContext) -> Json:
    """A context as the view tells it, without what stands for a credential."""
    return {
        "runId": one.run_id,
        "traceId": one.trace_id,
        "requestId": one.request_id,
        "tenantId": one.tenant_id,
        "userId": one.user_id,
        "applicationId": one.application_id,
        "workspaceId": one.workspace_id,
        "conversationId": one.conversation_id,
        "agentId": one.agent_id,
        "locale": one.locale,
        "deadlineUnixMs": one.deadline_ms,
        "metadata": names.clean(one.metadata),
    }


def _approval(one: Approval) -> Json:
    _need(bool(one.id) and bool(one.call_id) and bool(one.tool), "approval")
    _need(one.approved == (one.resolved_ms is not None), "resolution")
    return {
        "approvalId": one.id,
        "toolCallId": one.call_id,
        "toolName": one.tool,
        "resolution": "approved" if one.approved else "pending",
        "reason": one.reason,
        "createdAtUnixMs": one.created_ms,
        "resolvedAtUnixMs": one.resolved_ms,
        "metadata": names.clean(one.metadata),
    }


def _page(page: EventPage) -> Json:
    last = 0
    made: list[Json] = []
    for one in page.events:
        _need(one.sequence > last, "order")
        last = one.sequence
        made.append(event(one))
    _need(not made or page.next_sequence == last, "next cursor")
    return {"events": made, "nextSequence": page.next_sequence, "hasMore": page.has_more}


def _check_page(page: EventPage, asked: ListEvents) -> None:
    """Rows 1 to 6 of the invariants (§9); the rest are checked while encoding."""
    after = asked.after_sequence
    _need(len(page.events) <= asked.limit, "too many events")
    _need(page.next_sequence >= after, "a cursor that goes back")
    _need(bool(page.events) or (page.next_sequence == after and not page.has_more), "an empty page that goes on")
    _need(
        all(one.run_id == asked.run_id and one.sequence > after for one in page.events), "an event outside the cursor"
    )


def _need(holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not holds:
        raise Unsayable(what)


def compact(value: Mapping[str, Any]) -> bytes:
    """The JSON of *value* in one line."""
    return _encode(value)
