"""Whoever is first: answers, cancels, expiries and departures that meet on two nodes.

Every trial is judged alike: receipt, event, approval, audit record and what the tool saw tell one story.
Where the nodes yield is chosen by a seeded generator, so that the trials meet in ever other orders.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from msgspec import Raw

from actors import codec, run
from actors.decisions import Decided
from actors.errors import Refused
from actors.events import (
    ApprovalDecided,
    ApprovalExpired,
    ReviewAsked,
    ReviewSettled,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    TicketOffered,
    ToolCompleted,
    ToolStarted,
)
from actors.foreground import CLIENT_GONE
from actors.node import NodeSettings
from actors.ports import ModelContext, ModelRequest, ToolMessage, Turn
from eventstore import keys
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import open_redis_store
from eventstore.store import Append, Deployment, Recorded, Store, Unavailable
from projections import wire_feed
from runstream.host import Host
from tests.actors.reviewing import (
    APPLICATION,
    REVIEWED,
    CountingTool,
    anybody,
    begun,
    call,
    tooled,
    wanted,
)
from tests.actors.support import Clock, FakeModel, asking, ended, types
from tests.eventstore.conftest import emptied, valkey

__all__ = ["valkey"]

pytestmark = pytest.mark.anyio

TRIALS = {"memory": 500, "fake": 20, "valkey": 60}
TOGETHER = 10
LONG = NodeSettings(lease_ms=60_000, routine_ms=20, permit_begin_ms=20_000, reassured_s=60, drain_s=1)
RARELY = NodeSettings(lease_ms=60_000, routine_ms=600_000, permit_begin_ms=20_000, reassured_s=60, drain_s=1)
EXPIRING = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 1_000}
DEPLOYMENT = Deployment("d", 4, b"key")
YIELDING = frozenset({"append", "look", "page", "take", "begun", "give", "post", "settle"})
CALL = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
TERMINAL = RunCompleted | RunFailed | RunCancelled
DECISIONS: list[Any] = ["approve", "deny", "cancel"]


class Yielding:
    """A node's store that lets others go first, here and there; it may lose answers, and its clock may be off."""

    def __init__(self, store: Any, random: Random) -> None:
        self._store = store
        self._random = random
        self.off_ms = 0
        self.loses: Callable[[Append], bool] = lambda _append: False
        self.asked: dict[str, anyio.Event] = {}
        """Set the moment in which a run's approval (or ticket) is stored, before its node hears of that."""

    def now_ms(self) -> int:
        return int(self._store.now_ms()) + self.off_ms

    def moment(self, run_id: str) -> anyio.Event:
        return self.asked.setdefault(run_id, anyio.Event())

    async def append(self, append: Append) -> Any:
        await self._yielded()
        lost = self.loses(append)
        if lost and self._random.random() < 0.5:
            raise Unavailable("nothing was sent", 1)
        outcome = await self._store.append(append)
        if isinstance(outcome, Recorded):
            for part in append.parts:
                if any(b'"review.asked"' in one.data or b'"ticket.offered"' in one.data for one in part.events):
                    self.moment(part.actor).set()
        if lost:
            raise Unavailable("the answer was lost", 1)
        await self._yielded()
        return outcome

    async def _yielded(self) -> None:
        for _ in range(self._random.randrange(5)):
            await checkpoint()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in YIELDING:
            return found

        async def later(*words: Any, **named: Any) -> Any:
            await self._yielded()
            answer = await found(*words, **named)
            await self._yielded()
            return answer

        return later


class Trials(NamedTuple):
    """Two nodes on one deployment, a look from outside, and what is drawn at random."""

    one: Host
    two: Host
    stores: tuple[Yielding, Yielding]
    outside: Store
    tool: CountingTool
    random: Random
    audit: Callable[[], Awaitable[list[dict[str, Any]]]]
    number: int
    clock: Clock

    async def run(self, trial: Callable[[int], Awaitable[None]]) -> None:
        """Make all trials, some at a time."""
        places = anyio.CapacityLimiter(TOGETHER)

        async def made(number: int) -> None:
            async with places:
                await trial(number)

        async with anyio.create_task_group() as tasks:
            for number in range(self.number):
                tasks.start_soon(made, number)

    def either(self) -> Host:
        return self.random.choice([self.one, self.two])


