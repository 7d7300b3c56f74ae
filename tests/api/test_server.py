"""The server: where it may listen, what a connection may take, and how it ends."""

import asyncio
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from litestar import Litestar, asgi

from api.app import create_app
from api.connection import Bounds
from api.server import Config, Listening, NotServed, checked_config, serve
from providers.discovery import Discovery
from providers.mock import Mock
from tests.api.fake_runs import FakeRuns, stalling, texts
from tests.api.hosted import BEARER, JSON, RUN, STREAM, hosted, parts, until
from tests.api.test_edge import BODY, code
from tests.certificates import Papers, papers_for
from tests.http_client import Answer, HttpBroken, Tcp, Unix, connected, fetch, opened, request_bytes
from tests.strict_client import host_headers, host_rules

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listening(app: Any, config: Config) -> AsyncIterator[Listening]:
    """Serve *app* until left."""
    found: list[Listening] = []
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            await serve(app, config, on_ready=found.append, drain=lambda: None)

        tasks.start_soon(listen)
        await until(lambda: found)
        yield found[0]
        found[0].stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.test", "localhost.example.test", "127.0.0.2"])
def test_plain_http_off_loopback_is_refused_with_what_to_change(host: str) -> None:
    with pytest.raises(NotServed, match="certificate and key") as refusal:
        checked_config(Config(host=host))
    assert refusal.value.code == "TLS_REQUIRED"
    assert checked_config(Config(host=host, certificate="c", key="k")).tls


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "[::1]"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert checked_config(Config(host=host)).host == host


def test_half_a_certificate_is_refused() -> None:
    with pytest.raises(NotServed, match="INVALID_TLS"):
        checked_config(Config(certificate="c"))


async def test_a_certificate_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    config = Config(certificate=str(tmp_path / "none"), key=str(tmp_path / "none"))
    with pytest.raises(NotServed, match="INVALID_TLS"):
        await serve(None, config, on_ready=lambda _: None, drain=lambda: None)


async def test_an_address_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(port=taken.getsockname()[1])
        with pytest.raises(NotServed, match="ADDRESS_UNAVAILABLE"):
            await serve(None, config, on_ready=lambda _: None, drain=lambda: None)


async def test_a_unix_socket_is_private_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    async with Discovery({"mock": Mock()}) as discovery:
        app = create_app(parts(FakeRuns(texts("x")), discovery))
        async with listening(app, Config(unix_socket=str(path))) as now:
            assert now.url == f"unix:{path}"
            assert path.stat().st_mode & 0o777 == 0o600
            assert (await fetch(Unix(str(path)), "GET", "/health")).status == 200
            with pytest.raises(NotServed, match="ADDRESS_UNAVAILABLE"):
                await serve(app, Config(unix_socket=str(path)), on_ready=lambda _: None, drain=lambda: None)
            assert (await fetch(Unix(str(path)), "GET", "/health")).status == 200
    assert not path.exists()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_for(tmp_path_factory.mktemp("tls") / "papers", "127.0.0.1")


async def test_tls_is_served_from_version_1_2_on(papers: Papers) -> None:
    certificate, key = str(papers.certificate), str(papers.key)
    async with Discovery({"mock": Mock()}) as discovery:
        app = create_app(parts(FakeRuns(texts("x")), discovery, tls=True))
        async with listening(app, Config(port=0, certificate=certificate, key=key)) as now:
            assert now.url.startswith("https://127.0.0.1:")
            trusting = ssl.create_default_context(cafile=papers.authority)
            answer = await fetch(Tcp("127.0.0.1", now.port, trusting), "GET", "/health")
            host_headers(answer.status, answer.headers, tls=True)
            stream = await fetch(Tcp("127.0.0.1", now.port, trusting), "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY)
            host_headers(stream.status, stream.headers, stream=True, tls=True)
            host_rules(stream.body, RUN)
            old = ssl.create_default_context(cafile=papers.authority)
            old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await fetch(Tcp("127.0.0.1", now.port, old), "GET", "/health")


async def refusal_of(target: Tcp, *pieces: bytes) -> str:
    """The code of what the host says before it closes."""
    async with connected(target) as connection:
        for piece in pieces:
            await connection.send(piece)
        head = await connection.head()
        told = code(Answer(*head, await connection.body(head)))
        assert await connection.closed_by_host()
        return told


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"CONNECT example.test:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 8_000 + b"\r\n",
    ],
)
async def test_what_is_no_request_gets_a_typed_answer(raw: bytes) -> None:
    async with hosted(stalling) as host:
        assert await refusal_of(host.target, raw) in {"INVALID_REQUEST", "UNAUTHORIZED"}


