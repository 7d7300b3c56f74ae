"""Links and messages: replies go to whoever asked, a broken connection says so, and everything mends itself."""

import asyncio
import os
import random
import signal
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest

from eventstore.endpoint import Endpoint, beside, endpoint_of
from eventstore.fake_link import fake_server, open_fake_link, open_fake_messages
from eventstore.link import Call, ConnectionLost, Link, ReplyError, Script, Unfit
from eventstore.local import PrivateServer, _candidates, private_server
from eventstore.socket_link import Limits, SocketLink, bare_call, open_link
from eventstore.socket_messages import Hearing, open_messages
from tests.certificates import papers_for
from tests.eventstore.relay import relay

pytestmark = pytest.mark.anyio

ADD = Script("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")


async def until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for a condition."""
    with anyio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110 - the condition is often another process's
            await anyio.sleep(0.002)


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[PrivateServer]:
    async with private_server(tmp_path_factory.mktemp("link"), _candidates()[-1]) as server:
        yield server


@pytest.fixture
async def endpoint(server: PrivateServer) -> Endpoint:
    async with bare_call(server.endpoint) as call:
        await call("FLUSHALL")
        await call("SCRIPT", "FLUSH")
        await call("CONFIG", "RESETSTAT")
    return server.endpoint


@asynccontextmanager
async def frozen(server: PrivateServer) -> AsyncGenerator[None]:
    """Stop the server from answering, as a machine that swaps does."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def kill_clients(endpoint: Endpoint, kind: str = "normal") -> None:
    async with bare_call(endpoint) as call:
        await call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@pytest.fixture(params=["socket", "fake"])
async def link(request: pytest.FixtureRequest, endpoint: Endpoint) -> AsyncGenerator[Link]:
    if request.param == "fake":
        async with open_fake_link(fake_server()) as fake:
            yield fake
    else:
        async with open_link(endpoint) as socket:
            yield socket


async def test_replies_are_what_the_server_said(link: Link) -> None:
    assert await link.call("XADD", "s", "1-0", "d", b"\x00\r\n") == b"1-0"
    assert await link.call("XRANGE", "s", "-", "+") == [[b"1-0", [b"d", b"\x00\r\n"]]]
    assert await link.call("HSET", "h", "a", 1) == 1
    assert await link.call("HMGET", "h", "a", "b") == [b"1", None]
    with pytest.raises(ReplyError) as error:
        await link.call("XADD", "s", "1-0", "d", b"")
    assert error.value.code == "ERR"


async def test_an_error_in_a_pipeline_stands_in_its_place(link: Link) -> None:
    first, wrong, last = await link.pipeline([("SET", "a", "x"), ("INCR", "a"), ("GET", "a")])
    assert (first, last) == (b"OK", b"x")
    assert isinstance(wrong, ReplyError)
    assert await link.pipeline([]) == []
    assert await link.pipeline([("GET", "a")]) == [b"x"]


async def test_a_script_is_run_by_whoever_asks_and_may_fail(link: Link) -> None:
    assert await link.script(ADD, ["n"], [2]) == 2
    assert await link.script(ADD, ["n"], [3]) == 5
    with pytest.raises(ReplyError) as error:
        await link.script(Script("refuse", "return redis.error_reply('NOPE never')"), [], [])
    assert error.value.code == "NOPE"
    assert await link.script(Script("nil", "return {1, false, 'x'}"), [], []) == [1, None, b"x"]


