"""Envelopes and event streams over HTTP: the status repeats the code, and every refusal is an envelope."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from api.app import Edge, Gate, create_app
from api.host.failures import STATUSES
from api.host.routes import frames
from api.parts import Limits, Parts
from eventstore.memory import MemoryStore
from projections.host_feed import HostEvent
from tests.actors.reviewing import call
from tests.actors.support import new_memory, saying, stalling, until
from tests.api.asgi_client import Told, sent
from tests.api.asking import JSON, People
from tests.api.host.hosting import Desk, creating, hosting, policy, rounds
from tests.api.host.test_host_runs import reviewed
from tests.host_client import Object, envelope, whole

pytestmark = pytest.mark.anyio

NOBODY: Any = None
ANN = (b"authorization", b"Bearer ann")


class Door:
    """An edge over a host, and who knocks."""

    def __init__(self, desk: Desk, people: People, gate: Gate, *, served: bool = True) -> None:
        self.desk = desk
        self.people = people
        self.gate = gate
        self.app: Edge = create_app(
            Parts(
                runs=NOBODY,
                answers=NOBODY,
                catalog=desk.host.catalog,
                tokens=people,
                discovery=NOBODY,
                gate=gate,
                host=desk.host.agent_host if served else None,
                limits=Limits(heartbeat_s=2),
            )
        )

    async def post(self, body: Any, *headers: tuple[bytes, bytes]) -> tuple[int, Object]:
        """The status of an answer, and the envelope that it is."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = await sent(self.app, "POST", b"/host/v1", list(headers or (JSON, ANN)), data)
        return told.status, judged(told)

    async def get(self, target: str, *headers: tuple[bytes, bytes]) -> Told:
        return await sent(self.app, "GET", target.encode(), [ANN, *headers])


def judged(told: Told) -> Object:
    """The envelope of an answer, whose status is that of its code."""
    answer = whole(told.body)
    assert told.status == STATUSES["" if answer["ok"] else answer["error"]["code"]]
    assert ("content-type", "application/json; charset=utf-8") in list(told.headers)
    return answer


def read(raw: bytes) -> list[Object]:
    """The events of a stream, each with the id and the type of its frame."""
    found = []
    for frame in raw.split(b"\n\n"):
        if not frame or frame.startswith((b":", b"retry:")):
            continue
        number, kind, data = frame.split(b"\n")
        event: Object = json.loads(data.removeprefix(b"data: "))
        assert number == b"id: %d" % event["sequence"]
        assert kind == b"event: " + event["type"].encode()
        found.append(event)
    return found


@asynccontextmanager
async def door(model: Any, *tools: Any, served: bool = True) -> AsyncIterator[Door]:
    async with hosting(model, MemoryStore(new_memory(), "n1"), *tools) as desk:
        people = People(ann=policy(), bo=policy("bo"), poor=policy(jobs=()))
        yield Door(desk, people, Gate(), served=served)


async def test_an_envelope_is_answered_and_the_status_repeats_its_code() -> None:
    async with door(saying("done")) as at:
        status, told = await at.post(envelope("create_run", creating("run-1"), key="k"))
        assert (status, told["body"]["status"]) == (200, "running")
        assert (await at.post(envelope("create_run", creating("run-1"), key="k2")))[0] == 409
        assert (await at.post(envelope("get_run", {"runId": "nope"})))[0] == 404
        assert (await at.post(envelope("get_run", {})))[0] == 400
        assert (await at.post(envelope("get_run", {}) | {"protocolVersion": "2"}))[0] == 400
        poor = (b"authorization", b"Bearer poor")
        assert (await at.post(envelope("create_run", creating("x"), key="k"), JSON, poor))[0] == 403


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"not json", (JSON, ANN), "invalid_request"),
        (b'{"a":NaN}', (JSON, ANN), "invalid_request"),
        (b'"\xff"', (JSON, ANN), "invalid_request"),
        (b"[" * 70 + b"]" * 70, (JSON, ANN), "invalid_request"),
        (b"{}", (JSON,), "unauthorized"),
        (b"{}", (JSON, (b"authorization", b"Bearer nobody")), "unauthorized"),
        (b"{}", ((b"content-type", b"text/plain"), ANN), "invalid_request"),
        (b"{}", (JSON, ANN, (b"content-encoding", b"gzip")), "invalid_request"),
        (b"{}", (JSON, ANN, (b"origin", b"https://evil.example")), "forbidden"),
        (b"{}", (JSON, ANN, (b"content-length", b"9999999")), "invalid_request"),
        (b" " * 1_000_001, (JSON, ANN), "invalid_request"),
        (b"{}", (JSON, ANN, (b"agenticdriver-version", b"2.0")), "invalid_request"),
    ],
)
async def test_whatever_is_refused_before_the_service_is_an_envelope_too(body: bytes, headers: Any, code: str) -> None:
    async with door(saying("done")) as at:
        _, told = await at.post(body, *headers)
        assert (told["error"]["code"], told["requestId"], told["operation"]) == (code, "", "get_run")


async def test_a_large_envelope_is_read_like_a_small_one() -> None:
    async with door(saying("done")) as at:
        given = creating("run-1", input={"prompt": "x" * 90_000})
        assert (await at.post(envelope("create_run", given, key="k")))[0] == 200
        assert (await at.desk.ended("run-1"))["status"] == "completed"


