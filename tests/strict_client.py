"""The strictest published client as an oracle: it takes bytes and says what that client would do with them.

Nothing here waits, reads a clock or opens a socket; whoever has a socket feeds it.

- `StreamCheck(request)` reads an event stream: `feed` it bytes in any pieces, then `close` it; `result()` is its end.
- `opened_stream` judges the head of a streamed answer and gives its `StreamCheck`.
- `checked_response` judges a whole answer to one call.
- `host_rules`, `host_headers` and `host_answer` say what a host may send, which is less than what clients bear.
"""

from tests.host_rules import Headers, host_answer, host_headers, host_rules, values
from tests.strict_answers import ANSWERS, ENVELOPE
from tests.strict_stream import ClientError, StreamCheck, told
from tests.strict_values import Json, Object, Unsound, member, parsed

__all__ = (
    "ClientError",
    "Headers",
    "Json",
    "Object",
    "StreamCheck",
    "checked_response",
    "host_answer",
    "host_headers",
    "host_rules",
    "opened_stream",
    "values",
)

BODY_BYTES_MAX = 2_000_000
ERROR_BYTES_MAX = 64_000


def opened_stream(request: Object, status: int, headers: Headers, error_body: bytes = b"") -> StreamCheck:
    """The check of the stream that this head begins; raises `ClientError` if it begins none."""
    _check_status(status, error_body)
    _check_version(headers)
    media = (values(headers, "Content-Type") or [""])[0].partition(";")[0].strip().lower()
    if media != "text/event-stream":
        raise ClientError("INVALID_RESPONSE", f"a stream of {media!r}")
    return StreamCheck(request)


def checked_response(op: str, request: Object | None, status: int, headers: Headers, body: bytes) -> Json:
    """What the client's call *op* returns for this answer; raises `ClientError`.

    *op* is one of the calls of the shared vectors: `stream`, `run`, `protocol`, `providers`, `job-events`, ….
    """
    if op == "stream":
        stream = opened_stream(request or {}, status, headers, body)
        stream.feed(body)
        return stream.result()
    _check_status(status, body)
    _check_version(headers)
    if len(body) > BODY_BYTES_MAX:
        raise ClientError("RESPONSE_TOO_LARGE", f"a body of {len(body)} bytes")
    try:
        value = parsed(body.decode("utf-8", "strict"))
        ANSWERS[op](request or {}, value)
    except (Unsound, UnicodeDecodeError) as error:
        raise ClientError("INVALID_RESPONSE", str(error)) from error
    return value


def _check_status(status: int, body: bytes) -> None:
    if 200 <= status < 300:
        return
    try:
        envelope = parsed(body[:ERROR_BYTES_MAX].decode("utf-8", "strict"))
        ENVELOPE(envelope)
    except (Unsound, UnicodeDecodeError) as error:
        raise ClientError("HTTP_ERROR", f"status {status}", retryable=status == 429 or status >= 500) from error
    raise told(member(envelope, "error"))


def _check_version(headers: Headers) -> None:
    versions = values(headers, "AgenticDriver-Version")
    if versions not in ([], ["1.0"]):
        raise ClientError("UNSUPPORTED_PROTOCOL_VERSION", str(versions))
