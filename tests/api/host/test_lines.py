"""Envelopes as lines: in any pieces, in any order, within bounds, to a clean end."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from typing_extensions import override

from api.host import lines
from api.host.encoding import Submission
from api.host.failures import Failure
from api.host.lines import Bounds, Stalled
from api.host.requests import Call, CancelRun
from projections.views import HostView
from tests.actors.support import until
from tests.api.host.vectors import Stub
from tests.host_client import Object, envelope, whole

pytestmark = pytest.mark.anyio


class Pipe:
    """A peer: what it sends in which pieces, and what it was answered."""

    def __init__(self, *pieces: bytes, open_after: bool = False) -> None:
        self.pieces = list(pieces)
        self.open_after = open_after
        self.raw = b""
        self.sent = anyio.Event()

    async def receive(self) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        self.sent.set()
        if self.open_after:
            await anyio.sleep_forever()
        return b""

    async def send(self, data: bytes) -> None:
        self.raw += data

    @property
    def answers(self) -> list[Object]:
        assert self.raw.endswith(b"\n")
        return [whole(line) for line in self.raw.splitlines()]


def line(request_id: str, **members: Any) -> bytes:
    return json.dumps(envelope("get_run", {"runId": "run-1"}, request_id=request_id) | members).encode() + b"\n"


async def talked(pipe: Pipe, service: Any = None, bounds: Bounds = lines.BOUNDS) -> list[Object]:
    await lines.served(pipe.receive, pipe.send, service or Stub(), closing=anyio.Event(), bounds=bounds)
    return pipe.answers


def cut(data: bytes, size: int) -> Sequence[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
async def test_lines_are_answered_however_they_are_cut(size: int) -> None:
    data = line("a") + b"\n  \r\n" + b"nonsense\n" + line("b").replace(b"\n", b"\r\n") + line("c").rstrip()
    answers = await talked(Pipe(*cut(data, size)))
    assert sorted(answer["requestId"] for answer in answers) == ["", "a", "b", "c"]
    assert sorted(answer["ok"] for answer in answers) == [False, True, True, True]


@pytest.mark.parametrize("size", [3, 50, 10_000])
async def test_a_line_that_is_too_long_is_refused_and_the_next_one_answered(size: int) -> None:
    data = line("x" * 900) + line("b") + b"y" * 900
    answers = await talked(Pipe(*cut(data, size)), bounds=Bounds(line_bytes_max=500))
    assert [answer["requestId"] for answer in answers if answer["ok"]] == ["b"]
    assert [answer["error"]["code"] for answer in answers if not answer["ok"]] == ["invalid_request"] * 2


async def test_nothing_at_all_is_answered_by_nothing() -> None:
    pipe = Pipe(b"", b"")
    await lines.served(pipe.receive, pipe.send, Stub(), closing=anyio.Event())
    assert pipe.raw == b""


class Slow(Stub):
    """Answers reads when it is let, and changes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.inside = 0
        self.most = 0

    @override
    async def get_run(self, call: Call, asked: Any) -> HostView | Failure:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.gate.wait()
        self.inside -= 1
        return await super().get_run(call, asked)

    @override
    async def cancel_run(self, call: Call, asked: CancelRun) -> Submission | Failure:
        self.gate.set()
        return await super().cancel_run(call, asked)


async def test_an_answer_does_not_wait_for_those_before_it() -> None:
    cancel = json.dumps(envelope("cancel_run", {"runId": "run-1", "expectedRevision": 1}, request_id="z", key="k"))
    answers = await talked(Pipe(line("a") + line("b") + cancel.encode()), Slow())
    assert answers[0]["requestId"] == "z"
    assert len(answers) == 3


async def test_no_more_is_read_than_may_be_answered_at_once() -> None:
    service, pipe = Slow(), Pipe(*(line(str(number)) for number in range(20)))
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await lines.served(pipe.receive, pipe.send, service, closing=anyio.Event(), bounds=Bounds(at_once_max=4))

        tasks.start_soon(serve)
        await until(lambda: service.inside == 4)
        assert len(pipe.pieces) >= 15
        service.gate.set()
    assert (len(pipe.answers), service.most) == (20, 4)


async def test_what_was_read_is_answered_when_the_host_closes() -> None:
    service, pipe, closing = Slow(), Pipe(line("a"), open_after=True), anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await lines.served(pipe.receive, pipe.send, service, closing=closing)

        tasks.start_soon(serve)
        await pipe.sent.wait()
        await until(lambda: service.inside == 1)
        closing.set()
        service.gate.set()
    assert [answer["requestId"] for answer in pipe.answers] == ["a"]


async def test_a_peer_that_takes_nothing_is_given_up() -> None:
    pipe = Pipe(line("a"), open_after=True)

    async def stuck(_: bytes) -> None:
        await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as raised:
        await lines.served(pipe.receive, stuck, Stub(), closing=anyio.Event(), bounds=Bounds(stall_s=0.01))
    assert raised.group_contains(Stalled)


async def test_a_fault_of_the_service_is_noted_and_told_as_nothing_else() -> None:
    noted: list[str] = []
    pipe = Pipe(line("a"))
    service = Stub({"kind": "throws", "throw": "runtime_error"})
    await lines.served(
        pipe.receive, pipe.send, service, closing=anyio.Event(), noted=lambda _error, where: noted.append(where)
    )
    assert (noted, pipe.answers[0]["error"]["code"]) == (["get_run"], "internal")
    assert b"secret" not in pipe.raw
