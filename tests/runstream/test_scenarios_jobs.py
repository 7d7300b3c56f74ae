"""The shared scenarios of jobs: on one node, and with submit, worker and reader on three."""

import copy
from typing import Any

import msgspec
import pytest

from actors.fingerprint import fingerprint
from actors.request import RunRequest
from eventstore.endpoint import Endpoint
from tests.runstream.servers import emptied, valkey
from tests.scenario_clients import verdict
from tests.scenarios import play, suite

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

SUITE = suite("jobs")
SCENARIOS: dict[str, Any] = {scenario["id"]: scenario for scenario in SUITE["scenarios"]}
ELSEWHERE = {
    "lease-fencing": "a lease is a job's and not the store's: see test_scenarios_leases.py",
    "append-contract": "the store knows heads and epochs, not events: see test_scenarios_leases.py, and `event-too-large` below",
    "evidence-reauthorised": "this host resolves no references and has no corpora yet: see `evidence` below",
    "evidence-not-complete": "this host resolves no references and has no corpora yet: see `evidence` below",
}
ALTERED = {
    "http-detached": "the increments of an adapter are its whole text (providers §2), and the scenario's are not",
    "grant-ceiling-and-revocation": "the adapter that the scenario tells of is written out",
    "process-crash": "a node that stood by takes the started job over, by its own count of the lease (DESIGN §5)",
    "storage-opens-on-serve": "there is no file that could be there before",
    "shutdown": "a job that stands between two effects goes on elsewhere, so its model must have been asked",
    "storage-safety": "there is no file that could be unsafe",
}
_SUBMIT: dict[str, Any] = {"do": "post", "as": "alice", "path": "/v1/jobs/submit"}
_READ: dict[str, Any] = {"as": "alice", "path": "/v1/jobs/read", "body": {"id": "$J.id"}}
_REQUEST = {"provider": "mock", "model": "demo", "input": "synthetic job"}
_REFERENCE = {"type": "reference", "id": "note", "revision": "v1", "mediaType": "text/plain"}
_REFUSED = {"status": 400, "retryable": False}
_INTERRUPTED = {
    "type": "run.failed",
    "where": {"/error/code": "JOB_INTERRUPTED", "/error/retryable": False, "/error/outcome": "uncertain"},
}
OURS: tuple[dict[str, Any], ...] = (
    {
        "id": "evidence",
        "title": "Evidence that nobody could resolve is refused when it is submitted",
        "host": "$jobs",
        "model": "$answer",
        "steps": [
            {
                **_SUBMIT,
                "body": {"key": "reference", "request": _REQUEST | {"attachments": [_REFERENCE]}},
                "expect": _REFUSED | {"code": "CONTEXT_UNAVAILABLE"},
            },
            {
                **_SUBMIT,
                "body": {"key": "rag", "request": _REQUEST | {"retrieval": {"corpus": "library", "query": "evidence"}}},
                "expect": _REFUSED | {"code": "RETRIEVAL_UNAVAILABLE"},
            },
            {"do": "assert", "storeCount": 0, "modelCalls": 0},
        ],
    },
    {
        "id": "event-too-large",
        "title": "An event that no page could hold ends the job",
        "host": "$jobs",
        "model": [{"text": {"$repeat": ["x", 1_500_001]}}],
        "steps": [
            {**_SUBMIT, "body": {"key": "large", "request": _REQUEST}, "expect": {"status": 200}, "save": {"J": ""}},
            {"do": "poll", "post": _READ, "until": {"state": "interrupted"}},
            {
                **_READ,
                "do": "post",
                "path": "/v1/jobs/events",
                "body": {"id": "$J.id", "after": 0},
                "expect": {"status": 200, "lastEvent": _INTERRUPTED},
            },
            {"do": "assert", "modelCalls": 1},
        ],
    },
    {
        "id": "cancelled-at-once",
        "title": "The answer to a cancel shows a running job cancelled already",
        "host": "$jobs",
        "model": [{"block": "forever"}],
        "steps": [
            {**_SUBMIT, "body": {"key": "k", "request": _REQUEST}, "expect": {"status": 200}, "save": {"J": ""}},
            {"do": "assert", "eventually": True, "modelCalls": 1},
            {
                **_READ,
                "do": "post",
                "path": "/v1/jobs/cancel",
                "expect": {"status": 200, "body": {"state": "cancelled", "cancelRequested": True}},
            },
        ],
    },
    {
        "id": "goes-on-elsewhere",
        "title": "A job whose node dies between two effects goes on elsewhere and repeats none",
        "host": "$jobs",
        "override": {"jobs": {"leaseMs": 300}},
        "model": [{"toolCalls": [{"id": "effect", "name": "write", "arguments": {}}]}, {"text": "after the crash"}],
        "steps": [
            {
                "do": "kill",
                "after": "tool.completed",
                "step": {
                    **_SUBMIT,
                    "body": {"key": "k", "request": _REQUEST | {"tools": ["write"]}},
                    "expect": {"status": 200},
                    "save": {"J": ""},
                },
            },
            {"do": "restart"},
            {"do": "poll", "post": _READ, "until": {"state": "completed"}},
            {
                "do": "pageAll",
                "as": "alice",
                "id": "$J.id",
                "limit": 3,
                "eventTypes": [
                    *("run.started", "step.started", "tool.called", "tool.completed"),
                    *("step.started", "text.delta", "run.completed"),
                ],
            },
            {"do": "assert", "effectCount": 1, "modelCalls": 2, "modelCallsAfterRestart": 1},
        ],
    },
)


