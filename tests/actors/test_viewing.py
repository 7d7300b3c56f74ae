"""Following runs from any cursor, on any node: each cursor has its one answer, and every reader sees the same."""

import random
import string
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from actors import run
from actors.bounds import accept
from actors.errors import Problem, Refused
from actors.events import RunAccepted
from actors.plan import Claiming, Hold
from actors.viewing import PAGE_BYTES_MAX, PAGE_EVENTS_MAX, Cursor, cursor_of, digest_of, refused_by
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.memory import Memory, MemoryStore
from eventstore.reader import CursorAhead, CursorTooOld
from eventstore.store import HistoryLost, Item, Store
from projections import wire_feed
from runstream.host import Host
from tests.actors.reviewing import begun
from tests.actors.support import asking, ended, hosted, items_of, new_memory, saying, stalling, types, until
from tests.eventstore.conftest import DEPLOYMENT

pytestmark = pytest.mark.anyio

LONG_MS = 600_000
AT_MS = 1_767_607_200_000
OVER = "over"
NOWHERE = "0b6c2a52-9999-4f7e-9a41-5f2f5f3b7c10"
BURSTS, BURST = 8, 40
some = settings(max_examples=25, deadline=None)


def anything(_: RunAccepted) -> bool:
    return True


class Written:
    """A run of ann's whose feed a test writes by hand, and that nobody executes."""

    def __init__(self, host: Host, run_id: str, hold: Hold) -> None:
        self.run_id = run_id
        self._shell = host.node.around.shell
        self._hold = hold

    async def say(self, *texts: str) -> None:
        """Append a delta for each of *texts*, all at once."""
        deltas = [one for text in texts for one in wire_feed.deltas(self.run_id, text, AT_MS)]
        await self._shell.pour(self._hold, deltas)

    async def end(self) -> None:
        await self._shell.tell(self.run_id, run.Cancel(Problem("CANCELLED", "enough")), command_id="the-end")


async def written(host: Host, *texts: str, **members: Any) -> Written:
    """Begin such a run, and let it say *texts*."""
    request, around = host.checked(asking(**members)), host.node.around
    run_id = around.fresh_id()
    told = await around.shell.tell(
        run_id,
        accept(request, host.terms.bounds(request, "ann", frozenset()), subject="ann", admitted=True),
        command_id=around.fresh_id(),
        claim=Claiming(host.store.node, LONG_MS),
        fresh=True,
    )
    begun_run = Written(host, run_id, Hold.of(run_id, told.heads))
    if texts:
        await begun_run.say(*texts)
    return begun_run


async def followed(host: Host, run_id: str, cursor: Cursor = Cursor(), subject: str = "ann") -> list[Item]:  # noqa: B008
    """What follows *cursor*, to the end."""
    async with host.viewing.watch(subject, run_id, anything, cursor) as watched:
        return [item async for batch in watched.batches for item in batch]


async def answer(host: Host, run_id: str, text: str, subject: str = "ann", may: Any = anything) -> Any:
    """How a stream answers a cursor, within a second: the numbers that follow, that nothing does, or a code."""
    with anyio.fail_after(1):
        try:
            async with host.viewing.watch(subject, run_id, may, cursor_of(text)) as watched:
                if watched.over:
                    return OVER
                return [item.number for item in await anext(aiter(watched.batches))]
        except Refused as refused:
            return refused.code


async def paged(host: Host, run_id: str, text: str, subject: str = "ann", may: Any = anything) -> Any:
    """How a page answers a cursor."""
    with anyio.fail_after(1):
        try:
            seen = await host.viewing.page(subject, run_id, may, cursor_of(text))
        except Refused as refused:
            return refused.code
    return [item.number for item in seen.items]


def ids_of(items: Sequence[Item]) -> list[str]:
    """The cursors that the stream tells of *items*."""
    return [f"{item.number}.{digest_of(item.data)}" for item in items]


