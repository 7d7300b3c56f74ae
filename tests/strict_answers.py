"""What a strict client accepts as the JSON answer of each call, beside what it sent.

Nothing here waits or reads a clock.
`ANSWERS` maps the name of a call to a check of (what was sent, what came back).
"""

from collections.abc import Callable
from typing import TypeAlias

from tests import strict_evidence, strict_jobs, strict_results
from tests.strict_values import (
    ERROR,
    ID,
    INSTANCE,
    MEDIA,
    SHA,
    UUID_ANY_CASE,
    Check,
    Json,
    Object,
    array,
    boolean,
    both,
    distinct,
    echoes,
    integer,
    items,
    mapping,
    member,
    members,
    need,
    one_of,
    shape,
    string,
    text,
    timestamp,
)

Answer: TypeAlias = Callable[[Object, Json], None]
ENVELOPE = shape({"error": ERROR})
_PROTOCOL = shape(
    {
        "protocol": one_of("agenticdriver"),
        "version": one_of("1.0"),
        "supportedVersions": array(text()),
        "features": array(text()),
    }
)


def _protocol(_: Object, value: Json) -> None:
    _PROTOCOL(value)
    need("1.0" in items(member(value, "supportedVersions")), "1.0 is not among the versions")


def _label(high: int) -> Check:
    return text(1, high, printable=True)


def _capabilities(value: Json) -> None:
    both(shape({"tools": boolean, "textStreaming": boolean}), mapping(boolean))(value)


def _media(value: Json) -> None:
    array(one_of(*MEDIA), 6)(value)
    distinct(items(value), "a media type")


_CONNECTION = shape(
    {"source": one_of("native-runtime", "provider-api"), "checkedAt": timestamp},
    {
        "runtime": shape({"name": _label(100), "version": _label(80)}),
        "account": shape(
            {"status": one_of("signed-in", "signed-out", "unknown")},
            {"method": _label(80), "email": _label(320), "name": _label(200), "subscription": _label(120)},
        ),
    },
)
_PROVIDER = shape(
    {
        "id": text(1, 80, INSTANCE),
        "name": text(1),
        "vendor": text(1),
        "authMode": one_of("api-key", "cli-session", "none"),
        "capabilities": _capabilities,
    },
    {
        "models": array(text(1)),
        "inputMediaTypes": mapping(_media),
        "usageStatId": text(),
        "health": shape(
            {
                "status": one_of("ready", "unauthenticated", "unavailable", "unsupported", "unknown"),
                "code": text(1),
                "message": text(),
                "checkedAt": timestamp,
            }
        ),
        "modelCatalog": shape(
            {
                "source": one_of("provider", "configured", "unavailable"),
                "models": array(text(), 1000),
                "complete": boolean,
            }
        ),
        "connection": _CONNECTION,
    },
)


def _providers(_: Object, value: Json) -> None:
    shape({"providers": array(_PROVIDER)})(value)


_DECIDED: Object = {"approve": "approved", "deny": "denied", "cancel": "cancelled"}


def _decision(request: Object, value: Json) -> None:
    """The digest's wire request names the call as an object; a client call may name its id alone."""
    echoes(request, value, "approvalId", "runId")
    call = member(request, "call", "id") if "call" in request else member(request, "callId")
    need(member(value, "callId") == call, "another callId")
    need(member(value, "outcome") == _DECIDED[string(member(request, "decision"))], "another outcome")
    timestamp(member(value, "decidedAt"))


def _ticket(status: str) -> Answer:
    def check(request: Object, value: Json) -> None:
        echoes(request, value, "executionId", "runId", "callId")
        need(member(value, "status") == status, "another status")

    return check


_MESSAGE = shape({"role": one_of("user", "assistant"), "content": text(0, 100_000)}, strict=True)
_SNAPSHOT = shape(
    {"session": strict_results.session_info, "history": array(_MESSAGE, 100)},
    {"instructions": text(0, 100_000)},
)


def _session_created(request: Object, value: Json) -> None:
    _SNAPSHOT(value)
    session = members(member(value, "session"))
    echoes(request, session, "provider", "model", "mode")
    need(session["revision"] == 0 and session["state"] == "ready", "a new session that is not new")
    need(member(value, "history") == request.get("history", []), "another history")
    need(members(value).get("instructions") == request.get("instructions"), "other instructions")


def _session_read(request: Object, value: Json) -> None:
    _SNAPSHOT(value)
    echoes(request, member(value, "session"), "id")


def _session_deleted(request: Object, value: Json) -> None:
    echoes(request, value, "id")
    one_of(True)(member(value, "deleted"))


_RECEIPT = shape(
    {
        **dict.fromkeys(("corpus", "sourceId", "revision"), text(1, 128, ID)),
        "documentSha256": text(64, 64, SHA),
        "chunks": integer(1, 256),
        "status": one_of("indexed", "unchanged"),
    },
    {"ingestion": strict_evidence.ingestion},
    strict=True,
)


def _ingested(request: Object, value: Json) -> None:
    _RECEIPT(value)
    document = members(request["document"])
    source = members(document.get("source", document))
    need(member(value, "corpus") == request["corpus"], "another corpus")
    need(member(value, "sourceId") == source["id"], "another source")
    need(member(value, "revision") == source["revision"], "another revision")
    need(member(value, "ingestion", "chunks") == member(value, "chunks"), "another number of chunks")


_ATTEMPT = shape(
    {
        "id": text(36, 36, UUID_ANY_CASE),
        "providerId": text(1, 80, INSTANCE),
        "accountId": text(1, 80, INSTANCE),
        "name": text(1, 100),
        "revision": text(64, 64, SHA),
        "method": one_of("codex-device"),
        "phase": one_of("starting", "waiting", "verifying", "ready", "succeeded", "failed", "cancelled", "expired"),
        **dict.fromkeys(("createdAt", "updatedAt", "expiresAt"), timestamp),
    },
    {
        "interaction": shape(
            {
                "type": one_of("device-code"),
                "verificationUrl": one_of("https://auth.openai.com/codex/device"),
                "userCode": text(4, 40, r"[A-Z0-9-]{4,40}"),
            }
        ),
        "account": shape({"plan": text(1, 80)}, {"email": text(0, 320), "providerAccountId": text(1, 256)}),
        "error": shape({"code": text(0, 80), "message": text(0, 512)}),
    },
)


def _setup(request: Object, value: Json) -> None:
    shape({"version": one_of(1), "attempts": array(_ATTEMPT, 32)})(value)
    attempts = items(member(value, "attempts"))
    distinct([member(attempt, "id") for attempt in attempts], "an attempt")
    if request["action"] == "list":
        return
    need(len(attempts) == 1, "not one attempt")
    if request["action"] != "start":
        echoes(request, attempts[0], "id")
        return
    echoes(request, attempts[0], "revision", "method")
    need(member(attempts[0], "providerId") == member(request, "provider", "id"), "another provider")
    need(member(attempts[0], "accountId") == member(request, "provider", "accountId"), "another account")


ANSWERS: dict[str, Answer] = {
    "run": strict_results.run_result,
    "protocol": _protocol,
    "providers": _providers,
    "approval-decision": _decision,
    "tool-result": _ticket("accepted"),
    "tool-progress": _ticket("progress"),
    "session-create": _session_created,
    "session-read": _session_read,
    "session-delete": _session_deleted,
    "job-submit": strict_jobs.job_submitted,
    "job-read": strict_jobs.job,
    "job-cancel": strict_jobs.job,
    "job-events": strict_jobs.job_page,
    "retrieval-ingest": _ingested,
    "provider-setup": _setup,
}