@asynccontextmanager
async def house(kind: str, request: pytest.FixtureRequest, stack: AsyncExitStack, clock: Clock) -> AsyncIterator[Any]:
    """Open nodes of one deployment by name, and read its audit."""
    if kind == "memory":
        memory = Memory(DEPLOYMENT, clock)

        async def audit_of_memory() -> list[bytes]:
            return [record for records in memory.outbox.values() for record in records]

        async def remembered(name: str) -> Any:
            return MemoryStore(memory, name)

        yield remembered, audit_of_memory
        return
    if kind == "fake":
        server = fake_server()
        opening: Any = lambda name: open_fake_store(server, DEPLOYMENT, name)  # noqa: E731 - one of two
    else:
        endpoint = request.getfixturevalue("valkey")
        await emptied(endpoint)
        opening = lambda name: open_redis_store(endpoint, DEPLOYMENT, name)  # noqa: E731 - the other
    opened: list[Any] = []

    async def node(name: str) -> Any:
        opened.append(await stack.enter_async_context(opening(name)))
        return opened[-1]

    async def audit() -> list[bytes]:
        link = opened[0]._commands
        streams = [keys.outbox(tag) for tag in keys.tags(DEPLOYMENT.partitions)]
        return [fields[1] for stream in streams for _, fields in await link.call("XRANGE", stream, "-", "+")]

    yield node, audit


@pytest.fixture(params=["memory", "fake", "valkey"])
async def trials(request: pytest.FixtureRequest) -> AsyncIterator[Trials]:
    random, clock = Random(request.node.name), Clock()  # noqa: S311 - a seed, no secret
    async with AsyncExitStack() as stack:
        node, audit = await stack.enter_async_context(house(request.param, request, stack, clock))
        outside = await node("outside")
        first, second = Yielding(await node("n1"), random), Yielding(await node("n2"), random)
        model = FakeModel(_uses_what_it_may)
        tool = CountingTool("reviewed", reviewed=True)
        one = await stack.enter_async_context(_hosted(model, first, tool, LONG))
        two = await stack.enter_async_context(_hosted(model, second, tool, RARELY))

        async def records() -> list[dict[str, Any]]:
            return [msgspec.json.decode(record) for record in await audit()]

        yield Trials(one, two, (first, second), outside, tool, random, records, TRIALS[request.param], clock)


async def _uses_what_it_may(request: ModelRequest, _: ModelContext) -> Turn:
    if any(isinstance(message, ToolMessage) for message in request.messages):
        return Turn(text="done")
    return Turn(tool_calls=(call(request.tools[0].name),))


def _hosted(model: Any, store: Any, tool: CountingTool, node: NodeSettings) -> Any:
    return tooled(model, store, tool, node=node)


async def log_of(trials: Trials, run_id: str) -> list[RunEvent]:
    return [codec.decode_run(entry.data) for entry in (await trials.outside.look(run_id)).entries]


async def waiting(trials: Trials, number: int, **members: Any) -> tuple[str, str]:
    """A run of the first node, foreground or job in turn, once its approval is stored; it may have expired by then."""
    origin: Any = "job" if number % 2 else "foreground"
    run_id = await begun(trials.one, REVIEWED, origin=origin, **members)
    await trials.stores[0].moment(run_id).wait()
    asked = next(event for event in await log_of(trials, run_id) if isinstance(event, ReviewAsked))
    return run_id, asked.approval_id


class Answers:
    """What deciders were told."""

    def __init__(self) -> None:
        self.receipts: list[Decided] = []
        self.refusals: list[str] = []

    async def decide(self, host: Host, run_id: str, approval_id: str, decision: Any) -> None:
        try:
            self.receipts.append(await host.decisions.decide(anybody(), approval_id, run_id, CALL, decision))
        except Refused as refused:
            self.refusals.append(refused.code)


