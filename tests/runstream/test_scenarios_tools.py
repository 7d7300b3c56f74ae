"""The shared scenarios of application tools: on one node, and with request, result and reader on three."""

from typing import Any

import pytest

from eventstore.endpoint import Endpoint
from tests.client_checks import verdict
from tests.runstream.servers import emptied, valkey
from tests.scenarios import play, suite

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

SUITE = suite("application-tools")
SCENARIOS: dict[str, Any] = {scenario["id"]: scenario for scenario in SUITE["scenarios"]}
ASKED = ["run.started", "step.started", "usage.reported", "tool.called", "approval.requested"]
FULL_INTERVAL: dict[str, Any] = {
    "id": "full-interval",
    "title": "After a long review a full idle interval begins at the decision",
    "host": "$open",
    "model": "$lookup",
    "override": {"applicationTools": {"requireApproval": True}, "limits": {"idleTimeoutMs": 50}},
    "steps": [
        {
            "do": "stream",
            "id": "S",
            "as": "alice",
            "request": {
                "$merge": [
                    "$fixtures.requests.lookup",
                    {"approvals": {"mode": "interactive", "idlePolicy": "pause"}},
                ]
            },
            "until": "approval.requested",
            "expect": ASKED,
            "save": {"A": "/approval"},
        },
        {"do": "advance", "ms": 2_592_000_000},
        {
            "do": "post",
            "as": "alice",
            "path": "/v1/approvals/decisions",
            "body": {"approvalId": "$A.approvalId", "runId": "$A.runId", "call": "$A.call", "decision": "approve"},
            "expect": {"status": 200, "body": {"outcome": "approved"}},
        },
        {
            "do": "read",
            "id": "S",
            "until": "tool.execution.requested",
            "expect": ["approval.resolved", "tool.execution.requested"],
        },
        {"do": "advance", "ms": 48},
        {"do": "assert", "pending": 1},
        {"do": "advance", "ms": 3},
        {
            "do": "read",
            "id": "S",
            "expect": [
                {
                    "type": "run.cancelled",
                    "where": {"/error/code": "IDLE_TIMEOUT", "/error/retryable": False, "/error/outcome": "uncertain"},
                }
            ],
        },
        {"do": "assert", "pending": 0},
    ],
}
PLAYED = [*SCENARIOS.values(), FULL_INTERVAL]


def test_there_are_as_many_scenarios_as_the_protocol_has() -> None:
    assert len(SCENARIOS) == 33


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: str(scenario["id"]))
async def test_one_host_plays_the_scenario(scenario: dict[str, Any]) -> None:
    await play(SUITE, scenario, 1)


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: str(scenario["id"]))
async def test_three_hosts_play_the_scenario(scenario: dict[str, Any], valkey: Endpoint) -> None:
    await play(SUITE, scenario, 3, await emptied(valkey))


@pytest.mark.parametrize("case", SUITE["clientChecks"]["cases"], ids=lambda case: str(case["id"]))
def test_the_strict_client_judges_as_public_clients_do(case: dict[str, Any]) -> None:
    assert verdict(SUITE["clientChecks"], case) == case["clientResult"]
