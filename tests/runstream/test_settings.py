"""Settings: what a file and the environment may say, and what an operator hears when they are wrong."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields

from api.grants import RetrievalGrant, TokenEntry
from providers.ready import MODELS
from runstream.settings import Secret, Settings, SettingsError
from runstream.sources import Places, Told, lines_of, merged, places, read_settings, settings_of

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
HOME = Path("/users/ann")
WHERE = places({}, HOME)
DIGEST = "ab" * 32
FULL: Mapping[str, Any] = {
    "profile": "standard",
    "state_dir": "state",
    "partitions": 8,
    "redis": {"url": "rediss://redis.example:6380/1", "username": "u", "password": "pass-word", "tls_ca": "ca.pem"},
    "listen": {"host": "0.0.0.0", "port": 1, "certificate": "c.pem", "key": "k.pem", "origins": ["https://a.example"]},
    "tokens": [
        {
            "digest": DIGEST,
            "subject": "alice",
            "providers": ["one"],
            "tools": ["t"],
            "approve_tools": ["t"],
            "application_tools": [{"name": "look", "requires_approval": False}],
            "jobs": ["submit"],
            "sessions": ["create"],
            "retrieval": {"search": ["c"]},
            "manage_providers": True,
        }
    ],
    "providers": [
        {
            "id": "one",
            "kind": "scripted",
            "name": "One",
            "account": "a",
            "models": ["m"],
            "scripts": {"m": {"turns": [{}]}},
        }
    ],
    "scheduling": {
        "total": 2,
        "per_subject": 1,
        "per_account": 1,
        "subjects": {"alice": 2},
        "accounts": {"a": 2},
        "queue": {"total": 1, "per_subject": 1},
    },
    "limits": {"max_steps": 1, "max_output_tokens": 1, "idle_timeout_ms": 1, "max_attempts": 1},
    "idempotency": {"enabled": False, "max_entries": 1},
    "tools": "runstream.example_tools",
    "approvals": {"interactive": True, "allow_idle_pause": False, "max_pending": 1},
    "application_tools": {"enabled": True, "require_approval": False, "max_pending": 1},
    "node": {"lease_ms": 3_000, "routine_ms": 1_000, "drain_s": 0},
    "log": {"level": "debug", "json": True},
}


def read(document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    data, variables = merged(document, environ or {})
    return settings_of(data, WHERE, Path("/etc/runstream"), Told("file", {}, variables))


def faults(document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        read(document, environ)
    return dict(caught.value.faults)


def outcome(document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings | SettingsError:
    try:
        return read(document, environ)
    except SettingsError as error:
        return error


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document that is no table or list."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*path, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, (*path, number))
    else:
        yield path


def tables(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        yield path
    for name, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from tables(one, (*path, name))


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The full document with *value* at *path*."""
    document = deepcopy(dict(FULL))
    inner: Any = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return document


def dotted(path: tuple[Any, ...]) -> str:
    return re.sub(r"\.\[", "[", ".".join(f"[{step}]" if isinstance(step, int) else step for step in path))


IN_A_SCRIPT = ("providers", 0, "scripts")
OPEN_TABLES = (IN_A_SCRIPT, ("scheduling", "subjects"), ("scheduling", "accounts"))
LEAVES = [path for path in leaves(FULL) if path[:3] != IN_A_SCRIPT]
TABLES = [path for path in tables(FULL) if path[:3] != IN_A_SCRIPT and path not in OPEN_TABLES]


def test_nothing_at_all_is_a_usable_host_on_this_machine_without_tokens() -> None:
    settings = read({})
    assert (settings.profile, settings.listen.host, settings.listen.port) == ("local", "127.0.0.1", 7433)
    assert settings.state_dir == HOME / ".local/state/runstream"
    assert settings.tokens == ()
    assert [provider.id for provider in settings.providers] == ["scripted", "mock"]
    assert set(MODELS) <= set(settings.providers[0].followed())


