"""The shared scenarios of sessions: on one node, and with each turn, question and reader on another of three."""

from typing import Any

import pytest

from eventstore.endpoint import Endpoint
from tests.runstream.servers import emptied, valkey
from tests.scenario_clients import verdict
from tests.scenarios import play, suite

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

SUITE = suite("sessions")
SCENARIOS: dict[str, Any] = {scenario["id"]: scenario for scenario in SUITE["scenarios"]}


def test_there_are_as_many_scenarios_as_the_protocol_has() -> None:
    assert len(SCENARIOS) == 29


@pytest.mark.parametrize("name", SCENARIOS)
async def test_one_host_plays_the_scenario(name: str) -> None:
    await play(SUITE, SCENARIOS[name], 1)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_three_hosts_play_the_scenario(name: str, valkey: Endpoint) -> None:
    await play(SUITE, SCENARIOS[name], 3, await emptied(valkey))


@pytest.mark.parametrize("case", SUITE["clientChecks"]["cases"], ids=lambda case: str(case["id"]))
def test_the_strict_client_judges_as_public_clients_do(case: dict[str, Any]) -> None:
    assert verdict("session", SUITE["clientChecks"], case) == case["clientResult"]
