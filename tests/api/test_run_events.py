"""`GET /v1/runs/{runId}/events` over HTTP: streams and pages from any cursor, and streams that end in the middle."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.node import NodeSettings
from actors.ports import Model, Tool
from actors.viewing import digest_of
from api.app import Edge, Gate, Limits, create_app
from api.grants import Policy
from api.parts import Parts
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Unavailable
from runstream.host import Host
from tests.actors.conversing import holding
from tests.actors.reviewing import HOST, CountingTool, call, tooled, using, wanted
from tests.actors.support import FakeModel, asking, items_of, new_memory, saying, stalling, until
from tests.actors.working import Gated
from tests.api.asgi_client import Told, sent
from tests.api.asgi_stream import Streaming
from tests.api.asking import JSON, NOBODY, People
from tests.host_rules import host_answer, host_headers

pytestmark = pytest.mark.anyio

ANN = Policy(subject="ann", providers=("fake",), tools=("host",), approve_tools=("host",))
STREAM = (b"accept", b"text/event-stream")
UNHURRIED = NodeSettings(lease_ms=20_000, routine_ms=20, permit_begin_ms=5_000, reassured_s=0.1, drain_s=0.05)
PATIENT = replace(UNHURRIED, drain_s=2)
QUICK_TO_JUDGE = replace(UNHURRIED, lease_ms=200)
RESUME = {"resume": {"graceMs": 60_000}}
ENDS = {"run.completed", "run.failed", "run.cancelled"}
FRAME = re.compile(rb"id: ([1-9][0-9]*)\.([0-9a-f]{8})\nevent: ([^\n]+)\ndata: ([^\n]+)")
some = settings(max_examples=15, deadline=None)


class Door:
    """A host and the application over it."""

    def __init__(self, host: Host, *, heartbeat_s: float = 15, viewer: bool = True) -> None:
        self.host = host
        self.people = People(
            ann=ANN,
            also=replace(ANN, approve_tools=()),
            toolless=replace(ANN, tools=()),
            poor=replace(ANN, providers=()),
            bob=replace(ANN, subject="bob"),
        )
        gate = Gate()
        gate.closing = host.node.closing
        self.app: Edge = create_app(
            Parts(
                runs=host.runs,
                answers=host.decisions,
                viewer=host.viewing if viewer else None,
                catalog=host.catalog,
                tokens=self.people,
                discovery=NOBODY,
                gate=gate,
                limits=Limits(heartbeat_s=heartbeat_s),
            )
        )

    async def get(
        self, run_id: str, cursor: str | None = None, *, query: str = "", who: str = "ann", stream: bool = False
    ) -> Told:
        """Ask for a page, or for a stream that has ended; *cursor* goes into the header."""
        headers = [(b"authorization", f"Bearer {who}".encode())] + [STREAM] * stream
        if cursor is not None:
            headers.append((b"last-event-id", cursor.encode("utf-8", "surrogatepass")))
        target = f"/v1/runs/{run_id}/events{query}".encode("utf-8", "surrogatepass")
        with anyio.fail_after(1):
            told = await sent(self.app, "GET", target, headers)
        assert self.app.parts.faults.count == 0
        return told

    async def page(self, run_id: str, cursor: str | None = None, **asked: Any) -> Any:
        told = await self.get(run_id, cursor, **asked)
        assert told.status == 200, told.body
        return host_answer(told.status, told.headers, told.body)


class Reader:
    """One stream of a run's events, read as it comes."""

    def __init__(self, run_id: str, cursor: str = "") -> None:
        self.raw = b""
        self.status = 0
        self.whole = False
        self.over = anyio.Event()
        self._run_id = run_id
        self._cursor = cursor
        self._gone = anyio.Event()

    async def carry(self, door: Door, who: str = "ann") -> None:
        """Ask, and take what comes until the application is done."""
        path = f"/v1/runs/{self._run_id}/events"
        headers = [STREAM, (b"authorization", f"Bearer {who}".encode()), (b"last-event-id", self._cursor.encode())]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        bodies = [b""]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                return
            self.raw += message.get("body", b"")
            self.whole = not message.get("more_body", False)

        await door.app(scope, receive, send)
        self.over.set()

    def leave(self) -> None:
        self._gone.set()

    @property
    def events(self) -> list[Any]:
        return events_of(self.raw)


