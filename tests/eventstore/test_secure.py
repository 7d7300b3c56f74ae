"""TLS and accounts: hosts open with the right ones, and end at once, saying why, with any other."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

import runstream
from eventstore.endpoint import Endpoint
from eventstore.link import ReplyError, Unfit
from eventstore.slots import serving
from eventstore.socket_link import Limits, bare_call
from runstream import checking
from runstream.settings import RedisSettings, Secret, Settings, SettingsError
from tests.certificates import Papers, papers_for
from tests.eventstore.relay import relay, turned_away
from tests.eventstore.yard import ClusterYard, Server, Yard, replicates, until

pytestmark = pytest.mark.anyio

KEPT = ("--appendonly", "yes", "--maxmemory-clients", "20%")
WATCHED = (*KEPT, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "5")
AT_ONCE_S = 5.0
"""Far below the patience of a start."""
DATA, WATCHERS = "of-the-data", "of-the-sentinels"
PERMITTED = (
    "resetkeys ~{* resetchannels &{* -@all +@read +@write +@scripting +@pubsub +@connection +@stream +time "
    "+role +info +config|get +wait"
)
"""The least that a host needs, as docs/durability.md says it."""


@pytest.fixture
async def server(yard: Yard) -> AsyncIterator[Server]:
    server = await yard.server(*KEPT)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_for(tmp_path_factory.mktemp("tls") / "server", "localhost")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_for(tmp_path_factory.mktemp("tls") / "others", "localhost")


def settings(folder: Path, **redis: Any) -> Settings:
    return Settings(state_dir=folder, profile="standard", partitions=4, redis=RedisSettings(**redis))


async def serves(where: Settings) -> None:
    """Open a host, and see a run through on it."""
    with anyio.fail_after(AT_ONCE_S * 2):
        async with runstream.open(where, patient=True) as host:
            document = {"provider": "mock", "model": "demo", "input": "hello"}
            async with host.attend(document) as attended:
                shown = [item.data async for items in attended.items() for item in items]
            assert b"run.completed" in shown[-1]


async def refused(where: Settings) -> str:
    """Why a patient host that cannot be opened ends at once; `runstream check` says the same."""
    with anyio.fail_after(AT_ONCE_S), pytest.raises((ReplyError, Unfit, SettingsError)) as refusal:
        async with runstream.open(where, patient=True):
            pass
    [verdict] = [one for one in await checking.check(where) if one.about == "redis"]
    assert (verdict.level, verdict.what) == ("error", str(refusal.value))
    return verdict.what


async def test_tls_is_had_with_whom_the_settings_trust_and_nobody_else(
    server: Server, papers: Papers, others: Papers, tmp_path: Path
) -> None:
    async with relay(server.endpoint, papers.shown()) as port:
        where = settings(tmp_path, url=f"rediss://localhost:{port}", tls_ca=papers.authority)
        await serves(where)
        stranger = await refused(settings(tmp_path, url=f"rediss://localhost:{port}", tls_ca=others.authority))
        assert stranger.startswith(f"localhost:{port} shows a certificate that is not trusted: ")
        assert "not trusted" in await refused(settings(tmp_path, url=f"rediss://localhost:{port}"))
        other_name = await refused(settings(tmp_path, url=f"rediss://127.0.0.1:{port}", tls_ca=papers.authority))
        assert "not valid for '127.0.0.1'" in other_name
        refusal = await refused(replace(where, redis=replace(where.redis, tls_ca=papers.key)))
        assert refusal.startswith("redis.tls_ca: holds no certificates to trust: ")
        missing = replace(where.redis, tls_ca=tmp_path / "none")
        assert "No such file" in await refused(replace(where, redis=missing))


async def test_a_server_that_asks_for_a_certificate_is_shown_one(
    server: Server, papers: Papers, others: Papers, tmp_path: Path
) -> None:
    mine = papers_for(tmp_path / "mine", "runstream")
    async with relay(server.endpoint, papers.shown(to=mine.authority)) as port:
        where = settings(
            tmp_path,
            url=f"rediss://localhost:{port}",
            tls_ca=papers.authority,
            tls_certificate=mine.certificate,
            tls_key=mine.key,
        )
        await serves(where)
        mixed = await refused(replace(where, redis=replace(where.redis, tls_key=others.key)))
        assert mixed.startswith("redis.tls_certificate: cannot be used with redis.tls_key: ")
    async with turned_away(papers.shown(to=mine.authority)) as port:
        there = replace(where.redis, url=f"rediss://localhost:{port}")
        bare = replace(there, tls_certificate=None, tls_key=None)
        assert "CERTIFICATE REQUIRED" in await refused(replace(where, redis=bare))
        another = replace(there, tls_certificate=others.certificate, tls_key=others.key)
        assert "UNKNOWN CA" in await refused(replace(where, redis=another))


async def test_every_server_of_a_cluster_is_spoken_to_over_tls(yard: Yard, tmp_path: Path) -> None:
    known = papers_for(tmp_path / "known", "127.0.0.1")
    stranger = papers_for(tmp_path / "stranger", "127.0.0.1")
    cluster = await yard.cluster(3, 3, *WATCHED)
    async with AsyncExitStack() as stack:
        ports: list[int] = []
        for one in cluster.servers:  # replicas want no TLS, hosts do
            ports.append(await stack.enter_async_context(relay(one.endpoint, known.shown(), plain=True)))
            await one.ask("CONFIG", "SET", "cluster-announce-port", ports[-1])
        await until(lambda: announced(cluster, ports))
        redis = RedisSettings(cluster=(f"127.0.0.1:{ports[0]}",), tls=True, tls_ca=known.authority)
        where = replace(settings(tmp_path), redis=redis)
        await serves(where)
        assert "not trusted" in await refused(replace(where, redis=replace(redis, tls_ca=stranger.authority)))
    for one in cluster.servers:
        one.kill()


async def announced(cluster: ClusterYard, ports: Sequence[int]) -> bool:
    """Whether every server names these ports, and no other, for the slots."""
    told = [serving(await one.ask("CLUSTER", "SLOTS"), one.endpoint) for one in cluster.servers]
    return all({place.port for place in slots if place is not None} <= set(ports) for slots in told)


async def test_sentinels_and_their_primary_are_spoken_to_over_tls(yard: Yard, tmp_path: Path) -> None:
    known = papers_for(tmp_path / "known", "127.0.0.1")
    stranger = papers_for(tmp_path / "stranger", "127.0.0.1")
    primary, replica = await yard.server(*WATCHED), await yard.server(*WATCHED)
    await replicates(replica, primary)
    async with relay(primary.endpoint, known.shown(), plain=True) as port:  # the sentinel wants no TLS, hosts do
        sentinel = await yard.sentinel("runs", primary, at=port)
        # The relay lives in this test's own loop, and may be slow to answer: that is no reason to promote anybody.
        await sentinel.ask("SENTINEL", "SET", "runs", "down-after-milliseconds", 60_000)
        async with relay(sentinel.endpoint, known.shown()) as there:
            redis = RedisSettings(
                sentinels=(f"127.0.0.1:{there}",), sentinel_name="runs", tls=True, tls_ca=known.authority
            )
            where = replace(settings(tmp_path), redis=redis)
            await serves(where)
            assert "not trusted" in await refused(replace(where, redis=replace(redis, tls_ca=stranger.authority)))
        sentinel.kill()
    for server in (primary, replica):
        server.kill()


async def test_an_account_needs_no_more_than_is_written_and_its_password(server: Server, tmp_path: Path) -> None:
    await server.ask("ACL", "SETUSER", "host", "on", f">{DATA}", *PERMITTED.split())
    await server.ask("ACL", "SETUSER", "default", f">{DATA}-of-others", "resetkeys")
    url = f"redis://127.0.0.1:{server.endpoint.port}"
    account = settings(tmp_path, url=url, username="host", password=Secret(DATA))
    await serves(account)
    wrong = await refused(replace(account, redis=replace(account.redis, password=Secret("guessed"))))
    assert wrong.startswith("WRONGPASS")
    assert f"127.0.0.1:{server.endpoint.port}" in wrong
    assert "guessed" not in wrong
    assert (await refused(settings(tmp_path, url=url))).startswith("NOAUTH")


async def test_sentinels_and_their_primary_may_have_passwords_that_differ(yard: Yard, tmp_path: Path) -> None:
    primary, replica, sentinel = await guarded(yard)
    redis = RedisSettings(
        sentinels=(f"127.0.0.1:{sentinel.endpoint.port}",),
        sentinel_name="runs",
        sentinel_password=Secret(WATCHERS),
        password=Secret(DATA),
    )
    where = replace(settings(tmp_path), redis=redis)
    await serves(where)
    to_sentinel = await refused(replace(where, redis=replace(redis, sentinel_password=Secret(DATA))))
    assert "WRONGPASS" in to_sentinel
    assert f"(the answer of 127.0.0.1:{sentinel.endpoint.port} to our account)" in to_sentinel
    assert "NOAUTH" in await refused(replace(where, redis=replace(redis, sentinel_password=Secret())))
    to_primary = await refused(replace(where, redis=replace(redis, password=Secret(WATCHERS))))
    assert f"(the answer of 127.0.0.1:{primary.endpoint.port} to our account)" in to_primary
    assert "NOAUTH" in await refused(replace(where, redis=replace(redis, password=Secret())))
    for server in (sentinel, primary, replica):
        server.kill()


async def guarded(yard: Yard) -> tuple[Server, Server, Server]:
    """A primary, its replica and their sentinel, with passwords."""
    primary, replica = await yard.server(*WATCHED), await yard.server(*WATCHED)
    sentinel = await yard.sentinel("runs", primary)
    await sentinel.ask("SENTINEL", "SET", "runs", "auth-pass", DATA)
    await sentinel.ask("ACL", "SETUSER", "default", f">{WATCHERS}")  # which is what `requirepass` does
    for server in (primary, replica):
        await server.ask("CONFIG", "SET", "masterauth", DATA, "requirepass", DATA)
    await asked(replica, "REPLICAOF", "127.0.0.1", primary.endpoint.port)
    await until(lambda: follows(replica))
    return primary, replica, sentinel


async def asked(server: Server, *words: str | int) -> Any:
    known = replace(server.endpoint, password=DATA)
    async with bare_call(known, Limits(connect_s=0.5, patience_s=0.5, silence_s=0.5)) as call:
        return await call(*words)


async def follows(replica: Server) -> bool:
    return b"master_link_status:up" in await asked(replica, "INFO", "replication")


async def test_a_cluster_that_refuses_the_account_is_not_waited_for(cluster: ClusterYard, tmp_path: Path) -> None:
    seeds = (repr(cluster.seeds[0]),)
    refusal = await refused(settings(tmp_path, cluster=seeds, password=Secret("unknown-there")))
    assert refusal.startswith("nobody knows the cluster: ")
    assert "without any password configured" in refusal


def test_a_certificate_goes_with_a_key_and_with_tls(tmp_path: Path) -> None:
    half = RedisSettings(url="rediss://h", tls_certificate=tmp_path / "c")
    assert [fault.key for fault in half.faults()] == ["tls_key"]
    other_half = RedisSettings(cluster=("h:1",), tls=True, tls_key=tmp_path / "k")
    assert [fault.key for fault in other_half.faults()] == ["tls_certificate"]
    clear = RedisSettings(url="redis://h", tls_certificate=tmp_path / "c", tls_key=tmp_path / "k")
    assert [fault.key for fault in clear.faults()] == ["tls_certificate", "tls_key"]
    assert repr(Endpoint(password=DATA)) == "127.0.0.1:6379"