@asynccontextmanager
async def nodes(kind: str, count: int) -> AsyncIterator[list[Host]]:
    """Hosts of one deployment whose model says nothing."""
    async with AsyncExitStack() as stack:
        memory, server = new_memory(), fake_server()
        found: list[Host] = []
        for number in range(count):
            store: Store = MemoryStore(memory, f"n{number}")
            if kind == "fake":
                store = await stack.enter_async_context(open_fake_store(server, DEPLOYMENT, f"n{number}"))
            found.append(await stack.enter_async_context(hosted(stalling(), store)))
        yield found


# Cursors.


@pytest.mark.parametrize("how", [answer, paged])
async def test_each_cursor_of_an_ended_run_has_its_one_answer(how: Any) -> None:
    async with hosted(saying("hi", pieces=["h", "i"])) as host:
        items = await items_of(host, asking())
        other = await items_of(host, asking())
        run_id, told, last = run_of(items), ids_of(items), len(items)
        everything = list(range(1, last + 1))
        over: Any = OVER if how is answer else []
        answers = {
            "": everything,
            "0": everything,
            "1": everything[1:],
            told[0]: everything[1:],
            told[2]: everything[3:],
            str(last - 1): [last],
            told[-2]: [last],
            str(last): over,
            told[-1]: over,
            str(last + 1): "INVALID_CURSOR",
            str(2**49): "INVALID_CURSOR",
            str(2**63): "INVALID_CURSOR",
            f"{last + 1}.{'0' * 8}": "HISTORY_LOST",
            ids_of(other)[1]: "HISTORY_LOST",
            told[1].replace("2.", "3."): "HISTORY_LOST",
        }
        for text in ("-1", "007", "1e3", "5 ", " 5", "+1", "1.", "1.abc", "1.ABCDEF01", "٣", "1\n", "9" * 10_000, "x"):
            answers[text] = "INVALID_CURSOR"
        assert {text: await how(host, run_id, text) for text in answers} == answers


async def test_each_cursor_of_a_running_run_has_its_one_answer() -> None:
    async with hosted(stalling()) as host:
        written_run = await written(host, "a", "b", "c")
        items = (await host.store.page(written_run.run_id, 0)).items
        told = ids_of(items)
        answers: dict[str, Any] = {
            "": [1, 2, 3, 4],
            "2": [3, 4],
            told[1]: [3, 4],
            "4": [],
            told[3]: [],
            "5": "INVALID_CURSOR",
            f"5.{'0' * 8}": "HISTORY_LOST",
            f"4.{'0' * 8}": "HISTORY_LOST",
            "4.": "INVALID_CURSOR",
        }
        for how in (answer, paged):
            assert {text: await how(host, written_run.run_id, text) for text in answers} == answers


WRONG = st.integers(0, 2**32 - 1).map("{:08x}".format)
NUMBERS = st.one_of(st.integers(0, 7), st.integers(0, 10**15 - 1))
STRAY = st.text(min_size=1).filter(lambda text: bool(set(text) - set(string.digits + "abcdef.")))
MALFORMED = st.one_of(
    STRAY,
    NUMBERS.map("0{}".format),
    NUMBERS.map("-{}".format),
    st.integers(10**15).map(str),
    st.tuples(NUMBERS, st.text("0123456789abcdef", max_size=12).filter(lambda text: len(text) != 8)).map(
        "{0[0]}.{0[1]}".format
    ),
)


@some
@given(malformed=st.lists(MALFORMED, max_size=8), numbers=st.lists(st.tuples(NUMBERS, st.none() | WRONG), max_size=8))
async def test_whatever_is_said_to_be_a_cursor_is_answered_at_once(
    malformed: list[str], numbers: list[tuple[int, str | None]]
) -> None:
    async with hosted(stalling()) as host:
        written_run = await written(host, "a", "b", "c", "d")
        told = ids_of((await host.store.page(written_run.run_id, 0)).items)
        for text in malformed:
            assert await paged(host, written_run.run_id, text) == "INVALID_CURSOR", text
        for number, digest in numbers:
            text = str(number) if digest is None else f"{number}.{digest}"
            follows = number <= 5 and (digest is None or number == 0 or text == told[number - 1])
            expected = list(range(number + 1, 6)) if follows else "HISTORY_LOST" if digest else "INVALID_CURSOR"
            assert await paged(host, written_run.run_id, text) == expected, text


