"""A cluster whose primary of the ledger fails over, while that of the runs does not: what the ledger forgot is mended."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from actors import holdings
from eventstore import keys
from eventstore.redis_store import open_redis_store
from eventstore.shape import Cluster
from eventstore.socket_link import bare_call
from tests.actors.support import until_so
from tests.actors.test_auditing import STAYING, counted, counts, hosted, in_use, on_servers, over
from tests.eventstore.conftest import DEPLOYMENT
from tests.eventstore.yard import ClusterYard

pytestmark = pytest.mark.anyio


async def test_the_failover_of_a_cluster_has_the_ledger_held_against_the_runs(cluster: ClusterYard) -> None:
    await cluster.emptied()
    slot = keys.slot("g")

    async def failed_over() -> None:
        primary = await cluster.owner(slot)
        replica = await _replica_of(cluster, primary.endpoint.port)
        await replica.ask("CLUSTER", "FAILOVER")
        await until_so(partial(_serves, cluster, slot, replica))

    async with AsyncExitStack() as stack:
        shape = Cluster(cluster.seeds)
        servers = on_servers(
            lambda name: stack.enter_async_context(open_redis_store(shape, DEPLOYMENT, name)), failed_over
        )
        store = await servers.open_store("n1")
        async with hosted(store) as desk, AsyncExitStack() as inner:
            await in_use(desk, store, inner)
            await until_so(partial(_marked, store))
            saved, before = await servers.saved(), await counts(store)
            await over(desk, store)
            after = {pool: holders if pool in STAYING else [] for pool, holders in before.items()}
            await counted(store, after)
            await servers.restored(saved)
            await counted(store, after)


async def _marked(store: Any) -> bool:
    """Whether every pool says that it was audited, so that only another history gives reason to do it again."""
    marks = await store._commands.pipeline([("HGET", keys.ledger("by", pool), "audited") for pool in holdings.POOLS])
    return all(marks)


async def _replica_of(cluster: ClusterYard, port: int | None) -> Any:
    for server in cluster.servers:
        async with bare_call(server.endpoint) as ask:
            told = (await ask("INFO", "replication")).decode()
        if f"master_port:{port}\r\n" in told:
            return server
    raise AssertionError("nobody follows that server")


async def _serves(cluster: ClusterYard, slot: int, server: Any) -> bool:
    return await cluster.owner(slot) is server
