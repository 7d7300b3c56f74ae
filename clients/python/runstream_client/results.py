"""The result of a run, and what every kind of answer shares: usage, errors, sessions (clients §4)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from typing_extensions import override

from runstream_client.evidence import ContextManifest, DraftArtifact, RetrievalResult
from runstream_client.shapes import (
    Amount,
    Count,
    InstanceId,
    Millis,
    ModelId,
    Positive,
    Shape,
    Text,
    UuidAnyCase,
    agreed,
)


class Usage(Shape, frozen=True, kw_only=True):
    """What the model used; a member that is `UNSET` is unknown, not zero."""

    input_tokens: Count | UnsetType = UNSET
    cached_input_tokens: Count | UnsetType = UNSET
    output_tokens: Count | UnsetType = UNSET
    reasoning_tokens: Count | UnsetType = UNSET
    cost_usd: Amount | UnsetType = UNSET
    api_equivalent_cost_usd: Amount | UnsetType = UNSET


class ErrorInfo(Shape, frozen=True, kw_only=True):
    """An error as a host tells it; unknown codes are fine."""

    code: Text
    message: str
    retryable: bool
    outcome: Literal["uncertain"] | UnsetType = UNSET


class Envelope(Shape, frozen=True, kw_only=True):
    """The body of a refusal."""

    error: ErrorInfo


class SessionInfo(Shape, frozen=True, kw_only=True):
    """How a conversation stands; `expires_at` is there unless a turn is running."""

    id: UuidAnyCase
    revision: Count
    provider: InstanceId
    model: ModelId
    mode: Literal["history", "native"]
    state: Literal["ready", "running", "interrupted"]
    created_at: Millis
    updated_at: Millis
    expires_at: Millis | UnsetType = UNSET

    @override
    def agree(self) -> None:
        agreed(self.updated_at >= self.created_at, "updated before it was created")
        agreed((self.expires_at is UNSET) == (self.state == "running"), "an expiry exactly unless it is running")
        agreed(self.expires_at is UNSET or self.expires_at > self.updated_at, "expired when it was updated")


class RunResult(Shape, frozen=True, kw_only=True):
    """What a run came to."""

    run_id: Text
    provider: str
    model: str
    text: str
    usage: Usage
    steps: Positive
    finish_reason: Literal["stop", "length"]
    output: Any = UNSET
    """The JSON that the request's `outputSchema` asked for; `None` is a value."""
    sources: Annotated[tuple[ContextManifest, ...], Meta(max_length=16)] | UnsetType = UNSET
    artifacts: Annotated[tuple[DraftArtifact, ...], Meta(max_length=1)] | UnsetType = UNSET
    retrieval: RetrievalResult | UnsetType = UNSET
    session: SessionInfo | UnsetType = UNSET

    @override
    def agree(self) -> None:
        names = [source.id for source in self.sources or ()]
        agreed(len(set(names)) == len(names), "two sources of one name")
        for artifact in self.artifacts or ():
            agreed(set(artifact.source_ids) <= set(names), "a draft of unknown sources")
