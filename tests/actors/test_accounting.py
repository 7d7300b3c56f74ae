"""Usage records on their way out: a sink may fail, stall or exit, and the record is owed until it was kept."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest

from actors import accounting
from actors.accounting import Accounts
from actors.events import RunEvent, RunStarted

pytestmark = pytest.mark.anyio

LOG: Sequence[RunEvent] = (RunStarted(1),)


class World:
    """One node's accounts over a sink that does as it is told; notes what was done, in order."""

    def __init__(self, sink: Callable[[Mapping[str, Any]], Awaitable[Any]] | None = None) -> None:
        self.done: list[str] = []
        self.failing: set[str] = set()
        self.records: dict[str, Mapping[str, Any] | None] = {}
        self._asked = sink
        self.accounts = Accounts(self.sink, record_of=self.record_of, read=self.read, settle=self.settle)

    def record_of(self, run_id: str, log: Sequence[RunEvent]) -> Mapping[str, Any] | None:
        assert log is LOG
        return self.records.get(run_id, {"eventId": run_id})

    async def read(self, run_id: str) -> Sequence[RunEvent]:
        self._note("read", run_id)
        return LOG

    async def sink(self, record: Mapping[str, Any], /) -> None:
        if self._asked is not None:
            await self._asked(record)
        self._note("kept", record["eventId"])

    async def settle(self, run_id: str) -> None:
        self._note("settled", run_id)

    def _note(self, what: str, run_id: str) -> None:
        if what in self.failing:
            raise RuntimeError("a private word")
        self.done.append(f"{what} {run_id}")


async def test_a_record_is_settled_after_it_was_kept() -> None:
    world = World()
    await world.accounts.account("r1")
    assert world.done == ["read r1", "kept r1", "settled r1"]


async def test_a_run_that_has_no_record_is_settled_without_the_sink() -> None:
    world = World()
    world.records["r1"] = None
    await world.accounts.account("r1")
    assert world.done == ["read r1", "settled r1"]


@pytest.mark.parametrize("failing", ["read", "kept", "settled"])
async def test_what_fails_is_owed_still_and_comes_again(failing: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.failing.add(failing)
    with caplog.at_level(logging.DEBUG):
        await world.accounts.account("r1")
    assert "settled r1" not in world.done
    assert "RuntimeError" in caplog.text
    assert "private" not in caplog.text

    world.failing.clear()
    await world.accounts.account("r1")
    assert world.done[-3:] == ["read r1", "kept r1", "settled r1"]


@pytest.mark.parametrize("error", [SystemExit(1), anyio.get_cancelled_exc_class])
async def test_a_sink_that_exits_or_cancels_itself_ends_alone(error: Any) -> None:
    async def ending(_: Mapping[str, Any]) -> None:
        raise error if isinstance(error, BaseException) else error()()

    world = World(ending)
    await world.accounts.account("r1")
    assert world.done == ["read r1"]


async def test_a_slow_sink_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accounting, "DELIVERY_S", 0.02)

    async def stalling(_: Mapping[str, Any]) -> None:
        await anyio.sleep_forever()

    world = World(stalling)
    with anyio.fail_after(5):
        await world.accounts.account("r1")
    assert world.done == ["read r1"]
    assert "too slow" in caplog.text


async def test_those_who_account_for_one_run_at_once_are_one() -> None:
    async def held(_: Mapping[str, Any]) -> None:
        began.set()
        await goes_on.wait()

    async def accounted(run_id: str) -> None:
        await world.accounts.account(run_id)
        ended.append(run_id)

    began, goes_on, ended = anyio.Event(), anyio.Event(), list[str]()
    world = World(held)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(accounted, "r1")
            await began.wait()
            await anyio.wait_all_tasks_blocked()
            assert ended == []
            goes_on.set()
    assert world.done == ["read r1", "kept r1", "settled r1"]
    assert ended == ["r1"] * 3


async def test_a_caller_that_goes_away_leaves_the_record_to_a_sweep() -> None:
    async def held(_: Mapping[str, Any]) -> None:
        began.set()
        if not goes_on.is_set():
            await anyio.sleep_forever()

    began, goes_on = anyio.Event(), anyio.Event()
    world = World(held)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.accounts.account, "r1")
            await began.wait()
            tasks.cancel_scope.cancel()
        assert world.done == ["read r1"]
        goes_on.set()
        await world.accounts.account("r1")
    assert world.done[-1] == "settled r1"


async def test_more_than_a_node_carries_at_once_is_left_to_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "DELIVERIES_MAX", 1)

    async def held(_: Mapping[str, Any]) -> None:
        began.set()
        await goes_on.wait()

    began, goes_on = anyio.Event(), anyio.Event()
    world = World(held)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.accounts.account, "r1")
            await began.wait()
            await world.accounts.account("r2")
            goes_on.set()
        assert world.done == ["read r1", "kept r1", "settled r1"]
        await world.accounts.account("r2")
    assert world.done[-1] == "settled r2"
