"""`runstream check`: what it finds, and what it says to change."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import runstream
from api.grants import TokenEntry
from eventstore.endpoint import Endpoint
from runstream import checking
from runstream.neighbour import joined
from runstream.settings import ListenSettings, ProviderSettings, RedisSettings, SchedulingSettings, Secret, Settings
from tests.certificates import papers_for

pytestmark = pytest.mark.anyio

ENTRY = TokenEntry(digest="ab" * 32, subject="alice", providers=("scripted",))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", tokens=(ENTRY,))


async def levels(settings: Settings) -> dict[str, str]:
    return {verdict.about: verdict.level for verdict in await checking.check(settings)}


async def test_the_default_host_could_start(settings: Settings) -> None:
    assert set((await levels(settings)).values()) == {"ok"}


async def test_the_memory_profile_needs_no_redis_and_promises_nothing(settings: Settings) -> None:
    found = await checking.check(replace(settings, profile="memory"))
    assert "nothing survives" in found[0].line
    assert {verdict.level for verdict in found} == {"ok"}


async def test_a_redis_that_does_not_answer_is_an_error(settings: Settings, tmp_path: Path) -> None:
    elsewhere = replace(settings, profile="standard", redis=RedisSettings(socket=tmp_path / "none.sock"))
    found = {verdict.about: verdict for verdict in await checking.check(elsewhere)}
    assert found["redis"].level == "error"
    assert "[redis]" in found["redis"].mend


async def test_a_binary_that_is_no_server_is_an_error(settings: Settings) -> None:
    redis = RedisSettings(binary=Path(shutil.which("true") or "/bin/true"))
    assert (await levels(replace(settings, redis=redis)))["redis"] == "error"


async def test_a_server_that_breaks_the_profile_is_an_error_that_says_what_to_set(settings: Settings) -> None:
    async with runstream.open(settings):
        near = await joined(settings)
        assert near.profile == "standard"
        found = await checking.check(replace(near, profile="strict"))
    errors = [verdict.line for verdict in found if verdict.level == "error"]
    assert any("set appendfsync always" in line for line in errors)


async def test_a_host_that_runs_is_asked_instead_of_disturbed(settings: Settings) -> None:
    async with runstream.open(settings):
        told = [verdict.what for verdict in await checking.check(settings) if verdict.about == "redis"]
    assert "held by a running host" in told[0]
    assert await joined(settings) == settings


async def test_a_certificate_that_cannot_be_used_is_an_error(settings: Settings, tmp_path: Path) -> None:
    listen = ListenSettings(certificate=tmp_path / "none.pem", key=tmp_path / "none.pem")
    assert (await levels(replace(settings, profile="memory", listen=listen)))["listen"] == "error"


async def test_a_certificate_that_can_be_used_is_served_with(settings: Settings, tmp_path: Path) -> None:
    papers = papers_for(tmp_path / "papers", "h")
    listen = ListenSettings(host="0.0.0.0", certificate=papers.certificate, key=papers.key)
    lines = [verdict.line for verdict in await checking.check(replace(settings, profile="memory", listen=listen))]
    assert any("https://0.0.0.0:7433" in line for line in lines)


def test_a_host_without_a_token_or_with_an_odd_one_is_told_so(settings: Settings) -> None:
    assert [verdict.level for verdict in checking.tokens(replace(settings, tokens=()))] == ["warning"]
    odd = replace(settings, tokens=(replace(ENTRY, providers=("gone",)),))
    assert "'gone'" in [verdict.line for verdict in checking.tokens(odd)][1]


def test_limits_by_account_without_accounts_are_told(settings: Settings) -> None:
    limited = replace(settings, scheduling=SchedulingSettings(per_account=1))
    assert [verdict.level for verdict in checking.providers(limited)] == ["ok", "warning", "warning"]
    bound = replace(limited, providers=(ProviderSettings(id="one", kind="mock", account="a"),))
    assert [verdict.level for verdict in checking.providers(bound)] == ["ok"]


async def test_the_endpoint_takes_the_account_from_its_own_keys(settings: Settings, tmp_path: Path) -> None:
    redis = RedisSettings(url="rediss://redis.example:7000/2", username="u", password=Secret("pass-word"))
    there = await checking.shape(replace(settings, profile="standard", redis=redis))
    assert isinstance(there, Endpoint)
    assert (there.host, there.port, there.db, there.user, there.password) == (
        "redis.example",
        7000,
        2,
        "u",
        "pass-word",
    )
    assert there.tls is not None
    assert "pass-word" not in repr(there)
    by_socket = replace(settings, profile="standard", redis=RedisSettings(socket=tmp_path / "s"))
    assert await checking.shape(by_socket) == Endpoint(path=str(tmp_path / "s"))