async def test_nobody_gets_anothers_reply_however_many_callers_leave(link: Link) -> None:
    chance = random.Random(7)  # noqa: S311 - the same leavers in every run
    wrong: list[object] = []
    left = Counter[str]()

    async def asked(marked: str) -> None:
        reply = await link.call("ECHO", marked)
        if reply != marked.encode():
            wrong.append((marked, reply))

    async def tenant(number: int) -> None:
        for turn in range(30):
            tasks = [asyncio.ensure_future(asked(f"tenant-{number}-{turn}-{n}")) for n in range(2)]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            leaves = tasks[0].cancel()
            for task, ended in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
                left["cancelled"] += task.cancelled()
                assert ended is None or (leaves and isinstance(ended, asyncio.CancelledError))

    tenants = 200 if isinstance(link, SocketLink) else 20
    await asyncio.gather(*map(tenant, range(tenants)))
    assert wrong == []
    assert left["cancelled"] >= tenants * 25


async def test_calls_leave_in_the_order_they_were_made(link: Link) -> None:
    await asyncio.gather(*(link.call("RPUSH", "l", n) for n in range(500)))
    assert await link.call("LRANGE", "l", 0, -1) == [b"%d" % n for n in range(500)]


async def test_large_replies_arrive_whole_among_small_ones(endpoint: Endpoint) -> None:
    large = os.urandom(8_000_000)
    async with open_link(endpoint) as link:
        await link.call("SET", "large", large)
        replies = await asyncio.gather(
            *(link.call("GET", "large") if n % 10 == 0 else link.call("ECHO", n) for n in range(50))
        )
    assert all(reply == (large if n % 10 == 0 else b"%d" % n) for n, reply in enumerate(replies))


async def test_what_was_sent_when_the_connection_broke_fails_and_what_comes_later_does_not(endpoint: Endpoint) -> None:
    outcomes = Counter[str]()

    async def writer(link: Link) -> None:
        for _ in range(100):
            try:
                await link.call("INCR", "n")
            except ConnectionLost:
                outcomes["lost"] += 1
            else:
                outcomes["done"] += 1

    def reached(done: int) -> bool:
        return outcomes["done"] > done

    async with open_link(endpoint) as link, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(writer, link)
        for part in (1, 2, 3):
            await until(partial(reached, part * 1_000))
            await kill_clients(endpoint)
    async with bare_call(endpoint) as call:
        written = int(await call("GET", "n"))
    assert outcomes.total() == 5_000
    assert outcomes["lost"] > 0
    assert outcomes["done"] <= written <= outcomes.total()  # nothing is ever sent twice


async def test_a_silent_server_is_given_up_and_found_again(server: PrivateServer, endpoint: Endpoint) -> None:
    limits = Limits(silence_s=0.2, connect_s=0.2, patience_s=5)
    async with open_link(endpoint, limits=limits) as link:
        async with frozen(server):
            with anyio.fail_after(2), pytest.raises(ConnectionLost):
                await link.call("PING")
        assert await link.call("PING") == b"PONG"


async def test_a_slow_server_that_still_sends_is_kept(server: PrivateServer, endpoint: Endpoint) -> None:
    async with open_link(endpoint, limits=Limits(silence_s=1)) as link:
        connection = await link.call("CLIENT", "ID")
        async with frozen(server):
            waiting = asyncio.ensure_future(link.call("CLIENT", "ID"))
            await asyncio.wait([waiting], timeout=0.3)
        assert await waiting == connection


async def test_calls_in_an_outage_wait_only_as_long_as_they_may(tmp_path: Path) -> None:
    limits = Limits(patience_s=0.2)
    async with private_server(tmp_path) as server, open_link(server.endpoint, limits=limits) as link:
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not link.connected)
        with anyio.fail_after(1), pytest.raises(ConnectionLost, match="not sent"):
            await link.call("PING")


async def test_calls_in_a_short_outage_are_sent_once_the_server_is_back(tmp_path: Path) -> None:
    async with private_server(tmp_path) as server:
        async with bare_call(server.endpoint) as call:
            await call("SET", "a", "kept")
        async with open_link(server.endpoint) as link:
            os.kill(server.pid, signal.SIGTERM)
            await until(lambda: not link.connected)
            waiting = [asyncio.ensure_future(link.call("GET", "a")) for _ in range(100)]
            waiting[0].cancel()
            async with restarted(server, tmp_path):
                assert await asyncio.gather(*waiting[1:]) == [b"kept"] * 99


