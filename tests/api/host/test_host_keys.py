"""Keys of the Host: one request each, whatever fails between the change and its record; and what is told meanwhile."""

from collections import Counter
from typing import Any

import pytest
from msgspec import Raw

from actors import host_key, shell, upkeep
from actors.decider import Receipt, Refusal
from actors.host_key import CONFLICT, KEPT_MS, Forget, Reserve, Settle
from api.host import reading
from eventstore.memory import MemoryStore
from eventstore.store import Append, HistoryLost, Unavailable
from tests.actors.reviewing import ALL_FEATURES, call, companions_of
from tests.actors.runs import NOW
from tests.actors.support import Clock, asking, new_memory, saying, stalling, until
from tests.api.asgi_client import sent
from tests.api.host.hosting import Desk, creating, hosting, rounds
from tests.api.host.test_host_runs import FAST, actor_of, plan, reviewed
from tests.api.host.test_routes import ANN, door, judged

pytestmark = pytest.mark.anyio

RESERVE = Reserve("ann", "a" * 64, "run")
REFUSED, APPLIED = Settle(Raw(b'{"code":"conflict"}'), applied=False), Settle(Raw(b"{}"), applied=True)


class Key:
    """A key by value."""

    def __init__(self) -> None:
        self.state: host_key.State = host_key.New()

    def tell(self, command: host_key.Command, now_ms: int = NOW) -> Any:
        decision = host_key.decide(self.state, command, now_ms)
        for event in decision.events:
            self.state = host_key.evolve(self.state, event)
        return decision.answer


def test_a_key_belongs_to_the_request_that_came_first() -> None:
    key = Key()
    assert key.tell(RESERVE) == Receipt("new")
    assert key.tell(RESERVE) == Receipt("already")
    assert key.tell(Reserve("ann", "b" * 64, "run")) == Refusal(CONFLICT)
    key.tell(APPLIED)
    assert key.tell(Reserve("ann", "b" * 64, "run")) == Refusal(CONFLICT)


def test_an_outcome_stays_unless_the_runs_log_says_that_a_twin_was_carried_out() -> None:
    key = Key()
    key.tell(APPLIED)
    assert isinstance(key.state, host_key.New)
    key.tell(RESERVE)
    key.tell(REFUSED)
    key.tell(Settle(Raw(b"1"), applied=False))
    assert isinstance(key.state, host_key.Settled)
    assert bytes(key.state.outcome) == b'{"code":"conflict"}'
    key.tell(APPLIED)
    key.tell(REFUSED)
    assert (bytes(key.state.outcome), key.state.applied) == (b"{}", True)


def test_a_key_is_forgotten_in_its_time_and_not_before() -> None:
    key = Key()
    key.tell(Forget())
    key.tell(RESERVE)
    key.tell(Forget(), NOW + KEPT_MS - 1)
    assert host_key.standing(key.state).due == {"retention": NOW + KEPT_MS}
    key.tell(Forget(), NOW + KEPT_MS)
    assert isinstance(key.state, host_key.Gone)
    assert (host_key.standing(key.state).ended, host_key.standing(key.state).erased) == (True, True)
    assert not host_key.decide(key.state, RESERVE, NOW).events


