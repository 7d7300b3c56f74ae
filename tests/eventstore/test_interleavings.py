"""Two writers on the reference store, in every order of look, append, renew and claim, with every fault of a network.

A history has six calls. Each reply may be lost, and then its writer sends the same call again; each call may be carried
out late, and once more at every later point. Histories that meet in the same world are followed once, from where the most
calls are left; times count from now, so that a world looks the same whenever it is met.

And what takes away what was written: an end, a trim, erasures and snapshots, however late and often, in every order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from eventstore.memory import Kept, Memory, MemoryStore
from eventstore.store import (
    Append,
    Conflict,
    Deployment,
    Ended,
    Entry,
    Event,
    Fenced,
    Heads,
    Outcome,
    Part,
    Recorded,
    Snapshot,
)

ACTOR = "00000000-0000-8000-8000-000000000001"
DEPLOYMENT = Deployment(id="d", partitions=1, id_key=b"key")
DEPTH, LEASE_MS = 6, 2


class Renewal(NamedTuple):
    node: str
    epoch: int


class Writer(NamedTuple):
    """What a node knows: how far it has read, the epoch it was told is its own, and what it has no answer to."""

    name: str
    log: int = 0
    seen_epoch: int = 0
    epoch: int | None = None
    unanswered: Append | None = None
    sent: int = 0
    """Facts it has recorded. One that was refused is decided again under its id. A claim is not: one that met a running
    lease may come once more when that has lapsed, so its id says what it saw."""


class Stored(NamedTuple):
    """All that the store keeps of the actor."""

    heads: Heads
    log: tuple[Entry, ...]
    feed: tuple[bytes, ...]
    firsts: tuple[tuple[int, str], ...]
    feed_firsts: tuple[tuple[int, str], ...]
    mark: str


class World(NamedTuple):
    stored: Stored
    writers: tuple[Writer, Writer]
    sent: frozenset[Append | Renewal]
    """What may yet be carried out, late or again."""


def start() -> World:
    empty = Stored(Heads(), (), (), (), (), "")
    return World(empty, (Writer("a"), Writer("b")), frozenset())


@cache
def run(stored: Stored, call: Append | Renewal) -> tuple[Stored, Outcome | Heads | None]:
    """What is stored after *call*, and the answer to it."""
    memory = Memory(DEPLOYMENT, lambda: 0)
    kept = memory.actors[ACTOR] = Kept()
    kept.heads, kept.mark = stored.heads, stored.mark
    kept.log = {entry.version: entry for entry in stored.log}
    kept.feed = dict(enumerate(stored.feed, 1))
    kept.log_commands, kept.feed_commands = dict(stored.firsts), dict(stored.feed_firsts)
    answer: Outcome | Heads | None
    if isinstance(call, Renewal):
        answer = memory.renew(0, call.node, {ACTOR: call.epoch}, LEASE_MS)[ACTOR]
    else:
        answer = memory.append(call, 0)
    firsts = tuple(kept.log_commands.items()), tuple(kept.feed_commands.items())
    return Stored(kept.heads, tuple(kept.log.values()), tuple(kept.feed.values()), *firsts, kept.mark), answer


def appending(writer: Writer) -> Append:
    """A fact and an item: under the writer's epoch where it has one, else as a command from elsewhere."""
    by = "-" if writer.epoch is None else str(writer.epoch)
    event = Event(f"{writer.name}:{by}".encode(), 1)
    part = Part(actor=ACTOR, log=writer.log, events=(event,), items=(b"item",), epoch=writer.epoch)
    return Append(command=f"{writer.name}{writer.sent} fact", parts=(part,))


def claiming(writer: Writer) -> Append:
    """A claim: by an event that others see, or without one, and then under the epoch that was seen."""
    part = Part(actor=ACTOR, log=writer.log, owner=writer.name, lease_ms=LEASE_MS)
    with_event = replace(part, events=(Event(f"{writer.name}:claim".encode()),))
    silent = replace(part, epoch=writer.seen_epoch)
    command = f"{writer.name} claims {writer.log} {writer.seen_epoch}"
    return Append(command=command, parts=(with_event if writer.name == "a" else silent,))


