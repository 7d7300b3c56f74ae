"""What a host keeps and tells of: jobs, conversations, pages of events, and receipts (jobs §2, sessions §2)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from typing_extensions import override

from runstream_client.events import Approval, RunEvent
from runstream_client.evidence import Chunks, IngestionManifest
from runstream_client.results import SessionInfo
from runstream_client.shapes import Count, Id, Millis, Sha256, Shape, Text, Timestamp, Uuid, agreed, at_most

ENDS_OF_A_JOB = {
    "completed": "run.completed",
    "failed": "run.failed",
    "cancelled": "run.cancelled",
    "interrupted": "run.failed",
}
"""How a job in each final state ends."""
_EVENTS_OF_AN_ENDED_JOB = 2


class Message(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: Annotated[str, at_most(100_000)]


class SessionSnapshot(Shape, frozen=True, kw_only=True):
    """A conversation with what was said in it."""

    session: SessionInfo
    history: Annotated[tuple[Message, ...], Meta(max_length=100)]
    instructions: Annotated[str, at_most(100_000)] | UnsetType = UNSET


class SessionDeleted(Shape, frozen=True, kw_only=True):
    """That a conversation is gone."""

    id: str
    deleted: bool

    @override
    def agree(self) -> None:
        agreed(self.deleted, "not deleted")


class Job(Shape, frozen=True, kw_only=True):
    """How a job stands; `expires_at` is there exactly if it has ended."""

    id: Uuid
    run_id: Uuid
    provider: Text
    model: Text
    state: Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"]
    cursor: Count
    """The number of its last event."""
    cancel_requested: bool
    created_at: Millis
    updated_at: Millis
    expires_at: Millis | UnsetType = UNSET

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ENDS_OF_A_JOB

    @override
    def agree(self) -> None:
        agreed(self.state != "queued" or self.cursor == 0, "a queued job with events")
        agreed(not self.ended or self.cursor >= _EVENTS_OF_AN_ENDED_JOB, "an ended job without its events")
        agreed(self.updated_at >= self.created_at, "updated before it was created")
        agreed((self.expires_at is not UNSET) == self.ended, "an expiry exactly if it has ended")
        agreed(self.expires_at is UNSET or self.expires_at > self.updated_at, "expired when it was updated")


class RawPage(Shape, frozen=True, kw_only=True):
    """A page whose events were not read yet."""

    job: Job
    events: tuple[dict[str, Any], ...]
    next_cursor: Count
    has_more: bool


class JobPage(Shape, frozen=True, kw_only=True):
    """A job, and its events after a cursor, as they stood at one moment."""

    job: Job
    events: tuple[RunEvent, ...]
    next_cursor: int
    has_more: bool


class RawRunPage(Shape, frozen=True, kw_only=True):
    """A page of a run whose events were not read yet (extensions §1)."""

    run_id: Text
    state: Literal["queued", "running", "completed", "failed", "cancelled"]
    events: tuple[dict[str, Any], ...]
    cursor: str
    has_more: bool


class RunPage(Shape, frozen=True, kw_only=True):
    """The events of a run after a cursor (extensions §1)."""

    run_id: str
    state: str
    events: tuple[RunEvent, ...]
    cursor: str
    """What to ask for next."""
    has_more: bool


class TicketReceipt(Shape, frozen=True, kw_only=True):
    """That the host took a report or a result; not what became of it."""

    execution_id: str
    run_id: str
    call_id: str
    status: Literal["progress", "accepted"]


class PendingApproval(Approval, frozen=True, kw_only=True):
    """A call that waits for the caller's decision (extensions §3)."""

    provider: Text


class Inbox(Shape, frozen=True, kw_only=True):
    """What waits for the caller's decision, the oldest first (extensions §3)."""

    approvals: Annotated[tuple[PendingApproval, ...], Meta(max_length=100)]
    has_more: bool


class IndexReceipt(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That a revision of a document can be found."""

    corpus: Id
    source_id: Id
    revision: Id
    document_sha256: Sha256
    chunks: Chunks
    status: Literal["indexed", "unchanged"]
    ingestion: IngestionManifest | UnsetType = UNSET

    @override
    def agree(self) -> None:
        agreed(self.ingestion is UNSET or self.ingestion.chunks == self.chunks, "another number of passages")


class DeleteReceipt(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a revision of a document was there to be deleted."""

    corpus: Id
    source_id: Id
    revision: Id
    deleted: bool


class DecisionReceipt(Shape, frozen=True, kw_only=True):
    """That a decision was recorded; not that the call was executed."""

    approval_id: str
    run_id: str
    call_id: str
    outcome: Literal["approved", "denied", "cancelled"]
    decided_at: Timestamp
