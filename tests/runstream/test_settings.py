"""Settings: what a file and the environment may say, and what an operator hears when they are wrong."""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct
from msgspec.structs import fields

from actors import jobs, session
from actors.budgets import Budget, Budgets
from api.grants import RetrievalGrant, TokenEntry
from providers.ready import MODELS
from runstream import reading
from runstream.settings import LogSettings, Secret, Settings, SettingsError
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
        },
        {
            "id": "two",
            "kind": "openai",
            "base_url": "https://models.example/v1",
            "key_file": "key",
            "input_media_types": {"m": ["image/png"]},
            "tools": False,
            "structured_output": False,
        },
    ],
    "scheduling": {
        "total": 2,
        "per_subject": 1,
        "per_account": 1,
        "subjects": {"alice": 2},
        "accounts": {"a": 2},
        "queue": {"total": 1, "per_subject": 1},
    },
    "resources": {
        "default": {"max_tokens": 1, "max_cost_usd": 0.5, "unknown_usage": "reject"},
        "subjects": {"alice": {"max_tokens": 2, "unknown_usage": "allow"}},
        "accounts": {"a": {"max_cost_usd": 0.25, "unknown_usage": "allow"}},
        "authority_unknown": "allow",
    },
    "limits": {"max_steps": 1, "max_output_tokens": 1, "idle_timeout_ms": 1, "max_attempts": 1},
    "idempotency": {"enabled": False, "max_entries": 1},
    "tools": "runstream.example_tools",
    "approvals": {"interactive": True, "allow_idle_pause": False, "max_pending": 1},
    "application_tools": {"enabled": True, "require_approval": False, "max_pending": 1},
    "sessions": {"retention_ms": 1, "max_entries": 1, "max_messages": 2, "max_record_bytes": 1},
    "jobs": {
        "retention_ms": 1,
        "max_jobs": 2,
        "max_jobs_per_subject": 1,
        "max_bytes": 65_536,
        "max_job_bytes": 16_384,
        "poll_interval_ms": 10,
        "max_workers": 1,
    },
    "retention": {"run_days": 1, "audit_days": 1},
    "usage": {"enabled": False, "file": "used.jsonl", "sync": True, "host_id": "here", "labels": {"team": "search"}},
    "node": {"lease_ms": 3_000, "routine_ms": 1_000, "drain_s": 0, "max_runs": 1},
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
OPEN_TABLES = (
    IN_A_SCRIPT,
    ("providers", 1, "input_media_types"),
    ("scheduling", "subjects"),
    ("scheduling", "accounts"),
    ("resources", "subjects"),
    ("resources", "accounts"),
    ("usage", "labels"),
)
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
    if path[-1] in {"drain_s", "max_cost_usd"} and wrong == 1.5:
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
        (("redis", "cluster"), ["h:1"], "two servers"),
        (("redis", "sentinels"), ["h:1"], "name the primary as your sentinels do"),
        (("redis", "sentinel_name"), "runs", "list your sentinels"),
        (("redis", "sentinel_password"), "x", "list redis.sentinels"),
        (("redis", "tls"), True, "redis.url says rediss://"),
        (("scheduling", "total"), 0, "INVALID_SCHEDULING: must be a whole number from 1 to 100000, not 0"),
        (("scheduling", "total"), 100_001, "INVALID_SCHEDULING"),
        (("scheduling", "subjects"), {"__proto__": 1}, "INVALID_SCHEDULING"),
        (("scheduling", "subjects"), {"": 1}, "INVALID_SCHEDULING"),
        (("scheduling", "subjects"), {"é" * 129: 1}, "INVALID_SCHEDULING"),
        (("scheduling", "accounts"), {"-": 1}, "INVALID_SCHEDULING"),
        (("scheduling", "queue"), {"total": 1}, "is missing"),
        (("scheduling", "subjects"), [], "INVALID_SCHEDULING: must be a table, not a list"),
        (("log", "level"), date(2026, 1, 1), "not a date"),
        (("scheduling", "nonsense"), 1, "INVALID_SCHEDULING: there is no such key"),
        (("limits", "max_steps"), 65, "from 1 to 64"),
        (("tools",), "my tools", "the name of a Python module"),
        (("tools",), ".tools", "the name of a Python module"),
        (("approvals", "max_pending"), 0, "from 1 to 100000"),
        (("application_tools", "max_pending"), 100_001, "from 1 to 100000"),
        (("limits", "max_attempts"), 6, "from 1 to 5"),
        (("resources", "default"), {}, 'INVALID_SCHEDULING: is missing: give one of "reject", "allow"'),
        (("resources", "default", "max_cost_usd"), 0, "INVALID_SCHEDULING: must be a number above 0, not 0"),
        (("resources", "default", "max_cost_usd"), math.inf, "INVALID_SCHEDULING: must be a number above 0 with an end"),
        (("resources", "default", "max_cost_usd"), math.nan, "INVALID_SCHEDULING: must be a number above 0"),
        (("resources", "default", "unknown_usage"), "alow", "INVALID_SCHEDULING: must be"),
        (("resources", "subjects"), {"__proto__": {"unknown_usage": "allow"}}, "INVALID_SCHEDULING: a subject has"),
        (("resources", "accounts"), {"-": {"unknown_usage": "allow"}}, "INVALID_SCHEDULING: an account is"),
        (("resources", "authority_unknown"), "alow", "did you mean 'allow'"),
        (("sessions", "max_messages"), 1, "INVALID_SESSION_CONFIG: must be a whole number from 2 to 100, not 1"),
        (("sessions", "max_messages"), "many", "INVALID_SESSION_CONFIG: must be a whole number"),
        (("sessions", "max_entry"), 1, "INVALID_SESSION_CONFIG: there is no such key; did you mean 'max_entries'"),
        (("sessions",), [], "INVALID_SESSION_CONFIG: must be a table, not a list"),
        (("sessions",), {}, "INVALID_SESSION_CONFIG: is missing: give a whole number from 1 to 2147483647"),
        (("jobs", "max_bytes"), 65_535, "INVALID_JOB_CONFIG: must be a whole number from 65536 to"),
        (("jobs", "max_workers"), 1.5, "INVALID_JOB_CONFIG: must be a whole number from 1 to 1000, not 1.5"),
        (("jobs", "lease_ms"), 30_000, "INVALID_JOB_CONFIG: there is no such key"),
        (("jobs",), 1, "INVALID_JOB_CONFIG: must be a table, not 1"),
        (("jobs",), {}, "INVALID_JOB_CONFIG: is missing: give a whole number from 1 to 31536000000"),
        (("usage", "host_id"), "-", "a letter or digit first"),
        (("usage", "labels"), {str(number): "" for number in range(33)}, "at most 32 labels, not 33"),
        (("usage", "labels"), {"é" * 81: ""}, "at most 80 characters"),
        (("usage", "labels"), {"team": "😀" * 250 + "x"}, "at most 500 characters"),
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


