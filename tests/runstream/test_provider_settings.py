"""Provider instances in the settings: what may be said of one, where its key is, and what the commands show."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import msgspec
import pytest

from providers.kit import Answer
from providers.vendors import VENDORS
from runstream import checking
from runstream.instances import NoModels, UnknownInstance, show
from runstream.models import key_of, open_models, with_named
from runstream.output import Output
from runstream.provider_settings import ProviderSettings
from runstream.reading import Fault
from runstream.settings import Settings, SettingsError
from runstream.sources import places, settings_of
from tests.providers.fake_chat import ChatDialect
from tests.providers.fake_http import Asked, Reply, machine
from tests.providers.fake_openai import ResponsesDialect
from tests.providers.fake_vendor import Dialect, reply

pytestmark = pytest.mark.anyio

HOME = Path("/users/ann")
LOCAL = "http://127.0.0.1:11434/v1"
DEADLINE_S = 60.0


def faults(**members: Any) -> dict[str, str]:
    """What is wrong with one instance as a file states it, by key."""
    try:
        settings_of({"providers": [{"id": "it", "kind": "openai", **members}]}, places({}, HOME), HOME)
    except SettingsError as error:
        return {fault.key.removeprefix("providers[0]").removeprefix("."): fault.why for fault in error.faults}
    return {}


def made(**members: Any) -> ProviderSettings:
    settings = settings_of({"providers": [{"id": "it", "kind": "openai", **members}]}, places({}, HOME), HOME)
    return settings.providers[0]


@pytest.mark.parametrize("kind", VENDORS)
def test_every_vendor_has_a_kind(kind: str) -> None:
    provider = made(kind=kind, base_url=LOCAL)
    assert provider.vendor is VENDORS[kind]  # type: ignore[index]
    assert provider.address(VENDORS["openai"]) == f"{LOCAL}/"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/v1",
        "http://127.0.0.2/v1",
        "ftp://localhost/",
        "example.org",
        "https://",
        "https://user:private@example.org/v1",
        "https://example.org/v1?key=private",
        "https://example.org/v1#private",
        "https://example.org:0/",
        "https://example.org:99999/",
        "https://[::1/",
    ],
)
def test_an_address_must_be_secure_and_bare(url: str) -> None:
    told = faults(base_url=url)["base_url"]
    assert told.startswith("INSECURE_TRANSPORT")
    assert "private" not in told


@pytest.mark.parametrize(
    "url", ["https://example.org", "http://localhost:1/v1/", "http://[::1]:8080", "http://127.0.0.1/"]
)
def test_other_addresses_may_be_asked(url: str) -> None:
    assert faults(base_url=url) == {}


@pytest.mark.parametrize(
    ("members", "key", "says"),
    [
        ({"kind": "openai-compatible"}, "base_url", "is missing"),
        ({"scripts": {"m": {"turns": [{}]}}}, "scripts", "remove it"),
        ({"key_env": "A", "key_file": "b"}, "key_file", "two keys"),
        ({"key_env": "sk-private"}, "key_env", "the name of an environment variable"),
        ({"api_key": "sk-private"}, "api_key", "there is no such key"),
        ({"kind": "mock", "key_env": "A"}, "key_env", "asks no vendor"),
        ({"kind": "scripted", "base_url": LOCAL}, "base_url", "asks no vendor"),
        ({"kind": "scripted", "structured_output": True}, "structured_output", "asks no vendor"),
        ({"input_media_types": {"m": ["image/gif"]}}, "input_media_types.m[0]", "one of"),
        ({"input_media_types": {"m": ["image/png"]}, "models": ["n"]}, "input_media_types.m", "INVALID_CONTEXT_POLICY"),
        ({"input_media_types": {"m": ["image/png"] * 2}}, "input_media_types.m", "INVALID_CONTEXT_POLICY"),
        ({"input_media_types": {f"m{n}": [] for n in range(1_001)}}, "input_media_types", "INVALID_CONTEXT_POLICY"),
        ({"kind": "xai", "input_media_types": {"m": ["application/pdf"]}}, "input_media_types.m", "takes no PDF"),
    ],
)  # fmt: skip
def test_a_fault_says_how_to_mend_it_and_repeats_no_key(members: dict[str, Any], key: str, says: str) -> None:
    found = faults(**members)
    assert says in found[key], found
    assert "private" not in "".join(found.values())


async def test_a_key_comes_from_the_variable_that_is_named_or_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual")
    monkeypatch.setenv("OURS", "ours")
    for provider, told in ((made(), "usual"), (made(key_env="OURS"), "ours"), (made(key_env="NOT_SET_AT_ALL"), "")):
        key = key_of(provider, VENDORS["openai"])
        assert key is not None
        assert await key.read() == told
    assert key_of(made(kind="openai-compatible", base_url=LOCAL), VENDORS["openai-compatible"]) is None


async def test_a_key_file_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = key_of(made(key_file=str(file)), VENDORS["openai"])
    assert key is not None
    assert await key.read() == ""
    for text, told in ((b" one\n", "one"), (b"two", "two"), (b"\xff", ""), (b"x" * 9_000, "x" * 8_192)):
        file.write_bytes(text)
        assert await key.read() == told


def fitted(*providers: ProviderSettings) -> Settings:
    return Settings(state_dir=HOME, providers=providers)


async def test_a_vendor_without_a_key_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "private")
    settings = fitted(
        made(key_env="SET"), made(key_env="NOT_SET_AT_ALL"), made(kind="openai-compatible", base_url=LOCAL)
    )
    told = [verdict async for verdict in checking._keys(settings)]
    assert [(verdict.level, verdict.about) for verdict in told] == [("warning", "providers[1]")]
    assert "NOT_SET_AT_ALL" in told[0].line
    monkeypatch.setattr(checking, "find_spec", lambda _: None)
    told = [verdict async for verdict in checking._keys(settings)]
    assert [(verdict.level, verdict.about) for verdict in told][:1] == [("error", "providers")]
    assert [verdict async for verdict in checking._keys(fitted())] == []


def test_a_vendor_may_be_named_without_an_instance_of_it() -> None:
    ours = made(id="gemini", kind="openai")
    settings = fitted(ours)
    assert with_named(settings, "nobody") is settings
    assert with_named(settings, "gemini") is settings
    assert [one.kind for one in with_named(settings, "anthropic").providers] == ["openai", "anthropic"]
    local = with_named(settings, "openai-compatible", LOCAL)
    assert with_named(local, "openai-compatible", f"{LOCAL}/more").providers[1].base_url == f"{LOCAL}/more"
    with pytest.raises(SettingsError, match=r"openai-compatible\.base_url: is missing"):
        with_named(settings, "openai-compatible")
    with pytest.raises(SettingsError, match="INSECURE_TRANSPORT"):
        with_named(settings, "openai-compatible", "http://example.org")


async def test_without_the_http_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("providers.http", "providers.api"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(SettingsError) as caught:
        async with open_models(fitted(made(kind="anthropic"))):
            pass
    fault = Fault("providers[0].kind", 'needs the HTTP client of an extra: pip install "runstream[anthropic]"')
    assert caught.value.faults == (fault,)
    monkeypatch.setitem(sys.modules, "providers.http", None)
    with pytest.raises(ModuleNotFoundError):
        async with open_models(fitted(made())):
            pass


# What the commands show.


def answering(dialect: Dialect, *, models: Sequence[str] = ("m-2", "m-1")) -> Any:
    def respond(asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(parts=[msgspec.json.encode(dialect.listed(tuple(models)))], content_type="application/json")
        return reply(Answer(text=("A streamed ", "answer."), counted=(4, 0, 3, 0)), dialect)

    return respond


async def test_instances_are_shown_as_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "private")
    async with machine(answering(ResponsesDialect())) as told:
        settings = fitted(
            made(
                id="gpt",
                base_url=f"{told.url}v1",
                key_env="KEY",
                models=["m-1"],
                input_media_types={"m-1": ["image/png"]},
            ),
            made(id="keyless", key_env="NOT_SET_AT_ALL"),
        )
        await show(settings, None, Output(), as_json=False)
        table = [line.split(maxsplit=5) for line in capsys.readouterr().out.splitlines()]
        await show(settings, "gpt", Output(), as_json=False)
        models = capsys.readouterr().out
        with pytest.raises(NoModels, match="AUTH_REQUIRED: No credential is configured"):
            await show(settings, "keyless", Output(), as_json=False)
        await show(settings, None, Output(), as_json=True)
        listed = msgspec.json.decode(capsys.readouterr().out)["providers"]
        with pytest.raises(UnknownInstance, match="there are gpt, keyless"):
            await show(settings, "other", Output(), as_json=False)
    assert table == [
        ["provider", "vendor", "health", "code", "models", "capabilities"],
        ["gpt", "openai", "ready", "CATALOG_AVAILABLE", "2", "tools, streaming, retries, native, images"],
        ["keyless", "openai", "unauthenticated", "AUTH_REQUIRED", "-", "tools, streaming, retries, native"],
    ]
    assert models == "m-1\n"
    assert [one["id"] for one in listed] == ["gpt", "keyless"]


def kept_for(folder: Path) -> dict[str, str]:
    """The environment of a user whose home is *folder*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNSTREAM_", "OPENAI_", "XDG_"))}
    return kept | {"HOME": str(folder)}


