"""The whole house over a real socket: the shared vectors, every stream through a strict client, on every profile here."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from msgspec.structs import replace

import runstream
from actors.errors import Refused
from actors.ports import Model
from api.server import Config, Listening, serve
from providers import ready
from providers.mock import Mock
from providers.scripted import Scripted, described
from runstream.settings import IdempotencySettings, ListenSettings, SchedulingSettings, Settings
from tests.api.host_cases import run_host_cases
from tests.api.hosted import TOKENS, entries
from tests.http_client import Tcp, fetch
from tests.strict_client import ClientError, checked_response, host_answer, host_headers, host_rules

pytestmark = pytest.mark.anyio

Profile = Literal["memory", "local"]
TOKEN = TOKENS["reader"]
ENDS_BY_ITSELF = sorted(name for name in ready.models() if not name.startswith(("hang", "slow")))


@asynccontextmanager
async def listening(
    profile: Profile, folder: Path, *, keyed: bool = True
) -> AsyncIterator[tuple[Tcp, Mock, runstream.Host]]:
    """A host of *profile* on a free port, with the mock and all scripted models."""
    mock = Mock()
    scripts = ready.models()
    models: dict[str, Model] = {"mock": mock, "scripted": Scripted(described(scripts), scripts)}
    reader, nobody = entries()
    granted = ("mock", "scripted") if keyed else ("mock",)
    settings = Settings(
        state_dir=folder / "state",
        profile=profile,
        tokens=(replace(reader, providers=granted), nobody),
        listen=ListenSettings(origins=("https://desk.example",)),
        idempotency=IdempotencySettings(enabled=keyed),
        scheduling=SchedulingSettings(total=64, per_subject=64),
    )
    async with runstream.open(settings, models) as host:
        ready_: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(host.app, Config(port=0), on_ready=ready_.set_result, drain=host.close))
        at = await ready_
        yield Tcp("127.0.0.1", at.port), mock, host
        at.stop()
        await serving


@pytest.mark.parametrize("profile", ["memory", "local"])
async def test_the_whole_host_answers_every_case_of_the_shared_vectors(profile: Profile, tmp_path: Path) -> None:
    async with listening(profile, tmp_path, keyed=False) as (target, mock, _):
        assert await run_host_cases(target, lambda: mock.calls, TOKENS) == []


async def test_every_scripted_model_is_read_by_a_strict_client_in_both_modes(tmp_path: Path) -> None:
    async with listening("local", tmp_path) as (target, _, _), anyio.create_task_group() as tasks:
        for model in ENDS_BY_ITSELF:
            tasks.start_soon(_in_both_modes, target, model)


async def _in_both_modes(target: Tcp, model: str) -> None:
    request: dict[str, Any] = {"provider": "scripted", "model": model, "input": "Three little words"}
    if model.startswith("json"):
        request["outputSchema"] = {"type": "object"}
    headers = [("Authorization", f"Bearer {TOKEN}"), ("Content-Type", "application/json")]
    body = json.dumps(request).encode()
    stream = await fetch(target, "POST", "/v1/runs", [*headers, ("Accept", "text/event-stream")], body)
    host_headers(stream.status, stream.headers, stream=True)
    end: Any = host_rules(stream.body, request)[-1]
    answer = await fetch(target, "POST", "/v1/runs", headers, body)
    host_answer(answer.status, answer.headers, answer.body)
    try:
        result: Any = checked_response("run", request, answer.status, answer.headers, answer.body)
        failed = ""
    except ClientError as error:
        result, failed = {}, error.code
    if failed:
        assert end["type"] in {"run.failed", "run.cancelled"}, model
        assert end["error"]["code"] == failed
    else:
        told = {name: value for name, value in end["result"].items() if name != "runId"}
        assert told == {name: value for name, value in result.items() if name != "runId"}


async def test_what_the_edge_advertises_exists(tmp_path: Path) -> None:
    async with listening("memory", tmp_path) as (target, _, _):
        answer = await fetch(target, "GET", "/v1/protocol", [("Authorization", f"Bearer {TOKEN}")])
        features = json.loads(answer.body)["features"]
    assert "idempotency" in features
    assert not {"durable-jobs", "conversation-sessions", "scoped-retrieval"} & set(features)


async def test_what_is_no_id_of_a_run_is_refused_and_an_id_in_capitals_is_one(tmp_path: Path) -> None:
    async with runstream.open(Settings(state_dir=tmp_path, profile="memory")) as host:
        async with host.attend({"provider": "scripted", "model": "echo", "input": "hello"}) as run:
            told = [item async for batch in run.items() for item in batch]
        assert len(await host.events(run.run_id.upper())) == len(told)
        for wrong in ("", "none", f"{run.run_id}0"):
            for ask in (host.events, host.log, host.state, host.cancel):
                with pytest.raises(Refused, match="INVALID_REQUEST"):
                    await ask(wrong)
            with pytest.raises(Refused, match="INVALID_REQUEST"):
                host.follow(wrong)
