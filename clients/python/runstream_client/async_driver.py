"""Runs flows in a task of the caller, over httpcore's asynchronous pool."""

import contextlib
import inspect
import ssl
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
import httpcore

from runstream_client.errors import Misuse
from runstream_client.flows import Close, Deliver, Effect, Flow, Limit, Open, Opened, Perform, Read, Sleep
from runstream_client.transport import FAILURES, head_of, lost_by, pool_options, request_of
from runstream_client.wire import Token

T = TypeVar("T")
CLOSE_S = 1.0
"""How long leaving an answer may take."""


class Driver:
    """Sends what flows ask for; tasks may share it."""

    def __init__(self, bases: tuple[str, ...], token: Token, tls: ssl.SSLContext | None) -> None:
        self.bases = bases
        self.token = token
        self.closed = False
        self._running: weakref.WeakSet[Errands[Any]] = weakref.WeakSet()
        self.pool = httpcore.AsyncConnectionPool(**pool_options(tls))

    async def close(self) -> None:
        """End all connections, also those that other tasks read."""
        self.closed = True
        for errands in list(self._running):
            errands.cut()
        await self.pool.aclose()

    def join(self, errands: "Errands[Any]") -> None:
        """Remember *errands*, which end when the client is closed."""
        self._running.add(errands)

    async def ask(self, flow: Flow[T]) -> T:
        """Run a flow that delivers nothing on the way."""
        errands: Errands[T] = Errands(self, flow)
        async with contextlib.aclosing(errands.run()) as running:
            async for _ in running:
                pass
        return errands.value


class Errands(Generic[T]):
    """Runs one flow, and holds the answers that it has open."""

    def __init__(self, driver: Driver, flow: Flow[T]) -> None:
        self._driver = driver
        self._flow = flow
        self._open: list[Opened] = []
        self._cut = False
        self._waiting: anyio.CancelScope | None = None
        self.value: T
        """What the flow returned."""
        driver.join(self)

    async def run(self) -> AsyncGenerator[Any]:
        """Yield what the flow delivers; whenever this ends, nothing stays open."""
        outcome: Any = None
        failure: Exception | None = None
        try:
            while True:
                try:
                    effect = self._flow.send(outcome) if failure is None else self._flow.throw(failure)
                except StopIteration as end:
                    self.value = end.value
                    return
                outcome, failure = None, None
                if isinstance(effect, Deliver):
                    yield effect.item
                    continue
                try:
                    outcome = await self._done(effect)
                except Exception as error:  # noqa: BLE001 - whatever it is, the flow decides
                    failure = error
        finally:
            await self.close()

    def cut(self) -> None:
        """Let a read or a pause in another task end; nothing is begun afterwards."""
        self._cut = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def close(self) -> None:
        """Leave all answers; what has not ended takes its connection with it."""
        while self._open:
            await _left(self._open.pop())

    async def _done(self, effect: Effect) -> Any:
        self._check_open()
        match effect:
            case Perform(function, arguments, aside):
                more = () if aside is None else (self._in_passing(aside),)
                found = function(*arguments, *more)
                return await found if inspect.isawaitable(found) else found
            case Limit(opened, seconds):
                opened.deadline_s = anyio.current_time() + seconds
            case Close(opened):
                await self._left(opened)
            case Open() | Read() | Sleep():
                return await self._waited(effect)
            case Deliver():
                raise AssertionError("is yielded")
        return None

    def _in_passing(self, aside: Callable[[], Flow[T]]) -> Callable[[], Awaitable[T]]:
        async def asked() -> T:
            return await self._driver.ask(aside())

        return asked

    async def _waited(self, effect: Open | Read | Sleep) -> Opened | bytes | None:
        """Wait for the world, unless `cut` ends that."""
        with anyio.CancelScope() as self._waiting:
            return await (anyio.sleep(effect.seconds) if isinstance(effect, Sleep) else self._asked(effect))
        self._check_open()
        raise AssertionError("is cancelled only when it is cut")

    def _check_open(self) -> None:
        if self._driver.closed:
            raise Misuse("CLIENT_CLOSED", "the client was closed")
        if self._cut:
            raise Misuse("STREAM_CLOSED", "the stream was closed")

    async def _asked(self, effect: Open | Read) -> Opened | bytes:
        try:
            return await (self._opened(effect) if isinstance(effect, Open) else _read(effect.opened))
        except FAILURES as error:
            self._check_open()
            raise lost_by(error, effect, self._driver.bases) from error

    async def _opened(self, effect: Open) -> Opened:
        driver = self._driver
        within_s = effect.exchange.within_s
        deadline_s = None if within_s is None else anyio.current_time() + within_s
        with anyio.fail_after(within_s):
            response = await driver.pool.handle_async_request(request_of(driver.bases, driver.token, effect))
        opened = Opened(head_of(response), (response, response.aiter_stream()), deadline_s)
        self._open.append(opened)
        return opened

    async def _left(self, opened: Opened) -> None:
        if opened in self._open:
            self._open.remove(opened)
            await _left(opened)


async def _read(opened: Opened) -> bytes:
    left_s = None if opened.deadline_s is None else max(opened.deadline_s - anyio.current_time(), 0)
    with anyio.fail_after(left_s):
        part: bytes = await anext(opened.handle[1], b"")
        return part


async def _left(opened: Opened) -> None:
    response, parts = opened.handle
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
        with contextlib.suppress(*FAILURES):
            await response.aclose()
        with contextlib.suppress(*FAILURES, RuntimeError):  # another task may be reading, and hears of it there
            # Nothing comes any more but what is here already. So the generators of httpcore, one in the other, end
            # where they stand, and not when somebody collects garbage, which trio complains about.
            async for _ in parts:
                pass
