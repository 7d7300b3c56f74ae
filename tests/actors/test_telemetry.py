"""What a node tells of itself: each thing once, when it happens, and to a listener that hears nothing too."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import anyio
import pytest
from typing_extensions import override

from actors import run
from actors.accounting import Accounts
from actors.errors import Failed
from actors.ports import ModelContext, ModelRequest, Turn
from actors.telemetry import (
    ABOUT,
    SILENT,
    About,
    Correlation,
    Labels,
    Levels,
    Noted,
    Outcome,
    Telemetry,
    tell_change,
)
from eventstore.memory import MemoryStore
from eventstore.store import Caps, Unavailable
from tests.actors.reviewing import CountingTool, call, tooled, using
from tests.actors.support import Clock, FakeModel, asking, hosted, items_of, new_memory, saying, stalling, types, until
from tests.actors.working import Gated, on_account, uses_its_tool, working

pytestmark = pytest.mark.anyio

LABELS = Labels("foreground", "fake", "m")


class Heard(Telemetry):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.abouts: list[About] = []
        self.levels: Callable[[], Levels] | None = None

    def of(self, verb: str) -> list[list[Any]]:
        return [rest for name, *rest in self.told if name == verb]

    @override
    def watch(self, levels: Callable[[], Levels]) -> None:
        self.levels = levels

    @override
    def run(self, labels: Labels, about: About) -> AbstractContextManager[Noted]:
        self.abouts.append(about)
        return self._noted("run", labels)

    @override
    def step(self, labels: Labels) -> AbstractContextManager[Noted]:
        return self._noted("step", labels)

    @override
    def tool(self, name: str) -> AbstractContextManager[Noted]:
        return self._noted("tool", name)

    @override
    def run_began(self, labels: Labels) -> None:
        self.told.append(("began", labels))

    @override
    def run_ended(self, labels: Labels, outcome: Outcome, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.told.append(("ended", labels, outcome))

    @override
    def appended(self, outcome: str, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.told.append(("appended", outcome))

    @override
    def took_over(self) -> None:
        self.told.append(("took over",))

    @override
    def fenced(self) -> None:
        self.told.append(("fenced",))

    @override
    def usage_not_kept(self) -> None:
        self.told.append(("usage not kept",))

    @contextmanager
    def _noted(self, verb: str, *what: Any) -> Generator[Noted, None, None]:
        noted = Noted()
        try:
            yield noted
        finally:
            self.told.append((verb, *what, noted.outcome))


async def test_a_run_is_told_from_its_beginning_to_its_end() -> None:
    heard = Heard()
    model = saying("a b", pieces=["a", " b"])
    async with hosted(model, telemetry=heard) as host:
        await items_of(host, asking())
        assert heard.of("began") == [[LABELS]]
        assert heard.of("step") == [[LABELS, "completed"]]
        assert heard.of("ended") == [[LABELS, "completed"]]
        await until(lambda: bool(heard.of("run")))
        assert heard.of("run") == [[LABELS, "completed"]]
        assert [one.node for one in heard.abouts] == ["n1"]


async def test_an_end_that_comes_from_outside_is_told_once_and_the_step_did_not_end() -> None:
    heard = Heard()
    async with hosted(stalling("a"), telemetry=heard) as host, host.attend(asking(), subject="ann") as attended:
        await until(lambda: host.node.levels().permits == 1)
        await host.cancel(attended.run_id)
        await host.cancel(attended.run_id)
        await host.node.over(attended.run_id)
        assert heard.of("step") == [[LABELS, "interrupted"]]
        assert heard.of("run") == heard.of("ended") == [[LABELS, "cancelled"]]


async def test_a_tool_is_told_by_its_name_and_how_it_went() -> None:
    heard = Heard()
    async with tooled(using(call("host")), MemoryStore(new_memory(), "n1"), CountingTool(), telemetry=heard) as host:
        assert types(await items_of(host, asking(tools=["host"])))[-1] == "run.completed"
    assert heard.of("tool") == [["host", "completed"]]
    assert heard.of("step") == [[LABELS, "completed"]] * 2


async def test_a_step_that_failed_is_told_as_one() -> None:
    heard = Heard()

    async def fail(_: ModelRequest, __: ModelContext) -> Turn:
        raise Failed("VENDOR_ERROR", "no")

    async with hosted(FakeModel(fail), telemetry=heard) as host:
        await items_of(host, asking())
    assert heard.of("step") == heard.of("run") == heard.of("ended") == [[LABELS, "failed"]]


async def test_a_step_that_was_idle_for_too_long_is_told_as_cancelled() -> None:
    heard = Heard()
    async with hosted(stalling(), telemetry=heard) as host:
        await items_of(host, asking(idleTimeoutMs=20))
    assert heard.of("step") == heard.of("run") == heard.of("ended") == [[LABELS, "cancelled"]]


async def test_deltas_are_not_told() -> None:
    counts: list[int] = []
    for pieces in ([], ["x"] * 500):
        heard = Heard()
        async with hosted(saying("".join(pieces), pieces=pieces), telemetry=heard) as host:
            await items_of(host, asking())
        counts.append(len(heard.of("appended")))
    assert counts[0] == counts[1]


async def test_levels_show_what_runs_what_waits_and_who_looks() -> None:
    async with hosted(stalling("a"), caps=Caps(total=1, queue_total=3, queue_per_subject=3)) as host:
        async with host.attend(asking(), subject="ann"), anyio.create_task_group() as tasks:
            await until(lambda: host.node.levels() == Levels(leases=1, permits=1, waiting=0, viewers=1, silent=0))
            tasks.start_soon(items_of, host, asking())
            await until(lambda: host.node.levels() == Levels(leases=2, permits=1, waiting=1, viewers=2, silent=0))
            tasks.cancel_scope.cancel()
        await until(lambda: host.node.levels() == Levels(leases=0, permits=0, waiting=0, viewers=0, silent=0))


async def test_a_run_that_was_handed_over_is_told_by_whoever_claims_it(caplog: pytest.LogCaptureFixture) -> None:
    clock, tool = Clock(), Gated(shut=True)
    memory = new_memory(clock)
    left, right, model = Heard(), Heard(), on_account(FakeModel(uses_its_tool))
    async with working(model, MemoryStore(memory, "n1"), tool, telemetry=left) as one:
        job = await one.submit("k", tools=["host"])
        await until(lambda: bool(tool.seen))
        one.host.close()
        tool.gate.set()
    clock.ahead_ms += 5_000
    async with working(model, MemoryStore(memory, "n2"), tool, telemetry=right) as two:
        await two.ended(job)
    labels = LABELS._replace(origin="job")
    assert left.of("began") == [[labels]]
    assert left.of("run") == [[labels, "interrupted"]]
    assert right.of("took over") == [[]]
    (line,) = [one.__dict__ for one in caplog.records if "took over" in one.message]
    assert (line["node"], line["run"], line["epoch"]) == ("n2", job.id, right.abouts[0].epoch)
    assert right.of("ended") == [[labels, "completed"]]
    assert left.of("took over") == left.of("ended") == right.of("began") == []


async def test_a_run_that_went_elsewhere_is_told_by_the_node_that_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard, answering = Clock(), Heard(), anyio.Event()
    memory = new_memory(clock)

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        await answering.wait()
        return Turn(text="late")

    one, two = MemoryStore(memory, "n1"), MemoryStore(memory, "n2")
    async with (
        hosted(FakeModel(answer), one, telemetry=heard) as old,
        hosted(stalling(), two) as new,
        old.attend(asking(), subject="ann") as attended,
    ):
        await until(lambda: bool(heard.abouts))
        monkeypatch.setattr(one, "renew", unreachable)
        monkeypatch.setattr(old.node, "rung", lambda _: None)
        clock.ahead_ms += 60_000
        await new.node.take_over(attended.run_id)
        answering.set()
        await until(lambda: not old.node.executing)
    assert heard.of("fenced") == [[]]
    assert heard.of("step") == [[LABELS, "completed"]]
    assert heard.of("ended") == []


async def unreachable(*_: object) -> None:
    raise Unavailable("cut off")


async def test_a_key_that_stands_for_a_run_is_none() -> None:
    heard = Heard()
    tell_change(heard, run.New(), run.Reserved("ann", "print", "r"), 0)
    assert heard.told == []


async def test_a_record_that_the_sink_does_not_take_is_told() -> None:
    heard = Heard()

    async def refuse(_: Mapping[str, Any], /) -> None:
        raise OSError

    async def nothing(_: str) -> list[Any]:
        return []

    async def settle(_: str) -> None:
        raise AssertionError

    accounts = Accounts(refuse, record_of=lambda *_: {"eventId": "e"}, read=nothing, settle=settle, telemetry=heard)
    await accounts.account("r")
    assert heard.told == [("usage not kept",)]


async def test_what_is_written_while_a_run_executes_is_about_it() -> None:
    seen: list[About | None] = []

    async def answer(_: ModelRequest, context: ModelContext) -> Turn:
        seen.append(ABOUT.get())
        return Turn(text=context.run_id)

    before = ABOUT.get()
    async with hosted(FakeModel(answer)) as host:
        items = await items_of(host, asking())
    run_id = next(iter(items)).data.decode().split('"runId":"')[1][:36]
    assert seen == [About("n1", run_id, 1)]
    assert ABOUT.get() == before


async def test_a_listener_that_hears_nothing_takes_every_verb() -> None:
    with SILENT.caller(Correlation()), SILENT.run(LABELS, About("n")) as noted, SILENT.step(LABELS), SILENT.tool("t"):
        assert noted.outcome == "interrupted"
    SILENT.watch(lambda: Levels(0, 0, 0, 0, 0))
    SILENT.run_began(LABELS)
    SILENT.run_ended(LABELS, "completed", 1.0)
    SILENT.appended("Recorded", 1.0)
    for verb in (SILENT.took_over, SILENT.fenced, SILENT.store_paused, SILENT.connected, SILENT.usage_not_kept):
        verb()
