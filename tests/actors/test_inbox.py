"""What waits for whose decision, asked at any node (extensions §3)."""

import uuid
from typing import Any

import anyio
import pytest

from actors import codec
from actors.companions import inbox
from actors.decisions import Caller, Waiting
from actors.events import ApprovalRequested
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Event, Listed, Part, Recorded, Store
from runstream.host import Host
from tests.actors.conversing import Opening, opening
from tests.actors.reviewing import REVIEWED, CountingTool, anybody, begun, call, tooled, using
from tests.actors.support import Clock, asking, new_memory, until, until_so
from tests.actors.working import code_of
from tests.eventstore.conftest import valkey

__all__ = ["opening", "valkey"]

pytestmark = pytest.mark.anyio

MANY = 1_000
CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}


async def asked(
    store: Store,
    subject: str,
    at_ms: int,
    *,
    name: str = "reviewed",
    provider: str = "fake",
    arguments: bytes = b'{"n":1}',
) -> str:
    """The id of an approval that waits, as a run would have written it."""
    approval_id, run_id = str(uuid.uuid4()), str(uuid.uuid4())
    requested = ApprovalRequested(at_ms, run_id, subject, provider, call(name, arguments=arguments), "pause")
    part = Part(actor=approval_id, log=0, events=(Event(codec.encode(requested)),))
    listed = (Listed(inbox(subject), approval_id, at_ms),)
    told = await store.append(Append(command=f"a{approval_id}", parts=(part,), listed=listed))
    assert isinstance(told, Recorded)
    return approval_id


def ids_of(waiting: Any) -> list[str]:
    return [one.approval_id for one in waiting]


def reviewing(store: Store) -> Any:
    return tooled(using(call("reviewed")), store, CountingTool("reviewed", reviewed=True))


async def waiting_for(host: Host, run_id: str, caller: Caller | None = None) -> Waiting:
    """The question of a run, once it was asked."""
    found: list[Waiting] = []

    async def asked_by_now() -> bool:
        everything = await host.decisions.waiting(caller or anybody(), 100)
        found[:] = [one for one in everything if one.asked.run_id == run_id]
        return bool(found)

    await until_so(asked_by_now)
    return found[0]


async def gone(host: Host) -> bool:
    return not await host.decisions.waiting(anybody(), 100)


async def test_what_waits_is_listed_on_every_node_the_oldest_first(opening: Opening) -> None:
    one, two = await opening("n1"), await opening("n2")
    async with reviewing(one) as here, reviewing(two) as there:
        times = [(number * 7) % 20 for number in range(20)]
        found = {at_ms: await asked((one, two)[at_ms % 2], "ann", 1_000 + at_ms) for at_ms in times}
        expected = [found[at_ms] for at_ms in sorted(found)]
        for host in (here, there):
            assert ids_of(await host.decisions.waiting(anybody(), 100)) == expected
            assert ids_of(await host.decisions.waiting(anybody(), 20)) == expected
            assert ids_of(await host.decisions.waiting(anybody(), 3)) == expected[:3]


async def test_only_what_the_caller_may_decide_is_listed() -> None:
    store = MemoryStore(new_memory(), "n1")
    async with reviewing(store) as host:
        mine = [await asked(store, "ann", at_ms, name=name) for at_ms, name in enumerate("abcabc")]
        other = await asked(store, "ann", 9, provider="other")
        await asked(store, "bob", 0, name="a")

        def caller(provider: str, *names: str) -> Caller:
            return Caller("ann", lambda of, name: of == provider and name in names, lambda _of, _name: True)

        listed = host.decisions.waiting
        assert ids_of(await listed(caller("fake", "a"), 10)) == [mine[0], mine[3]]
        assert ids_of(await listed(caller("fake", "c", "b"), 3)) == [mine[1], mine[2], mine[4]]
        assert ids_of(await listed(caller("fake", "c"), 1)) == [mine[2]]
        assert ids_of(await listed(caller("other", "reviewed"), 10)) == [other]
        assert ids_of(await listed(caller("fake"), 10)) == []


async def test_what_waits_for_others_neither_shows_nor_is_in_the_way() -> None:
    store = MemoryStore(new_memory(), "n1")
    async with reviewing(store) as host:
        for at_ms in range(MANY):
            await asked(store, "bob", at_ms)
        assert await host.decisions.waiting(anybody(), 100) == []
        mine = await asked(store, "ann", MANY)
        assert ids_of(await host.decisions.waiting(anybody(), 100)) == [mine]
        assert len(await host.decisions.waiting(anybody("bob"), 100)) == 100
        assert await host.decisions.waiting(anybody("bo"), 100) == []


