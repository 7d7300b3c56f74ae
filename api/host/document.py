"""What the OpenAPI document says of the Host protocol: one route for envelopes, one for event streams (Host protocol §3 to §9).

Nothing here waits or looks at a host.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from api.host.bodies import CONTEXT_WORDS, REVISION_MAX, RUN_ID_UNITS_MAX, TIME_MAX
from api.host.envelope import KEY_BYTES_MAX
from api.host.failures import VERSION, Code
from api.host.requests import DEFAULT_REASON, LIMIT, LIMIT_MAX, MUTATIONS, OPERATIONS
from projections.host_result import Status

Schema: TypeAlias = dict[str, Any]

_WORD: Schema = {"type": "string", "minLength": 1}
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": REVISION_MAX}
_REVISION: Schema = {"type": "integer", "minimum": 1, "maximum": REVISION_MAX}
_TIME: Schema = {"type": "integer", "minimum": -TIME_MAX, "maximum": TIME_MAX}
_MAYBE_TIME: Schema = _TIME | {"type": ["integer", "null"]}
_MAP: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": RUN_ID_UNITS_MAX}
_STATUS: Schema = {"enum": list(get_args(Status))}
_ANYTHING: Schema = {"description": "Any JSON value."}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object; whatever else it has is ignored (§2)."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_CONTEXT = _object(
    {"runId": _NAME},
    {word: _TEXT for word in CONTEXT_WORDS if word != "runId"} | {"deadlineUnixMs": _MAYBE_TIME, "metadata": _MAP},
)
_NAMED: Schema = {"runId": _NAME, "expectedRevision": _REVISION}
_BODIES: Mapping[str, Schema] = {
    "create_run": _object({"context": _ref("HostContext")}, {"input": _ANYTHING, "metadata": _MAP}),
    "get_run": _object({"runId": _NAME}),
    "cancel_run": _object(_NAMED, {"reason": {"type": "string", "default": DEFAULT_REASON}}),
    "resolve_approval": _object(
        {**_NAMED, "approvalId": _WORD, "resolution": {"enum": ["approved", "denied"]}},
        {"reason": _TEXT, "metadata": _MAP},
    ),
    "resume_run": _object({**_NAMED, "approvalId": _WORD}, {"input": _ANYTHING}),
    "list_events": _object(
        {"runId": _NAME},
        {
            "afterSequence": _NUMBER | {"default": 0},
            "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
        },
    ),
}


def _envelope(operation: str) -> Schema:
    key: Schema = {"type": "string", "maxLength": KEY_BYTES_MAX}
    required: dict[str, Schema] = {
        "protocolVersion": {"const": VERSION},
        "requestId": _WORD,
        "operation": {"const": operation},
        "body": _BODIES[operation],
    }
    if operation in MUTATIONS:
        return _object(required | {"idempotencyKey": key | {"minLength": 1}}, {"metadata": _MAP})
    return _object(required, {"idempotencyKey": key, "metadata": _MAP})


def _answer(operations: list[str], body: str) -> Schema:
    return _object(
        {
            "protocolVersion": {"const": VERSION},
            "requestId": _WORD,
            "operation": {"enum": operations},
            "ok": {"const": True},
            "body": _ref(body),
            "error": {"type": "null"},
        }
    )


_APPROVAL = _object(
    {
        "approvalId": _WORD,
        "toolCallId": _WORD,
        "toolName": _WORD,
        "resolution": {"enum": ["pending", "approved"]},
        "reason": _TEXT,
        "createdAtUnixMs": _TIME,
        "resolvedAtUnixMs": _MAYBE_TIME,
        "metadata": _MAP,
    }
)
_VIEW = _object(
    {
        "runId": _WORD,
        "revision": _REVISION,
        "status": _STATUS,
        "context": _ref("HostContext"),
        "createdAtUnixMs": _TIME,
        "updatedAtUnixMs": _TIME,
        "completedAtUnixMs": _MAYBE_TIME,
        "approval": {"anyOf": [_ref("HostApproval"), {"type": "null"}]},
        "result": _ANYTHING,
        "error": _TEXT,
        "metadata": _MAP,
    }
)
_EVENT = _object(
    {
        "runId": _WORD,
        "sequence": _REVISION,
        "type": _WORD,
        "status": _STATUS,
        "stepId": _TEXT,
        "toolCallId": _TEXT,
        "timestampUnixMs": _TIME,
        "data": _ANYTHING,
        "metadata": _MAP,
    }
)
_PAGE = _object(
    {
        "events": {"type": "array", "maxItems": LIMIT_MAX, "items": _ref("HostEvent")},
        "nextSequence": _NUMBER,
        "hasMore": {"type": "boolean"},
    }
)
_ERROR = _object(
    {
        "code": {"enum": list(get_args(Code))},
        "message": _TEXT,
        "retryable": {"type": "boolean"},
        "details": _ANYTHING,
        "metadata": _MAP,
    }
)
_REFUSED = _object(
    {
        "protocolVersion": {"const": VERSION},
        "requestId": _TEXT,
        "operation": {"enum": list(OPERATIONS)},
        "ok": {"const": False},
        "body": {"type": "object", "maxProperties": 0},
        "error": _ref("HostError"),
    }
)
SCHEMAS: Mapping[str, Schema] = {
    "HostContext": _CONTEXT,
    "HostEnvelope": {"oneOf": [_envelope(operation) for operation in OPERATIONS]},
    "HostSubmission": _object({"runId": _WORD, "revision": _REVISION, "status": _STATUS}),
    "HostApproval": _APPROVAL,
    "HostRunView": _VIEW,
    "HostEvent": _EVENT,
    "HostEventPage": _PAGE,
    "HostError": _ERROR,
    "HostAnswer": {
        "oneOf": [
            _answer(sorted(MUTATIONS), "HostSubmission"),
            _answer(["get_run"], "HostRunView"),
            _answer(["list_events"], "HostEventPage"),
        ]
    },
    "HostRefusal": _REFUSED,
}
EXCHANGE: Schema = {
    "operationId": "exchangeEnvelope",
    "summary": "Ask one thing of the Agent Host protocol; the status repeats the code of the answer.",
    "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("HostEnvelope")}}},
}
EVENTS: Schema = {
    "operationId": "followHostRun",
    "summary": "Follow a run's Host events until its end, on any node.",
}
FOLLOWING: tuple[Schema, ...] = (
    {
        "name": "runId",
        "in": "path",
        "required": True,
        "description": "The run's Host name, or the id of a wire run; percent-encoded.",
        "schema": _NAME,
    },
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The Host sequence of the last event that was seen.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The same, for clients that cannot send the header.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
    },
)
STREAM: Schema = {
    "type": "string",
    "description": "Frames of `id`, which is a Host sequence, `event` and one line of `data`, which is a HostEvent.",
}
