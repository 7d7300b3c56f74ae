"""What clients do through the Host protocol: a run each, changed under keys through any node, and read through all."""

import random
import uuid
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from actors import ids
from api.grants import Policy, Principal, host_access
from api.host import dispatcher, encoding
from api.host.envelope import request_of
from api.host.reading import Seen
from api.host.service import HostService
from eventstore.store import Item, Unavailable
from runstream.host import Host
from tests.history import Acknowledged
from tests.host_client import Object, envelope, whole
from tests.host_history import HOST_ENDS, Answered, HostRead, Viewed
from tests.simulation.world import Gone, Machine, Socket, World

TOOLS = ("pay", "put", "check")
LOST = (Gone, Unavailable)
TRIES = 14
LOOKS = 90
DEADLINE_MS = 25_000
"""After this each run ends by itself, whoever was lost meanwhile."""


class HostWork:
    """What one client has to do with one run."""

    def __init__(self, world: World, name: str, subject: str, tasks: TaskGroup) -> None:
        self.world = world
        self.name = name
        self.subject = subject
        self.run = ids.run_of_host(world.memory.deployment.id_key, subject, name)
        self.chance = random.Random(f"host {world.seed} {name}")  # noqa: S311 - a test's
        self._tasks = tasks
        self._policy = Policy(
            subject=subject, providers=("fake",), tools=TOOLS, approve_tools=("check",), jobs=("submit",)
        )
        self._keys = 0
        self._told = 0
        """The last revision that the client was told of."""

    async def see_through(self, input_text: str, tools: list[str]) -> None:
        """Begin the run, let others read along, and decide, resume and cancel until it has ended."""
        chance = self.chance
        if not await self._created(input_text, tools):
            return
        for read in (self._paged, self._streamed):
            if chance.random() < 0.6:
                self._tasks.start_soon(read)
        if chance.random() < 0.12:
            self._tasks.start_soon(self._cancelled_some_time)
        for _ in range(LOOKS):
            view = await self._view()
            if view is None or view["status"] in HOST_ENDS:
                return
            await self._answered(view)
            if chance.random() < 0.08:
                await self._meant_for_another_time(view["revision"] - 1)
            await anyio.sleep(chance.uniform(0.1, 0.9))
        self.world.complain(self.name, "saw no end of its run")

    # Changing.

    async def _created(self, input_text: str, tools: list[str]) -> bool:
        asked: dict[str, Any] = {"provider": "fake", "model": "m", "input": input_text}
        wait_ms = self.chance.choice((DEADLINE_MS, DEADLINE_MS, DEADLINE_MS, 1_500, 4_000))
        context = {"runId": self.name, "traceId": "t", "deadlineUnixMs": self.world.redis_ms() + wait_ms}
        body = {"context": context, "input": asked | ({"tools": tools} if tools else {})}
        told = await self._changed("create_run", body)
        if told is not None and not told["ok"]:
            self.world.complain(self.name, "could not begin its run:", told["error"])
        return told is not None and told["ok"]

    async def _answered(self, view: Object) -> None:
        """Do what a run waits for, if it does; sometimes claim once more what it goes on with."""
        approval, chance = view["approval"], self.chance
        if approval is None:
            return
        named = {"runId": self.name, "expectedRevision": view["revision"], "approvalId": approval["approvalId"]}
        if view["status"] == "running":
            if chance.random() < 0.15:
                await self._changed("resume_run", named)
        elif approval["resolution"] == "approved":
            await self._changed("resume_run", named | {"input": {"n": view["revision"]}})
        elif chance.random() < 0.05:
            await self._changed("cancel_run", {"runId": self.name, "expectedRevision": view["revision"]})
        else:
            (resolution,) = chance.choices(("approved", "denied"), (9, 1))
            told = await self._changed("resolve_approval", named | {"resolution": resolution})
            if told is not None and told["ok"]:
                detail = (approval["approvalId"], resolution, self.subject)
                self.world.acknowledged.append(Acknowledged("decision", self.run, detail))

    async def _meant_for_another_time(self, revision: int) -> None:
        """Ask for the end of a run as it was before: that is refused whatever happens."""
        told = await self._changed("cancel_run", {"runId": self.name, "expectedRevision": revision})
        if told is not None and told["ok"]:
            self.world.complain(self.name, "was cancelled at", revision, "which was over")

    async def _cancelled_some_time(self) -> None:
        await anyio.sleep(self.chance.uniform(0, 3))
        for _ in range(5):
            view = await self._view(f"{self.name} cancelling")
            if view is None or view["status"] in HOST_ENDS:
                return
            told = await self._changed("cancel_run", {"runId": self.name, "expectedRevision": view["revision"]})
            if told is not None and told["ok"]:
                return

    async def _changed(self, operation: str, body: Object) -> Object | None:
        """Ask for a change under a key of its own until that is decided; sometimes twice at once, or once more later."""
        self._keys += 1
        key = f"{self.name} {self._keys}"
        if self.chance.random() < 0.15:
            self._tasks.start_soon(self._decided, operation, body, key)
        told = await self._decided(operation, body, key)
        if self.chance.random() < 0.15:
            self._tasks.start_soon(self._decided_later, operation, body, key)
        if told is not None and told["ok"]:
            self._told = max(self._told, told["body"]["revision"])
        return told

    async def _decided_later(self, operation: str, body: Object, key: str) -> None:
        await anyio.sleep(self.chance.uniform(0.5, 4))
        await self._decided(operation, body, key)

    async def _decided(self, operation: str, body: Object, key: str) -> Object | None:
        told = await self._told_of(operation, body, key)
        if told is None:
            return None
        error = told["error"]
        where: Any = told["body"] if told["ok"] else error["details"]
        code, revision, status = "" if told["ok"] else error["code"], where.get("revision", 0), where.get("status", "")
        asker = f"{self.name} {operation}"
        self.world.answers.append(Answered(asker, self.subject, operation, key, self.run, body, code, revision, status))
        self.world.say(asker, key, code or "done", revision, status)
        if told["ok"] and told["body"]["runId"] != self.name:
            self.world.complain(asker, "was told of", told["body"]["runId"])
        return told

    # Reading.

    async def _view(self, reader: str = "") -> Object | None:
        told = await self._told_of("get_run", {"runId": self.name})
        if told is None or not told["ok"]:
            return None
        view: Object = told["body"]
        self.world.views.append(Viewed(reader or self.name, self.run, view))
        if not reader and view["revision"] < self._told:
            self.world.complain(self.name, "saw", view["revision"], "after it was told of", self._told)
        return view

    async def _paged(self) -> None:
        """Read the events page by page until the run has ended."""
        events: list[tuple[int, bytes]] = []
        over = False
        for _ in range(2 * LOOKS):
            after = events[-1][0] if events else 0
            limit = self.chance.choice((1, 2, 5, 256))
            told = await self._told_of("list_events", {"runId": self.name, "afterSequence": after, "limit": limit})
            if told is None or not told["ok"]:
                break
            events += [(one["sequence"], _text(one)) for one in told["body"]["events"]]
            over = bool(events) and not told["body"]["hasMore"] and _is_end(events[-1][1])
            if over:
                break
            await anyio.sleep(self.chance.uniform(0, 0.6))
        self.world.host_reads.append(HostRead(f"{self.name} by page", self.run, 0, events, over))

    async def _streamed(self) -> None:
        """Read the events as a stream, and go on elsewhere where that breaks off."""
        after, over = 0, False
        for _ in range(LOOKS):
            machine, before = self.world.any_node(), after
            events: list[tuple[int, bytes]] = []
            try:
                await self._read(machine, after, events)
            except LOST as lost:
                self.world.say(self.name, "lost", machine.name, lost)
            if events:
                after, over = events[-1][0], _is_end(events[-1][1])
                self.world.host_reads.append(HostRead(f"{self.name} on {machine.name}", self.run, before, events, over))
            if over:
                return
            await anyio.sleep(self.chance.uniform(0.1, 0.6))

    async def _read(self, machine: Machine, after: int, events: list[tuple[int, bytes]]) -> None:
        """Read one stream until it ends, one way or the other."""

        async def serve(host: Host, socket: Socket) -> None:
            await followed(host, socket, self._service(host), self.name, after)

        socket = await machine.stream(serve)
        try:
            while (batch := await socket.next()) is not None:
                events += [(one.number, _text(msgspec.json.decode(one.data))) for one in batch]
        finally:
            machine.hang_up(socket)

    # Asking.

    async def _told_of(self, operation: str, body: Object, key: str = "") -> Object | None:
        """Ask one node after another until one says how it stands; None if nobody does."""
        asked = envelope(operation, body, request_id=str(uuid.uuid4()), key=key)

        async def answered(host: Host) -> bytes:
            answer = await dispatcher.dispatched(request_of(asked), self._service(host), self._noted)
            return answer.body

        for _ in range(TRIES):
            try:
                told = whole(await self.world.any_node().ask(answered))
            except LOST as lost:
                self.world.say(self.name, operation, lost)
            else:
                if told["requestId"] != asked["requestId"] or told["operation"] != operation:
                    self.world.complain(self.name, "was answered with", told["requestId"], told["operation"])
                if told["ok"] or told["error"]["code"] == "conflict":
                    return told
                if told["error"]["code"] != "unavailable":
                    self.world.complain(self.name, operation, "was refused:", told["error"])
                    return told
            await anyio.sleep(self.chance.uniform(0.05, 0.6))
        return None

    def _service(self, host: Host) -> HostService:
        assert host.agent_host is not None
        return HostService(host.agent_host, host_access(None, Principal("", self._policy)))

    def _noted(self, error: BaseException, where: str) -> None:
        self.world.complain("the Host met", where, repr(error))


async def followed(host: Host, socket: Socket, service: HostService, name: str, after: int) -> None:
    """Serve the stream of a run's events as the edge does."""
    seen = await service.visible(name)
    if not isinstance(seen, Seen):
        raise Unavailable("the run cannot be seen now")
    assert host.agent_host is not None
    async with anyio.create_task_group() as tasks:

        async def closing() -> None:
            await host.node.closing.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(closing)
        async with aclosing(host.agent_host.reading.follow(seen, after, host.options.heartbeat_s)) as batches:
            async for batch in batches:
                socket.push([Item(one.sequence, encoding.compact(encoding.event(one))) for one in batch])
        tasks.cancel_scope.cancel()


def _text(event: Object) -> bytes:
    """One text for each event, however it came."""
    return msgspec.json.encode(event, order="sorted")


def _is_end(text: bytes) -> bool:
    return msgspec.json.decode(text)["status"] in HOST_ENDS