async def test_the_question_says_all_that_a_decision_must_repeat() -> None:
    memory = new_memory(Clock())
    async with reviewing(MemoryStore(memory, "n1")) as one, reviewing(MemoryStore(memory, "n2")) as two:
        run_id = await begun(one, REVIEWED)
        waiting = await waiting_for(two, run_id)
        asked_for = waiting.asked
        assert (asked_for.run_id, asked_for.provider, asked_for.call) == (run_id, "fake", call("reviewed"))
        assert (asked_for.subject, asked_for.idle_policy, asked_for.expires_ms) == ("ann", "continue", None)
        await two.decisions.decide(anybody(), waiting.approval_id, asked_for.run_id, CALL, "approve")
        assert await gone(one)
        assert await gone(two)


@pytest.mark.parametrize("decision", ["approve", "deny", "cancel"])
async def test_what_was_decided_is_listed_nowhere_any_more(decision: Any) -> None:
    memory = new_memory(Clock())
    async with reviewing(MemoryStore(memory, "n1")) as one, reviewing(MemoryStore(memory, "n2")) as two:
        run_id = await begun(one, REVIEWED)
        waiting = await waiting_for(one, run_id)
        await two.decisions.decide(anybody(), waiting.approval_id, run_id, CALL, decision)
        assert await gone(one)
        assert await gone(two)
        assert not [name for (_, name), members in memory.listed.items() if name.startswith("inbox:") and members]


async def test_what_ran_out_is_listed_nowhere_even_before_anybody_noticed() -> None:
    clock = Clock()
    memory = new_memory(clock)
    asking_soon = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 60_000}
    async with reviewing(MemoryStore(memory, "n1")) as one, reviewing(MemoryStore(memory, "n2")) as two:
        run_id = await begun(one, REVIEWED, approvals=asking_soon)
        waiting = await waiting_for(two, run_id)
        assert waiting.asked.expires_ms is not None
        clock.ahead_ms += 60_000
        assert await two.decisions.waiting(anybody(), 10) == []
        await until(lambda: memory.actors[run_id].heads.ended)
        assert await gone(one)
        assert not inboxes(memory)


def inboxes(memory: Memory) -> list[str]:
    return [one for (_, name), members in memory.listed.items() if name.startswith("inbox:") for one in members]


@pytest.mark.parametrize("origin", ["job", "foreground"])
async def test_what_a_cancelled_run_asked_is_listed_nowhere_any_more(origin: Any) -> None:
    memory = new_memory(Clock())
    async with reviewing(MemoryStore(memory, "n1")) as one, reviewing(MemoryStore(memory, "n2")) as two:
        run_id = await begun(one, REVIEWED, origin=origin)
        await waiting_for(two, run_id)
        await two.cancel(run_id)
        assert await gone(one)
        assert await gone(two)
        assert not inboxes(memory)


async def test_what_a_client_asked_that_left_is_listed_nowhere_any_more() -> None:
    memory = new_memory(Clock())
    async with reviewing(MemoryStore(memory, "n1")) as one, reviewing(MemoryStore(memory, "n2")) as two:
        request = asking(tools=["reviewed"], approvals={"mode": "interactive", "idlePolicy": "pause"})
        async with one.attend(request, subject="ann") as attended:
            await waiting_for(two, attended.run_id)
        await until(lambda: memory.actors[attended.run_id].heads.ended)
        assert await gone(two)


async def test_many_deciders_that_share_an_inbox_decide_each_question_once() -> None:
    memory, tool = new_memory(Clock()), CountingTool("reviewed", reviewed=True)
    async with (
        tooled(using(call("reviewed")), MemoryStore(memory, "n1"), tool) as one,
        tooled(using(call("reviewed")), MemoryStore(memory, "n2"), tool) as two,
    ):
        run_ids = [await begun(one, REVIEWED) for _ in range(12)]
        decided: list[str] = []

        async def decide(host: Host) -> None:
            while len(decided) < len(run_ids):
                for waiting in await host.decisions.waiting(anybody(), 5):
                    run_id = waiting.asked.run_id
                    code = await code_of(host.decisions.decide(anybody(), waiting.approval_id, run_id, CALL, "approve"))
                    assert code in {"", "APPROVAL_NOT_FOUND"}
                    decided.extend([] if code else [run_id])
                await anyio.lowlevel.checkpoint()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for host in (one, two, one, two):
                    tasks.start_soon(decide, host)
        assert sorted(decided) == sorted(run_ids)
        await until(lambda: all(memory.actors[run_id].heads.ended for run_id in run_ids))
        assert len(tool.seen) == len(run_ids)
        assert await gone(two)
