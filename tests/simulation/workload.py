"""What clients do: they ask any node for anything, leave, come back elsewhere, ask again, decide twice and late."""

import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from actors.decisions import Caller
from actors.errors import Refused
from actors.jobs import Submitter
from actors.sessions import Wanted, everything_of
from actors.viewing import Cursor, digest_of
from eventstore.store import Item, Unavailable
from projections import wire_feed
from runstream.host import Host
from tests.history import ENDS, Effect, Outcome, Read
from tests.simulation.host_work import TOOLS, HostWork
from tests.simulation.world import Gone, Machine, Socket, World, attended, watched

T = TypeVar("T")

LOST = (Gone, Unavailable)
TRIES = 14
GRACE_MS = 4_000
MAY_WAIT = frozenset(
    {"BUSY", "QUEUE_FULL", "HOST_SHUTTING_DOWN", "OPERATION_IN_PROGRESS", "OPERATION_STORE_ERROR", "SESSION_BUSY"}
)
"""Refusals after which a client asks again."""
NEVER = frozenset(
    {
        "CURSOR_EXPIRED",
        "FORBIDDEN",
        "HISTORY_LOST",
        "IDEMPOTENCY_CONFLICT",
        "INTERNAL_ERROR",
        "INVALID_CURSOR",
        "INVALID_JOB_CURSOR",
        "JOB_EXPIRED",
        "JOB_NOT_FOUND",
        "RUN_NOT_FOUND",
    }
)
"""What no honest client may be told of what it was told before."""
DECISIONS = {"approve": "approved", "deny": "denied", "cancel": "cancelled"}
APP_TOOL = {"name": "app", "description": "An errand.", "inputSchema": {"type": "object"}}


class Reading:
    """What one client has of one run, over all its streams."""

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id
        self.cursor = Cursor()
        self.end: Mapping[str, Any] | None = None


class Opened(NamedTuple):
    """A stream, and where it is served."""

    machine: Machine
    socket: Socket


