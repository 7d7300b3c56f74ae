"""A real server whose memory is full, of data or of what stalled subscribers did not take: what goes on and what waits."""

import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from msgspec.structs import replace

import runstream
from actors.ports import ModelContext, ModelRequest, Turn
from eventstore.endpoint import Endpoint
from eventstore.link import Link, ReplyError
from eventstore.redis_store import open_redis_store
from eventstore.socket_link import open_link
from eventstore.store import PUSHED_ITEM_BYTES_MAX, Deployment, Item, Unavailable
from projections import wire_feed
from runstream.host import Host
from runstream.settings import RedisSettings, Settings
from tests import history
from tests.actors.support import INFO, FakeModel, asking, ended, items_of, types, until, until_so
from tests.actors.working import BRISK, LIMITS, Desk, working
from tests.eventstore.conftest import yard
from tests.eventstore.yard import Server, Yard
from tests.history import History, Read
from tests.system.looks import kept_in
from tests.system.proxy import Proxy, proxy_to

pytestmark = pytest.mark.anyio
__all__ = ["yard"]

DEPLOYMENT = Deployment("test", 4, b"k" * 32)
NODE = replace(BRISK, lease_ms=1_000, routine_ms=50)
PATIENCE_S = 0.5
SOON_GONE = replace(LIMITS, retention_ms=1_500)
RECOVERED_S = 5.0
ROOM_BYTES = 12_000_000
PIECE = b"x" * 65_536
MESSAGE = b"x" * PUSHED_ITEM_BYTES_MAX
"""As large as ours may be; of larger ones Valkey 9 counts nothing for those who have not taken them."""
STALLED = 3


class Waiting:
    """A model that says something now and then until it is told to end."""

    def __init__(self) -> None:
        self.gates: dict[str, anyio.Event] = {}
        self.model = FakeModel(self._answer)
        self.model.info = replace(INFO, account="acct")

    def gate(self, said: str) -> anyio.Event:
        return self.gates.setdefault(said, anyio.Event())

    async def _answer(self, request: ModelRequest, context: ModelContext) -> Turn:
        said: Any = request.messages[0].content
        gate, text = self.gate(said), ""
        while said.startswith("ticking") and not gate.is_set():
            context.emit_text("tick ")
            text += "tick "
            with anyio.move_on_after(0.03):
                await gate.wait()
        await gate.wait()
        return Turn(text=text or "done")


class Full(NamedTuple):
    """How a server's memory is filled, and emptied again."""

    link: Link
    more: Callable[[], Any]

    async def is_full(self) -> bool:
        """Whether a write is refused."""
        try:
            await self.link.call("SET", "probe", 1)
        except ReplyError as error:
            return error.code == "OOM"
        return False

    async def kept(self) -> None:
        """Fill the server, and keep it so until cancelled."""
        while True:
            while not await self.is_full():
                await self.more()
            await anyio.sleep(0.02)


@asynccontextmanager
async def of_data(link: Link) -> AsyncGenerator[Full]:
    """Room is there again once the bound is raised."""

    async def more() -> None:
        await link.call("APPEND", "junk", PIECE)

    yield Full(link, more)
    await link.call("CONFIG", "SET", "maxmemory", 0)


@asynccontextmanager
async def of_subscribers(link: Link) -> AsyncGenerator[Full]:
    """Room is there again once they are gone."""
    [port] = (await link.call("CONFIG", "GET", "port"))[1:]

    async def more() -> None:
        await link.pipeline([("PUBLISH", "junk", MESSAGE)] * 20)

    with ExitStack() as plugs:
        for _ in range(STALLED):
            plug = plugs.enter_context(socket.create_connection(("127.0.0.1", int(port))))
            plug.sendall(b"PSUBSCRIBE *\r\n")
        yield Full(link, more)


@asynccontextmanager
async def bounded(yard: Yard, *options: str) -> AsyncIterator[tuple[Server, Link]]:
    server = await yard.server("--appendonly", "yes", "--unixsocket", "r.sock", *options)
    async with open_link(server.endpoint) as link:
        yield server, link
    server.kill()


async def bound(link: Link) -> None:
    """Leave the server little more than what it uses."""
    used = dict(line.split(":", 1) for line in (await link.call("INFO", "memory")).decode().splitlines() if ":" in line)
    await link.call("CONFIG", "SET", "maxmemory", int(used["used_memory"]) + ROOM_BYTES)


class Viewed:
    """What a viewer of a run was shown."""

    def __init__(self, host: Host, run_id: str) -> None:
        self.run_id = run_id
        self.items: list[Item] = []
        self.heartbeats = 0
        self._host = host

    async def follow(self) -> None:
        async for batch in self._host.follow(self.run_id):
            self.items += batch
            self.heartbeats += not batch

    @property
    def reading(self) -> Read:
        events = [(item.number, wire_feed.numbered(item.number, item.data)) for item in self.items]
        return Read("viewer", self.run_id, 0, events, over=True)


@asynccontextmanager
async def second(server: Server, waiting: Waiting) -> AsyncIterator[tuple[Desk, Proxy]]:
    """Another node, which can be cut off."""
    async with (
        proxy_to(Endpoint(path=str(server.folder / "r.sock"))) as proxy,
        open_redis_store(Endpoint(port=proxy.port), DEPLOYMENT, "two", patience_s=PATIENCE_S) as store,
        working(waiting.model, store, node=NODE, jobs=SOON_GONE) as desk,
    ):
        yield desk, proxy
        proxy.gone = False