@asynccontextmanager
async def restarted(server: PrivateServer, state_dir: Path) -> AsyncGenerator[None]:
    """Start the binary again on the same data, as an operator would."""
    options = ["--port", "0", "--unixsocket", str(server.socket), "--dir", str(state_dir), "--appendonly", "yes"]
    process = await anyio.open_process([str(server.binary), *options, "--save", ""], stdout=None, stdin=None)
    try:
        yield
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()


async def test_callers_wait_their_turn_when_the_connection_is_full(server: PrivateServer, endpoint: Endpoint) -> None:
    limits = Limits(commands_max=8)
    async with open_link(endpoint, limits=limits) as link:
        async with frozen(server):
            calls = [asyncio.ensure_future(link.call("RPUSH", "l", n)) for n in range(200)]
            await asyncio.sleep(0)
            for left in calls[100:150]:
                left.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*calls, return_exceptions=True)
        kept = await link.call("LRANGE", "l", 0, -1)
    assert kept == [b"%d" % n for n in range(200) if not 100 <= n < 150]  # who left before being sent never is


async def test_bytes_that_the_socket_does_not_take_are_bounded(server: PrivateServer, endpoint: Endpoint) -> None:
    limits = Limits(unsent_bytes_max=100_000, patience_s=0.3)
    async with open_link(endpoint, limits=limits) as link, frozen(server):
        calls = [asyncio.ensure_future(link.call("SET", "a", b"x" * 50_000)) for _ in range(100)]
        done, _ = await asyncio.wait(calls, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        assert done
        assert all("not sent" in str(call.exception()) for call in done)
        for call in calls:
            call.cancel()


async def test_a_forgotten_script_is_loaded_once_for_all_who_miss_it(endpoint: Endpoint) -> None:
    async with open_link(endpoint) as link:
        await asyncio.gather(*(link.script(ADD, ["n"], [1]) for _ in range(200)))
        stats = (await link.call("INFO", "commandstats")).decode()
    assert "cmdstat_script|load:calls=1," in stats


async def test_scripts_survive_being_flushed_under_load(endpoint: Endpoint) -> None:
    finished = anyio.Event()

    async def flush(link: Link) -> None:
        while not finished.is_set():
            await link.call("SCRIPT", "FLUSH")
            await anyio.sleep(0.01)

    async with open_link(endpoint) as link, open_link(endpoint) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(flush, other)
        for _ in range(40):
            await asyncio.gather(*(link.script(ADD, ["n"], [1]) for _ in range(100)))
        finished.set()
        assert await link.call("GET", "n") == b"4000"


async def test_only_a_script_that_must_runs_when_memory_is_full(endpoint: Endpoint) -> None:
    text = "return redis.call('SET', KEYS[1], ARGV[1])"
    async with open_link(endpoint) as link:
        await link.call("CONFIG", "SET", "maxmemory", 1)
        try:
            with pytest.raises(ReplyError) as error:
                await link.script(Script("plain", text), ["a"], ["x"])
            assert error.value.code == "OOM"
            assert await link.script(Script("must", text, allow_oom=True), ["a"], ["x"]) == b"OK"
        finally:
            await link.call("CONFIG", "SET", "maxmemory", 0)


async def test_each_new_connection_is_looked_at_before_anything_is_sent_on_it(endpoint: Endpoint) -> None:
    seen: list[bytes] = []

    async def look(call: Call) -> None:
        seen.append(await call("GET", "a"))

    async with open_link(endpoint, on_connected=look) as link:
        await link.call("SET", "a", "later")
        await kill_clients(endpoint)
        await until(lambda: not link.connected)
        await link.call("SET", "a", "too late")
    assert seen == [None, b"later"]


async def test_a_server_that_is_not_fit_is_refused_at_first_and_waited_for_later(endpoint: Endpoint) -> None:
    fit = False

    async def look(_: Call) -> None:
        if not fit:
            raise Unfit("change it")

    with pytest.raises(Unfit, match="change it"):
        async with open_link(endpoint, on_connected=look):
            pass
    fit = True
    async with open_link(endpoint, on_connected=look, limits=Limits(patience_s=0.2)) as link:
        fit = False
        await kill_clients(endpoint)
        await until(lambda: not link.connected)
        with pytest.raises(ConnectionLost):
            await link.call("PING")
        fit = True
        await until(lambda: link.connected)
        assert await link.call("PING") == b"PONG"


async def test_a_connection_begins_with_its_account_and_database(endpoint: Endpoint) -> None:
    async with open_link(endpoint) as link:
        await link.call("ACL", "SETUSER", "someone", "on", ">s3cret", "~*", "+@all")
    account = Endpoint(path=endpoint.path, user="someone", password="s3cret", db=3)
    async with open_link(account, name="mine") as link:
        assert await link.call("ACL", "WHOAMI") == b"someone"
        about = (await link.call("CLIENT", "INFO")).decode()
    assert " name=mine " in about
    assert " db=3 " in about
    assert "s3cret" not in repr(account)
    wrong = Endpoint(path=endpoint.path, user="someone", password="other")
    with pytest.raises(ReplyError) as error:
        async with open_link(wrong):
            pass
    assert error.value.code == "WRONGPASS"
    assert repr(endpoint) in str(error.value)


async def test_nothing_listening_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match="does not answer"):
        async with open_link(Endpoint(path=str(tmp_path / "nobody"))):
            pass


