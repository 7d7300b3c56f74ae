"""The edge over a real socket: both modes of a run, and every way a client can leave or misbehave."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest

from actors.errors import Problem, Refused
from actors.ports import Probe
from actors.request import RunRequest
from api.app import Limits
from api.connection import Bounds
from eventstore.store import HistoryLost, Unavailable
from providers.mock import Mock
from tests.api.fake_runs import Attended, FakeRuns, Script, completed, failing, stalling, texts
from tests.api.hosted import BEARER, JSON, RUN, STREAM, TOKENS, Hosted, hosted, until
from tests.http_client import Answer, Connection, HttpBroken, connected, events, fetch, opened, request_bytes
from tests.strict_client import ClientError, checked_response, host_answer, host_headers, host_rules, opened_stream

pytestmark = pytest.mark.anyio
BODY = json.dumps(RUN).encode()


async def asked(host: Hosted, *headers: tuple[str, str], body: bytes = BODY) -> Answer:
    return await fetch(host.target, "POST", "/v1/runs", [BEARER, JSON, *headers], body)


def value(answer: Answer) -> Any:
    return answer.json()


def code(answer: Answer) -> str:
    host_answer(answer.status, answer.headers, answer.body)
    return str(value(answer)["error"]["code"])


async def test_a_stream_is_what_the_strictest_client_accepts() -> None:
    hostile = "\r\n\r\nevent: run.completed\ndata: {}\n\n\u2028\u2029\u0085\x00\ufeff"
    async with hosted(texts("a", hostile, "c")) as host:
        answer = await asked(host, STREAM)
    host_headers(answer.status, answer.headers, stream=True)
    told = host_rules(answer.body, RUN)
    assert [event["type"] for event in told] == ["run.started", "step.started", *["text.delta"] * 3, "run.completed"]
    assert told[3]["text"] == hostile
    checked_response("stream", RUN, answer.status, answer.headers, answer.body)
    assert [left.cancelled for left in host.runs.left] == [False]


async def test_an_old_client_gets_a_stream_without_chunks() -> None:
    async with hosted(texts("a")) as host, connected(host.target) as connection:
        new = request_bytes("POST", "/v1/runs", [BEARER, JSON, STREAM], BODY)
        await connection.send(new.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head = await connection.head()
        assert not head.values("Transfer-Encoding")
        told = host_rules(await connection.body(head), RUN)
    assert told[-1]["type"] == "run.completed"


async def test_both_modes_tell_the_same_result() -> None:
    async with hosted(texts("a", "b")) as host:
        streamed, plain = await asked(host, STREAM), await asked(host)
    result = checked_response("run", RUN, plain.status, plain.headers, plain.body)
    assert host_answer(plain.status, plain.headers, plain.body) == result
    other = checked_response("stream", RUN, streamed.status, streamed.headers, streamed.body)
    assert isinstance(result, dict)
    assert isinstance(other, dict)
    assert result | {"runId": 0} == other | {"runId": 0}


async def test_a_json_result_keeps_the_bytes_of_its_event() -> None:
    written = b'{"n":10000000000000000000000001,"f":1.0,"e":[],"s":"\\ud800"}'

    async def script(run: Attended, request: RunRequest, _: str) -> None:
        run.tell("step.started", step=1)
        completed(run, request, "", output=msgspec.Raw(written))

    async with hosted(script) as host:
        answer = await asked(host)
    assert answer.status == 200
    assert b'"output":' + written in answer.body


@pytest.mark.parametrize(
    ("problem", "kind", "status"),
    [
        (Problem("RATE_LIMITED", "slow down", retryable=True), "run.failed", 429),
        (Problem("IDLE_TIMEOUT", "quiet", retryable=True), "run.cancelled", 504),
        (Problem("TOOL_OUTCOME_UNCERTAIN", "who knows", outcome="uncertain"), "run.failed", 409),
        (Problem("INVALID_OUTPUT", "no"), "run.failed", 502),
    ],
)
async def test_a_failed_run_is_an_error_or_a_terminal_event(problem: Problem, kind: str, status: int) -> None:
    async with hosted(failing(problem, kind)) as host:
        plain, streamed = await asked(host), await asked(host, STREAM)
    assert (plain.status, code(plain)) == (status, problem.code)
    assert value(plain)["error"] == msgspec.to_builtins(problem)
    assert streamed.status == 200
    assert host_rules(streamed.body, RUN)[-1]["type"] == kind


@pytest.mark.parametrize("accept", [(), (STREAM,)])
@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        (Refused("BUSY", retryable=True), 429, "BUSY"),
        (Refused("OPERATION_UNCERTAIN", uncertain=True), 409, "OPERATION_UNCERTAIN"),
        (Unavailable("down"), 503, "STORE_UNAVAILABLE"),
        (HistoryLost("r"), 410, "HISTORY_LOST"),
        (ExceptionGroup("wrapped", [Refused("QUEUE_FULL", retryable=True)]), 429, "QUEUE_FULL"),
        (RuntimeError("secret-text"), 500, "INTERNAL_ERROR"),
        (ExceptionGroup("two", [RuntimeError("secret-text"), KeyError("x")]), 500, "INTERNAL_ERROR"),
    ],
)
async def test_what_fails_before_the_first_event_is_an_http_error_in_both_modes(
    accept: Sequence[tuple[str, str]], failure: Exception, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with hosted(stalling) as host:
            host.runs.refusal = failure
            answer = await asked(host, *accept)
    assert (answer.status, code(answer)) == (status, told)
    assert host.app.parts.faults.count == (told == "INTERNAL_ERROR")
    assert "secret-text" not in answer.body.decode() + caplog.text


async def broken_after(run: Attended, _request: RunRequest, _subject: str) -> None:
    run.tell("step.started", step=1)
    await until(lambda: run.told == 2)
    raise RuntimeError("secret-text")


async def test_what_fails_after_the_headers_destroys_the_socket_without_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        hosted(broken_after) as host,
        opened(host.target, "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY) as stream,
    ):
        check = opened_stream(RUN, stream.status, stream.headers)
        with pytest.raises((HttpBroken, ConnectionError, ClientError)):
            _ = [event async for event in events(stream, check)]
        assert check.types == ["run.started", "step.started"]
        await until(lambda: host.runs.left)
        assert host.app.parts.faults.count == 1
    assert "secret-text" not in caplog.text


@pytest.mark.parametrize("accept", [(), (STREAM,)])
@pytest.mark.parametrize("moment", ["before the first item", "in the middle"])
@pytest.mark.parametrize("leave", ["abort", "close", "half close", "with another request behind"])
async def test_leaving_cancels_the_run_at_once(accept: Sequence[tuple[str, str]], moment: str, leave: str) -> None:
    async with hosted(stalling) as host, connected(host.target) as connection:
        if moment == "before the first item":
            host.runs.before = anyio.Event()
        await connection.request("POST", "/v1/runs", [BEARER, JSON, *accept], BODY)
        await until(lambda: host.runs.entering if moment == "before the first item" else host.runs.attended)
        match leave:
            case "abort":
                connection.abort()
            case "close":
                await connection.close()
            case "half close":
                await connection.end_of_request()
            case _:
                await connection.request("GET", "/health")
                await connection.request("POST", "/v1/runs", [BEARER, JSON], b" " * 200_000)
                connection.abort()
        await until(lambda: not host.runs.entering and not host.runs.attended, deadline_s=2)
        assert all(left.cancelled for left in host.runs.left)
        await until(lambda: not host.app_tasks(), deadline_s=2)
        assert len(host.runs.asked) == 1


async def test_cleaning_up_is_not_cut_short() -> None:
    runs = FakeRuns(stalling, clean_up_s=0.2)
    async with hosted(runs=runs) as host, connected(host.target) as connection:
        await connection.request("POST", "/v1/runs", [BEARER, JSON, STREAM], BODY)
        await until(lambda: runs.attended)
        connection.abort()
        await until(lambda: runs.left, deadline_s=2)


async def test_an_idle_stream_gets_heartbeats() -> None:
    runs = FakeRuns(stalling, tick_s=0.02)
    async with (
        hosted(runs=runs, limits=Limits(heartbeat_s=1.02)) as host,
        opened(host.target, "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY) as stream,
    ):
        received = b""
        with anyio.fail_after(5):
            async for piece in stream.chunks():
                received += piece
                if received.count(b": heartbeat\n\n") >= 3:
                    break
        host_rules(received, RUN, complete=False)


def flood(frames: int, chars: int) -> Script:
    async def script(run: Attended, request: RunRequest, _: str) -> None:
        run.tell("step.started", step=1)
        for at in range(frames):
            run.tell("text.delta", text=f"{at} ".ljust(chars, "x"))
            await anyio.lowlevel.checkpoint()
        completed(run, request, "done")

    return script


async def test_a_slow_reader_holds_up_its_own_stream_and_loses_nothing() -> None:
    async with (
        hosted(flood(400, 20_000)) as host,
        opened(host.target, "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY) as stream,
    ):
        await until(lambda: host.runs.attended)
        run = next(iter(host.runs.attended.values()))
        await until(lambda: run.ended)
        assert run.told < len(run.sent), "the socket took everything, so nothing was held up"
        received = b"".join([piece async for piece in stream.chunks()])
    assert [event["sequence"] for event in host_rules(received, RUN)] == list(range(1, 404))


async def test_a_socket_that_takes_nothing_is_cut() -> None:
    async with (
        hosted(flood(400, 50_000), bounds=Bounds(stall_s=0.2)) as host,
        opened(host.target, "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY),
    ):
        # Cancelled, or at its end at once because nothing that is sent waits for anybody any more.
        await until(lambda: host.runs.left, deadline_s=5)


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async with hosted(texts("x")) as host, connected(host.target) as connection:
        runs = request_bytes("POST", "/v1/runs", [BEARER, JSON], BODY)
        await connection.send(
            runs
            + request_bytes("GET", "/health", [], None)
            + request_bytes("GET", "/v1/nothing", [BEARER], None)
            + runs * 12
        )
        statuses = [await next_answer(connection) for _ in range(15)]
    assert statuses == [200, 200, 404, *[200] * 12]
    assert len(host.runs.asked) == 13


async def next_answer(connection: Connection) -> int:
    head = await connection.head()
    await connection.body(head)
    return head.status


async def test_garbage_behind_a_request_does_not_touch_its_answer() -> None:
    async with hosted(flood(20, 10)) as host, connected(host.target) as connection:
        host.runs.before = anyio.Event()
        await connection.request("POST", "/v1/runs", [BEARER, JSON, STREAM], BODY)
        await until(lambda: host.runs.entering)
        await connection.send(b"\x00\x01 garbage\r\n\r\n")
        host.runs.before.set()
        head = await connection.head()
        host_rules(await connection.body(head), RUN)
        assert await connection.closed_by_host()


@pytest.mark.parametrize("sized", [True, False])
async def test_a_body_one_byte_too_large_is_refused(*, sized: bool) -> None:
    size = 1_000_001
    async with hosted(stalling) as host, connected(host.target) as connection:
        if sized:
            await connection.request("POST", "/v1/runs", [BEARER, JSON, ("Content-Length", str(size))])
            head = await connection.head()
            assert len(host.runs.asked) == 0
        else:
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size)
            await connection.request("POST", "/v1/runs", [BEARER, JSON, ("Transfer-Encoding", "chunked")])
            await connection.send(chunks)
            head = await connection.head()
        assert code(Answer(*head, await connection.body(head))) == "BODY_TOO_LARGE"


async def test_a_body_at_the_bound_is_read() -> None:
    padded = BODY + b" " * (1_000_000 - len(BODY))
    async with hosted(texts("x")) as host:
        assert (await asked(host, body=padded)).status == 200


async def test_trailers_are_no_headers() -> None:
    chunked = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer %b\r\n\r\n" % (len(BODY), BODY, TOKENS["reader"].encode())
    async with hosted(texts("x")) as host, connected(host.target) as connection:
        head = request_bytes("POST", "/v1/runs", [JSON, ("Transfer-Encoding", "chunked")], None)
        await connection.send(head + chunked)
        assert (await connection.head()).status == 401


async def test_subjects_see_only_their_own() -> None:
    async def script(run: Attended, request: RunRequest, subject: str) -> None:
        for _ in range(20):
            run.tell("text.delta", text=f"{request.input}/{subject}")
            await anyio.lowlevel.checkpoint()
        completed(run, request, f"{request.input}/{subject}")

    async with hosted(script) as host:

        async def client(number: int) -> None:
            body = json.dumps(RUN | {"input": f"mark-{number}."}).encode()
            answer = await asked(host, *([STREAM] if number % 2 else []), body=body)
            assert answer.body.count(b"mark-") == answer.body.count(f"mark-{number}./ann".encode()) > 0

        async with anyio.create_task_group() as clients:
            for number in range(40):
                clients.start_soon(client, number)


async def test_a_host_that_closes_meanwhile_refuses_what_it_has_read() -> None:
    async with hosted(stalling) as host, connected(host.target) as connection:
        await connection.send(request_bytes("POST", "/v1/runs", [BEARER, JSON], BODY)[:-1])
        await until(host.app_tasks)
        host.gate.close()
        await connection.send(BODY[-1:])
        head = await connection.head()
        assert code(Answer(*head, await connection.body(head))) == "HOST_SHUTTING_DOWN"
        assert host.runs.asked == []


async def test_a_starting_host_says_so() -> None:
    async with hosted(stalling) as host:
        host.gate.starting = True
        answer = await fetch(host.target, "GET", "/health")
        assert (answer.status, code(answer)) == (503, "HOST_STARTING")
        host.gate.open()
        assert (await fetch(host.target, "GET", "/health")).status == 200


async def test_a_manager_sees_every_instance_and_a_failing_discovery_is_typed(caplog: pytest.LogCaptureFixture) -> None:
    async with hosted(stalling) as host:
        listed_now = value(await fetch(host.target, "GET", "/v1/providers", [BEARER]))
        assert [one["id"] for one in listed_now["providers"]] == ["mock"]

        async def listed(*_: Any, **__: Any) -> list[object]:
            raise RuntimeError("secret-text")

        host.app.parts.discovery.listed = listed  # type: ignore[method-assign]
        answer = await fetch(host.target, "GET", "/v1/providers", [BEARER])
    assert (answer.status, code(answer)) == (500, "INTERNAL_ERROR")
    assert host.app.parts.faults.count == 1
    assert "secret-text" not in caplog.text + answer.body.decode()


async def test_clients_see_how_an_instance_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"status": "signed-in", "email": " ann@example.org ", "name": ""}

    async def inspect(_: Mock) -> Probe:
        return Probe("CLI_SESSION_PRESENT", connection={"source": "native-runtime", "account": account})

    monkeypatch.setattr(Mock, "inspect", inspect)
    async with hosted(stalling) as host:
        answer = await fetch(host.target, "GET", "/v1/providers", [BEARER])
    checked_response("providers", None, answer.status, answer.headers, answer.body)
    (one,) = value(answer)["providers"]
    assert one["connection"] == {
        "source": "native-runtime",
        "checkedAt": one["health"]["checkedAt"],
        "account": {"status": "signed-in", "email": "ann@example.org"},
    }


async def test_a_result_larger_than_clients_accept_is_refused() -> None:
    async with hosted(texts("x" * 500), limits=Limits(answer_bytes_max=400)) as host:
        assert code(await asked(host)) == "RESPONSE_TOO_LARGE"
