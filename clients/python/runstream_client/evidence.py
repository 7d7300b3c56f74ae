"""What a run was given and made: sources, drafts, retrieved passages and how they were taken in (clients §4, §5)."""

import re
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, UnsetType
from typing_extensions import override

from runstream_client.shapes import (
    Count,
    EmbeddingModelId,
    Id,
    Positive,
    Rule,
    Sha256,
    Shape,
    Text,
    Timestamp,
    UuidAnyCase,
    agreed,
    at_most,
)

MediaType: TypeAlias = Literal[
    "text/plain", "text/markdown", "image/png", "image/jpeg", "image/webp", "application/pdf"
]
Position: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Chunks: TypeAlias = Annotated[int, Meta(ge=1, le=256)]
TextBytes: TypeAlias = Annotated[int, Meta(ge=1, le=1_048_576)]
InputBytes: TypeAlias = Annotated[int, Meta(ge=1, le=33_554_432)]
Parts: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]


def _address(text: str) -> str | None:
    try:
        return "holds credentials" if "@" in urlsplit(text).netloc else None
    except ValueError:
        return "is no address"


def _file_name(text: str) -> str | None:
    return "is no file name" if text in {".", ".."} or re.search(r"[/\\\x00-\x1f\x7f]", text) else None


Uri: TypeAlias = Annotated[str, Meta(pattern=r"\A(?:https|app)://\S+\Z"), at_most(2048), Rule(_address)]
Title: TypeAlias = Annotated[str, at_most(256)]
FileName: TypeAlias = Annotated[str, at_most(128, 1), Rule(_file_name)]


class Location(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in a document something stands."""

    document_id: Id | UnsetType = UNSET
    thread_id: Id | UnsetType = UNSET
    message_id: Id | UnsetType = UNSET
    page: Position | UnsetType = UNSET
    page_end: Position | UnsetType = UNSET
    start_line: Position | UnsetType = UNSET
    end_line: Position | UnsetType = UNSET
    section: Annotated[str, at_most(256)] | UnsetType = UNSET

    @override
    def agree(self) -> None:
        for start, end in ((self.page, self.page_end), (self.start_line, self.end_line)):
            agreed(end is UNSET or (start is not UNSET and end >= start), "an end that is before its start")


class Source(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document as the application names it."""

    id: Id
    revision: Id
    title: Title | UnsetType = UNSET
    uri: Uri | UnsetType = UNSET
    location: Location | UnsetType = UNSET


class ContextManifest(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source that was supplied to the model."""

    id: Id
    revision: Id
    media_type: MediaType
    bytes: InputBytes
    sha256: Sha256
    origin: Literal["inline", "reference", "retrieval"]
    title: Title | UnsetType = UNSET
    uri: Uri | UnsetType = UNSET
    location: Location | UnsetType = UNSET
    expires_at: Timestamp | UnsetType = UNSET


class DraftArtifact(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft that the run made; nobody wrote, sent or accepted it."""

    id: UuidAnyCase
    name: FileName
    media_type: Literal["text/plain", "text/markdown", "application/json"]
    status: Literal["draft"]
    content: Annotated[str, at_most(262_144)]
    sha256: Sha256
    source_ids: Annotated[tuple[Id, ...], Meta(max_length=16)]

    @override
    def agree(self) -> None:
        agreed(len(set(self.source_ids)) == len(self.source_ids), "a source is named twice")


class Extractor(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Id
    version: Annotated[str, at_most(128, 1)]


class Chunker(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Literal["source-lines-v1"]
    max_bytes: Annotated[int, Meta(ge=128, le=16_384)]


class Pages(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pages of a PDF; `ocr` and `empty` name pages."""

    total: Parts
    ocr: tuple[Positive, ...]
    empty: tuple[Positive, ...]

    @override
    def agree(self) -> None:
        for numbers in (self.ocr, self.empty):
            agreed(len(set(numbers)) == len(numbers), "a page is named twice")
            agreed(all(number <= self.total for number in numbers), "a page after the last one")


class Messages(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages of a thread, counted."""

    total: Parts
    empty: Count


class IngestionManifest(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a document became passages (ingestion §4)."""

    format: Literal["text", "markdown", "pdf", "email"]
    input_sha256: Sha256
    input_bytes: InputBytes
    extractor: Extractor
    chunker: Chunker
    extracted_text_bytes: TextBytes
    indexed_text_bytes: TextBytes
    chunks: Chunks
    ocr_extractor: Extractor | UnsetType = UNSET
    pages: Pages | UnsetType = UNSET
    messages: Messages | UnsetType = UNSET

    @override
    def agree(self) -> None:
        agreed(self.indexed_text_bytes <= self.extracted_text_bytes, "more text indexed than extracted")
        agreed((self.pages is not UNSET) == (self.format == "pdf"), "pages exactly for a PDF")
        agreed((self.messages is not UNSET) == (self.format == "email"), "messages exactly for a thread")
        scanned = self.pages is not UNSET and bool(self.pages.ocr)
        agreed((self.ocr_extractor is not UNSET) == scanned, "an OCR extractor exactly where pages were scanned")
        if self.pages is not UNSET:
            self._kept(self.pages.total, len(self.pages.empty))
        if self.messages is not UNSET:
            self._kept(self.messages.total, self.messages.empty)

    def _kept(self, total: int, empty: int) -> None:
        agreed(empty < total and self.chunks >= total - empty, "fewer passages than parts with text")


class IndexDescriptor(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which embedding an index was made with."""

    provider_id: Id
    vendor: Id
    account_id: Id
    auth_mode: Literal["api-key", "none"]
    model: EmbeddingModelId
    dimensions: Annotated[int, Meta(ge=1, le=4096)]
    metric: Literal["cosine"]
    version: Id


class Hit(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A passage that was found; its `source` is the document."""

    chunk_id: Id
    source: Source
    text: Annotated[Text, at_most(16_384)]
    score: Annotated[float, Meta(ge=-1, le=1)]
    document_sha256: Sha256
    ingestion: IngestionManifest | UnsetType = UNSET

    @override
    def agree(self) -> None:
        location = self.source.location
        agreed(location is not UNSET and location.document_id == self.source.id, "a place in another document")


class RetrievalResult(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a search found, the best first."""

    corpus: Id
    index: IndexDescriptor
    truncated: bool
    hits: Annotated[tuple[Hit, ...], Meta(max_length=16)]

    @override
    def agree(self) -> None:
        agreed(len({hit.chunk_id for hit in self.hits}) == len(self.hits), "a passage that was found twice")
