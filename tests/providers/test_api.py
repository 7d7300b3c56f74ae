"""An instance on the network: retries, bounds, cancellation, probes, and what is never repeated."""

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from anyio.abc import SocketStream

from actors.errors import Failed
from actors.ports import Retry
from providers import http, kit
from providers.api import ApiModel
from providers.discovery import Discovery
from providers.http import Http, open_http
from providers.kit import SECRET, Answer, Heard
from providers.vendors import VENDORS
from tests.certificates import papers_for
from tests.providers.asking import request
from tests.providers.dialects import DIALECTS, named
from tests.providers.fake_chat import ChatDialect
from tests.providers.fake_http import Asked, Machine, Reply, Respond, machine, port_of
from tests.providers.fake_vendor import Dialect, opened, reply

pytestmark = pytest.mark.anyio

CHAT = ChatDialect()
OK = Answer(text=("Hello",))
LIMITED = Reply(429, headers=("Retry-After: 0",))
MIDNIGHT = 1_767_225_600.0
"""When 2026 began."""


class Clock:
    """A time that stands still, and a sleep that only notes."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def wall(self) -> float:
        return MIDNIGHT


def in_turn(*replies: Reply) -> Respond:
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@asynccontextmanager
async def asking(
    respond: Respond, dialect: Dialect = CHAT, clock: Clock | None = None
) -> AsyncIterator[tuple[ApiModel, Machine]]:
    async with machine(respond) as told, opened(dialect, told.url) as model:
        if clock is not None:
            model._http._sleep, model._http._wall = clock.sleep, clock.wall
        yield model, told


async def failure(model: ApiModel, policy: Retry = Retry()) -> Failed:  # noqa: B008 - frozen
    with pytest.raises(Failed) as caught:
        await model.complete(request(retry=policy), Heard().context())
    return caught.value


@pytest.mark.parametrize(
    ("lines", "attempts", "slept"),
    [
        ((), 3, [0.5, 1.0]),
        (("Retry-After: 0",), 3, [0.5, 1.0]),
        (("Retry-After: 2",), 3, [2.0, 2.0]),
        (("Retry-After: 0.7",), 3, [0.7, 1.0]),
        (("Retry-After: 0.5001",), 2, [0.501]),
        (("Retry-After: Thu, 01 Jan 2026 00:00:03 GMT",), 2, [3.0]),
        (("Retry-After: Wed, 31 Dec 2025 23:59:00 GMT",), 2, [0.5]),
        (("Retry-After: 31",), 3, []),
        (("Retry-After: 999999999999",), 3, []),
        (("Retry-After: 9999999999999999999999",), 3, []),
        (("Retry-After: Fri, 01 Jan 2026 00:00:03 GMT",), 3, []),
        (("Retry-After: Thu, 1 Jan 2026 00:00:03 GMT",), 3, []),
        (("Retry-After: Thu, 01 Jan 2026 00:00:03 +0000",), 3, []),
        (("Retry-After: soon",), 3, []),
        (("Retry-After: -1",), 3, []),
        (("Retry-After: 1e3",), 3, []),
        (("Retry-After:",), 3, []),
        (("Retry-After: 1", "Retry-After: 1"), 3, []),
    ],
)
async def test_a_limited_call_waits_as_told_or_gives_up(
    lines: tuple[str, ...], attempts: int, slept: list[float]
) -> None:
    clock = Clock()
    async with asking(lambda _: Reply(429, headers=lines), clock=clock) as (model, told):
        problem = (await failure(model, Retry(attempts, 500, 30_000))).problem
    assert (problem.code, problem.retryable) == ("RATE_LIMITED", True)
    assert clock.slept == slept
    assert len(told.asked) == len(slept) + 1
    assert len({(asked.body, asked.headers["authorization"]) for asked in told.asked}) == 1


async def test_a_wait_can_be_cancelled() -> None:
    async with asking(lambda _: Reply(429, headers=("Retry-After: 20",))) as (model, told):
        with anyio.move_on_after(0.2) as scope:
            await model.complete(request(retry=Retry(2)), Heard().context())
    assert scope.cancelled_caught
    assert len(told.asked) == 1


async def test_the_key_is_asked_for_once_a_step_and_may_change_between_steps() -> None:
    keys = iter(["one", "two"])

    async def key() -> str:
        return next(keys)

    async with asking(in_turn(LIMITED, reply(OK, CHAT))) as (model, told):
        model._key = key
        for _ in range(2):
            await model.complete(request(retry=Retry(2, 0)), Heard().context())
    assert [asked.headers["authorization"] for asked in told.asked] == ["Bearer one", "Bearer one", "Bearer two"]


async def test_nothing_is_carried_from_one_call_to_the_next() -> None:
    cookie = reply(OK, CHAT)._replace(headers=("Set-Cookie: who=ann; Path=/",))
    async with asking(lambda _: cookie) as (model, told):
        for _ in range(2):
            await model.complete(request(), Heard().context())
    assert [asked.headers.get("cookie") for asked in told.asked] == [None, None]


@pytest.mark.parametrize("key", ["", " ", "a b", "a\nb", "ä", "x" * 4_097])
async def test_a_key_that_cannot_be_one_is_never_sent(key: str) -> None:
    async def held() -> str:
        return key

    async with asking(lambda _: reply(OK, CHAT)) as (model, told):
        model._key = held
        assert (await failure(model)).problem.code == "AUTH_REQUIRED"
        probe = await model.inspect()
        assert probe is not None
        assert probe.code == "AUTH_REQUIRED"
    assert told.asked == []


async def test_a_server_that_wants_no_key_gets_none() -> None:
    async with asking(lambda _: reply(OK, CHAT)) as (model, told):
        model._key = None
        await model.complete(request(), Heard().context())
    assert "authorization" not in told.asked[0].headers


async def test_a_vendor_that_is_not_there_may_be_tried_again_later() -> None:
    async with asking(lambda _: reply(OK, CHAT)) as (_, told):
        pass
    async with opened(CHAT, told.url) as model:
        problem = (await failure(model, Retry(5, 0))).problem
        assert (problem.code, problem.retryable) == ("PROVIDER_UNREACHABLE", True)
        probe = await probed(model)
        assert probe == "PROVIDER_UNREACHABLE"


async def test_a_vendor_that_hangs_up_without_a_word_was_not_reached() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def hang_up(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        async with opened(CHAT, f"http://127.0.0.1:{port_of(listener)}/") as model:
            assert (await failure(model)).problem.code == "PROVIDER_UNREACHABLE"
        tasks.cancel_scope.cancel()


async def unreached(url: str, *, trusting: ssl.SSLContext | bool) -> None:
    """Ask *url*, which must count as not reached, by calls as by probes."""
    async with opened(CHAT, url) as model, httpx2.AsyncClient(base_url=url, verify=trusting) as client:
        model._http = Http(client, "it")
        problem = (await failure(model, Retry(5, 0))).problem
        assert (problem.code, problem.retryable) == ("PROVIDER_UNREACHABLE", True)
        assert await probed(model) == "PROVIDER_UNREACHABLE"


async def test_a_vendor_whose_authority_is_unknown_was_not_reached(tmp_path: Path) -> None:
    papers = papers_for(tmp_path / "papers", "localhost")
    async with machine(lambda _: reply(OK, CHAT), papers.shown()) as told:
        await unreached(told.url, trusting=True)
    assert told.asked == []


async def test_a_vendor_that_wants_a_certificate_of_ours_was_not_reached(tmp_path: Path) -> None:
    papers = papers_for(tmp_path / "papers", "localhost")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def refuse(stream: SocketStream) -> None:
        """Shake hands up to the certificate that is missing; by then the client holds the connection for good."""
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = papers.shown(to=papers.authority).wrap_bio(received, sent, server_side=True)
        async with stream:
            with suppress(anyio.EndOfStream):
                while True:
                    with suppress(ssl.SSLError):  # it wants to read more, or has refused
                        server.do_handshake()
                    await stream.send(sent.read())
                    received.write(await stream.receive())

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, refuse)
        trusting = ssl.create_default_context(cafile=papers.authority)
        await unreached(f"https://localhost:{port_of(listener)}/", trusting=trusting)
        tasks.cancel_scope.cancel()


async def probed(model: ApiModel) -> str:
    """The code that discovery shows for *model*."""
    async with Discovery({model.info.id: model}) as discovery:
        return (await discovery.listed([model.info.id]))[0].health.code


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


BIG = b'{"choices":[{"delta":{"content":"' + b"x" * 1_900_000 + b'"}}]}'


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (Reply(parts=[b": " + b"x" * 100_000] * 21), "RESPONSE_TOO_LARGE"),
        (Reply(parts=[b"data: " + b"x" * 100_000] * 21, end="silence"), "RESPONSE_TOO_LARGE"),
        (Reply(parts=[event(BIG)] * 6), "RESPONSE_TOO_LARGE"),
        (Reply(parts=[b"x" * 100_000] * 21, content_type="application/json"), "RESPONSE_TOO_LARGE"),
        (Reply(parts=[b"{"], content_type="application/json"), "INVALID_PROVIDER_RESPONSE"),
        (Reply(parts=[b"<html>"], content_type="text/html"), "INVALID_PROVIDER_RESPONSE"),
        (Reply(204, content_type="text/plain"), "INVALID_PROVIDER_RESPONSE"),
        (Reply(parts=[b'{"\xff"'], content_type="application/json"), "INVALID_STREAM"),
        (Reply(parts=[b"{}"], content_type="application/json", end="cut"), "INTERNAL_ERROR"),
        (Reply(parts=[event(b"\xff")]), "INVALID_STREAM"),
        (Reply(parts=[event(b"{}")]), "INVALID_PROVIDER_RESPONSE"),
        (Reply(parts=[], end="close"), "INCOMPLETE_STREAM"),
        (Reply(parts=[b"data: {"], end="close"), "INCOMPLETE_STREAM"),
        (Reply(parts=[b"data: {"], end="cut"), "INTERNAL_ERROR"),
        (Reply(headers=("Content-Encoding: gzip",), parts=[b"\x1f\x8b"]), "INVALID_PROVIDER_RESPONSE"),
    ],
)
async def test_what_a_vendor_may_send_is_bounded(sent: Reply, code: str) -> None:
    async with asking(lambda _: sent) as (model, _):
        problem = (await failure(model, Retry(5, 0))).problem
    assert (problem.code, problem.retryable) == (code, False)


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
async def test_a_stream_that_goes_wrong_midway_has_its_code_whoever_speaks(dialect: Dialect) -> None:
    good = reply(Answer(thought="Hm.", text=("Half ",), end="cut"), dialect)

    def going(rest: bytes, **more: Any) -> Reply:
        return good._replace(parts=[*good.parts, rest], **{"end": "whole", **more})

    wrong = [
        (going(b"data: {\r\n\r\n"), "INVALID_PROVIDER_RESPONSE"),
        (going(b"data: [1]\n\n"), "INVALID_PROVIDER_RESPONSE"),
        (going(b"data: \xff\n\n"), "INVALID_STREAM"),
        (going(b"data: " + b"x" * 2_000_000, end="silence"), "RESPONSE_TOO_LARGE"),
        (going(b"data: {", end="cut"), "INTERNAL_ERROR"),
        (going(b": bye", end="close"), "INCOMPLETE_STREAM"),
    ]
    async with asking(in_turn(*(sent for sent, _ in wrong)), dialect) as (model, _):
        for _, code in wrong:
            heard = Heard()
            with pytest.raises(Failed) as caught:
                await model.complete(request(), heard.context())
            assert (caught.value.problem.code, caught.value.problem.retryable) == (code, False)
            assert heard.text == "Half "


async def test_a_header_without_an_end_is_no_answer() -> None:
    async with asking(lambda _: Reply(headers=("X-Long: " + "x" * 200_000,))) as (model, _):
        assert (await failure(model)).problem.code == "PROVIDER_UNREACHABLE"


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
async def test_text_is_shown_as_it_trickles_in(dialect: Dialect) -> None:
    heard = Heard()
    trickle = reply(Answer(text=("One ", "two ", "three")), dialect)._replace(every=90, pause_s=0.001)
    async with asking(lambda _: trickle, dialect) as (model, _):
        turn = await model.complete(request(), heard.context())
    assert (heard.texts, turn.text) == (["One ", "two ", "three"], "One two three")


@pytest.mark.parametrize("dialect", DIALECTS[:4], ids=named)
async def test_a_connection_that_was_read_to_its_end_serves_the_next_step(dialect: Dialect) -> None:
    async with asking(lambda _: reply(OK, dialect), dialect) as (model, told):
        for _ in range(3):
            await model.complete(request(), Heard().context())
    assert told.connections == 1


async def test_a_vendor_that_does_not_end_holds_nobody_up() -> None:
    async with asking(lambda _: reply(OK, CHAT)._replace(end="silence")) as (model, told):
        with anyio.fail_after(kit.PATIENCE_S):
            turn = await model.complete(request(), Heard().context())
            await told.left.wait()
    assert turn.text == "Hello"


@pytest.mark.parametrize("rest", [[], [b"x" * 70_000]])
async def test_what_goes_wrong_after_the_end_of_an_answer_is_nobodys_concern(rest: list[bytes]) -> None:
    whole = reply(OK, CHAT)
    async with asking(lambda _: whole._replace(parts=[*whole.parts, *rest], end="cut")) as (model, _):
        assert (await model.complete(request(), Heard().context())).text == "Hello"


async def test_a_call_that_waits_for_the_first_byte_lets_go_of_its_vendor() -> None:
    asked = anyio.Event()

    async def converse(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            asked.set()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
        left.set()

    left = anyio.Event()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, converse)
        async with opened(CHAT, f"http://127.0.0.1:{port_of(listener)}/") as model, anyio.create_task_group() as calls:
            calls.start_soon(model.complete, request(), Heard().context())
            await asked.wait()
            calls.cancel_scope.cancel()
        with anyio.fail_after(kit.PATIENCE_S):
            await left.wait()
        tasks.cancel_scope.cancel()


async def test_neither_keys_nor_answers_get_into_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    replies = [Reply(500, [SECRET.encode()], headers=(f"x-request-id: {SECRET} x",)), reply(Answer(end="error"), CHAT)]
    async with asking(in_turn(*replies)) as (model, told):
        for _ in range(2):
            await failure(model)
        assert told.asked[0].headers["authorization"] == f"Bearer {CHAT.key}"
    # What the libraries tell of their own work is never let through: see `runstream.logs`.
    told_by_us = [
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx2", "httpcore2"))
    ]
    assert len(told_by_us) == 1
    assert SECRET not in "".join(told_by_us)
    assert "answered 500, request unknown" in caplog.text


async def test_a_request_id_is_told_so_that_the_vendor_can_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    async with asking(lambda _: Reply(500, headers=("request-id: req_011CX",))) as (model, _):
        await failure(model)
    assert "provider it answered 500, request req_011CX" in caplog.text


async def test_a_vendor_that_is_gone_for_good_is_noticed() -> None:
    class Stream:
        def get_extra_info(self, _: str) -> socket.socket:
            return connection

    with socket.socket() as connection:
        await http._watched("connection.connect_tcp.started", {})
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        await http._watched("connection.connect_tcp.complete", {"return_value": Stream()})
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


# Probes.


def pages(*bodies: Any) -> tuple[Respond, list[str]]:
    queries: list[str] = []
    left = list(bodies)

    def respond(asked: Asked) -> Reply:
        assert asked.method == "GET"
        assert asked.headers["accept"] == "application/json"
        queries.append("&".join(f"{name}={value[0]}" for name, value in asked.query.items()))
        return Reply(
            parts=[msgspec.json.encode(left.pop(0) if len(left) > 1 else left[0])], content_type="application/json"
        )

    return respond, queries


def dialect(kind: str) -> Dialect:
    return next(one for one in DIALECTS if one.kind == kind)


async def test_one_page_lists_the_models_of_most_vendors() -> None:
    respond, queries = pages({"data": [{"id": "b"}, {"id": "a"}, {"id": "b"}]})
    async with asking(respond) as (model, told):
        probe = await model.inspect()
    assert probe is not None
    assert (probe.code, probe.models, probe.complete) == ("CATALOG_AVAILABLE", ("b", "a"), True)
    assert (told.asked[0].path, queries) == ("/v1/models", [""])
    assert told.asked[0].headers["authorization"] == f"Bearer {CHAT.key}"


async def test_pages_follow_the_last_id_or_the_token() -> None:
    respond, queries = pages(
        {"data": [{"id": "a"}], "has_more": True, "last_id": "a/b"}, {"data": [{"id": "b"}], "has_more": False}
    )
    async with asking(respond, dialect("anthropic")) as (model, _):
        probe = await model.inspect()
    assert probe is not None
    assert (probe.models, probe.complete, queries) == (("a", "b"), True, ["limit=100", "limit=100&after_id=a/b"])
    respond, queries = pages({"models": [{"name": "models/a"}], "nextPageToken": "t&1"}, {"models": [{"name": "b"}]})
    async with asking(respond, dialect("gemini")) as (model, _):
        probe = await model.inspect()
    assert probe is not None
    assert (probe.models, probe.complete, queries) == (("a", "b"), True, ["pageSize=100", "pageSize=100&pageToken=t&1"])


def numbered_pages(ids: Callable[[int], Iterable[str]]) -> Respond:
    page = 0

    def respond(_: Asked) -> Reply:
        nonlocal page
        page += 1
        body = {"data": [{"id": one} for one in ids(page)], "has_more": True, "last_id": f"p{page}"}
        return Reply(parts=[msgspec.json.encode(body)], content_type="application/json")

    return respond


@pytest.mark.parametrize(
    ("ids", "asked", "known"),
    [
        (lambda page: [f"m{page}"], 20, 20),
        (lambda page: [f"m{page}-{n}" for n in range(300)], 4, 1_200),
        (lambda page: [f"m{page}-{'x' * 150}-{n}" for n in range(100)] * 40, 4, 300),
    ],
    ids=["pages", "models", "bytes"],
)
async def test_a_listing_has_bounds(ids: Callable[[int], Iterable[str]], asked: int, known: int) -> None:
    async with asking(numbered_pages(ids), dialect("anthropic")) as (model, told):
        probe = await model.inspect()
    assert probe is not None
    assert (len(told.asked), len(probe.models or ()), probe.complete) == (asked, known, False)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("openai", {"data": [{"id": "a b"}]}),
        ("openai", {"data": [{"name": "a"}]}),
        ("openai", {"models": []}),
        ("openai", {"data": [{"id": "a"}] * 10_001}),
        ("openai", [1]),
        ("openai", "x" * 2_000_001),
        ("anthropic", {"data": [{"id": "a"}], "has_more": True}),
        ("anthropic", {"data": [{"id": "a"}], "has_more": True, "last_id": "a"}),
        ("gemini", {"models": [{"name": "models/"}]}),
        ("gemini", {"models": [{"id": "a"}]}),
        ("gemini", {"models": [{"name": "a"}], "nextPageToken": "same"}),
    ],
)
async def test_a_malformed_listing_is_told_as_such(kind: str, body: Any) -> None:
    respond, _ = pages(body)
    async with asking(respond, dialect(kind)) as (model, _):
        assert await probed(model) == "INVALID_DISCOVERY_RESPONSE"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "AUTH_REJECTED"),
        (403, "ACCESS_DENIED"),
        (404, "DISCOVERY_UNSUPPORTED"),
        (405, "DISCOVERY_UNSUPPORTED"),
        (429, "RATE_LIMITED"),
        (302, "DISCOVERY_FAILED"),
        (400, "DISCOVERY_FAILED"),
        (503, "DISCOVERY_FAILED"),
    ],
)
async def test_a_probe_tells_what_its_status_means(status: int, code: str) -> None:
    async with asking(lambda _: Reply(status, headers=("Location: /v1/models",))) as (model, told):
        assert await probed(model) == code
    assert len(told.asked) == 1


async def test_a_listing_that_breaks_off_was_not_reached() -> None:
    async with asking(lambda _: Reply(parts=[b"{"], end="cut")) as (model, _):
        assert await probed(model) == "PROVIDER_UNREACHABLE"


# Addresses.


async def test_what_the_environment_says_of_proxies_is_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9/")
    async with open_http("http://127.0.0.1:1/v1/", "it") as local, open_http("https://example.org/", "it") as remote:
        assert set(local._client._mounts.values()) == set()
        assert len(remote._client._mounts) == 2


def test_every_vendor_is_spoken_to_securely() -> None:
    for kind, vendor in VENDORS.items():
        assert vendor.base_url.startswith("https://") or kind == "openai-compatible"
        assert vendor.base_url.endswith("/") or kind == "openai-compatible"


async def test_nothing_but_transport_errors_is_caught() -> None:
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:1/") as client:
        http = Http(client, "it")
        with pytest.raises(ConnectionError):
            await http.got("models", {}, 10)