@asynccontextmanager
async def attending(host: Host, other: Host, *said: str) -> AsyncIterator[dict[str, Viewed]]:
    """Start runs on *host*, and view each through *other*."""
    async with AsyncExitStack() as stack:
        runs = [await stack.enter_async_context(host.attend(asking(input=one))) for one in said]
        yield {one: Viewed(other, run.run_id) for one, run in zip(said, runs, strict=True)}


@pytest.mark.parametrize("filled", [of_data, of_subscribers])
async def test_a_full_server_ends_what_is_there_and_takes_nothing_new_until_it_has_room(
    filled: Any, yard: Yard
) -> None:
    waiting = Waiting()
    async with (
        bounded(yard) as (server, link),
        open_redis_store(server.endpoint, DEPLOYMENT, "one", patience_s=PATIENCE_S) as store,
        working(waiting.model, store, node=NODE, jobs=SOON_GONE) as one,
        second(server, waiting) as (two, proxy),
        attending(one.host, one.host, "ticking", "ends", "cancelled") as mine,
        attending(two.host, one.host, "lost") as others,
        anyio.create_task_group() as tasks,
    ):
        host = one.host
        views = mine | others
        for view in views.values():
            tasks.start_soon(view.follow)
        waiting.gate("kept").set()
        kept = await one.ended(await one.submit("kept"))
        await until(lambda: len(views["ticking"].items) > 5)
        await bound(link)
        async with filled(link) as full, anyio.create_task_group() as filling:
            filling.start_soon(full.kept)
            await until_so(full.is_full)
            await refused(one)
            before, lease_ms = len(views["ticking"].items), await lease_of(host, views["ticking"])

            proxy.gone = True
            await proxy.cut()
            waiting.gate("ends").set()
            await host.cancel(views["cancelled"].run_id)
            await until(lambda: types(views["ends"].items)[-1] == "run.completed")
            await until(lambda: types(views["cancelled"].items)[-1] == "run.cancelled")
            await until_so(lambda: renewed(host, views["ticking"], lease_ms + 2 * NODE.lease_ms))
            await until_so(lambda: erased(host, kept.id))
            await until(lambda: types(views["lost"].items)[-1] == "run.failed")

            assert len(views["ticking"].items) == before, "text waits"
            assert views["ticking"].heartbeats > 3, "its viewers are shown a pause"
            assert await full.is_full()
            await refused(one)
            filling.cancel_scope.cancel()
        shown = len(views["ticking"].items)
        with anyio.fail_after(RECOVERED_S):
            await until(lambda: len(views["ticking"].items) > shown)
            waiting.gate("new").set()
            assert types(await items_of(host, asking(input="new")))[-1] == "run.completed"
        waiting.gate("ticking").set()
        await ended(host, views["ticking"].run_id)
        await until(lambda: types(views["ticking"].items)[-1] == "run.completed")
        reads = [view.reading for view in views.values()]
        assert history.faults(History(kept=await kept_in(link), reads=reads)) == []


async def refused(desk: Desk) -> None:
    """Fail unless whoever asks for something new is told that it may come again."""
    with pytest.raises(Unavailable, match="OOM"):
        await items_of(desk.host, asking(input="too much"))
    with pytest.raises(Unavailable, match="OOM"):
        await desk.submit("too-much")


async def lease_of(host: Host, view: Viewed) -> int:
    return (await host.store.look(view.run_id)).heads.lease_ms


async def renewed(host: Host, view: Viewed, beyond_ms: int) -> bool:
    return await lease_of(host, view) > beyond_ms


async def erased(host: Host, run_id: str) -> bool:
    return (await host.store.look(run_id)).heads.erased


async def test_subscribers_that_read_nothing_are_left_where_the_server_bounds_its_clients(
    yard: Yard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting()
    async with (
        bounded(yard) as (server, link),
        open_redis_store(server.endpoint, DEPLOYMENT, "one", patience_s=PATIENCE_S) as store,
        working(waiting.model, store, node=NODE) as one,
    ):
        assert await warned(server, tmp_path, caplog)
        await link.call("CONFIG", "SET", "maxmemory-clients", ROOM_BYTES // 3)
        assert not await warned(server, tmp_path, caplog)
        await bound(link)
        async with (
            of_subscribers(link) as full,
            attending(one.host, one.host, "ticking") as views,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(views["ticking"].follow)
            assert await listening(link) == STALLED
            while await listening(link):
                await full.more()
                assert not await full.is_full()
            seen = len(views["ticking"].items)
            await until(lambda: len(views["ticking"].items) > seen + 3)
            waiting.gate("ticking").set()
            await until(lambda: types(views["ticking"].items)[-1] == "run.completed")
    assert not [one for one in caplog.records if "connected again" in one.getMessage()], "no node was left"


async def listening(link: Link) -> int:
    """How many subscribers of everything the server has."""
    return int((await link.call("CLIENT", "LIST", "TYPE", "pubsub")).count(b" psub=1 "))


async def warned(server: Server, folder: Path, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a host that starts there warns of such subscribers."""
    caplog.clear()
    url = f"redis://127.0.0.1:{server.endpoint.port}"
    settings = Settings(state_dir=folder, profile="standard", partitions=4, redis=RedisSettings(url=url))
    with caplog.at_level(logging.WARNING):
        async with runstream.open(settings):
            return any("maxmemory-clients is not set" in one.getMessage() for one in caplog.records)