@pytest.mark.parametrize("redis", [
    {"cluster": ["a.example:7000", "[::1]:7001"], "username": "u", "password": "p", "tls": True, "tls_ca": "ca.pem"},
    {"sentinels": ["a.example:26379"], "sentinel_name": "runs", "sentinel_password": "p"},
])  # fmt: skip
def test_a_cluster_or_sentinels_stand_in_the_place_of_one_address(redis: dict[str, Any]) -> None:
    settings = read({"profile": "strict", "redis": redis})
    assert settings.redis.places == [next(iter(redis))]
    assert settings.redis.secure == ("tls" in redis)
    assert "redis.tls_ca" in faults({"profile": "strict", "redis": {**redis, "tls": False, "tls_ca": "ca.pem"}})
    both = faults({"profile": "strict", "redis": {"url": "redis://h", "socket": "s", **redis}})
    assert {key for key, why in both.items() if "two servers" in why} == {"redis.socket", f"redis.{next(iter(redis))}"}
    assert f"redis.{next(iter(redis))}" in faults({"profile": "local", "redis": redis})


@pytest.mark.parametrize("address", ["", "h", "redis://h:1", "u:secret-word@h:1", "h:0", "[h:1", "h:1/2"])
def test_an_address_in_a_list_is_host_and_port_and_is_not_repeated(address: str) -> None:
    for key in ("sentinels", "cluster"):
        found = faults({"profile": "standard", "redis": {key: ["ok:1", address], "sentinel_name": "runs"}})
        assert "write it as host:port" in found[f"redis.{key}[1]"]
        assert "secret-word" not in str(found)


def test_plain_http_off_loopback_is_refused() -> None:
    assert "TLS_REQUIRED" in faults({"listen": {"host": "0.0.0.0"}})["listen.host"]
    assert "is missing" in faults({"listen": {"certificate": "c"}})["listen.key"]
    assert "is missing" in faults({"listen": {"key": "k"}})["listen.certificate"]


BOUNDS = [
    (("resources", "default", "max_tokens"), 1, 2**53 - 1),
    (("sessions", "retention_ms"), 1, 2_147_483_647),
    (("sessions", "max_entries"), 1, 100_000),
    (("sessions", "max_messages"), 2, 100),
    (("sessions", "max_record_bytes"), 1, 1_000_000),
    (("jobs", "retention_ms"), 1, 31_536_000_000),
    (("jobs", "max_jobs"), 1, 100_000),
    (("jobs", "max_jobs_per_subject"), 1, 100_000),
    (("jobs", "max_bytes"), 65_536, 2**53 - 1),
    (("jobs", "max_job_bytes"), 16_384, 64_000_000),
    (("jobs", "poll_interval_ms"), 10, 60_000),
    (("jobs", "max_workers"), 1, 1_000),
    (("retention", "run_days"), 1, 3_650),
    (("retention", "audit_days"), 1, 36_500),
    (("node", "max_runs"), 1, 100_000),
]