async def test_a_head_is_bounded_although_it_never_ends() -> None:
    async with hosted(stalling) as host:
        assert await refusal_of(host.target, b"GET / HTTP/1.1\r\nA: ", *[b"x" * 4_096] * 9) == "INVALID_REQUEST"


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(begin: bytes) -> None:
    async with hosted(stalling, bounds=Bounds(head_s=0.1)) as host:
        assert await refusal_of(host.target, begin) == "INVALID_REQUEST"


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_that_trickles_is_not_waited_for(*, chunked: bool) -> None:
    async with hosted(stalling, bounds=Bounds(receive_s=0.3)) as host, connected(host.target) as connection:
        framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", "100")
        await connection.request("POST", "/v1/runs", [BEARER, JSON, framing])
        begun = time.monotonic()
        async with anyio.create_task_group() as tasks:

            async def trickle() -> None:
                while True:
                    await connection.send(b"1\r\n \r\n" if chunked else b" ")
                    await anyio.sleep(0.05)

            tasks.start_soon(trickle)
            head = await connection.head()
            assert code(Answer(*head, await connection.body(head))) == "INVALID_REQUEST"
            tasks.cancel_scope.cancel()
        assert time.monotonic() - begun < 2
        assert host.runs.asked == []


async def test_blank_lines_between_requests_do_not_keep_a_connection() -> None:
    async with hosted(stalling, bounds=Bounds(head_s=0.2)) as host, connected(host.target) as connection:
        await connection.request("GET", "/health")
        head = await connection.head()
        await connection.body(head)
        await connection.send(b"\r\n")
        await connection.send(b"\r\n")
        late = await connection.head()
        assert code(Answer(*late, await connection.body(late))) == "INVALID_REQUEST"


async def test_an_upgrade_is_answered_as_if_it_had_not_been_asked_for() -> None:
    async with hosted(stalling) as host:
        upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")]
        assert (await fetch(host.target, "GET", "/health", upgrade)).status == 200


async def test_an_expectation_is_met_only_for_a_body_that_will_be_read() -> None:
    async with hosted(texts("x")) as host, connected(host.target) as connection:
        expecting = [BEARER, JSON, ("Expect", "100-continue"), ("Content-Length", str(len(BODY)))]
        await connection.send(request_bytes("POST", "/v1/runs", expecting, None))
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(BODY)
        head = await connection.head()
        assert head.status == 200


