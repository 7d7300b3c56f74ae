"""Runs kept in memory: what the edge asks of a host, without a store, an executor or a provider's network."""

import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import anyio

from actors.errors import Problem, Refused
from actors.ports import Model, ModelContext, ModelRequest, UserMessage
from actors.request import RunRequest
from actors.sessions import Holder
from eventstore.store import Item
from projections import wire_feed

AT_MS = 1_767_607_200_000


class Attended:
    """One run and its only viewer."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.resumable = False
        self.sent: list[bytes] = []
        self.told = 0
        self.ended = False
        self.news = anyio.Event()
        self.tick_s = math.inf

    def put(self, *data: bytes) -> None:
        """Append items to the feed; as in a store, nothing follows the end."""
        if self.ended:
            return
        self.sent.extend(data)
        self.ended = any(wire_feed.is_terminal(each) for each in data)
        self.news.set()

    def tell(self, kind: str, **payload: Any) -> None:
        """Append one event."""
        self.put(wire_feed.item(self.run_id, kind, payload, AT_MS))

    async def items(self) -> AsyncIterator[Sequence[Item]]:
        """Yield what is there, then what comes; an empty batch for every tick without news."""
        while True:
            ready = [Item(at + 1, self.sent[at]) for at in range(self.told, len(self.sent))]
            self.told = len(self.sent)
            self.news = anyio.Event()
            if ready:
                yield ready
            if self.ended and self.told == len(self.sent):
                return
            with anyio.move_on_after(self.tick_s) as tick:
                await self.news.wait()
            if tick.cancelled_caught:
                yield []


class Ended(NamedTuple):
    """How an attended run was left."""

    run_id: str
    subject: str
    cancelled: bool


Script = Callable[[Attended, RunRequest, str], Coroutine[Any, Any, None]]


class FakeRuns:
    """Serves every request by its *script*; remembers who was attended, who is, and how each was left."""

    def __init__(self, script: Script, *, tick_s: float = math.inf, clean_up_s: float = 0) -> None:
        self.script = script
        self.tick_s = tick_s
        self.clean_up_s = clean_up_s
        self.refusal: Exception | None = None
        self.before = anyio.Event()
        self.before.set()
        self.asked: list[tuple[str, RunRequest]] = []
        self.attended: dict[str, Attended] = {}
        self.waived = frozenset[str]()
        self.holder: Holder | None = None
        self.left: list[Ended] = []
        self.entering = 0

    @asynccontextmanager
    async def attend(
        self,
        request: RunRequest,
        *,
        subject: str,
        streamed: bool,
        waived: frozenset[str] = frozenset(),
        holder: Holder | None = None,
    ) -> AsyncIterator[Attended]:
        """Start a run at once."""
        self.asked.append((subject, request))
        self.waived = waived
        self.holder = holder
        number = len(self.asked)
        if self.refusal is not None:
            raise self.refusal
        if not streamed and request.approvals is not None:
            raise Refused("APPROVAL_STREAM_REQUIRED")
        self.entering += 1
        try:
            await self.before.wait()
        finally:
            self.entering -= 1
        run = Attended(str(UUID(int=number)))
        run.tick_s = self.tick_s
        self.attended[run.run_id] = run
        run.tell("run.started", provider=request.provider, model=request.model)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.script, run, request, subject)
            try:
                yield run
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(self.clean_up_s)
                finished = run.ended and run.told == len(run.sent)
                self.left.append(Ended(run.run_id, subject, not finished))
                del self.attended[run.run_id]
                tasks.cancel_scope.cancel()

    def cancel_all(self) -> None:
        """End every run as a host does that shuts down."""
        for run in list(self.attended.values()):
            if not run.ended:
                run.tell("run.cancelled", error=error("CANCELLED"))


def error(code: str, message: str = "", *, retryable: bool = False, outcome: str | None = None) -> dict[str, Any]:
    """An error object, all three members."""
    told = {"code": code, "message": message or code, "retryable": retryable}
    return told | ({"outcome": outcome} if outcome else {})


def completed(run: Attended, request: RunRequest, text: str, **more: Any) -> None:
    """End *run* well."""
    result = {
        "runId": run.run_id,
        "provider": request.provider,
        "model": request.model,
        "text": text,
        "usage": {"inputTokens": 0, "outputTokens": 0},
        "steps": 1,
        "finishReason": "stop",
    }
    run.tell("run.completed", result=result | more)


def asking(model: Model) -> Script:
    """A script of one step that asks *model*."""

    async def script(run: Attended, request: RunRequest, subject: str) -> None:
        run.tell("step.started", step=1)
        context = ModelContext(run.run_id, subject, lambda text: run.tell("text.delta", text=text), lambda: None)
        turn = await model.complete(ModelRequest(model=request.model, messages=(UserMessage(request.input),)), context)
        run.tell("usage.reported", step=1, usage=turn.usage)
        run.tell("text.delta", text=turn.text)
        completed(run, request, turn.text)

    return script


def texts(*pieces: str) -> Script:
    """A script that says *pieces* and ends."""

    async def script(run: Attended, request: RunRequest, _subject: str) -> None:
        await anyio.lowlevel.checkpoint()
        run.tell("step.started", step=1)
        for piece in pieces:
            run.tell("text.delta", text=piece)
        completed(run, request, "".join(pieces))

    return script


async def stalling(run: Attended, _request: RunRequest, _subject: str) -> None:
    """Begin a step and never end it."""
    run.tell("step.started", step=1)
    await anyio.sleep_forever()


def failing(problem: Problem, kind: str = "run.failed") -> Script:
    """A script that fails."""

    async def script(run: Attended, _request: RunRequest, _subject: str) -> None:
        await anyio.lowlevel.checkpoint()
        run.tell("step.started", step=1)
        run.tell(kind, error=problem)

    return script