def test_every_key_can_be_set() -> None:
    settings = read(FULL)
    assert settings.tokens[0].approve_tools == ("t",)
    assert settings.redis.password.reveal() == "pass-word"
    assert settings.redis.tls_ca == Path("/etc/runstream/ca.pem")
    assert settings.state_dir == Path("/etc/runstream/state")
    assert settings.limits.host_limits().max_attempts == 1
    assert settings.node.node_settings().lease_ms == 3_000


def test_the_settings_hold_what_the_program_itself_would_choose() -> None:
    settings = read({})
    assert settings.limits.host_limits().idle_timeout_ms is None
    assert settings.scheduling.caps("alice", "") == settings.scheduling.caps("bob", "")


@pytest.mark.parametrize("path", TABLES, ids=dotted)
@pytest.mark.parametrize("name", ["nonsense", "a b", "Profile", "\x1b[31m"])
def test_an_unknown_key_is_refused_by_name_wherever_it_stands(path: tuple[Any, ...], name: str) -> None:
    found = faults(changed((*path, name), 1))
    told = name if re.fullmatch(r"\w+", name) else msgspec.json.encode(name).decode()
    assert [key for key in found if key == ".".join(one for one in (dotted(path), told) if one)]


@pytest.mark.parametrize("path", LEAVES, ids=dotted)
@pytest.mark.parametrize("wrong", [[], {}, 1.5, ["x", {}]], ids=repr)
def test_a_wrong_type_is_refused_by_key(path: tuple[Any, ...], wrong: Any) -> None:
    if path == ("node", "drain_s") and wrong == 1.5:
        return
    assert dotted(path) in faults(changed(path, wrong))


@pytest.mark.parametrize(
    ("path", "wrong", "says"),
    [
        (("profile",), "locl", "did you mean 'local'"),
        (("partitions",), 0, "from 1 to 4096, not 0"),
        (("partitions",), True, "not true"),
        (("listen", "port"), 65_536, "from 0 to 65535"),
        (("listen", "origins"), ["https://a.example/"], "as a browser sends it"),
        (("redis", "url"), "redis://u:secret-word@h", "must hold no account"),
        (("redis", "url"), "http://h", "write it as redis://"),
        (("redis", "url"), "redis://[h", "is no address"),
        (("redis", "url"), "rediss://h/0?db=1", "must end after the database number"),
        (("redis", "url"), "redis://h", "rediss://"),
        (("redis", "socket"), "s", "two servers"),
        (("redis", "binary"), "b", "only the local profile"),
        (("redis", "password"), "", "is missing"),
        (("scheduling", "total"), 0, "INVALID_SCHEDULING: must be a whole number from 1 to 100000, not 0"),
        (("scheduling", "total"), 100_001, "INVALID_SCHEDULING"),
        (("scheduling", "subjects"), {"__proto__": 1}, "INVALID_SCHEDULING"),
        (("scheduling", "subjects"), {"": 1}, "INVALID_SCHEDULING"),
        (("scheduling", "subjects"), {"é" * 129: 1}, "INVALID_SCHEDULING"),
        (("scheduling", "accounts"), {"-": 1}, "INVALID_SCHEDULING"),
        (("scheduling", "queue"), {"total": 1}, "is missing"),
        (("scheduling", "nonsense"), 1, "INVALID_SCHEDULING: there is no such key"),
        (("limits", "max_steps"), 65, "from 1 to 64"),
        (("tools",), "my tools", "the name of a Python module"),
        (("tools",), ".tools", "the name of a Python module"),
        (("approvals", "max_pending"), 0, "from 1 to 100000"),
        (("application_tools", "max_pending"), 100_001, "from 1 to 100000"),
        (("limits", "max_attempts"), 6, "from 1 to 5"),
        (("node", "routine_ms"), 2_000, "a third of node.lease_ms"),
        (("tokens", 0, "digest"), "AB" * 32, "64 lower-case hex digits"),
        (("tokens", 0, "subject"), "", "1 to 128 characters"),
        (("tokens", 0, "approve_tools"), [""], "1 to 256 characters each"),
        (("tokens", 0, "jobs"), ["sumbit"], "did you mean 'submit'"),
        (("tokens", 0, "application_tools"), [{"name": "9"}], "not a tool name"),
        (("tokens", 0, "retrieval"), {"search": ["/"]}, "not a corpus id"),
        (("providers", 0, "id"), "a b", "a letter or digit first"),
        (("providers", 0, "models"), ["other"], "has no script"),
        (("providers", 0, "scripts"), {"m": {"turns": []}}, "model m"),
        (("providers", 0, "kind"), "mock", "follows no scripts"),
    ],
)  # fmt: skip
def test_a_fault_names_its_key_and_how_to_mend_it(path: tuple[Any, ...], wrong: Any, says: str) -> None:
    found = faults(changed(path, wrong))
    about = [why for key, why in found.items() if dotted(path) in key or key.startswith(dotted(path[:1]))]
    assert any(says in why for why in about), found


