"""The OpenAPI document of the routes, made from the types that serve them; `python -m api.openapi` prints it.

Nothing here waits or looks at a host: the document is the same for every one.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from actors.errors import Problem
from actors.request import RunRequest
from actors.shapes import SAFE
from actors.viewing import PAGE_EVENTS_MAX, State
from api.host import document as host
from api.problems import STATUSES
from api.wire.jobs import JobInfo, Page
from api.wire.readiness import Word
from api.wire.sessions import Forgotten, Snapshot
from projections.wire_feed import Result

Schema: TypeAlias = dict[str, Any]

_NAME = {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"}
_BOUNDS: Mapping[str, Schema] = {
    "provider": {"pattern": "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}$"},
    "model": {"pattern": r"^[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}$"},
    "input": {"minLength": 1, "maxLength": 100_000},
    "instructions": {"maxLength": 100_000},
    "history": {"maxItems": 100},
    "attachments": {"maxItems": 16},
    "idempotencyKey": {"pattern": "^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}$"},
    "applicationTools": {"minItems": 1, "maxItems": 32},
    "tools": {"maxItems": 32, "uniqueItems": True, "items": {"type": "string", **_NAME}},
    "requiredCapabilities": {"maxItems": 32, "uniqueItems": True},
    "maxSteps": {"minimum": 1, "maximum": 64},
    "maxOutputTokens": {"minimum": 1, "maximum": 65_536},
    "idleTimeoutMs": {"minimum": 0, "maximum": 2_147_483_647},
    "outputSchema": {"type": "object"},
    "metadata": {"maxProperties": 32},
}
"""What the types do not say of a run request (runs §3)."""

_HEADERS: Mapping[str, Schema] = {
    "AgenticDriver-Version": {"schema": {"const": "1.0"}, "required": True},
    "Cache-Control": {"schema": {"const": "no-store"}, "required": True},
    "X-Content-Type-Options": {"schema": {"const": "nosniff"}, "required": True},
}
_VERSION: Schema = {
    "name": "AgenticDriver-Version",
    "in": "header",
    "description": "Absent, or the version of the protocol that the client speaks.",
    "schema": {"const": "1.0"},
}
_HEALTH: Schema = {
    "type": "object",
    "required": ["status", "protocol"],
    "properties": {"status": {"const": "ok"}, "protocol": {"const": "agenticdriver.v1"}},
}
_READINESS: Schema = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"enum": ["ready", "not-ready"]},
        "why": {"type": "array", "minItems": 1, "items": {"enum": list(get_args(Word))}},
    },
}
_PROTOCOL: Schema = {
    "type": "object",
    "required": ["protocol", "version", "supportedVersions", "features"],
    "properties": {
        "protocol": {"const": "agenticdriver"},
        "version": {"const": "1.0"},
        "supportedVersions": {"type": "array", "items": {"type": "string"}, "contains": {"const": "1.0"}},
        "features": {"type": "array", "items": {"type": "string"}},
    },
}
_CONNECTION: Schema = {
    "type": "object",
    "required": ["source", "checkedAt"],
    "properties": {
        "source": {"enum": ["native-runtime", "provider-api"]},
        "checkedAt": {"type": "string", "format": "date-time"},
        "runtime": {"type": "object", "required": ["name", "version"]},
        "account": {
            "type": "object",
            "required": ["status"],
            "properties": {"status": {"enum": ["signed-in", "signed-out", "unknown"]}},
        },
    },
}
_PROVIDER: Schema = {
    "type": "object",
    "required": ["id", "name", "vendor", "authMode", "capabilities"],
    "properties": {
        "id": _BOUNDS["provider"] | {"type": "string"},
        "name": {"type": "string", "minLength": 1},
        "vendor": {"type": "string", "minLength": 1},
        "authMode": {"enum": ["api-key", "cli-session", "none"]},
        "capabilities": {
            "type": "object",
            "required": ["tools", "textStreaming"],
            "additionalProperties": {"type": "boolean"},
        },
        "models": {"type": "array", "items": {"type": "string"}},
        "inputMediaTypes": {
            "type": "object",
            "additionalProperties": {"type": "array", "maxItems": 6, "items": {"type": "string"}},
        },
        "usageStatId": {"type": "string"},
        "health": {"type": "object", "required": ["status", "code", "message", "checkedAt"]},
        "modelCatalog": {"type": "object", "required": ["source", "models", "complete"]},
        "connection": _CONNECTION,
    },
}
_PROVIDERS: Schema = {
    "type": "object",
    "required": ["providers"],
    "properties": {"providers": {"type": "array", "items": {"$ref": "#/components/schemas/Provider"}}},
}
_ID: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
_IDS: Mapping[str, Schema] = {"executionId": _ID, "runId": _ID, "callId": _ID}
_DECISION: Schema = {
    "type": "object",
    "required": ["approvalId", "runId", "call", "decision"],
    "additionalProperties": False,
    "properties": {
        "approvalId": _ID,
        "runId": _ID,
        "call": {
            "type": "object",
            "required": ["id", "name", "arguments"],
            "additionalProperties": False,
            "properties": {"id": _ID, "name": {"type": "string", **_NAME}, "arguments": {"type": "object"}},
        },
        "decision": {"enum": ["approve", "deny", "cancel"]},
    },
}
_RESOLUTION: Schema = {
    "type": "object",
    "required": ["approvalId", "runId", "callId", "outcome", "decidedAt"],
    "properties": {
        "approvalId": _ID,
        "runId": _ID,
        "callId": _ID,
        "outcome": {"enum": ["approved", "denied", "cancelled"]},
        "decidedAt": {"type": "string", "format": "date-time"},
    },
}
_PROGRESS: Schema = {
    "type": "object",
    "required": list(_IDS),
    "additionalProperties": False,
    "properties": dict(_IDS),
}
_DELIVERY: Schema = {
    "type": "object",
    "required": list(_IDS),
    "additionalProperties": False,
    "properties": {**_IDS, "output": {"description": "Any JSON value."}, "error": {"const": "APPLICATION_TOOL_FAILED"}},
    "oneOf": [{"required": ["output"]}, {"required": ["error"]}],
}
_RECEIPT: Schema = {
    "type": "object",
    "required": [*_IDS, "status"],
    "properties": {**_IDS, "status": {"enum": ["progress", "accepted"]}},
}
_SESSION_ID: Schema = {"type": "string", "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}
_JOB_ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
_TIMES: Mapping[str, Schema] = {name: {"format": "date-time"} for name in ("createdAt", "updatedAt", "expiresAt")}
_NAMES = {"Snapshot": "SessionSnapshot", "Forgotten": "SessionDeleted", "Page": "JobPage"}
"""What the types are called here that have shorter names where they live."""
_TOLD: Mapping[str, Mapping[str, Schema]] = {
    "SessionInfo": {"id": _SESSION_ID, "revision": {"minimum": 0, "maximum": SAFE}, **_TIMES},
    "SessionDeleted": {"id": _SESSION_ID, "deleted": {"const": True}},
    "JobInfo": {"id": _JOB_ID, "runId": _JOB_ID, "cursor": {"minimum": 0}, **_TIMES},
    "JobPage": {
        "events": {"maxItems": 100, "items": {"type": "object", "required": ["type", "runId", "sequence"]}},
        "nextCursor": {"minimum": 0},
    },
}
"""What the types do not say of the answers about sessions and jobs."""


def _strict(required: Mapping[str, Schema], optional: Mapping[str, Schema]) -> Schema:
    """An object with no other members."""
    members = {**required, **optional}
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": members}


_SESSION_CREATION = _strict(
    {
        "provider": {"type": "string", **_BOUNDS["provider"]},
        "model": {"type": "string", **_BOUNDS["model"]},
        "mode": {"enum": ["history", "native"]},
    },
    {
        "history": {"type": "array", "items": {"$ref": "#/components/schemas/PastMessage"}, **_BOUNDS["history"]},
        "instructions": {"type": "string", **_BOUNDS["instructions"]},
    },
)
_JOB_SUBMISSION = _strict(
    {
        "key": {"type": "string", **_BOUNDS["idempotencyKey"]},
        "request": {"$ref": "#/components/schemas/RunRequest"},
    },
    {"interactive": {"type": "boolean", "default": False}},
)
_JOB_CURSOR = _strict(
    {"id": _JOB_ID, "after": {"type": "integer", "minimum": 0, "maximum": SAFE}},
    {"limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 100}},
)
_WAITING: Schema = {
    "type": "object",
    "required": ["approvalId", "runId", "provider", "call", "requestedAt", "idlePolicy"],
    "properties": {
        "approvalId": _ID,
        "runId": _ID,
        "provider": {"type": "string"},
        "call": _DECISION["properties"]["call"],
        "requestedAt": {"type": "string", "format": "date-time"},
        "idlePolicy": {"enum": ["pause", "continue"]},
        "expiresAt": {"type": "string", "format": "date-time"},
    },
}
_INBOX: Schema = {
    "type": "object",
    "required": ["approvals", "hasMore"],
    "properties": {
        "approvals": {"type": "array", "maxItems": 100, "items": _WAITING},
        "hasMore": {"type": "boolean"},
    },
}
_RUN_EVENTS: Schema = {
    "type": "object",
    "required": ["runId", "state", "events", "cursor", "hasMore"],
    "properties": {
        "runId": {"type": "string"},
        "state": {"enum": list(get_args(State))},
        "events": {
            "type": "array",
            "maxItems": PAGE_EVENTS_MAX,
            "items": {"type": "object", "required": ["type", "runId", "sequence"]},
        },
        "cursor": {"type": "string"},
        "hasMore": {"type": "boolean"},
    },
}
_CURSORS: Sequence[Schema] = (
    {"name": "runId", "in": "path", "required": True, "schema": {"type": "string"}},
    {
        "name": "after",
        "in": "query",
        "description": "The last event that was seen, where there is no `Last-Event-ID`.",
        "schema": {"type": "string"},
    },
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The `id` of the last event that was seen.",
        "schema": {"type": "string"},
    },
)
_OURS: Mapping[str, Schema] = {
    "Health": _HEALTH,
    "Readiness": _READINESS,
    "Protocol": _PROTOCOL,
    "Provider": _PROVIDER,
    "Providers": _PROVIDERS,
    "Decision": _DECISION,
    "Resolution": _RESOLUTION,
    "InboxQuery": _strict({}, {"limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 100}}),
    "Inbox": _INBOX,
    "RunEvents": _RUN_EVENTS,
    "ExecutionProgress": _PROGRESS,
    "ExecutionResult": _DELIVERY,
    "ExecutionReceipt": _RECEIPT,
    "SessionCreation": _SESSION_CREATION,
    "SessionNamed": _strict({"id": _SESSION_ID}, {}),
    "JobSubmission": _JOB_SUBMISSION,
    "JobNamed": _strict({"id": _JOB_ID}, {}),
    "JobCursor": _JOB_CURSOR,
}
_METRICS: Schema = {"text/plain": {"schema": {"type": "string"}}}
_STREAM: Schema = {
    "type": "string",
    "description": "Frames of `id`, `event` and one line of `data`, which is a run event; the last one is terminal.",
}


def document() -> Schema:
    """The document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Runstream",
            "version": "1.0",
            "description": "The AgenticDriver wire protocol 1.0, and the Agent Host protocol, as this host serves them.",
        },
        "security": [{"bearer": []}],
        "paths": {
            "/health": {"get": _get("health", "Whether the host is up.", _json("Health")) | {"security": []}},
            "/ready": {"get": _readiness()},
            "/metrics": {"get": _get("metrics", "The metrics, as Prometheus reads them.", _METRICS, _VERSION)},
            "/v1/protocol": {"get": _get("protocol", "What the host speaks.", _json("Protocol"), _VERSION)},
            "/v1/providers": {
                "get": _get("providers", "The caller's providers.", _json("Providers"), _VERSION, _refresh())
            },
            "/v1/runs": {"post": _run()},
            "/v1/runs/{runId}/events": {"get": _events()},
            "/v1/approvals/list": {
                "post": _post("listApprovals", "List what waits for the caller's decision.", "InboxQuery", "Inbox")
            },
            "/v1/approvals/decisions": {
                "post": _post("decide", "Decide about a call that waits for approval, once.", "Decision", "Resolution")
            },
            "/v1/tool-executions/progress": {
                "post": _post("report", "Say that a tool execution goes on.", "ExecutionProgress", "ExecutionReceipt")
            },
            "/v1/tool-executions/results": {
                "post": _post(
                    "deliver", "Give the result of a tool execution, once.", "ExecutionResult", "ExecutionReceipt"
                )
            },
            "/v1/sessions/create": {
                "post": _post("createSession", "Begin a conversation.", "SessionCreation", "SessionSnapshot")
            },
            "/v1/sessions/read": {
                "post": _post("readSession", "Look at a conversation.", "SessionNamed", "SessionSnapshot")
            },
            "/v1/sessions/delete": {
                "post": _post(
                    "deleteSession", "Forget a conversation, and cancel its turn.", "SessionNamed", "SessionDeleted"
                )
            },
            "/v1/jobs/submit": {
                "post": _post("submitJob", "Have a request run with nobody attached.", "JobSubmission", "JobInfo")
            },
            "/v1/jobs/read": {"post": _post("readJob", "Look at a job.", "JobNamed", "JobInfo")},
            "/v1/jobs/cancel": {"post": _post("cancelJob", "End a job.", "JobNamed", "JobInfo")},
            "/v1/jobs/events": {"post": _post("pageJob", "Read some of a job's events.", "JobCursor", "JobPage")},
            "/host/v1": {"post": _of_host(host.EXCHANGE, _json("HostAnswer"))},
            "/host/v1/runs/{runId}/events": {
                "get": _of_host(host.EVENTS, {"text/event-stream": {"schema": host.STREAM}}, *host.FOLLOWING)
            },
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
        },
    }


