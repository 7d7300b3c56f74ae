"""Start-up checks: what a profile demands of a server, and whether it is our deployment."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventstore import keys, startup
from eventstore.fake_link import fake_server, open_fake_link
from eventstore.link import Call, Link, ReplyError, Unfit, Word, passing
from eventstore.local import private_server
from eventstore.shape import opened
from eventstore.socket_link import bare_call, open_link
from eventstore.startup import Facts, Guard, Profile, StartupRefused, findings
from eventstore.store import Deployment

pytestmark = pytest.mark.anyio

INFO = {
    "redis_version": "7.2.4",
    "redis_mode": "standalone",
    "role": "master",
    "connected_slaves": "0",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
}
CONFIG = {
    "appendfsync": "always",
    "maxmemory-clients": "1048576",
    "min-replicas-to-write": "0",
    "min-replicas-max-lag": "10",
}
FRESH = Deployment("d1", 4, b"key one")


def found(
    profile: Profile, info: dict[str, str] | None = None, config: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    facts = Facts({**INFO, **(info or {})}, {**CONFIG, **(config or {})})
    return [(finding.level, finding.mend) for finding in findings(profile, facts, 10_000)]


def test_a_sound_server_has_no_findings() -> None:
    for profile in ("memory", "local", "standard", "strict"):
        assert found(profile) == []
    assert list(findings("memory", Facts({}, None), 10_000)) == []


@pytest.mark.parametrize(
    ("info", "mend"),
    [
        ({"redis_version": "6.2.14"}, "7.0 or later"),
        ({"redis_version": "nonsense"}, "7.0 or later"),
        ({"redis_mode": "sentinel"}, "name the primary"),
        ({"role": "slave", "master_host": "h", "master_port": "1"}, "h:1"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy noeviction"),
        ({"aof_enabled": "0"}, "appendonly yes"),
        ({"aof_last_write_status": "err"}, "disk"),
    ],
)
def test_what_no_profile_allows_is_an_error(info: dict[str, str], mend: str) -> None:
    for profile in ("local", "standard", "strict"):
        [(level, how)] = found(profile, info)
        assert level == "error"
        assert mend in how


def test_strict_wants_every_write_on_disk_and_standard_every_second() -> None:
    everysec, never = {"appendfsync": "everysec"}, {"appendfsync": "no"}
    assert found("standard", config=everysec) == []
    assert [level for level, _ in found("strict", config=everysec)] == ["error"]
    assert [level for level, _ in found("standard", config=never)] == ["error"]


def test_memory_that_subscribers_can_fill_is_a_warning_and_under_strict_an_error() -> None:
    unset = {"maxmemory-clients": "0"}
    assert [found(profile, config=unset) and found(profile, config=unset)[0][0] for profile in PROFILES] == [
        [],
        "warning",
        "error",
    ]


PROFILES: tuple[Profile, ...] = ("local", "standard", "strict")


@pytest.mark.parametrize("info", [{"connected_slaves": "1"}, {"cluster_enabled": "1"}])
def test_where_a_replica_may_take_over_the_old_primary_must_stop_within_a_lease(info: dict[str, str]) -> None:
    guarded = {"min-replicas-to-write": "1", "min-replicas-max-lag": "9"}
    assert found("standard", info, guarded) == []
    assert [mend for _, mend in found("standard", info)] == [
        "set min-replicas-to-write 1",
        "set min-replicas-max-lag 5",
    ]
    assert len(found("standard", info, guarded | {"min-replicas-max-lag": "0"})) == 1
    assert found("strict", info, guarded) == []


def test_a_sentinel_that_may_promote_counts_although_no_replica_is_connected() -> None:
    facts = Facts(INFO, CONFIG, failover=True)
    assert [finding.level for finding in findings("standard", facts, 10_000)] == ["error", "error"]


def test_settings_that_may_not_be_read_are_a_warning_that_names_the_permission() -> None:
    [finding] = findings("standard", Facts(INFO, None), 10_000)
    assert finding.level == "warning"
    assert "+config|get" in finding.mend
    replicated = Facts({**INFO, "connected_slaves": "2"}, None)
    assert [finding.level for finding in findings("strict", replicated, 10_000)] == ["error", "warning"]
    assert [finding.level for finding in findings("standard", replicated, 10_000)] == ["warning"]


def test_only_strict_waits_for_replicas_and_for_as_many_as_the_primaries_demand() -> None:
    alone, unknown = Facts(INFO, CONFIG), Facts(INFO, None, failover=True)
    two = Facts({**INFO, "connected_slaves": "2"}, CONFIG | {"min-replicas-to-write": "2"})
    assert startup.awaited("standard", [two]) == 0
    assert [startup.awaited("strict", some) for some in ([alone], [unknown], [two, unknown], [])] == [0, 1, 2, 0]


def test_of_several_servers_each_finding_names_its_own() -> None:
    sound, unsafe = Facts(INFO, CONFIG), Facts({**INFO, "aof_enabled": "0"}, CONFIG)
    assert startup.findings_of_all("strict", {"a:1": sound, "b:2": sound}, 10_000) == []
    [finding] = startup.findings_of_all("strict", {"a:1": sound, "b:2": unsafe}, 10_000)
    assert finding.what.startswith("b:2: appendonly is off")
    [finding] = startup.findings_of_all("strict", {"b:2": unsafe}, 10_000)
    assert finding.what.startswith("appendonly is off")


def test_errors_come_first_and_are_all_in_the_refusal() -> None:
    facts = Facts({**INFO, "aof_enabled": "0"}, {**CONFIG, "appendfsync": "everysec", "maxmemory-clients": "0"})
    with pytest.raises(StartupRefused, match=r"appendonly yes.*"):
        startup.checked(findings("standard", facts, 10_000))
    assert [finding.level for finding in findings("standard", facts, 10_000)] == ["error", "warning"]


async def test_a_real_server_is_asked_about_itself(tmp_path: Path) -> None:
    async with private_server(tmp_path) as server, open_link(server.endpoint) as link:
        told = await startup.facts(link.call)
        levels = [[finding.level for finding in findings(profile, told, 10_000)] for profile in PROFILES]
        assert levels == [[], [], ["error"]]
        await link.call("ACL", "SETUSER", "default", "-config")
        [finding] = findings("standard", await startup.facts(link.call), 10_000)
        assert "CONFIG GET is not permitted" in finding.what


async def test_a_server_that_takes_over_is_looked_at_again_and_only_strict_refuses_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with private_server(tmp_path) as server, open_link(server.endpoint) as link:
        await link.call("CONFIG", "SET", "appendonly", "no")
        await startup.look_again(link.call, "standard", 10_000, failover=False)
        [told] = [one for one in caplog.records if one.name == "eventstore.startup"]
        assert told.levelname == "ERROR"
        assert "appendonly is off" in told.getMessage()
        with pytest.raises(StartupRefused, match="appendonly is off"):
            await startup.look_again(link.call, "strict", 10_000, failover=False)
        for words in (("appendonly", "yes"), ("appendfsync", "always")):
            await link.call("CONFIG", "SET", *words)
        await startup.look_again(link.call, "strict", 10_000, failover=False)


@pytest.fixture
async def link() -> AsyncGenerator[Link]:
    async with open_fake_link(fake_server()) as link:
        yield link


async def test_the_first_node_creates_the_deployment_and_all_others_find_it(link: Link) -> None:
    assert await startup.deployment(link, FRESH) == FRESH
    other = Deployment("d2", 4, b"key two")
    assert await startup.deployment(link, other) == FRESH
    assert await startup.deployment(link, other, pinned_id="d1", pinned_key=b"key one") == FRESH


async def test_nodes_that_start_at_once_on_an_empty_server_lose_nothing_to_each_other(link: Link) -> None:
    class Overtaken:
        """A link that is overtaken by another node's start after its first look at the records."""

        call, script, primaries = link.call, link.script, link.primaries

        def __init__(self) -> None:
            self.looked = False

        async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
            replies = await link.pipeline(commands)
            if not self.looked:
                self.looked = True
                await startup.deployment(link, FRESH)
            return replies

    # The other has written the first record, and no partition's.
    await link.call("HSETNX", keys.meta(keys.LEDGER_TAG), "deployment", msgspec.json.encode(FRESH))
    assert await startup.deployment(Overtaken(), Deployment("d2", FRESH.partitions, b"key two")) == FRESH


