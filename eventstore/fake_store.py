"""The Redis store on fakeredis: the `memory` profile, and the contract suite's middle way."""

from contextlib import AbstractAsyncContextManager

from fakeredis import FakeServer

from eventstore.fake_link import open_fake_link, open_fake_messages
from eventstore.redis_store import PATIENCE_S, RedisStore, open_store_over
from eventstore.store import Deployment


def open_fake_store(
    server: FakeServer, deployment: Deployment, node: str, *, patience_s: float = PATIENCE_S
) -> AbstractAsyncContextManager[RedisStore]:
    """A store on *server*; stores over the same one are nodes of one deployment."""
    return open_store_over(
        lambda: open_fake_link(server),
        lambda on_message, _: open_fake_messages(server, on_message),
        deployment,
        node,
        patience_s=patience_s,
    )