async def test_an_address_names_socket_or_host(endpoint: Endpoint) -> None:
    assert endpoint_of("unix:///run/r.sock") == Endpoint(path="/run/r.sock")
    assert endpoint_of("redis://u:p%40@h:1/2") == Endpoint(host="h", port=1, user="u", password="p@", db=2)
    for wrong in ("rediss://h", "http://h", "redis://h/x"):
        with pytest.raises(ValueError):
            endpoint_of(wrong)
    assert repr(endpoint_of("redis://u:p@h")) == "h:6379"
    assert repr(endpoint).startswith("unix:")


async def test_a_chore_ends_with_the_body_and_two_failures_are_both_told() -> None:
    async def fail() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("chore")

    with pytest.raises(ExceptionGroup) as both:  # noqa: PT012 - the body must run beside its chore
        async with beside(fail):
            await anyio.lowlevel.checkpoint()
            raise KeyError("body")
    assert {type(error) for error in both.value.exceptions} == {OSError, KeyError}
    with pytest.raises(OSError, match="chore"):
        async with beside(fail):
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def on_tcp(endpoint: Endpoint) -> AsyncGenerator[int]:
    """Let the server listen on a TCP port too."""
    probe = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    async with bare_call(endpoint) as call:
        await call("CONFIG", "SET", "port", port)
        try:
            yield port
        finally:
            await call("CONFIG", "SET", "port", 0)


async def test_a_link_works_over_tcp(endpoint: Endpoint) -> None:
    async with on_tcp(endpoint) as port, open_link(Endpoint(port=port)) as link:
        assert await link.call("PING") == b"PONG"


async def test_a_link_works_over_tls(endpoint: Endpoint, tmp_path: Path) -> None:
    papers = papers_for(tmp_path / "papers", "localhost")
    trusting = ssl.create_default_context(cafile=papers.authority)
    async with relay(endpoint, papers.shown()) as port:
        url = f"rediss://localhost:{port}"
        async with open_link(endpoint_of(url, trusting)) as link:
            assert await link.call("ECHO", b"x" * 300_000) == b"x" * 300_000
        with pytest.raises(Unfit, match="certificate that is not trusted"):
            async with open_link(endpoint_of(url, ssl.create_default_context())):
                pass


