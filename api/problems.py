"""Codes to statuses, and problems to envelopes: the only place that knows the wire's HTTP statuses (overview §9, §11).

Those of the Host, which only repeat its own codes, are in `api.host.failures`.

A status is a function of the code alone; a code that no row lists is 502.
"""

import json
from collections.abc import Mapping

import msgspec
from msgspec import structs

from actors.errors import Problem, Refused
from eventstore.store import HistoryLost, Unavailable

UNLISTED = 502
MESSAGE_CHARS_MAX = 4_000
ERROR_BYTES_MAX = 64_000
"""What clients read of an error body."""

STARTING = Problem("HOST_STARTING", "The host is starting.", retryable=True)
CLOSING = Problem("HOST_SHUTTING_DOWN", "The host is shutting down.", retryable=True)
ORIGIN = Problem("ORIGIN_DENIED", "This origin is not allowed.")
NOBODY = Problem("UNAUTHORIZED", "A valid bearer token is required.")
VERSION = Problem("UNSUPPORTED_PROTOCOL_VERSION", "This host speaks version 1.0.")
NOWHERE = Problem("NOT_FOUND", "There is nothing at this path for this method.")
BODY = Problem("BODY_TOO_LARGE", "The body is larger than the host accepts.")
MEDIA = Problem("INVALID_REQUEST", "The content type must be application/json.")
ENCODING = Problem("INVALID_REQUEST", "The body must not be content-encoded.")
LATE = Problem("INVALID_REQUEST", "The request was not received in time.")
GARBLED = Problem("INVALID_REQUEST", "This is not an HTTP request that the host can read.")
INTERNAL = Problem("INTERNAL_ERROR", "The host failed to handle the request.")
STORE = Problem("STORE_UNAVAILABLE", "The store does not answer at the moment.", retryable=True)
LOST = Problem("HISTORY_LOST", "The store lost what was recorded of this.", outcome="uncertain")
TOO_LARGE = Problem("RESPONSE_TOO_LARGE", "The answer is larger than clients accept.")