def rendered() -> str:
    """The document as its file holds it."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def _readiness() -> Schema:
    told = _get("ready", "Whether the node takes work.", _json("Readiness"))
    refused = {"description": "It takes none, and says why.", "headers": _HEADERS, "content": _json("Readiness")}
    return told | {"security": [], "responses": told["responses"] | {"503": refused}}


def _run() -> Schema:
    answers = _json("Result") | {"text/event-stream": {"schema": _STREAM}}
    accept = _accept("one result")
    told = _get("run", "Run a request, and stay attached: leaving cancels it.", answers, _VERSION, accept)
    return told | {"requestBody": {"required": True, "content": _json("RunRequest")}}


def _events() -> Schema:
    answers = _json("RunEvents") | {"text/event-stream": {"schema": _STREAM}}
    told = _get(
        "followRun", "Read the events of a run after a cursor.", answers, _VERSION, _accept("a page"), *_CURSORS
    )
    over = {"description": "The run has ended, and all of it was seen.", "headers": _HEADERS}
    return told | {"responses": told["responses"] | {"204": over}}


def _accept(otherwise: str) -> Schema:
    return {
        "name": "Accept",
        "in": "header",
        "description": f"A stream where it holds `text/event-stream`, else {otherwise}.",
        "schema": {"type": "string"},
    }


def _post(name: str, summary: str, body: str, answer: str) -> Schema:
    told = _get(name, summary, _json(answer), _VERSION)
    return told | {"requestBody": {"required": True, "content": _json(body)}}


def _of_host(told: Schema, answers: Schema, *parameters: Schema) -> Schema:
    """A route of the Host protocol, whose refusals are envelopes too."""
    refused = {"description": "Why not, as an envelope.", "headers": _HEADERS, "content": _json("HostRefusal")}
    done = {"description": "Done.", "headers": _HEADERS, "content": answers}
    return told | {"parameters": list(parameters), "responses": {"200": done, "default": refused}}


def _get(name: str, summary: str, answers: Schema, *parameters: Schema) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": "Done.", "headers": _HEADERS, "content": answers},
            "default": {"description": "A typed error.", "headers": _HEADERS, "content": _json("Error")},
        },
    }


def _refresh() -> Schema:
    return {
        "name": "refresh",
        "in": "query",
        "description": "Look again instead of answering from the cache.",
        "schema": {"const": "true"},
    }


def _json(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _schemas() -> Schema:
    types = (RunRequest, Result, Problem, Snapshot, Forgotten, JobInfo, Page)
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas: Schema = {_NAMES.get(name, name): _without_null(schema) for name, schema in found.items()}
    for name, told in _TOLD.items():
        schemas[name]["title"] = name
        properties = schemas[name]["properties"]
        for member, bounds in told.items():
            properties[member] = properties[member] | bounds
    members = schemas["RunRequest"]["properties"]
    for name, bounds in _BOUNDS.items():
        members[name] = members[name] | bounds
    problem = schemas.pop("Problem")
    problem["properties"]["code"] |= {"minLength": 1, "examples": sorted(STATUSES)}
    problem["required"] = ["code", "message", "retryable"]
    problem["properties"]["retryable"].pop("default", None)
    error = {"type": "object", "required": ["error"], "properties": {"error": problem}}
    return dict(sorted({**schemas, **_OURS, **host.SCHEMAS, "Error": error}.items()))


def _without_null(schema: Any) -> Any:
    """*schema* without the nulls by which our types mark what is absent: on the wire, null is never absent."""
    match schema:
        case {"anyOf": [*choices], **rest} if {"type": "null"} in choices:
            left = [_without_null(choice) for choice in choices if choice != {"type": "null"}]
            kept = {name: _without_null(value) for name, value in rest.items() if name != "default"}
            return kept | (left[0] if len(left) == 1 else {"anyOf": left})
        case {**members}:
            return {str(name): _without_null(value) for name, value in members.items()}
        case [*items]:
            return [_without_null(item) for item in items]
        case _:
            return schema


if __name__ == "__main__":
    print(rendered(), end="")  # noqa: T201 - this is what the command is for
