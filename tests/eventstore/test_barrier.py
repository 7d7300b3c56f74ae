"""The barrier of the `strict` profile: what was answered, enough replicas have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from eventstore import keys
from eventstore.barrier import ENDS_MAX, Barrier, KeptEnds, Proof, Road, Short, open_barrier, proof
from eventstore.link import ConnectionLost, Link, ReplyError, Word
from eventstore.reader import followed
from eventstore.redis_store import RedisStore, open_redis_store
from eventstore.shape import Cluster, Sentinel, opened
from eventstore.slots import slot_of
from eventstore.socket_link import open_link
from eventstore.store import Append, Deployment, Event, Part, Recorded, Unavailable
from tests.eventstore.load import begin, run_id, under_load
from tests.eventstore.yard import ClusterYard, Server, Yard, replicates, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.endpoint import Endpoint

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=8, id_key=b"key")
RUN = run_id(0)
TAG = keys.tags(8)[0]
BEGIN = begin(RUN, "one")
FACT = Part(actor=RUN, log=1, events=(Event(b"fact"),), epoch=1)
DELTA = Part(actor=RUN, feed=0, items=(b"item",), epoch=1)
CLAIM = Part(actor=RUN, log=1, epoch=1, owner="")


def one(command: str, part: Part) -> Append:
    return Append(command=command, parts=(part,))


@pytest.fixture
async def pair(yard: Yard) -> tuple[Server, Server]:
    """A primary and its replica."""
    return await yard.pair()


@pytest.fixture
async def store(pair: tuple[Server, Server]) -> AsyncIterator[RedisStore]:
    async with open_redis_store(pair[0].endpoint, DEPLOYMENT, "one", replicas=1) as store:
        yield store


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (FACT, ["1", keys.log(TAG, RUN), "2-0"]),
        (replace(FACT, ended=True), ["1", keys.log(TAG, RUN), "2-0"]),
        (CLAIM, ["HGET", keys.heads(TAG, RUN), "k"]),
        (DELTA, None),
        (Part(actor=RUN, log=1), None),
    ],
)
def test_what_writes_a_log_or_an_owner_is_waited_for(part: Part, shown: Sequence[str] | None) -> None:
    found = proof(one("c", part), TAG)
    assert (None if found is None else [str(word) for word in found.words[-3:]]) == shown


async def test_what_is_answered_a_replica_has(pair: tuple[Server, Server], store: RedisStore) -> None:
    assert isinstance(await store.append(BEGIN), Recorded)
    for number in range(1, 5):
        await store.append(one(f"c{number}", replace(FACT, log=number)))
        assert int(await pair[1].ask("HGET", keys.heads(TAG, RUN), "l")) == number + 1
    await store.append(one("hand back", replace(CLAIM, log=5)))
    assert await pair[1].ask("HGET", keys.heads(TAG, RUN), "k") == b"hand back"


async def test_an_end_is_shown_to_nobody_before_a_replica_has_it(
    pair: tuple[Server, Server], store: RedisStore
) -> None:
    end = one("end", Part(actor=RUN, log=1, events=(Event(b"end", 1),), items=(b"the end",), epoch=1, ended=True))
    shown: list[bytes] = []
    beaten = anyio.Event()

    async def read() -> None:
        async with aclosing(followed(store, RUN, 0, heartbeat_s=0.2)) as batches:
            async for items in batches:
                shown.extend(item.data for item in items)
                if not items:
                    beaten.set()

    await store.append(BEGIN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        with pair[1].frozen():
            with pytest.raises(Unavailable, match="uncertain"):
                await store.append(end)
            with pytest.raises(Unavailable, match="uncertain"):
                await store.confirm_end(RUN)
            with anyio.fail_after(20):
                await beaten.wait()
            assert shown == []
    assert shown == [b"the end"]
    await store.confirm_end(RUN)


async def test_an_end_that_was_found_kept_is_told_though_the_replica_is_gone_until_there_is_another_history(
    pair: tuple[Server, Server], store: RedisStore
) -> None:
    await store.append(BEGIN)
    await store.append(
        one("end", Part(actor=RUN, log=1, events=(Event(b"end", 1),), items=(b"x",), epoch=1, ended=True))
    )
    with pair[1].frozen():
        with anyio.fail_after(0.5):
            await store.confirm_end(RUN)
        store._receipts.history = "another"
        with pytest.raises(Unavailable, match="uncertain"):
            await store.confirm_end(RUN)
    await store.confirm_end(RUN)
    with pair[1].frozen(), anyio.fail_after(0.5):
        await store.confirm_end(RUN)


def test_of_many_kept_ends_the_last_are_remembered() -> None:
    ends = KeptEnds()
    for number in range(ENDS_MAX + 1):
        ends.add(f"{number}", "history")
    assert not ends.has("0", "history")
    assert ends.has("1", "history")
    assert not ends.has("1", "another")


async def test_without_a_replica_it_is_uncertain_and_the_actor_is_forgotten_but_deltas_go_on(
    pair: tuple[Server, Server], store: RedisStore
) -> None:
    await store.append(BEGIN)
    with pair[1].frozen():
        fact = one("fact", FACT)
        with anyio.fail_after(3), pytest.raises(Unavailable, match="uncertain"):
            await store.append(fact)
        assert RUN not in store._owned
        with anyio.fail_after(0.5):
            assert isinstance(await store.append(one("delta", DELTA)), Recorded)
    outcome = await store.append(fact)
    assert isinstance(outcome, Recorded)
    assert outcome.repeated


async def test_many_appends_share_a_round(pair: tuple[Server, Server], store: RedisStore) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(store.append, begin(f"00000000-{number}", "one"))
    assert int(await pair[0].ask("GET", keys.barrier(TAG))) < 50


async def test_a_barrier_where_memory_is_full_still_lets_ends_pass(
    pair: tuple[Server, Server], store: RedisStore
) -> None:
    await store.append(BEGIN)
    await pair[0].ask("CONFIG", "SET", "maxmemory", 1)
    try:
        assert isinstance(await store.append(one("end", replace(FACT, ended=True))), Recorded)
    finally:
        await pair[0].ask("CONFIG", "SET", "maxmemory", 0)


async def test_an_append_that_the_primary_of_now_does_not_have_is_not_kept(valkey: Endpoint) -> None:
    async with open_barrier(lambda: road_to(valkey), 0, 1.0) as barrier:
        absent = proof(one("c", replace(FACT, actor="00000000-nobody")), TAG)
        assert absent is not None
        with pytest.raises(Short):
            await barrier.passed(absent)


@asynccontextmanager
async def road_to(server: Endpoint) -> AsyncIterator[Road]:
    async with open_link(server) as link:
        yield lambda _: link


class Scripted:
    """A link that answers rounds as it is told, the last answer again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        await anyio.lowlevel.checkpoint()
        self.asked += 1
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [*(b"c" for _ in commands[2:]), *answer]