class Heard:
    """What a subscriber was told."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.gaps = 0

    def message(self, channel: str, data: bytes) -> None:
        self.messages.append((channel, data))

    def gap(self) -> None:
        self.gaps += 1


async def published(endpoint: Endpoint, *words: str) -> int:
    async with bare_call(endpoint) as call:
        return int(await call(*words))


@pytest.mark.parametrize("sharded", [False, True])
async def test_a_confirmed_subscription_hears_everything_later(endpoint: Endpoint, sharded: bool) -> None:  # noqa: FBT001
    heard = Heard()
    publish = "SPUBLISH" if sharded else "PUBLISH"
    hearing = Hearing(sharded=sharded, ping_s=0.02)
    async with open_messages(endpoint, heard.message, heard.gap, hearing=hearing) as messages:
        await asyncio.gather(*(messages.subscribe(f"c{n % 10}") for n in range(30)))
        assert await published(endpoint, publish, "c3", "x") == 1
        await until(lambda: heard.messages == [("c3", b"x")])
        await messages.unsubscribe("c3")
        await messages.unsubscribe("c3")
        await messages.subscribe("c3")
        assert await published(endpoint, publish, "c3", "y") == 1
        await until(lambda: len(heard.messages) == 2)
        await messages.unsubscribe("c3")
        await messages.subscribe("c4")  # later on the same connection, and confirmed
        assert await published(endpoint, publish, "c3", "z") == 0
    assert heard.gaps == 0


async def test_what_comes_for_a_channel_that_was_left_is_not_handed_on(endpoint: Endpoint) -> None:
    heard = Heard()
    async with open_messages(endpoint, heard.message, heard.gap) as messages:
        await asyncio.gather(messages.subscribe("left"), messages.subscribe("kept"))
        await messages.unsubscribe("left")
        messages._heard("left", b"x")  # as when it was on its way
        assert await published(endpoint, "PUBLISH", "kept", "y") == 1
        await until(lambda: heard.messages == [("kept", b"y")])


async def test_who_subscribes_while_the_connection_goes_waits_for_the_next_one(endpoint: Endpoint) -> None:
    heard = Heard()
    async with open_messages(endpoint, heard.message, heard.gap) as messages:
        await messages.subscribe("before")
        ear = messages._ear
        assert ear is not None
        ear.drop()
        with anyio.fail_after(5):
            await messages.subscribe("meanwhile")
        assert await published(endpoint, "PUBLISH", "meanwhile", "x") == 1


async def test_a_lost_subscriber_subscribes_again_and_says_that_there_was_a_gap(endpoint: Endpoint) -> None:
    heard = Heard()
    async with open_messages(endpoint, heard.message, heard.gap) as messages:
        await asyncio.gather(*(messages.subscribe(f"c{n}") for n in range(100)))
        for times in (1, 2):
            await kill_clients(endpoint, "pubsub")
            await until(partial(lambda n: heard.gaps == 2 * n, times))
            assert await published(endpoint, "PUBLISH", "c42", "x") == 1
            await until(partial(lambda n: len(heard.messages) == n, times))


async def test_a_silent_server_is_given_up_by_its_subscriber(server: PrivateServer, endpoint: Endpoint) -> None:
    heard = Heard()
    hearing = Hearing(ping_s=0.05, silence_s=0.15, connect_s=0.2, patience_s=0.3)
    async with open_messages(endpoint, heard.message, heard.gap, hearing=hearing) as messages:
        await messages.subscribe("c")
        async with frozen(server):
            with pytest.raises(ConnectionLost):
                await messages.subscribe("new")
        await until(lambda: heard.gaps == 2)
        assert await published(endpoint, "PUBLISH", "c", "x") == 1
        assert await published(endpoint, "PUBLISH", "new", "x") == 1  # still wanted: nobody left it


async def test_a_subscriber_that_may_not_hear_a_channel_is_told(endpoint: Endpoint) -> None:
    async with bare_call(endpoint) as call:
        await call("ACL", "SETUSER", "deaf", "on", ">pw", "+@all", "resetchannels", "&allowed")
    heard = Heard()
    account = Endpoint(path=endpoint.path, user="deaf", password="pw")
    async with open_messages(account, heard.message, heard.gap) as messages:
        await messages.subscribe("allowed")
        with pytest.raises(ReplyError) as error:
            await messages.subscribe("forbidden")
    assert error.value.code == "NOPERM"


async def test_two_links_and_their_messages_share_one_fake_server() -> None:
    heard = Heard()
    shared = fake_server()
    async with (
        open_fake_link(shared) as one,
        open_fake_link(shared) as other,
        open_fake_messages(shared, heard.message) as messages,
    ):
        await messages.subscribe("c")
        await one.call("SET", "a", "x")
        assert await other.call("GET", "a") == b"x"
        assert await other.call("PUBLISH", "c", "hello") == 1
        await until(lambda: heard.messages == [("c", b"hello")])
        await messages.unsubscribe("c")
        assert await other.call("PUBLISH", "c", "nobody") == 0


async def test_a_fake_server_is_looked_at_like_a_real_one() -> None:
    async def refuse(call: Call) -> None:
        assert await call("PING") == b"PONG"
        raise Unfit("no")

    with pytest.raises(Unfit):
        async with open_fake_link(fake_server(), on_connected=refuse):
            pass


async def babble(said: Sequence[bytes], path: Path) -> asyncio.Server:
    """A server that answers whatever it is told, once per command, and then nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in said:
            await reader.read(1_000)
            writer.write(reply)
        await reader.read()
        writer.close()

    return await asyncio.start_unix_server(answer, path)