async def ran(folder: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    with anyio.fail_after(DEADLINE_S):
        done = await anyio.run_process(
            [sys.executable, "-m", "runstream", *words],
            env=kept_for(folder) | environ,
            cwd=folder,
            check=False,
        )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_a_newcomer_gets_a_streamed_answer_from_a_server_or_with_a_key(tmp_path: Path) -> None:
    async with machine(answering(ChatDialect(), models=("llama-test",))) as told:
        url = f"{told.url}v1"
        assert await ran(tmp_path, "providers", "--base-url", url) == (0, "llama-test\n", "")
        words = ("run", "--base-url", url, "--model", "llama-test", "Tell me about rivers")
        assert await ran(tmp_path, *words) == (0, "A streamed answer.\n", "")
    assert "authorization" not in told.asked[-1].headers
    async with machine(answering(ResponsesDialect())) as told:
        config = tmp_path / "runstream.toml"
        config.write_text(f'[[providers]]\nid = "openai"\nkind = "openai"\nbase_url = "{told.url}v1"\n')
        with_key = ("run", "--config", str(config), "--provider", "openai", "--model", "gpt-test", "--events", "Hello")
        code, out, err = await ran(tmp_path, *with_key, OPENAI_API_KEY="key-of-mine")
    assert (code, err) == (0, "")
    events = [msgspec.json.decode(line) for line in out.splitlines()]
    assert "".join(event["text"] for event in events if event["type"] == "text.delta") == "A streamed answer."
    assert told.asked[-1].headers["authorization"] == "Bearer key-of-mine"
    assert "key-of-mine" not in out


async def test_a_person_is_told_the_run_that_an_answer_belongs_to(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "runstream", "run", "--model", "whole", "Hello"]
    shown, terminal = os.openpty()
    try:
        with anyio.fail_after(DEADLINE_S):
            done = await anyio.run_process(words, stderr=terminal, env=kept_for(tmp_path), cwd=tmp_path)
        word, told = os.read(shown, 4_096).decode().split()
    finally:
        os.close(shown)
        os.close(terminal)
    assert done.stdout == b"Answered in one piece.\n"
    assert (word, str(UUID(told))) == ("run", told)


async def test_what_cannot_be_asked_is_told_in_one_line(tmp_path: Path) -> None:
    code, _, err = await ran(tmp_path, "run", "--provider", "openai", "Hello")
    assert (code, "runstream providers openai" in err) == (2, True)
    code, _, err = await ran(tmp_path, "run", "--provider", "openai", "--model", "m", "Hello")
    assert (code, err) == (
        1,
        "AUTH_REQUIRED: The provider has no credential. -> put it into the variable OPENAI_API_KEY\n",
    )


def test_an_instance_says_what_it_can_do() -> None:
    vendor = VENDORS["anthropic"]
    told = vendor.info(
        instance="it",
        name="",
        auth_mode="api-key",
        models=None,
        media={"m": ("application/pdf",)},
        tools=False,
        account=None,
    )
    assert told.name == "Anthropic"
    assert (told.capabilities["tools"], told.capabilities["images"], told.capabilities["documents"]) == (
        False,
        False,
        True,
    )