@asynccontextmanager
async def scripted(*answers: Any, unknown: int = 0) -> AsyncIterator[tuple[Barrier, Scripted]]:
    """A barrier for one replica over links that answer so; *unknown* times no primary is known."""
    link: Any = Scripted(*answers)
    unknowns = [ReplyError("CLUSTERDOWN nobody")] * unknown

    def to(tag: str) -> Link:
        del tag
        if unknowns:
            raise unknowns.pop()
        return link  # type: ignore[no-any-return]

    @asynccontextmanager
    async def road() -> AsyncIterator[Road]:
        yield to

    async with open_barrier(road, 1, 0.3) as barrier:
        yield barrier, link


SHOWN = Proof(TAG, ("GET", "x"), b"c")


@pytest.mark.parametrize("trouble", [ConnectionLost("gone"), [ReplyError("NOREPLICAS"), 0], [1, ReplyError("LOADING")]])
async def test_a_barrier_that_cannot_ask_tries_again_with_growing_pauses_and_then_says_so(trouble: Any) -> None:
    async with scripted(trouble) as (barrier, link):
        with pytest.raises(Short):
            await barrier.passed(SHOWN)
        assert 2 <= link.asked <= 8
        assert barrier._lanes == {}


async def test_a_barrier_that_could_not_ask_at_first_passes_later() -> None:
    async with scripted(ConnectionLost("gone"), [1, 1], unknown=1) as (barrier, _):
        await barrier.passed(SHOWN)


async def test_what_goes_wrong_beside_a_barrier_leaves_as_it_is() -> None:
    with pytest.raises(ConnectionLost, match="whoever opened it tries again"):
        async with scripted([1, 1]):
            raise ConnectionLost("whoever opened it tries again")


async def test_who_leaves_does_not_stop_a_round_for_the_others() -> None:
    async with scripted([1, 1]) as (barrier, _), anyio.create_task_group() as tasks:
        tasks.start_soon(barrier.passed, SHOWN)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await barrier.passed(SHOWN)


async def test_in_a_cluster_each_partition_waits_for_the_replicas_of_its_own_primary(cluster: ClusterYard) -> None:
    replica, primary = await cluster.replica()
    owners = [await cluster.owner(slot_of(tag)) for tag in keys.tags(8)]
    async with open_redis_store(Cluster(cluster.seeds), DEPLOYMENT, "one", replicas=1) as store:
        with replica.frozen():
            paused = next(number for number, owner in enumerate(owners) if owner is primary)
            with pytest.raises(Unavailable, match="uncertain"):
                await store.append(begin(run_id(paused), "one"))
            for number, owner in enumerate(owners):
                if owner is not primary:
                    assert isinstance(await store.append(begin(run_id(number), "one")), Recorded)
        assert isinstance(await store.append(begin(run_id(paused), "one")), Recorded)


async def test_a_failover_under_load_loses_nothing_that_was_answered(yard: Yard) -> None:
    first, *others = [await yard.server() for _ in range(3)]
    for other in others:
        await replicates(other, first)
    sentinel = await yard.sentinel("runs", first)

    async def knows() -> bool:
        return len(await sentinel.ask("SENTINEL", "REPLICAS", "runs")) == 2

    await until(knows)
    shape = Sentinel(name="runs", sentinels=(sentinel.endpoint,))
    async with (
        open_redis_store(shape, DEPLOYMENT, "one", replicas=1) as store,
        under_load(store, "one") as load,
    ):
        first.kill()
        await load.goes_on()
        assert all(isinstance(failure, Unavailable) for failure in load.failed)
        await load.assert_kept()
    async with opened(shape) as doors:
        assert (await doors.primaries())[0].port in {other.endpoint.port for other in others}
    for server in (sentinel, *others):
        server.kill()