class Failing:
    """A store that does not take what a rule says, and finds what another says lost."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.refuses: Any = lambda _: False
        self.calls: set[str] = set()
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        if name in self.calls:
            raise Unavailable(name)
        return getattr(self._store, name)

    async def append(self, append: Append) -> Any:
        if self.refuses(append):
            raise Unavailable("append")
        return await self._store.append(append)

    async def look(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Any:
        if self.lost:
            raise HistoryLost(actor)
        return await self._store.look(actor, after, snapshot=snapshot)


def settles(append: Append) -> bool:
    return any(event.data.startswith(b'{"type":"host_key.settled') for part in append.parts for event in part.events)


async def test_a_change_counts_although_its_record_could_not_be_kept_and_a_refusal_does_not() -> None:
    store: Any = Failing(MemoryStore(new_memory(), "n1"))
    async with hosting(stalling("a"), store) as desk:
        store.refuses = settles
        assert (await desk.asked("create_run", creating("run-1"), "k1"))["ok"]
        wrong = {"runId": "run-1", "expectedRevision": 9}
        assert await desk.code("cancel_run", wrong, "k2") == "unavailable"
        store.refuses = lambda _: False
        assert (await desk.asked("create_run", creating("run-1"), "k1"))["ok"]
        assert await desk.code("cancel_run", wrong, "k2") == "conflict"
        right = {"runId": "run-1", "expectedRevision": 2}
        assert await desk.code("cancel_run", right, "k2") == "conflict"
        assert await desk.code("cancel_run", right, "k3") == ""


async def test_a_run_that_could_not_be_lined_up_is_found_by_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "QUEUED_LOOK_MS", 30)
    store: Any = Failing(MemoryStore(new_memory(), "n1"))
    async with hosting(saying("done"), store) as desk:
        store.calls = {"enlist"}
        await desk.create("run-1")
        store.calls = set()
        assert (await desk.ended("run-1"))["status"] == "completed"


async def test_a_store_that_does_not_answer_is_unavailable_and_one_that_lost_something_internal() -> None:
    store: Any = Failing(MemoryStore(new_memory(), "n1"))
    async with hosting(stalling("a"), store) as desk:
        await desk.create("run-1")
        store.lost = True
        assert await desk.code("get_run", {"runId": "run-1"}) == "internal"
        assert [type(fault) for fault in desk.faults] == [HistoryLost]
        store.lost = False
        store.look = _unavailable
        assert await desk.code("get_run", {"runId": "run-1"}) == "unavailable"
        store.look = _unavailable_from_the_second_on(store)
        assert await desk.code("list_events", {"runId": "run-1"}) == "unavailable"
        del store.look


async def _unavailable(*_: Any, **__: Any) -> Any:
    raise Unavailable("look")


def _unavailable_from_the_second_on(store: Any) -> Any:
    looks = iter([store._store.look])

    async def look(*words: Any, **named: Any) -> Any:
        return await next(looks, _unavailable)(*words, **named)

    return look


async def test_a_permit_that_could_not_be_given_back_is_left_to_the_sweep() -> None:
    store: Any = Failing(MemoryStore(new_memory(), "n1"))
    async with hosting(rounds([call("reviewed")]), store, reviewed()) as desk:
        await desk.done("create_run", plan())
        view = await desk.waiting("run-1")
        store.calls = {"give"}
        await desk.resolve(view)
        store.calls = set()
        await desk.resume(await desk.view("run-1"))
        assert (await desk.ended("run-1"))["status"] == "completed"


async def test_an_approval_of_the_wire_that_ran_out_is_no_longer_the_hosts_to_decide() -> None:
    clock = Clock()
    memory = new_memory(clock)
    options: Any = {"features": ALL_FEATURES, "node": FAST}
    async with hosting(rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed(), **options) as desk:
        reviews = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 60_000}
        async with desk.host.attend(asking(tools=["reviewed"], approvals=reviews), subject="ann") as attended:
            view = await desk.waiting(attended.run_id)
            clock.ahead_ms += 60_001
            named = {"runId": attended.run_id, "approvalId": view["approval"]["approvalId"]}
            late = named | {"expectedRevision": view["revision"], "resolution": "approved"}
            assert await desk.code("resolve_approval", late) == "conflict"
            ended = await desk.ended(attended.run_id)
            assert (ended["status"], ended["error"]) == ("timed_out", "approval expired")


async def test_a_claim_names_the_approval_that_was_claimed_before() -> None:
    from tests.api.host.test_scenarios import Writing  # noqa: PLC0415

    tool = Writing()
    async with hosting(rounds([call("write", "c1", b"{}")]), MemoryStore(new_memory(), "n1"), tool) as desk:
        desk.who = writer()
        await desk.done("create_run", creating("run-1", input={"prompt": "x", "tools": ["write"]}))
        await desk.approved("run-1")
        await until(lambda: len(tool.seen) == 1)
        view = await desk.view("run-1")
        named = {"runId": "run-1", "expectedRevision": view["revision"]}
        assert await desk.code("resume_run", named | {"approvalId": "another"}) == "not_found"
        tool.gate.set()
        await desk.ended("run-1")


def writer() -> Any:
    from tests.api.host.test_scenarios import writer as made  # noqa: PLC0415

    return made("ann")


async def test_a_record_that_would_be_too_large_ends_the_run_and_is_told_as_a_conflict() -> None:
    async with hosting(
        rounds([call("reviewed")]), MemoryStore(new_memory(), "n1"), reviewed(), log_bytes_max=6_000
    ) as desk:
        assert await desk.code("create_run", creating("big", input={"prompt": "x" * 9_000})) == "invalid_request"
        await desk.done("create_run", plan())
        await desk.resolve(await desk.waiting("run-1"))
        view = await desk.view("run-1")
        body = {"runId": "run-1", "expectedRevision": 4, "approvalId": view["approval"]["approvalId"]}
        told = await desk.asked("resume_run", body | {"input": "y" * 9_000}, "k")
        assert told["error"]["details"] == {"revision": 5, "status": "failed"}
        assert (await desk.view("run-1"))["error"] == "execution interrupted"


# Reading.


async def test_what_is_no_run_is_not_found_under_its_id() -> None:
    memory = new_memory()
    async with hosting(rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed()) as desk:
        await desk.done("create_run", plan())
        view = await desk.waiting("run-1")
        assert list(companions_of(memory, "approval")) == [view["approval"]["approvalId"]]
        for name in (view["approval"]["approvalId"], actor_of(memory, "run-1")):
            assert await desk.code("get_run", {"runId": name}) == "not_found"


async def test_few_folds_are_kept_and_large_logs_are_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "KEPT_MAX", 1)
    async with hosting(stalling("a"), MemoryStore(new_memory(), "n1")) as desk:
        kept = _folds(desk)
        for name in ("r1", "r2", "r1"):
            if name not in {key[1] for key in kept}:
                await desk.asked("create_run", creating(name), name)
            await desk.view(name)
        assert [key[1] for key in kept] == ["r1"]
        monkeypatch.setattr(reading, "KEPT_BYTES_MAX", 10)
        await desk.view("r1")
        assert not kept


def _folds(desk: Desk) -> Any:
    assert desk.host.agent_host is not None
    return desk.host.agent_host.reading._folds


async def test_a_store_that_came_back_older_is_believed_over_what_was_kept() -> None:
    memory = new_memory()
    async with hosting(stalling("a"), MemoryStore(memory, "n1")) as desk:
        await desk.create("run-1")
        await desk.view("run-1")
        ((key, fold),) = _folds(desk).items()
        _folds(desk)[key] = fold._replace(version=99)
        assert (await desk.view("run-1"))["revision"] == 2


async def test_a_page_has_a_bound_in_bytes_but_always_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    from api.host import service  # noqa: PLC0415

    monkeypatch.setattr(service, "PAGE_BYTES_MAX", 200)
    async with hosting(saying("done"), MemoryStore(new_memory(), "n1")) as desk:
        await desk.create("run-1")
        await desk.ended("run-1")
        page = await desk.done("list_events", {"runId": "run-1"})
        assert (len(page["events"]), page["hasMore"]) == (1, True)
        assert len(await desk.events("run-1")) == 3


async def test_a_stream_of_a_history_that_is_lost_is_refused_without_a_word_of_it() -> None:
    async with door(saying("done")) as at:
        await at.desk.create("run-1")
        assert at.desk.host.agent_host is not None
        shown: Any = at.desk.host.agent_host.reading
        shown._store = Failing(MemoryStore(new_memory(), "n9"))
        shown._store.lost = True
        told = await sent(at.app, "GET", b"/host/v1/runs/run-1/events", [ANN])
        assert judged(told)["error"]["code"] == "internal"
        assert at.app.parts.faults.count == 1


async def test_a_change_that_came_too_late_is_refused_to_whoever_comes_again_under_its_key() -> None:
    clock = Clock()
    memory = new_memory(clock)
    store: Any = Failing(MemoryStore(memory, "n1"))
    async with hosting(rounds([call("reviewed")]), store, reviewed(), node=FAST) as desk:
        await desk.done("create_run", plan(context={"deadlineUnixMs": clock() + 60_000}))
        view = await desk.waiting("run-1")
        store.calls = {"sweep"}
        clock.ahead_ms += 60_001
        store.refuses = settles
        named = {"runId": "run-1", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        late = named | {"resolution": "denied"}
        assert await desk.code("resolve_approval", late, "k") == "unavailable"  # its record could not be kept
        store.refuses = lambda _: False
        told = await desk.asked("resolve_approval", late, "k")
        assert told["error"]["details"] == {"revision": 4, "status": "timed_out"}
        assert await desk.code("resolve_approval", late, "k") == "conflict"


async def test_a_change_whose_log_was_folded_since_is_told_as_at_first_on_any_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "SNAPSHOT_EVENTS", 1)
    memory = new_memory()
    store: Any = Failing(MemoryStore(memory, "n1"))
    model = rounds([call("reviewed", "c1")], [call("reviewed", "c2")])
    async with (
        hosting(model, store, reviewed()) as one,
        hosting(model, MemoryStore(memory, "n2"), reviewed(), held=True) as two,
    ):
        await one.done("create_run", plan())
        view = await one.waiting("run-1")
        named = {"runId": "run-1", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        asked = named | {"resolution": "approved"}
        store.refuses = settles
        told = await one.asked("resolve_approval", asked, "k")
        store.refuses = lambda _: False
        await one.resume(await one.view("run-1"))
        await one.waiting("run-1")
        assert memory.actors[actor_of(memory, "run-1")].snapshot is not None
        again = await two.asked("resolve_approval", asked, "k")
        assert again["body"] == told["body"] == {"runId": "run-1", "revision": 4, "status": "waiting_for_approval"}


# Looking.


class Looked:
    """A store that counts how often each actor is looked at, and may do something before it is written to."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.looks: Counter[str] = Counter()
        self.before: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def look(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Any:
        self.looks[actor] += 1
        return await self._store.look(actor, after, snapshot=snapshot)

    async def append(self, append: Append) -> Any:
        if self.before is not None:
            act, self.before = self.before, None
            await act()
        return await self._store.append(append)


async def test_a_change_looks_at_its_run_once_for_grants_and_acting_alike() -> None:
    memory = new_memory()
    here: Any = Looked(MemoryStore(memory, "n2"))
    model = rounds([call("reviewed")])
    async with (
        hosting(model, MemoryStore(memory, "n1"), reviewed()) as elsewhere,
        hosting(model, here, reviewed(), held=True) as desk,
    ):
        await elsewhere.done("create_run", plan())
        view = await elsewhere.waiting("run-1")
        run_id = actor_of(memory, "run-1")
        for change in (desk.resolve, desk.resume):
            here.looks.clear()
            await change(view)
            view = await elsewhere.view("run-1")
            assert here.looks[run_id] == 1
        await elsewhere.create("run-2")
        two = await elsewhere.ended("run-2")
        here.looks.clear()
        named = {"runId": "run-2", "expectedRevision": two["revision"]}
        assert await desk.code("cancel_run", named) == "conflict"
        assert here.looks[actor_of(memory, "run-2")] == 2  # a refusal counts only against heads read for it


async def test_a_run_that_begins_after_it_was_looked_for_is_not_found_by_that_request() -> None:
    memory = new_memory()
    here: Any = Looked(MemoryStore(memory, "n2"))
    async with hosting(stalling("a"), MemoryStore(memory, "n1")) as elsewhere, hosting(stalling("a"), here) as desk:
        here.before = lambda: elsewhere.create("run-1")
        named = {"runId": "run-1", "expectedRevision": 2}
        assert await desk.code("cancel_run", named, "k") == "not_found"
        assert (await desk.view("run-1"))["status"] == "running"
        assert await desk.code("cancel_run", named, "k") == "not_found"
        assert await desk.code("cancel_run", named, "k2") == ""


async def test_a_run_that_moves_on_after_it_was_looked_at_refuses_the_revision() -> None:
    memory = new_memory()
    here: Any = Looked(MemoryStore(memory, "n2"))
    async with (
        hosting(rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed()) as elsewhere,
        hosting(rounds([call("reviewed")]), here, reviewed(), held=True) as desk,
    ):
        await elsewhere.done("create_run", plan())
        view = await elsewhere.waiting("run-1")
        here.before = lambda: elsewhere.resolve(view)
        told = await desk.asked("cancel_run", {"runId": "run-1", "expectedRevision": 3}, "k")
        assert told["error"]["details"] == {"revision": 4, "status": "waiting_for_approval"}