def events_of(raw: bytes) -> list[Any]:
    """The events of a stream of ours, each of whose frames says what it holds."""
    found: list[Any] = []
    for frame in raw.split(b"\n\n"):
        if not frame or frame.startswith((b": heartbeat", b"retry: ")):
            continue
        number, digest, kind, data = _matched(frame)
        event = json.loads(data)
        assert (event["sequence"], event["type"]) == (int(number), kind.decode())
        hole = data.rindex(b'"sequence":%b,' % number) + len(b'"sequence":')
        assert digest_of(data[:hole] + data[hole + len(number) :]) == digest.decode()
        found.append(event)
    return found


def _matched(frame: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    matched = FRAME.fullmatch(frame)
    assert matched is not None, frame
    number, digest, kind, data = matched.groups()
    return number, digest, kind, data


def ids_of(raw: bytes) -> list[str]:
    return [f"{number.decode()}.{digest.decode()}" for number, digest in re.findall(rb"id: ([0-9]+)\.([0-9a-f]+)", raw)]


def code(told: Told) -> str:
    return str(json.loads(told.body)["error"]["code"])


def numbers(events: Sequence[Any]) -> list[int]:
    return [event["sequence"] for event in events]


@asynccontextmanager
async def opened(
    model: Model,
    *tools: Tool,
    memory: Memory | None = None,
    name: str = "n1",
    node: NodeSettings = UNHURRIED,
    **door: Any,
) -> AsyncIterator[Door]:
    async with tooled(model, MemoryStore(memory or new_memory(), name), *tools, node=node) as host:
        yield Door(host, **door)


@asynccontextmanager
async def ended(model: FakeModel, *tools: Tool, **members: Any) -> AsyncIterator[tuple[Door, str, bytes]]:
    """A host with a run that has ended, and the whole stream of it."""
    async with opened(model, *tools) as door:
        items = await items_of(door.host, asking(**members))
        run_id = json.loads(items[0].data.replace(b'"sequence":,', b""))["runId"]
        told = await door.get(run_id, stream=True)
        host_headers(told.status, told.headers, stream=True)
        assert told.whole
        yield door, run_id, told.body


# Streams and pages.


async def test_a_stream_tells_each_event_once_under_its_number_and_digest() -> None:
    hostile = "\r\n\r\nevent: run.completed\ndata: {}\n\n\u2028\u2029\u0085\x00\ufeff"
    async with ended(saying(f"a{hostile}c", pieces=["a", hostile, "c"])) as (door, run_id, raw):
        events = events_of(raw)
        assert numbers(events) == list(range(1, len(events) + 1))
        assert "".join(event["text"] for event in events if event["type"] == "text.delta") == f"a{hostile}c"
        assert [event["type"] in ENDS for event in events].index(True) == len(events) - 1
        page = await door.page(run_id)
        assert page["events"] == events
        assert (page["runId"], page["state"], page["hasMore"]) == (run_id, "completed", False)
        assert page["cursor"] == ids_of(raw)[-1]


@pytest.mark.parametrize("where", ["header", "query"])
async def test_each_cursor_has_its_one_answer(where: str) -> None:
    async with ended(saying("hi", pieces=["h", "i"])) as (door, run_id, raw):
        ids, last = ids_of(raw), len(events_of(raw))

        async def answer(cursor: str, *, stream: bool) -> Any:
            asked: Any = {"cursor": cursor} if where == "header" else {"query": f"?after={cursor}"}
            told = await door.get(run_id, stream=stream, **asked)
            if told.status == 204:
                assert told.body == b""
                return 204
            if told.status != 200:
                host_answer(told.status, told.headers, told.body)
                return told.status, code(told)
            return numbers(events_of(told.body) if stream else json.loads(told.body)["events"])

        everything = list(range(1, last + 1))
        invalid, lost = (400, "INVALID_CURSOR"), (410, "HISTORY_LOST")
        answers: dict[str, Any] = {
            "": everything,
            "0": everything,
            "1": everything[1:],
            ids[1]: everything[2:],
            str(last - 1): [last],
            str(last + 1): invalid,
            f"{last + 1}.00000000": lost,
            ids[1].replace("2.", "1."): lost,
            str(2**63): invalid,
            "-1": invalid,
            "007": invalid,
            "1e3": invalid,
            "1.": invalid,
            f"{ids[1]}0": invalid,
            ids[1].replace("2.", "2,"): invalid,
            "9" * 10_000: invalid,
            run_id: invalid,
            "%31": invalid,
        }
        assert {cursor: await answer(cursor, stream=True) for cursor in answers} == answers
        assert {cursor: await answer(cursor, stream=False) for cursor in answers} == answers
        for cursor in (str(last), ids[-1]):
            assert await answer(cursor, stream=True) == 204
            assert await answer(cursor, stream=False) == []


@some
@given(cursors=st.lists(st.text(st.characters(codec="latin-1"), max_size=40), max_size=10))
async def test_no_header_makes_it_stumble(cursors: list[str]) -> None:
    async with ended(saying("hi")) as (door, run_id, _):
        for cursor in cursors:
            told = await door.get(run_id, cursor)
            stripped = cursor.encode("utf-8").strip(b" \t")
            if told.status == 200:
                assert re.fullmatch(rb"|(0|[1-9][0-9]*)(\.[0-9a-f]{8})?", stripped), cursor
            else:
                assert (told.status, code(told)) in {(400, "INVALID_CURSOR"), (410, "HISTORY_LOST")}


async def test_the_header_counts_before_the_query_unless_it_is_empty() -> None:
    async with ended(saying("hi")) as (door, run_id, raw):
        last = len(events_of(raw))
        assert numbers((await door.page(run_id, "2", query="?after=1"))["events"]) == list(range(3, last + 1))
        assert numbers((await door.page(run_id, "", query="?after=1"))["events"]) == list(range(2, last + 1))
        assert numbers((await door.page(run_id, None, query="?after="))["events"]) == list(range(1, last + 1))


async def test_pages_follow_each_other_without_a_gap() -> None:
    text = ["x" * 60_000] * 30
    async with ended(saying("".join(text), pieces=text)) as (door, run_id, raw):
        found: list[Any] = []
        cursor, more, pages = "", True, 0
        while more:
            told = await door.get(run_id, cursor)
            page = json.loads(told.body)
            found += page["events"]
            cursor, more, pages = page["cursor"], page["hasMore"], pages + 1
            assert page["events"]
        assert found == events_of(raw)
        assert pages > 1
        assert await door.page(run_id, cursor) == {
            "runId": run_id,
            "state": "completed",
            "events": [],
            "cursor": cursor,
            "hasMore": False,
        }


async def test_a_page_of_a_running_run_says_so_and_where_to_go_on() -> None:
    model = holding()
    async with opened(model) as door, door.host.attend(asking(), subject="ann") as attended:
        await until(lambda: bool(model.asked))
        page = await door.page(attended.run_id)
        assert (page["state"], [event["type"] for event in page["events"]]) == (
            "running",
            ["run.started", "step.started"],
        )
        following = await door.page(attended.run_id, page["cursor"])
        assert (following["events"], following["cursor"]) == ([], page["cursor"])
        assert (await door.page(attended.run_id, "2"))["cursor"] == "2"


async def test_what_is_not_kept_any_more_is_told_with_the_oldest_that_is() -> None:
    async with ended(saying("hi"), idempotencyKey="k") as (door, run_id, raw):
        last = len(events_of(raw))
        await door.host.node.around.shell.trim(run_id, command_id="trim")
        for stream in (True, False):
            told = await door.get(run_id, "1", stream=stream)
            error = json.loads(told.body)["error"]
            assert (told.status, error["code"], error["oldest"]) == (410, "CURSOR_EXPIRED", last + 1)
        assert (await door.get(run_id, str(last), stream=True)).status == 204


async def test_what_the_store_lost_is_uncertain() -> None:
    async with ended(saying("hi")) as (door, run_id, _):
        told = await door.get(run_id, "2.00000000", stream=True)
        error = json.loads(told.body)["error"]
        assert (told.status, error["code"], error["outcome"]) == (410, "HISTORY_LOST", "uncertain")
        assert "oldest" not in error


# Who may, and where.


async def test_the_events_are_its_subjects_alone_and_need_the_grants_of_the_run() -> None:
    tool = CountingTool()
    async with ended(using(call("host")), tool, **wanted(HOST, approvals=None)) as (door, run_id, _):
        for stream in (True, False):
            asked = {
                who: await door.get(run_id, who=who, stream=stream)
                for who in ("ann", "also", "bob", "toolless", "poor", "nobody")
            }
            assert {who: told.status for who, told in asked.items()} == {
                "ann": 200,
                "also": 200,
                "bob": 404,
                "toolless": 403,
                "poor": 403,
                "nobody": 401,
            }
            assert [code(asked[who]) for who in ("bob", "toolless")] == ["RUN_NOT_FOUND", "FORBIDDEN"]
            assert (await door.get(run_id, "99", who="bob", stream=stream)).status == 404
            assert (await door.get(run_id, "99", who="poor", stream=stream)).status == 403
            for unknown in ("0b6c2a52-9999-4f7e-9a41-5f2f5f3b7c10", "x", run_id.upper(), "%2e%2e", "a" * 3_000):
                told = await door.get(unknown, stream=stream)
                assert (told.status, code(told)) == (404, "RUN_NOT_FOUND")


async def test_other_paths_and_hosts_without_it_have_no_such_route() -> None:
    async with ended(saying("hi")) as (door, run_id, _):
        for query in ("?after=1&x=2", "?x", "/", "?after", "?before=1"):
            assert (await door.get(run_id, query=query)).status == 404, query
        told = await sent(
            door.app, "POST", f"/v1/runs/{run_id}/events".encode(), [JSON, (b"authorization", b"Bearer ann")]
        )
        assert told.status == 404
        bare = Door(door.host, viewer=False)
        assert (await bare.get(run_id)).status == 404
        for one, told_of in ((door, True), (bare, False)):
            protocol = await sent(one.app, "GET", b"/v1/protocol", [(b"authorization", b"Bearer ann")])
            assert ("stream-resumption" in json.loads(protocol.body)["features"]) == told_of
            assert "approval-inbox" in json.loads(protocol.body)["features"]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_no_rule_foresaw_is_counted_and_says_nothing(
    caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    async with ended(saying("hi")) as (door, run_id, _):

        async def broken(*_: Any) -> Any:
            raise RuntimeError("secret-text")

        shell: Any = door.host.node.around.shell
        shell.state = broken
        headers = [(b"authorization", b"Bearer ann")] + [STREAM] * stream
        told = await sent(door.app, "GET", f"/v1/runs/{run_id}/events".encode(), headers)
        assert (told.status, code(told)) == (500, "INTERNAL_ERROR")
        assert door.app.parts.faults.count == 1
        assert "secret-text" not in told.body.decode() + caplog.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_store_that_does_not_answer_is_told_as_such(*, stream: bool) -> None:
    async with ended(saying("hi")) as (door, run_id, _):

        async def paused(*_: Any) -> Any:
            raise Unavailable("an outage")

        shell: Any = door.host.node.around.shell
        shell.state = paused
        told = await door.get(run_id, stream=stream)
        assert (told.status, code(told)) == (503, "STORE_UNAVAILABLE")


# Streams that begin in one place and go on in another.


async def test_a_client_goes_on_with_the_number_that_its_first_stream_told() -> None:
    memory, model = new_memory(), holding()
    async with (
        opened(model, memory=memory) as one,
        opened(model, memory=memory, name="n2", node=QUICK_TO_JUDGE) as two,
        anyio.create_task_group() as tasks,
    ):
        stream = Streaming(asking(**RESUME))
        tasks.start_soon(stream.carry, one.app, "ann")
        first = await stream.events("step.started")
        stream.leave()
        await stream.over.wait()
        assert b"retry:" not in stream.raw
        run_id = str(first[0]["runId"])
        reader = Reader(run_id, str(first[-1]["sequence"]))
        tasks.start_soon(reader.carry, two)
        await until(lambda: reader.status == 200)
        model.release.set()
        await reader.over.wait()
        assert reader.whole
        events: list[Any] = [*first, *reader.events]
        assert numbers(events) == list(range(1, len(events) + 1))
        assert events[-1]["type"] == "run.completed"
        assert len(model.asked) == 1


async def test_a_reader_that_leaves_is_let_go_of_and_nothing_else_happens() -> None:
    model = holding()
    async with opened(model) as door, anyio.create_task_group() as tasks:
        async with door.host.attend(asking(**RESUME), subject="ann") as attended:
            readers = [Reader(attended.run_id) for _ in range(3)]
            for reader in readers:
                tasks.start_soon(reader.carry, door)
            await until(lambda: all(len(reader.events) == 2 for reader in readers))
            readers[0].leave()
            await readers[0].over.wait()
            assert not readers[0].whole
            await until(lambda: door.host.node.clients.viewers == 3)
            model.release.set()
            for reader in readers[1:]:
                await reader.over.wait()
                assert reader.whole
                assert reader.events == readers[1].events
            assert readers[1].events[-1]["type"] == "run.completed"
        assert door.host.node.clients.viewers == 0


async def test_a_silent_stream_says_that_it_is_alive() -> None:
    async with (
        opened(stalling("a"), heartbeat_s=1.02) as door,
        door.host.attend(asking(**RESUME), subject="ann") as attended,
        anyio.create_task_group() as tasks,
    ):
        reader = Reader(attended.run_id)
        tasks.start_soon(reader.carry, door)
        await until(lambda: reader.raw.count(b": heartbeat\n\n") >= 2)
        assert [event["type"] for event in reader.events] == ["run.started", "step.started", "text.delta"]
        reader.leave()


async def test_streams_of_a_host_that_ends_are_continued_on_another() -> None:
    memory, model, tool = new_memory(), using(call("host")), Gated(shut=True)
    async with (
        opened(model, tool, memory=memory, node=PATIENT) as one,
        opened(model, tool, memory=memory, name="n2", node=QUICK_TO_JUDGE) as two,
        anyio.create_task_group() as tasks,
    ):
        stream = Streaming(asking(**RESUME, **wanted(HOST, approvals=None)))
        tasks.start_soon(stream.carry, one.app, "ann")
        first = await stream.events("tool.called")
        run_id = str(first[0]["runId"])
        reader = Reader(run_id)
        tasks.start_soon(reader.carry, one)
        await until(lambda: len(tool.seen) == 1 and len(reader.events) == len(first))
        one.host.close()
        await stream.over.wait()
        await reader.over.wait()
        for raw in (stream.raw, reader.raw):
            (pause,) = re.findall(rb"\n\nretry: ([0-9]+)\n\n$", raw)
            assert 500 <= int(pause) <= 3_000
            assert not any(f"event: {kind}".encode() in raw for kind in ENDS)
        assert reader.whole
        assert code(await one.get(run_id)) == "HOST_SHUTTING_DOWN"
        tool.gate.set()
        for cursor in (str(first[-1]["sequence"]), ids_of(reader.raw)[-1]):
            following = Reader(run_id, cursor)
            await following.carry(two)
            events: list[Any] = [*first, *following.events]
            assert numbers(events) == list(range(1, len(events) + 1))
            assert events[-1]["type"] == "run.completed"
        assert (len(tool.seen), model.calls) == (1, 2)


async def test_a_plain_stream_of_a_host_that_ends_gets_its_terminal_event() -> None:
    async with opened(stalling("a")) as door, anyio.create_task_group() as tasks:
        stream = Streaming(asking())
        tasks.start_soon(stream.carry, door.app, "ann")
        await stream.events("text.delta")
        door.host.close()
        rest = await stream.events(None)
        assert [event["type"] for event in rest] == ["run.cancelled"]
        assert b"retry:" not in stream.raw
        stream.judge()


async def test_a_key_in_progress_tells_the_run_that_can_be_followed() -> None:
    async with opened(holding()) as door:
        for document, named in ((asking(**RESUME, idempotencyKey="a"), True), (asking(idempotencyKey="b"), False)):
            async with door.host.attend(document, subject="ann") as attended:
                body = json.dumps(document).encode()
                told = await sent(door.app, "POST", b"/v1/runs", [JSON, (b"authorization", b"Bearer ann")], body)
                error = json.loads(told.body)["error"]
                assert (told.status, error["code"]) == (409, "OPERATION_IN_PROGRESS")
                assert error.get("runId") == (attended.run_id if named else None)


async def test_a_run_that_may_be_resumed_is_answered_whole_where_no_stream_is_asked_for() -> None:
    async with opened(saying("hi")) as door:
        body = json.dumps(asking(**RESUME)).encode()
        told = await sent(door.app, "POST", b"/v1/runs", [JSON, (b"authorization", b"Bearer ann")], body)
        result: Any = host_answer(told.status, told.headers, told.body)
        assert (told.status, result["text"]) == (200, "hi")
        assert (await door.page(result["runId"]))["events"][-1]["result"] == result


async def test_a_stream_whose_history_is_lost_is_cut_without_a_terminal_event() -> None:
    memory = new_memory()
    async with (
        opened(stalling("a"), memory=memory) as door,
        door.host.attend(asking(**RESUME), subject="ann") as attended,
        anyio.create_task_group() as tasks,
    ):
        reader = Reader(attended.run_id)
        tasks.start_soon(reader.carry, door)
        await until(lambda: len(reader.events) == 3)
        kept, store = memory.actors[attended.run_id], door.host.store
        promised, kept.heads = kept.heads, replace(kept.heads, feed=kept.heads.feed + 5)
        store.hub.gap()  # type: ignore[attr-defined]
        await reader.over.wait()
        assert not reader.whole
        assert len(reader.events) == 3
        assert door.app.parts.faults.count == 0
        kept.heads = promised
