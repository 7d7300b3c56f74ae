"""The player of scenarios notices what does not hold."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios import play, suite

pytestmark = pytest.mark.anyio

SUITE = suite("approvals")
SESSIONS = suite("sessions")
JOBS = suite("jobs")
DENIED = next(scenario for scenario in SUITE["scenarios"] if scenario["id"] == "deny-terminal")
TURNS = next(scenario for scenario in SESSIONS["scenarios"] if scenario["id"] == "http-round-trip")
PAGED = next(scenario for scenario in JOBS["scenarios"] if scenario["id"] == "page-byte-bound")
Steps = list[dict[str, Any]]


def _expect(number: int, member: str, value: Any) -> Callable[[Steps], None]:
    def change(steps: Steps) -> None:
        steps[number]["expect"][member] = value

    return change


def _claim(**claims: Any) -> Callable[[Steps], None]:
    return lambda steps: steps.append({"do": "assert", **claims})


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: steps[0]["expect"].pop(),
        lambda steps: steps[0]["expect"].insert(1, "run.progress"),
        lambda steps: steps[2]["expect"].append("run.completed"),
        lambda steps: steps[2]["expect"][0]["where"].update({"/resolution/outcome": "approved"}),
        lambda steps: steps[2]["expect"][1]["where"].update({"/error/outcome": {"$present": True}}),
        lambda steps: steps[2].update(forbid=["run.failed"]),
        _expect(1, "status", 404),
        _expect(1, "body", {"outcome": "approved"}),
        _expect(4, "code", "FORBIDDEN"),
        _expect(4, "retryable", True),
        _expect(4, "outcome", "uncertain"),
        _claim(effects=[{}]),
        _claim(audit={"approval.rejected": 2}),
        _claim(lastAudit="approval.requested"),
        _claim(auditContains={"type": "approval.resolved", "outcome": "expired"}),
        _claim(pending=1),
        _claim(usageStatus="completed"),
        _claim(modelCalls=2),
        _claim(noEventContains="Reviewed"),
    ],
)
async def test_an_altered_scenario_does_not_hold(change: Callable[[Steps], Any]) -> None:
    altered = copy.deepcopy(DENIED)
    change(altered["steps"])
    with pytest.raises(ExceptionGroup) as raised:
        await play(SUITE, altered, 1)
    assert raised.group_contains(AssertionError)


async def test_the_scenario_as_it_is_holds() -> None:
    await play(SUITE, DENIED, 1)


@pytest.mark.parametrize(
    "change",
    [
        _expect(0, "featuresInclude", ["time-travel"]),
        _expect(0, "featuresExclude", ["conversation-sessions"]),
        _expect(3, "body", {"session": {"expiresAt": {"$absent": True}}}),
        _expect(3, "body", {"session": {"state": {"$oneOf": ["running", "interrupted"]}}}),
        _expect(3, "bodyExcludes", "ready"),
        _expect(5, "body", {"session": {"revision": True}}),
        _expect(5, "bodyEquals", {}),
        _expect(6, "bodyHistoryLength", 3),
        _expect(6, "bodyHistoryContents", ["hello", "another reply"]),
        lambda steps: steps.insert(6, {"do": "assert", "modelInputs": [{"call": 1, "firstMessage": "bye"}]}),
        lambda steps: steps.insert(6, {"do": "assert", "modelCallsAfterRestart": 2}),
        lambda steps: steps.insert(6, {"do": "assert", "modelBlockedAtStep": 1}),
    ],
)
async def test_an_altered_scenario_of_sessions_does_not_hold(change: Callable[[Steps], Any]) -> None:
    altered = copy.deepcopy(TURNS)
    change(altered["steps"])
    with pytest.raises(ExceptionGroup) as raised:
        await play(SESSIONS, altered, 1)
    assert raised.group_contains(AssertionError)


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: steps[2].update(eventTypes=["run.started"]),
        lambda steps: steps[2].update(eventsPerPage=[11]),
        lambda steps: steps[2].update(responseBytesAtMost=900_000),
        _claim(store={"$J.id": {"state": "failed"}}, eventually=False),
        _claim(store={"$J.id": {"stateOneOf": ["failed", "queued"]}}),
        _claim(store={"$J.id": {"eventTypes": ["run.started"]}}),
        _claim(store={"$J.id": {"payload": None}}),
        _claim(store={"$J.runId": {"exists": False}}),
        _claim(storeCount=0),
        _claim(inMemoryQueueLength=1),
        _claim(leaseFree=False),
    ],
)
async def test_an_altered_scenario_of_jobs_does_not_hold(change: Callable[[Steps], Any]) -> None:
    altered = copy.deepcopy(PAGED) | {"withinMs": 50}
    change(altered["steps"])
    with pytest.raises(ExceptionGroup) as raised:
        await play(JOBS, altered, 1)
    assert raised.group_contains(AssertionError)


async def test_a_configuration_that_starts_does_not_fail_as_a_scenario_says() -> None:
    scenario = {"host": "$jobs", "model": "$answer", "steps": [{"do": "assert", "startupError": "INVALID_JOB_CONFIG"}]}
    with pytest.raises(AssertionError):
        await play(JOBS, scenario | {"override": {"jobs": None}}, 1)
