"""The shape of a run request: every member with its type and bounds (runs §3, context §1)."""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import UNSET, Struct

from actors.errors import Refused
from actors.request_parts import (
    ApplicationTool,
    ApprovalsOption,
    ContextInput,
    ImageInput,
    Location,
    OutputArtifact,
    PastMessage,
    PdfInput,
    Reference,
    ResumeOption,
    RetrievalOption,
    RetryOption,
    RunRequest,
    SessionOption,
    Source,
    TextInput,
)
from actors.shapes import (
    SAFE,
    Check,
    Misshapen,
    array,
    boolean,
    number,
    one_of,
    raw_object,
    record,
    strings,
    tagged,
    text,
    whole,
)

S = TypeVar("S", bound=Struct)

_INT32 = 2**31 - 1
_BLANK = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What ECMAScript's `\\s` means, as the inside of a character class."""

_ID = text(1, 128, r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}")
_POSITION = whole(1, 1_000_000)
_TOOL_NAME = text(1, 64, r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
_UUID = text(36, 36, r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TEXT_MEDIA = ("text/plain", "text/markdown")
_IMAGE_MEDIA = ("image/png", "image/jpeg", "image/webp")
_PDF_MEDIA = ("application/pdf",)
_BASE64 = text(1, 44_739_244)

_LOCATION = record(
    Location,
    {},
    {
        **dict.fromkeys(("document_id", "thread_id", "message_id"), _ID),
        **dict.fromkeys(("page", "page_end", "start_line", "end_line"), _POSITION),
        "section": text(0, 256),
    },
)
_SOURCE = record(
    Source,
    {"id": _ID, "revision": _ID},
    {"title": text(0, 256), "uri": text(0, 2048, rf"(https|app)://[^{_BLANK}]+"), "location": _LOCATION},
)


def _binary(made: Any, *media: str) -> Check[Any]:
    return record(made, {"source": _SOURCE, "media_type": one_of(*media), "data": _BASE64}, {})


def _keeping_schema(made: Callable[..., S]) -> Callable[..., S]:
    """As *made*, under the name by which its struct keeps `outputSchema`."""

    def make(output_schema: Any = UNSET, **members: Any) -> S:
        return made(kept_output_schema=output_schema, **members)

    return make


_ATTACHMENT: Check[ContextInput] = tagged(
    "type",
    {
        "text": record(
            TextInput, {"source": _SOURCE, "media_type": one_of(*_TEXT_MEDIA), "text": text(1, 1_000_000)}, {}
        ),
        "image": _binary(ImageInput, *_IMAGE_MEDIA),
        "pdf": _binary(PdfInput, *_PDF_MEDIA),
        "reference": record(
            Reference,
            {"id": _ID, "revision": _ID, "media_type": one_of(*_TEXT_MEDIA, *_IMAGE_MEDIA, *_PDF_MEDIA)},
            {},
        ),
    },
)
_RETRIEVAL = record(
    RetrievalOption,
    {"corpus": _ID},
    {
        "source_ids": array(_ID, 1, 1000),
        "query": text(1, 16_384),
        "limit": whole(1, 16),
        "max_context_bytes": whole(1, 262_144),
        "min_score": number(-1, 1),
    },
)
_APPROVALS = record(
    ApprovalsOption,
    {"mode": one_of("interactive"), "idle_policy": one_of("pause", "continue")},
    {"expires_after_ms": whole(1, _INT32)},
)
_APPLICATION_TOOL = record(
    _keeping_schema(ApplicationTool),
    {"name": _TOOL_NAME, "description": text(1, 10_000), "input_schema": raw_object},
    {"output_schema": raw_object, "requires_approval": boolean},
)
_RUN = record(
    _keeping_schema(RunRequest),
    {
        "provider": text(1, 80, r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}"),
        "model": text(1, 200, r"[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}"),
        "input": text(1, 100_000),
    },
    {
        "instructions": text(0, 100_000),
        "history": array(
            record(PastMessage, {"role": one_of("user", "assistant"), "content": text(0, 100_000)}, {}), 0, 100
        ),
        "attachments": array(_ATTACHMENT, 0, 16),
        "retrieval": _RETRIEVAL,
        "output_artifact": record(
            OutputArtifact,
            {"name": text(1, 128, r"[^/\\\x00-\x1f]+"), "media_type": one_of(*_TEXT_MEDIA, "application/json")},
            {},
        ),
        "idempotency_key": _ID,
        "retry": record(
            RetryOption,
            {"max_attempts": whole(1, 5)},
            {"base_delay_ms": whole(0, 60_000), "max_delay_ms": whole(0, 60_000)},
        ),
        "session": record(SessionOption, {"id": _UUID, "revision": whole(0, SAFE)}, {}),
        "approvals": _APPROVALS,
        "application_tools": array(_APPLICATION_TOOL, 1, 32),
        "tools": array(_TOOL_NAME, 0, 32),
        "required_capabilities": array(text(1, 80, r"[a-zA-Z][a-zA-Z0-9._-]{0,79}"), 0, 32, distinct=True),
        "max_steps": whole(1, 64),
        "max_output_tokens": whole(1, 65_536),
        "idle_timeout_ms": whole(0, _INT32),
        "output_schema": raw_object,
        "metadata": strings(entries=32, key=80, value=500),
        "resume": record(ResumeOption, {"grace_ms": whole(1_000, 3_600_000)}, {}),
    },
)


def shaped(document: object) -> RunRequest:
    """The *document* as a request of which nothing but the shape was checked.

    Raises:
        Refused: INVALID_REQUEST, naming the member.
    """
    try:
        return _RUN(document)
    except Misshapen as fault:
        raise Refused("INVALID_REQUEST", str(fault)) from None
