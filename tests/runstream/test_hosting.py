"""The section of the settings for the Agent Host protocol, and what it makes of a host."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import runstream
from api.grants import Policy
from runstream.hosting import HostDefaults, HostSettings
from runstream.settings import ProviderSettings, Settings
from tests.actors.support import until_so
from tests.host_client import envelope

pytestmark = pytest.mark.anyio

ANN = Policy(subject="ann", providers=("scripted", "mock"), jobs=("submit",))


def test_a_prompt_is_completed_by_what_is_set_and_else_by_what_there_is_first() -> None:
    assert HostDefaults().members("p", "m") == {"provider": "p", "model": "m"}
    full = HostDefaults(
        provider="q", model="n", instructions="Be brief.", tools=("a",), max_steps=3, max_output_tokens=9
    )
    assert full.members("p", "m") == {
        "provider": "q",
        "model": "n",
        "instructions": "Be brief.",
        "tools": ["a"],
        "maxSteps": 3,
        "maxOutputTokens": 9,
    }


async def test_a_host_of_the_settings_serves_envelopes_unless_they_say_otherwise(tmp_path: Path) -> None:
    echo = ProviderSettings(
        id="scripted", kind="scripted", models=("echo",), scripts={"echo": {"turns": [{"echo": True}]}}
    )
    settings = Settings(state_dir=tmp_path, profile="memory", providers=(echo,))
    async with runstream.open(settings) as host:
        given = {"context": {"runId": "run-1"}, "input": {"prompt": "hello"}}
        assert (await host.envelope(envelope("create_run", given, key="k"), ANN))["ok"]

        async def ended() -> bool:
            view = await host.envelope(envelope("get_run", {"runId": "run-1"}), ANN)
            return bool(view["body"]["result"] and view["body"]["result"]["content"] == "hello")

        await until_so(ended)
    off = replace(settings, host=HostSettings(enabled=False))
    async with runstream.open(off) as host:
        assert host.agent_host is None
        assert host.app.parts.host is None
