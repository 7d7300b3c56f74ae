"""An envelope, decoded: a request for the service, or the refusal that the first failing check answers (Host protocol §6).

Pure, so any number may be decoded at once; what a client got wrong is never mistaken for a fault of ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from actors.jsontext import NotJson, is_json, strict_json
from api.host.bodies import Malformed, body_of, string, string_map
from api.host.failures import UNREADABLE, VERSION, Failure, unsupported
from api.host.requests import MUTATIONS, OPERATIONS, Call, Operation, Request

KEY_BYTES_MAX = 512
SUPPORTED = (VERSION,)


class Refusal(NamedTuple):
    """Why an envelope never reaches the service, and what can be said of it; *slug* names the check, and goes nowhere."""

    request_id: str
    operation: Operation
    failure: Failure
    slug: str


class _Head(NamedTuple):
    """How far an envelope was read when a check failed."""

    request_id: str = ""
    operation: Operation = "get_run"


def decoded(text: bytes) -> Request | Refusal:
    """The request that the JSON *text* is."""
    try:
        value = strict_json(text.decode("utf-8"), repeats=True)
    except (UnicodeDecodeError, NotJson):
        return Refusal("", "get_run", UNREADABLE, "not-json")
    return request_of(value)


def request_given(envelope: object) -> Request | Refusal:
    """The request that *envelope* is, a value that a program made: it may hold what no JSON text can."""
    if not is_json(envelope):
        return Refusal("", "get_run", UNREADABLE, "not-json")
    return request_of(envelope)


def request_of(envelope: object) -> Request | Refusal:
    """The request that the JSON value *envelope* is."""
    if not isinstance(envelope, dict):
        return _malformed(_Head(), Malformed("envelope-not-object", "An envelope is an object."))
    members = cast("Mapping[str, Any]", envelope)
    request_id: object = members.get("requestId", "")
    if not isinstance(request_id, str):
        return _malformed(_Head(), Malformed("envelope-type", "requestId must be a string."))
    head = _Head(request_id)
    version = members.get("protocolVersion")
    if isinstance(version, str) and version not in SUPPORTED:
        return Refusal(request_id, "get_run", unsupported(), "unsupported-version")
    operation = members.get("operation")
    if isinstance(operation, str) and operation not in OPERATIONS:
        return _malformed(head, Malformed("operation-unknown", "There is no such operation."))
    if isinstance(operation, str):
        head = _Head(request_id, cast("Operation", operation))
    try:
        return _request(members, head)
    except Malformed as fault:
        return _malformed(head, fault)


def request_typed(
    version: str, operation: Operation, body: Mapping[str, Any], *, request_id: str, key: str = ""
) -> Request | Refusal:
    """The request of a caller that has parsed it already; a refusal of its version keeps its operation (§6)."""
    if version not in SUPPORTED:
        return Refusal(request_id, operation, unsupported(), "unsupported-version")
    try:
        return _whole(_Head(request_id, operation), Call(request_id, key, {}, version), body)
    except Malformed as fault:
        return _malformed(_Head(request_id, operation), fault)


def selected(offered: Sequence[str]) -> str | None:
    """The version to speak with a peer that offers *offered*: the first of ours that it has (§14)."""
    return next((version for version in SUPPORTED if version in offered), None)


def _request(members: Mapping[str, Any], head: _Head) -> Request:
    """The rest of the checks, from row 5 on."""
    version = members.get("protocolVersion")
    if not isinstance(version, str):
        raise Malformed("version-missing", "protocolVersion must be a string.")
    key = string(members, "idempotencyKey", "", "envelope-type")
    metadata = string_map(members, "metadata", "envelope-type")
    if "operation" not in members:
        raise Malformed("operation-unknown", "operation must name an operation.")
    if not isinstance(members["operation"], str):
        raise Malformed("envelope-type", "operation must be a string.")
    call = Call(head.request_id, key, metadata, version)
    return _whole(head, call, members.get("body", {}))


def _whole(head: _Head, call: Call, body: object) -> Request:
    """The checks from row 9 on."""
    if not call.request_id:
        raise Malformed("request-id-missing", "requestId must not be empty.")
    if head.operation in MUTATIONS and not call.idempotency_key:
        raise Malformed("idempotency-key-missing", "A mutation needs an idempotencyKey.")
    if len(call.idempotency_key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise Malformed("idempotency-key-long", f"idempotencyKey has at most {KEY_BYTES_MAX} bytes.")
    if not isinstance(body, dict):
        raise Malformed("body-not-object", "body must be an object.")
    return Request(call, head.operation, body_of(head.operation, cast("Mapping[str, Any]", body)))


def _malformed(head: _Head, fault: Malformed) -> Refusal:
    return Refusal(head.request_id, head.operation, Failure("invalid_request", str(fault)), fault.slug)