def told(writer: Writer, call: Append | Renewal, answer: Outcome | Heads | None) -> Writer:
    """The writer once it heard *answer* to *call*."""
    if isinstance(call, Renewal):
        return writer if answer else writer._replace(epoch=None)
    assert isinstance(answer, Recorded | Conflict | Fenced)
    writer = writer._replace(unanswered=None)
    if not isinstance(answer, Recorded):
        heads = answer.heads[0]
        mine = writer.epoch if heads.epoch == writer.epoch else None
        return writer._replace(log=heads.log, seen_epoch=heads.epoch, epoch=mine)
    heads = answer.parts[0].heads
    if not call.parts[0].owner:
        mine = writer.epoch if heads.epoch == writer.epoch else None
    elif heads.owner == writer.name and not answer.repeated:
        mine = heads.epoch
    else:  # of a repeat the heads are those of now: the epoch in them may be a later claim's
        mine = None
    sent = writer.sent + (not call.parts[0].owner)
    return writer._replace(log=heads.log, seen_epoch=heads.epoch, epoch=mine, sent=sent)


def nexts(world: World) -> Iterator[World]:
    """Every world one call further."""
    for number, writer in enumerate(world.writers):
        heads = world.stored.heads
        yield moved(world, number, writer._replace(log=heads.log, seen_epoch=heads.epoch), world.stored)
        calls: list[Append | Renewal] = [Renewal(writer.name, writer.epoch)] if writer.epoch is not None else []
        calls += [writer.unanswered] if writer.unanswered is not None else [appending(writer), claiming(writer)]
        for call in calls:
            yield from called(world, number, call)


def called(world: World, number: int, call: Append | Renewal) -> Iterator[World]:
    """The worlds after *call*, by what becomes of it."""
    writer = world.writers[number]
    waiting = writer if isinstance(call, Renewal) else writer._replace(unanswered=call)
    stored, answer = run(world.stored, call)
    if isinstance(call, Append):
        done = call.command in {stored.mark, *(entry.command for entry in stored.log)}
        assert isinstance(answer, Recorded) == done, "acknowledged and not there, or there and not acknowledged"
    world = world._replace(sent=world.sent | {call})
    yield moved(world, number, told(writer, call, answer), stored)
    yield moved(world, number, waiting, stored)  # carried out, but the reply is lost
    yield moved(world, number, waiting, world.stored)  # not carried out yet


def moved(world: World, number: int, writer: Writer, stored: Stored) -> World:
    """The world a moment later, with what *writer* knows now."""
    writers = (writer, world.writers[1]) if number == 0 else (world.writers[0], writer)
    heads = replace(stored.heads, lease_ms=max(0, stored.heads.lease_ms - 1), last_ms=0)
    stored = stored._replace(heads=heads)
    return World(stored, writers, frozenset(call for call in world.sent if not spent(stored, call)))


def spent(stored: Stored, call: Append | Renewal) -> bool:
    """Whether *call* can never again change anything, however late it comes."""
    now = stored.heads
    over = call.epoch < now.epoch if isinstance(call, Renewal) else (call.parts[0].log or 0) < now.log
    assert not over or run(stored, call)[0] == stored, "a call of the past changed the present"
    return over


def again(world: World) -> Iterator[World]:
    """The worlds in which something that was sent is carried out late, or once more; its reply goes nowhere."""
    for call in world.sent:
        stored, _ = run(world.stored, call)
        if stored != world.stored:
            yield world._replace(stored=stored)


def check(before: World, after: World) -> None:
    """Fail unless *after* may follow *before*."""
    check_stored(before.stored, after.stored)
    mine = [writer.epoch for writer in after.writers if writer.epoch is not None]
    assert len(set(mine)) == len(mine), "two writers believe in one epoch"


@cache
def check_stored(before: Stored, stored: Stored) -> None:
    heads = stored.heads
    assert stored.log[: len(before.log)] == before.log
    assert [entry.version for entry in stored.log] == list(range(1, heads.log + 1))
    assert len(stored.feed) == heads.feed
    commands = [entry.command for entry in stored.log]
    assert len(set(commands)) == len(commands), "a command was carried out twice"
    assert heads.epoch >= before.heads.epoch
    assert heads.owner == before.heads.owner or heads.epoch > before.heads.epoch
    by = [entry.data.decode().split(":") for entry in stored.log]
    assert all(epoch in {"-", "claim", str(before.heads.epoch)} for _, epoch in by[len(before.log) :]), "not its epoch"
    epochs = [(int(epoch), name) for name, epoch in by if epoch.isdigit()]
    assert epochs == sorted(epochs), "an old epoch wrote after a new one"
    assert len(dict(epochs)) == len(set(epochs)), "two writers wrote under one epoch"


