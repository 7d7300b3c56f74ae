"""Discovery shows what a strict client accepts, asks seldom, and no instance holds up another."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Failed
from actors.ports import Model, ModelContext, ModelRequest, Probe, ProviderInfo, Turn
from providers import listing
from providers.discovery import Discovery, Intervals, code_of, fresh
from providers.mock import INFO, Mock
from providers.probe import Malformed, sound
from tests.strict_client import checked_response

pytestmark = pytest.mark.anyio

Inspect = Callable[[], Awaitable[Any]]
START_S = 1_767_607_200.25


class Inspected:
    """An instance whose probe is given; counts the probes."""

    def __init__(self, inspect: Inspect, info: ProviderInfo = INFO) -> None:
        self.info = info
        self.probes = 0
        self._inspect = inspect

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        raise AssertionError(f"discovery never generates: {request}, {context}")

    async def inspect(self) -> Probe | None:
        self.probes += 1
        found: Probe | None = await self._inspect()
        return found


def telling(outcome: Any, info: ProviderInfo = INFO) -> Inspected:
    async def inspect() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return Inspected(inspect, info)


def named(instance: str, **changes: Any) -> ProviderInfo:
    return msgspec.structs.replace(INFO, id=instance, **changes)


class Clock:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def wall(self) -> float:
        return START_S + self.passed_s

    def steady(self) -> float:
        return 50.0 + self.passed_s


def discovery(*models: Model, clock: Clock | None = None, timeout_ms: int = 5_000) -> Discovery:
    clock = clock or Clock()
    by_id = {model.info.id: model for model in models}
    return Discovery(by_id, Intervals(timeout_ms=timeout_ms), wall=clock.wall, steady=clock.steady)


def accepted(found: list[listing.Provider]) -> list[dict[str, Any]]:
    """The JSON of *found*, which a strict client took."""
    body = msgspec.json.encode({"providers": found})
    headers = [("AgenticDriver-Version", "1.0"), ("Content-Type", "application/json")]
    checked_response("providers", None, 200, headers, body)
    decoded: list[dict[str, Any]] = msgspec.json.decode(body)["providers"]
    return decoded


async def shown(model: Model, timeout_ms: int = 5_000) -> dict[str, Any]:
    async with discovery(model, timeout_ms=timeout_ms) as found:
        (one,) = accepted(await found.listed([model.info.id]))
    return one


async def test_the_mock_is_shown_as_the_protocol_says() -> None:
    assert await shown(Mock()) == {
        "id": "mock",
        "name": "Offline demo",
        "vendor": "mock",
        "authMode": "none",
        "models": ["demo"],
        "capabilities": {
            "tools": True,
            "textStreaming": False,
            "historyContinuation": True,
            "nativeContinuation": True,
        },
        "health": {
            "status": "unsupported",
            "code": "DISCOVERY_UNSUPPORTED",
            "message": "This instance offers no health probe.",
            "checkedAt": "2026-01-05T10:00:00.250Z",
        },
        "modelCatalog": {"source": "configured", "models": ["demo"], "complete": False},
    }


async def test_instances_come_in_configured_order_and_only_those_asked_for() -> None:
    models = [telling(None, named(name)) for name in ("c", "a", "b")]
    async with discovery(*models) as found:
        assert [one.id for one in await found.listed({"a", "b", "c"})] == ["c", "a", "b"]
        assert [one.id for one in await found.listed({"b", "none"})] == ["b"]
        assert await found.listed(()) == []


async def test_a_listing_shows_each_model_once_and_at_most_a_thousand() -> None:
    one = await shown(telling(Probe("CATALOG_AVAILABLE", ("a", "b", "a"), complete=True)))
    assert one["modelCatalog"] == {"source": "provider", "models": ["a", "b"], "complete": True}
    assert one["health"]["status"] == "ready"
    many = await shown(telling(Probe("CLI_CATALOG_AVAILABLE", tuple(f"m{i}" for i in range(1_001)), complete=True)))
    assert (len(many["modelCatalog"]["models"]), many["modelCatalog"]["complete"]) == (1_000, False)
    assert many["health"]["status"] == "unknown"


@pytest.mark.parametrize(
    ("models", "catalog"),
    [
        (None, {"source": "unavailable", "models": [], "complete": False}),
        ((), {"source": "configured", "models": [], "complete": False}),
        (("x", "y"), {"source": "configured", "models": ["x", "y"], "complete": False}),
    ],
)
async def test_without_a_listing_the_configured_models_are_shown(models: Any, catalog: Any) -> None:
    one = await shown(telling(Probe("AUTH_REQUIRED", ("hidden",)), named("p", models=models)))
    assert one["modelCatalog"] == catalog
    assert ("models" in one) == (models is not None)
    assert one["health"]["status"] == "unauthenticated"


STATUSES = {
    "ready": {"CATALOG_AVAILABLE"},
    "unauthenticated": {"AUTH_REQUIRED", "AUTH_REJECTED", "CLI_AUTH_REQUIRED"},
    "unsupported": {"ACCESS_DENIED", "DISCOVERY_UNSUPPORTED", "CLI_UPGRADE_REQUIRED"},
    "unavailable": {
        "RATE_LIMITED",
        "PROVIDER_UNREACHABLE",
        "INVALID_DISCOVERY_RESPONSE",
        "CLI_UNAVAILABLE",
        "DISCOVERY_TIMEOUT",
        "DISCOVERY_FAILED",
    },
    "unknown": {"CLI_SESSION_PRESENT", "CLI_CATALOG_AVAILABLE", "CLI_STATUS_UNKNOWN"},
}


async def test_an_instance_stands_as_the_code_of_its_probe_says() -> None:
    assert {code for codes in STATUSES.values() for code in codes} == listing.VERDICTS.keys()
    for status, codes in STATUSES.items():
        for code in codes:
            health = (await shown(telling(Probe(code, ()))))["health"]
            assert (health["status"], health["code"]) == (status, code)
            assert health["message"]


def test_a_probe_is_given_as_long_as_the_protocol_says() -> None:
    assert Intervals() == Intervals(ttl_ms=30_000, min_ms=1_000, timeout_ms=5_000)


async def test_optional_members_are_shown_where_there_is_something_to_show() -> None:
    info = named("p", input_media_types={"demo": ("image/png",)}, usage_stat_id="stat")
    connection = {
        "source": "provider-api",
        "runtime": {"name": " \ufeffcli\u3000\ufeff ", "version": "1\n", "extra": 1},
        "account": {"status": "signed-in", "email": "a@example.org", "name": " ", "method": None},
        "checkedAt": "tomorrow",
    }
    one = await shown(telling(Probe("CLI_SESSION_PRESENT", connection=connection), info))
    assert one["inputMediaTypes"] == {"demo": ["image/png"]}
    assert one["usageStatId"] == "stat"
    assert one["connection"] == {
        "source": "provider-api",
        "checkedAt": "2026-01-05T10:00:00.250Z",
        "runtime": {"name": "cli", "version": "1"},
        "account": {"status": "signed-in", "email": "a@example.org"},
    }


@pytest.mark.parametrize(
    ("part", "member", "most"),
    [
        ("runtime", "name", 100),
        ("runtime", "version", 80),
        ("account", "method", 80),
        ("account", "email", 320),
        ("account", "name", 200),
        ("account", "subscription", 120),
    ],
)
async def test_what_a_probe_tells_of_its_connection_has_bounds(part: str, member: str, most: int) -> None:
    common = {"runtime": {"name": "cli", "version": "1"}, "account": {"status": "unknown"}}
    for text, fits in (("x" * most, True), ("x" * (most + 1), False), ("\U0001f600" * (most // 2 + 1), False)):
        told = {"source": "native-runtime", part: common[part] | {member: f" {text} "}}
        one = await shown(telling(Probe("CLI_SESSION_PRESENT", connection=told)))
        assert ("connection" in one) == fits
        assert one["health"]["code"] == ("CLI_SESSION_PRESENT" if fits else "INVALID_DISCOVERY_RESPONSE")


async def test_a_connection_is_shown_with_every_outcome_that_its_probe_tells() -> None:
    for code in listing.VERDICTS:
        probe = Probe(code, ("a",), connection={"source": "provider-api"})
        one = await shown(telling(probe))
        assert one["connection"] == {"source": "provider-api", "checkedAt": one["health"]["checkedAt"]}
    assert "connection" not in await shown(telling(Probe("CATALOG_AVAILABLE", ("a",))))


@pytest.mark.parametrize(
    "probe",
    [
        "CATALOG_AVAILABLE",
        Probe("NEW_CODE"),
        Probe("CATALOG_AVAILABLE"),
        Probe("CATALOG_AVAILABLE", ("a b",)),
        Probe("CATALOG_AVAILABLE", ("a",), complete="yes"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Probe("CATALOG_AVAILABLE", (1,)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Probe("AUTH_REQUIRED", connection={"source": "guess"}),
        Probe("AUTH_REQUIRED", connection={"source": "provider-api", "runtime": {"name": "x"}}),
        Probe("AUTH_REQUIRED", connection={"source": "provider-api", "runtime": {"name": " ", "version": "1"}}),
        Probe("AUTH_REQUIRED", connection={"source": "provider-api", "runtime": "x"}),
        Probe("AUTH_REQUIRED", connection={"source": "provider-api", "account": {"status": "unknown", "name": "a\0b"}}),
        Probe("AUTH_REQUIRED", connection={"source": "provider-api", "account": {"status": "?"}}),
        Probe(
            "AUTH_REQUIRED", connection={"source": "provider-api", "account": {"status": "unknown", "method": "m" * 81}}
        ),
    ],
)
async def test_malformed_probe_data_is_called_so(probe: Any) -> None:
    one = await shown(telling(probe))
    assert (one["health"]["code"], one["health"]["status"]) == ("INVALID_DISCOVERY_RESPONSE", "unavailable")
    assert "connection" not in one


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionRefusedError("secret"), "PROVIDER_UNREACHABLE"),
        (TimeoutError("secret"), "DISCOVERY_FAILED"),
        (ValueError("secret"), "DISCOVERY_FAILED"),
        (Failed("RATE_LIMITED", "secret"), "RATE_LIMITED"),
        (Failed("CATALOG_AVAILABLE", "secret"), "DISCOVERY_FAILED"),
        (Failed("PROVIDER_FAILED", "secret"), "DISCOVERY_FAILED"),
    ],
)
async def test_what_a_probe_raises_becomes_a_code_and_its_text_stays_private(
    error: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        one = await shown(telling(error))
    assert one["health"]["code"] == code == code_of(error)
    assert "secret" not in str(one) + caplog.text


async def test_a_probe_that_takes_too_long_is_given_up() -> None:
    model = Inspected(anyio.sleep_forever)
    async with discovery(model, timeout_ms=1) as found:
        for _ in range(2):
            (one,) = accepted(await found.listed(["mock"]))
            assert one["health"]["code"] == "DISCOVERY_TIMEOUT"
    assert model.probes == 1


async def test_a_probe_that_ignores_its_cancellation_does_not_hold_up_the_answer() -> None:
    release = anyio.Event()

    async def deaf() -> None:
        with anyio.CancelScope(shield=True):
            await release.wait()

    async with discovery(Inspected(deaf), timeout_ms=1) as found:
        (one,) = accepted(await found.listed(["mock"]))
        release.set()
    assert one["health"]["code"] == "DISCOVERY_TIMEOUT"


@pytest.mark.parametrize("outcome", [None, ValueError("down")])
async def test_an_outcome_is_kept_for_its_time_and_a_refresh_respects_the_least_interval(outcome: Any) -> None:
    clock = Clock()
    model = telling(outcome)
    async with discovery(model, clock=clock) as found:
        for passed_s, refresh, probes in [
            (0.0, False, 1),
            (0.999, True, 1),
            (1.0, False, 1),
            (1.0, True, 2),
            (30.999, False, 2),
            (31.0, False, 3),
        ]:
            clock.passed_s = passed_s
            await found.listed(["mock"], refresh=refresh)
            assert model.probes == probes


async def test_overlapping_askers_share_a_probe_that_outlives_the_one_who_left() -> None:
    begun, release = anyio.Event(), anyio.Event()

    async def inspect() -> Probe:
        begun.set()
        await release.wait()
        return Probe("CATALOG_AVAILABLE", ("a",))

    model = Inspected(inspect)
    answers: list[list[listing.Provider]] = []

    async with discovery(model) as found, anyio.create_task_group() as tasks:

        async def ask() -> None:
            answers.append(await found.listed(["mock"], refresh=True))

        leaver = anyio.CancelScope()

        async def leave() -> None:
            with leaver:
                await ask()

        tasks.start_soon(leave)
        await begun.wait()
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        leaver.cancel()
        await anyio.lowlevel.checkpoint()
        release.set()
    assert model.probes == 1
    assert [one.health.code for (one,) in answers] == ["CATALOG_AVAILABLE"] * 2


async def test_all_instances_are_probed_at_once() -> None:
    everyone = anyio.Event()
    begun: list[None] = []

    async def inspect() -> None:
        begun.append(None)
        if len(begun) == 3:
            everyone.set()
        await everyone.wait()

    async with discovery(*(Inspected(inspect, named(name)) for name in "abc")) as found:
        assert [one.health.code for one in await found.listed("abc")] == ["DISCOVERY_UNSUPPORTED"] * 3


async def test_closing_ends_a_probe_on_its_way() -> None:
    begun = anyio.Event()
    ended: list[bool] = []

    async def inspect() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async with anyio.create_task_group() as tasks, discovery(Inspected(inspect)) as found:
        tasks.start_soon(found.listed, ["mock"])
        await begun.wait()
    assert ended == [True]


async def test_discovery_that_is_not_open_says_so() -> None:
    closed = discovery(Mock())
    with pytest.raises(ExceptionGroup) as caught:
        await closed.listed(["mock"])
    assert caught.group_contains(RuntimeError, match="not open")


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"name": ""}, "name"),
        ({"vendor": "a\x7f"}, "vendor"),
        ({"capabilities": {"tools": True}}, "capabilities"),
        ({"capabilities": {"tools": True, "textStreaming": 1}}, "capabilities"),
        ({"models": ("a b",)}, "models"),
        ({"models": ("a", "a")}, "models"),
        ({"input_media_types": {"other": ("image/png",)}}, "input_media_types"),
        ({"input_media_types": {"demo": ("image/png", "image/png")}}, "input_media_types"),
        ({"input_media_types": {"demo": ("image/gif",)}}, "input_media_types"),
        ({"models": None, "input_media_types": {"no id": ()}}, "input_media_types"),
        ({"usage_stat_id": ""}, "usage_stat_id"),
    ],
)
def test_an_instance_that_no_client_could_read_is_refused_at_start(changes: dict[str, Any], member: str) -> None:
    with pytest.raises(ValueError, match=f"provider mock: {member} cannot be shown"):
        discovery(telling(None, named("mock", **changes)))


def test_an_instance_has_the_id_it_is_configured_under() -> None:
    with pytest.raises(ValueError, match="provider other: id"):
        Discovery({"other": Mock()})
    with pytest.raises(ValueError, match="provider a b: id"):
        discovery(telling(None, named("a b")))


@pytest.mark.parametrize("wrong", [{"ttl_ms": -1}, {"min_ms": 2**31}, {"timeout_ms": 0}])
def test_intervals_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="intervals"):
        Intervals(**wrong)


@given(st.floats(0, 100_000), st.integers(0, 60_000), st.integers(0, 60_000), st.booleans())
def test_a_refresh_never_keeps_longer_than_a_plain_question(
    age_ms: float,
    ttl_ms: int,
    min_ms: int,
    refresh: bool,  # noqa: FBT001
) -> None:
    intervals = Intervals(ttl_ms, min_ms)
    assert fresh(age_ms, intervals, refresh=refresh) or age_ms >= min_ms
    assert not fresh(age_ms, intervals, refresh=True) or fresh(age_ms, intervals, refresh=False)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["signed-in", "provider-api", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["source", "runtime", "account", "status", "name", "version", "email", "null"]), inner
        )
    ),
    max_leaves=10,
)
connections = st.fixed_dictionaries(
    {"source": st.sampled_from(["provider-api", "native-runtime"])},
    optional={
        "runtime": st.fixed_dictionaries({"name": st.text() | junk, "version": st.text()}),
        "account": st.fixed_dictionaries(
            {"status": st.just("unknown")}, optional={"email": st.text() | st.none(), "name": junk}
        ),
        "checkedAt": junk,
        "more": junk,
    },
)


@given(
    st.sampled_from([*listing.VERDICTS, "UNKNOWN"]) | junk,
    st.lists(st.from_regex(r"[a-z]{1,2}", fullmatch=True), max_size=6).map(tuple) | junk,
    st.booleans() | junk,
    connections | junk,
)
def test_whatever_a_probe_tells_a_strict_client_accepts_the_answer(
    code: Any, models: Any, complete: Any, c: Any
) -> None:
    try:
        probe = sound(Probe(code, models, complete, c))
    except Malformed:
        return
    (one,) = accepted([listing.provider(INFO, probe, 0)])
    assert None not in one.get("connection", {}).values()
