"""The events of a run (clients §3). Each keeps `raw`, the object as it came, with members of later hosts."""

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import UNSET, UnsetType, field

from runstream_client.results import ErrorInfo, RunResult, Usage
from runstream_client.shapes import Positive, Shape, Text, TicketId, Timestamp, ToolName

RAW = ""
"""Under what no host names a member, the whole object is handed to the Struct."""


class Call(Shape, frozen=True, kw_only=True):
    """A tool call that the model proposes."""

    id: Text
    name: Text
    arguments: dict[str, Any]


class TicketCall(Shape, frozen=True, kw_only=True):
    """A call that somebody else decides about or executes."""

    id: TicketId
    name: ToolName
    arguments: dict[str, Any]


class Approval(Shape, frozen=True, kw_only=True):
    """A call that waits for a person's decision."""

    approval_id: Text
    run_id: Text
    call: TicketCall
    requested_at: Timestamp
    idle_policy: Literal["pause", "continue"]
    expires_at: Timestamp | UnsetType = UNSET


class Resolution(Shape, frozen=True, kw_only=True):
    """How a review ended."""

    approval_id: Text
    run_id: Text
    call_id: Text
    outcome: Literal["approved", "denied", "cancelled", "expired"]
    decided_at: Timestamp


class Execution(Shape, frozen=True, kw_only=True):
    """A ticket: the application may execute this call, once."""

    execution_id: TicketId
    run_id: Text
    call: TicketCall


class EventHead(Shape, frozen=True, kw_only=True):
    """What an event must have whatever its type is."""

    type: Text
    run_id: Text
    sequence: Positive
    timestamp: Timestamp
    optional: bool | UnsetType = UNSET


class Event(Shape, frozen=True, kw_only=True, tag_field="type"):
    """What every event has."""

    run_id: Text
    sequence: Positive
    timestamp: Timestamp
    optional: bool | UnsetType = UNSET
    raw: dict[str, Any] = field(name=RAW)
    ends: ClassVar[bool] = False
    """Whether nothing follows it."""

    @property
    def type(self) -> str:
        """The type as the wire has it."""
        return str(self.raw["type"])


class RunStarted(Event, frozen=True, kw_only=True, tag="run.started"):
    provider: str
    model: str


class StepStarted(Event, frozen=True, kw_only=True, tag="step.started"):
    step: Positive


class TextDelta(Event, frozen=True, kw_only=True, tag="text.delta"):
    text: str


class RunProgress(Event, frozen=True, kw_only=True, tag="run.progress"):
    phase: Literal["model", "tool", "context"]


class ToolCalled(Event, frozen=True, kw_only=True, tag="tool.called"):
    call: Call


class ToolCompleted(Event, frozen=True, kw_only=True, tag="tool.completed"):
    call_id: Text
    output: Any


class UsageReported(Event, frozen=True, kw_only=True, tag="usage.reported"):
    step: Positive
    usage: Usage


class ApprovalRequested(Event, frozen=True, kw_only=True, tag="approval.requested"):
    approval: Approval


class ApprovalResolved(Event, frozen=True, kw_only=True, tag="approval.resolved"):
    resolution: Resolution


class ExecutionRequested(Event, frozen=True, kw_only=True, tag="tool.execution.requested"):
    execution: Execution


class RunCompleted(Event, frozen=True, kw_only=True, tag="run.completed"):
    result: RunResult
    ends: ClassVar[bool] = True


class RunFailed(Event, frozen=True, kw_only=True, tag="run.failed"):
    error: ErrorInfo
    ends: ClassVar[bool] = True


class RunCancelled(Event, frozen=True, kw_only=True, tag="run.cancelled"):
    error: ErrorInfo
    ends: ClassVar[bool] = True


RunEvent: TypeAlias = (
    RunStarted
    | StepStarted
    | TextDelta
    | RunProgress
    | ToolCalled
    | ToolCompleted
    | UsageReported
    | ApprovalRequested
    | ApprovalResolved
    | ExecutionRequested
    | RunCompleted
    | RunFailed
    | RunCancelled
)
KINDS: dict[str, type[RunEvent]] = {
    "run.started": RunStarted,
    "step.started": StepStarted,
    "text.delta": TextDelta,
    "run.progress": RunProgress,
    "tool.called": ToolCalled,
    "tool.completed": ToolCompleted,
    "usage.reported": UsageReported,
    "approval.requested": ApprovalRequested,
    "approval.resolved": ApprovalResolved,
    "tool.execution.requested": ExecutionRequested,
    "run.completed": RunCompleted,
    "run.failed": RunFailed,
    "run.cancelled": RunCancelled,
}
