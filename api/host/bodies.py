"""The bodies of the six operations, checked in their binding order (Host protocol §2, §7)."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from actors.events import HostContext
from api.host import names
from api.host.requests import (
    DEFAULT_REASON,
    LIMIT,
    LIMIT_MAX,
    Body,
    CancelRun,
    CreateRun,
    GetRun,
    ListEvents,
    Operation,
    ResolveApproval,
    ResumeRun,
)

REVISION_MAX = 2**64 - 1
TIME_MAX = 9_223_372_036_854
"""Beyond this, either way, a time wraps in the clock of the reference client."""
RUN_ID_UNITS_MAX = 512
"""Not the protocol's; every name has a bound."""

Members = Mapping[str, Any]

CONTEXT_WORDS = {
    "runId": "run_id",
    "traceId": "trace_id",
    "requestId": "request_id",
    "tenantId": "tenant_id",
    "userId": "user_id",
    "applicationId": "application_id",
    "workspaceId": "workspace_id",
    "conversationId": "conversation_id",
    "agentId": "agent_id",
    "locale": "locale",
}
"""The texts of a context, by their names on the wire, in the order in which they are read."""


class Malformed(Exception):
    """The request breaks a rule; *slug* names the check, the message is for people and repeats no value."""

    def __init__(self, slug: str, message: str) -> None:
        super().__init__(message)
        self.slug = slug


def body_of(operation: Operation, body: Members) -> Body:
    """What *body* asks of *operation*.

    Raises:
        Malformed: the first check that fails.
    """
    return _READERS[operation](body)


def string(body: Members, name: str, default: str, slug: str = "body-type") -> str:
    """The member *name*, which is a string where it is there."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise Malformed(slug, f"{name} must be a string.")
    return value


def string_map(body: Members, name: str, slug: str = "body-type") -> Mapping[str, str]:
    """The member *name*, which is an object of strings where it is there."""
    value = body.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in cast("Members", value).values()):
        raise Malformed(slug, f"{name} must be an object of strings.")
    return cast("Mapping[str, str]", value)


def _create(body: Members) -> CreateRun:
    context: object = body.get("context")
    if not isinstance(context, dict):
        raise Malformed("context-not-object", "context must be an object.")
    members = cast("Members", context)
    words = {ours: string(members, theirs, "") for theirs, ours in CONTEXT_WORDS.items()}
    metadata = string_map(members, "metadata")
    sensitive = names.first_sensitive(metadata)
    if sensitive is not None:
        raise Malformed("sensitive-context-metadata", f"context.metadata must not hold {sensitive}.")
    deadline = members.get("deadlineUnixMs")
    deadline_ms = None if deadline is None else _time(deadline)
    made = HostContext(**words, deadline_ms=deadline_ms, metadata=metadata)
    asked = CreateRun(made, body.get("input", {}), string_map(body, "metadata"))
    if not made.run_id:
        raise Malformed("context-run-id-missing", "context.runId must not be empty.")
    _check_name(made.run_id)
    return asked


def _get(body: Members) -> GetRun:
    return GetRun(_run_id(body))


def _cancel(body: Members) -> CancelRun:
    return CancelRun(_run_id(body), _revision(body), string(body, "reason", DEFAULT_REASON))


def _resolve(body: Members) -> ResolveApproval:
    run_id, revision, approval_id = _run_id(body), _revision(body), _word(body, "approvalId")
    resolution = _word(body, "resolution")
    if resolution not in {"approved", "denied"}:
        raise Malformed("resolution-value", "resolution must be approved or denied.")
    told = cast("Literal['approved', 'denied']", resolution)
    return ResolveApproval(
        run_id, revision, approval_id, told, string(body, "reason", ""), string_map(body, "metadata")
    )


def _resume(body: Members) -> ResumeRun:
    return ResumeRun(_run_id(body), _revision(body), _word(body, "approvalId"), body.get("input", {}))


def _list(body: Members) -> ListEvents:
    limit = int(_number(body, "limit", LIMIT))
    if not 1 <= limit <= LIMIT_MAX:
        raise Malformed("limit-range", f"limit must be from 1 to {LIMIT_MAX}.")
    run_id = _run_id(body)
    after = int(_number(body, "afterSequence", 0))
    if not 0 <= after <= REVISION_MAX:
        raise Malformed("body-type", "afterSequence must be a number from 0 on.")
    return ListEvents(run_id, after, limit)


def _run_id(body: Members) -> str:
    name = _word(body, "runId")
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if len(name) > RUN_ID_UNITS_MAX:
        raise Malformed("body-type", f"A run's id has at most {RUN_ID_UNITS_MAX} characters.")


def _word(body: Members, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Malformed(f"field-missing:{name}", f"{name} must be a string that is not empty.")
    return value


def _revision(body: Members) -> int:
    """An integer literal: what was written as a fraction or with an exponent is a float by now."""
    value = body.get("expectedRevision")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= REVISION_MAX:
        raise Malformed("revision-type", "expectedRevision must be an unsigned integer.")
    if value == 0:
        raise Malformed("revision-zero", "expectedRevision must be at least 1.")
    return value


def _number(body: Members, name: str, default: int) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed("body-type", f"{name} must be a number.")
    return value


def _time(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed("body-type", "context.deadlineUnixMs must be a number or null.")
    whole = int(value)
    if abs(whole) > TIME_MAX:
        raise Malformed("body-type", f"context.deadlineUnixMs must be from -{TIME_MAX} to {TIME_MAX}.")
    return whole


_READERS: Mapping[Operation, Callable[[Members], Body]] = {
    "create_run": _create,
    "get_run": _get,
    "cancel_run": _cancel,
    "resolve_approval": _resolve,
    "resume_run": _resume,
    "list_events": _list,
}
