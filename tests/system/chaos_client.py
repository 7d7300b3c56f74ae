"""What a client of the chaos suite can do: ask whichever host, read a stream wherever it goes on, and note all it saw."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import anyio

from tests.history import ENDS, Acknowledged, Effect, Outcome, Read, Said
from tests.http_client import Stream, opened
from tests.strict_values import Object
from tests.system.cluster import LOST, asking_once, drawn
from tests.system.house import House
from tests.system.processes import POLL_S, headers_of

How = Literal["over", "left", "parted", "lost", "refused", "gone"]
"""How a reading ended: with the run, by the client, by the host's word, by a loss, before it began, or with its history."""
OnEvent = Callable[[Any], Awaitable[None]]
READ_S = 8.0
"""How long a client waits for the next bytes of a stream; longer than a host is paused."""
KNOWN = frozenset(
    {
        "APPROVAL_DENIED",
        "APPROVAL_NOT_FOUND",
        "CANCELLED",
        "JOB_INTERRUPTED",
        "OPERATION_STORE_ERROR",
        "OPERATION_UNCERTAIN",
        "SESSION_BUSY",
        "SESSION_INTERRUPTED",
        "SESSION_NOT_FOUND",
        "SESSION_REVISION_CONFLICT",
        "TOOL_EXECUTION_NOT_FOUND",
        "TOOL_OUTCOME_UNCERTAIN",
    }
)
"""What a client may be told for good while hosts and their Redis are harmed."""


class Notes:
    """What all clients noted; beside what is known, they may be told of *losses*."""

    def __init__(self, losses: Iterable[str] = ()) -> None:
        self.known = KNOWN | frozenset(losses)
        self.reads: list[Read] = []
        self.acknowledged: list[Acknowledged] = []
        self.effects: list[Effect] = []
        self.outcomes: list[Outcome] = []
        self.complaints: list[str] = []
        self.ends: Counter[str] = Counter()
        self.moves = 0
        """How often a stream was continued."""


class Seen(NamedTuple):
    """What came of one run's stream so far."""

    events: list[tuple[int, bytes]]
    ids: list[str]
    """The id of each, as a cursor."""

    @property
    def run_id(self) -> str:
        """Which run it is; nothing before its first event."""
        return str(json.loads(self.events[0][1])["runId"]) if self.events else ""

    @property
    def is_over(self) -> bool:
        """Whether the terminal event came."""
        return bool(self.events) and json.loads(self.events[-1][1])["type"] in ENDS


class Client:
    """One client; what it does comes from its *chance*, and from *luck* whatever depends on when something happens."""

    def __init__(self, house: House, notes: Notes, subject: str, chance: random.Random) -> None:
        self.house = house
        self.notes = notes
        self.subject = subject
        self.chance = chance
        self.luck = drawn(chance.randrange(1_000_000))

    async def posted(self, path: str, document: Object, first: int = -1) -> Any:
        """The answer to a request that may be sent twice; None if it was refused for good."""
        status, body = await self.house.answered(path, document, self.subject, self.luck, first)
        if status == 200:
            return body
        await self.refused(path, body)
        return None

    async def refused(self, what: str, body: Any) -> str:
        """Note a refusal; its code."""
        code = str(body["error"]["code"])
        self.notes.ends[f"{what} {code}"] += 1
        if code not in self.notes.known:
            self.notes.complaints.append(f"{what} was answered {body}")
        return code

    async def asked(self, document: Object, number: int) -> tuple[int, Any]:
        """The answer to a keyed run from one host or, if none comes, from others; what is in progress is asked for again."""
        while True:
            try:
                status, body = await asking_once(self.house.host(number), "/v1/runs", document, self.subject, READ_S)
            except LOST:
                number = self.luck.choice(self.house.up or [0])
            else:
                error: Any = {} if status == 200 else body["error"]  # type: ignore[index, call-overload]
                if not error.get("retryable") and error.get("code") != "OPERATION_STORE_ERROR":
                    return status, body
            await anyio.sleep(POLL_S)

    async def begun(self, document: Object, seen: Seen, on_event: OnEvent, most: int = 0) -> How:
        """Begin a run and read its stream to its end, or until *most* events came."""
        return await self._read("POST", "/v1/runs", document, seen, on_event, most)

    async def followed(self, run_id: str, seen: Seen, on_event: OnEvent) -> None:
        """Read a run to its end, from what was seen on, through one host after the other."""
        while not seen.is_over:
            self.notes.moves += 1
            most = self.luck.choice((0, 0, 5, 25))
            path = f"/v1/runs/{run_id}/events"
            how = await self._read("GET", path, {}, seen, on_event, most)
            if how == "gone" or (how == "over" and not seen.is_over):
                return
            if how != "left":
                await anyio.sleep(POLL_S)

    async def noted(self, seen: Seen, what: str, feed: str = "") -> None:
        """Note what was read, and how it ended."""
        if not seen.events:
            return
        reader = f"{self.subject} ({what})"
        self.notes.reads.append(Read(reader, feed or seen.run_id, 0, list(seen.events), over=seen.is_over))
        last = json.loads(seen.events[-1][1])
        self.notes.ends[f"{what} {last['type'] if seen.is_over else 'unread'}"] += 1
        if seen.is_over and "error" in last:
            await self.refused(what, last)

    async def acknowledged(self, what: Said, actor: str, detail: Any = None) -> None:
        """Note what the host said is so."""
        self.notes.acknowledged.append(Acknowledged(what, actor, detail))

    async def _read(self, method: str, path: str, document: Object, seen: Seen, on_event: OnEvent, most: int) -> How:
        headers = [*headers_of(self.subject, "text/event-stream")]
        headers += [("Last-Event-ID", seen.ids[-1])] if seen.ids else []
        body = json.dumps(document).encode() if document else None
        try:
            host = self.house.host(self.luck.choice(self.house.up or [0]))
            async with opened(host.target, method, path, headers, body, deadline_s=READ_S) as stream:
                if stream.status == 204:
                    return "over"
                if stream.status != 200:
                    told: Any = json.loads(await stream.body())
                    if not told["error"]["retryable"]:
                        code = await self.refused(f"{method} {path[:9]}", told)
                        return "gone" if code == "HISTORY_LOST" else "refused"
                    return "refused"
                return await taken(stream, seen, on_event, len(seen.events) + most if most else 0)
        except LOST:
            return "lost"


async def taken(stream: Stream, seen: Seen, on_event: OnEvent, most: int) -> How:
    """Take events as they come."""
    rest = b""
    async for piece in stream.chunks():
        *frames, rest = (rest + piece).split(b"\n\n")
        for frame in frames:
            lines = dict(line.split(b": ", 1) for line in frame.split(b"\n") if not line.startswith(b":"))
            if b"data" not in lines:
                continue
            number = int(lines[b"id"].split(b".")[0])
            seen.events.append((number, lines[b"data"]))
            seen.ids.append(lines[b"id"].decode())
            await on_event(json.loads(lines[b"data"]))
        if most and len(seen.events) >= most:
            return "left"
    return "over" if seen.is_over else "parted"


async def nothing(_event: Any) -> None:
    """Do nothing about an event."""


async def both(*works: Callable[[], Awaitable[Any]]) -> Sequence[Any]:
    """The results of *works*, done at once."""
    return await asyncio.gather(*(work() for work in works))