@pytest.mark.parametrize(("path", "least", "most"), BOUNDS, ids=str)
def test_a_bound_is_the_last_value_that_is_accepted(path: tuple[Any, ...], least: int, most: int) -> None:
    for value in (least, most):
        found: Any = read(changed(path, value))
        for step in path:
            found = getattr(found, step)
        assert found == value
    for value in (least - 1, most + 1):
        assert f"from {least} to {most}, not {value}" in faults(changed(path, value))[dotted(path)]


class Bounded(Struct, frozen=True, kw_only=True):
    """Numbers with one bound and with two."""

    above: Annotated[float, Meta(gt=0)] = 1
    least: Annotated[int, Meta(ge=2)] = 2
    most: Annotated[int, Meta(le=3)] = 3


def test_bounds_are_told_in_words() -> None:
    _, found = reading.read(Bounded, {"above": 0, "least": 1, "most": 4}, {})
    assert dict(found) == {
        "above": "must be a number above 0, not 0",
        "least": "must be a whole number of at least 2, not 1",
        "most": "must be a whole number from 0 to 3, not 4",
    }


def test_a_section_whose_name_begins_like_another_has_no_code_of_it() -> None:
    assert faults({"jobs_": {}, "session": {}}).keys() == {"jobs_", "session"}
    assert not any(why.startswith("INVALID_") for why in faults({"jobs_": {}, "session": {}}).values())


def test_sessions_and_jobs_are_off_unless_their_sections_stand_there() -> None:
    settings = read({})
    assert settings.sessions is None
    assert settings.jobs is None
    assert settings.node.max_runs is None


def test_a_section_needs_no_more_than_how_long_to_keep() -> None:
    settings = read({"sessions": {"retention_ms": 5}, "jobs": {"retention_ms": 6}})
    assert settings.sessions is not None
    assert settings.sessions.limits() == session.Limits(
        retention_ms=5, max_entries=1_000, max_messages=100, max_record_bytes=1_000_000
    )
    assert settings.jobs is not None
    assert settings.jobs.limits() == jobs.Limits(
        retention_ms=6,
        max_jobs=1_000,
        max_jobs_per_subject=100,
        max_bytes=64_000_000,
        max_job_bytes=8_000_000,
        poll_interval_ms=250,
        max_workers=32,
    )


def test_budgets_are_none_unless_given_and_bound_only_what_they_name() -> None:
    assert read({}).resources.budgets() == Budgets()
    assert read(FULL).resources.budgets() == Budgets(
        default=Budget(max_tokens=1, max_cost_usd=0.5, unknown_usage="reject"),
        subjects={"alice": Budget(max_tokens=2, unknown_usage="allow")},
        accounts={"a": Budget(max_cost_usd=0.25, unknown_usage="allow")},
    )


def test_records_of_usage_go_to_the_state_folder_unless_told_otherwise() -> None:
    assert read({}).usage.enabled
    assert read({}).usage_file == HOME / ".local/state/runstream/usage.jsonl"
    assert read(FULL).usage_file == Path("/etc/runstream/used.jsonl")


def test_labels_may_be_as_many_and_as_long_as_the_record_holds() -> None:
    labels = {f"{number:080}": "x" * 500 for number in range(32)}
    assert read({"usage": {"labels": labels}}).usage.labels == labels


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
        ("RUNSTREAM_SESSIONS__RETENTION_MS", "9", lambda s: s.sessions.limits().retention_ms == 9),
        ("RUNSTREAM_SESSIONS", '{"retention_ms": 9}', lambda s: s.sessions.limits().retention_ms == 9),
        ("RUNSTREAM_JOBS__RETENTION_MS", "9", lambda s: s.jobs.limits().retention_ms == 9),
        ("RUNSTREAM_RESOURCES__DEFAULT__UNKNOWN_USAGE", "allow", lambda s: s.resources.default.budget() == Budget(unknown_usage="allow")),
        ("RUNSTREAM_RESOURCES__SUBJECTS", '{"a": {"unknown_usage": "allow"}}', lambda s: "a" in s.resources.budgets().subjects),
        ("RUNSTREAM_USAGE__LABELS__TEAM", "search", lambda s: s.usage.labels == {"team": "search"}),
        ("RUNSTREAM_USAGE__FILE", "~/used", lambda s: s.usage_file == HOME / "used"),
        ("RUNSTREAM_RETENTION__RUN_DAYS", "3650", lambda s: s.retention.run_days == 3_650),
        ("RUNSTREAM_NODE__MAX_RUNS", "8", lambda s: s.node.max_runs == 8),
        ("RUNSTREAM_SESSIONS__MAX_MESSAGES", "101", None),
        ("RUNSTREAM_JOBS__MAX_WORKERS", "0", None),
        ("RUNSTREAM_RESOURCES__DEFAULT__MAX_COST_USD", "-1", None),
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


