"""What a strict client accepts as sources, drafts and retrieved evidence.

Nothing here waits or reads a clock; rules are those of the wire digest, the strictest client's where they differ.
"""

import hashlib
import re

from tests.strict_values import (
    EMBEDDING_MODEL,
    ID,
    MEDIA,
    SHA,
    UUID_ANY_CASE,
    Check,
    Json,
    Object,
    array,
    boolean,
    both,
    count,
    distinct,
    integer,
    items,
    member,
    members,
    need,
    number,
    one_of,
    shape,
    string,
    text,
    timestamp,
    units,
    uri,
)

_POSITION = integer(1, 1_000_000)
_ID = text(1, 128, ID)
_SHA = text(64, 64, SHA)


def _ordered(value: Json) -> None:
    location = members(value)
    for start, end in (("page", "pageEnd"), ("startLine", "endLine")):
        if end in location:
            need(count(location[end]) >= count(member(value, start)), f"{end} before {start}")


LOCATION = both(
    shape(
        {},
        {
            **dict.fromkeys(("documentId", "threadId", "messageId"), _ID),
            **dict.fromkeys(("page", "pageEnd", "startLine", "endLine"), _POSITION),
            "section": text(0, 256),
        },
        strict=True,
    ),
    _ordered,
)
_DESCRIBED: dict[str, Check] = {"title": text(0, 256), "uri": uri, "location": LOCATION}
MANIFEST = shape(
    {
        "id": _ID,
        "revision": _ID,
        "mediaType": one_of(*MEDIA),
        "bytes": integer(1, 33_554_432),
        "sha256": _SHA,
        "origin": one_of("inline", "reference", "retrieval"),
    },
    {**_DESCRIBED, "expiresAt": timestamp},
    strict=True,
)


def _file_name(value: Json) -> None:
    name = string(value)
    need(1 <= units(name) <= 128 and name not in {".", ".."}, "not a file name")
    need(re.search(r"[/\\\x00-\x1f]", name) is None, "a path or a control character in a file name")


ARTIFACT = shape(
    {
        "id": text(36, 36, UUID_ANY_CASE),
        "name": _file_name,
        "mediaType": one_of("text/plain", "text/markdown", "application/json"),
        "status": one_of("draft"),
        "content": text(0, 262_144),
        "sha256": _SHA,
        "sourceIds": array(_ID, 16),
    },
    strict=True,
)
_EXTRACTOR = shape({"id": _ID, "version": text(1, 128)}, strict=True)
_INGESTION = shape(
    {
        "format": one_of("text", "markdown", "pdf", "email"),
        "inputSha256": _SHA,
        "inputBytes": integer(1, 33_554_432),
        "extractor": _EXTRACTOR,
        "chunker": shape({"id": one_of("source-lines-v1"), "maxBytes": integer(128, 16_384)}, strict=True),
        "extractedTextBytes": integer(1, 1_048_576),
        "indexedTextBytes": integer(1, 1_048_576),
        "chunks": integer(1, 256),
    },
    {
        "ocrExtractor": _EXTRACTOR,
        "pages": shape({"total": integer(1, 1000), "ocr": array(integer(1)), "empty": array(integer(1))}, strict=True),
        "messages": shape({"total": integer(1, 1000), "empty": integer()}, strict=True),
    },
    strict=True,
)


def ingestion(value: Json) -> None:
    """Nothing, for a manifest whose counts agree with each other."""
    _INGESTION(value)
    found = members(value)
    need(count(found["indexedTextBytes"]) <= count(found["extractedTextBytes"]), "more indexed than extracted")
    kind = found["format"]
    need(("pages" in found) == (kind == "pdf"), "pages, or none, for this format")
    need(("messages" in found) == (kind == "email"), "messages, or none, for this format")
    scanned = items(member(value, "pages", "ocr")) if kind == "pdf" else []
    need(("ocrExtractor" in found) == bool(scanned), "an OCR extractor exactly if pages were scanned")
    if kind == "pdf":
        _pages(found["pages"])
        _kept(member(value, "pages", "total"), len(items(member(value, "pages", "empty"))), found["chunks"])
    if kind == "email":
        _kept(member(value, "messages", "total"), count(member(value, "messages", "empty")), found["chunks"])


def _pages(value: Json) -> None:
    for name in ("ocr", "empty"):
        numbers = items(member(value, name))
        distinct(numbers, name)
        need(all(count(one) <= count(member(value, "total")) for one in numbers), f"{name} past the last page")


def _kept(total: Json, empty: int, chunks: Json) -> None:
    need(empty < count(total), "nothing but empty parts")
    need(count(chunks) >= count(total) - empty, "fewer chunks than parts")


_INDEX = shape(
    {
        **dict.fromkeys(("providerId", "vendor", "accountId", "version"), _ID),
        "authMode": one_of("api-key", "none"),
        "model": text(1, 200, EMBEDDING_MODEL),
        "dimensions": integer(1, 4096),
        "metric": one_of("cosine"),
    },
    strict=True,
)
_HIT = shape(
    {
        "chunkId": _ID,
        "source": shape({"id": _ID, "revision": _ID, "location": LOCATION}, _DESCRIBED, strict=True),
        "text": text(1, 16_384),
        "score": number(-1, 1),
        "documentSha256": _SHA,
    },
    {"ingestion": ingestion},
    strict=True,
)
_RETRIEVAL = shape({"corpus": _ID, "index": _INDEX, "truncated": boolean, "hits": array(_HIT, 16)}, strict=True)


def retrieval(asked: Json, value: Json) -> None:
    """Nothing, if the evidence in *value* is sound and within what was *asked*."""
    _RETRIEVAL(value)
    want = members(asked)
    hits = items(member(value, "hits"))
    need(member(value, "corpus") == want["corpus"], "another corpus")
    distinct([member(hit, "chunkId") for hit in hits], "chunkId")
    need(len(hits) <= count(want.get("limit", 8)), "more hits than asked")
    size = sum(len(string(member(hit, "text")).encode("utf-8", "surrogatepass")) for hit in hits)
    need(size <= count(want.get("maxContextBytes", 65_536)), "more text than asked")
    chosen = items(want["sourceIds"]) if "sourceIds" in want else None
    for hit in hits:
        number(_least(want), 1)(member(hit, "score"))
        source = member(hit, "source", "id")
        need(chosen is None or source in chosen, "a source that was not selected")
        need(member(hit, "source", "location", "documentId") == source, "a location in another document")


def _least(asked: Object) -> float:
    least = asked.get("minScore", -1)
    return least if isinstance(least, int | float) else -1


def supported(hit: Json, sources: list[Json]) -> None:
    """Nothing, if *sources* hold the evidence of *hit*."""
    raw = string(member(hit, "text")).encode("utf-8", "surrogatepass")
    found = next((one for one in sources if member(one, "id") == member(hit, "chunkId")), None)
    need(member(found, "origin") == "retrieval", "evidence of another origin")
    need(member(found, "revision") == member(hit, "source", "revision"), "evidence of another revision")
    need(member(found, "location") == member(hit, "source", "location"), "evidence of another place")
    need(member(found, "bytes") == len(raw), "evidence of another size")
    need(member(found, "sha256") == hashlib.sha256(raw).hexdigest(), "evidence with another digest")
