"""The player of scenarios notices what does not hold."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios import play, suite

pytestmark = pytest.mark.anyio

SUITE = suite("approvals")
DENIED = next(scenario for scenario in SUITE["scenarios"] if scenario["id"] == "deny-terminal")
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