@pytest.mark.parametrize(
    ("variable", "missing"),
    [
        ("RUNSTREAM_SESSIONS__MAX_ENTRIES", "sessions.retention_ms"),
        ("RUNSTREAM_JOBS__MAX_JOBS", "jobs.retention_ms"),
        ("RUNSTREAM_RESOURCES__DEFAULT__MAX_TOKENS", "resources.default.unknown_usage"),
    ],
)
def test_one_variable_makes_a_section_which_then_asks_for_the_rest(variable: str, missing: str) -> None:
    found = faults({}, {variable: "5"})
    assert found.keys() == {missing}
    assert "is missing" in found[missing]


def as_variables(value: Any, prefix: str = "RUNSTREAM") -> Iterator[tuple[str, str]]:
    """What says the same as *value* in the environment."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from as_variables(
                one, f"{prefix}__{name.upper()}" if prefix != "RUNSTREAM" else f"{prefix}_{name.upper()}"
            )
    else:
        yield prefix, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def test_the_environment_alone_can_say_all_that_a_file_can() -> None:
    assert read({}, dict(as_variables(FULL))) == read(FULL)


def as_toml(value: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The lines of *value* as TOML, its tables under headers and what stands in lists inline."""
    tables = {name: one for name, one in value.items() if isinstance(one, dict)}
    yield from (f"{name} = {inline(one)}" for name, one in value.items() if name not in tables)
    for name, one in tables.items():
        yield f"[{above}{name}]"
        yield from as_toml(one, f"{above}{name}.")


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {inline(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return msgspec.json.encode(value).decode()


def test_a_file_says_the_same_as_its_tables() -> None:
    assert read(tomllib.loads("\n".join(as_toml(FULL)))) == read(FULL)


def test_a_variable_of_a_member_outweighs_one_of_its_table() -> None:
    assert read({}, {"RUNSTREAM_LOG": '{"level": "debug"}', "RUNSTREAM_LOG__JSON": "true"}).log == LogSettings(
        json=True
    )


async def test_scripts_of_providers_in_the_environment_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "scripts.json").write_text('{"m": {"turns": [{"text": "hello"}]}}')
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    providers = [{"id": "one", "kind": "scripted", "scripts": str(tmp_path / "scripts.json")}]
    settings = await read_settings(None, {"RUNSTREAM_PROVIDERS": msgspec.json.encode(providers).decode()}, tmp_path)
    assert settings.providers[0].followed().keys() == {"m"}
    providers = [
        {"id": name, "kind": "scripted", "scripts": path}
        for name, path in (("a", ""), ("b", str(tmp_path / "bytes.json")))
    ]
    with pytest.raises(SettingsError) as caught:
        await read_settings(None, {"RUNSTREAM_PROVIDERS": msgspec.json.encode(providers).decode()}, tmp_path)
    told = dict(caught.value.faults)
    assert "it names no file" in told["providers[0].scripts"]
    assert "this file cannot be read" in told["providers[1].scripts"]


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
    choice = path[-1] in {"profile", "kind", "level", "unknown_usage", "authority_unknown"} or {
        "jobs",
        "sessions",
        "input_media_types",
    } & set(path)
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


async def test_the_password_of_the_sentinels_may_be_in_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("pass-word\n")
    file = tmp_path / "runstream.toml"
    file.write_text(
        'profile = "standard"\n[redis]\nsentinels = ["h:1"]\nsentinel_name = "m"\nsentinel_password_file = "word"\n'
    )
    settings = await read_settings(file, {}, HOME)
    assert settings.redis.sentinel_password.reveal() == "pass-word"
    assert not settings.redis.password


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


async def test_a_password_file_that_is_no_text_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    (tmp_path / "word").write_bytes(b"pass-word\xff")
    with pytest.raises(SettingsError, match="not UTF-8 text") as caught:
        await read_settings(None, {"RUNSTREAM_REDIS__PASSWORD_FILE": str(tmp_path / "word")}, tmp_path)
    assert "pass-word" not in str(caught.value)


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
            if name in {"scheduling.queue", "resources.default", "host.defaults", "host.principal"}:
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
