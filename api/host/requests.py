"""What the six operations ask, decoded: every default filled in (Host protocol §7)."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from actors.events import HostContext

Operation: TypeAlias = Literal["create_run", "get_run", "cancel_run", "resolve_approval", "resume_run", "list_events"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
MUTATIONS = frozenset({"create_run", "cancel_run", "resolve_approval", "resume_run"})
DEFAULT_REASON = "agent run cancelled"
LIMIT, LIMIT_MAX = 256, 1_000


class CreateRun(NamedTuple):
    """Begin a run."""

    context: HostContext
    input: Any
    metadata: Mapping[str, str]


class GetRun(NamedTuple):
    """Look at a run."""

    run_id: str


class CancelRun(NamedTuple):
    """End a run."""

    run_id: str
    expected_revision: int
    reason: str


class ResolveApproval(NamedTuple):
    """Decide about the call that a run waits for."""

    run_id: str
    expected_revision: int
    approval_id: str
    resolution: Literal["approved", "denied"]
    reason: str
    metadata: Mapping[str, str]


class ResumeRun(NamedTuple):
    """Claim the approved call."""

    run_id: str
    expected_revision: int
    approval_id: str
    input: Any


class ListEvents(NamedTuple):
    """Read events after a cursor."""

    run_id: str
    after_sequence: int
    limit: int


Body: TypeAlias = CreateRun | GetRun | CancelRun | ResolveApproval | ResumeRun | ListEvents


class Call(NamedTuple):
    """What an envelope says beside its body."""

    request_id: str
    idempotency_key: str
    metadata: Mapping[str, str]
    protocol_version: str


class Request(NamedTuple):
    """A whole request, for the service."""

    call: Call
    operation: Operation
    body: Body