@pytest.mark.parametrize("reply", [b"!!!\r\n", b"+OK\r\n+OK\r\n"])
async def test_a_server_that_speaks_nonsense_is_not_believed(tmp_path: Path, reply: bytes) -> None:
    path = tmp_path / "s"
    limits = Limits(patience_s=0.1)
    async with (
        await babble([b"+OK\r\n", b"+PONG\r\n", reply], path),
        open_link(Endpoint(path=str(path)), limits=limits) as link,
    ):
        connection = link._wire
        assert connection is not None
        with suppress(ConnectionLost):
            await link.call("GET", "a")
        await connection.lost.wait()


async def test_a_subscribing_connection_that_hears_nonsense_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "s"
    heard = Heard()
    said = [b"+OK\r\n", b"+PONG\r\n", b"*3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n"]
    async with (
        await babble(said, path),
        open_messages(Endpoint(path=str(path)), heard.message, heard.gap) as messages,
    ):
        first = messages._ear
        assert first is not None
        with anyio.move_on_after(0.05):
            await messages.subscribe("c")
        await first.lost.wait()


async def test_nobody_to_subscribe_to_is_said_at_once(tmp_path: Path) -> None:
    heard = Heard()
    with pytest.raises(ConnectionLost, match="does not answer"):
        async with open_messages(Endpoint(path=str(tmp_path / "nobody")), heard.message, heard.gap):
            pass
    with pytest.raises(ConnectionLost, match="does not answer"):
        async with bare_call(Endpoint(path=str(tmp_path / "nobody"))):
            pass


async def test_what_was_not_answered_ends_with_the_link(server: PrivateServer, endpoint: Endpoint) -> None:
    async with AsyncExitStack() as stack:
        async with open_link(endpoint, limits=Limits(commands_max=2)) as link:
            await stack.enter_async_context(frozen(server))
            sent = asyncio.ensure_future(link.pipeline([("PING",), ("PING",)]))
            waiting = asyncio.ensure_future(link.call("PING"))
            await asyncio.sleep(0)
        for call in (sent, waiting):
            with pytest.raises(ConnectionLost):
                await call
        with pytest.raises(ConnectionLost, match="closed"):
            await link.call("PING")