class Client:
    """One application and its people."""

    def __init__(self, world: World, number: int, tasks: TaskGroup) -> None:
        self.world = world
        self.name = f"c{number}"
        self.subject = ("ann", "bob", "cat")[number % 3]
        self.chance = random.Random(f"client {world.seed} {number}")  # noqa: S311 - a test's
        self._tasks = tasks
        self._count = 0
        self._asked: set[str] = set()
        """Approvals and tickets that were dealt with."""

    async def work(self, until_s: float) -> None:
        """Do one thing after another until the time has come, and then see them through."""
        chance = self.chance
        errands = (
            (self.plain, 3),
            (self.resumable, 3),
            (self.keyed, 3),
            (self.job, 3),
            (self.interactive_job, 2),
            (self.conversation, 2),
            (self.host_run, 3),
        )
        while self.world.loop.time() < until_s:
            (errand,) = chance.choices([one for one, _ in errands], [weight for _, weight in errands])
            self._count += 1
            name = f"{self.name}.{self._count}"
            self.world.say(self.name, "begins", errand.__name__, name)
            await errand(name)
            self.world.say(self.name, "is done with", name)
            await anyio.sleep(chance.uniform(0, 0.8))

    # What is asked for.

    def steps(self, name: str, *tools: str) -> list[Any]:
        """Some steps, each of which may call some of *tools*."""
        chance = self.chance
        made: list[Any] = []
        for step in range(chance.choice((1, 1, 2, 3)) if tools else 1):
            calls = [
                {"id": f"{name}-{step}-{number}", "name": chance.choice(tools), "with": self._arguments()}
                for number in range(chance.choice((1, 1, 2)))
                if tools
            ]
            made.append(self._speech() | {"calls": calls})
        return [*made, self._speech()] if tools else made

    def _speech(self) -> dict[str, Any]:
        chance = self.chance
        say = [chance.choice(("so ", "then ", "well ")) for _ in range(chance.choice((0, 1, 3, 6)))]
        return {"say": say, "pauseMs": chance.choice((0, 5, 60)), "waitMs": chance.choice((0, 30, 300, 1_200))}

    def _arguments(self) -> dict[str, Any]:
        return {"fails": True} if self.chance.random() < 0.05 else {}

    def document(self, name: str, *tools: str, **members: Any) -> dict[str, Any]:
        """A request whose input says what happens, and is like no other."""
        chance = self.chance
        chosen = [tool for tool in tools if chance.random() < 0.6]
        asked: dict[str, Any] = {"provider": "fake", "model": "m"} | members
        asked["input"] = msgspec.json.encode({"name": name, "steps": self.steps(name, *chosen)}).decode()
        if chosen:
            asked["tools"] = chosen
        if "app" in chosen:
            asked["applicationTools"] = [APP_TOOL]
        if {"check", "app"} & set(chosen):
            policy = chance.choice(("pause", "continue"))
            asked["approvals"] = {"mode": "interactive", "idlePolicy": policy, "expiresAfterMs": 3_000}
            asked["idleTimeoutMs"] = 6_000
        return asked

    # Errands.

    async def plain(self, name: str) -> None:
        """A stream of a run that ends with its connection; sometimes the client leaves, or somebody cancels it."""
        opened = await self._tried(self.document(name, "pay", "put", "check", "app"))
        if opened is None:
            return
        reading = Reading()
        if self.chance.random() < 0.15:
            self._tasks.start_soon(self._cancelled, opened.socket.run_id)
        await self._followed(*opened, reading, self._patience())

    async def resumable(self, name: str) -> None:
        """A stream that is continued elsewhere, or is not."""
        document = self.document(name, "pay", "put", "check", "app", resume={"graceMs": GRACE_MS})
        opened = await self._tried(document)
        if opened is None:
            return
        reading = Reading()
        await self._followed(*opened, reading, self._patience())
        if reading.end is None and self.chance.random() < 0.85:
            await anyio.sleep(self.chance.uniform(0, 1.5))
            await self._resumed(reading)

    async def keyed(self, name: str) -> None:
        """The same request under one key on several nodes, one after another or at once, until its outcome is known."""
        document = self.document(name, "pay", "put", idempotencyKey=f"key-{name}")
        if self.chance.random() < 0.3:
            self._tasks.start_soon(self._of_key, name, document)
        await self._of_key(name, document)
        if self.chance.random() < 0.5:
            await self._of_key(name, document)

    async def job(self, name: str) -> None:
        """A job that is submitted until that is known, looked at from anywhere, and sometimes cancelled."""
        document = self.document(name, "pay", "put")
        job_id = await self._submitted(name, document)
        if not job_id:
            return
        if self.chance.random() < 0.3:
            self._tasks.start_soon(self._submitted, name, document)
        if self.chance.random() < 0.2:
            self._tasks.start_soon(self._job_cancelled, job_id)
        await self._paged(job_id)

    async def interactive_job(self, name: str) -> None:
        """A job in which the client takes part."""
        job_id = await self._submitted(name, self.document(name, "check", "app", "put"), interactive=True)
        if job_id:
            self._tasks.start_soon(self._paged, job_id)
            await self._resumed(Reading(job_id))

    async def conversation(self, name: str) -> None:
        """A session and some turns, one after another; sometimes it is deleted in between."""
        created = await self._somehow(self._session)
        if created is None:
            return
        revision = 0
        for turn in range(self.chance.choice((1, 2, 3))):
            if self.chance.random() < 0.15:
                self._tasks.start_soon(self._deleted, created)
            revision = await self._turn(f"{name}.{turn}", created, revision)
            if revision < 0:
                return
        if self.chance.random() < 0.3:
            await self._deleted(created)

    async def host_run(self, name: str) -> None:
        """A run that is begun, decided about, resumed and read through the Host protocol."""
        chosen = [tool for tool in TOOLS if self.chance.random() < 0.7]
        work = HostWork(self.world, f"run {name}", self.subject, self._tasks)
        text = msgspec.json.encode({"name": name, "steps": self.steps(name, *chosen)}).decode()
        await work.see_through(text, chosen)

    # Streams.

    def _patience(self) -> int | None:
        """After how many batches the client leaves; None: never."""
        return self.chance.choice((1, 3, 6)) if self.chance.random() < 0.2 else None

    async def _opened(self, document: dict[str, Any]) -> "Opened | None":
        """Open a stream; None if no answer came, and what then becomes of the run is not known.

        Raises:
            Refused: for good.
        """
        for _ in range(TRIES):
            machine = self.world.any_node()
            try:
                socket = await self._stream(
                    machine, lambda host, socket: attended(host, socket, document, self.subject)
                )
            except LOST:
                return None
            except Refused as refused:
                if refused.code not in MAY_WAIT:
                    self._refused("opening", refused)
                    raise
                await anyio.sleep(self.chance.uniform(0.1, 0.6))
                continue
            self.world.acknowledge("started", socket.run_id)
            return Opened(machine, socket)
        return None

    async def _tried(self, document: dict[str, Any]) -> "Opened | None":
        """Open a stream; None if that does not succeed."""
        try:
            return await self._opened(document)
        except Refused:
            return None

    async def _stream(self, machine: Machine, serve: Any) -> Socket:
        """Open a stream and wait until it has begun."""
        socket = await machine.stream(serve)
        try:
            with anyio.fail_after(6):
                await socket.next()
        except BaseException as error:
            machine.hang_up(socket)
            if isinstance(error, TimeoutError):
                raise Gone("no stream") from None
            raise
        if not socket.run_id:
            raise Gone("no stream")
        return socket

    async def _followed(self, machine: Machine, socket: Socket, reading: Reading, patience: int | None) -> None:
        """Read a stream until it ends, one way or the other, or until patience does."""
        reading.run_id = socket.run_id
        after, events, over = reading.cursor.number, list[tuple[int, bytes]](), False
        batches = 0
        try:
            while patience is None or batches < patience:
                batch = await socket.next()
                if batch is None:
                    over = reading.end is not None
                    break
                batches += bool(batch)
                for item in batch:
                    events.append((item.number, wire_feed.numbered(*item)))
                    self._saw(item, reading)
        except LOST as lost:
            self.world.say(self.name, "lost", machine.name, lost)
        except Refused as refused:
            self._refused(f"following {reading.run_id}", refused)
        finally:
            machine.hang_up(socket)
            self.world.reads.append(Read(f"{self.name} on {machine.name}", reading.run_id, after, events, over))

    def _saw(self, item: Item, reading: Reading) -> None:
        event = msgspec.json.decode(wire_feed.numbered(*item))
        reading.cursor = Cursor(item.number, digest_of(item.data))
        match event["type"]:
            case "approval.requested":
                self._take_part(event["approval"]["approvalId"], self._decided, event["approval"])
            case "tool.execution.requested":
                self._take_part(event["execution"]["executionId"], self._executed, event["execution"])
            case kind if kind in ENDS:
                reading.end = event
                if kind == "run.completed":
                    self.world.acknowledge("completed", reading.run_id, event["result"]["text"])
            case _:
                pass

    async def _resumed(self, reading: Reading) -> None:
        """Read the rest of a run, on whatever nodes there are."""
        for _ in range(3 * TRIES):
            if reading.end is not None:
                return
            machine = self.world.any_node()
            cursor = reading.cursor
            try:
                socket = await self._stream(
                    machine,
                    lambda host, socket, cursor=cursor: watched(host, socket, self.subject, reading.run_id, cursor),
                )
            except LOST:
                await anyio.sleep(self.chance.uniform(0.1, 0.7))
                continue
            except Refused as refused:
                self._refused(f"resuming {reading.run_id} after {cursor}", refused)
                return
            await self._followed(machine, socket, reading, None)
            await anyio.sleep(self.chance.uniform(0.05, 0.4))
        self.world.complain(self.name, "found no end of", reading.run_id)

    # Taking part.

    def _take_part(self, thing: str, how: Callable[[Any], Coroutine[Any, Any, None]], what: Any) -> None:
        if thing not in self._asked:
            self._asked.add(thing)
            self._tasks.start_soon(how, what)
            if self.chance.random() < 0.25 and "approvalId" in what:
                self._tasks.start_soon(how, what)

    async def _decided(self, approval: Any) -> None:
        """Decide about a call, on any node, soon or late."""
        chance = self.chance
        await anyio.sleep(chance.choice((0.01, 0.3, 1.0, 2.9, 3.5)))
        decisions: Sequence[Literal["approve", "deny", "cancel"]] = ("approve", "deny", "cancel")
        (decision,) = chance.choices(decisions, (8, 1, 1))
        approval_id, run_id, call = approval["approvalId"], approval["runId"], approval["call"]

        async def decided(host: Host) -> None:
            found = await host.decisions.decide(self._caller, approval_id, run_id, call, decision)
            outcome = found.settled.outcome
            self.world.acknowledge("decision", run_id, (approval_id, outcome, self.subject))
            if outcome != DECISIONS[decision]:
                self.world.complain("decided", decision, "and was told", outcome, "of", approval_id)

        await self._somehow(decided, asking=f"decision {approval_id}")

    async def _executed(self, execution: Any) -> None:
        """Execute a ticket, and deliver what came of it, perhaps twice."""
        await anyio.sleep(self.chance.choice((0.01, 0.2, 1.5)))
        execution_id, run_id, call_id = execution["executionId"], execution["runId"], execution["call"]["id"]
        self.world.effect(Effect(run_id, call_id, "app", application=True))

        async def delivered(host: Host) -> None:
            await host.decisions.deliver(self._caller, execution_id, run_id, call_id, Raw(b'{"done":1}'))
            self.world.acknowledge("delivery", run_id, call_id)

        async def reported(host: Host) -> None:
            await host.decisions.report(self._caller, execution_id, run_id, call_id)

        if self.chance.random() < 0.3:
            await self._somehow(reported, asking=f"report {execution_id}")
        if self.chance.random() < 0.9:
            await self._somehow(delivered, asking=f"delivery {execution_id}")
        if self.chance.random() < 0.2:
            await self._somehow(delivered, asking=f"delivery again {execution_id}")

    @property
    def _caller(self) -> Caller:
        return Caller(self.subject, lambda _provider, _tool: True, lambda _provider, _tool: True)

    # Keys, jobs, sessions.

    async def _of_key(self, name: str, document: dict[str, Any]) -> Reading | None:
        """Ask until the outcome of a key is known; None if that is not to be had."""
        for _ in range(TRIES):
            try:
                opened = await self._opened(document)
            except Refused:
                return None
            if opened is not None:
                machine, socket = opened
                reading = Reading(socket.run_id)
                if socket.replayed:
                    await self._replayed(machine, socket, reading)
                else:
                    await self._followed(machine, socket, reading, self._patience())
                if reading.end is not None:
                    self.world.outcomes.append(Outcome(name, socket.run_id, reading.end, socket.replayed))
                    return reading
            await anyio.sleep(self.chance.uniform(0.1, 0.8))
        return None

    async def _replayed(self, machine: Machine, socket: Socket, reading: Reading) -> None:
        try:
            while (batch := await socket.next()) is not None:
                for item in batch:
                    event = msgspec.json.decode(wire_feed.numbered(*item))
                    if event["type"] in ENDS:
                        reading.end = event
        except LOST:
            pass
        finally:
            machine.hang_up(socket)

    async def _submitted(self, name: str, document: dict[str, Any], *, interactive: bool = False) -> str:
        async def submitted(host: Host) -> str:
            submitter = Submitter(self.subject, "principal", frozenset({"app"}))
            request = host.checked(document)
            job = await host.jobs.submit(submitter, name, request, interactive=interactive)  # type: ignore[union-attr]
            self.world.acknowledge("job", job.id)
            return job.id

        return await self._somehow(submitted, asking=f"job {name}") or ""

    async def _job_cancelled(self, job_id: str) -> None:
        await anyio.sleep(self.chance.uniform(0, 2))

        async def cancelled(host: Host) -> None:
            await host.jobs.cancel(self.subject, job_id, lambda _: True)  # type: ignore[union-attr]
            self.world.acknowledge("cancelled", job_id)

        await self._somehow(cancelled, asking=f"cancel {job_id}")

    async def _cancelled(self, run_id: str) -> None:
        await anyio.sleep(self.chance.uniform(0, 1.5))

        async def cancelled(host: Host) -> None:
            await host.cancel(run_id)
            self.world.acknowledge("cancelled", run_id)

        await self._somehow(cancelled, asking=f"cancel {run_id}")

    async def _paged(self, job_id: str) -> None:
        """Read a job's pages from whatever node, until it has ended."""
        events: list[tuple[int, bytes]] = []
        over, page = False, None
        for _ in range(60):
            after = events[-1][0] if events else 0

            async def paged(host: Host, after: int = after) -> Any:
                return await host.jobs.page(self.subject, job_id, lambda _: True, after)  # type: ignore[union-attr]

            page = await self._somehow(paged, asking=f"page {job_id}")
            if page is None:
                break
            events.extend((item.number, wire_feed.numbered(*item)) for item in page.items)
            if page.job.ended is not None and page.job.cursor == (events[-1][0] if events else 0):
                over = True
                break
            await anyio.sleep(self.chance.uniform(0.3, 0.9))
        else:
            self.world.complain(self.name, "saw no end of the job", job_id)
        view = f"{job_id} in pages" if page is not None and page.job.accepted.interactive else job_id
        self.world.reads.append(Read(f"{self.name} by page", view, 0, events, over))

    async def _session(self, host: Host) -> str:
        wanted = Wanted("fake", "m", self.chance.choice(("history", "native")))
        shown = await host.sessions.create(everything_of(self.subject), wanted)  # type: ignore[union-attr]
        self.world.acknowledge("session", shown.id)
        return shown.id

    async def _turn(self, name: str, session_id: str, revision: int) -> int:
        """Take a turn; the session's revision after it, below zero if it cannot go on."""
        keyed = {"idempotencyKey": f"key-{name}"} if self.chance.random() < 0.4 else {}
        document = self.document(name, "pay", "put", session={"id": session_id, "revision": revision}, **keyed)
        reading: Reading | None = None
        if keyed:
            reading = await self._of_key(name, document)
        elif (opened := await self._tried(document)) is not None:
            reading = Reading()
            await self._followed(*opened, reading, self._patience())
        if reading is not None and reading.end is not None and reading.end["type"] == "run.completed":
            self.world.acknowledge("turn", session_id, reading.run_id)

        async def read(host: Host) -> Any:
            return await host.sessions.read(everything_of(self.subject), session_id)  # type: ignore[union-attr]

        for _ in range(TRIES):
            shown = await self._somehow(read, asking=f"session {session_id}")
            if shown is None or shown.state.interrupted:
                return -1
            if not shown.state.running:
                return int(shown.state.revision)
            await anyio.sleep(0.5)
        return -1

    async def _deleted(self, session_id: str) -> None:
        await anyio.sleep(self.chance.uniform(0, 1))

        async def deleted(host: Host) -> None:
            await host.sessions.delete(everything_of(self.subject), session_id)  # type: ignore[union-attr]
            self.world.acknowledge("deleted", session_id)

        await self._somehow(deleted, asking=f"delete {session_id}")

    # Asking.

    async def _somehow(self, work: Callable[[Host], Awaitable[T]], asking: str = "") -> T | None:
        """Ask one node after another until one answers; None for a refusal, or if nobody does."""
        for _ in range(TRIES):
            try:
                return await self.world.any_node().ask(work)
            except LOST as lost:
                self.world.say(self.name, asking, lost)
            except Refused as refused:
                if refused.code not in MAY_WAIT:
                    self._refused(asking, refused)
                    return None
            await anyio.sleep(self.chance.uniform(0.05, 0.6))
        return None

    def _refused(self, asking: str, refused: Refused) -> None:
        if refused.code in NEVER:
            self.world.complain(self.name, asking, "was refused:", refused)
        else:
            self.world.say(self.name, asking, "was refused:", refused)