async def test_a_host_that_closes_or_does_not_serve_the_protocol_says_so_in_its_words() -> None:
    async with door(saying("done")) as at:
        at.gate.close()
        status, told = await at.post(envelope("get_run", {"runId": "x"}))
        assert (status, told["error"]["retryable"]) == (503, True)
    async with door(saying("done"), served=False) as at:
        assert (await at.post(envelope("get_run", {"runId": "x"})))[0] == 404
        assert judged(await at.get("/host/v1/runs/x/events"))["error"]["code"] == "not_found"


@pytest.mark.parametrize("target", ["/host/v1", "/host/v1/", "/host/v1/runs", "/host/v1/runs//events", "/host/v1/x"])
async def test_there_is_nothing_else_below_the_protocols_path(target: str) -> None:
    async with door(saying("done")) as at:
        assert judged(await at.get(target))["error"]["code"] == "not_found"


@pytest.mark.parametrize("name", ["run-1", "a/b ?#%", "\u2028 lïne\u0085", "..", "x" * 512])
async def test_a_run_of_any_name_streams_its_events_from_any_of_them(name: str) -> None:
    from urllib.parse import quote  # noqa: PLC0415

    async with door(rounds([call("reviewed")]), reviewed()) as at:
        await at.desk.done("create_run", creating(name, input={"prompt": "x", "tools": ["reviewed"]}))
        await at.desk.approved(name)
        await at.desk.ended(name)
        target = f"/host/v1/runs/{quote(name, safe='')}/events"
        told = await at.get(target)
        assert told.status == 200
        assert ("content-type", "text/event-stream; charset=utf-8") in list(told.headers)
        assert not any(mark in told.body for mark in ("\u2028".encode(), "\u0085".encode()))
        events = read(told.body)
        assert events == await at.desk.events(name)
        for after in (0, 3, len(events), 99):
            by_query = await at.get(f"{target}?after={after}")
            by_header = await at.get(target, (b"last-event-id", b"%d" % after))
            assert read(by_query.body) == read(by_header.body) == events[after:]


async def test_a_stream_goes_on_until_the_end_and_beats_meanwhile() -> None:
    async with door(rounds([call("reviewed")]), reviewed()) as at:
        await at.desk.done("create_run", creating("run-1", input={"prompt": "x", "tools": ["reviewed"]}))
        told: list[Told] = []
        async with anyio.create_task_group() as tasks:

            async def follow() -> None:
                told.append(await at.get("/host/v1/runs/run-1/events"))

            tasks.start_soon(follow)
            await at.desk.approved("run-1")
        assert [event["type"] for event in read(told[0].body)] == await at.desk.types("run-1")


async def test_a_stream_is_parted_when_its_host_closes_and_its_reader_comes_back_elsewhere() -> None:
    async with door(stalling("a")) as at:
        await at.desk.create("run-1")
        told: list[Told] = []
        async with anyio.create_task_group() as tasks:

            async def follow() -> None:
                told.append(await at.get("/host/v1/runs/run-1/events"))

            tasks.start_soon(follow)
            reading = at.desk.host.store.hub  # type: ignore[attr-defined]
            await until(lambda: bool(reading._tails))
            at.gate.close()
        assert told[0].body.rstrip().split(b"\n")[-1].startswith(b"retry: ")
        assert [event["sequence"] for event in read(told[0].body)] == [1, 2]


@pytest.mark.parametrize(
    ("target", "headers", "code"),
    [
        ("/host/v1/runs/nope/events", (), "not_found"),
        ("/host/v1/runs/%ff/events", (), "invalid_request"),
        ("/host/v1/runs/run-1/events?after=x", (), "invalid_request"),
        ("/host/v1/runs/run-1/events?after=-1", (), "invalid_request"),
        ("/host/v1/runs/run-1/events", ((b"last-event-id", b"1.abc"),), "invalid_request"),
        ("/host/v1/runs/run-1/events", ((b"last-event-id", b"9" * 16),), "invalid_request"),
    ],
)
async def test_a_stream_that_cannot_be_had_is_refused_with_an_envelope(target: str, headers: Any, code: str) -> None:
    async with door(saying("done")) as at:
        await at.desk.create("run-1")
        told = judged(await at.get(target, *headers))
        assert (told["error"]["code"], told["operation"]) == (code, "list_events")


async def test_another_subjects_run_is_not_found_and_one_without_grants_forbidden() -> None:
    async with door(stalling("a")) as at:
        await at.desk.create("run-1")
        told = await sent(at.app, "GET", b"/host/v1/runs/run-1/events", [(b"authorization", b"Bearer bo")])
        assert judged(told)["error"]["code"] == "not_found"
        at.people.presented["ann"] = People(x=policy(providers=())).presented["x"]
        assert judged(await at.get("/host/v1/runs/run-1/events"))["error"]["code"] == "forbidden"


def test_a_frame_is_three_lines_whatever_the_event_holds() -> None:
    event = HostEvent(run_id="\u2028", sequence=1, type="run_completed", status="completed", at_ms=1, data="\u0085\n")
    assert frames([event]).count(b"\n") == 4
    assert len(frames([event]).decode().splitlines()) == 4