async def judged(trials: Trials, run_id: str, approval_id: str, answers: Answers, *, lost: bool = False) -> str:
    """Wait for the end and compare all that was written and told; answers the outcome."""
    items = await ended(trials.two, run_id)
    log = await log_of(trials, run_id)
    assert [isinstance(event, TERMINAL) for event in log].index(True) == len(log) - 1
    (settled,) = [event for event in log if isinstance(event, ReviewSettled)]
    assert answers.receipts in ([Decided(run_id, "c1", settled)], [])
    assert set(answers.refusals) <= {"APPROVAL_NOT_FOUND"}
    assert lost or bool(answers.receipts) == bool(settled.by)
    shown = [msgspec.json.decode(wire_feed.numbered(one.number, one.data)) for one in items]
    (event,) = [one for one in shown if one["type"] == "approval.resolved"]
    assert event["resolution"] == wire_feed.resolved(run_id, "c1", settled)
    _, last = [codec.decode_approval(entry.data) for entry in (await trials.outside.look(approval_id)).entries]
    assert isinstance(last, ApprovalDecided | ApprovalExpired)
    told = ("expired", "") if isinstance(last, ApprovalExpired) else (last.outcome, last.by)
    assert (last.at_ms, *told) == (settled.at_ms, settled.outcome, settled.by)
    started = [number for number, one in enumerate(log) if isinstance(one, ToolStarted)]
    ran = [seen for seen in trials.tool.seen if seen[0] == run_id]
    assert ran in ([], [(run_id, "c1", {"n": 1})])
    assert len(started) <= (settled.outcome == "approved")
    assert len(ran) <= len(started)
    assert bool(ran) or not any(isinstance(one, ToolCompleted) for one in log)
    assert types(items)[-1] != "run.completed" or any(isinstance(one, ToolCompleted) for one in log)
    return settled.outcome


async def audited(trials: Trials, outcomes: dict[str, str]) -> None:
    """Compare the audit with how each approval was settled, once for all trials."""
    records = [record for record in await trials.audit() if record["type"] == "approval.resolved"]
    # The record's own members may change; what it says of the outcome may not.
    text = {_id(record): msgspec.json.encode(record).decode() for record in records}
    assert len(records) == len(outcomes)
    assert text.keys() == outcomes.keys()
    for approval_id, outcome in outcomes.items():
        assert f'"outcome":"{outcome}"' in text[approval_id]


def _id(record: dict[str, Any]) -> str:
    return str(record.get("approvalId") or record.get("resolution", {}).get("approvalId"))


async def test_a_cancel_meets_an_approval(trials: Trials) -> None:
    outcomes: dict[str, str] = {}

    async def trial(number: int) -> None:
        run_id, approval_id = await waiting(trials, number)
        answers = Answers()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trials.either().cancel, run_id)
            tasks.start_soon(answers.decide, trials.either(), run_id, approval_id, "approve")
        outcomes[approval_id] = await judged(trials, run_id, approval_id, answers)

    await trials.run(trial)
    await audited(trials, outcomes)
    assert set(outcomes.values()) == {"approved", "cancelled"} or trials.number < 100


@pytest.mark.parametrize("off_ms", [-5_000, 5_000], ids=["behind", "ahead"])
async def test_an_approval_meets_its_expiry_while_a_nodes_clock_is_off(trials: Trials, off_ms: int) -> None:
    outcomes: dict[str, str] = {}
    trials.stores[1].off_ms = off_ms

    async def trial(number: int) -> None:
        run_id, approval_id = await waiting(trials, number, approvals=_expiring(trials))
        answers = Answers()

        async def passes() -> None:
            await _pause(trials)
            trials.clock.ahead_ms += 1_000

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(passes)
            tasks.start_soon(answers.decide, trials.either(), run_id, approval_id, "approve")
        outcomes[approval_id] = await judged(trials, run_id, approval_id, answers)

    await trials.run(trial)
    await audited(trials, outcomes)
    assert "expired" in outcomes.values()


def _expiring(trials: Trials) -> dict[str, Any]:
    """An expiry that the clock of the memory jumps past, and that others reach by themselves."""
    return EXPIRING if trials.number >= 500 else EXPIRING | {"expiresAfterMs": 1 + trials.random.randrange(20)}


