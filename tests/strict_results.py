"""What a strict client accepts as the result of a run, beside what was asked.

Nothing here waits or reads a clock.
"""

from tests.strict_evidence import ARTIFACT, MANIFEST, retrieval, supported
from tests.strict_values import (
    INSTANCE,
    MODEL,
    USAGE,
    UUID_ANY_CASE,
    Json,
    Object,
    anything,
    array,
    count,
    distinct,
    integer,
    items,
    member,
    members,
    millis_z,
    need,
    one_of,
    shape,
    string,
    text,
)

_SESSION = shape(
    {
        "id": text(36, 36, UUID_ANY_CASE),
        "revision": integer(),
        "provider": text(1, 80, INSTANCE),
        "model": text(1, 200, MODEL),
        "mode": one_of("history", "native"),
        "state": one_of("ready", "running", "interrupted"),
        "createdAt": millis_z,
        "updatedAt": millis_z,
    },
    {"expiresAt": millis_z},
)


def session_info(value: Json) -> None:
    """Nothing, for a session whose times agree with its state."""
    _SESSION(value)
    found = members(value)
    need(string(found["updatedAt"]) >= string(found["createdAt"]), "updated before created")
    need(("expiresAt" in found) == (found["state"] != "running"), "an expiry exactly if not running")
    need("expiresAt" not in found or string(found["expiresAt"]) > string(found["updatedAt"]), "expired when updated")


def _session(request: Object, value: Json) -> None:
    session_info(value)
    need(member(value, "id") == member(request["session"], "id"), "another session")
    need(member(value, "revision") == count(member(request["session"], "revision")) + 1, "not the next revision")
    need(member(value, "provider") == request["provider"], "a session of another provider")
    need(member(value, "model") == request["model"], "a session of another model")
    need(member(value, "state") == "ready", "a session that is not ready")


_RESULT = shape(
    {
        "runId": text(1),
        "provider": text(),
        "model": text(),
        "text": text(),
        "usage": USAGE,
        "steps": integer(1),
        "finishReason": one_of("stop", "length"),
    },
    {"output": anything, "sources": array(MANIFEST, 16), "artifacts": array(ARTIFACT, 1)},
)


def run_result(request: Object, value: Json) -> None:
    """Nothing, if *value* is a sound result of *request*."""
    _RESULT(value)
    result = members(value)
    need(result["provider"] == request["provider"], "a result of another provider")
    need(result["model"] == request["model"], "a result of another model")
    sources = items(result.get("sources", []))
    distinct([member(one, "id") for one in sources], "a source id")
    for artifact in items(result.get("artifacts", [])):
        names = items(member(artifact, "sourceIds"))
        distinct(names, "sourceIds")
        need(all(name in [member(one, "id") for one in sources] for name in names), "a draft of unknown sources")
    _asked_for(request, result, sources)


def _asked_for(request: Object, result: Object, sources: list[Json]) -> None:
    for name in ("retrieval", "session"):
        need((name in result) == (name in request), f"{name}, exactly if requested")
    if "session" in request:
        _session(request, result["session"])
    if "retrieval" in request:
        retrieval(request["retrieval"], result["retrieval"])
        hits = items(member(result["retrieval"], "hits"))
        need(sum(member(one, "origin") == "retrieval" for one in sources) == len(hits), "as many sources as hits")
        for hit in hits:
            supported(hit, sources)