_ROWS: Mapping[int, str] = {
    400: """
        UNSUPPORTED_PROTOCOL_VERSION INVALID_REQUEST
        UNKNOWN_PROVIDER UNSUPPORTED_MODEL UNSUPPORTED_CAPABILITY UNSUPPORTED_TOOLS UNKNOWN_TOOL INVALID_SCHEMA
        TOOL_STREAM_REQUIRED APPROVAL_STREAM_REQUIRED IDEMPOTENCY_UNAVAILABLE
        APPROVAL_UNAVAILABLE APPROVAL_POLICY INVALID_APPROVAL APPLICATION_TOOLS_UNAVAILABLE INVALID_TOOL_EXECUTION
        INVALID_TOOL_OUTPUT TOOL_OUTPUT_LIMIT TOOL_DEFINITION_LIMIT SESSIONS_UNAVAILABLE INVALID_SESSION
        UNSUPPORTED_CONTINUATION SESSION_ACCOUNT_REQUIRED SESSION_HISTORY_CONFLICT SESSION_CONTEXT_UNSUPPORTED
        SESSION_CONTEXT_LIMIT INVALID_SESSION_STATE INVALID_RETRIEVAL RETRIEVAL_UNAVAILABLE NO_RETRIEVAL_EVIDENCE
        INVALID_INGESTION INVALID_DOCUMENT DOCUMENT_LIMIT EMPTY_DOCUMENT EMPTY_EXTRACTION OCR_REQUIRED
        PDF_EXTRACTOR_REQUIRED PDF_ENCRYPTED PDF_PERMISSIONS INVALID_INVITATION INVALID_CONFIG
        UNSUPPORTED_CONFIGURATION INVALID_SETUP_REQUEST INVALID_RUNTIME_REQUEST
    """,
    401: "UNAUTHORIZED INVITATION_REJECTED",
    403: """
        ORIGIN_DENIED FORBIDDEN APPROVAL_REQUIRED APPROVAL_DENIED
        RESOURCE_LIMIT RESOURCE_USAGE_UNKNOWN RESOURCE_ADMISSION_DENIED
    """,
    404: """
        NOT_FOUND APPROVAL_NOT_FOUND TOOL_EXECUTION_NOT_FOUND SESSION_NOT_FOUND JOB_NOT_FOUND SETUP_NOT_FOUND
        RUNTIME_NOT_FOUND
    """,
    409: """
        TOOL_OUTCOME_UNCERTAIN IDEMPOTENCY_CONFLICT OPERATION_IN_PROGRESS OPERATION_UNCERTAIN
        APPROVAL_MISMATCH TOOL_EXECUTION_MISMATCH TOOL_DEFINITION_CONFLICT SESSION_REVISION_CONFLICT SESSION_BUSY
        SESSION_INTERRUPTED SESSION_PROVIDER_MISMATCH SESSION_ACCOUNT_CHANGED SOURCE_CONFLICT CHUNK_CONFLICT
        INDEX_INCOMPATIBLE JOB_EVENT_CONFLICT JOB_ACCOUNT_CHANGED CONFIG_CONFLICT CONFIG_BUSY
        PROVIDER_IDENTITY_CHANGED SETUP_NEW_INSTANCE_REQUIRED SETUP_FINISHED SETUP_NOT_READY RUNTIME_BUSY
    """,
    410: "JOB_EXPIRED",
    413: "BODY_TOO_LARGE",
    429: """
        RATE_LIMITED BUSY QUEUE_FULL APPROVAL_CAPACITY TOOL_EXECUTOR_CAPACITY SESSION_CAPACITY JOB_STORE_FULL
        JOB_WORKER_BUSY CONNECTION_CAPACITY SETUP_CAPACITY
    """,
    500: "INTERNAL_ERROR",
    503: """
        HOST_STARTING HOST_SHUTTING_DOWN AUTH_UNAVAILABLE INVALID_AUTH_POLICY
        ADMISSION_IDENTITY_REQUIRED RESOURCE_POLICY_UNAVAILABLE
        OPERATION_STORE_FULL OPERATION_STORE_ERROR OPERATION_RECORD_LIMIT
        APPROVAL_AUDIT_FAILED JOBS_UNAVAILABLE JOB_STORE_ERROR JOB_STORE_CLOSED JOB_LEASE_LOST CONNECTION_STORE_BUSY
        CONNECTION_STORE_UNAVAILABLE CONFIG_WRITE_FAILED SETUP_UNAVAILABLE
    """,
    504: "IDLE_TIMEOUT TIMEOUT",
}
DEVIATIONS: Mapping[int, str] = {
    # Bad input that upstream answers with 502 only because no row lists its code, and one code of our own.
    400: """
        INVALID_CURSOR
        INVALID_CONTEXT CONTEXT_TOO_LARGE CONTEXT_UNAVAILABLE CONTEXT_NOT_FOUND CONTEXT_CHANGED CONTEXT_EXPIRED
        UNSUPPORTED_MODALITY INVALID_ARTIFACT INVALID_JOB INVALID_JOB_CURSOR JOB_REQUEST_UNSUPPORTED
        JOB_ACCOUNT_REQUIRED UNSUPPORTED_INGESTION
    """,
    # Ours alone.
    404: "RUN_NOT_FOUND",
    410: "CURSOR_EXPIRED HISTORY_LOST",
    503: "STORE_UNAVAILABLE",
    504: "DEADLINE_REACHED",
}
STATUSES: Mapping[str, int] = {
    code: status for table in (_ROWS, DEVIATIONS) for status, codes in table.items() for code in codes.split()
}

_encode = msgspec.json.Encoder().encode


def status_of(code: str) -> int:
    """The HTTP status of *code*."""
    known = STATUSES.get(code)
    if known is not None:
        return known
    return 503 if code.startswith("RUNTIME_") else UNLISTED


def problem_of(failure: Exception) -> Problem:
    """What a caller is told of *failure*."""
    match failure:
        case Refused(problem=problem):
            return problem
        case Unavailable():
            return STORE
        case HistoryLost():
            return LOST
        case _:
            return INTERNAL


def envelope(problem: Problem) -> bytes:
    """The body that tells *problem*."""
    return _encode({"error": structs.replace(problem, message=_sendable(problem.message))})


def enveloped(error: bytes) -> bytes:
    """The body that tells the *error* object of a terminal event, member for member unless it is too long."""
    whole = b'{"error":%b}' % error
    if len(whole) <= ERROR_BYTES_MAX:
        return whole
    told = json.loads(error)
    return _encode({"error": told | {"message": _sendable(str(told["message"]))}})


def _sendable(message: str) -> str:
    """The beginning of *message*, with nothing that UTF-8 cannot carry."""
    return message[:MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode()