async def test_open_streams_end_themselves_when_the_host_drains() -> None:
    answers: list[bytes] = []
    begun = 0.0
    async with hosted(stalling) as host:

        async def client(number: int) -> None:
            async with opened(host.target, "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY) as stream:
                answers.append(await stream.body())
                assert number >= 0

        async with anyio.create_task_group() as clients:
            for number in range(20):
                clients.start_soon(client, number)
            await until(lambda: len(host.runs.attended) == 20)
            begun = time.monotonic()
            host.listening.stop()
    assert time.monotonic() - begun < 2
    assert [host_rules(answer, RUN)[-1]["type"] for answer in answers] == ["run.cancelled"] * 20
    assert [left.cancelled for left in host.runs.left] == [False] * 20


async def test_what_does_not_end_itself_is_cut_after_the_drain_time() -> None:
    runs = FakeRuns(stalling)
    runs.cancel_all = lambda: None  # type: ignore[method-assign]
    begun = time.monotonic()
    async with hosted(runs=runs, drain_s=0.3) as host, connected(host.target) as connection:
        await connection.request("POST", "/v1/runs", [BEARER, JSON, STREAM], BODY)
        await until(lambda: runs.attended)
        begun = time.monotonic()
        host.listening.stop()
        await until(lambda: runs.left, deadline_s=2)
    assert time.monotonic() - begun < 3


async def test_what_has_no_answer_yet_at_the_end_of_the_drain_time_gets_none() -> None:
    runs, entered = FakeRuns(stalling), anyio.Event()

    @asynccontextmanager
    async def attend(*_: Any, **__: Any) -> AsyncIterator[Any]:
        entered.set()
        await anyio.sleep_forever()  # of a store that does not answer
        yield

    runs.attend = attend  # type: ignore[method-assign]
    async with hosted(runs=runs, drain_s=0.3) as host, connected(host.target) as connection:
        await connection.request("POST", "/v1/runs", [BEARER, JSON], BODY)
        await entered.wait()
        host.listening.stop()
        with pytest.raises((asyncio.IncompleteReadError, HttpBroken, ConnectionError)):
            await connection.head()


async def test_a_request_that_is_still_coming_is_refused_when_the_host_drains() -> None:
    async with hosted(stalling) as host, connected(host.target) as connection:
        await connection.request("POST", "/v1/runs", [BEARER, JSON, ("Content-Length", "100")])
        await until(host.app_tasks)
        host.listening.stop()
        head = await connection.head()
        assert code(Answer(*head, await connection.body(head))) == "HOST_SHUTTING_DOWN"


PROGRAM = """
import sys
import anyio
from api import server
from api.app import Gate, create_app
from providers.discovery import Discovery
from providers.mock import Mock
from tests.api.fake_runs import FakeRuns, stalling
from tests.api.hosted import parts
async def main():
    runs, gate = FakeRuns(stalling), Gate()
    def drain():
        gate.close()
        runs.cancel_all()
    async with Discovery({"mock": Mock()}) as discovery:
        app = create_app(parts(runs, discovery, gate=gate))
        told = await server.serve(
            app, server.Config(port=0), on_ready=lambda now: print(now.port, flush=True), drain=drain
        )
    print("cleaned up after", told, flush=True)
anyio.run(main, backend_options={"use_uvloop": sys.argv[1] == "uvloop"})
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_streams_and_then_the_process_in_its_own_time(sig: signal.Signals, loop: str) -> None:
    root = Path(__file__).parent.parent.parent
    async with await anyio.open_process([sys.executable, "-c", PROGRAM, loop], cwd=root, stderr=None) as process:
        assert process.stdout is not None
        port = int((await process.stdout.receive()).decode())
        async with opened(Tcp("127.0.0.1", port), "POST", "/v1/runs", [BEARER, JSON, STREAM], BODY) as stream:
            assert stream.status == 200
            begun = time.monotonic()
            os.kill(process.pid, sig)
            told = host_rules(await stream.body(), RUN)
        rest = b"".join([piece async for piece in process.stdout]).decode().strip()
        assert await process.wait() == 0
    assert told[-1]["type"] == "run.cancelled"
    assert rest == f"cleaned up after {int(sig)}"
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("outer", ["litestar", "plain"])
async def test_the_application_can_be_mounted_under_a_prefix(outer: str) -> None:
    model = Mock()
    async with Discovery({"mock": model}) as discovery:
        runs = FakeRuns(texts("x"))
        edge = create_app(parts(runs, discovery))

        async def plain(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope = {**scope, "root_path": "/in/here"}
            await edge(scope, receive, send)

        @asgi("/in/here", is_mount=True, copy_scope=True)
        async def mounted(scope: Any, receive: Any, send: Any) -> None:
            await edge(scope, receive, send)

        app: Any = plain if outer == "plain" else Litestar([mounted], openapi_config=None)
        async with listening(app, Config(port=0)) as now:
            target = Tcp("127.0.0.1", now.port)

            async def status(path: str, *headers: tuple[str, str]) -> int:
                return (await fetch(target, "GET", f"/in/here{path}", headers)).status

            assert await status("/health") == 200
            assert await status("/v1/protocol") == 401
            assert await status("/v1/protocol", BEARER) == 200
            assert await status("/v1/protocol/", BEARER) == 404
            assert await status("/v1/%70rotocol", BEARER) == 404
            assert await status("/v1/protocol?x=1", BEARER) == 404
            assert await status("/v1/providers?refresh=true", BEARER) == 200
            answer = await fetch(target, "POST", "/in/here/v1/runs", [BEARER, JSON, STREAM], BODY)
            host_rules(answer.body, RUN)
