"""One deployment of a seed: machines that live and die over one memory, and what was seen of them."""

import asyncio
import logging
import random
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import anyio
import msgspec
from msgspec import Raw
from typing_extensions import override

from actors import holdings, host_runs, jobs, session
from actors.errors import Refused
from actors.events import ToolCall
from actors.foreground import Attended
from actors.node import NodeSettings
from actors.ports import AssistantMessage, ModelContext, ModelRequest, ToolContext, ToolDefinition, Turn, UserMessage
from actors.request import Features
from eventstore.ledger import Pool
from eventstore.memory import Memory
from eventstore.store import Append, Caps, Deployment, Item, Recorded, Unavailable
from projections import wire_feed
from runstream.host import Host, Options, open_host
from tests.actors.support import INFO, FakeModel
from tests.history import Acknowledged, Effect, History, Kept, Owned, Read, Written
from tests.history import Outcome as KeyOutcome
from tests.host_history import Answered, HostHistory, HostRead, Viewed
from tests.simulation.loop import EPOCH_S, MACHINE, VirtualLoop, of_machine
from tests.simulation.network import Network, Wire

T = TypeVar("T")

LEASE_MS = 2_000
PARTITIONS = 2
NODES = 3
SETTINGS = NodeSettings(
    lease_ms=LEASE_MS,
    routine_ms=500,
    permit_begin_ms=3_000,
    reassured_s=2.0,
    drain_s=1.5,
    audited_s=0.7,
    audited_again_s=10.0,
    janitor_s=1_000_000,
)
CAPS = Caps(total=10, per_subject=4, queue_total=6, queue_per_subject=3)
FIRST_MS = 1_767_607_200_000
ANYTHING = Raw(b'{"type":"object"}')
PATIENCE_S = 6.0


class Gone(Exception):
    """No answer will come: the connection is lost, or patience is over."""


class Paying:
    """A host tool that leaves its effects with the world, not with the node."""

    output_bytes_max = 10_000

    def __init__(self, world: "World", name: str, *, idempotent: bool = False, reviewed: bool = False) -> None:
        self.definition = ToolDefinition(name, f"Does {name}.", ANYTHING)
        self.requires_approval = reviewed
        self.idempotent = idempotent
        self._world = world

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        world = self._world
        await anyio.sleep(world.chance.uniform(0, 0.2))
        world.effect(Effect(context.run_id, context.call_id, self.definition.name, self.idempotent))
        await anyio.sleep(world.chance.uniform(0, 0.6))
        if arguments.get("fails"):
            raise ValueError("as asked")
        return {"done": context.call_id}


async def scripted(request: ModelRequest, context: ModelContext) -> Turn:
    """Answer as the last input says: what is said, how long it takes, and which tools are called."""
    last = max(number for number, one in enumerate(request.messages) if isinstance(one, UserMessage))
    step = sum(isinstance(one, AssistantMessage) for one in request.messages[last:])
    steps = msgspec.json.decode(request.messages[last].content)["steps"]
    wanted = steps[step] if step < len(steps) else {}
    for piece in wanted.get("say", ()):
        await anyio.sleep(wanted.get("pauseMs", 0) / 1_000)
        context.emit_text(piece)
    await anyio.sleep(wanted.get("waitMs", 0) / 1_000)
    return Turn(
        text="".join(wanted.get("say", ())),
        tool_calls=tuple(
            ToolCall(one["id"], one["name"], Raw(msgspec.json.encode(one["with"]))) for one in wanted.get("calls", ())
        ),
        usage={"inputTokens": 1, "outputTokens": 1},
    )


