"""The vectors of the protocol as cases: what a client is asked for, what a peer answers, and what must come of it.

Nothing here waits; the files are read once.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from runstream_client.conformance.patches import generated, patched
from runstream_client.conformance.peer import Reply

Vector = Mapping[str, Any]
_MEDIA = {"sse": "text/event-stream"}
_PLAIN = {"provider": "mock", "model": "demo", "input": "Hello"}
_SUITES = ("client-conformance", "negotiation")
_STAMP = {"runId": "run-1", "timestamp": "2026-01-02T03:04:05.000Z"}
_STARTED = _STAMP | {"type": "run.started", "sequence": 1, "provider": "mock", "model": "demo"}


class Case(NamedTuple):
    """One vector."""

    id: str
    op: str
    argument: Any
    reply: Reply
    expect: Vector
    leaves_after: str | None = None
    """The event after which the client leaves."""


def suite(name: str) -> Vector:
    """A file of vectors."""
    text = (files("runstream_client.conformance") / "vectors" / f"{name}.json").read_text(encoding="utf-8")
    found: Vector = json.loads(text)
    return found


def all_cases() -> list[Case]:
    """Every vector about clients."""
    return [
        *(case for name in _SUITES for case in _whole(suite(name))),
        *(case for name in ("approvals", "application-tools", "jobs", "sessions") for case in _checks(suite(name))),
        *_results("context", "clientResult"),
        *_results("retrieval", "clientResult"),
        *_manifests(),
        *_receipts(),
        *(
            Case(f"context-catalog.{one['id']}", "providers", None, _json(one["json"]), _verdict(one["expect"]))
            for one in suite("context")["clientCatalog"]
        ),
    ]


def compact(value: Any) -> bytes:
    """*value* as hosts write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def frames(events: Any) -> bytes:
    """*events* as a stream."""
    return b"".join(b"data: %b\n\n" % compact(event) for event in events)


def _verdict(expected: str) -> Vector:
    """What must come of it; of clients that differ, this one is as strict as the strictest."""
    return {"ok": True} if expected in {"accept", "accepted"} else {"error": expected.split(maxsplit=1)[0]}


def _whole(found: Vector) -> Iterator[Case]:
    """The cases that say which bytes are sent."""
    for case in [*found.get("cases", ()), *found.get("clientCases", ())]:
        argument = generated(found["requests"][case["request"]])
        leaves = case.get("action", "").partition(":")[2] or None
        yield Case(case["id"], case["op"], argument, _reply(found, case), case["expect"], leaves)


def _reply(found: Vector, case: Vector) -> Reply:
    response = case["response"]
    kind = response["kind"]
    media = response.get("contentType", _MEDIA.get(kind, "application/json"))
    given: dict[str, Any] = {"AgenticDriver-Version": "1.0", "Content-Type": media} | response.get("headers", {})
    several: dict[str, list[str | None]] = {
        name: value if isinstance(value, list) else [value] for name, value in given.items()
    }
    lines = [(name, line) for name, told in several.items() for line in told if line is not None]
    body = _as_documented(case["op"], _body(found, response))
    ending: Any = "hold" if "holdAfter" in response else "close"
    return Reply(_cut(body, response.get("chunks")), response.get("status", 200), lines, ending)


def _cut(body: bytes, sizes: list[int] | None) -> list[bytes]:
    pieces: list[bytes] = []
    while body:
        size = sizes[len(pieces) % len(sizes)] if sizes else len(body)
        pieces.append(body[:size])
        body = body[size:]
    return pieces


def _body(found: Vector, response: Vector) -> bytes:
    match response:
        case {"kind": "text", "text": text}:
            return str(generated(text)).encode()
        case {"kind": "hex", "hex": str(digits)}:
            return bytes.fromhex(digits)
        case _:
            value = patched(found["bases"][response["base"]], response.get("patch", ()))
            return _stream(value, response) if response["kind"] == "sse" else compact(value)


def _stream(events: Any, response: Vector) -> bytes:
    eol = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}[response.get("eol", "lf")]
    hosted = response.get("hostStyle")
    between = b": heartbeat" + eol + eol if hosted else b""
    written = [_frame(event, response, eol) for event in events][: response.get("holdAfter")]
    mark = b"\xef\xbb\xbf" if response.get("bom") else b""
    return mark + between.join(written) + str(response.get("suffix", "")).encode()