def test_what_the_feed_refuses_in_the_middle_is_told_like_what_is_refused_at_once() -> None:
    told = {
        error: refused_by(error, "r").problem for error in (CursorAhead(5, 3), CursorTooOld(1, 4), HistoryLost("r"))
    }
    assert [problem.code for problem in told.values()] == ["INVALID_CURSOR", "CURSOR_EXPIRED", "HISTORY_LOST"]
    assert [problem.oldest for problem in told.values()] == [UNSET, 4, UNSET]
    assert [problem.outcome for problem in told.values()] == [UNSET, UNSET, "uncertain"]


def run_of(items: Sequence[Item]) -> str:
    data = items[0].data
    return data[data.index(b'"runId":"') + 9 :][:36].decode()


async def test_what_retention_took_is_told_and_not_passed_over() -> None:
    async with hosted(saying("hi", pieces=["h", "i"])) as host:
        items = await items_of(host, asking(idempotencyKey="k"))
        run_id, last = run_of(items), len(items)
        await host.node.around.shell.trim(run_id, command_id="trim")
        for text in ("", "1", str(last - 1), ids_of(items)[1]):
            with pytest.raises(Refused) as told:
                await host.viewing.page("ann", run_id, anything, cursor_of(text))
            assert (told.value.code, told.value.problem.oldest) == ("CURSOR_EXPIRED", last + 1)
            assert await answer(host, run_id, text) == "CURSOR_EXPIRED"
        assert await answer(host, run_id, str(last)) == await answer(host, run_id, ids_of(items)[-1]) == OVER
        assert await answer(host, run_id, str(last + 1)) == "INVALID_CURSOR"


async def test_a_run_that_was_erased_is_no_run_any_more() -> None:
    async with hosted(saying("hi")) as host:
        run_id = run_of(await items_of(host, asking()))
        await host.node.around.shell.erase(run_id, command_id="erase")
        for text in ("", "1", "99"):
            assert await answer(host, run_id, text) == await paged(host, run_id, text) == "RUN_NOT_FOUND"


def older(memory: Memory, run_id: str, feed: int) -> Memory:
    """The same store as it was when the run had *feed* events."""
    before, of = new_memory(memory.clock), memory.actors[run_id]
    kept = before.actors[run_id]
    kept.log = {version: entry for version, entry in of.log.items() if entry.feed_head <= feed}
    kept.feed = {number: data for number, data in of.feed.items() if number <= feed}
    kept.heads = replace(of.heads, log=len(kept.log), feed=feed, ended=False, epoch=1)
    return before


async def test_a_store_that_came_back_older_is_noticed_by_whoever_saw_more() -> None:
    memory = new_memory()
    async with hosted(stalling(), MemoryStore(memory, "n1")) as host:
        first = await written(host, "a", "b", "c")
        seen = ids_of((await host.store.page(first.run_id, 0)).items)
    lost = older(memory, first.run_id, 2)
    async with hosted(stalling(), MemoryStore(lost, "n1")) as host:
        for how in (answer, paged):
            assert await how(host, first.run_id, seen[0]) == [2]
            assert await how(host, first.run_id, seen[2]) == await how(host, first.run_id, seen[3]) == "HISTORY_LOST"
            assert await how(host, first.run_id, "4") == "INVALID_CURSOR"
        hold = Hold.of(first.run_id, lost.actors[first.run_id].heads)
        await Written(host, first.run_id, hold).say("other", "words", "than", "before")
        for how in (answer, paged):
            assert await how(host, first.run_id, seen[1]) == [3, 4, 5, 6]
            assert await how(host, first.run_id, seen[2]) == await how(host, first.run_id, seen[3]) == "HISTORY_LOST"
            assert await how(host, first.run_id, "4") == [5, 6], "a bare number cannot know"
        with pytest.raises(Refused) as told:
            await host.viewing.page("ann", first.run_id, anything, cursor_of(seen[2]))
        assert told.value.problem.outcome == "uncertain"


# Who may.