@pytest.mark.parametrize(
    ("fresh", "pinned", "why"),
    [
        (Deployment("x", 8, b"x"), {}, "4 partitions for ever"),
        (Deployment("x", 4, b"x", layout=2), {}, "layout 1"),
        (FRESH, {"pinned_id": "d9"}, "another Redis is meant"),
        (FRESH, {"pinned_key": b"other"}, "must never change"),
    ],
)
async def test_another_deployment_than_the_settings_mean_is_refused(
    link: Link, fresh: Deployment, pinned: dict[str, str], why: str
) -> None:
    await startup.deployment(link, FRESH)
    with pytest.raises(StartupRefused, match=why):
        await startup.deployment(link, fresh, **pinned)  # type: ignore[arg-type]


async def test_a_creation_that_was_cut_off_is_finished(link: Link) -> None:
    await link.call("HSET", keys.meta(keys.LEDGER_TAG), "deployment", msgspec.json.encode(FRESH))
    await link.call("HSET", keys.meta(keys.tags(4)[0]), "deployment", "d1|4|1")
    assert await startup.deployment(link, FRESH) == FRESH
    assert await link.call("HGET", keys.meta(keys.tags(4)[3]), "deployment") == b"d1|4|1"


async def test_lost_records_are_refused_and_nothing_is_written(link: Link) -> None:
    await startup.deployment(link, FRESH)
    await link.call("DEL", keys.meta(keys.tags(4)[2]))
    with pytest.raises(StartupRefused, match="are lost"):
        await startup.deployment(link, FRESH)
    await link.call("DEL", keys.meta(keys.LEDGER_TAG))
    with pytest.raises(StartupRefused, match="is gone"):
        await startup.deployment(link, FRESH)
    assert await link.call("EXISTS", keys.meta(keys.LEDGER_TAG)) == 0


