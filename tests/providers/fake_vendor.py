"""What the fake vendors share: how their events are framed, their key, and a stage for the conformance cases."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import msgspec

from providers.api import ApiModel
from providers.http import open_http
from providers.kit import SECRET, Answer
from providers.vendors import VENDORS
from tests.providers.fake_http import Asked, Machine, Reply, machine

DONE = "[DONE]"
_WHOLE = {"silence": "silence", "cut": "cut"}


class Dialect(ABC):
    """How one vendor speaks."""

    kind: ClassVar[Any]
    model: ClassVar[str]
    path: ClassVar[str]
    key = "key-" + SECRET
    event_names: ClassVar[bool] = True
    """Whether its events have names beside their data."""
    line_end: ClassVar[bytes] = b"\n"

    @abstractmethod
    def check(self, asked: Asked) -> None:
        """Find fault with a request (`AssertionError`) that the vendor would not take."""

    @abstractmethod
    def events(self, answer: Answer) -> Iterator[Any]:
        """Say *answer* as the vendor streams it."""

    @abstractmethod
    def whole(self, answer: Answer) -> Mapping[str, Any]:
        """Say *answer* as one document."""

    def listed(self, models: tuple[str, ...]) -> Mapping[str, Any]:
        """Say which models there are."""
        return {"object": "list", "data": [{"id": model, "object": "model"} for model in models], "has_more": False}


class Way(NamedTuple):
    """How the bytes of a stream come."""

    every: int = 0
    line_end: bytes | None = None
    """In place of the vendor's own."""
    keep_alive: bytes = b""
    whole: bool = False


PLAIN = Way()


def framed(event: Any, dialect: Dialect, way: Way) -> bytes:
    """One event of a stream."""
    data = DONE.encode() if event == DONE else msgspec.json.encode(event)
    name = (
        b"event: %b" % event["type"].encode()
        if dialect.event_names and isinstance(event, dict) and "type" in event
        else b""
    )
    lines = [way.keep_alive, name, b"data: " + data]
    line_end = way.line_end or dialect.line_end
    return b"".join(line + line_end for line in lines if line) + line_end


class Playing:
    """A fake vendor at work, and the adapter that asks it."""

    def __init__(self, model: ApiModel, told: Machine, name: str) -> None:
        self.model = model
        self.machine = told
        self.name = name

    def received(self, text: str) -> bool:
        return text.encode() in self.machine.asked[-1].body

    async def left(self) -> None:
        await self.machine.left.wait()


class FakeStage:
    """Puts a fake vendor on, whose bytes come this *way*."""

    def __init__(self, dialect: Dialect, way: Way = PLAIN) -> None:
        self.dialect = dialect
        self.way = way

    @asynccontextmanager
    async def playing(self, *answers: Answer) -> AsyncIterator[Playing]:
        left = list(answers)

        def respond(asked: Asked) -> Reply:
            if asked.method == "GET":
                return Reply(parts=[msgspec.json.encode(self.dialect.listed((self.dialect.model,)))])
            assert asked.headers["accept"] == "text/event-stream"
            assert asked.headers["accept-encoding"] == "identity"
            assert asked.headers["content-type"] == "application/json"
            self.dialect.check(asked)
            return reply(left.pop(0) if len(left) > 1 else left[0], self.dialect, self.way)

        async with machine(respond) as told, opened(self.dialect, told.url) as model:
            yield Playing(model, told, self.dialect.model)


@asynccontextmanager
async def opened(dialect: Dialect, url: str) -> AsyncIterator[ApiModel]:
    """Open the adapter of *dialect* on the machine at *url*."""
    vendor = VENDORS[dialect.kind]
    info = vendor.info(instance="it", name="", auth_mode="api-key", models=None, media={}, tools=True, account=None)

    async def key() -> str:
        return dialect.key

    async with open_http(f"{url}v1/", "it") as http:
        yield ApiModel(info, vendor, http, key, structured=vendor.structured)


def reply(answer: Answer, dialect: Dialect, way: Way = PLAIN) -> Reply:
    """What the vendor sends for *answer*."""
    if answer.status != 200:
        after = () if answer.retry_after is None else (f"Retry-After: {answer.retry_after}",)
        place = ("Location: /v1/elsewhere",)
        body = msgspec.json.encode({"error": {"message": SECRET}})
        return Reply(answer.status, [body], "application/json", (*after, *place, "x-request-id: req_011CX"))
    if way.whole and answer.end in {"stop", "length", "refusal"}:
        return Reply(
            parts=[msgspec.json.format(msgspec.json.encode(dialect.whole(answer)))], content_type="application/json"
        )
    parts = [framed(event, dialect, way) for event in dialect.events(answer)]
    end: Any = _WHOLE.get(answer.end, "whole")
    return Reply(parts=parts, end=end, every=way.every)


def pieces(text: str, most: int = 5) -> Iterable[str]:
    """*text* in pieces."""
    return [text[start : start + most] for start in range(0, len(text), most)]


def usage_of(answer: Answer, told: Callable[[int, int, int, int], Any]) -> Any:
    """The tokens that *answer* counted, in the vendor's words, or null."""
    return None if answer.counted is None else told(*answer.counted)