def closed(world: World, known: set[World]) -> set[World]:
    """*world* and every world that late and repeated calls make of it, but for those *known*."""
    found, todo = {world}, [world]
    while todo:
        for after in again(current := todo.pop()):
            check(current, after)
            if after not in found and after not in known:
                found.add(after)
                todo.append(after)
    return found


def explored(depth: int) -> int:
    """Follow every history of *depth* calls, checking each step; return how many worlds there are."""
    layer = {start()}
    known = set(layer)
    for _ in range(depth):
        following: set[World] = set()
        for world in layer:
            for after in nexts(world):
                check(world, after)
                if after not in known:
                    new = closed(after, known)
                    known |= new
                    following |= new
        layer = following
    return len(known)


def test_no_order_of_calls_and_no_fault_of_the_network_breaks_a_history() -> None:
    assert explored(DEPTH) > 0


BEGIN = Part(actor=ACTOR, log=0, events=(Event(b"begin", 1),), items=(b"1",))
LAST: dict[str, Part | Snapshot] = {
    "end": Part(actor=ACTOR, log=1, events=(Event(b"end", 1),), items=(b"2",), ended=True),
    "trim": Part(actor=ACTOR, log=2, trim=True),
    "trim early": Part(actor=ACTOR, log=1, trim=True),
    "erase": Part(actor=ACTOR, log=2, erase=True),
    "bury": Part(actor=ACTOR, log=2, erase=True, epitaph=b"first"),
    "bury otherwise": Part(actor=ACTOR, log=2, erase=True, epitaph=b"second"),
    "save": Snapshot(2, b"fold"),
}


class Left(NamedTuple):
    """What a look and a page show of the actor."""

    heads: Heads
    versions: int
    snapshot: Snapshot | None
    items: int


async def left(store: MemoryStore) -> Left:
    heads, entries, snapshot, _ = await store.look(ACTOR, snapshot=True)
    return Left(heads, len(entries), snapshot, len((await store.page(ACTOR, 0)).items))


async def last(store: MemoryStore, name: str) -> Outcome | None:
    call = LAST[name]
    if isinstance(call, Snapshot):
        await store.save(ACTOR, call)
        return None
    return await store.append(Append(command=name, parts=(call,)))


def check_left(before: Left, after: Left, *, again: bool, answer: Outcome | None) -> None:
    """Fail unless *after* may follow *before* a call that was answered with *answer*, *again* if carried out before."""
    heads = after.heads
    assert after.items == (heads.feed if heads.oldest == 1 else 0)
    assert heads.oldest in {1, heads.feed + 1}
    assert heads.ended or heads.oldest == 1, "a living feed was trimmed"
    assert before.heads.oldest <= heads.oldest, "what was trimmed came back"
    assert before.heads.erased <= heads.erased
    if not heads.erased:
        assert after.versions == heads.log - (after.snapshot.version if after.snapshot else 0)
    else:
        assert (after.versions, after.items) == (0, 0)
        assert after.snapshot is None or after.snapshot.data != b"fold", "a snapshot in the place of an epitaph"
        assert not before.heads.erased or before.snapshot in {None, after.snapshot}, "an epitaph was overwritten"
    if again or not isinstance(answer, Recorded | None):
        assert after == before, "what was done before, or refused, changed something"
        assert not again or isinstance(answer, Recorded | Ended | None)


async def replayed(names: Sequence[str]) -> tuple[MemoryStore, Memory, frozenset[str]]:
    """Begin, and carry out the calls of *names*; return which of them were recorded."""
    memory = Memory(DEPLOYMENT, lambda: 0)
    store = MemoryStore(memory, "a")
    await store.append(Append(command="begin", parts=(BEGIN,)))
    return store, memory, frozenset([name for name in names if isinstance(await last(store, name), Recorded)])


@pytest.mark.anyio
async def test_no_order_of_trims_erasures_and_late_snapshots_brings_back_or_overwrites_anything() -> None:
    known, todo = set[tuple[Left, str, frozenset[str]]](), list[tuple[str, ...]]([()])
    while todo:
        names = todo.pop()
        for name in LAST:
            store, memory, done = await replayed(names)
            before = await left(store)
            answer = await last(store, name)
            after = await left(store)
            check_left(before, after, again=name in done, answer=answer)
            if isinstance(answer, Recorded):
                done |= {name}
            if done & {"bury", "bury otherwise"}:
                assert after.snapshot is not None
                assert after.snapshot.version == after.heads.log
            world = after, memory.actors[ACTOR].mark, done
            if world not in known:
                known.add(world)
                todo.append((*names, name))
    assert any(done >= LAST.keys() - {"save", "trim early"} for _, _, done in known)