async def test_a_run_is_shown_to_its_subject_alone_and_only_with_its_grants() -> None:
    async with hosted(saying("hi")) as host:
        run_id = run_of(await items_of(host, asking()))
        for how in (answer, paged):
            for stranger in ("bob", "", "ann "):
                for text in ("", "1", "99"):
                    assert await how(host, run_id, text, stranger) == "RUN_NOT_FOUND"
            for unknown in (NOWHERE, "", "x", run_id.upper(), f"{run_id}x", "../" + run_id, "é" * 36, "0" * 5_000):
                assert await how(host, unknown, "") == "RUN_NOT_FOUND"
            for text in ("", "99"):
                assert await how(host, run_id, text, may=lambda _: False) == "FORBIDDEN"
                assert await how(host, run_id, text, "bob", lambda _: False) == "RUN_NOT_FOUND"


async def test_the_caller_is_judged_by_what_the_run_uses() -> None:
    judged: list[str] = []

    def may(accepted: RunAccepted) -> bool:
        judged.append(accepted.provider)
        return True

    async with hosted(saying("hi")) as host:
        run_id = run_of(await items_of(host, asking()))
        await answer(host, run_id, "", may=may)
        await paged(host, run_id, "", may=may)
        assert judged == ["fake", "fake"]


# Pages.


async def test_pages_hold_so_many_events_and_say_how_the_run_stands() -> None:
    async with hosted(stalling()) as host:
        long = await written(host)
        await long.say(*["x"] * (PAGE_EVENTS_MAX + 5))
        seen = await host.viewing.page("ann", long.run_id, anything, Cursor())
        assert (len(seen.items), seen.state, seen.head) == (PAGE_EVENTS_MAX, "running", PAGE_EVENTS_MAX + 6)
        rest = await host.viewing.page("ann", long.run_id, anything, Cursor(seen.items[-1].number))
        assert [item.number for item in rest.items] == list(range(PAGE_EVENTS_MAX + 1, PAGE_EVENTS_MAX + 7))
        await long.end()
        over = await host.viewing.page("ann", long.run_id, anything, Cursor(PAGE_EVENTS_MAX + 7))
        assert (list(over.items), over.state, over.head) == ([], "cancelled", PAGE_EVENTS_MAX + 7)


async def test_pages_hold_so_many_bytes_but_one_event_at_least() -> None:
    async with hosted(stalling()) as host:
        large = await written(host)
        for _ in range(4):
            await large.say(*["x" * 60_000] * 8)
        cursor, numbers = 0, list[int]()
        while (seen := await host.viewing.page("ann", large.run_id, anything, Cursor(cursor))).items:
            assert sum(len(item.data) for item in seen.items[:-1]) < PAGE_BYTES_MAX
            numbers += [item.number for item in seen.items]
            cursor = numbers[-1]
        assert numbers == list(range(1, 34))


@pytest.mark.parametrize("kind", ["failed", "completed"])
async def test_a_page_of_an_ended_run_says_how_it_ended(kind: str) -> None:
    model = saying("hi") if kind == "completed" else saying("hi", pieces=["other"])
    async with hosted(model) as host:
        items = await items_of(host, asking())
        assert (await host.viewing.page("ann", run_of(items), anything, Cursor())).state == kind


async def test_a_run_that_ends_while_its_page_is_read_is_not_told_half() -> None:
    memory = new_memory()
    store: Any = MemoryStore(memory, "n1")
    async with hosted(stalling(), store) as host:
        ending = await written(host, "a")
        page = store.page

        async def ended_before(*words: Any) -> Any:
            store.page = page
            await ending.end()
            return await page(*words)

        store.page = ended_before
        seen = await host.viewing.page("ann", ending.run_id, anything, Cursor())
        assert (seen.state, types(seen.items)[-1]) == ("cancelled", "run.cancelled")


# Several readers.


