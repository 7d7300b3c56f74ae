"""The shared scenarios of interactive approvals: on one node, and with request, decision and reader on three."""

from typing import Any

import pytest

from eventstore.endpoint import Endpoint
from tests.client_checks import verdict
from tests.runstream.servers import emptied, valkey
from tests.scenarios import play, suite

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

SUITE = suite("approvals")
SCENARIOS: dict[str, Any] = {scenario["id"]: scenario for scenario in SUITE["scenarios"]}
ELSEWHERE = {
    "idle-resumes-at-decision": "this host pushes, so the tool runs at once: see `full-interval` of the tools' scenarios",
}
PLAYED = [name for name in SCENARIOS if name not in ELSEWHERE]


def test_no_scenario_but_those_is_left_out() -> None:
    assert set(ELSEWHERE) == {"idle-resumes-at-decision"}
    assert len(SCENARIOS) == 36


@pytest.mark.parametrize("name", PLAYED)
async def test_one_host_plays_the_scenario(name: str) -> None:
    await play(SUITE, SCENARIOS[name], 1)


@pytest.mark.parametrize("name", PLAYED)
async def test_three_hosts_play_the_scenario(name: str, valkey: Endpoint) -> None:
    await play(SUITE, SCENARIOS[name], 3, await emptied(valkey))


@pytest.mark.parametrize("case", SUITE["clientChecks"]["cases"], ids=lambda case: str(case["id"]))
def test_the_strict_client_judges_as_public_clients_do(case: dict[str, Any]) -> None:
    assert verdict(SUITE["clientChecks"], case) == case["clientResult"]