def test_all_faults_are_told_at_once() -> None:
    document = {"profile": "x", "nonsense": 1, "listen": {"port": "x"}, "log": {"level": 3}, "tokens": [{}]}
    told = {"profile", "nonsense", "listen.port", "log.level"}
    told |= {"tokens[0].digest", "tokens[0].subject", "tokens[0].providers"}
    assert set(faults(document)) == told


@pytest.mark.parametrize(("profile", "key"), [("standard", "redis.url"), ("strict", "redis.url")])
def test_a_profile_on_your_redis_needs_its_address(profile: str, key: str) -> None:
    assert "is missing" in faults({"profile": profile})[key]


@pytest.mark.parametrize("profile", ["memory", "local"])
def test_a_profile_with_a_store_of_its_own_refuses_an_address(profile: str) -> None:
    assert 'profile = "standard"' in faults({"profile": profile, "redis": {"url": "redis://h"}})["redis.url"]
    assert 'profile = "standard"' in faults({"profile": profile, "redis": {"socket": "s"}})["redis.socket"]


def test_plain_http_off_loopback_is_refused() -> None:
    assert "TLS_REQUIRED" in faults({"listen": {"host": "0.0.0.0"}})["listen.host"]
    assert "is missing" in faults({"listen": {"certificate": "c"}})["listen.key"]
    assert "is missing" in faults({"listen": {"key": "k"}})["listen.certificate"]


def test_two_entries_of_one_token_or_one_provider_are_refused() -> None:
    entry = {"digest": DIGEST, "subject": "a", "providers": []}
    provider = {"id": "one", "kind": "mock"}
    found = faults({"tokens": [entry, entry], "providers": [provider, provider]})
    assert set(found) == {"tokens[1].digest", "providers[1].id"}


@given(st.dictionaries(st.text(max_size=8), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
), max_size=4), st.sampled_from([*fields(Settings)]))  # fmt: skip
def test_whatever_a_section_holds_the_answer_is_settings_or_faults(value: dict[str, Any], field: Any) -> None:
    for document in (value, {field.name: value}, {field.name: [value]}):
        told = outcome(document)
        assert isinstance(told, Settings) or all(why for _, why in told.faults)


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.sampled_from(LEAVES))
def test_whatever_a_variable_holds_the_answer_is_settings_or_faults(text: str, path: tuple[Any, ...]) -> None:
    names = [str(step) for step in path if isinstance(step, str)]
    variable = "RUNSTREAM_" + "__".join(names).upper()
    assert outcome({}, {variable: text}) is not None