async def _pause(trials: Trials) -> None:
    for _ in range(trials.random.randrange(30)):
        await checkpoint()


async def test_two_reviewers_decide_at_once(trials: Trials) -> None:
    outcomes: dict[str, str] = {}

    async def trial(number: int) -> None:
        run_id, approval_id = await waiting(trials, number)
        answers = Answers()
        async with anyio.create_task_group() as tasks:
            for host in (trials.one, trials.two):
                tasks.start_soon(answers.decide, host, run_id, approval_id, trials.random.choice(DECISIONS))
        assert (len(answers.receipts), answers.refusals) == (1, ["APPROVAL_NOT_FOUND"])
        outcomes[approval_id] = await judged(trials, run_id, approval_id, answers)

    await trials.run(trial)
    await audited(trials, outcomes)


async def test_a_decision_comes_before_its_own_node_knows_that_it_asked(trials: Trials) -> None:
    outcomes: dict[str, str] = {}

    async def trial(number: int) -> None:
        run_id, approval_id = await waiting(trials, number)
        answers = Answers()
        host = trials.one if number % 4 < 2 else trials.two
        await answers.decide(host, run_id, approval_id, trials.random.choice(DECISIONS))
        assert len(answers.receipts) == 1
        outcomes[approval_id] = await judged(trials, run_id, approval_id, answers)

    await trials.run(trial)
    await audited(trials, outcomes)


async def test_a_decision_is_repeated_after_its_receipt_was_lost(trials: Trials) -> None:
    outcomes: dict[str, str] = {}
    losing: set[str] = set()
    trials.stores[1].loses = lambda append: (
        any(b'"review.settled"' in one.data for one in append.parts[0].events) and (append.parts[0].actor in losing)
    )

    async def trial(number: int) -> None:
        run_id, approval_id = await waiting(trials, 0)
        answers = Answers()
        losing.add(run_id)
        with pytest.raises(Unavailable):
            await answers.decide(trials.two, run_id, approval_id, "approve")
        losing.discard(run_id)
        await answers.decide(trials.one if number % 2 else trials.two, run_id, approval_id, "approve")
        assert len(answers.receipts) + len(answers.refusals) == 1
        outcomes[approval_id] = await judged(trials, run_id, approval_id, answers, lost=True)
        assert outcomes[approval_id] == "approved"

    await trials.run(trial)
    await audited(trials, outcomes)


async def test_a_result_meets_the_departure_of_the_client(trials: Trials) -> None:
    ends: set[str] = set()

    async def trial(_: int) -> None:
        request, told = trials.one.checked(asking(**wanted(APPLICATION))), list[str]()
        waived = frozenset({"app"})
        async with trials.one.runs.attend(request, subject="ann", streamed=True, waived=waived) as attended:
            run_id = attended.run_id
            await trials.stores[0].moment(run_id).wait()
            offer: Any = (await log_of(trials, run_id))[-1]

            async def deliver() -> None:
                await _pause(trials)
                try:
                    await trials.either().decisions.deliver(anybody(), offer.execution_id, run_id, "c1", Raw(b"1"))
                    told.append("accepted")
                except Refused as refused:
                    told.append(refused.code)

            async with anyio.create_task_group() as both:
                both.start_soon(deliver)
                await _pause(trials)
                trials.one.node.end_soon(run_id, run.Cancel(CLIENT_GONE, "client"))
        await ended(trials.two, run_id)
        log = await log_of(trials, run_id)
        assert [isinstance(event, TERMINAL) for event in log].index(True) == len(log) - 1
        assert sum(isinstance(event, TicketOffered) for event in log) == 1
        completed = any(isinstance(event, ToolCompleted) for event in log)
        assert told == ["accepted" if completed else "TOOL_EXECUTION_NOT_FOUND"]
        end = log[-1]
        if not completed:
            assert isinstance(end, RunCancelled)
            assert (end.problem.code, end.problem.outcome) == ("CANCELLED", "uncertain")
        ends.add(told[0])

    await trials.run(trial)
    assert len(ends) == 2 or trials.number < 100
