"""Runs as a peer tells them: events with their envelopes, and the streams and pages that they come in."""

from collections.abc import Sequence
from typing import Any

from runstream_client.conformance.cases import compact
from runstream_client.conformance.peer import Reply, events, json_of

RUN_ID = "7d0f3c52-91ab-4c6e-8a15-2b6d4e0c9f31"
JOB_ID = "e3b0c442-98fc-4c14-9afb-f4c8996fb924"
REQUEST: Any = {"provider": "mock", "model": "demo", "input": "Name a colour."}
RESUMED: Any = REQUEST | {"resume": {"graceMs": 5_000}}
STAMP = "2026-02-03T04:05:06.007Z"
RESULT = {"provider": "mock", "model": "demo", "text": "teal", "usage": {}, "steps": 1, "finishReason": "stop"}
STARTED = {"type": "run.started", "provider": "mock", "model": "demo"}
COMPLETED = {"type": "run.completed", "result": RESULT | {"runId": RUN_ID}}
DENIED = {"type": "run.failed", "error": {"code": "APPROVAL_DENIED", "message": "no", "retryable": False}}
CALL = {"id": "c-1", "name": "look", "arguments": {"query": "tides"}}
APPROVAL = {"approvalId": "ap-1", "runId": RUN_ID, "call": CALL, "requestedAt": STAMP, "idlePolicy": "pause"}
TICKET = {"executionId": "ex-1", "runId": RUN_ID, "call": CALL}


def delta(text: str) -> dict[str, Any]:
    return {"type": "text.delta", "text": text}


def numbered(*told: dict[str, Any]) -> list[dict[str, Any]]:
    """Events with the envelope of one run."""
    return [event | {"runId": RUN_ID, "sequence": number, "timestamp": STAMP} for number, event in enumerate(told, 1)]


RUN = numbered(STARTED, delta("te"), delta("al"), COMPLETED)


def framed(told: Sequence[dict[str, Any]], *, dated: bool = False) -> bytes:
    """Frames, with ids as `POST /v1/runs` writes them, or dated ones."""
    return b"".join(b"id: %b\ndata: %b\n\n" % (cursor(event, dated=dated), compact(event)) for event in told)


def cursor(event: dict[str, Any], *, dated: bool = True) -> bytes:
    return b"%d%b" % (event["sequence"], b".d%d" % event["sequence"] if dated else b"")


def stream(told: Sequence[dict[str, Any]], *, dated: bool = False, more: bytes = b"", ending: Any = "close") -> Reply:
    return events(framed(told, dated=dated) + more, ending=ending)


def answer(value: Any, status: int = 200) -> Reply:
    return json_of(compact(value), status=status)


def refusal(code: str, status: int, **more: Any) -> Reply:
    return answer({"error": {"code": code, "message": "no", "retryable": status >= 500} | more}, status)


def job(cursor: int, state: str = "running") -> dict[str, Any]:
    ended = {"expiresAt": "2026-02-04T04:05:06.007Z"} if state not in {"running", "queued"} else {}
    asked = {"provider": "mock", "model": "demo", "cancelRequested": False}
    return (
        asked
        | ended
        | {
            "id": JOB_ID,
            "runId": RUN_ID,
            "state": state,
            "cursor": cursor,
            "createdAt": STAMP,
            "updatedAt": STAMP,
        }
    )


def page(told: Sequence[dict[str, Any]], after: int, cursor: int, state: str = "running") -> Reply:
    following = after + len(told)
    body = {"job": job(cursor, state), "events": list(told), "nextCursor": following, "hasMore": following < cursor}
    return answer(body)
