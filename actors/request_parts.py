"""The parts of a request to run, as the host keeps them: wire names, absent members absent, foreign JSON untouched (runs §3)."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

TextMedia: TypeAlias = Literal["text/plain", "text/markdown"]
ImageMedia: TypeAlias = Literal["image/png", "image/jpeg", "image/webp"]
MediaType: TypeAlias = Literal[
    "text/plain", "text/markdown", "image/png", "image/jpeg", "image/webp", "application/pdf"
]


class _Part(Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What all parts of a request share: wire names, and absent members stay absent."""


class PastMessage(_Part, frozen=True):
    """One earlier message that the caller tells again."""

    role: Literal["user", "assistant"]
    content: str


class Location(_Part, frozen=True, kw_only=True):
    """Where in its document a source stands."""

    document_id: str | None = None
    page: int | None = None
    page_end: int | None = None
    start_line: int | None = None
    end_line: int | None = None
    section: str | None = None
    thread_id: str | None = None
    message_id: str | None = None


class Source(_Part, frozen=True, kw_only=True):
    """Where an attachment comes from; the URI is shown, never opened."""

    id: str
    revision: str
    title: str | None = None
    uri: str | None = None
    location: Location | None = None


class TextInput(_Part, frozen=True, tag_field="type", tag="text"):
    source: Source
    media_type: TextMedia
    text: str


class ImageInput(_Part, frozen=True, tag_field="type", tag="image"):
    source: Source
    media_type: ImageMedia
    data: str


class PdfInput(_Part, frozen=True, tag_field="type", tag="pdf"):
    source: Source
    media_type: Literal["application/pdf"]
    data: str


class Reference(_Part, frozen=True, tag_field="type", tag="reference"):
    """Something the host itself looks up for this subject."""

    id: str
    revision: str
    media_type: MediaType


ContextInput: TypeAlias = TextInput | ImageInput | PdfInput | Reference


class RetrievalOption(_Part, frozen=True, kw_only=True):
    corpus: str
    source_ids: tuple[str, ...] | None = None
    query: str | None = None
    limit: int | None = None
    max_context_bytes: int | None = None
    min_score: float | None = None


class OutputArtifact(_Part, frozen=True):
    name: str
    media_type: Literal["text/plain", "text/markdown", "application/json"]


class RetryOption(_Part, frozen=True):
    max_attempts: int
    base_delay_ms: int | None = None
    max_delay_ms: int | None = None


class SessionOption(_Part, frozen=True):
    id: str
    revision: int


class ResumeOption(_Part, frozen=True):
    """Of our own (extensions §1): the stream may be continued, on any node, as long as no client is away for longer."""

    grace_ms: int


class ApprovalsOption(_Part, frozen=True):
    mode: Literal["interactive"]
    idle_policy: Literal["pause", "continue"]
    expires_after_ms: int | None = None


class ApplicationTool(_Part, frozen=True, kw_only=True):
    """A tool that the application executes itself; both schemas are compact JSON."""

    name: str
    description: str
    input_schema: Raw
    kept_output_schema: Raw | UnsetType = field(default=UNSET, name="outputSchema")
    requires_approval: bool | None = None

    @property
    def output_schema(self) -> Raw | None:
        """The schema of its output, if it has one."""
        return self.kept_output_schema or None


class RunRequest(_Part, frozen=True, kw_only=True):
    """The validated body of a run request; None means that the member was absent."""

    provider: str
    model: str
    input: str
    instructions: str | None = None
    history: tuple[PastMessage, ...] | None = None
    attachments: tuple[ContextInput, ...] | None = None
    retrieval: RetrievalOption | None = None
    output_artifact: OutputArtifact | None = None
    idempotency_key: str | None = None
    retry: RetryOption | None = None
    session: SessionOption | None = None
    approvals: ApprovalsOption | None = None
    application_tools: tuple[ApplicationTool, ...] | None = None
    tools: tuple[str, ...] | None = None
    required_capabilities: tuple[str, ...] | None = None
    max_steps: int | None = None
    max_output_tokens: int | None = None
    idle_timeout_ms: int | None = None
    kept_output_schema: Raw | UnsetType = field(default=UNSET, name="outputSchema")
    """UNSET where it was absent: msgspec reads no raw JSON where null is possible, too."""
    metadata: dict[str, str] | None = None
    resume: ResumeOption | None = None

    @property
    def output_schema(self) -> Raw | None:
        """The JSON Schema of the wanted output, if there is one."""
        return self.kept_output_schema or None


def encoded_request(request: RunRequest) -> Raw:
    """The *request* as the log keeps it: compact JSON."""
    return Raw(msgspec.json.encode(request))


def decoded_request(stored: bytes | Raw) -> RunRequest:
    """The request that the log kept as *stored*."""
    return msgspec.json.decode(stored, type=RunRequest)