class Socket:
    """What a client has of a stream that a node serves."""

    def __init__(self) -> None:
        self.run_id = ""
        self.replayed = False
        self.task: asyncio.Task[None] | None = None
        self._batches: list[Sequence[Item]] = []
        self._end: Exception | None = None
        self._over = False
        self._news: asyncio.Future[None] | None = None

    def push(self, batch: Sequence[Item]) -> None:
        self._batches.append(batch)
        self._wake()

    def finish(self, error: Exception | None = None) -> None:
        if not self._over:
            self._over, self._end = True, error
            self._wake()

    async def next(self) -> Sequence[Item] | None:
        """The next items, None at a clean end; raises whatever ended it otherwise."""
        while not self._batches:
            if self._over:
                if self._end is not None:
                    raise self._end
                return None
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return self._batches.pop(0)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Machine:
    """One node, as a process on a machine of its own."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.host: Host | None = None
        self.paused = False
        self.dead = False
        self.leaving = False
        self.over = asyncio.Event()
        self._leave = asyncio.Event()
        self._world = world
        self._context = of_machine(name)
        self._answers: dict[asyncio.Future[Any], asyncio.Task[None]] = {}
        self._sockets: dict[Socket, None] = {}
        self.wire = Wire(world.network, name, world.mono_of(name))
        self.serving = self.start(self._served())

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something run here."""
        return self._world.loop.create_task(work, context=self._context.copy())

    def kill(self) -> None:
        """Be gone without a word."""
        self._world.loop.kill(self.name)
        self._gone()

    def leave(self) -> None:
        """Begin to drain, as on SIGTERM."""
        self.leaving = True
        self._leave.set()

    async def ask(self, work: Callable[[Host], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
        """Have something done here, for a client elsewhere.

        Raises:
            Gone: no answer came.
        """
        loop = self._world.loop
        await anyio.sleep(self._world.chance.uniform(0.0005, 0.003))
        if self.host is None or self.dead or self.leaving:
            raise Gone("refused")
        answer: asyncio.Future[T] = loop.create_future()
        task = self.start(self._answered(self.host, work, answer))
        self._answers[answer] = task
        try:
            with anyio.move_on_after(patience_s):
                return await answer
            raise Gone("no answer")
        finally:
            self._answers.pop(answer, None)
            if not task.done() and not self.dead:
                task.cancel()
            answer.cancel()

    async def stream(self, serve: Callable[[Host, Socket], Coroutine[Any, Any, None]]) -> Socket:
        """Open a stream here."""
        await anyio.sleep(self._world.chance.uniform(0.0005, 0.003))
        if self.host is None or self.dead or self.leaving:
            raise Gone("refused")
        socket = Socket()
        self._sockets[socket] = None
        socket.task = self.start(self._streamed(self.host, serve, socket))
        return socket

    def hang_up(self, socket: Socket) -> None:
        """Leave a stream, as a client does."""
        self._sockets.pop(socket, None)
        if socket.task is not None and not socket.task.done() and not self.dead:
            socket.task.cancel()

    async def _served(self) -> None:
        world = self._world
        store: Any = self.wire
        try:
            async with open_host(store, {"fake": world.model}, world.options, world.tools) as host:
                self.host = host
                world.say("up", self.name)
                await self._leave.wait()
                host.close()
                await self._let_go()
        finally:
            if not self.dead:
                world.say("over", self.name)
                self._gone()

    async def _let_go(self) -> None:
        """Wait until everybody was answered, and then no longer: a server closes its sockets before its host."""
        with anyio.move_on_after(2 * SETTINGS.drain_s):
            while self._sockets or self._answers:  # noqa: ASYNC110 - clients come and go without an event
                await anyio.sleep(0.02)
        open_still = [one.task for one in self._sockets if one.task is not None] + list(self._answers.values())
        for task in open_still:
            task.cancel()
        if open_still:
            await asyncio.wait(open_still)

    async def _answered(self, host: Host, work: Callable[[Host], Awaitable[T]], answer: "asyncio.Future[T]") -> None:
        try:
            result = await work(host)
        except Exception as error:  # noqa: BLE001 - the client's
            if not answer.done():
                answer.set_exception(self._world.told(error))
        else:
            if not answer.done():
                answer.set_result(result)

    async def _streamed(
        self, host: Host, serve: Callable[[Host, Socket], Coroutine[Any, Any, None]], socket: Socket
    ) -> None:
        try:
            await serve(host, socket)
        except Exception as error:  # noqa: BLE001 - the client's
            socket.finish(self._world.told(error))
        else:
            socket.finish()

    def _gone(self) -> None:
        self.dead = True
        self.host = None
        self.wire.unplug()
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(Gone("the node is gone"))
        for socket in list(self._sockets):
            socket.finish(Gone("the node is gone"))
        self.over.set()


async def attended(host: Host, socket: Socket, document: Any, subject: str) -> None:
    """Serve a stream of a new run as the edge does."""
    waived = frozenset({"app"})
    request = host.checked(document)
    async with host.runs.attend(request, subject=subject, streamed=True, waived=waived) as run:
        socket.run_id, socket.replayed = run.run_id, type(run).__name__ == "_Replayed"
        socket.push(())
        await _sent(host, socket, _items(run), until_closing=run.resumable)


async def watched(host: Host, socket: Socket, subject: str, run_id: str, cursor: Any) -> None:
    """Serve a stream of a run that is there."""
    async with host.viewing.watch(subject, run_id, lambda _: True, cursor) as found:
        socket.run_id = run_id
        socket.push(())
        if not found.over:
            await _sent(host, socket, found.batches, until_closing=True)


def _items(run: Attended) -> AsyncIterator[Sequence[Item]]:
    return run.items()


async def _sent(host: Host, socket: Socket, batches: AsyncIterator[Sequence[Item]], *, until_closing: bool) -> None:
    async with anyio.create_task_group() as tasks:

        async def closing() -> None:
            await host.node.closing.wait()
            tasks.cancel_scope.cancel()

        if until_closing:
            tasks.start_soon(closing)
        async with aclosing(cast("Any", batches)) as several:
            async for batch in several:
                socket.push(batch)
        tasks.cancel_scope.cancel()


class Line(NamedTuple):
    """One line of a trace."""

    at_s: float
    words: tuple[Any, ...]

    @override
    def __str__(self) -> str:
        return f"{self.at_s:9.4f}  " + " ".join(map(_shown, self.words))


class World:
    """Everything of one seed."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.chance = random.Random(f"world {seed}")  # noqa: S311 - a test's
        self.lines: list[Line] = []
        self.jumped_ms = 0
        self.offsets: dict[str, int] = {}
        self.memory = Memory(Deployment("twin", PARTITIONS, b"k" * 32), self.redis_ms)
        self.network = Network(loop, self.memory, random.Random(f"network {seed}"), self.say)  # noqa: S311 - a test's
        self.model = FakeModel(scripted)
        self.model.info = msgspec.structs.replace(
            INFO,
            account="acct",
            capabilities={
                "tools": True,
                "textStreaming": True,
                "historyContinuation": True,
                "nativeContinuation": True,
            },
        )
        kinds: Sequence[tuple[str, dict[str, bool]]] = (
            ("pay", {}),
            ("put", {"idempotent": True}),
            ("check", {"reviewed": True}),
        )
        self.tools: dict[str, Any] = {name: Paying(self, name, **of) for name, of in kinds}
        self.options = Options(
            features=Features(idempotency=True, approvals=True, application_tools=True),
            node=SETTINGS,
            caps=lambda _subject, _account: CAPS,
            sessions=session.Limits(retention_ms=3_600_000),
            jobs=jobs.Limits(retention_ms=3_600_000, poll_interval_ms=1_000),
            host=host_runs.Limits(),
            application_tools_reviewed=False,
            heartbeat_s=1.5,
        )
        self.machines: list[Machine] = []
        self.effects: list[Effect] = []
        self.reads: list[Read] = []
        self.acknowledged: list[Acknowledged] = []
        self.outcomes: list[KeyOutcome] = []
        self.answers: list[Answered] = []
        self.views: list[Viewed] = []
        self.host_reads: list[HostRead] = []
        self.complaints: list[str] = []
        self._count = 0

    def say(self, *words: Any) -> None:
        kept = tuple(repr(word) if isinstance(word, BaseException) else word for word in words)  # they hold frames
        self.lines.append(Line(self.loop.time() - EPOCH_S, kept))

    def redis_ms(self) -> int:
        return FIRST_MS + int((self.loop.time() - EPOCH_S) * 1_000) + self.jumped_ms

    def mono_of(self, name: str) -> Callable[[], int]:
        """The clock of a machine, which began some time ago."""
        offset = self.offsets.setdefault(name, self.chance.randrange(10_000_000))
        return lambda: int(self.loop.time() * 1_000) + offset

    def mono_ms(self) -> int:
        """The clock of whoever asks."""
        return int(self.loop.time() * 1_000) + self.offsets.get(MACHINE.get(), 0)

    def boot(self) -> Machine:
        """Start one more node."""
        self._count += 1
        machine = Machine(self, f"n{self._count}")
        self.machines.append(machine)
        return machine

    @property
    def living(self) -> list[Machine]:
        """Nodes that run or are paused."""
        return [one for one in self.machines if not one.dead]

    def any_node(self) -> Machine:
        """The node that a balancer would choose: one that is not known to be gone."""
        able = [one for one in self.living if one.host is not None and not one.leaving]
        return self.chance.choice(able or self.machines)

    def effect(self, effect: Effect) -> None:
        self.say("effect", MACHINE.get(), effect.tool, effect.call, "of", effect.run)
        self.effects.append(effect)

    def acknowledge(self, what: Any, actor: str, detail: Any = None) -> None:
        self.say("acknowledged", what, actor, detail)
        self.acknowledged.append(Acknowledged(what, actor, detail))

    def complain(self, *words: Any) -> None:
        self.say("complaint", *words)
        self.complaints.append(" ".join(map(_shown, words)))

    def told(self, error: Exception) -> Exception:
        """What a client is told of *error*; of one that is none of its business, nothing, and we complain."""
        if isinstance(error, Refused | Unavailable | Gone):
            return error
        self.complain("an edge met", repr(error), "at", _place(error))
        return Gone("internal error")

    # What is left.

    def unaudited(self) -> bool:
        """Whether the ledger is to be held against the runs."""
        ledger = self.memory.ledger
        return any(ledger._pool(pool).audited != ledger.history for pool in holdings.POOLS)

    def restless(self) -> str:
        """What has not come to rest; empty for nothing."""
        if self.unaudited():
            return "the ledger is to be held against the runs"
        for actor, kept in self.memory.actors.items():
            if kept.heads.log and not kept.heads.ended and not _stays(kept):
                return f"{actor} has not ended"
        for due in self.memory.due.values():
            for actor, reason in due:
                if reason != "retention":
                    return f"{reason} of {actor} is due"
        for name, pool in self.memory.ledger._pools.items():
            for holder in [*_held(pool, self.redis_ms()), *pool.line.waiters, *pool.queue.waiters]:
                if name in {"runs", "approvals", "tickets"}:
                    return f"the pool {name} is in use: {holder}"
        return ""

    def host_history(self) -> HostHistory:
        """What became of the Host's runs."""
        kept = [_kept(actor, kept) for actor, kept in self.memory.actors.items() if kept.heads.log]
        return HostHistory(kept, self.answers, self.views, self.host_reads)

    def history(self) -> History:
        """What became of everything."""
        memory = self.memory
        return History(
            kept=[_kept(actor, kept) for actor, kept in memory.actors.items() if kept.heads.log],
            reads=self.reads,
            acknowledged=self.acknowledged,
            effects=self.effects,
            owned=[
                Owned(part.actor, part.epoch, wrote.node)
                for wrote in self.network.wrote
                if isinstance(wrote.outcome, Recorded) and not wrote.outcome.repeated
                for part in wrote.append.parts
                if part.epoch is not None
            ],
            outcomes=self.outcomes,
            held={
                name: [one for one, permit in pool.held.items() if not permit.begin_by_ms]
                for name, pool in memory.ledger._pools.items()
            },
            due=[member for due in memory.due.values() for member in due],
            listed=[(name, member) for (_, name), members in memory.listed.items() for member in members],
            complaints=[*self.complaints, *self.network.unjust],
        )


def _place(error: BaseException) -> str:
    """Where *error* was raised, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(frames[-4:]))


def _held(pool: Pool, now_ms: int) -> list[str]:
    """Who holds a permit of *pool*; one that was not begun in time is none, whether or not anybody has noticed."""
    return [one for one, permit in pool.held.items() if not 0 < permit.begin_by_ms <= now_ms]


def _stays(kept: Any) -> bool:
    """Whether an actor never ends by itself: a key, or a session."""
    first = kept.log[1].data if kept.log else b""
    return first.startswith((b'{"type":"key.', b'{"type":"host_key.', b'{"type":"session.'))


def _kept(actor: str, kept: Any) -> Kept:
    log = [Written(entry.version, entry.command, msgspec.json.decode(entry.data)) for entry in kept.log.values()]
    feed = {number: wire_feed.numbered(number, data) for number, data in kept.feed.items()}
    heads = kept.heads
    return Kept(actor, log, feed, heads.log, heads.feed, heads.ended, whole=not heads.erased and heads.oldest == 1)


class Overheard(logging.Handler):
    """Takes what nodes log: a failure that they do not expect is a complaint."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    @override
    def emit(self, record: logging.LogRecord) -> None:
        words = (MACHINE.get(), record.levelname.lower(), record.getMessage())
        failed = record.exc_info[1] if record.exc_info else None
        if failed is not None and not isinstance(failed, Unavailable):
            self._world.complain(*words, repr(failed), _place(failed))
        else:
            self._world.say(*words)


def _shown(word: Any) -> str:
    if isinstance(word, Append):
        return " + ".join(_part(part, word) for part in word.parts)
    if isinstance(word, tuple) and type(word).__name__ in {
        "Recorded",
        "Conflict",
        "Fenced",
        "Ended",
        "OutsideWindow",
        "Lost",
    }:
        return "-> " + type(word).__name__ + (" again" if getattr(word, "repeated", False) else "")
    if isinstance(word, bytes):
        return word.decode()[:200]
    return str(word)


def _part(part: Any, append: Append) -> str:
    kinds = [event.data[9 : event.data.index(b'"', 9)].decode() for event in part.events]
    words = [f"{part.actor}@{part.log if part.log is not None else f'w{part.feed}'}", f"[{append.command}]", *kinds]
    if part.items and not kinds:
        words.append(f"{len(part.items)} items")
    if part.epoch is not None:
        words.append(f"e{part.epoch}")
    if part.owner is not None:
        words.append(f"owner={part.owner or 'nobody'}")
    if part.ended:
        words.append("END")
    return " ".join(words)
