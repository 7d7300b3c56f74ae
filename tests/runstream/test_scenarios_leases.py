"""The scenarios `lease-fencing` and `append-contract` of jobs, restated: a lease is one job's, and heads are the order.

The protocol's scenarios speak of a store that has one owner and knows events.
Here each job has an owner of its own and a fence, and the store knows how far streams go, not what is in them.
"""

from typing import Any, NamedTuple

import pytest
from msgspec import Raw

from actors import run
from actors.decider import Receipt
from actors.events import RunAccepted
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Append, Conflict, Ended, Event, Fenced, Part, Recorded
from tests.scenario_world import DEPLOYMENT

pytestmark = pytest.mark.anyio

LEASE_MS = 300
RUNNING, QUEUED, COMPLETED = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2, 3))
_SUBMITTED = Event(b"submitted")


class Time:
    """The store's clock."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class Two(NamedTuple):
    """Two nodes over one store, in which three jobs are queued."""

    time: Time
    old: MemoryStore
    new: MemoryStore


async def _submitted() -> Two:
    time = Time()
    memory = Memory(DEPLOYMENT, time)
    two = Two(time, MemoryStore(memory, "old"), MemoryStore(memory, "new"))
    for job in (RUNNING, QUEUED, COMPLETED):
        outcome = await two.old.append(Append(command="s", parts=(Part(actor=job, log=0, events=(_SUBMITTED,)),)))
        assert isinstance(outcome, Recorded)
    return two


async def _start(store: MemoryStore, job: str, *, log: int = 1) -> Any:
    part = Part(actor=job, log=log, events=(Event(b"started"),), owner=store.node, lease_ms=LEASE_MS)
    return await store.append(Append(command=f"start-{store.node}", parts=(part,)))


async def _write(store: MemoryStore, job: str, command: str, **says: Any) -> Any:
    part = Part(
        **{"actor": job, "log": 2, "feed": 0, "events": (Event(b"e", 1),), "items": (b"i",), "epoch": 1, **says}
    )
    return await store.append(Append(command=command, parts=(part,)))


async def _both_started() -> Two:
    """*old* has the running job, and another one that it has completed."""
    two = await _submitted()
    for job in (RUNNING, COMPLETED):
        assert isinstance(await _start(two.old, job), Recorded)
    assert isinstance(await _write(two.old, RUNNING, "first"), Recorded)
    assert isinstance(await _write(two.old, COMPLETED, "last", ended=True), Recorded)
    return two


async def _epochs(store: MemoryStore, job: str) -> int:
    return (await store.look(job)).heads.epoch


async def test_a_second_owner_waits_while_the_lease_of_a_job_runs() -> None:
    two = await _both_started()
    assert isinstance(await _start(two.new, RUNNING, log=3), Fenced)
    two.time.ms += LEASE_MS - 1
    assert isinstance(await _start(two.new, RUNNING, log=3), Fenced)


async def test_a_second_owner_takes_another_job_meanwhile() -> None:
    two = await _both_started()
    assert isinstance(await _start(two.new, QUEUED), Recorded)


async def test_an_owner_whose_lease_was_taken_can_neither_renew_nor_append() -> None:
    two = await _both_started()
    two.time.ms += LEASE_MS + 1
    assert isinstance(await _start(two.new, RUNNING, log=3), Recorded)
    partition = two.old.partition_of(RUNNING)
    assert await two.old.renew(partition, {RUNNING: 1}, LEASE_MS) == {RUNNING: None}
    assert isinstance(await _write(two.old, RUNNING, "late", log=4, feed=1), Fenced)
    assert (await two.new.renew(partition, {RUNNING: 2}, LEASE_MS))[RUNNING] is not None


async def test_a_queued_job_is_started_by_one_node_only() -> None:
    two = await _submitted()
    assert isinstance(await _start(two.new, QUEUED), Recorded)
    assert isinstance(await _start(two.old, QUEUED), Conflict | Fenced)
    assert (await two.old.look(QUEUED)).heads.owner == "new"


async def test_a_completed_job_has_no_owner_to_lose() -> None:
    two = await _both_started()
    two.time.ms += LEASE_MS + 1
    assert isinstance(await _start(two.new, COMPLETED, log=3), Ended)
    heads = (await two.new.look(COMPLETED)).heads
    assert (heads.ended, heads.owner) == (True, "")


async def test_an_end_fences_whoever_owned_the_job() -> None:
    two = await _both_started()
    assert await _epochs(two.old, COMPLETED) == 2
    assert isinstance(await _write(two.old, COMPLETED, "more", log=3, feed=1), Fenced)


def test_a_job_that_has_ended_is_not_started_again() -> None:
    accepted = RunAccepted(1, "alice", "mock", "demo", Raw(b"{}"), origin="job")
    answered = run.decide(run.Ended(accepted, "failed", 2, "node"), run.Start(), 3)
    assert (list(answered.events), answered.answer) == ([], Receipt("already"))


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ({"feed": 1}, Conflict),
        ({"log": 3}, Conflict),
        ({"log": 1}, Conflict),
        ({"epoch": 0}, Fenced),
        ({"epoch": 2}, Fenced),
    ],
    ids=["after-a-gap", "after-an-event-that-is-not-there", "in-place-of-an-event", "unowned", "not-yet-owned"],
)
async def test_an_append_that_is_out_of_order_writes_nothing(says: dict[str, Any], kind: type[Any]) -> None:
    two = await _submitted()
    await _start(two.old, RUNNING)
    before = await two.old.look(RUNNING)
    assert isinstance(await _write(two.old, RUNNING, "w", **says), kind)
    assert (await two.old.look(RUNNING)).heads == before.heads


async def test_an_append_for_one_job_does_not_fit_another() -> None:
    two = await _both_started()
    for_running = {"log": 3, "feed": 1}
    assert isinstance(await _write(two.old, QUEUED, "w", **for_running), Fenced)
    assert isinstance(await _start(two.old, QUEUED), Recorded)
    assert isinstance(await _write(two.old, QUEUED, "w", **for_running), Conflict)