def altered(scenario: dict[str, Any]) -> dict[str, Any]:
    """The *scenario*, but for what `ALTERED` gives a reason for."""
    scenario = copy.deepcopy(scenario)
    steps = scenario["steps"]
    match scenario["id"]:
        case "http-detached":
            scenario["model"][0]["emitText"] = scenario["model"][0]["text"]
        case "grant-ceiling-and-revocation":
            tokens = SUITE["fixtures"]["hosts"]["jobs"]["tokens"]
            scenario["override"] = {
                "tokens": {"narrow": tokens["alice"] | {"providers": []}, "otherSubjectSameGrant": tokens["bob"]},
                "durable": {"narrow": "alice", "otherSubjectSameGrant": "alice"},
            }
        case "process-crash":
            read = {"as": "alice", "path": "/v1/jobs/read", "body": {"id": "$B.id"}}
            place = next(number for number, step in enumerate(steps) if step["do"] == "advance") + 1
            steps.insert(place, {"do": "poll", "post": read, "until": {"state": "interrupted"}})
        case "storage-opens-on-serve":
            assert steps.pop(0).keys() == {"do", "beforeStart", "storeExists"}
        case "storage-safety":
            scenario["steps"] = [step for step in steps if isinstance(step["with"], dict)]
        case "shutdown":
            place = next(number for number, step in enumerate(steps) if step["do"] == "shutdown")
            steps.insert(place, {"do": "assert", "eventually": True, "modelBlockedAtStep": 2})
        case _:
            pass
    return scenario


PLAYED = [scenario for name, scenario in SCENARIOS.items() if name not in ELSEWHERE]


def test_no_scenario_but_those_is_left_out_or_altered() -> None:
    assert len(SCENARIOS) == 27
    assert len(PLAYED) == 27 - len(ELSEWHERE)
    assert {scenario["id"] for scenario in PLAYED if altered(scenario) != scenario} == ALTERED.keys()


@pytest.mark.parametrize("scenario", [*PLAYED, *OURS], ids=lambda scenario: str(scenario["id"]))
async def test_one_host_plays_the_scenario(scenario: dict[str, Any]) -> None:
    await play(SUITE, altered(scenario), 1)


@pytest.mark.parametrize("scenario", [*PLAYED, *OURS], ids=lambda scenario: str(scenario["id"]))
async def test_three_hosts_play_the_scenario(scenario: dict[str, Any], valkey: Endpoint) -> None:
    await play(SUITE, altered(scenario), 3, await emptied(valkey))


@pytest.mark.parametrize("case", SUITE["clientChecks"]["cases"], ids=lambda case: str(case["id"]))
def test_the_strict_client_judges_as_public_clients_do(case: dict[str, Any]) -> None:
    assert verdict("job", SUITE["clientChecks"], case) == case["clientResult"]


@pytest.mark.parametrize("golden", SUITE["golden"]["fingerprint"], ids=lambda golden: str(golden["canonical"]))
def test_a_request_has_the_fingerprint_that_every_host_gives_it(golden: dict[str, Any]) -> None:
    assert fingerprint(msgspec.convert(golden["request"], RunRequest)) == golden["sha256"]