@pytest.mark.parametrize("kind", ["memory", "fake"])
async def test_a_reader_on_another_node_sees_the_same_bytes_under_the_same_numbers(kind: str) -> None:
    async with nodes(kind, 2) as (one, two), anyio.create_task_group() as tasks:
        spoken = await written(one, "a")
        found: dict[int, list[Item]] = {}

        async def read(number: int, host: Host, cursor: int) -> None:
            found[number] = []
            async with host.viewing.watch("ann", spoken.run_id, anything, Cursor(cursor)) as watched:
                async for batch in watched.batches:
                    found[number] += batch

        for number, host in enumerate((one, two, two)):
            tasks.start_soon(read, number, host, number)
        await until(lambda: len(found) == 3)
        for word in ("b", "ü\u2028🌍", "c" * 9_000, "d"):
            await spoken.say(word, word)
        await spoken.end()
        await until(lambda: all(items and types(items)[-1] == "run.cancelled" for items in found.values()))
        assert [item.number for item in found[0]] == list(range(1, 12))
        assert found[1] == found[0][1:]
        assert found[2] == found[0][2:]


async def test_one_reader_of_several_that_leaves_ends_nothing() -> None:
    memory = new_memory()
    async with (
        hosted(stalling(), MemoryStore(memory, "n1")) as one,
        hosted(stalling(), MemoryStore(memory, "n2")) as two,
        anyio.create_task_group() as tasks,
    ):
        shared = await written(one, "a")
        stays: list[Item] = []

        async def stay() -> None:
            stays.extend(await followed(two, shared.run_id))

        tasks.start_soon(stay)
        for host in (one, two):
            async with host.viewing.watch("ann", shared.run_id, anything, Cursor()) as watched:
                assert await anext(aiter(watched.batches))
                assert host.node.clients.viewers >= 1
            await shared.say("b")
        await shared.end()
        await until(lambda: bool(stays))
        assert [item.number for item in stays] == [1, 2, 3, 4, 5]
        assert one.node.clients.viewers == 0
        await until(lambda: two.node.clients.viewers == 0)


async def test_a_job_does_not_care_who_looks_at_it() -> None:
    async with hosted(stalling("a")) as host:
        run_id = await begun(host, approvals=None)
        async with host.viewing.watch("ann", run_id, anything, Cursor()) as watched:
            assert await anext(aiter(watched.batches))
        await until(lambda: run_id in host.node.executing)
        assert not [reason for due in memory_of(host).due.values() for _, reason in due if reason == "client"]
        await host.cancel(run_id)
        assert types(await ended(host, run_id))[-1] == "run.cancelled"


def memory_of(host: Host) -> Memory:
    store: Any = host.store
    found: Memory = store._memory
    return found


async def test_whoever_comes_and_is_gone_at_once_harms_nothing() -> None:
    async with hosted(stalling("a")) as host, host.attend(asking(resume={"graceMs": 5_000}), subject="ann") as attended:
        for _ in range(5):
            async with host.viewing.watch("ann", attended.run_id, anything, Cursor()):
                pass
        assert host.node.clients.has(attended.run_id)
        assert host.node.clients.viewers == 1


@pytest.mark.parametrize(("kind", "readers"), [("memory", 200), ("fake", 40)])
async def test_readers_that_come_at_any_moment_of_bursts_miss_nothing(kind: str, readers: int) -> None:
    dice = random.Random(4)  # noqa: S311 - the same moments each time
    async with nodes(kind, 2) as hosts:
        busy = await written(hosts[0])
        last = 2 + BURSTS * BURST
        found: list[tuple[int, list[int]]] = []

        async def read(host: Host, at: int, after: int) -> None:
            for _ in range(at):
                await anyio.lowlevel.checkpoint()
            head = (await host.store.page(busy.run_id, 0, 1)).heads.feed
            items = await followed(host, busy.run_id, Cursor(min(after, head)))
            found.append((min(after, head), [item.number for item in items]))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for number in range(readers):
                    tasks.start_soon(read, hosts[number % 2], dice.randrange(400), dice.randrange(last))
                for _ in range(BURSTS):
                    for _ in range(0, BURST, 4):
                        await busy.say(*"word")
                    for _ in range(30):
                        await anyio.lowlevel.checkpoint()
                await busy.end()
        assert len(found) == readers
        assert all(numbers == list(range(after + 1, last + 1)) for after, numbers in found)
        assert len({after for after, _ in found}) > readers / 4