@pytest.mark.parametrize(
    ("variable", "text", "shown"),
    [
        ("RUNSTREAM_PROFILE", "memory", lambda s: s.profile == "memory"),
        ("RUNSTREAM_LISTEN__PORT", "80", lambda s: s.listen.port == 80),
        ("RUNSTREAM_LOG__JSON", "true", lambda s: s.log.json is True),
        ("RUNSTREAM_NODE__DRAIN_S", "2.5", lambda s: s.node.drain_s == 2.5),
        ("RUNSTREAM_LIMITS__IDLE_TIMEOUT_MS", "5", lambda s: s.limits.idle_timeout_ms == 5),
        ("RUNSTREAM_LISTEN__ORIGINS", "https://a.example, https://b.example", lambda s: len(s.listen.origins) == 2),
        ("RUNSTREAM_LISTEN__ORIGINS", '["https://a.example"]', lambda s: len(s.listen.origins) == 1),
        ("RUNSTREAM_SCHEDULING__SUBJECTS", '{"alice": 9}', lambda s: s.scheduling.caps("alice", "").per_subject == 9),
        ("RUNSTREAM_SCHEDULING__QUEUE__TOTAL", "7", None),
        ("RUNSTREAM_TOKENS", f'[{{"digest":"{DIGEST}","subject":"a","providers":[]}}]', lambda s: s.tokens[0].subject == "a"),
        ("RUNSTREAM_NONSENSE", "1", None),
        ("RUNSTREAM_LISTEN__PORT", "eighty", None),
        ("RUNSTREAM_TOKENS", "[", None),
    ],
)  # fmt: skip
def test_a_variable_outweighs_the_file_and_is_named_in_faults(variable: str, text: str, shown: Any) -> None:
    if shown is not None:
        assert shown(read({"profile": "local", "listen": {"port": 1}}, {variable: text}))
    else:
        assert any(variable in why or "per_subject" in key for key, why in faults({}, {variable: text}).items())


def test_what_a_client_says_is_no_setting() -> None:
    assert read({}, {"RUNSTREAM_TOKEN": "t", "RUNSTREAM_URL": "u", "RUNSTREAM_CONFIG": "c", "OTHER": "x"}) == read({})


def test_a_secret_shows_itself_to_nobody() -> None:
    settings = read(FULL)
    shown = f"{settings!r} {settings.redis} {settings.redis.password} {[settings.redis.password]}"
    assert "pass-word" not in shown
    assert "***" in shown
    assert settings.redis.password == Secret("pass-word")
    assert hash(settings.redis.password) == hash(Secret("pass-word"))
    with pytest.raises(TypeError):
        msgspec.json.encode(settings.redis)


@pytest.mark.parametrize("path", LEAVES, ids=dotted)
def test_no_fault_repeats_a_text_that_was_given(path: tuple[Any, ...]) -> None:
    """A password may stand under any wrong key; only a misspelt choice is shown."""
    word = "hunter2-redis://u:hunter2@h"
    choice = path[-1] in {"profile", "kind", "level"} or {"jobs", "sessions"} & set(path)
    told = outcome(changed(path, word))
    assert choice or isinstance(told, Settings) or "hunter2" not in str(told)


