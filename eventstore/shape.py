"""The shapes that Redis comes in, and the doors to each: what opens links and messages there, whatever the shape."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from eventstore.barrier import OpenRoad, Road
from eventstore.cluster import open_cluster_link, open_cluster_messages
from eventstore.endpoint import Endpoint, Place, found
from eventstore.link import Link, Messages, OnConnected
from eventstore.sentinel import Sentinels
from eventstore.slots import Slots, open_slots
from eventstore.socket_link import Limits, open_link
from eventstore.socket_messages import open_messages

_WATCHED: Final = Limits(silence_s=3.0)
"""Where another server is promoted, one that falls silent is given up sooner than a caller's patience ends."""


class Sentinel(Struct, frozen=True, kw_only=True):
    """The primary called *name*, which *sentinels* watch; *account* is ours there, and its address does not count."""

    name: str
    sentinels: tuple[Endpoint, ...]
    account: Endpoint = Endpoint()


class Cluster(Struct, frozen=True):
    """A cluster that any of *seeds* knows; their account holds for all its servers."""

    seeds: tuple[Endpoint, ...]


Shape: TypeAlias = Endpoint | Sentinel | Cluster
"""An endpoint is one server, alone or with replicas that a person promotes."""

OpenLink = Callable[[], AbstractAsyncContextManager[Link]]
OpenMessages = Callable[[Callable[[str, bytes], None], Callable[[], None]], AbstractAsyncContextManager[Messages]]


class Doors(NamedTuple):
    """What opens connections to a store; *failover* says that something promotes servers there by itself."""

    link: OpenLink
    messages: OpenMessages
    road: OpenRoad
    primaries: Callable[[], Awaitable[Sequence[Endpoint]]]
    publish: str
    failover: bool


@asynccontextmanager
async def opened(shape: Shape, on_connected: OnConnected | None = None) -> AsyncGenerator[Doors]:
    """Find the servers of *shape*; *on_connected* must accept each connection for commands before it is used.

    Raises:
        ConnectionLost: nothing knows the cluster now.
        Unfit: nothing does, and who was asked refuses our account or shows a certificate that is not trusted.
    """
    if isinstance(shape, Cluster):
        async with open_slots(shape.seeds) as slots:
            yield _of_cluster(slots, on_connected)
    elif isinstance(shape, Sentinel):
        yield _of_place(Sentinels(shape.name, shape.sentinels, shape.account), on_connected, failover=True)
    else:
        yield _of_place(shape, on_connected, failover=False)


def _of_place(place: Place, on_connected: OnConnected | None, *, failover: bool) -> Doors:
    opening = partial(open_link, place, limits=_WATCHED if failover else None, on_connected=on_connected)

    async def primaries() -> Sequence[Endpoint]:
        return (await found(place),)

    @asynccontextmanager
    async def road() -> AsyncGenerator[Road]:
        async with opening(name="runstream-barrier") as link:
            yield lambda _: link

    return Doors(
        link=opening,
        messages=partial(open_messages, place),
        road=road,
        primaries=primaries,
        publish="PUBLISH",
        failover=failover,
    )


def _of_cluster(slots: Slots, on_connected: OnConnected | None) -> Doors:
    opening = partial(open_cluster_link, slots, limits=_WATCHED, on_connected=on_connected)

    async def primaries() -> Sequence[Endpoint]:
        return sorted(slots.primaries, key=repr)

    @asynccontextmanager
    async def road() -> AsyncGenerator[Road]:
        async with opening(name="runstream-barrier") as link:
            yield link.of

    return Doors(
        link=opening,
        messages=partial(open_cluster_messages, slots),
        road=road,
        primaries=primaries,
        publish="SPUBLISH",
        failover=True,
    )
