"""What every store must do; each test runs on all of them."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING
from unittest.mock import ANY

import anyio
import pytest
from msgspec.structs import replace

from eventstore import keys
from eventstore.reader import CursorTooOld, followed
from eventstore.store import (
    Append,
    Caps,
    Claim,
    Conflict,
    Due,
    Ended,
    Event,
    Fenced,
    Heads,
    HistoryLost,
    Item,
    Listed,
    Lost,
    OutsideWindow,
    Part,
    Permit,
    Recorded,
    Ripe,
    Snapshot,
    Store,
    Swept,
)
from tests.eventstore.conftest import DEPLOYMENT, RedisHouse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.eventstore.conftest import House

pytestmark = pytest.mark.anyio

RUN = "00000004-0000-8000-8000-000000000001"
APPROVAL = "00000004-0000-8000-8000-000000000002"
ELSEWHERE = "00000005-0000-8000-8000-000000000003"
HOUR_MS = 3_600_000
LONG_AGO_MS, FAR_MS = 1, 9_999_999_999_999


def begin(command: str = "begin", owner: str | None = "one", lease_ms: int = HOUR_MS, actor: str = RUN) -> Append:
    """A run accepted, started and claimed: two events, one item each."""
    events = (Event(b"accepted", 1), Event(b"started", 2))
    part = Part(actor=actor, log=0, events=events, feed=0, items=(b"a1", b"a2"), owner=owner, lease_ms=lease_ms)
    return Append(command=command, parts=(part,))


def one(command: str, part: Part) -> Append:
    return Append(command=command, parts=(part,))


def delta(command: str, feed: int, *items: bytes, epoch: int = 1) -> Append:
    return one(command, Part(actor=RUN, feed=feed, items=items, epoch=epoch))


def fact(command: str, log: int, data: bytes = b"fact", **more: object) -> Append:
    return one(command, replace(Part(actor=RUN, log=log, events=(Event(data),)), **more))


END = Part(actor=RUN, log=2, events=(Event(b"ended", 1),), items=(b"bye",), ended=True)
CLAIM = Part(actor=RUN, log=2, events=(Event(b"taken"),), owner="two", lease_ms=HOUR_MS)
ERASE = Part(actor=RUN, log=3, erase=True)
BURY = replace(ERASE, epitaph=b"9:here lies\r\n\x00")
TRIM = Part(actor=RUN, log=3, trim=True)


@pytest.fixture
async def graves(house: House) -> AsyncIterator[None]:
    """Take off, at the end, the one thing that an erasure leaves beside heads."""
    yield
    if isinstance(house, RedisHouse):
        await house.call("DEL", keys.snapshot(keys.tag_of(RUN, DEPLOYMENT.partitions), RUN))


async def passed(store: Store, at_ms: int) -> None:
    """Wait until Redis time is past *at_ms*."""
    deadline_s = time.monotonic() + 10
    while (await store.look(RUN)).now_ms <= at_ms:
        assert time.monotonic() < deadline_s


async def recorded(store: Store, append: Append) -> Recorded:
    outcome = await store.append(append)
    assert isinstance(outcome, Recorded)
    return outcome


async def feed_of(store: Store, actor: str = RUN) -> Sequence[Item]:
    return (await store.page(actor, 0)).items


async def versions(store: Store, actor: str = RUN) -> list[tuple[int, int, str, bytes]]:
    return [tuple(entry) for entry in (await store.look(actor)).entries]  # type: ignore[misc]


# what is written


async def test_an_actor_nobody_wrote_has_empty_heads(store: Store) -> None:
    look = await store.look(RUN)
    assert (look.heads, list(look.entries), look.snapshot) == (Heads(), [], None)
    assert list((await store.page(RUN, 0)).items) == []


async def test_an_append_is_read_back_with_its_command_and_the_feed_head_after_each_event(store: Store) -> None:
    outcome = await recorded(store, begin())
    look = await store.look(RUN)
    assert outcome.parts[0].first == 1
    assert outcome.parts[0].heads == look.heads
    assert not outcome.repeated
    assert await versions(store) == [(1, 1, "begin", b"accepted"), (2, 2, "begin", b"started")]
    assert list(await feed_of(store)) == [Item(1, b"a1"), Item(2, b"a2")]
    assert look.heads.log == look.heads.feed == 2
    assert (look.heads.feed_bytes, look.heads.oldest, look.heads.epoch, look.heads.owner) == (4, 1, 1, "one")
    assert look.heads.last_ms == outcome.now_ms
    assert look.heads.lease_ms == outcome.now_ms + HOUR_MS


async def test_payloads_are_opaque_bytes(store: Store) -> None:
    odd = bytes(range(256)) + b"\r\n|:" + b"0" * 70_000
    events, items = (Event(odd, 1), Event(b"", 2)), (odd, b"")
    await recorded(store, one("c", Part(actor=RUN, log=0, events=events, feed=0, items=items)))
    assert [data for *_, data in await versions(store)] == [odd, b""]
    assert [item.data for item in await feed_of(store)] == [odd, b""]


async def test_a_delta_names_the_feed_alone_and_leaves_log_and_last_time(store: Store) -> None:
    before = (await recorded(store, begin())).parts[0].heads
    after = (await recorded(store, delta("d", 2, b"xyz", b"z"))).parts[0]
    assert after.first == 3
    assert after.heads == replace(before, feed=4, feed_bytes=8)


async def test_items_without_a_named_head_take_the_next_numbers(store: Store) -> None:
    await recorded(store, begin())
    await recorded(store, delta("d", 2, b"d3", b"d4"))
    part = Part(actor=RUN, log=2, events=(Event(b"progress", 1),), items=(b"p5",))
    placed = (await recorded(store, one("p", part))).parts[0]
    assert (placed.first, placed.heads.feed) == (5, 5)
    assert (await versions(store))[-1] == (3, 5, "p", b"progress")


async def test_deltas_taken_along_by_a_fact_count_before_it(store: Store) -> None:
    await recorded(store, begin())
    part = Part(actor=RUN, log=2, events=(Event(b"step", 3),), feed=2, items=(b"d", b"d", b"step"), epoch=1)
    assert (await recorded(store, one("s", part))).parts[0].first == 3
    assert (await versions(store))[-1][:2] == (3, 5)


async def test_many_events_in_one_append(store: Store) -> None:
    events = tuple(Event(b"%d" % n, n) for n in range(1, 1201))
    items = tuple(b"i%d" % n for n in range(1, 1201))
    await recorded(store, one("many", Part(actor=RUN, log=0, events=events, feed=0, items=items)))
    found = await versions(store)
    assert [version for version, *_ in found] == list(range(1, 1201))
    assert {command for _, _, command, _ in found} == {"many"}
    assert (await store.look(RUN, 700)).entries[0][:3] == (701, 701, "many")
    page = await store.page(RUN, 100)
    assert [item.number for item in page.items] == list(range(101, 1201))


async def test_the_command_is_known_for_a_tail_that_begins_inside_an_append(store: Store) -> None:
    await recorded(store, begin())
    await recorded(store, fact("next", 2))
    assert [entry.command for entry in (await store.look(RUN, 1)).entries] == ["begin", "next"]
    assert [entry.command for entry in (await store.look(RUN, 2)).entries] == ["next"]
    assert list((await store.look(RUN, 3)).entries) == []
    assert list((await store.look(RUN, 9)).entries) == []


# who was first


async def test_a_log_that_moved_is_a_conflict_and_nothing_is_written(store: Store) -> None:
    heads = (await recorded(store, begin())).parts[0].heads
    for log in (0, 1, 3):
        outcome = await store.append(fact("late", log))
        assert isinstance(outcome, Conflict)
        assert outcome.heads == (heads,)
    assert (await store.look(RUN)).heads == heads


async def test_a_feed_that_moved_is_a_conflict(store: Store) -> None:
    await recorded(store, begin())
    for feed in (0, 1, 3):
        assert isinstance(await store.append(delta("late", feed, b"x")), Conflict)
    assert len(await feed_of(store)) == 2


async def test_only_the_current_epoch_may_write(store: Store) -> None:
    await recorded(store, begin())
    for epoch in (0, 2):
        outcome = await store.append(delta("old", 2, b"x", epoch=epoch))
        assert isinstance(outcome, Fenced)
        assert outcome.heads[0].epoch == 1
    await recorded(store, delta("own", 2, b"x"))


async def test_an_actor_that_ended_takes_nothing_but_a_trim_and_an_erasure(store: Store) -> None:
    await recorded(store, begin())
    heads = (await recorded(store, one("end", END))).parts[0].heads
    assert (heads.ended, heads.epoch, heads.owner, heads.lease_ms) == (True, 2, "", 0)
    assert isinstance(await store.append(fact("more", 3)), Ended)
    assert isinstance(await store.append(delta("more", 3, b"x")), Fenced)
    assert isinstance(await store.append(delta("more", 3, b"x", epoch=2)), Ended)


async def test_checks_come_in_their_order(store: Store) -> None:
    await recorded(store, begin())
    stale = replace(CLAIM, log=0, epoch=7)
    assert isinstance(await store.append(Append(command="x", parts=(stale,), not_after_ms=LONG_AGO_MS)), Fenced)
    assert isinstance(
        await store.append(Append(command="x", parts=(replace(stale, epoch=1),), not_after_ms=LONG_AGO_MS)), Conflict
    )
    claim = Append(command="x", parts=(CLAIM,), not_after_ms=LONG_AGO_MS)
    assert isinstance(await store.append(claim), Fenced)
    free = Append(command="x", parts=(replace(CLAIM, owner=None),), not_after_ms=LONG_AGO_MS)
    assert isinstance(await store.append(free), OutsideWindow)


@pytest.mark.parametrize(("from_ms", "to_ms", "written"), [
    (FAR_MS, 0, False),
    (LONG_AGO_MS, 0, True),
    (0, LONG_AGO_MS, False),
    (0, FAR_MS, True),
    (LONG_AGO_MS, FAR_MS, True),
])  # fmt: skip
async def test_an_append_counts_only_within_its_window(
    store: Store, from_ms: int, to_ms: int, *, written: bool
) -> None:
    outcome = await store.append(
        Append(command="begin", parts=begin().parts, not_before_ms=from_ms, not_after_ms=to_ms)
    )
    assert isinstance(outcome, Recorded if written else OutsideWindow)
    assert len(await versions(store)) == (2 if written else 0)


async def test_parts_are_written_all_or_none(store: Store) -> None:
    await recorded(store, begin())
    approval = Part(actor=APPROVAL, log=0, events=(Event(b"requested"),))
    outcome = await store.append(Append(command="bad", parts=(approval, Part(actor=RUN, log=1, events=(Event(b"x"),)))))
    assert isinstance(outcome, Conflict)
    assert [heads.log for heads in outcome.heads] == [0, 2]
    assert (await store.look(APPROVAL)).heads == Heads()
    good = Append(command="good", parts=(approval, Part(actor=RUN, log=2, events=(Event(b"waits", 1),), items=(b"i",))))
    placed = (await recorded(store, good)).parts
    assert [part.first for part in placed] == [0, 3]
    assert [part.heads.log for part in placed] == [1, 3]
    assert (await versions(store, APPROVAL)) == [(1, 0, "good", b"requested")]
    again = await recorded(store, good)
    assert again.repeated
    assert [part.first for part in again.parts] == [0, 3]


async def test_a_head_may_be_named_without_writing(store: Store) -> None:
    await recorded(store, begin())
    approval = Part(actor=APPROVAL, log=0, events=(Event(b"x"),))
    assert isinstance(await store.append(Append(command="a", parts=(approval, Part(actor=RUN, log=1)))), Conflict)
    await recorded(store, Append(command="a", parts=(approval, Part(actor=RUN, log=2, feed=2))))


# the same command again


@pytest.mark.parametrize("append", [
    fact("again", 2),
    delta("again", 2, b"x", b"y"),
    one("again", Part(actor=RUN, log=2, events=(Event(b"x", 1), Event(b"y", 3)), items=(b"1", b"2", b"3"))),
    one("again", END),
    one("again", replace(END, epoch=1)),
    one("again", Part(actor=RUN, log=2, epoch=1, owner="")),
    one("again", Part(actor=RUN, log=2, ended=True)),
    one("again", Part(actor=RUN, log=2, ended=True, erase=True)),
    one("again", replace(BURY, log=2)),
])  # fmt: skip
@pytest.mark.usefixtures("graves")
async def test_a_lost_reply_is_answered_again_and_written_once(store: Store, append: Append) -> None:
    await recorded(store, begin())
    first = await recorded(store, append)
    second = await recorded(store, append)
    assert second.repeated
    assert second.parts == first.parts
    assert (await store.look(RUN)).heads == first.parts[0].heads


async def test_the_first_append_of_all_may_be_repeated(store: Store) -> None:
    first = await recorded(store, begin())
    assert (await recorded(store, begin())).parts == first.parts


async def test_a_repeat_is_known_after_others_wrote(store: Store) -> None:
    mine = one("mine", Part(actor=RUN, log=2, events=(Event(b"m", 1),), items=(b"m1", b"m2")))
    await recorded(store, begin())
    first = await recorded(store, mine)
    await recorded(store, delta("d", 4, b"d"))
    await recorded(store, one("end", replace(END, log=3)))
    again = await recorded(store, mine)
    assert again.repeated
    assert again.parts[0].first == first.parts[0].first == 3
    assert (again.parts[0].heads.log, again.parts[0].heads.feed, again.parts[0].heads.ended) == (4, 6, True)


async def test_a_delta_is_known_after_a_foreign_item_and_a_new_owner(store: Store) -> None:
    await recorded(store, begin(lease_ms=0))
    await recorded(store, delta("mine", 2, b"d"))
    await recorded(store, one("theirs", replace(CLAIM, events=(Event(b"t", 1),), items=(b"t",))))
    again = await recorded(store, delta("mine", 2, b"d"))
    assert (again.repeated, again.parts[0].first, again.parts[0].heads.owner) == (True, 3, "two")


async def test_another_command_at_the_same_head_is_no_repeat(store: Store) -> None:
    await recorded(store, begin())
    await recorded(store, fact("mine", 2))
    assert isinstance(await store.append(fact("theirs", 2)), Conflict)


async def test_a_repeat_is_known_only_by_the_first_entry_of_its_append(store: Store) -> None:
    await recorded(store, begin())
    assert isinstance(await store.append(fact("begin", 1)), Conflict)


async def test_a_repeat_counts_even_outside_the_window(store: Store) -> None:
    await recorded(store, begin())
    late = Append(command="begin", parts=begin().parts, not_after_ms=LONG_AGO_MS)
    assert (await recorded(store, late)).repeated


async def test_a_claim_without_event_that_comes_late_is_fenced(store: Store) -> None:
    await recorded(store, begin(lease_ms=0))
    claim = one("claim", Part(actor=RUN, log=2, epoch=1, owner="two", lease_ms=HOUR_MS))
    await recorded(store, claim)
    assert (await recorded(store, claim)).repeated
    await recorded(store, one("back", Part(actor=RUN, log=2, epoch=2, owner="")))
    assert isinstance(await store.append(claim), Fenced)


# owners


async def test_a_claim_raises_the_epoch_and_fences_the_owner_before(store: Store) -> None:
    await recorded(store, begin(lease_ms=0))
    heads = (await recorded(store, one("claim", CLAIM))).parts[0].heads
    assert (heads.owner, heads.epoch) == ("two", 2)
    assert isinstance(await store.append(delta("old", 2, b"x")), Fenced)


async def test_a_running_lease_is_not_claimed(store: Store) -> None:
    await recorded(store, begin())
    assert isinstance(await store.append(one("claim", CLAIM)), Fenced)
    assert isinstance(await store.append(one("claim", replace(CLAIM, owner="one", epoch=1))), Fenced)


async def test_a_lapsed_lease_is_claimed_but_not_before(store: Store) -> None:
    ends_ms = (await recorded(store, begin(lease_ms=40))).parts[0].heads.lease_ms
    first = await store.append(one("claim", CLAIM))
    await passed(store, ends_ms)
    assert isinstance(first, Fenced) or first.now_ms >= ends_ms
    await recorded(store, one("claim", CLAIM))


async def test_an_owner_hands_back_and_anyone_may_claim(store: Store, house: House) -> None:
    await recorded(store, begin())
    heads = (await recorded(store, one("back", Part(actor=RUN, log=2, epoch=1, owner="")))).parts[0].heads
    assert (heads.owner, heads.lease_ms, heads.epoch) == ("", 0, 1)
    assert await house.due(0) == {}
    await recorded(store, one("claim", CLAIM))


async def test_an_append_that_ends_leaves_no_owner_even_if_it_names_one(store: Store, house: House) -> None:
    heads = (await recorded(store, one("c", replace(begin().parts[0], ended=True)))).parts[0].heads
    assert (heads.owner, heads.lease_ms, heads.epoch, heads.ended) == ("", 0, 1, True)
    assert await house.due(0) == {}


async def test_a_lease_stands_in_the_due_set_until_the_end(store: Store, house: House) -> None:
    heads = (await recorded(store, begin())).parts[0].heads
    assert await house.due(0) == {f"{RUN}|lease": heads.lease_ms}
    await recorded(store, one("end", END))
    assert await house.due(0) == {}


async def test_renewing_moves_the_lease_of_what_is_still_ours(store: Store, house: House) -> None:
    heads = (await recorded(store, begin(lease_ms=1))).parts[0].heads
    two = await house.node("two")
    mine = {RUN: 1, APPROVAL: 0}
    renewed = await store.renew(0, mine, HOUR_MS)
    assert renewed[APPROVAL] is None
    now = renewed[RUN]
    assert now is not None
    assert now == replace(heads, lease_ms=now.lease_ms)
    assert now.lease_ms > heads.lease_ms + HOUR_MS - 1000
    assert await house.due(0) == {f"{RUN}|lease": now.lease_ms}
    assert (await store.look(RUN)).heads == now
    assert await store.renew(0, {RUN: 2}, HOUR_MS) == {RUN: None}
    assert await two.renew(0, {RUN: 1}, HOUR_MS) == {RUN: None}
    await recorded(store, one("end", END))
    assert await store.renew(0, {RUN: 2}, HOUR_MS) == {RUN: None}
    assert await house.due(0) == {}


async def test_more_than_64_leases_are_renewed(store: Store) -> None:
    actors = [f"00000004-{n:04x}" for n in range(70)]
    for actor in actors:
        await recorded(store, one("c", replace(begin().parts[0], actor=actor)))
    renewed = await store.renew(0, dict.fromkeys(actors, 1), HOUR_MS)
    assert list(renewed) == actors
    assert all(renewed.values())
    assert await store.renew(0, {}, HOUR_MS) == {}


# what is lost


@pytest.mark.parametrize("append", [
    fact("x", 2),
    fact("x", 2, feed=2, items=(b"i",)),
    one("x", CLAIM),
    one("x", Part(actor=RUN, log=2, owner="", epoch=1)),
    one("x", replace(END, items=(), events=())),
])  # fmt: skip
async def test_a_log_that_vanished_is_never_begun_anew(store: Store, house: House, append: Append) -> None:
    await recorded(store, begin(lease_ms=0))
    await house.lose(RUN, "log")
    outcome = await store.append(append)
    assert isinstance(outcome, Lost)
    assert outcome.actor == RUN
    with pytest.raises(HistoryLost):
        await store.look(RUN)
    with pytest.raises(HistoryLost):
        await store.look(RUN, 1)


@pytest.mark.parametrize("append", [delta("x", 2, b"d"), one("x", END), fact("x", 2, feed=2)])
async def test_a_feed_that_vanished_is_never_begun_anew(store: Store, house: House, append: Append) -> None:
    await recorded(store, begin())
    await house.lose(RUN, "feed")
    assert isinstance(await store.append(append), Lost)
    with pytest.raises(HistoryLost):
        await store.page(RUN, 0)
    assert list((await store.page(RUN, 2)).items) == []


async def test_what_is_lost_of_one_actor_stops_the_whole_append(store: Store, house: House) -> None:
    await recorded(store, begin())
    await house.lose(RUN, "log")
    approval = Part(actor=APPROVAL, log=0, events=(Event(b"x"),))
    outcome = await store.append(Append(command="x", parts=(approval, Part(actor=RUN, log=2, events=(Event(b"x"),)))))
    assert isinstance(outcome, Lost)
    assert outcome.actor == RUN
    assert (await store.look(APPROVAL)).heads == Heads()


# erasing


async def test_an_erasure_takes_streams_and_snapshot_and_leaves_heads(store: Store) -> None:
    await recorded(store, begin())
    await store.save(RUN, Snapshot(2, b"fold"))
    await recorded(store, one("end", END))
    heads = (await recorded(store, one("erase", Part(actor=RUN, log=3, erase=True)))).parts[0].heads
    assert (heads.log, heads.feed, heads.oldest, heads.epoch) == (3, 3, 4, 2)
    assert heads.ended
    assert heads.erased
    look = await store.look(RUN, snapshot=True)
    assert (look.heads, list(look.entries), look.snapshot) == (heads, [], None)
    assert await store.page(RUN, 0) == (heads, [])
    assert isinstance(await store.append(fact("x", 3)), Ended)
    await recorded(store, one("erase again", Part(actor=RUN, log=3, erase=True)))


async def test_an_erasure_ends_what_had_not_ended(store: Store, house: House) -> None:
    await recorded(store, begin())
    heads = (await recorded(store, one("erase", Part(actor=RUN, log=2, erase=True)))).parts[0].heads
    assert (heads.ended, heads.erased, heads.epoch, heads.owner) == (True, True, 2, "")
    assert await house.due(0) == {}


async def test_a_snapshot_that_comes_late_does_not_bring_back_what_was_erased(store: Store) -> None:
    await recorded(store, begin())
    await recorded(store, one("erase", Part(actor=RUN, log=2, ended=True, erase=True)))
    await store.save(RUN, Snapshot(2, b"fold"))
    assert (await store.look(RUN, snapshot=True)).snapshot is None


async def ended(store: Store) -> Heads:
    """Begin and end a run: three events, three items."""
    await recorded(store, begin())
    return (await recorded(store, one("end", END))).parts[0].heads


@pytest.mark.usefixtures("graves")
async def test_an_epitaph_answers_in_the_place_of_the_snapshot(store: Store) -> None:
    await ended(store)
    await store.save(RUN, Snapshot(3, b"fold"))
    heads = (await recorded(store, one("bury", BURY))).parts[0].heads
    for after in (0, 1, 3, 9):
        look = await store.look(RUN, after, snapshot=True)
        assert (look.heads, list(look.entries), look.snapshot) == (heads, [], Snapshot(3, BURY.epitaph))
    look = await store.look(RUN)
    assert (look.heads, list(look.entries), look.snapshot) == (heads, [], None)


@pytest.mark.usefixtures("graves")
async def test_an_epitaph_is_left_with_the_last_word_about_others(store: Store, house: House) -> None:
    await ended(store)
    beside = Part(actor=APPROVAL, log=0, events=(Event(b"x"),))
    append = Append(command="bury", parts=(BURY, beside), due=(Due(RUN, "usage", 7),), outbox=(b"o",))
    await recorded(store, append)
    assert (await recorded(store, append)).repeated
    assert (await store.look(RUN, snapshot=True)).snapshot == Snapshot(3, BURY.epitaph)
    assert await versions(store, APPROVAL) == [(1, 0, "bury", b"x")]
    assert (await house.due(0), await house.outbox(0)) == ({f"{RUN}|usage": 7}, [b"o"])


@pytest.mark.usefixtures("graves")
async def test_no_snapshot_overwrites_an_epitaph(store: Store) -> None:
    await ended(store)
    await recorded(store, one("bury", BURY))
    for version in (0, 2, 3, 9):
        await store.save(RUN, Snapshot(version, b"fold"))
    assert (await store.look(RUN, snapshot=True)).snapshot == Snapshot(3, BURY.epitaph)


@pytest.mark.usefixtures("graves")
async def test_a_snapshot_that_races_an_erasure_never_wins(store: Store, house: House) -> None:
    other = await house.node("two")
    await ended(store)
    async with anyio.create_task_group() as tasks:
        for version in (1, 2, 3):
            tasks.start_soon(other.save, RUN, Snapshot(version, b"fold"))
        tasks.start_soon(store.append, one("bury", BURY))
        for version in (1, 2, 3):
            tasks.start_soon(other.save, RUN, Snapshot(version, b"fold"))
    assert (await other.look(RUN, snapshot=True)).snapshot == Snapshot(3, BURY.epitaph)


@pytest.mark.usefixtures("graves")
async def test_the_first_epitaph_stays(store: Store) -> None:
    await ended(store)
    await recorded(store, one("erase", ERASE))
    assert (await store.look(RUN, snapshot=True)).snapshot is None
    await recorded(store, one("bury", BURY))
    later = one("bury again", replace(BURY, epitaph=b"another"))
    await recorded(store, later)
    assert (await recorded(store, later)).repeated
    await recorded(store, one("erase", ERASE))
    assert (await store.look(RUN, snapshot=True)).snapshot == Snapshot(3, BURY.epitaph)


# trimming


async def test_a_trim_takes_the_feed_and_leaves_the_log(store: Store) -> None:
    before = await ended(store)
    await store.save(RUN, Snapshot(2, b"fold"))
    look = await store.look(RUN, snapshot=True)
    placed = (await recorded(store, one("trim", TRIM))).parts[0]
    assert (placed.first, placed.heads) == (0, replace(before, oldest=4))
    after = await store.look(RUN, snapshot=True)
    assert (after.heads, after.entries, after.snapshot) == (placed.heads, look.entries, look.snapshot)
    assert len(await versions(store)) == 3
    for cursor in (0, 2, 3, 9):
        assert await store.page(RUN, cursor) == (placed.heads, [])


async def test_readers_of_a_trimmed_feed_meet_the_end_or_are_told_what_is_kept(store: Store) -> None:
    await ended(store)
    await recorded(store, one("trim", TRIM))
    async with aclosing(followed(store, RUN, 3, heartbeat_s=10)) as reader:
        assert [items async for items in reader] == []
    for cursor in (0, 2):
        async with aclosing(followed(store, RUN, cursor, heartbeat_s=10)) as reader:
            with pytest.raises(CursorTooOld) as too_old:
                await anext(reader)
        assert too_old.value.oldest == 4


async def test_a_trim_that_comes_again_is_a_repeat(store: Store) -> None:
    await ended(store)
    first = await recorded(store, one("trim", TRIM))
    again = await recorded(store, one("trim", TRIM))
    assert (again.repeated, again.parts) == (True, first.parts)
    another = await recorded(store, one("trim more", TRIM))
    assert (another.repeated, another.parts) == (False, first.parts)


async def test_an_end_is_known_again_after_a_trim(store: Store) -> None:
    await ended(store)
    await recorded(store, one("trim", TRIM))
    again = await recorded(store, one("end", END))
    assert (again.repeated, again.parts[0].first, again.parts[0].heads.oldest) == (True, 3, 4)


async def test_only_what_ended_is_trimmed(store: Store) -> None:
    heads = (await recorded(store, begin())).parts[0].heads
    for log in (2, 3):
        outcome = await store.append(one("trim", replace(TRIM, log=log)))
        assert isinstance(outcome, Conflict)
        assert outcome.heads == (heads,)
    assert isinstance(await store.append(one("trim", replace(TRIM, log=0, actor=APPROVAL))), Conflict)
    assert len(await feed_of(store)) == 2
    await recorded(store, one("end", END))
    assert isinstance(await store.append(one("trim", replace(TRIM, log=2))), Conflict)
    assert len(await feed_of(store)) == 3


@pytest.mark.usefixtures("graves")
@pytest.mark.parametrize("erasure", [BURY, replace(BURY, feed=3), replace(BURY, feed=3, ended=True, epoch=2)])
async def test_what_was_trimmed_is_erased_later(store: Store, erasure: Part) -> None:
    before = await ended(store)
    await recorded(store, one("trim", TRIM))
    heads = (await recorded(store, one("bury", erasure))).parts[0].heads
    assert heads == replace(before, oldest=4, erased=True)
    assert (await store.look(RUN, snapshot=True)).snapshot == Snapshot(3, BURY.epitaph)
    assert (await recorded(store, one("trim", TRIM))).parts[0].heads == heads
    look = await store.look(RUN, snapshot=True)
    assert (look.heads, list(look.entries), look.snapshot) == (heads, [], Snapshot(3, BURY.epitaph))


async def test_a_run_without_items_may_be_trimmed(store: Store) -> None:
    event = (Event(b"x"),)
    await recorded(store, one("end", Part(actor=RUN, log=0, events=event, ended=True)))
    heads = (await recorded(store, one("trim", replace(TRIM, log=1)))).parts[0].heads
    assert (heads.feed, heads.oldest) == (0, 1)
    await recorded(store, one("erase", replace(ERASE, log=1, feed=0)))


async def test_a_trim_goes_with_what_happens_to_others(store: Store) -> None:
    await ended(store)
    approval = Part(actor=APPROVAL, log=0, events=(Event(b"x", 1),), items=(b"i",))
    placed = (await recorded(store, Append(command="both", parts=(replace(TRIM, log=None), approval)))).parts
    assert [part.heads.oldest for part in placed] == [4, 1]
    assert [part.first for part in placed] == [0, 1]
    assert list(await feed_of(store, APPROVAL)) == [Item(1, b"i")]


async def test_a_trim_does_not_hide_that_the_log_is_lost(store: Store, house: House) -> None:
    await ended(store)
    await house.lose(RUN, "log")
    assert isinstance(await store.append(one("trim", TRIM)), Lost)


# snapshots and pages


async def test_a_look_begins_after_the_snapshot(store: Store) -> None:
    await recorded(store, begin())
    await store.save(RUN, Snapshot(2, b"1:fold"))
    await recorded(store, fact("f", 2))
    look = await store.look(RUN, snapshot=True)
    assert look.snapshot == Snapshot(2, b"1:fold")
    assert [entry.version for entry in look.entries] == [3]
    plain = await store.look(RUN)
    assert (plain.snapshot, len(plain.entries)) == (None, 3)
    beyond = await store.look(RUN, 2, snapshot=True)
    assert (beyond.snapshot, len(beyond.entries)) == (None, 1)


async def test_a_snapshot_of_more_than_the_log_is_not_kept(store: Store) -> None:
    await recorded(store, begin())
    await store.save(RUN, Snapshot(3, b"fold"))
    await store.save(APPROVAL, Snapshot(1, b"fold"))
    assert (await store.look(RUN, snapshot=True)).snapshot is None
    assert (await store.look(APPROVAL, snapshot=True)).snapshot is None


async def test_a_page_ends_where_the_byte_bound_is_met_and_always_holds_an_item(store: Store) -> None:
    await recorded(store, begin())
    await recorded(store, delta("d", 2, *(b"x" * 100 for _ in range(50))))
    assert [item.number for item in (await store.page(RUN, 2, 250)).items] == [3, 4, 5]
    assert [item.number for item in (await store.page(RUN, 2, 1)).items] == [3]
    whole = await store.page(RUN, 2)
    assert [item.number for item in whole.items] == list(range(3, 53))
    assert whole.heads.feed == 52
    assert list((await store.page(RUN, 52)).items) == []
    assert list((await store.page(RUN, 99)).items) == []


# due times, lists, outbox


async def test_due_members_are_set_and_cleared_with_the_append(store: Store, house: House) -> None:
    due = (Due(RUN, "approval", FAR_MS), Due(APPROVAL, "deadline", FAR_MS + 1))
    await recorded(store, Append(command="begin", parts=begin(owner=None).parts, due=due))
    assert await house.due(0) == {f"{RUN}|approval": FAR_MS, f"{APPROVAL}|deadline": FAR_MS + 1}
    await recorded(store, Append(command="f", parts=fact("f", 2).parts, due=(Due(RUN, "approval", None),)))
    assert await house.due(0) == {f"{APPROVAL}|deadline": FAR_MS + 1}
    await store.settle(APPROVAL, "deadline")
    await store.settle(APPROVAL, "deadline")
    assert await house.due(0) == {}


async def test_a_due_member_is_put_off_but_never_made(store: Store, house: House) -> None:
    await recorded(store, Append(command="b", parts=begin(owner=None).parts, due=(Due(RUN, "usage", 5),)))
    await store.settle(RUN, "usage", FAR_MS)
    await store.settle(RUN, "permit", FAR_MS)
    await store.settle(APPROVAL, "usage", FAR_MS)
    assert await house.due(0) == {f"{RUN}|usage": FAR_MS}
    assert list((await store.sweep(0)).ripe) == []
    await store.settle(RUN, "usage", 6)
    assert list((await store.sweep(0)).ripe) == [Ripe(RUN, "usage", 6)]
    await store.settle(RUN, "usage")
    await store.settle(RUN, "usage", FAR_MS)
    assert await house.due(0) == {}


async def test_a_refused_append_changes_no_due_time_list_or_outbox(store: Store, house: House) -> None:
    await recorded(store, begin(owner=None))
    extras = Append(
        command="x",
        parts=fact("x", 1).parts,
        due=(Due(RUN, "idle", 5),),
        listed=(Listed("runs:ann", RUN, 1),),
        outbox=(b"o",),
    )
    assert isinstance(await store.append(extras), Conflict)
    repeat = replace(extras, command="begin", parts=begin(owner=None).parts)
    assert (await recorded(store, repeat)).repeated
    assert (await house.due(0), await house.listed(0, "runs:ann"), await house.outbox(0)) == ({}, {}, [])


async def test_a_sweep_takes_what_is_past_and_moves_it_two_seconds(store: Store, house: House) -> None:
    due = (Due(RUN, "idle", 7), Due(APPROVAL, "approval", 5), Due(APPROVAL, "deadline", FAR_MS))
    await recorded(store, Append(command="begin", parts=begin(owner=None).parts, due=due))
    ripe, now_ms, next_ms = await store.sweep(0)
    assert list(ripe) == [Ripe(APPROVAL, "approval", 5), Ripe(RUN, "idle", 7)]
    moved = {f"{RUN}|idle": now_ms + 2000, f"{APPROVAL}|approval": now_ms + 2000}
    assert await house.due(0) == moved | {f"{APPROVAL}|deadline": FAR_MS}
    assert next_ms == now_ms + 2000
    assert list((await store.sweep(0)).ripe) == []
    assert await store.sweep(1) == Swept([], ANY, 0)


async def test_a_sweep_takes_no_more_than_asked(store: Store) -> None:
    due = tuple(Due(f"00000004-{n:04x}", "idle", n + 1) for n in range(40))
    await recorded(store, Append(command="begin", parts=begin().parts, due=due))
    some = await store.sweep(0, 3)
    assert ([ripe.due_ms for ripe in some.ripe], some.next_ms) == ([1, 2, 3], 4)
    assert [len((await store.sweep(0)).ripe) for _ in range(2)] == [32, 5]


async def test_a_sweep_moves_work_under_a_living_lease_to_the_end_of_that_lease(store: Store, house: House) -> None:
    heads = (await recorded(store, Append(command="b", parts=begin().parts, due=(Due(RUN, "work", 1),)))).parts[0].heads
    assert list((await store.sweep(0)).ripe) == []
    assert await house.due(0) == {f"{RUN}|lease": heads.lease_ms, f"{RUN}|work": heads.lease_ms}


async def test_a_sweep_that_moved_a_lapsed_lease_does_not_make_it_look_alive(store: Store) -> None:
    ends_ms = (await recorded(store, begin(lease_ms=0))).parts[0].heads.lease_ms
    ripe, now_ms, _ = await store.sweep(0)
    assert list(ripe) == [Ripe(RUN, "lease", ends_ms)]
    assert now_ms >= ends_ms
    assert (await store.look(RUN)).heads.lease_ms == ends_ms
    await recorded(store, one("claim", CLAIM))


async def test_who_may_not_judge_yet_leaves_leases_to_those_who_may(store: Store, house: House) -> None:
    due = (Due(RUN, "client", 5), Due(RUN, "idle", 7))
    begun = await recorded(store, Append(command="begin", parts=begin(lease_ms=0).parts, due=due))
    ends_ms = begun.parts[0].heads.lease_ms
    ripe, now_ms, next_ms = await store.sweep(0, judging=False)
    assert list(ripe) == [Ripe(RUN, "idle", 7)]
    assert await house.due(0) == {f"{RUN}|lease": ends_ms, f"{RUN}|client": 5, f"{RUN}|idle": now_ms + 2000}
    assert next_ms == now_ms + 250
    assert list((await store.sweep(0)).ripe) == [Ripe(RUN, "client", 5), Ripe(RUN, "lease", ends_ms)]


async def test_leases_it_may_not_judge_do_not_hide_what_a_sweep_may_take(store: Store, house: House) -> None:
    runs = [f"{number:08x}{RUN[8:]}" for number in range(8, 40, 4)]
    for run in runs:
        await recorded(store, Append(command=f"b{run[:8]}", parts=begin(actor=run).parts, due=(Due(run, "client", 5),)))
    await recorded(store, Append(command="begin", parts=begin().parts, due=(Due(RUN, "idle", 7),)))
    assert list((await store.sweep(0, 1, judging=False)).ripe) == []
    assert list((await store.sweep(0, 2, judging=False)).ripe) == [Ripe(RUN, "idle", 7)]
    assert [(await house.due(0))[f"{run}|client"] for run in runs] == [5] * len(runs)


async def test_unowned_work_is_taken(store: Store) -> None:
    await recorded(store, Append(command="b", parts=begin(owner=None).parts, due=(Due(RUN, "work", 1),)))
    assert list((await store.sweep(0)).ripe) == [Ripe(RUN, "work", 1)]


async def test_list_members_are_set_and_taken_off(store: Store, house: House) -> None:
    listed = (Listed("runs:ann", RUN, 5), Listed("inbox:a b|c", APPROVAL, 6))
    await recorded(store, Append(command="begin", parts=begin().parts, listed=listed))
    assert await house.listed(0, "runs:ann") == {RUN: 5}
    assert await house.listed(0, "inbox:a b|c") == {APPROVAL: 6}
    change = (Listed("runs:ann", RUN, 9), Listed("inbox:a b|c", APPROVAL, None))
    await recorded(store, Append(command="f", parts=fact("f", 2).parts, listed=change))
    assert await house.listed(0, "runs:ann") == {RUN: 9}
    assert await house.listed(0, "inbox:a b|c") == {}


async def test_a_list_is_read_over_all_partitions_the_lowest_score_first(house: House) -> None:
    one, two = await house.node("one"), await house.node("two")
    assert list(await one.listed("inbox:ann", 10)) == []
    here = (Listed("inbox:ann", RUN, 5), Listed("inbox:ann", APPROVAL, 1), Listed("inbox:bob", RUN, 0))
    there = (Listed("inbox:ann", ELSEWHERE, 3), Listed("inbox:an", ELSEWHERE, 9))
    await recorded(one, Append(command="here", parts=begin().parts, listed=here))
    part = Part(actor=ELSEWHERE, log=0, events=(Event(b"x"),))
    await recorded(two, Append(command="there", parts=(part,), listed=there))
    for store in (one, two):
        assert list(await store.listed("inbox:ann", 10)) == [(APPROVAL, 1), (ELSEWHERE, 3), (RUN, 5)]
        assert list(await store.listed("inbox:ann", 1)) == [(APPROVAL, 1), (ELSEWHERE, 3)], (
            "the first of each partition"
        )
        assert list(await store.listed("inbox:bob", 10)) == [(RUN, 0)]
    change = (Listed("inbox:ann", APPROVAL, None), Listed("inbox:ann", RUN, 3))
    await recorded(two, Append(command="f", parts=fact("f", 2).parts, listed=change))
    assert list(await one.listed("inbox:ann", 10)) == [(RUN, 3), (ELSEWHERE, 3)], "of one score by their names"


async def test_the_outbox_is_written_once_with_its_append(store: Store, house: House) -> None:
    append = Append(command="begin", parts=begin().parts, outbox=(b"audit", b"more"))
    await recorded(store, append)
    await recorded(store, append)
    assert await house.outbox(0) == [b"audit", b"more"]


async def test_an_outbox_is_pruned_of_what_is_older_than_a_time(store: Store, house: House) -> None:
    await store.prune(0, FAR_MS)
    await recorded(store, Append(command="begin", parts=begin().parts, outbox=(b"1", b"2")))
    await store.post(APPROVAL, b"3")
    await store.post(ELSEWHERE, b"elsewhere")
    await passed(store, (await store.look(RUN)).now_ms)
    between_ms = (await store.look(RUN)).now_ms
    await store.prune(0, LONG_AGO_MS)
    await store.post(RUN, b"4")
    assert await house.outbox(0) == [b"1", b"2", b"3", b"4"]
    await store.prune(0, between_ms)
    await store.prune(0, between_ms)
    assert await house.outbox(0) == [b"4"]
    await store.prune(0, FAR_MS)
    assert await house.outbox(0) == []
    await store.post(RUN, b"5")
    assert (await house.outbox(0), await house.outbox(1)) == ([b"5"], [b"elsewhere"])


async def test_everything_an_append_may_carry_at_once(store: Store, house: House) -> None:
    append = Append(
        command="all",
        parts=(begin().parts[0], Part(actor=APPROVAL, log=0, events=(Event(b"x"),), ended=True)),
        due=(Due(RUN, "work", FAR_MS), Due(RUN, "idle", None)),
        listed=(Listed("runs:ann", RUN, 1),),
        outbox=(b"o",),
        not_before_ms=1,
        not_after_ms=FAR_MS,
    )
    first = await recorded(store, append)
    assert [placed.heads.ended for placed in first.parts] == [False, True]
    assert (await recorded(store, append)).parts == first.parts
    assert await house.due(0) == {f"{RUN}|lease": first.parts[0].heads.lease_ms, f"{RUN}|work": FAR_MS}
    assert (await house.listed(0, "runs:ann"), await house.outbox(0)) == ({RUN: 1}, [b"o"])


# following and rings


class Noted:
    def __init__(self) -> None:
        self.rings: list[str] = []
        self.works: list[int] = []
        self.grants: list[str] = []
        self.rooms = 0

    def rung(self, actor: str) -> None:
        self.rings.append(actor)

    def work(self, partition: int) -> None:
        self.works.append(partition)

    def granted(self, holder: str) -> None:
        self.grants.append(holder)

    def lost(self, actor: str) -> None: ...

    def room(self) -> None:
        self.rooms += 1


async def until(store: Store, said: Sequence[object], count: int = 1) -> None:
    """Wait until *said* holds *count* things."""
    deadline_s = time.monotonic() + 10
    while len(said) < count:
        await store.look(RUN)
        assert time.monotonic() < deadline_s


@pytest.mark.parametrize("follower", ["one", "two"])
@pytest.mark.parametrize("by_owner", [True, False], ids=["by its owner", "from elsewhere"])
async def test_a_follower_hears_that_a_log_grew_that_got_no_items(
    store: Store, house: House, follower: str, *, by_owner: bool
) -> None:
    other = store if follower == "one" else await house.node(follower)
    await store.append(begin())
    async with other.follow(RUN) as tail:
        told = fact("f", 2, epoch=1) if by_owner else fact("f", 2)
        assert isinstance(await store.append(told), Recorded)
        heard = await tail.heard(10)
        assert heard is not None
        assert (list(heard.items), heard.ended) == ([], False)


@pytest.mark.parametrize("follower", ["one", "two"])
async def test_a_follower_hears_items_on_every_node(store: Store, house: House, follower: str) -> None:
    other = store if follower == "one" else await house.node(follower)
    await recorded(store, begin())
    async with other.follow(RUN) as tail:
        await recorded(store, delta("d", 2, b"d3", b"|4\n"))
        heard = await tail.heard(10)
        assert heard is not None
        assert list(heard.items) == [Item(3, b"d3"), Item(4, b"|4\n")]
        assert (heard.head, heard.ended) == (4, False)
        await recorded(store, delta("e", 4, b"5"))
        heard = await tail.heard(10)
        assert heard is not None
        assert list(heard.items) == [Item(5, b"5")]
        await recorded(store, one("end", END))
        heard = await tail.heard(10)
        assert heard is not None
        assert (heard.head, heard.ended) == (6, True)


async def test_items_too_large_to_travel_are_announced(store: Store, house: House) -> None:
    other = await house.node("two")
    await recorded(store, begin())
    async with other.follow(RUN) as tail:
        await recorded(store, delta("d", 2, b"x" * 5_000, b"y" * 5_000))
        heard = await tail.heard(10)
        assert heard is not None
        assert (list(heard.items), heard.head) == ([], 4)
        assert len((await other.page(RUN, 2)).items) == 2


async def test_an_owner_is_rung_when_others_write(store: Store, house: House) -> None:
    ear, other = Noted(), await house.node("two")
    store.listen(ear)
    await recorded(store, begin())
    await recorded(store, delta("own", 2, b"d"))
    assert ear.rings == []
    await recorded(other, fact("theirs", 2))
    await until(store, ear.rings)
    assert ear.rings == [RUN]


async def test_an_owner_is_rung_when_another_takes_over(store: Store, house: House) -> None:
    ear, other = Noted(), await house.node("two")
    store.listen(ear)
    await recorded(store, begin(lease_ms=0))
    await recorded(other, one("claim", replace(CLAIM, epoch=1)))
    await until(store, ear.rings)
    assert ear.rings == [RUN]


async def test_work_is_heard_by_every_node(store: Store, house: House) -> None:
    ears, other = [Noted(), Noted()], await house.node("two")
    store.listen(ears[0])
    other.listen(ears[1])
    await recorded(store, Append(command="b", parts=begin(owner=None).parts, due=(Due(RUN, "work", 1),)))
    await recorded(store, Append(command="f", parts=fact("f", 2).parts, due=(Due(RUN, "work", None),)))
    for ear in ears:
        await until(store, ear.works)
    assert [ear.works for ear in ears] == [[0], [0]]


async def test_a_waiting_holder_is_told_when_it_is_granted(store: Store) -> None:
    ear, caps = Noted(), Caps(total=1, queue_total=5)
    store.listen(ear)
    first, second = Claim("slots", "a", "one", "ann"), Claim("slots", "b", "one", "bob")
    assert (await store.take(first, caps, 10_000)).taken == "granted"
    await store.begun(first)
    assert (await store.take(second, caps, 10_000)).taken == "queued"
    await store.give("slots", "a", caps)
    await until(store, ear.grants)
    assert ear.grants == ["b"]
    assert isinstance(await store.take(second, caps, 10_000), Permit)


# time, and what no store writes


async def test_the_time_a_store_tells_follows_redis_and_never_goes_back(store: Store) -> None:
    outcome = await recorded(store, begin())
    told = [store.now_ms() for _ in range(50)]
    assert told == sorted(told)
    assert abs(told[0] - outcome.now_ms) < 1_000


async def test_partitions_are_chosen_by_the_first_bits(store: Store) -> None:
    assert [store.partition_of(actor) for actor in (RUN, APPROVAL, ELSEWHERE)] == [0, 0, 1]


EVENT = (Event(b"e"),)


@pytest.mark.parametrize("flawed", [
    Append(command="c", parts=()),
    one("c", Part(actor=RUN, owner="one", epoch=0)),
    one("c", Part(actor=RUN, feed=0, events=EVENT)),
    one("c", Part(actor=RUN, log=0, items=(b"i",))),
    one("c", Part(actor=RUN, log=0, owner="one")),
    one("c", Part(actor=RUN, log=0, events=(Event(b"e", 2),), items=(b"i",))),
    one("c", Part(actor=RUN, log=0, events=EVENT, ended=True, erase=True)),
    one("c", Part(actor=RUN, log=0, events=EVENT, epitaph=b"e")),
    one("c", Part(actor=RUN, log=0, ended=True, epitaph=b"e")),
    one("c", Part(actor=RUN, trim=True)),
    *(one("c", replace(Part(actor=RUN, log=0, trim=True), **more)) for more in (
        {"events": EVENT}, {"items": (b"i",), "feed": 0}, {"feed": 0}, {"epoch": 0}, {"owner": ""}, {"ended": True},
        {"erase": True},
    )),
    Append(command="c", parts=(Part(actor=RUN, log=0), Part(actor=RUN, log=0))),
    Append(command="c", parts=(Part(actor=RUN, log=0), Part(actor=ELSEWHERE, log=0))),
    Append(command="c", parts=(Part(actor=RUN, log=0),), due=(Due(ELSEWHERE, "idle", 1),)),
    Append(command="c", parts=(Part(actor=RUN, log=0),), due=(Due(RUN, "lease", 1),)),
    Append(command="c", parts=(Part(actor=RUN, log=0),), outbox=(b"o",)),
])  # fmt: skip
async def test_an_append_whose_repeat_could_not_be_told_is_a_fault_of_its_sender(store: Store, flawed: Append) -> None:
    with pytest.raises(ValueError, match=r"."):
        await store.append(flawed)
    assert (await store.look(RUN)).heads == Heads()
