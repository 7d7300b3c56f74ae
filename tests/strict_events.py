"""What a strict client accepts as the next event of a run.

Nothing here waits or reads a clock; `EventRules` remembers the events it has seen and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.strict_results import run_result
from tests.strict_values import (
    CALL,
    ERROR,
    TICKET_CALL,
    USAGE,
    Json,
    Object,
    Unsound,
    anything,
    boolean,
    integer,
    items,
    member,
    members,
    need,
    obj,
    one_of,
    parsed,
    shape,
    string,
    text,
    timestamp,
)

TERMINAL = frozenset({"run.completed", "run.failed", "run.cancelled"})
TICKETS_MAX = 2048


class Unsupported(Exception):
    """An event that the client did not ask for and may not skip."""


_ENVELOPE = shape(
    {"type": text(1), "runId": text(1), "sequence": integer(1), "timestamp": timestamp},
    {"optional": boolean, "text": text(), "result": obj, "error": ERROR},
)
_APPROVAL = shape(
    {
        "approvalId": text(1),
        "runId": text(1),
        "call": TICKET_CALL,
        "requestedAt": timestamp,
        "idlePolicy": one_of("pause", "continue"),
    },
    {"expiresAt": timestamp},
)
_RESOLUTION = shape(
    {
        "approvalId": text(1),
        "runId": text(1),
        "callId": text(1),
        "outcome": one_of("approved", "denied", "cancelled", "expired"),
        "decidedAt": timestamp,
    }
)
_EXECUTION = shape({"executionId": text(1, 256), "runId": text(1), "call": TICKET_CALL})
_PAYLOADS = {
    "run.started": shape({"provider": text(), "model": text()}),
    "step.started": shape({"step": integer(1)}),
    "text.delta": shape({"text": text()}),
    "run.progress": shape({"phase": one_of("model", "tool", "context")}),
    "tool.called": shape({"call": CALL}),
    "tool.completed": shape({"callId": text(1), "output": anything}),
    "usage.reported": shape({"step": integer(1), "usage": USAGE}),
    "approval.requested": shape({"approval": _APPROVAL}),
    "approval.resolved": shape({"resolution": _RESOLUTION}),
    "tool.execution.requested": shape({"execution": _EXECUTION}),
    "run.completed": shape({"result": obj}),
    "run.failed": shape({"error": ERROR}),
    "run.cancelled": shape({"error": ERROR}),
}
KNOWN = frozenset(_PAYLOADS)


@dataclass
class EventRules:
    """The rules of one stream: asked for *request*, seen so far up to *sequence*."""

    request: Object
    sequence: int = 0
    run_id: str | None = None
    executions: set[str] = field(default_factory=set[str])
    calls: set[str] = field(default_factory=set[str])

    def accept(self, data: str) -> Object | None:
        """The event in *data*, or None if it is advisory and unknown; raises `Unsound` or `Unsupported`."""
        return self.check(members(parsed(data)))

    def check(self, event: Object) -> Object | None:
        """The same for an event that is no longer text."""
        self._envelope(event)
        kind = string(event["type"])
        if kind not in KNOWN:
            if event.get("optional") is not True:
                raise Unsupported(kind)
            return None
        self._negotiated(kind)
        _PAYLOADS[kind](event)
        _MORE.get(kind, _nothing_more)(self, event)
        return event

    def _envelope(self, event: Object) -> None:
        _ENVELOPE(event)
        need(event["sequence"] == self.sequence + 1, f"sequence {event['sequence']} after {self.sequence}")
        need(self.run_id in {None, string(event["runId"])}, "an event of another run")
        need((event["type"] == "run.started") == (self.sequence == 0), "run.started first, and only then")
        self.sequence += 1
        self.run_id = string(event["runId"])

    def _negotiated(self, kind: str) -> None:
        asked = {"approval": "approvals", "tool.execution": "applicationTools"}.get(kind.rpartition(".")[0])
        if asked is not None and asked not in self.request:
            raise Unsupported(kind)

    def started(self, event: Object) -> None:
        """Nothing, if the run says which provider and model were asked."""
        for name in ("provider", "model"):
            need(event[name] == self.request[name], f"another {name}")

    def approval_requested(self, event: Object) -> None:
        """Nothing, if the review is one of this run's, under the policy it asked for."""
        need(member(event, "approval", "runId") == self.run_id, "an approval of another run")
        policy = member(self.request, "approvals", "idlePolicy")
        need(member(event, "approval", "idlePolicy") == policy, "another idle policy")

    def approval_resolved(self, event: Object) -> None:
        """Nothing, if the decision is about this run."""
        need(member(event, "resolution", "runId") == self.run_id, "a resolution of another run")

    def execution_requested(self, event: Object) -> None:
        """Nothing, if the ticket is new and for a tool that the application offered and selected."""
        need(member(event, "execution", "runId") == self.run_id, "an execution of another run")
        name = member(event, "execution", "call", "name")
        offered = [member(tool, "name") for tool in items(self.request["applicationTools"])]
        need(name in offered, "a tool that was not offered")
        need(name in items(self.request.get("tools", [])), "a tool that was not selected")
        ticket, call = (
            string(member(event, "execution", "executionId")),
            string(member(event, "execution", "call", "id")),
        )
        need(ticket not in self.executions, "a repeated execution")
        need(call not in self.calls, "a repeated call")
        need(len(self.executions) < TICKETS_MAX, "too many executions")
        self.executions.add(ticket)
        self.calls.add(call)

    def completed(self, event: Object) -> None:
        """Nothing, if the result is sound and this run's."""
        run_result(self.request, event["result"])
        need(member(event, "result", "runId") == self.run_id, "a result of another run")


_More: TypeAlias = Callable[[EventRules, Object], None]
_MORE: dict[str, _More] = {
    "run.started": EventRules.started,
    "approval.requested": EventRules.approval_requested,
    "approval.resolved": EventRules.approval_resolved,
    "tool.execution.requested": EventRules.execution_requested,
    "run.completed": EventRules.completed,
}


def _nothing_more(_: EventRules, __: Object) -> None: ...


def job_event(job: Object, sequence: int, value: Json) -> Object:
    """The event *value* of a job's page, which must be number *sequence* of *job*."""
    asked: Object = {"provider": job["provider"], "model": job["model"], **_evidence_of(value)}
    try:
        event = EventRules(asked, sequence - 1, string(job["runId"])).check(members(value))
    except Unsupported as error:
        raise Unsound(f"{error} in a job page") from error
    if event is None:
        raise Unsound("an unknown event in a job page")
    return event


def _evidence_of(value: Json) -> Object:
    """What the run must have asked for: the reader of a page does not know whether it asked for evidence."""
    result = members(value).get("result")
    if not isinstance(result, dict) or "retrieval" not in result:
        return {}
    corpus = member(result["retrieval"], "corpus")
    return {"retrieval": {"corpus": corpus, "limit": 16, "maxContextBytes": 262_144}}
