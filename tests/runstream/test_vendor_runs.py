"""Whole runs through each vendor's adapter: tools, a person's decision on another node, sessions, attachments."""

from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.decisions import Caller
from actors.ports import ToolCall
from actors.request import Features
from actors.session import Limits
from actors.sessions import Wanted, everything_of
from eventstore.endpoint import Endpoint
from projections.wire_feed import numbered
from providers.kit import SECRET, Answer
from runstream.host import Host, Options, open_host
from runstream.models import open_models
from runstream.provider_settings import ProviderSettings
from runstream.settings import Settings
from runstream.tools import Toolbox, load
from tests.providers.dialects import DIALECTS, named
from tests.providers.fake_gemini import GeminiWithoutIds
from tests.providers.fake_http import Asked, Machine, Reply, machine
from tests.providers.fake_vendor import Dialect, reply
from tests.runstream.servers import emptied, valkey

pytestmark = pytest.mark.anyio
__all__ = ["valkey"]

DEADLINE_S = 20.0
PNG = b"\x89PNG\r\n\x1a\n-picture"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
NOTICE = ToolCall("call-1", "post_notice", Raw(b'{"board":"Canteen","text":"Lift is out."}'))


def settings(dialect: Dialect, told: Machine, folder: Path, **more: Any) -> Settings:
    """Two instances of one vendor, of which runs use the second."""
    key = folder / "key"
    key.write_text(f"{dialect.key}\n", encoding="utf-8")
    one = ProviderSettings(id="other", kind=dialect.kind, base_url="https://example.org/v1", key_env="NOT_SET_AT_ALL")
    two = ProviderSettings(
        id="house",
        kind=dialect.kind,
        base_url=f"{told.url}v1",
        key_file=key,
        account="house",
        models=(dialect.model,),
        **more,
    )
    return Settings(state_dir=folder, providers=(one, two))


@asynccontextmanager
async def vendor(dialect: Dialect, *answers: Answer, strict: bool = True) -> AsyncIterator[Machine]:
    left = list(answers)

    def respond(asked: Asked) -> Reply:
        if strict:
            dialect.check(asked)
        return reply(left.pop(0) if len(left) > 1 else left[0], dialect)

    async with machine(respond) as told:
        yield told


@asynccontextmanager
async def nodes(given: Settings, server: Endpoint, count: int = 2) -> AsyncIterator[Sequence[Host]]:
    """Nodes of one deployment, each with models of its own."""
    opening = await emptied(server)
    options = Options(
        features=Features(idempotency=True, approvals=True), sessions=Limits(retention_ms=600_000), heartbeat_s=0.5
    )
    tools = Toolbox(await load("runstream.demo_tools"))
    async with AsyncExitStack() as stack:
        hosts: list[Host] = []
        for name in "ab"[:count]:
            models = await stack.enter_async_context(open_models(given))
            store = await stack.enter_async_context(opening(name))
            hosts.append(await stack.enter_async_context(open_host(store, models, options, tools)))
        yield hosts


def asking(dialect: Dialect, **members: Any) -> dict[str, Any]:
    common = {"provider": "house", "model": dialect.model, "input": "What now?", "maxOutputTokens": 500}
    return common | {"instructions": "Be brief."} | members


async def events_of(host: Host, document: Mapping[str, Any], decider: Host | None = None) -> list[dict[str, Any]]:
    """What a client sees of a run, whose calls are approved through *decider*."""
    seen: list[dict[str, Any]] = []
    with anyio.fail_after(DEADLINE_S):
        async with host.attend(document, subject="ann") as run:
            async for batch in run.items():
                for item in batch:
                    seen.append(msgspec.json.decode(numbered(item.number, item.data)))
                    if seen[-1]["type"] == "approval.requested" and decider is not None:
                        asked = seen[-1]["approval"]
                        anybody = Caller("ann", lambda *_: True, lambda *_: True)
                        await decider.decisions.decide(
                            anybody, asked["approvalId"], asked["runId"], asked["call"], "approve"
                        )
    return seen


@pytest.mark.parametrize("dialect", [*DIALECTS, GeminiWithoutIds()], ids=lambda one: type(one).__name__)
async def test_a_call_that_is_approved_on_another_node_goes_on_where_its_model_is(
    dialect: Dialect, valkey: Endpoint, tmp_path: Path
) -> None:
    first = Answer(thought="Hm.", text=("One ", "moment."), calls=(NOTICE,), state="opaque-0815", counted=(12, 4, 7, 2))
    async with (
        vendor(dialect, first, Answer(text=("It ", "hangs."), counted=(20, 5, 3, 0))) as told,
        nodes(settings(dialect, told, tmp_path), valkey) as (a, b),
    ):
        approvals = {"mode": "interactive", "idlePolicy": "pause"}
        seen = await events_of(a, asking(dialect, tools=["post_notice"], approvals=approvals), b)
    kinds = [event["type"] for event in seen if event["type"] not in {"run.progress", "text.delta", "usage.reported"}]
    assert kinds == [
        "run.started",
        "step.started",
        "tool.called",
        "approval.requested",
        "approval.resolved",
        "tool.completed",
        "step.started",
        "run.completed",
    ]
    result = seen[-1]["result"]
    assert (result["text"], result["steps"], result["finishReason"]) == ("It hangs.", 2, "stop")
    assert (result["usage"]["inputTokens"], result["usage"]["outputTokens"]) == (32, 10)
    assert "".join(event["text"] for event in seen if event["type"] == "text.delta") == "One moment.It hangs."
    sent = told.asked[-1].body
    assert b"Canteen" in sent
    assert (b"opaque-0815" in sent) == (dialect.kind not in {"openai-compatible", "xai-chat"})
    assert b"opaque-0815" not in msgspec.json.encode(seen)


