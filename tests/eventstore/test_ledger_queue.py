"""Weights, nodes and the queue of the ledger, by example: in memory, on fakeredis and on a real server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import pytest
from msgspec.structs import replace

from eventstore import keys
from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.ledger import SILENT_MS, Counted
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import Caps, Claim, Dispatched, Store
from tests.eventstore.conftest import DEPLOYMENT, emptied
from tests.eventstore.ledger_house import ONE, START_MS, WITHIN_MS, House, opened

pytestmark = pytest.mark.anyio

WIDE = Caps(total=100)


@pytest.fixture(params=["memory", "fake", "real"])
async def house(request: pytest.FixtureRequest, valkey: Endpoint) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield await opened(request.param, valkey, stack)


@pytest.fixture
async def real(valkey: Endpoint) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield await opened("real", valkey, stack)


async def test_a_node_has_no_more_permits_than_its_bound(house: House) -> None:
    caps = Caps(total=9, per_node=1, queue_total=9, queue_per_subject=9)
    assert [await house.ask(holder, caps=caps, node="n1") for holder in ("a0", "a1")] == ["granted", "queued"]
    assert await house.ask("b0", "bob", caps, node="n2") == "granted"
    assert await house.served("a0", caps) == ["a1"]


async def test_a_waiter_waits_on_the_node_it_last_asked_from(house: House) -> None:
    caps = Caps(total=9, per_node=1, queue_total=9, queue_per_subject=9)
    await house.ask("a0", caps=caps, node="n1")
    await house.ask("b0", "bob", caps, node="n2")
    assert await house.ask("a1", caps=caps, node="n1") == "queued"
    assert await house.ask("a1", caps=caps, node="n2") == "queued"
    assert await house.served("a0", caps) == []
    await house.give("b0", caps)
    assert await house.rings() == [("n2", "a1")]


async def test_a_permit_that_is_begun_elsewhere_is_counted_there(house: House) -> None:
    caps = Caps(total=9, per_node=1)
    await house.ask("a0", caps=caps, node="n1")
    for _ in range(2):
        await house.begun("a0", node="n2")
    assert await house.ask("a1", caps=caps, node="n1") == "granted"
    await house.begun("a1", node="n2")
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=2), "what runs is never refused"
    assert await house.ask("a2", caps=caps, node="n2") == "busy"
    await house.give("a0", caps)
    assert await house.ask("a2", caps=caps, node="n2") == "busy"
    await house.give("a1", caps)
    assert await house.ask("a2", caps=caps, node="n2") == "granted"


async def test_every_bound_is_one_of_weights(house: House) -> None:
    caps = Caps(total=10, per_subject=5, per_account=6, per_node=8)
    assert await house.ask("a0", "alice", caps, "acme", weight=4) == "granted"
    assert await house.ask("a1", "alice", caps, weight=2) == "busy"
    assert await house.ask("b0", "bob", caps, "acme", weight=3) == "busy"
    assert await house.ask("b0", "bob", caps, "acme", weight=2) == "granted"
    assert await house.ask("c0", "carol", caps, weight=3) == "busy"
    assert await house.ask("c0", "carol", caps, node="n2", weight=5) == "busy"
    assert await house.ask("c0", "carol", caps, node="n2", weight=4) == "granted"
    assert await house.ledger.counted("runs") == Counted(3, 0, weight=10)
    assert await house.ask("d0", "dan", caps, node="n3") == "busy"
    await house.give("a0", caps)
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=6)
    assert await house.ask("d0", "dan", caps, node="n3", weight=4) == "granted"


async def test_a_permit_grows_only_where_there_is_room_and_stays_as_it_was_else(house: House) -> None:
    caps = Caps(total=4, queue_total=9, queue_per_subject=9)
    assert await house.ask("a0", caps=caps, weight=2) == "granted"
    assert await house.ask("b0", "bob", caps) == "granted"
    assert [await house.ask("a0", caps=caps, weight=4) for _ in range(2)] == ["busy"] * 2
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=3)
    assert [await house.ask("a0", caps=caps, weight=3) for _ in range(2)] == ["granted"] * 2
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=4)


async def test_a_permit_that_shrinks_leaves_room_for_the_next(house: House) -> None:
    caps = Caps(total=4, queue_total=9, queue_per_subject=9)
    await house.ask("a0", caps=caps, weight=4)
    assert await house.ask("b0", "bob", caps, weight=2) == "queued"
    assert await house.ask("a0", caps=caps, weight=3) == "granted"
    assert await house.rings() == []
    assert await house.ask("a0", caps=caps, weight=2) == "granted"
    assert await house.rings() == [("n1", "b0")]
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=4)


async def test_what_runs_weighs_what_it_says_whatever_the_bounds(house: House) -> None:
    caps = Caps(total=4)
    claim = Claim("runs", "a0", "n1", "alice", "acme", weight=3)
    await house.ask("a0", caps=caps, account="acme")
    for weight in (3, 3, 7):
        await house.ledger.begun(replace(claim, weight=weight))
    await house.ledger.begun(Claim("runs", "b0", "n1", "bob", weight=2))
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=9)
    await house.give("a0", caps)
    await house.give("b0", caps)
    assert await house.ledger.counted("runs") == Counted(0, 0)


async def test_queued_jobs_are_taken_in_the_order_of_the_line_whichever_node_asks(house: House) -> None:
    await house.ask("a0")
    for n, holder in enumerate(("a1", "a2", "a3", "b1", "b2")):
        await house.enlist(holder, {"a": "alice", "b": "bob"}[holder[0]], at_ms=house.now_ms + n)
    assert await house.dispatch() == []
    await house.give("a0")
    order = await house.dispatch("n1")
    await house.later(100)
    await house.enlist("a4")
    for turn in range(5):
        await house.give(order[-1])
        order += await house.dispatch(f"n{turn % 2 + 1}")
    assert order == ["a1", "b1", "a2", "b2", "a3", "a4"]
    assert await house.rings() == [], "who asks is answered, not rung"
    assert await house.ledger.counted("runs") == Counted(1, 0, weight=1)


async def test_each_dispatched_permit_must_be_begun_in_time(house: House) -> None:
    await house.enlist("a0")
    await house.later(5_000)
    taken = await house.ledger.dispatch("runs", "n1", 1, ONE)
    assert list(taken) == [Dispatched("a0", house.now_ms + WITHIN_MS)]
    assert await house.ask("a0") == "granted"


async def test_a_dispatch_takes_no_more_than_it_asked_for_and_one_of_a_subject_a_turn(house: House) -> None:
    for n in range(3):
        for subject in ("alice", "bob"):
            await house.enlist(f"{subject}-{n}", subject, WIDE, at_ms=house.now_ms + n)
    assert await house.dispatch(most=3, caps=WIDE) == ["alice-0", "bob-0", "alice-1"]
    assert await house.dispatch(caps=WIDE) == ["bob-1", "alice-2", "bob-2"]
    assert await house.dispatch(caps=WIDE) == []


async def test_within_a_subject_the_earliest_queued_goes_first_whatever_its_account(house: House) -> None:
    for holder, account, ms in (("late", "acme", 9), ("b-tied", "zeta", 5), ("a-tied", "zoo", 5), ("early", "", 10**6)):
        await house.enlist(holder, caps=WIDE, account=account, at_ms=ms)
    assert await house.dispatch(caps=WIDE) == ["a-tied", "b-tied", "late", "early"]


async def test_a_blocked_account_blocks_neither_its_subjects_other_jobs_nor_other_subjects(house: House) -> None:
    caps = Caps(total=9, per_account=1)
    await house.ask("x", "xavier", caps, "acme")
    for n, (holder, account) in enumerate((("a1", "acme"), ("a2", "acme"), ("a3", "other"), ("b1", "third"))):
        await house.enlist(holder, {"a": "alice", "b": "bob"}[holder[0]], caps, account, at_ms=house.now_ms + n)
    assert await house.dispatch(caps=caps) == ["a3", "b1"]
    await house.give("x", caps)
    assert await house.dispatch(caps=caps) == ["a1"]
    assert await house.dispatch(caps=caps) == []


async def test_a_dispatch_stops_at_the_bounds_of_the_pool_and_of_its_node(house: House) -> None:
    caps = Caps(total=5, per_node=3)
    for n in range(9):
        await house.enlist(f"j{n}", f"s{n}", WIDE)
    assert await house.dispatch("n1", caps=caps) == ["j0", "j1", "j2"]
    assert await house.dispatch("n1", caps=caps) == []
    assert await house.dispatch("n2", caps=caps) == ["j3", "j4"]
    await house.give("j4", caps)
    assert await house.dispatch("n1", caps=caps) == []
    await house.begun("j0", "s0", node="n3")
    assert await house.dispatch("n1", caps=caps) == ["j5"]


async def test_a_job_too_heavy_for_the_room_that_is_left_is_passed_over(house: House) -> None:
    caps = Caps(total=3)
    await house.enlist("heavy", "alice", caps, weight=3)
    await house.enlist("light", "bob", caps)
    await house.ask("x", "xavier", caps)
    assert await house.dispatch(caps=caps) == ["light"]
    await house.give("light", caps)
    await house.give("x", caps)
    assert await house.dispatch(caps=caps) == ["heavy"]


async def test_who_waits_in_the_line_comes_before_the_queue(house: House) -> None:
    await house.ask("a0")
    await house.enlist("j0", "bob")
    assert await house.ask("c0", "carol") == "queued"
    await house.later(WITHIN_MS)
    assert await house.dispatch() == []
    assert await house.rings() == [("n1", "c0")]


async def test_a_node_takes_up_only_what_is_in_its_lanes_and_the_rest_keeps_its_place(house: House) -> None:
    for n in range(3):
        await house.enlist_in("jobs", f"a-job-{n}", "alice", "acme", house.now_ms + n)
        await house.enlist_in("host", f"a-run-{n}", "alice", "acme", house.now_ms + n)
    await house.enlist_in("jobs", "b-job", "bob")
    assert await house.dispatch(caps=WIDE, lanes=()) == []
    assert await house.dispatch(caps=WIDE, lanes=("host",)) == ["a-run-0", "a-run-1", "a-run-2"]
    assert await house.dispatch(caps=WIDE, lanes=("host",)) == []
    assert (await house.ledger.counted("runs")).queued == 4
    await house.enlist_in("host", "late", "alice", "acme", house.now_ms + 1)
    assert sorted(await house.dispatch(most=2, caps=WIDE, lanes=("jobs", "host"))) == ["a-job-0", "b-job"]
    assert await house.dispatch(caps=WIDE, lanes=("jobs", "host")) == ["a-job-1", "late", "a-job-2"]
    assert (await house.ledger.counted("runs")).queued == 0


async def test_what_is_queued_in_a_lane_leaves_it_when_it_is_given_or_granted(house: House) -> None:
    for holder in ("gone", "asked"):
        await house.enlist_in("host", holder, "alice")
    await house.give("gone", WIDE)
    assert await house.ask("asked", caps=WIDE) == "granted"
    assert await house.dispatch(caps=WIDE, lanes=("host",)) == []
    assert (await house.ledger.counted("runs")).queued == 0


async def test_enlisting_twice_is_enlisting_once(house: House) -> None:
    for _ in range(2):
        await house.enlist("a0")
    assert await house.ledger.counted("runs") == Counted(0, 0, queued=1)
    assert await house.rooms() == 1
    assert await house.dispatch() == ["a0"]
    for _ in range(2):
        await house.enlist("a0")
    await house.begun("a0")
    await house.enlist("a0")
    assert await house.ask("b0", "bob") == "queued"
    await house.enlist("b0", "bob")
    assert await house.ledger.counted("runs") == Counted(1, 1, weight=1)
    assert await house.rooms() == 0


async def test_a_job_whose_permit_lapsed_is_enlisted_again(house: House) -> None:
    await house.enlist("a0")
    assert await house.dispatch("n1") == ["a0"]
    await house.later(WITHIN_MS - 1)
    await house.enlist("a0")
    assert await house.ledger.counted("runs") == Counted(1, 0, weight=1)
    await house.later(1)
    await house.enlist("a0")
    assert await house.ledger.counted("runs") == Counted(0, 0, queued=1)
    assert await house.dispatch("n2") == ["a0"]


async def test_a_cancelled_job_leaves_the_queue(house: House) -> None:
    await house.enlist("a0")
    await house.enlist("a1")
    await house.rooms()
    for _ in range(2):
        await house.give("a0")
    assert await house.ledger.counted("runs") == Counted(0, 0, queued=1)
    assert await house.rooms() == 0, "nothing was given back"
    assert await house.dispatch() == ["a1"]


async def test_a_job_that_was_given_may_be_enlisted_and_begun_again(house: House) -> None:
    await house.enlist("a0")
    await house.dispatch()
    await house.give("a0")
    await house.enlist("a0")
    assert await house.dispatch() == ["a0"]
    await house.later(WITHIN_MS)
    assert await house.ask("b0", "bob") == "granted"
    await house.begun("a0")
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=2)


async def test_nobody_in_the_queue_is_dropped_for_silence(house: House) -> None:
    await house.ask("x", "xavier")
    await house.begun("x", "xavier")
    await house.enlist("a0")
    for _ in range(2 * SILENT_MS // 2_000):
        await house.ask("b0", "bob")
        await house.later(2_000)
    assert await house.ledger.counted("runs") == Counted(1, 1, queued=1, weight=1)


async def test_a_queued_job_that_asks_for_a_permit_itself_has_it_or_stays(house: House) -> None:
    await house.ask("x", "xavier")
    await house.enlist("a0")
    assert await house.ask("a0") == "queued"
    await house.give("x")
    assert await house.ask("a0") == "granted"
    assert await house.ledger.counted("runs") == Counted(1, 0, weight=1)
    await house.enlist("a1")
    await house.begun("a1")
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=2)


async def test_nodes_are_told_of_room_only_when_somebody_may_find_it(house: House) -> None:
    caps = Caps(total=2)
    await house.ask("a0", caps=caps)
    await house.give("a0", caps)
    assert await house.rooms() == 0, "nothing is queued"
    for n in range(3):
        await house.enlist(f"j{n}", f"s{n}", caps)
    assert await house.rooms() == 3
    assert len(await house.dispatch(caps=caps)) == 2
    await house.begun("j0", "s0")
    await house.ask("a0", caps=caps)
    assert await house.rooms() == 0
    await house.give("j0", Caps(total=1))
    assert await house.rooms() == 0, "no room under these bounds"
    await house.give("j0", caps)
    assert await house.rooms() == 0, "nothing was given back"
    await house.later(WITHIN_MS)
    assert await house.ask("a0", caps=caps) == "granted"
    assert await house.rooms() == 1, "a permit lapsed"
    assert await house.dispatch(caps=caps) == ["j2"]
    assert await house.rooms() == 0


async def test_more_blocked_subjects_than_one_call_looks_at_do_not_hide_one_that_can_be_served(house: House) -> None:
    caps = Caps(total=200, per_account=1)
    await house.ask("x", "xavier", caps, "acme")
    for n in range(70):
        await house.enlist(f"blocked-{n}", f"subject-{n}", caps, "acme")
    await house.enlist("able", "alice", caps)
    assert [await house.dispatch(caps=caps) for _ in range(3)] == [[], [], ["able"]]


async def test_names_of_queued_jobs_may_hold_anything(house: House) -> None:
    subjects = ("a|b", "a", "a}", "ü\n☃" * 32, "a|b|c", "%7C", "\U0001f600", " ")
    for n, subject in enumerate(subjects):
        for row in "gh":
            await house.enlist(f"{row}|{n}", subject, WIDE, "x|y")
    assert await house.dispatch("n|1", caps=WIDE) == [f"{row}|{n}" for row in "gh" for n in range(len(subjects))]
    for n in range(len(subjects)):
        await house.give(f"g|{n}", WIDE)
        await house.give(f"h|{n}", WIDE)
    assert await house.ledger.counted("runs") == Counted(0, 0)


async def test_a_lost_ledger_heals_as_jobs_are_begun_and_enlisted_again(real: House) -> None:
    assert real.link is not None
    caps = Caps(total=2)
    for n in range(4):
        await real.enlist(f"j{n}", "alice", caps, at_ms=real.now_ms + n)
    assert await real.dispatch(caps=caps) == ["j0", "j1"]
    await real.link.call("DEL", *(keys.ledger(word, "runs") for word in ("held", "by", "queue", "qturn")))
    for n in (0, 1):
        await real.begun(f"j{n}")
    for n in (3, 2, 1):
        await real.enlist(f"j{n}", "alice", caps, at_ms=real.now_ms + n)
    assert await real.ledger.counted("runs") == Counted(2, 0, queued=2, weight=2)
    assert await real.dispatch(caps=caps) == []
    await real.give("j0", caps)
    assert await real.dispatch(caps=caps) == ["j2"]


async def test_an_empty_queue_leaves_no_key_behind(real: House) -> None:
    assert real.link is not None
    await real.enlist("a0")
    await real.enlist("a1")
    await real.give("a1")
    await real.dispatch()
    await real.give("a0")
    left = {key.decode().split(":")[1] for key in await real.link.call("KEYS", "*")}
    assert left <= {"clock", "by", "gone", "room"}
    assert await real.link.call("HKEYS", keys.ledger("by", "runs")) == [b"place"]


class Listening:
    """An ear that counts how often it heard of room."""

    def __init__(self) -> None:
        self.rooms = 0

    def rung(self, actor: str) -> None: ...
    def work(self, partition: int) -> None: ...
    def granted(self, holder: str) -> None: ...

    def lost(self, actor: str) -> None: ...

    def room(self) -> None:
        self.rooms += 1


async def two_nodes(kind: str, valkey: Endpoint, stack: AsyncExitStack) -> tuple[Store, Store]:
    if kind == "memory":
        memory = Memory(DEPLOYMENT, lambda: START_MS)
        return MemoryStore(memory, "n1"), MemoryStore(memory, "n2")
    server = fake_server()
    first, second = (
        open_fake_store(server, DEPLOYMENT, node) if kind == "fake" else open_redis_store(valkey, DEPLOYMENT, node)
        for node in ("n1", "n2")
    )
    return await stack.enter_async_context(first), await stack.enter_async_context(second)


@pytest.mark.parametrize("kind", ["memory", "fake", "real"])
async def test_every_node_hears_of_room_and_one_of_them_takes_the_job(kind: str, valkey: Endpoint) -> None:
    async with AsyncExitStack() as stack:
        await emptied(valkey)
        nodes = await two_nodes(kind, valkey, stack)
        ears = [Listening() for _ in nodes]
        for node, ear in zip(nodes, ears, strict=True):
            node.listen(ear)
        await nodes[0].enlist(Claim("runs", "a0", "", "alice"), ONE, START_MS, WITHIN_MS)
        with anyio.fail_after(5):
            while not all(ear.rooms for ear in ears):
                await nodes[0].look(f"{0:08x}-0")
        found = [[taken.holder for taken in await node.dispatch("runs", 32, ONE)] for node in reversed(nodes)]
        assert found == [["a0"], []]
        assert [ear.rooms for ear in ears] == [1, 1]


async def commands_of(house: House, caps: Caps) -> tuple[list[str], int]:
    """Who a dispatch takes, and how many commands the server carried out for it."""
    assert house.link is not None
    await house.link.call("CONFIG", "RESETSTAT")
    taken = await house.dispatch(most=1, caps=caps)
    stats: bytes = await house.link.call("INFO", "commandstats")
    return taken, sum(int(line.split(b"calls=")[1].split(b",")[0]) for line in stats.splitlines()[1:])


async def test_ten_thousand_jobs_of_one_subject_cost_a_dispatch_no_more_than_ten_and_hide_nobody(real: House) -> None:
    spent = dict[int, int]()
    last = 0
    for length in (10, 10_000):
        async with anyio.create_task_group() as tasks:
            for n in range(last, length):
                tasks.start_soon(real.enlist, f"h{n:05}", "alice", WIDE, f"a{n % 3}")
        last = length
        taken, spent[length] = await commands_of(real, WIDE)
        assert len(taken) == 1
        assert taken[0].startswith("h0000")
    assert spent[10_000] == spent[10]
    await real.enlist("b0", "bob", WIDE)
    assert "b0" in await real.dispatch(most=2, caps=WIDE)
    assert await real.ledger.counted("runs") == Counted(4, 0, queued=9_997, weight=4)
