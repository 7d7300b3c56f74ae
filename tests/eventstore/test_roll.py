"""What an audit of the ledger needs of every store: all actors there are, all who hold a permit, and who is at it."""

from typing import Any

import pytest

from eventstore import ledger, roll
from eventstore.link import ConnectionLost
from eventstore.store import Append, Caps, Claim, Event, Heads, Met, Part, Store, Unavailable
from tests.eventstore.conftest import House

pytestmark = pytest.mark.anyio

MANY = 60
POOLS = ("runs", "jobs")


def named(number: int) -> str:
    """An actor of one partition after the other."""
    return f"{number:08x}-0000-8000-8000-{number:012x}"


async def write(store: Store, number: int, *, ended: bool = False) -> None:
    part = Part(actor=named(number), log=0, events=(Event(b"first %d" % number), Event(b"second")), ended=ended)
    await store.append(Append(command="c", parts=(part,)))


async def erase(store: Store, number: int, epitaph: bytes) -> None:
    part = Part(actor=named(number), log=2, erase=True, epitaph=epitaph)
    await store.append(Append(command="e", parts=(part,)))


async def met(store: Store) -> dict[str, Met]:
    found = [one async for some in store.roll() for one in some]
    return {one.actor: one for one in found}


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "SCANNED", 8)
    monkeypatch.setattr(roll, "MET_AT_ONCE", 3)
    monkeypatch.setattr(ledger, "_HELD_AT_ONCE", 8)


@pytest.mark.usefixtures("small_steps")
async def test_a_roll_meets_every_actor_once_written_with_its_first_event(store: Store) -> None:
    for number in range(MANY):
        await write(store, number, ended=number % 2 == 0)
    await erase(store, 0, b"epitaph")
    await erase(store, 2, b"")
    found = await met(store)
    assert sorted(found) == [named(number) for number in range(MANY)]
    assert {one: found[named(one)].first for one in range(4)} == {0: b"epitaph", 1: b"first 1", 2: b"", 3: b"first 3"}
    assert [found[named(one)].heads.ended for one in range(4)] == [True, False, True, False]
    assert [found[named(one)].heads.erased for one in range(4)] == [True, False, True, False]
    assert {one.heads.log for one in found.values()} == {2}


async def test_actors_are_met_by_name_in_the_order_asked_for(store: Store) -> None:
    for number in (1, 2):
        await write(store, number)
    two, nobody, one = await store.meet([named(2), named(9), named(1)])
    assert (two.actor, two.first, one.actor, one.first) == (named(2), b"first 2", named(1), b"first 1")
    assert nobody == Met(named(9), Heads(), b"")
    assert list(await store.meet([])) == []


async def test_an_empty_deployment_has_nobody_to_meet(store: Store) -> None:
    assert await met(store) == {}


@pytest.mark.usefixtures("small_steps")
async def test_who_holds_a_permit_is_read_once_it_was_begun(store: Store) -> None:
    for number in range(140):  # more than a small sorted set holds in one piece
        await store.begun(Claim("runs", named(number), "one", "ann"))
    await store.take(Claim("runs", "not begun", "one", "ann"), Caps(total=0), 60_000)
    await store.give("runs", named(0), Caps(total=0))
    assert sorted(await store.held("runs")) == [named(number) for number in range(1, 140)]
    assert not await store.held("jobs")


async def test_one_node_at_a_time_audits_and_an_audited_ledger_is_left_alone(house: House) -> None:
    one, two = await house.node("one"), await house.node("two")
    history = await one.begin_audit(POOLS)
    assert history
    assert await two.begin_audit(POOLS) == ""
    await one.keep_audit()
    assert await one.end_audit(POOLS, history)
    assert [await each.begin_audit(POOLS) for each in (one, two)] == ["", ""]
    assert await two.begin_audit((*POOLS, "of a later version")) == history


async def test_an_audit_of_another_history_does_not_count(store: Store) -> None:
    history = await store.begin_audit(POOLS)
    assert not await store.end_audit(POOLS, f"{history} no more")
    assert await store.begin_audit(POOLS) == history


class Lost:
    """A link whose connection broke."""

    async def call(self, *_: Any) -> Any:
        raise ConnectionLost("it broke")


async def test_a_roll_ends_where_a_primary_does_not_answer() -> None:
    link: Any = Lost()
    with pytest.raises(Unavailable):
        async for _ in roll.called([link], link.call, str):
            pass