@pytest.mark.parametrize(
    "dialect", [one for one in DIALECTS if one.kind in {"openai", "anthropic", "gemini"}], ids=named
)
async def test_a_session_gives_the_vendor_its_own_state_back(
    dialect: Dialect, valkey: Endpoint, tmp_path: Path
) -> None:
    first = Answer(
        thought="Hm.", text=("Hello.",), state="opaque-0815", calls=(NOTICE,) if dialect.kind == "gemini" else ()
    )
    rest = Answer(text=("Again.",))
    async with vendor(dialect, first, rest) as told, nodes(settings(dialect, told, tmp_path), valkey) as (a, b):
        assert a.sessions is not None
        made = await a.sessions.create(everything_of("ann"), Wanted("house", dialect.model, "native", (), "Be brief."))
        for revision, host in enumerate((a, b)):
            document = asking(dialect, session={"id": made.id, "revision": revision}, tools=["post_notice"])
            del document["instructions"]
            approvals = {"mode": "interactive", "idlePolicy": "pause"}
            seen = await events_of(host, document | {"approvals": approvals}, host)
            assert seen[-1]["type"] == "run.completed", seen[-1]
    assert b"opaque-0815" in told.asked[-1].body


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
async def test_a_structured_answer_is_judged_whoever_wrote_it(
    dialect: Dialect, valkey: Endpoint, tmp_path: Path
) -> None:
    good, bad = Answer(text=('{"ok"', ": true}")), Answer(text=('{"ok":"maybe"}',))
    document = asking(dialect, outputSchema=SCHEMA)
    del document["instructions"]
    async with (
        vendor(dialect, good, bad, strict=False) as told,
        nodes(settings(dialect, told, tmp_path), valkey, count=1) as (host,),
    ):
        assert (await events_of(host, document))[-1]["result"]["output"] == {"ok": True}
        assert (await events_of(host, document))[-1]["error"]["code"] == "INVALID_OUTPUT"
    schema = b'"schema":{"type":"object"' if dialect.kind != "gemini" else b'"responseJsonSchema":{"type":"object"'
    assert (schema in told.asked[0].body) == (dialect.kind != "openai-compatible")


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
async def test_a_picture_reaches_the_models_that_may_see_it(dialect: Dialect, valkey: Endpoint, tmp_path: Path) -> None:
    data = b64encode(PNG).decode()
    picture = {
        "type": "image",
        "source": {"id": "photo", "revision": "r1"},
        "mediaType": "image/png",
        "data": data,
    }
    media = {dialect.model: ("image/png",)}
    async with (
        vendor(dialect, Answer(text=("A lift.",)), strict=False) as told,
        nodes(settings(dialect, told, tmp_path, input_media_types=media), valkey, count=1) as (host,),
    ):
        seen = await events_of(host, asking(dialect, attachments=[picture]))
        assert seen[-1]["result"]["sources"][0]["id"] == "photo"
        assert data.encode() in told.asked[0].body
        capabilities = host.terms.catalog.providers["house"].capabilities
        assert (capabilities["images"], capabilities["documents"]) == (True, False)


@pytest.mark.parametrize("dialect", DIALECTS[:1], ids=named)
async def test_what_a_vendor_says_of_its_failure_is_told_to_nobody(
    dialect: Dialect, valkey: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        vendor(dialect, Answer(end="error"), Answer(status=401)) as told,
        nodes(settings(dialect, told, tmp_path), valkey, count=1) as (host,),
    ):
        codes = []
        for _ in range(2):
            seen = await events_of(host, asking(dialect))
            codes.append(seen[-1]["error"]["code"])
            entries = await host.log(seen[0]["runId"])
            assert SECRET.encode() not in msgspec.json.encode([seen, [event for _, event in entries]])
    assert codes == ["PROVIDER_FAILED", "PROVIDER_AUTH"]
    assert SECRET not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("provider"))


@pytest.mark.parametrize("dialect", DIALECTS[:1], ids=named)
async def test_cancelling_a_run_on_one_node_lets_go_of_the_vendor_on_another(
    dialect: Dialect, valkey: Endpoint, tmp_path: Path
) -> None:
    async with (
        vendor(dialect, Answer(text=("Half ",), end="silence")) as told,
        nodes(settings(dialect, told, tmp_path), valkey) as (a, b),
    ):
        with anyio.fail_after(DEADLINE_S):
            async with a.attend(asking(dialect), subject="ann") as run:
                async for batch in run.items():
                    if any(b"text.delta" in item.data for item in batch):
                        await b.cancel(run.run_id)
            await told.left.wait()


async def test_only_models_of_the_allowlist_can_be_asked_for(valkey: Endpoint, tmp_path: Path) -> None:
    dialect = DIALECTS[0]
    async with (
        vendor(dialect, Answer()) as told,
        nodes(settings(dialect, told, tmp_path), valkey, count=1) as (host,),
    ):
        with pytest.raises(Exception, match="UNSUPPORTED_MODEL"):
            await events_of(host, asking(dialect) | {"model": "another"})
    assert told.asked == []


async def test_an_instance_keeps_what_it_was_given(tmp_path: Path) -> None:
    dialect = DIALECTS[1]
    given = settings(dialect, Machine(), tmp_path, name="House", tools=False)
    given = replace(given, providers=(replace(given.providers[1], base_url="http://127.0.0.1:1/v1"),))
    async with open_models(given) as models:
        info = models["house"].info
    assert (info.name, info.vendor, info.auth_mode, info.account) == ("House", "openai-compatible", "api-key", "house")
    assert (info.capabilities["tools"], info.capabilities["nativeContinuation"]) == (False, False)
    assert info.usage_source == "provider-response"