def _frame(event: Any, response: Vector, eol: bytes) -> bytes:
    named = [f"id: {event['sequence']}", f"event: {event['type']}"] if response.get("hostStyle") else []
    text = json.dumps(event, ensure_ascii=False, indent=2) if response.get("pretty") else compact(event).decode()
    lines = [*named, *response.get("prefixLines", ()), *(f"data: {line}" for line in text.split("\n"))]
    return b"".join(line.encode() + eol for line in [*lines, ""])


def _as_documented(op: str, body: bytes) -> bytes:
    """The vectors show a session as one flat object; the digest of sessions, and a host, put it under `session`."""
    if op not in {"session-create", "session-read"}:
        return body
    session = json.loads(body)
    beside = {name: session.pop(name) for name in ("history", "instructions") if name in session}
    return compact({"session": session, "history": []} | beside)


_OPS = {
    "receipt": "approval-decision",
    "result": "tool-result",
    "progress": "tool-progress",
    "submit": "job-submit",
    "events": "job-events",
}


def _checks(found: Vector) -> Iterator[Case]:
    """The cases that change one good answer."""
    name, checks = found["suite"], found["clientChecks"]
    for case in checks["cases"]:
        base = checks["bases"][case["base"]]
        expect = _verdict(case["clientResult"])
        if case["base"] == "stream":
            events = patched(base["events"] if isinstance(base, dict) else base, case["patch"])
            yield Case(f"{name}.{case['id']}", "stream", _run_of(base, case), _events(events), expect)
            continue
        asked = case.get("request", base.get("request", base.get("decision", base.get("submission"))))
        op = _OPS.get(case["base"], f"{name.removesuffix('s')}-{case['base']}")
        yield Case(f"{name}.{case['id']}", op, asked, _json(patched(base["response"], case["patch"])), expect)


def _run_of(base: Any, case: Vector) -> dict[str, Any]:
    session = case.get("requestSession", base["requestSession"]) if isinstance(base, dict) else None
    offered = [
        {"name": name, "description": "It looks.", "inputSchema": {"type": "object"}}
        for name in case.get("requestApplicationTools") or ()
    ]
    more = {"approvals": case.get("requestApprovals"), "tools": case.get("requestTools")}
    more |= {"applicationTools": offered, "session": session}
    return _PLAIN | {member: value for member, value in more.items() if value}


def _results(name: str, member: str) -> Iterator[Case]:
    """The cases that change a result; as the end of a stream, and as the answer to a JSON run."""
    found = suite(name)[member]
    for case in found["cases"]:
        request = found["request"][case["request"]] if "request" in case else found["request"]
        yield from _of_result(f"{name}.{case['id']}", request, patched(found["base"], case["patch"]), case["expect"])


def _of_result(name: str, request: Any, result: Any, expected: str) -> Iterator[Case]:
    completed = _STAMP | {"type": "run.completed", "sequence": 2, "result": result}
    yield Case(name, "stream", request, _events([_STARTED, completed]), _verdict(expected))
    in_json = expected.replace("INVALID_STREAM", "INVALID_RESPONSE")
    yield Case(f"{name}.json", "run", request, _json(result), _verdict(in_json))


def _manifests() -> Iterator[Case]:
    found, evidence = suite("ingestion")["clientManifest"], suite("retrieval")["clientResult"]
    for case in found["cases"]:
        manifest = patched(found["base"], case["patch"])
        add = {"op": "add", "path": "/retrieval/hits/0/ingestion", "value": manifest}
        expected = case["expect"].replace("reject", "INVALID_STREAM")
        result = patched(evidence["base"], [add])
        yield from _of_result(f"manifest.{case['id']}", evidence["request"]["withRetrieval"], result, expected)


def _receipts() -> Iterator[Case]:
    found = suite("ingestion")["clientReceipts"]
    for case in found["cases"]:
        reply = _json(patched(found["base"], case["patch"]))
        yield Case(f"ingest.{case['id']}", "retrieval-ingest", found["request"], reply, _verdict(case["expect"]))
    documents = suite("retrieval")["documents"]
    for case in suite("retrieval")["clientReceipts"]:
        asked = case["request"] if isinstance(case["request"], dict) else documents[case["request"]]
        op = f"retrieval-{case['call']}"
        yield Case(f"retrieval.{case['id']}", op, asked, _json(case["response"]), _verdict(case["expect"]))


def _events(events: Any) -> Reply:
    lines = (("AgenticDriver-Version", "1.0"), ("Content-Type", "text/event-stream"))
    return Reply([frames(events)], 200, lines)


def _json(value: Any) -> Reply:
    lines = (("AgenticDriver-Version", "1.0"), ("Content-Type", "application/json"))
    return Reply([compact(value)], 200, lines)