async def test_a_partition_of_another_deployment_is_refused(link: Link) -> None:
    await startup.deployment(link, FRESH)
    await link.call("HSET", keys.meta(keys.tags(4)[1]), "deployment", "other|4|1")
    with pytest.raises(StartupRefused, match="another deployment"):
        await startup.deployment(link, FRESH)


async def test_a_record_that_cannot_be_read_is_refused(link: Link) -> None:
    await link.call("HSET", keys.meta(keys.LEDGER_TAG), "deployment", "nonsense")
    with pytest.raises(StartupRefused, match="can read"):
        await startup.deployment(link, FRESH)


async def test_a_key_of_another_kind_is_the_servers_error(link: Link) -> None:
    await link.call("SET", keys.meta(keys.tags(4)[0]), "x")
    with pytest.raises(ReplyError):
        await startup.deployment(link, FRESH)


async def test_a_new_connection_must_reach_our_deployment_on_a_primary(tmp_path: Path) -> None:
    guard = Guard()
    async with private_server(tmp_path) as server, bare_call(server.endpoint) as call:
        async with open_link(server.endpoint, on_connected=guard) as link:
            guard.pinned = await startup.deployment(link, FRESH)
        async with open_link(server.endpoint, on_connected=guard):
            assert len(guard.replication_id) == 40
        record = await call("HGET", keys.meta(keys.tags(4)[2]), "deployment")
        await call("HDEL", keys.meta(keys.tags(4)[2]), "deployment")
        with pytest.raises(StartupRefused, match="no longer holds our partitions"):
            async with open_link(server.endpoint, on_connected=guard):
                pass
        await call("SET", keys.meta(keys.tags(4)[1]), "x")
        with pytest.raises(ReplyError, match="WRONGTYPE"):
            async with open_link(server.endpoint, on_connected=guard):
                pass
        await call("DEL", keys.meta(keys.tags(4)[1]))
        for tag in keys.tags(4):
            await call("HSET", keys.meta(tag), "deployment", record)
        await call("HDEL", keys.meta(keys.LEDGER_TAG), "deployment")
        with pytest.raises(StartupRefused, match="no longer holds our deployment"):
            async with open_link(server.endpoint, on_connected=guard):
                pass
        await call("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ReplyError, match="replica") as refused:
            async with open_link(server.endpoint, on_connected=guard):
                pass
        assert passing(refused.value)


async def test_a_server_that_was_demoted_since_it_was_found_is_a_pause_where_another_is_promoted(
    tmp_path: Path,
) -> None:
    async with private_server(tmp_path) as server, bare_call(server.endpoint) as call, opened(server.endpoint) as doors:
        await call("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ReplyError, match="replica") as refused:
            await startup.facts_of_all(doors._replace(failover=True))
        assert passing(refused.value)
        (told,) = (await startup.facts_of_all(doors)).values()
        assert [finding.what for finding in findings("local", told, 10_000)] == ["the server is a replica"]


async def test_a_history_that_is_refused_is_looked_at_again_by_the_next_connection(tmp_path: Path) -> None:
    met: list[str] = []

    async def look(call: Call, history: str) -> None:
        assert await call("PING") == b"PONG"
        met.append(history)
        if len(met) == 1:
            raise Unfit("something is missing there")

    guard = Guard(look)
    async with private_server(tmp_path) as server:
        with pytest.raises(Unfit, match="something is missing"):
            async with open_link(server.endpoint, on_connected=guard):
                pass
        async with open_link(server.endpoint, on_connected=guard), open_link(server.endpoint, on_connected=guard):
            assert len(met) == 2
            assert len(set(met)) == 1
