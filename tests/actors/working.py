"""Jobs for tests: hosts that take them on, a model whose calls can be held back, and what became of a job."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace
from typing_extensions import override

from actors.errors import Refused
from actors.events import RunAccepted
from actors.jobs import Job, Jobs, Limits, Submitter
from actors.node import NodeSettings
from actors.ports import Model, ModelContext, ModelRequest, Tool, ToolContext, ToolMessage, Turn, UserMessage
from api.wire import jobs as as_sent
from eventstore.store import Store
from projections import wire_feed
from runstream.host import Host, Options, open_host
from tests.actors.reviewing import CountingTool, call
from tests.actors.support import INFO, ROOMY, FakeModel, asking, until_so
from tests.strict_jobs import job_page

ACCOUNT = "acct"
LIMITS = Limits(retention_ms=60_000, poll_interval_ms=20)
BRISK = NodeSettings(lease_ms=2_000, routine_ms=20, permit_begin_ms=5_000, reassured_s=0.1, drain_s=0.3)
ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})


def on_account(model: FakeModel, account: str | None = ACCOUNT) -> FakeModel:
    """*model*, bound to *account*: jobs need one."""
    model.info = replace(INFO, account=account)
    return model


class Held:
    """A model each of whose calls is held until it is let go; says whose input each was."""

    def __init__(self, account: str = ACCOUNT) -> None:
        self.model = on_account(FakeModel(self._answer), account)
        self.begun: list[str] = []
        """Inputs of all calls, in the order in which they came."""
        self.inside: list[str] = []
        """Inputs of the calls that are held now."""
        self.most = 0
        """Calls that were held at once."""
        self._gates: dict[str, anyio.Event] = {}

    async def _answer(self, request: ModelRequest, _: ModelContext) -> Turn:
        (first, *_rest) = request.messages
        assert isinstance(first, UserMessage)
        self.begun.append(first.content)
        self.inside.append(first.content)
        self.most = max(self.most, len(self.inside))
        try:
            await self._gates.setdefault(first.content, anyio.Event()).wait()
        finally:
            self.inside.remove(first.content)
        return Turn(text="done", usage={"inputTokens": 3, "outputTokens": 2})

    def let_go(self, *inputs: str) -> None:
        """Let the calls with *inputs* answer, now or when they come."""
        for one in inputs:
            self._gates.setdefault(one, anyio.Event()).set()


class Gated(CountingTool):
    """A tool whose output has a size, and that takes as long as it is told."""

    def __init__(self, size: int = 1, *, shut: bool = False) -> None:
        super().__init__()
        self.output_bytes_max = 1_000_000
        self.gate = anyio.Event()
        self._size = size
        if not shut:
            self.gate.set()

    @override
    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        await super().call(arguments, context)
        await self.gate.wait()
        return "x" * self._size


async def uses_its_tool(request: ModelRequest, context: ModelContext) -> Turn:
    """Ask for the tool `host` once, and be content with its output."""
    context.emit_text("t")
    return Turn(text="t", tool_calls=() if used(request) else (call("host"),), usage={"inputTokens": 1})


def used(request: ModelRequest) -> int:
    """How many tool outputs a model is shown."""
    return sum(isinstance(message, ToolMessage) for message in request.messages)


class Desk:
    """Where jobs are handed in at one node, and asked after."""

    def __init__(self, host: Host) -> None:
        assert host.jobs is not None
        self.host = host
        self.jobs: Jobs = host.jobs

    async def submit(self, key: str, subject: str = "ann", **members: Any) -> Job:
        """Hand a job in, whose input is its key unless *members* say otherwise."""
        request = self.host.checked(asking(**{"input": key} | members))
        return await self.jobs.submit(Submitter(subject, "principal"), key, request)

    async def read(self, job: Job | str, subject: str = "ann") -> Job:
        return await self.jobs.read(subject, _id(job), anything)

    async def cancel(self, job: Job | str, subject: str = "ann") -> Job:
        return await self.jobs.cancel(subject, _id(job), anything)

    async def page(self, job: Job | str, after: int = 0, limit: int = 100, subject: str = "ann") -> dict[str, Any]:
        """Read a page as it is sent; whatever the strictest client would not take fails."""
        found = await self.jobs.page(subject, _id(job), anything, after, limit)
        sent: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(as_sent._page(found, after)))
        job_page({"id": _id(job), "after": after, "limit": limit}, sent)
        return sent

    async def ended(self, job: Job | str, subject: str = "ann") -> Job:
        """Wait until a job has ended."""
        found: list[Job] = []

        async def over() -> bool:
            found[:] = [await self.read(job, subject)]
            return found[0].ended is not None

        await until_so(over)
        return found[0]

    async def events(self, job: Job | str) -> list[dict[str, Any]]:
        """All events of a job so far, whoever asks."""
        return [msgspec.json.decode(event) for event in await self.host.events(_id(job))]

    async def types(self, job: Job | str) -> list[str]:
        return [str(event["type"]) for event in await self.events(job)]

    async def counted(self, pool: str) -> Any:
        """How full a pool of a memory's ledger is."""
        store: Any = self.host.store
        return await store._memory.ledger.counted(pool)


def _id(job: Job | str) -> str:
    return job if isinstance(job, str) else job.id


def anything(_: RunAccepted) -> bool:
    return True


async def code_of(asked: Awaitable[Any]) -> str:
    """The code with which *asked* is refused; empty if it is not."""
    try:
        await asked
    except Refused as refused:
        return refused.code
    return ""


@asynccontextmanager
async def working(
    models: Model | Mapping[str, Model], store: Store, *tools: Tool, jobs: Limits = LIMITS, **options: Any
) -> AsyncIterator[Desk]:
    """Open a host that takes jobs on."""
    chosen = Options(node=BRISK, heartbeat_s=0.2, caps=lambda _subject, _account: ROOMY, jobs=jobs)
    named = {tool.definition.name: tool for tool in tools}
    known = dict(models) if isinstance(models, Mapping) else {"fake": models}
    async with open_host(store, known, replace(chosen, **options), named) as host:
        yield Desk(host)


def once(shown: list[str]) -> None:
    """Fail unless *shown* is the whole stream of one run: begun once and first, ended once and last."""
    assert shown.count("run.started") == 1
    assert shown[0] == "run.started"
    assert [kind in ENDS for kind in shown].count(True) == 1
    assert shown[-1] in ENDS


def shown_of(kept: Any) -> list[str]:
    """Types of the items of an actor of a memory, whose numbers have no gap."""
    assert sorted(kept.feed) == list(range(1, len(kept.feed) + 1))
    return [wire_feed.event_type(kept.feed[number]).decode() for number in sorted(kept.feed)]
