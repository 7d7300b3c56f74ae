"""What goes over a connection and what is borne on it, by either client: peers that stall, cut off, flood and lie."""

import socket
import ssl
import threading
import time
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from typing_extensions import override

from runstream_client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionLost,
    Misuse,
    Patience,
    Refused,
    Unreachable,
    flows,
    wire,
)
from runstream_client.conformance.cases import compact
from runstream_client.conformance.peer import DEADLINE_S, Peer, Reply, events, json_of

from .conftest import TOKEN, Either
from .telling import COMPLETED, REQUEST, RESULT, RESUMED, RUN, STARTED, answer, delta, framed, numbered, refusal, stream

PROTOCOL = {"protocol": "agenticdriver", "version": "1.0", "supportedVersions": ["1.0"], "features": []}
HEAD = b"HTTP/1.1 200 OK\r\nAgenticDriver-Version: 1.0\r\nContent-Type: application/json\r\n"


def raised(either: Either, function: Any, *arguments: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        either.done(function, *arguments)
    return caught.value


def test_every_request_says_who_asks_and_in_which_version(either: Either, host: Peer) -> None:
    host.answering(answer(PROTOCOL), stream(RUN))
    with either.client(host.url + "/some/prefix") as client:
        either.done(client.protocol)
        either.read(client.stream(REQUEST))
    got, posted = host.asked
    for request, media in ((got, "application/json"), (posted, "text/event-stream")):
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        assert request.headers["agenticdriver-version"] == "1.0"
        assert request.headers["agenticdriver-accept-optional-events"] == "true"
        assert request.headers["accept"] == media
    assert (got.method, got.path, got.body) == ("GET", "/some/prefix/v1/protocol", b"")
    assert (posted.method, posted.path) == ("POST", "/some/prefix/v1/runs")
    assert posted.headers["content-type"] == "application/json"
    assert "content-type" not in got.headers


def test_a_run_may_come_byte_by_byte(either: Either, host: Peer) -> None:
    body = framed(RUN)
    host.answering(events(*(body[at : at + 1] for at in range(len(body)))))
    with either.client(host.url) as client:
        told, error = either.read(client.stream(REQUEST))
    assert error is None
    assert [event.raw for event in told] == RUN


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_stream_that_is_cut_is_incomplete_and_nothing_is_asked_again(either: Either, host: Peer, ending: Any) -> None:
    host.answering(stream(RUN[:2], more=b"data: {", ending=ending), stream(RUN))
    with either.client(host.url) as client:
        told, error = either.read(client.stream(REQUEST))
    assert isinstance(error, ConnectionLost)
    assert error.code == "INCOMPLETE_STREAM"
    # A reset may throw away what was sent before it.
    assert [event.raw for event in told] in (RUN[:2], []) if ending == "reset" else RUN[:2]
    assert len(host.asked) == 1


def test_a_chunked_stream_that_is_cut_inside_a_chunk_is_incomplete(either: Either, host: Peer) -> None:
    head = HEAD.replace(b"application/json", b"text/event-stream") + b"Transfer-Encoding: chunked\r\n\r\n"
    host.answering(Reply([b"fff\r\n" + framed(RUN[:1])], head=head))
    with either.client(host.url) as client:
        told, error = either.read(client.stream(REQUEST))
    assert ([event.type for event in told], error and error.code) == (["run.started"], "INCOMPLETE_STREAM")


def test_an_answer_that_is_cut_is_lost_and_an_endless_one_is_not_read(either: Either, host: Peer) -> None:
    cut = Reply([b'{"runId"'], head=HEAD + b"Content-Length: 99\r\n\r\n")
    flood = Reply([b" " * 70_000] * 40, head=HEAD + b"\r\n", ending="hold")
    refused = Reply([b"x" * 70_000], head=b"HTTP/1.1 503 No\r\n\r\n", ending="hold")
    host.answering(cut, flood, refused)
    with either.client(host.url) as client:
        assert raised(either, client.run, REQUEST).code == "CONNECTION_LOST"
        assert raised(either, client.run, REQUEST).code == "RESPONSE_TOO_LARGE"
        assert host.left.wait(DEADLINE_S)
        error = raised(either, client.run, REQUEST)
    assert (error.code, error.retryable) == ("HTTP_ERROR", True)


def test_a_body_of_another_version_is_not_waited_for(either: Either, host: Peer) -> None:
    head = HEAD.replace(b": 1.0", b": 2.0") + b"Content-Length: 99\r\n\r\n"
    host.answering(Reply(head=head, ending="hold"))
    with either.client(host.url) as client:
        assert raised(either, client.run, REQUEST).code == "UNSUPPORTED_PROTOCOL_VERSION"
        assert host.left.wait(DEADLINE_S)


@pytest.mark.parametrize(
    "reply", [Reply(head=b"HTTP/1.1 20", ending="hold"), Reply(head=HEAD + b"\r\n{", ending="hold")]
)
def test_a_get_takes_no_longer_than_it_may(
    either: Either, host: Peer, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "GET_S", 0.3)
    host.answering(reply)
    began = time.monotonic()
    with either.client(host.url) as client:
        assert raised(either, client.protocol).code == "CONNECTION_LOST"
    assert 0.3 <= time.monotonic() - began < DEADLINE_S / 2


def test_a_get_that_trickles_takes_no_longer_than_it_may(either: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "GET_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=_dripped, args=(listener,), daemon=True)
        dripping.start()
        with either.client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            assert raised(either, client.protocol).code == "CONNECTION_LOST"
        dripping.join(DEADLINE_S)
    assert not dripping.is_alive()


def _dripped(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(0.05)
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                connection.sendall(b"y")
                try:
                    if connection.recv(65_536) == b"":
                        return
                except TimeoutError:
                    continue
        except OSError:
            return


def test_a_stream_that_falls_silent_is_given_up_where_that_was_asked(either: Either, host: Peer) -> None:
    host.answering(stream(RUN[:1], ending="hold"))
    with either.client(host.url, silence_s=1.0) as client:
        told, error = either.read(client.stream(REQUEST))
    assert ([event.type for event in told], error and error.code) == (["run.started"], "INCOMPLETE_STREAM")


def test_another_node_is_asked_where_nothing_was_sent_and_only_there(either: Either, host: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    host.answering(answer(PROTOCOL), answer(PROTOCOL), Reply(head=b"", ending="close"), answer(PROTOCOL))
    with either.client(nowhere) as client:
        error = raised(either, client.protocol)
        assert (type(error), error.code) == (Unreachable, "UNREACHABLE")
        assert nowhere in str(error)
    with either.client(nowhere, host.url) as client:
        either.done(client.protocol)
        either.done(client.protocol)
        assert raised(either, client.protocol).code == "CONNECTION_LOST"
    assert len(host.asked) == 3


def test_codes_and_members_of_later_hosts_are_kept(either: Either, host: Peer) -> None:
    host.answering(refusal("LUNAR_ECLIPSE", 418, retryable=True, oldest=7, outcome="uncertain"))
    with either.client(host.url) as client:
        error = raised(either, client.run, REQUEST)
    assert isinstance(error, Refused)
    assert (error.code, error.status, error.retryable, error.outcome) == ("LUNAR_ECLIPSE", 418, True, "uncertain")
    assert error.members["oldest"] == 7


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_an_answer_and_nobody_is_asked_elsewhere(
    either: Either, host: Peer, other: Peer, status: int
) -> None:
    lines = [("Location", other.url + "/v1/runs"), ("AgenticDriver-Version", "1.0")]
    plain = Reply([compact(RESULT | {"runId": "r"})], status, [*lines, ("Content-Type", "application/json")])
    host.answering(plain, Reply([framed(RUN)], status, [*lines, ("Content-Type", "text/event-stream")]))
    with either.client(host.url) as client:
        for function, *arguments in ((client.run, REQUEST), (client.stream(REQUEST).result,)):
            with pytest.raises(Refused, match="HTTP_ERROR") as refused:
                either.done(function, *arguments)
            assert (refused.value.status, refused.value.retryable) == (status, False)
    assert (len(host.asked), other.asked) == (2, [])


@pytest.mark.parametrize(("more", "code"), [(0, "LONG"), (1, "HTTP_ERROR")])
def test_an_error_may_have_exactly_the_greatest_size(either: Either, host: Peer, more: int, code: str) -> None:
    told = compact({"error": {"code": "LONG", "message": "", "retryable": False}})
    host.answering(Reply([told + b" " * (wire.ERROR_BYTES_MAX + more - len(told))], 500))
    with either.client(host.url) as client:
        assert raised(either, client.run, REQUEST).code == code


def test_an_error_that_does_not_come_is_told_by_its_status(
    either: Either, host: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "GET_S", 0.2)
    host.answering(Reply(head=b"HTTP/1.1 503 No\r\nContent-Length: 99\r\n\r\n{", ending="hold"))
    with either.client(host.url) as client:
        error = raised(either, client.run, REQUEST)
        assert host.left.wait(DEADLINE_S)
    assert (error.code, error.retryable) == ("HTTP_ERROR", True)


@pytest.mark.parametrize(
    ("media", "code"),
    [
        ("TEXT/Event-Stream ;charset=x", ""),
        ("text/event-streams", "INVALID_RESPONSE"),
        ("application/json", "INVALID_RESPONSE"),
        (None, "INVALID_RESPONSE"),
    ],
)
def test_a_stream_says_that_it_is_one(either: Either, host: Peer, media: str | None, code: str) -> None:
    host.answering(Reply([framed(RUN)], headers=[("Content-Type", media)] if media else []))
    with either.client(host.url) as client:
        told, error = either.read(client.stream(REQUEST))
    assert (len(told), error.code if error else "") == (0 if code else 4, code)


@pytest.mark.parametrize(("more", "code"), [(0, ""), (1, "RESPONSE_TOO_LARGE")])
def test_an_answer_may_have_exactly_the_greatest_size(either: Either, host: Peer, more: int, code: str) -> None:
    told = compact(PROTOCOL)
    host.answering(json_of(told + b" " * (wire.BODY_BYTES_MAX + more - len(told))))
    with either.client(host.url) as client:
        if code:
            assert raised(either, client.protocol).code == code
        else:
            assert either.done(client.protocol).version == "1.0"


def test_what_needs_a_stream_is_refused_before_it_is_sent(either: Either, host: Peer) -> None:
    tools = [{"name": "look", "description": "x", "inputSchema": {}}]
    with either.client(host.url) as client:
        assert raised(either, client.run, REQUEST | {"applicationTools": tools}).code == "TOOL_STREAM_REQUIRED"
        assert raised(either, client.run, REQUEST | {"approvals": {"mode": "interactive"}}).code == (
            "APPROVAL_STREAM_REQUIRED"
        )
        assert raised(either, client.run, REQUEST | {"metadata": {"a": float("nan")}}).code == "INVALID_REQUEST"
    assert host.asked == []


def test_a_client_and_a_stream_that_were_closed_say_so(either: Either, host: Peer) -> None:
    host.answering(stream(RUN))
    with either.client(host.url) as client:
        reading = client.stream(REQUEST)
        either.step(reading)
        either.done(reading.close)
        with pytest.raises(Misuse, match="STREAM_CLOSED"):
            either.step(reading)
    assert raised(either, client.protocol).code == "CLIENT_CLOSED"


def test_closing_the_stream_closes_the_connection(either: Either, host: Peer) -> None:
    host.answering(stream(RUN[:2], ending="hold"))
    with either.client(host.url) as client:
        reading = client.stream(REQUEST)
        either.step(reading)
        either.done(reading.close)
        assert host.left.wait(DEADLINE_S)


def test_a_connection_is_closed_as_soon_as_the_run_has_ended(either: Either, host: Peer) -> None:
    """Though the host keeps it open, and the caller asks for nothing more."""
    host.answering(stream(RUN, more=b"\xff", ending="hold"))
    with either.client(host.url) as client:
        reading = client.stream(REQUEST)
        assert [either.step(reading).type for _ in RUN][-1] == "run.completed"
        assert host.left.wait(DEADLINE_S)
        either.done(reading.close)


@pytest.mark.parametrize(("request_of", "closed"), [(REQUEST, False), (RESUMED, False), (REQUEST, True)])
def test_a_stream_that_is_read_is_ended_from_another_thread(host: Peer, request_of: Any, *, closed: bool) -> None:
    """By closing it, or its client; one that could be continued is not."""
    host.answering(stream(RUN[:1], ending="hold"), stream(RUN))
    errors: list[ClientError] = []
    with Client(host.url, token=TOKEN) as client:
        reading = client.stream(request_of)
        next(reading)

        def read() -> None:
            try:
                next(reading)
            except ClientError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not reading._running.gi_running:  # type: ignore[attr-defined]
            time.sleep(0.001)
        (client if closed else reading).close()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert host.left.wait(DEADLINE_S)
    assert len(host.asked) == 1
    assert [error.code for error in errors] == ["CLIENT_CLOSED" if closed else "STREAM_CLOSED"]


SILENT = Reply(head=b"", ending="hold")


@pytest.mark.parametrize("request_of", [REQUEST, RESUMED])
@pytest.mark.parametrize("closed", ["stream", "client"])
def test_whoever_waits_for_an_answer_to_begin_is_ended_from_another_thread(
    host: Peer, request_of: Any, closed: str
) -> None:
    host.answering(SILENT, stream(RUN))
    codes: list[str] = []
    with Client(host.url, token=TOKEN) as client:
        reading = client.stream(request_of)
        thread = threading.Thread(target=lambda: codes.append(raised_by(next, reading)))
        thread.start()
        host.asked_for(1)
        (client if closed == "client" else reading).close()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert host.left.wait(DEADLINE_S)
    assert (codes, len(host.asked)) == ([f"{closed.upper()}_CLOSED"], 1)


def raised_by(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except ClientError as error:
        return error.code
    return "nothing"


def test_a_call_is_ended_by_closing_its_client_from_another_thread(host: Peer) -> None:
    host.answering(SILENT)
    codes: list[str] = []
    with Client(host.url, token=TOKEN) as client:
        thread = threading.Thread(target=lambda: codes.append(raised_by(client.run, REQUEST)))
        thread.start()
        host.asked_for(1)
        client.close()
        thread.join(DEADLINE_S)
    assert (thread.is_alive(), codes) == (False, ["CLIENT_CLOSED"])


@pytest.mark.parametrize("closed", ["stream", "client"])
def test_a_pause_is_ended_by_closing(host: Peer, portal: BlockingPortal, closed: str) -> None:
    """Of a minute, after which the stream would be continued."""
    pausing = threading.Event()

    class Slow(Patience, frozen=True):
        @override
        def pause_s(self, failures: int, chance: float, told_ms: int | None = None) -> float:
            pausing.set()
            return 60.0

    host.answering(stream(RUN[:1]), stream(RUN[1:]))
    codes: list[str] = []
    with Client(host.url, token=TOKEN, patience=Slow()) as client:
        reading = client.stream(RESUMED)
        next(reading)
        thread = threading.Thread(target=lambda: codes.append(raised_by(next, reading)))
        thread.start()
        assert pausing.wait(DEADLINE_S)
        (client if closed == "client" else reading).close()
        thread.join(DEADLINE_S)
    assert (thread.is_alive(), codes, len(host.asked)) == (False, [f"{closed.upper()}_CLOSED"], 1)
    host.answering(stream(RUN[:1]), stream(RUN[1:]))
    assert portal.call(closed_by_another_task, host, RESUMED, closed, 1, Slow()) == codes[0]
    assert len(host.asked) == 1


async def closed_by_another_task(
    host: Peer, request_of: Any, closed: str, events: int = 0, patience: Patience | None = None
) -> str:
    """The code that a task hears whose stream, or client, another one closes while it waits for what follows *events*."""
    with anyio.fail_after(DEADLINE_S):
        async with AsyncClient(host.url, token=TOKEN, patience=patience) as client, anyio.create_task_group() as tasks:
            reading = client.stream(request_of)
            for _ in range(events):
                await anext(reading)

            async def close() -> None:
                await anyio.to_thread.run_sync(host.asked_for, 1)
                while reading._errands._waiting is None:
                    await anyio.lowlevel.checkpoint()
                await (client if closed == "client" else reading).close()

            reading._errands._waiting = None
            tasks.start_soon(close)
            try:
                await anext(reading)
            except ClientError as error:
                return error.code
    return "nothing"


@pytest.mark.parametrize("request_of", [REQUEST, RESUMED])
@pytest.mark.parametrize("closed", ["stream", "client"])
@pytest.mark.parametrize(("reply", "events"), [(SILENT, 0), (stream(RUN[:1], ending="hold"), 1)])
def test_whoever_waits_is_ended_from_another_task(
    host: Peer, portal: BlockingPortal, request_of: Any, closed: str, reply: Reply, events: int
) -> None:
    host.answering(reply, stream(RUN))
    assert portal.call(closed_by_another_task, host, request_of, closed, events) == f"{closed.upper()}_CLOSED"
    assert host.left.wait(DEADLINE_S)
    assert len(host.asked) == 1


def test_a_task_that_is_cancelled_closes_the_connection(host: Peer, portal: BlockingPortal) -> None:
    host.answering(stream(RUN[:1], ending="hold"))

    async def cancelled() -> list[str]:
        types: list[str] = []
        async with AsyncClient(host.url, token=TOKEN) as client:
            with anyio.move_on_after(0.3):
                async for event in client.stream(REQUEST):
                    types.append(event.type)  # noqa: PERF401 - what came before it was cancelled counts
            assert await anyio.to_thread.run_sync(host.left.wait, DEADLINE_S)
        return types

    assert portal.call(cancelled) == ["run.started"]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "ftp://127.0.0.1",
        "//127.0.0.1",
        "https://ann:secret@example.org",
        "https://@example.org",
        "https://example.org?a",
        "https://example.org#a",
        "https://example.org:0",
        "https://example.org:x",
        "https://exa mple.org",
        "https://example.org/\x7f",
        "https://[::1",
        "http://127.0.0.1.example.org",
        "http://127.0.0.2",
        "https://",
        "",
    ],
)
def test_an_address_that_would_show_the_token_or_hides_something_is_refused(either: Either, url: str) -> None:
    with pytest.raises(Misuse, match="INSECURE_TRANSPORT"):
        either.kind(url, token=TOKEN)


@pytest.mark.parametrize("url", ["http://localhost:1", "http://[::1]:1", "http://127.0.0.1", "https://example.org/a/b"])
def test_addresses_of_this_machine_and_https_are_taken(url: str) -> None:
    assert wire.base_of(url) == url + "/"
    assert wire.base_of(url.replace("http", "HTTP") + "//") == url + "/"


@pytest.mark.parametrize("token", ["", "a b", "a\n", "ä", "x" * 4_097, None, b"bytes"])
def test_a_token_that_no_header_can_carry_is_refused(either: Either, host: Peer, token: Any) -> None:
    with pytest.raises(Misuse, match="AUTH_REQUIRED"):
        either.kind(host.url, token=token)
    with either.client(host.url) as client:
        client._driver.token = lambda: token
        assert raised(either, client.protocol).code == "AUTH_REQUIRED"
    assert host.asked == []


def test_a_token_may_be_fetched_anew_each_time(either: Either, host: Peer) -> None:
    host.answering(answer(PROTOCOL), answer(PROTOCOL))
    tokens = iter(["one", "two"])
    with either.client(host.url) as client:
        client._driver.token = lambda: next(tokens)
        either.done(client.protocol)
        either.done(client.protocol)
        assert raised(either, client.protocol).code == "AUTH_UNAVAILABLE"
    assert [request.headers["authorization"] for request in host.asked] == ["Bearer one", "Bearer two"]


def test_certificates_are_always_verified(either: Either) -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    with pytest.raises(Misuse, match="INSECURE_TRANSPORT"):
        either.kind("https://example.org", token=TOKEN, tls=trusting)


def test_a_stranger_where_tls_was_expected_gets_nothing(either: Either, host: Peer) -> None:
    with either.client(host.url.replace("http:", "https:")) as client:
        assert raised(either, client.protocol).code == "UNREACHABLE"
    assert host.asked == []


def test_the_result_of_a_stream_is_its_end(either: Either, host: Peer) -> None:
    failed = {
        "type": "run.cancelled",
        "error": {"code": "SOON", "message": "", "retryable": True, "outcome": "uncertain"},
    }
    host.answering(
        stream(RUN), stream(numbered(STARTED, failed)), json_of(b"{}"), stream(numbered(COMPLETED, delta("")))
    )
    with either.client(host.url) as client:
        assert either.done(client.stream(REQUEST).result).text == "teal"
        error = raised(either, client.stream(REQUEST).result)
        assert (error.code, error.retryable, error.outcome) == ("SOON", True, "uncertain")
        assert raised(either, client.stream(REQUEST).result).code == "INVALID_RESPONSE"
        assert raised(either, client.stream(REQUEST).result).code == "INVALID_STREAM"


def test_a_stream_that_was_read_and_closed_has_a_result(either: Either, host: Peer) -> None:
    host.answering(stream(RUN), stream(RUN))
    with either.client(host.url) as client:
        whole, left = client.stream(REQUEST), client.stream(REQUEST)
        either.read(whole)
        either.step(left)
        either.done(left.close)
        assert either.done(whole.result).text == "teal"
        assert raised(either, left.result).code == "STREAM_CLOSED"
