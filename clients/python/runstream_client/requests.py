"""What a client may ask for, as the wire has it: dictionaries whose members the type checker knows.

The host judges them; a client only refuses what it could not hear the answer of.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

Json: TypeAlias = Any
Decision: TypeAlias = Literal["approve", "deny", "cancel"]


class HistoryMessage(TypedDict):
    role: Literal["user", "assistant"]
    content: str


class LocationRequest(TypedDict, total=False):
    documentId: str
    threadId: str
    messageId: str
    page: int
    pageEnd: int
    startLine: int
    endLine: int
    section: str


class SourceRequest(TypedDict):
    id: str
    revision: str
    title: NotRequired[str]
    uri: NotRequired[str]
    location: NotRequired[LocationRequest]


class TextInput(TypedDict):
    type: Literal["text"]
    source: SourceRequest
    mediaType: Literal["text/plain", "text/markdown"]
    text: str


class ImageInput(TypedDict):
    type: Literal["image"]
    source: SourceRequest
    mediaType: Literal["image/png", "image/jpeg", "image/webp"]
    data: str


class PdfInput(TypedDict):
    type: Literal["pdf"]
    source: SourceRequest
    mediaType: Literal["application/pdf"]
    data: str


class ReferenceInput(TypedDict):
    type: Literal["reference"]
    id: str
    revision: str
    mediaType: str


class EmailMessage(TypedDict):
    id: str
    text: str


class EmailInput(TypedDict):
    type: Literal["email"]
    source: SourceRequest
    threadId: str
    messages: Sequence[EmailMessage]


class RetrievalOption(TypedDict):
    corpus: str
    query: NotRequired[str]
    sourceIds: NotRequired[Sequence[str]]
    limit: NotRequired[int]
    maxContextBytes: NotRequired[int]
    minScore: NotRequired[float]


class ArtifactOption(TypedDict):
    name: str
    mediaType: Literal["text/plain", "text/markdown", "application/json"]


class RetryOption(TypedDict):
    maxAttempts: int
    baseDelayMs: NotRequired[int]
    maxDelayMs: NotRequired[int]


class SessionOption(TypedDict):
    id: str
    revision: int


class ApprovalsOption(TypedDict):
    mode: Literal["interactive"]
    idlePolicy: Literal["pause", "continue"]
    expiresAfterMs: NotRequired[int]


class ApplicationTool(TypedDict):
    name: str
    description: str
    inputSchema: Mapping[str, Json]
    outputSchema: NotRequired[Mapping[str, Json]]
    requiresApproval: NotRequired[bool]


class ResumeOption(TypedDict):
    graceMs: int


class RunRequest(TypedDict):
    """A run (runs §3); `resume` is for hosts with the feature `stream-resumption`."""

    provider: str
    model: str
    input: str
    instructions: NotRequired[str]
    history: NotRequired[Sequence[HistoryMessage]]
    attachments: NotRequired[Sequence[TextInput | ImageInput | PdfInput | ReferenceInput]]
    retrieval: NotRequired[RetrievalOption]
    outputArtifact: NotRequired[ArtifactOption]
    idempotencyKey: NotRequired[str]
    retry: NotRequired[RetryOption]
    session: NotRequired[SessionOption]
    approvals: NotRequired[ApprovalsOption]
    applicationTools: NotRequired[Sequence[ApplicationTool]]
    tools: NotRequired[Sequence[str]]
    requiredCapabilities: NotRequired[Sequence[str]]
    maxSteps: NotRequired[int]
    maxOutputTokens: NotRequired[int]
    idleTimeoutMs: NotRequired[int]
    outputSchema: NotRequired[Mapping[str, Json]]
    metadata: NotRequired[Mapping[str, str]]
    resume: NotRequired[ResumeOption]


class SessionRequest(TypedDict):
    """A conversation to begin (sessions §2)."""

    provider: str
    model: str
    mode: Literal["history", "native"]
    history: NotRequired[Sequence[HistoryMessage]]
    instructions: NotRequired[str]


class SearchRequest(TypedDict):
    """A search (retrieval §3)."""

    corpus: str
    query: str
    sourceIds: NotRequired[Sequence[str]]
    limit: NotRequired[int]
    maxContextBytes: NotRequired[int]
    minScore: NotRequired[float]


class ChunkRequest(TypedDict):
    id: str
    text: str
    location: NotRequired[LocationRequest]


class IndexRequest(TypedDict):
    """A prepared revision of a document (retrieval §3)."""

    corpus: str
    source: SourceRequest
    chunks: Sequence[ChunkRequest]
    ingestion: NotRequired[Mapping[str, Json]]


class DeleteRequest(TypedDict):
    """A revision of a document that is to go (retrieval §3)."""

    corpus: str
    sourceId: str
    revision: str


class ChunkingOption(TypedDict):
    maxBytes: int


class IngestRequest(TypedDict):
    """A document to take in (ingestion §1)."""

    corpus: str
    document: TextInput | PdfInput | ReferenceInput | EmailInput
    chunking: NotRequired[ChunkingOption]
    idleTimeoutMs: NotRequired[int]


class SetupProvider(TypedDict):
    kind: str
    id: str
    accountId: str


class SetupRequest(TypedDict):
    """A step of a provider's sign-in; for tokens that manage providers."""

    action: Literal["start", "list", "status", "accept", "cancel"]
    id: NotRequired[str]
    revision: NotRequired[str]
    method: NotRequired[Literal["codex-device"]]
    provider: NotRequired[SetupProvider]
