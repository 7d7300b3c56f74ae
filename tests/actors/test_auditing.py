"""A ledger that lost what it counted, whole or in part, is held against the runs, on whichever node, and says the same again."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import codec, holdings, session
from actors.companions import HOST_KEYS_POOL, KEYS_POOL, SESSIONS_POOL
from actors.dispatch import BYTES_POOL, HOST_RUNS_POOL, JOBS_POOL, POOL
from actors.events import RunErased, TicketOpened
from actors.host_runs import Limits as HostLimits
from actors.node import NodeSettings
from actors.ports import ModelContext, ModelRequest, ToolMessage, Turn, UserMessage
from eventstore import keys
from eventstore.link import Link, ReplyError
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import AUDIT_MS, Claim, Heads, Met, Store, Unavailable
from tests.actors.conversing import CONTINUING, delete, opened, turn
from tests.actors.reviewing import (
    ALL_FEATURES,
    APPLICATION,
    REVIEWED,
    CountingTool,
    anybody,
    begun,
    call,
    open_companion,
)
from tests.actors.support import INFO, Clock, FakeModel, asking, items_of, new_memory, until, until_so
from tests.actors.test_interactive_jobs import Counter
from tests.actors.working import ACCOUNT, BRISK, LIMITS, working
from tests.api.host import hosting
from tests.eventstore.conftest import DEPLOYMENT, emptied, valkey

__all__ = ["valkey"]
pytestmark = pytest.mark.anyio

QUICK = replace(BRISK, audited_s=0.05, audited_again_s=0.2)
NEVER = replace(BRISK, audited_s=1_000.0)
SESSIONS = session.Limits(retention_ms=600_000)
STAYING = frozenset({JOBS_POOL, BYTES_POOL, KEYS_POOL, HOST_RUNS_POOL, HOST_KEYS_POOL})
"""Pools that are still in use when all is over: what is kept counts."""

Counts = dict[str, list[str]]
"""Who holds a permit of each pool that was begun."""


def obedient() -> FakeModel:
    """A model that uses the tool it is asked for, or never answers, or is content at once."""

    async def answer(request: ModelRequest, context: ModelContext) -> Turn:
        wish = next(one.content for one in request.messages if isinstance(one, UserMessage))
        context.emit_text("well")
        if wish == "stall":
            await anyio.sleep_forever()
        used = any(isinstance(one, ToolMessage) for one in request.messages)
        calls = (call(wish),) if wish in {"reviewed", "app"} and not used else ()
        return Turn(text="well", tool_calls=calls, usage={"inputTokens": 1})

    model = FakeModel(answer)
    model.info = replace(INFO, account=ACCOUNT, capabilities=CONTINUING)
    return model


@asynccontextmanager
async def hosted(store: Store, settings: NodeSettings = QUICK) -> AsyncIterator[Counter]:
    options: dict[str, Any] = {
        "features": ALL_FEATURES,
        "application_tools_reviewed": False,
        "node": replace(settings, drain_s=0.05),
        "host": HostLimits(),
        "host_defaults": hosting.DEFAULTS,
        "sessions": SESSIONS,
    }
    tool = CountingTool("reviewed", reviewed=True)
    async with working(obedient(), store, tool, jobs=replace(LIMITS, retention_ms=600_000), **options) as desk:
        yield Counter(desk.host)


class Servers:
    """Where a deployment is kept, and what may befall its ledger there."""

    def __init__(
        self,
        open_store: Callable[[str], Awaitable[Store]],
        saved: Callable[[], Awaitable[Any]],
        restored: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.open_store = open_store
        self.saved = saved
        """What the ledger holds now."""
        self.restored = restored
        """Put the ledger back to what `saved` found, or to nothing, on a history that was not audited."""


def in_memory(memory: Memory) -> Servers:
    async def open_store(name: str) -> Store:
        return MemoryStore(memory, name)

    async def saved() -> Any:
        return dict(memory.ledger._pools)

    async def restored(pools: Any) -> None:
        memory.ledger._pools = dict(pools or {})
        memory.ledger.history += "'"

    return Servers(open_store, saved, restored)


def on_servers(
    opening: Callable[[str], Awaitable[Any]], changed: Callable[[], Awaitable[None]] | None = None
) -> Servers:
    """Those behind the stores that *opening* opens; *changed* gives the ledger another history, else the marks go."""
    every = [key for pool in holdings.POOLS for key in _keys_of(pool)]
    links: list[Link] = []

    async def open_store(name: str) -> Store:
        store = await opening(name)
        links.append(store._commands)
        made: Store = store
        return made

    async def names() -> Sequence[str]:
        there = await links[0].pipeline([("EXISTS", key) for key in every])
        return [key for key, exists in zip(every, there, strict=True) if exists]

    async def saved() -> Any:
        known = await names()
        return dict(zip(known, await links[0].pipeline([("DUMP", key) for key in known]), strict=True))

    async def restored(dumps: Any) -> None:
        marks = [] if changed else [("HDEL", keys.ledger("by", pool), "audited") for pool in holdings.POOLS]
        put = [("RESTORE", key, 0, dump) for key, dump in (dumps or {}).items()]
        step = [("DEL", *every), *put, *marks]
        replies = await links[0].pipeline([("DEL", every[0]), ("MULTI",), *step, ("EXEC",)])
        assert not [reply for reply in replies if isinstance(reply, ReplyError)]
        if changed is not None:
            await changed()

    return Servers(open_store, saved, restored)


def _keys_of(pool: str) -> Sequence[str]:
    return [
        keys.ledger("held", pool),
        keys.ledger("by", pool),
        keys.ledger("line", pool),
        keys.ledger("turn", pool),
        keys.ledger("asked", pool),
        keys.ledger("queue", pool),
        keys.ledger("qturn", pool),
    ]


@pytest.fixture(params=["memory", "valkey"])
async def servers(request: pytest.FixtureRequest) -> AsyncIterator[Servers]:
    if request.param == "memory":
        yield in_memory(new_memory())
        return
    endpoint = request.getfixturevalue("valkey")
    await emptied(endpoint)

    async with AsyncExitStack() as stack:
        yield on_servers(lambda name: stack.enter_async_context(open_redis_store(endpoint, DEPLOYMENT, name)))


async def counts(store: Store) -> Counts:
    return {pool: sorted(await store.held(pool)) for pool in holdings.POOLS}


async def counted(store: Store, expected: Counts) -> None:
    """Wait until the ledger counts what is expected."""

    async def same() -> bool:
        return await counts(store) == expected

    try:
        await until_so(same)
    except TimeoutError:
        assert await counts(store) == expected


async def everybody(store: Store) -> list[Met]:
    return [met async for some in store.roll() for met in some]


async def in_use(desk: Counter, store: Store, tasks: AsyncExitStack) -> None:
    """Use everything that the ledger counts, some of it until *tasks* are left."""
    host = desk.host
    protocol = hosting.Desk(host)
    session_id = await opened(host)
    await items_of(host, asking(idempotencyKey="kept"))
    await items_of(host, turn(session_id, idempotencyKey="turn"))
    await desk.ended(await desk.submit("plain"))
    await desk.interactive("asks", REVIEWED, input="reviewed")
    await desk.interactive("offers", APPLICATION, input="app")
    await protocol.create("run-1")
    await protocol.ended("run-1")
    for number, request in enumerate((asking(input="stall"), asking(input="stall", idempotencyKey="open"))):
        await tasks.enter_async_context(host.attend(request, subject=f"s{number}"))
    other = await opened(host)
    await tasks.enter_async_context(host.attend(turn(other, input="stall"), subject="ann"))
    last = await opened(host)
    await tasks.enter_async_context(host.attend(turn(last, input="stall", idempotencyKey="turning"), subject="ann"))

    async def all_in_use() -> bool:
        found = await counts(store)
        return all(found.values()) and len(found[POOL]) == 6

    await until_so(all_in_use)


async def over(desk: Counter, store: Store) -> None:
    """End everything that can be ended."""
    await desk.decide(await desk.waiting())
    for met in await everybody(store):
        if met.first.startswith(b'{"type":"ticket.'):
            ticket = codec.decode_ticket(met.first)
            assert isinstance(ticket, TicketOpened)
            named = (met.actor, ticket.run_id, ticket.call_id, Raw(b"1"))
            await desk.host.decisions.deliver(anybody(), *named)
    for run_id in list(desk.host.node.executing):
        await desk.host.cancel(run_id)
    for met in await everybody(store):
        if met.first.startswith(b'{"type":"session.') and not met.heads.ended:
            await delete(desk.host, met.actor)


@pytest.mark.parametrize("executing", [True, False], ids=["by-its-nodes", "by-another"])
async def test_a_ledger_that_was_emptied_counts_everything_again(servers: Servers, *, executing: bool) -> None:
    one, two = await servers.open_store("n1"), await servers.open_store("n2")
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(hosted(one, QUICK if executing else NEVER))
        await in_use(desk, one, stack)
        before = await counts(one)
        await servers.restored(None)
        if not executing:
            await stack.enter_async_context(hosted(two))
        await counted(one, before)
        assert await one.begin_audit(holdings.POOLS) == ""


async def test_what_a_ledger_forgot_was_given_back_is_given_back_again(servers: Servers) -> None:
    store = await servers.open_store("n1")
    async with hosted(store) as desk:
        async with AsyncExitStack() as stack:
            await in_use(desk, store, stack)
            saved, before = await servers.saved(), await counts(store)
            await over(desk, store)
            after = {pool: holders if pool in STAYING else [] for pool, holders in before.items()}
            await counted(store, after)
        await servers.restored(saved)
        await counted(store, after)


async def test_who_is_just_being_stored_keeps_its_place_and_who_never_comes_loses_it() -> None:
    memory = new_memory()
    store = MemoryStore(memory, "n1")
    async with hosted(store, replace(QUICK, audited_again_s=0.5)) as desk:
        await until_so(partial(_audited, store))
        coming, never = desk.host.node.around.fresh_id(), desk.host.node.around.fresh_id()
        for one in (coming, never):
            await store.begun(Claim(SESSIONS_POOL, one, "n1", "ann"))
        await store.begun(Claim(POOL, f"{never}:x", "n1", "ann"))
        memory.ledger.history += "'"
        await until(lambda: memory.ledger._auditor_until_ms > 0)
        assert sorted(await store.held(SESSIONS_POOL)) == sorted([coming, never])
        sessions = desk.host.sessions
        assert sessions is not None
        create = session.Create(
            subject="ann",
            provider="fake",
            model="m",
            account=ACCOUNT,
            mode="history",
            limits=session.Limits(retention_ms=600_000),
        )
        await sessions._around.sessions.tell(coming, create, command_id=coming)
        await until_so(partial(_audited, store))
        assert await store.held(SESSIONS_POOL) == [coming]
        assert not await store.held(POOL)


async def _audited(store: MemoryStore) -> bool:
    ledger = store._memory.ledger
    return all(ledger._pool(pool).audited == ledger.history for pool in holdings.POOLS)


async def test_one_node_audits_and_where_it_is_gone_another_does() -> None:
    memory = new_memory()
    one, two = MemoryStore(memory, "n1"), MemoryStore(memory, "n2")
    history = await one.begin_audit(holdings.POOLS)
    assert history
    assert await two.begin_audit(holdings.POOLS) == ""
    memory.clock = memory.ledger._clock = lambda: 10**15
    assert await two.begin_audit(holdings.POOLS) == history
    memory.ledger.history += "'"
    assert not await one.end_audit(holdings.POOLS, history)
    again = await one.begin_audit(holdings.POOLS)
    assert again not in {"", history}
    assert await one.end_audit(holdings.POOLS, again)
    assert await two.begin_audit(holdings.POOLS) == ""


class Altered:
    """A store whose roll is called otherwise."""

    def __init__(self, store: Store, roll: Callable[[], AsyncGenerator[Sequence[Met]]]) -> None:
        self._store = store
        self.roll = roll

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def nobody() -> AsyncGenerator[Sequence[Met]]:
    """A roll that misses everybody."""
    for some in list[Sequence[Met]]():
        yield some


@pytest.mark.parametrize("met", [True, False], ids=["met", "looked-up"])
async def test_who_cannot_be_read_keeps_what_it_holds_and_holds_up_no_other(*, met: bool) -> None:
    memory = new_memory()
    store = MemoryStore(memory, "n1")
    other = MemoryStore(memory, "n2")
    auditing: Any = other if met else Altered(other, nobody)
    async with hosted(store, NEVER) as desk, AsyncExitStack() as stack:
        await in_use(desk, store, stack)
        before = await counts(store)
        for one in await everybody(store):
            if not one.heads.ended and one.first.startswith(b'{"type":"run.accepted"'):
                del memory.actors[one.actor].log[2]
            elif one.first.startswith(b'{"type":"session.'):
                del memory.actors[one.actor].log[1]
        async with hosted(auditing):
            await until_so(partial(_audited, store))
        assert await counts(store) == before


async def test_a_roll_that_misses_somebody_costs_nobody_a_permit() -> None:
    memory = new_memory()
    store = MemoryStore(memory, "n1")
    missing: Any = Altered(MemoryStore(memory, "n2"), nobody)
    async with hosted(store, NEVER) as desk, AsyncExitStack() as stack:
        await in_use(desk, store, stack)
        before = await counts(store)
        async with hosted(missing):
            await until_so(partial(_audited, store))
        assert await counts(store) == before


async def test_a_slot_whose_holder_does_not_lead_to_its_run_is_found_through_the_run() -> None:
    memory = new_memory()
    store = MemoryStore(memory, "n1")
    async with hosted(store) as desk:
        run_id = await begun(
            desk.host, REVIEWED, input="reviewed"
        )  # under a holder of its own, as versions before this one chose it
        await until(lambda: bool(open_companion(memory, "approval")) and not desk.host.node.executing)
        (holder,) = await store.held(POOL)
        assert not holder.startswith(run_id)
        memory.ledger.history += "'"
        await until_so(partial(_audited, store))
        assert await store.held(POOL) == [holder]


async def test_an_audit_that_the_store_breaks_off_is_begun_anew() -> None:
    clock, failures = Clock(), [Unavailable("a pause"), ValueError("a surprise")]
    memory = new_memory(clock)

    async def faltering() -> AsyncGenerator[Sequence[Met]]:
        if failures:
            clock.ahead_ms += AUDIT_MS  # so long nobody else takes it on
            raise failures.pop(0)
        async for some in MemoryStore(memory, "n2").roll():
            yield some

    store: Any = Altered(MemoryStore(memory, "n1"), faltering)
    async with hosted(store):
        await until_so(partial(_audited, store))
    assert not failures


def test_what_was_erased_still_holds_the_place_of_its_key() -> None:
    def left(event: RunErased) -> list[tuple[str, str]]:
        met = Met("a", Heads(log=1, ended=True, erased=True), codec.encode(event))
        return [(claim.pool, claim.holder) for claim in holdings.places(met)]

    assert left(RunErased(1, "ann", "job", "f")) == [(JOBS_POOL, "a")]
    assert left(RunErased(1, "ann", "foreground", "f")) == [(KEYS_POOL, "a")]
    assert left(RunErased(1, "ann", "host", "f")) == []
    assert holdings.places(Met("a", Heads(log=1, ended=True, erased=True), b"")) == []
