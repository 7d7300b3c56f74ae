"""The strictest Host client: what it sends, and which answers it takes (Host protocol §8, §9, §12, §13).

Nothing here knows how a host is built.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

Object: TypeAlias = dict[str, Any]

VERSION = "2026-07-01"
OPERATIONS = ("create_run", "get_run", "cancel_run", "resolve_approval", "resume_run", "list_events")
CODES = frozenset(
    {
        "invalid_request",
        "unsupported_protocol_version",
        "unauthorized",
        "forbidden",
        "not_found",
        "conflict",
        "unavailable",
        "internal",
    }
)
STATUSES = ("created", "running", "waiting_for_approval", "completed", "failed", "cancelled", "timed_out")
WORDS = (
    "runId",
    "traceId",
    "requestId",
    "tenantId",
    "userId",
    "applicationId",
    "workspaceId",
    "conversationId",
    "agentId",
    "locale",
)
SENSITIVE = ("token", "secret", "password", "authorization", "api_key", "api-key", "apiKey", "cookie")


class Rejected(Exception):
    """The client does not take this."""


class RefusedToSend(Exception):
    """The client does not send this."""


def taken(text: bytes | str) -> Object:
    """The answer that *text* is, if the client takes its envelope."""
    try:
        value = json.loads(text, parse_constant=_no, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, UnicodeEncodeError) as error:
        raise Rejected(str(error)) from None
    answer = _object(value)
    _need(isinstance(answer.get("protocolVersion"), str) and bool(answer["protocolVersion"]), "protocolVersion")
    _need(isinstance(answer.get("requestId", ""), str), "requestId")
    _need(answer.get("operation") in OPERATIONS, "operation")
    _need(answer["protocolVersion"] == VERSION, "version")
    _object(answer.get("body", {}))
    failed = answer.get("error") is not None
    if failed:
        _error(_object(answer["error"]))
    ok: Any = answer.get("ok", not failed)
    _need(isinstance(ok, bool) and ok is not failed, "ok")
    _need(failed or bool(answer.get("requestId")), "no requestId")
    return answer


def body_taken(operation: str, body: Object) -> None:
    """Nothing, if the client takes *body* as the result of *operation*."""
    match operation:
        case "get_run":
            _view(body)
        case "list_events":
            page_taken(body)
        case _:
            _name(body)
            _known(body)


def page_taken(body: Object) -> None:
    """Nothing, if the client takes *body* as a page of events."""
    events = body.get("events")
    _need(isinstance(events, list), "events")
    following, more = body.get("nextSequence", 0), body.get("hasMore", False)
    _need(_is_number(following), "nextSequence")
    _need(isinstance(more, bool), "hasMore")
    last = 0
    for one in events or ():
        event = _object(one)
        _need(isinstance(event.get("runId"), str) and bool(event["runId"]), "runId")
        _need(_is_number(event.get("sequence")) and event["sequence"] > last, "sequence")
        last = event["sequence"]
        _need(isinstance(event.get("type"), str) and bool(event["type"]), "type")
        _need(event.get("status") in STATUSES, "status")
        _need(all(isinstance(event.get(name, ""), str) for name in ("stepId", "toolCallId")), "step or call")
        _need(_is_number(event.get("timestampUnixMs", 0)), "timestampUnixMs")
        _map(event.get("metadata", {}))
    _need(bool(events) or not more, "an empty page that goes on")
    _need(not events or following == last, "nextSequence is not the last")


def whole(answer: bytes | str) -> Object:
    """The answer, if a host may give it: what the client takes, and every member that a server always sends."""
    told = taken(answer)
    _need(set(told) == {"protocolVersion", "requestId", "operation", "ok", "body", "error"}, "members")
    if told["ok"]:
        body_taken(told["operation"], told["body"])
    else:
        _need(told["body"] == {}, "a body beside an error")
        _need(set(told["error"]) == {"code", "message", "retryable", "details", "metadata"}, "error members")
        _need(bool(told["error"]["message"]), "no message")
    return told


def built(operation: str, args: Mapping[str, Any]) -> Object:
    """The body that the client sends for *operation*.

    Raises:
        RefusedToSend: it sends no such thing.
    """
    name = args.get("runId", "")
    if not name or (operation in {"resolve_approval", "resume_run"} and not args.get("approvalId")):
        raise RefusedToSend("an empty id")
    if operation in {"cancel_run", "resolve_approval", "resume_run"} and not args.get("expectedRevision"):
        raise RefusedToSend("no revision")
    body: Object = {"runId": name, "expectedRevision": args.get("expectedRevision")}
    match operation:
        case "create_run":
            metadata = {
                key: value
                for key, value in args.get("contextMetadata", {}).items()
                if not any(word.lower() in key.lower() for word in SENSITIVE)
            }
            context = dict.fromkeys(WORDS, "") | {"runId": name, "deadlineUnixMs": None, "metadata": metadata}
            return {"context": context, "input": args.get("input", {}), "metadata": args.get("metadata", {})}
        case "get_run":
            return {"runId": name}
        case "cancel_run":
            return body | {"reason": args.get("reason", "")}
        case "resolve_approval":
            if args.get("resolution") not in {"approved", "denied"}:
                raise RefusedToSend("no decision")
            more = {"reason": args.get("reason", ""), "metadata": args.get("metadata", {})}
            return body | {"approvalId": args["approvalId"], "resolution": args["resolution"]} | more
        case "resume_run":
            return body | {"approvalId": args["approvalId"], "input": args.get("input", {})}
        case _:
            limit = args.get("limit", 256)
            if not 1 <= limit <= 1000:
                raise RefusedToSend("a limit out of range")
            return {"runId": name, "afterSequence": args.get("afterSequence", 0), "limit": limit}


def envelope(operation: str, body: Any, *, request_id: str = "r-1", key: str = "") -> Object:
    """A whole envelope."""
    return {
        "protocolVersion": VERSION,
        "requestId": request_id,
        "idempotencyKey": key,
        "operation": operation,
        "metadata": {},
        "body": body,
    }


def _error(error: Object) -> None:
    _need(error.get("code") in CODES, "code")
    _need(isinstance(error.get("message", ""), str), "message")
    _need(isinstance(error.get("retryable", False), bool), "retryable")
    _map(error.get("metadata", {}))


def _view(view: Object) -> None:
    name = _name(view)
    _known(view)
    context = _object(view.get("context"))
    _need(all(isinstance(context.get(word, ""), str) for word in WORDS), "context")
    _need(context.get("runId", "") in {"", name}, "another run")
    _need(context.get("deadlineUnixMs") is None or _is_number(context["deadlineUnixMs"]), "deadlineUnixMs")
    metadata = _map(context.get("metadata", {}))
    _need(not any(word in key for key in metadata for word in SENSITIVE), "a sensitive name")
    _need(all(_is_number(view.get(when, 0)) for when in ("createdAtUnixMs", "updatedAtUnixMs")), "times")
    _need(view.get("completedAtUnixMs") is None or _is_number(view["completedAtUnixMs"]), "completedAtUnixMs")
    _need(isinstance(view.get("error", ""), str), "error")
    _map(view.get("metadata", {}))
    if view.get("approval") is not None:
        _approval(_object(view["approval"]))


def _approval(approval: Object) -> None:
    for word in ("approvalId", "toolCallId", "toolName"):
        _need(isinstance(approval.get(word), str) and bool(approval[word]), word)
    resolution = approval.get("resolution")
    _need(resolution in {"pending", "approved", "denied"}, "resolution")
    _need(isinstance(approval.get("reason", ""), str), "reason")
    _need(_is_number(approval.get("createdAtUnixMs", 0)), "createdAtUnixMs")
    _need((approval.get("resolvedAtUnixMs") is None) == (resolution == "pending"), "resolvedAtUnixMs")
    _map(approval.get("metadata", {}))


def _name(body: Object) -> str:
    name = body.get("runId")
    _need(isinstance(name, str) and bool(name), "runId")
    _need(_is_number(body.get("revision", 0)) and body.get("revision", 0) != 0, "revision")
    return str(name)


def _known(body: Object) -> None:
    _need(body.get("status") in STATUSES, "status")


def _object(value: Any) -> Object:
    _need(isinstance(value, dict), "not an object")
    found: Object = value
    return found


def _map(value: Any) -> Mapping[str, str]:
    found = _object(value)
    _need(all(isinstance(one, str) for one in found.values()), "not a map of strings")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _need(holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not holds:
        raise Rejected(what)


def _no(word: str) -> NoReturn:
    raise Rejected(word)


def _finite(digits: str) -> float:
    number = float(digits)
    _need(number not in (float("inf"), float("-inf")), digits)
    return number
