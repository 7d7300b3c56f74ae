"""The client that blocks, made of `async_client` by `tools/blocking.py`."""

import contextlib
import ssl
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

from typing_extensions import override

from runstream_client import calls
from runstream_client.calls import Call
from runstream_client.core import Core, Reading, options_of
from runstream_client.errors import Misuse
from runstream_client.events import Approval, RunEvent
from runstream_client.groups import Approvals, Jobs, Management, Retrieval, Runs, Sessions, Tools
from runstream_client.hands import Hands, Tool
from runstream_client.patience import Patience
from runstream_client.providers import ProtocolInfo, Provider
from runstream_client.reading import result_of
from runstream_client.requests import Decision, RunRequest
from runstream_client.results import RunResult
from runstream_client.sync_driver import Driver, Errands
from runstream_client.wire import Token

T = TypeVar("T")
Approver: TypeAlias = Callable[[Approval], Decision | None]


class EventStream(Iterator[RunEvent]):
    """The events of a run as they come. Leave it early, or `close` it, and the connection is closed."""

    def __init__(self, driver: Driver, reading: Reading) -> None:
        self._source = reading.source
        self._errands = Errands(driver, reading.flow)
        self._running: Generator[RunEvent] = self._errands.run()
        self._closed = False

    @property
    def run_id(self) -> str | None:
        """The run's id, once it is known."""
        return self._source.run_id

    @property
    def cursor(self) -> str:
        """What to `follow` the run with from here on."""
        return self._source.cursor

    @property
    def _ended(self) -> bool:
        return self._source.last is not None and self._source.last.ends

    @override
    def __next__(self) -> RunEvent:
        """Wait for the next event; ends after the last one of the run."""
        if self._closed:
            raise Misuse("STREAM_CLOSED", "the stream was closed")
        return next(self._running)

    def result(self) -> RunResult:
        """Read to the end, and return what the run came to.

        Raises:
            RunError: it ended without a result.
        """
        if not self._ended:
            for _ in self:
                pass
        return result_of(self._source.last)

    def close(self) -> None:
        """Close the connection, from any thread; a run without `resume` is cancelled by that."""
        self._closed = True
        self._errands.cut()
        with contextlib.suppress(ValueError):  # another thread reads, and hears of it there
            self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Client:
    """A client of the nodes of one deployment; threads may share it."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: Token,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
        silence_s: float | None = None,
    ) -> None:
        options = options_of(urls, token, tls, patience or Patience(), silence_s)
        self._core = Core(options)
        self._driver = Driver(options.bases, options.token, options.tls)
        self.approvals = Approvals(self._ask)
        self.tools = Tools(self._ask)
        self.sessions = Sessions(self._ask)
        self.jobs = Jobs(self._ask)
        self.runs = Runs(self._ask)
        self.retrieval = Retrieval(self._ask)
        self.management = Management(self._ask)

    def protocol(self) -> ProtocolInfo:
        """Return which protocol the host speaks, and its features."""
        return self._ask(calls.protocol())

    def providers(self, *, refresh: bool = False) -> tuple[Provider, ...]:
        """Return what the token may use; *refresh* has the host look anew."""
        return self._ask(calls.providers(refresh=refresh))

    def run(self, request: RunRequest) -> RunResult:
        """Run, and return the result.

        Raises:
            Refused: the host said no, or the run ended without a result: an answer without a stream tells both alike
                (runs §1). `stream(request).result()` tells them apart, for it raises `RunError` for the second.
        """
        return self._ask(calls.run(request))

    def stream(self, request: RunRequest) -> EventStream:
        """Run, and read the events as they come; with `resume` in the request, over as many connections as it takes."""
        return self._read(self._core.stream(request))

    def work(
        self,
        request: RunRequest,
        *,
        tools: Sequence[Tool] = (),
        approve: Approver | None = None,
    ) -> EventStream:
        """Run, and while the events are read, execute the run's *tools* and have *approve* decide about its calls."""
        return self._read(self._core.work(request, Hands(tools=tools, approve=approve)))

    def follow(
        self,
        run_id: str,
        cursor: str = "",
        *,
        tools: Sequence[Tool] = (),
        approve: Approver | None = None,
    ) -> EventStream:
        """Read the events of a run after *cursor*, and work for it where there are *tools* or *approve*."""
        hands = Hands(tools=tools, approve=approve) if tools or approve else None
        return self._read(self._core.follow(run_id, cursor, hands))

    def job_events(self, job_id: str, after: int = 0) -> EventStream:
        """Read the events of a job after a number, as they come, to its end; pages are not seen."""
        return self._read(self._core.job_events(job_id, after))

    def close(self) -> None:
        """End all connections; nothing can be asked afterwards."""
        self._driver.close()

    def _ask(self, call: Call[T]) -> T:
        return self._driver.ask(self._core.asked(call))

    def _read(self, reading: Reading) -> EventStream:
        return EventStream(self._driver, reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
