"""The shared vectors of the Host, and a service that does as their stubs say."""

import json
from pathlib import Path
from typing import Any

from actors.events import HostContext
from api.host.encoding import EventPage, Submission
from api.host.failures import Failure
from api.host.requests import Call, CancelRun, CreateRun, GetRun, ListEvents, ResolveApproval, ResumeRun
from projections.host_feed import Approval, HostEvent
from projections.views import HostView

FOLDER = Path(__file__).parents[2] / "vectors"


def read(name: str) -> Any:
    return json.loads((FOLDER / f"host-{name}.json").read_text(encoding="utf-8"))


class Stub:
    """A service that records what it is asked, and answers as *kind* says; without one as the recorder of the vectors."""

    def __init__(self, kind: dict[str, Any] | None = None) -> None:
        self.kind = kind or {"kind": "records"}
        self.seen: list[tuple[Call, Any]] = []

    def _asked(self, call: Call, asked: Any) -> Any:
        self.seen.append((call, asked))
        match self.kind:
            case {"kind": "returnsError", "error": error}:
                return Failure(**error)
            case {"kind": "throws", "throw": flavour}:
                raise {"invalid_argument": ValueError, "json": json.JSONDecodeError}.get(flavour, RuntimeError)(
                    *(("secret-detail", "", 0) if flavour == "json" else ("secret-detail",))
                )
            case {"kind": "returnsSubmission", "submission": one}:
                return Submission(one["runId"], one["revision"], one["status"])
            case _:
                return None

    async def create_run(self, call: Call, asked: CreateRun) -> Submission | Failure:
        return self._asked(call, asked) or Submission(asked.context.run_id, 2, "running")

    async def get_run(self, call: Call, asked: GetRun) -> HostView | Failure:
        return self._asked(call, asked) or view_of(asked.run_id, self.kind.get("view", {}))

    async def cancel_run(self, call: Call, asked: CancelRun) -> Submission | Failure:
        return self._asked(call, asked) or Submission(asked.run_id, asked.expected_revision + 1, "cancelled")

    async def resolve_approval(self, call: Call, asked: ResolveApproval) -> Submission | Failure:
        status: Any = "waiting_for_approval" if asked.resolution == "approved" else "failed"
        return self._asked(call, asked) or Submission(asked.run_id, asked.expected_revision + 1, status)

    async def resume_run(self, call: Call, asked: ResumeRun) -> Submission | Failure:
        return self._asked(call, asked) or Submission(asked.run_id, asked.expected_revision + 1, "running")

    async def list_events(self, call: Call, asked: ListEvents) -> EventPage | Failure:
        after = asked.after_sequence
        made = [event_of({"sequence": after + at, "type": name, "runId": asked.run_id}) for at, name in _TWO]
        page = page_of(self.kind["page"]) if "page" in self.kind else EventPage(made, after + 2, has_more=True)
        return self._asked(call, asked) or page


_TWO = ((1, "first"), (2, "second"))


def event_of(one: dict[str, Any]) -> HostEvent:
    return HostEvent(
        run_id=one.get("runId", "run-1"),
        sequence=one["sequence"],
        type=one.get("type", "t"),
        status=one.get("status", "running"),
        at_ms=one.get("timestampUnixMs", 0),
        step_id=one.get("stepId", ""),
        call_id=one.get("toolCallId", ""),
        data=one.get("data"),
        metadata=one.get("metadata", {}),
    )


def page_of(page: dict[str, Any]) -> EventPage:
    return EventPage([event_of(one) for one in page["events"]], page["nextSequence"], page.get("hasMore", False))


def view_of(name: str, view: dict[str, Any]) -> HostView:
    approval = view.get("approval")
    return HostView(
        run_id=name,
        revision=view.get("revision", 3),
        status=view.get("status", "running"),
        context=HostContext(view.get("contextRunId", name), metadata=view.get("contextMetadata", {})),
        created_ms=view.get("createdAtUnixMs", 0),
        updated_ms=view.get("updatedAtUnixMs", 0),
        completed_ms=view.get("completedAtUnixMs"),
        approval=None if approval is None else approval_of(approval),
        result=view.get("result"),
        error=view.get("error", ""),
        metadata=view.get("metadata", {}),
    )


def approval_of(one: dict[str, Any]) -> Approval:
    return Approval(
        id=one["approvalId"],
        call_id=one.get("toolCallId", ""),
        tool=one.get("toolName", ""),
        created_ms=one.get("createdAtUnixMs", 0),
        approved=one.get("resolution") == "approved",
        reason=one.get("reason", ""),
        resolved_ms=one.get("resolvedAtUnixMs"),
        metadata=one.get("metadata", {}),
    )


def decoded(call: Call, asked: Any) -> dict[str, Any]:
    """What the service received, as the vectors spell it."""
    told = {
        "idempotencyKey": call.idempotency_key,
        "metadata": dict(call.metadata),
        "protocolVersion": call.protocol_version,
        "requestId": call.request_id,
    }
    return {"call": told, "request": _request(asked)}


def _request(asked: Any) -> dict[str, Any]:
    if isinstance(asked, CreateRun):
        from api.host.encoding import context  # noqa: PLC0415 - as the view spells it, too

        return {"context": context(asked.context), "input": asked.input, "metadata": dict(asked.metadata)}
    return {_camel(name): value for name, value in asked._asdict().items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
