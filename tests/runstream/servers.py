"""A real server for the tests of whole hosts."""

from functools import partial

from eventstore.endpoint import Endpoint
from eventstore.redis_store import open_redis_store
from eventstore.socket_link import open_link
from tests.eventstore.conftest import valkey
from tests.scenario_world import DEPLOYMENT, Opening

__all__ = ["emptied", "valkey"]


async def emptied(server: Endpoint) -> Opening:
    """Empty *server*, and return how the nodes of a scenario open it."""
    async with open_link(server) as link:
        await link.call("FLUSHALL")
    return partial(open_redis_store, server, DEPLOYMENT)
