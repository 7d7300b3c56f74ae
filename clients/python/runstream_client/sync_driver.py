"""Runs flows in the thread of the caller, over httpcore's blocking pool."""

import contextlib
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import httpcore
from typing_extensions import override

from runstream_client.errors import Misuse
from runstream_client.flows import Close, Deliver, Effect, Flow, Limit, Open, Opened, Perform, Read, Sleep
from runstream_client.transport import FAILURES, head_of, lost_by, pool_options, request_of
from runstream_client.wire import Token

T = TypeVar("T")


class Driver:
    """Sends what flows ask for; threads may share it."""

    def __init__(self, bases: tuple[str, ...], token: Token, tls: ssl.SSLContext | None) -> None:
        self.bases = bases
        self.token = token
        self.closed = False
        self._running: weakref.WeakSet[Errands[Any]] = weakref.WeakSet()
        self._joining = threading.Lock()
        self._limits = _Limits()
        self.pool = httpcore.ConnectionPool(network_backend=self._limits, **pool_options(tls))

    def close(self) -> None:
        """End all connections, also those that other threads read."""
        self.closed = True
        with self._joining:
            running = list(self._running)
        for errands in running:
            errands.cut()
        self.pool.close()

    def join(self, errands: "Errands[Any]") -> None:
        """Remember *errands*, which end when the client is closed."""
        with self._joining:
            self._running.add(errands)

    def ask(self, flow: Flow[T]) -> T:
        """Run a flow that delivers nothing on the way."""
        running = Errands(self, flow).run()
        try:
            while True:
                next(running)
        except StopIteration as end:
            value: T = end.value
            return value

    def within(self, errands: "Errands[Any]", deadline_s: float | None) -> contextlib.AbstractContextManager[None]:
        """Let every read of this thread end by then, and when *errands* are cut."""
        return self._limits.within(errands, deadline_s)


class Errands(Generic[T]):
    """Runs one flow, and holds the answers that it has open."""

    def __init__(self, driver: Driver, flow: Flow[T]) -> None:
        self._driver = driver
        self._flow = flow
        self._open: list[Opened] = []
        self._cut = threading.Event()
        self._read_now: socket.socket | None = None
        self._reading = threading.RLock()  # a signal may close what its own thread reads
        driver.join(self)

    def run(self) -> Generator[Any, None, T]:
        """Yield what the flow delivers; whenever this ends, nothing stays open."""
        outcome: Any = None
        failure: Exception | None = None
        try:
            while True:
                try:
                    effect = self._flow.send(outcome) if failure is None else self._flow.throw(failure)
                except StopIteration as end:
                    value: T = end.value
                    return value
                outcome, failure = None, None
                if isinstance(effect, Deliver):
                    yield effect.item
                    continue
                try:
                    outcome = self._done(effect)
                except Exception as error:  # noqa: BLE001 - whatever it is, the flow decides
                    failure = error
        finally:
            self.close()

    def close(self) -> None:
        """Leave all answers; what has not ended takes its connection with it."""
        while self._open:
            _left(self._open.pop())

    def cut(self) -> None:
        """Let a read or a pause in another thread end; nothing is begun afterwards."""
        self._cut.set()
        with self._reading:
            if self._read_now is not None:
                with contextlib.suppress(OSError):
                    # Of the connection below, also where it is encrypted: nothing more is said.
                    socket.socket.shutdown(self._read_now, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def reading(self, connection: socket.socket) -> Generator[None]:
        """Let `cut` end what is read from *connection* meanwhile; before and after, it may be somebody else's."""
        with self._reading:
            self._read_now = connection
        try:
            self._check_open()
            yield
        finally:
            with self._reading:
                self._read_now = None

    def _done(self, effect: Effect) -> Any:
        self._check_open()
        match effect:
            case Sleep(seconds):
                self._cut.wait(seconds)
                self._check_open()
            case Perform(function, arguments, aside):
                more = () if aside is None else (lambda: self._driver.ask(aside()),)
                return function(*arguments, *more)
            case Limit(opened, seconds):
                opened.deadline_s = time.monotonic() + seconds
            case Close(opened):
                self._left(opened)
            case Open() | Read():
                return self._asked(effect)
            case Deliver():
                raise AssertionError("is yielded")
        return None

    def _check_open(self) -> None:
        if self._driver.closed:
            raise Misuse("CLIENT_CLOSED", "the client was closed")
        if self._cut.is_set():
            raise Misuse("STREAM_CLOSED", "the stream was closed")

    def _asked(self, effect: Open | Read) -> Opened | bytes:
        try:
            found = self._opened(effect) if isinstance(effect, Open) else self._read(effect.opened)
        except FAILURES as error:
            self._check_open()
            raise lost_by(error, effect, self._driver.bases) from error
        self._check_open()  # a connection that was cut looks like one that ended
        return found

    def _opened(self, effect: Open) -> Opened:
        driver = self._driver
        within_s = effect.exchange.within_s
        deadline_s = None if within_s is None else time.monotonic() + within_s
        with driver.within(self, deadline_s):
            response = driver.pool.handle_request(request_of(driver.bases, driver.token, effect))
        opened = Opened(head_of(response), (response, response.iter_stream()), deadline_s)
        self._open.append(opened)
        return opened

    def _read(self, opened: Opened) -> bytes:
        with self._driver.within(self, opened.deadline_s):
            part: bytes = next(opened.handle[1], b"")
            return part

    def _left(self, opened: Opened) -> None:
        if opened in self._open:
            self._open.remove(opened)
            _left(opened)


def _left(opened: Opened) -> None:
    with contextlib.suppress(*FAILURES, RuntimeError):
        opened.handle[0].close()


class _Limits(httpcore.SyncBackend):
    """Connections whose reads also end at the deadline of the thread that reads, and when its errands are cut."""

    def __init__(self) -> None:
        self._thread = threading.local()

    @contextlib.contextmanager
    def within(self, errands: Errands[Any], deadline_s: float | None) -> Generator[None]:
        self._thread.errands, self._thread.deadline_s = errands, deadline_s
        try:
            yield
        finally:
            self._thread.errands = self._thread.deadline_s = None

    def read(self, stream: httpcore.NetworkStream, max_bytes: int, timeout: float | None) -> bytes:
        """Read for the thread that asks."""
        errands: Errands[Any] = self._thread.errands
        with errands.reading(stream.get_extra_info("socket")):
            return stream.read(max_bytes, self._left_s(timeout))

    def _left_s(self, timeout: float | None) -> float | None:
        deadline_s: float | None = self._thread.deadline_s
        if deadline_s is None:
            return timeout
        left = deadline_s - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer took too long")
        return left if timeout is None else min(left, timeout)

    @override
    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Limited(super().connect_tcp(*args, **kwargs), self)


class _Limited(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, limits: _Limits) -> None:
        self._inner = inner
        self._limits = limits

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._limits.read(self._inner, max_bytes, timeout)

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    @override
    def close(self) -> None:
        self._inner.close()

    @override
    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Limited(self._inner.start_tls(*args, **kwargs), self._limits)

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