async def test_a_file_is_read_with_what_it_refers_to(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("pass-word\n")
    (tmp_path / "scripts.json").write_text('{"m": {"turns": [{"text": "hello"}]}}')
    file = tmp_path / "runstream.toml"
    file.write_text(
        'profile = "standard"\nstate_dir = "~/kept"\n[redis]\nurl = "redis://h"\npassword_file = "word"\n'
        '[[providers]]\nid = "one"\nkind = "scripted"\nscripts = "scripts.json"\n'
    )
    settings = await read_settings(file, {}, HOME)
    assert settings.redis.password.reveal() == "pass-word"
    assert settings.providers[0].followed()["m"].turns[0].text == "hello"
    assert settings.state_dir == HOME / "kept"
    assert await read_settings(None, {"RUNSTREAM_CONFIG": str(file)}, HOME) == settings


async def test_a_file_in_the_users_config_folder_is_found_and_none_is_no_error(tmp_path: Path) -> None:
    assert (await read_settings(None, {}, tmp_path)).profile == "local"
    (tmp_path / "config" / "runstream").mkdir(parents=True)
    (tmp_path / "config" / "runstream" / "runstream.toml").write_text('profile = "memory"')
    assert (await read_settings(None, {"XDG_CONFIG_HOME": str(tmp_path / "config")}, tmp_path)).profile == "memory"


async def test_faults_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "runstream.toml"
    file.write_text("[log]\n\nlevel = 3\n\n[[tokens]]\n[[tokens]]\nsubject = 1\n")
    with pytest.raises(SettingsError) as caught:
        await read_settings(file, {}, HOME)
    told = dict(caught.value.faults)
    assert told["log.level"].endswith("line 3)")
    assert told["tokens[0].digest"].endswith("line 5)")
    assert told["tokens[1].subject"].endswith("line 7)")


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"\xff", "not UTF-8"), (b"a = ", "not TOML"), (b"[" * 5_000, "not TOML"), (b"#" * 4_000_001, "larger than")],
    ids=["bytes", "syntax", "depth", "size"],
)
async def test_a_file_that_is_no_settings_file_is_said_to_be_none(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "runstream.toml"
    file.write_bytes(data)
    with pytest.raises(SettingsError, match=says):
        await read_settings(file, {}, HOME)


async def test_files_that_are_missing_are_named_by_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        await read_settings(tmp_path / "none.toml", {}, HOME)
    (tmp_path / "bad.json").write_text("{")
    file = tmp_path / "runstream.toml"
    file.write_text(
        '[redis]\npassword = "x"\npassword_file = "none"\n'
        '[[providers]]\nid = "a"\nkind = "scripted"\nscripts = "none"\n'
        '[[providers]]\nid = "b"\nkind = "scripted"\nscripts = "bad.json"\n'
    )
    with pytest.raises(SettingsError) as caught:
        await read_settings(file, {}, HOME)
    told = dict(caught.value.faults)
    assert set(told) == {"redis.password", "redis.password_file", "providers[0].scripts", "providers[1].scripts"}
    assert "not JSON" in told["providers[1].scripts"]


def test_lines_are_found_at_a_glance() -> None:
    assert lines_of('a = 1\n[b]\nc.d = 2 # [x]\n[[e]]\nf = "["\n[[e]]\n[e.g] # note\nh = 1')["e[0].f"] == 5


def test_places_follow_the_xdg_rules() -> None:
    environ = {"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}
    assert places(environ, HOME) == Places(Path("/c/runstream/runstream.toml"), Path("/s/runstream"), HOME)


def test_a_subject_and_an_account_have_bounds_of_their_own() -> None:
    scheduling = read(FULL).scheduling
    assert (scheduling.caps("alice", "a").per_subject, scheduling.caps("alice", "a").per_account) == (2, 2)
    assert (scheduling.caps("bob", "b").per_subject, scheduling.caps("bob", "b").per_account) == (1, 1)
    assert scheduling.caps("bob", "").per_account == 0
    assert scheduling.caps("bob", "").queue_total == 1
    assert scheduling.needs_account
    assert not read({}).scheduling.needs_account


# What the documents say.


def keys(kind: type[Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its default, as docs/settings.md writes them."""
    for field in fields(kind):
        inner = struct_in(field.type)
        name = f"{prefix}{field.name}"
        if inner is TokenEntry or name == "providers":
            assert inner is not None
            yield from keys(inner, f"{name}[].")
        elif inner is not None and inner is not RetrievalGrant and name.count(".") == 0:
            yield from keys(inner, f"{name}.")
        else:
            yield (
                name,
                field.default_factory() if field.default is msgspec.NODEFAULT and not field.required else field.default,
            )
            if name == "scheduling.queue":
                assert inner is not None
                yield from keys(inner, f"{name}.")


def struct_in(kind: Any) -> type[Struct] | None:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    if get_origin(kind) in {Annotated, Union, UnionType, tuple} and get_origin(kind) is not Literal:
        return next((found for one in get_args(kind) if (found := struct_in(one))), None)
    return None


def written(name: str, default: Any) -> str:
    match default:
        case msgspec.NODEFAULT:
            return "`$XDG_STATE_HOME/runstream`, or `~/.local/state/runstream`" if name == "state_dir" else "required"
        case None:
            return "none"
        case bool():
            return f"`{str(default).lower()}`"
        case Secret():
            return '`""`'
        case RetrievalGrant():
            return "`{}`"
        case tuple():
            return "`[]`"
        case str():
            return f'`"{default}"`'
        case _:
            return f"`{default}`"


@pytest.mark.repo
def test_the_reference_lists_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z_.\[\]]+)` \| (.*?) \| ", text, re.MULTILINE))
    assert rows == {name: written(name, default) for name, default in keys(Settings)}


@pytest.mark.repo
async def test_the_example_file_is_a_settings_file() -> None:
    settings = await read_settings(ROOT / "examples" / "runstream.toml", {}, HOME)
    assert settings.providers[1].followed().keys() == {"polite"}
