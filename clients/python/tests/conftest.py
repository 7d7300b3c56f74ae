"""Either client as one thing, and a peer that it speaks to."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from runstream_client import AsyncClient, Client, ClientError, Patience, RunEvent
from runstream_client.conformance.peer import Peer, peer

TOKEN = "a-token-made-up-for-the-tests"
QUICK = Patience(attempts=3, first_s=0.001, most_s=0.05, silence_s=5.0, poll_s=0.001)

LIBRARIES = ("asyncio", "trio")


class Either:
    """A client that blocks or one that awaits, used alike."""

    def __init__(self, portal: BlockingPortal | None) -> None:
        self._portal = portal
        self.kind = Client if portal is None else AsyncClient

    @contextmanager
    def client(self, *urls: str, **options: Any) -> Generator[Any]:
        given: dict[str, Any] = {"patience": QUICK, **options}
        made = self.kind(list(urls), token=TOKEN, **given)
        try:
            yield made
        finally:
            self.done(made.close)

    def done(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What *function* returns, awaited if that is how this client is."""
        if self._portal is None:
            return function(*arguments)

        async def awaited() -> Any:
            return await function(*arguments)

        return self._portal.call(awaited)

    def step(self, stream: Any) -> Any:
        """The next event."""
        return self.done(stream.__next__ if self._portal is None else stream.__anext__)

    def read(self, stream: Any) -> tuple[list[RunEvent], ClientError | None]:
        """All events, and the error that they end with."""
        events: list[RunEvent] = []
        try:
            while True:
                events.append(self.step(stream))
        except (StopIteration, StopAsyncIteration):
            return events, None
        except ClientError as error:
            return events, error
        finally:
            self.done(stream.close)


@pytest.fixture(scope="session")
def portals() -> Generator[Mapping[str, BlockingPortal]]:
    """Threads in which the libraries for asynchronous programs run."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(start_blocking_portal(name)) for name in LIBRARIES}


@pytest.fixture(params=LIBRARIES)
def portal(request: pytest.FixtureRequest, portals: Mapping[str, BlockingPortal]) -> BlockingPortal:
    return portals[request.param]


@pytest.fixture(params=["blocking", *LIBRARIES])
def either(request: pytest.FixtureRequest, portals: Mapping[str, BlockingPortal]) -> Either:
    return Either(portals.get(request.param))


@pytest.fixture
def host() -> Generator[Peer]:
    with peer() as made:
        yield made


@pytest.fixture
def other() -> Generator[Peer]:
    """Another node of the same deployment."""
    with peer() as made:
        yield made
