"""The Redis code beside the reference: whatever is asked, in whatever order, both answer the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import (
    Append,
    Conflict,
    Deployment,
    Due,
    Ended,
    Event,
    Fenced,
    Heads,
    HistoryLost,
    Listed,
    Part,
    Placed,
    Reason,
    Recorded,
    Snapshot,
    Store,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

DEPLOYMENT = Deployment(id="d", partitions=1, id_key=b"key")
ACTORS = ["00000000-a", "00000000-b"]
NODES: list[Literal["one", "two"]] = ["one", "two"]
LONG_MS, FAR_MS, TODAY_MS = 3_600_000, 9_999_999_999_999, 1_000_000_000_000


class Asked(NamedTuple):
    """A part in terms of the heads as they are: *off* by so much, or not named."""

    actor: str
    log: int | None
    feed: int | None
    epoch: int | None
    events: int
    items: int
    owner: str | None
    lease_ms: int
    ended: bool
    erase: bool
    trim: bool


class Ask(NamedTuple):
    what: Literal["append", "again", "renew", "sweep", "save", "look", "page", "settle"]
    node: str
    parts: list[Asked]
    number: int
    reason: Reason
    at_ms: int | None
    window: tuple[int, int]


RARELY = st.sampled_from([False] * 7 + [True])
OFF = st.sampled_from([None, 0, 0, 0, 0, 0, -1, 1])
COUNT = st.sampled_from([0, 1, 1, 2])
PARTS = st.builds(
    Asked,
    actor=st.sampled_from(ACTORS),
    log=OFF,
    feed=OFF,
    epoch=OFF,
    events=COUNT,
    items=COUNT,
    owner=st.sampled_from([None, None, None, "", "one", "two"]),
    lease_ms=st.sampled_from([0, LONG_MS]),
    ended=st.sampled_from([False, False, True]),
    erase=RARELY,
    trim=RARELY,
)
ASKS = st.builds(
    Ask,
    what=st.sampled_from(["append"] * 6 + ["again"] * 2 + ["renew", "sweep", "save", "look", "page", "settle"]),
    node=st.sampled_from(NODES),
    parts=st.lists(PARTS, min_size=1, max_size=2, unique_by=lambda part: part.actor),
    number=st.integers(0, 3),
    reason=st.sampled_from(["work", "idle"]),
    at_ms=st.sampled_from([None, 1, FAR_MS]),
    window=st.sampled_from([(0, 0), (0, 0), (0, 0), (1, FAR_MS), (FAR_MS, 0), (0, 1)]),
)


def part_of(asked: Asked, heads: Heads) -> Part:
    """The part that *asked* means over *heads*; half of what is asked of an ended actor is what it may still take."""
    erase = asked.erase or (heads.erased and asked.events == 0)
    trim = not erase and asked.events != 1 and (asked.trim or heads.ended)
    none = erase or trim
    return Part(
        actor=asked.actor,
        log=None if asked.log is None else max(0, heads.log + asked.log),
        feed=None if asked.feed is None or trim else max(0, heads.feed + asked.feed),
        epoch=None if asked.epoch is None or trim else max(0, heads.epoch + asked.epoch),
        events=() if none else tuple(Event(b"e%d" % n, min(n, asked.items)) for n in range(asked.events)),
        items=() if none else tuple(b"item%d" % n for n in range(asked.items)),
        owner=None if none else asked.owner,
        lease_ms=0 if trim else asked.lease_ms,
        ended=asked.ended and not trim,
        erase=erase,
        epitaph=b"%d:epitaph" % asked.items if erase and asked.items else b"",
        trim=trim,
    )


async def append_of(ask: Ask, command: str, reference: Store) -> Append:
    parts = tuple([part_of(asked, (await reference.look(asked.actor)).heads) for asked in ask.parts])
    due = (Due(parts[0].actor, ask.reason, ask.at_ms),) if ask.number > 0 else ()
    listed = (Listed("runs:ann", parts[0].actor, ask.at_ms),) if ask.number > 1 else ()
    outbox = (b"out",) if ask.number > 2 else ()
    before_ms, after_ms = ask.window
    return Append(
        command=command,
        parts=parts,
        due=due,
        listed=listed,
        outbox=outbox,
        not_before_ms=before_ms,
        not_after_ms=after_ms,
    )


def timeless(answer: Any) -> Any:
    """*answer* without what depends on the moment."""
    match answer:
        case Heads():
            return replace(answer, last_ms=min(answer.last_ms, 1), lease_ms=min(answer.lease_ms, 1))
        case Recorded(parts, _, repeated):
            return "recorded", repeated, [(timeless(part.heads), part.first) for part in parts]
        case Placed():
            return timeless(answer.heads), answer.first
        case Conflict(heads) | Fenced(heads) | Ended(heads):
            return type(answer), [timeless(each) for each in heads]
        case _:
            return type(answer), getattr(answer, "actor", "")


async def told(store: Store, ask: Ask, append: Append) -> Any:
    """What *store* answers to *ask*, without what depends on the moment."""
    actor = ask.parts[0].actor
    try:
        match ask.what:
            case "append" | "again":
                return timeless(await store.append(append))
            case "renew":
                renewed = await store.renew(0, dict.fromkeys(ACTORS, ask.number), LONG_MS)
                return {actor: timeless(heads) if heads else None for actor, heads in renewed.items()}
            case "sweep":
                ripe = (await store.sweep(0)).ripe
                return sorted((actor, reason, min(at_ms, TODAY_MS)) for actor, reason, at_ms in ripe)
            case "save":
                return await store.save(actor, Snapshot(ask.number, b"fold"))
            case "look":
                heads, entries, snapshot, _ = await store.look(actor, ask.number, snapshot=ask.at_ms is None)
                return timeless(heads), list(entries), snapshot
            case "page":
                heads, items = await store.page(actor, ask.number, 10)
                return timeless(heads), list(items)
            case "settle":
                return await store.settle(actor, ask.reason, ask.at_ms)
    except (ValueError, HistoryLost) as error:
        return type(error)


async def compare(references: dict[str, Store], stores: dict[str, Store], asks: Sequence[Ask]) -> None:
    appends: list[Append] = []
    ask, append = asks[0], Append(command="none", parts=())
    for n, ask in enumerate(asks):
        if ask.what == "again" and appends:
            append = appends[ask.number % len(appends)]
        else:
            append = await append_of(ask, f"c{n}", references["one"])
            appends.append(append)
        expected = await told(references[ask.node], ask, append)
        assert await told(stores[ask.node], ask, append) == expected
    for actor in ACTORS:
        look = ask._replace(what="look", number=0, parts=[asks[0].parts[0]._replace(actor=actor)])
        finals = (look, look._replace(at_ms=None), look._replace(what="page"), look._replace(what="sweep"))
        for final in finals:
            assert await told(stores["one"], final, append) == await told(references["one"], final, append)


def reference() -> dict[str, Store]:
    memory = Memory(DEPLOYMENT, lambda: time.time_ns() // 1_000_000)
    return {node: MemoryStore(memory, node) for node in NODES}


QUICKLY = settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@QUICKLY
@given(st.lists(ASKS, min_size=1, max_size=14))
async def test_the_redis_code_on_a_fake_answers_as_the_reference(asks: list[Ask]) -> None:
    server = fake_server()
    async with (
        open_fake_store(server, DEPLOYMENT, "one") as one,
        open_fake_store(server, DEPLOYMENT, "two") as two,
    ):
        await compare(reference(), {"one": one, "two": two}, asks)


@QUICKLY
@given(st.lists(ASKS, min_size=1, max_size=14))
async def test_the_redis_code_on_a_server_answers_as_the_reference(valkey: Endpoint, asks: list[Ask]) -> None:
    async with (
        open_redis_store(valkey, DEPLOYMENT, "one") as one,
        open_redis_store(valkey, DEPLOYMENT, "two") as two,
    ):
        await one._commands.call("FLUSHALL")
        await compare(reference(), {"one": one, "two": two}, asks)
