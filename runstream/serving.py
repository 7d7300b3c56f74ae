"""`runstream serve`: a host on a socket until it is told to end."""

import asyncio
import logging
import signal
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager

import anyio

import runstream
from api.server import Config, Listening, serve
from runstream import remembering
from runstream.checking import NO_TOKEN_MEND
from runstream.host import Host
from runstream.reading import Fault
from runstream.settings import Settings, SettingsError

_log = logging.getLogger(__name__)


async def serve_host(settings: Settings, on_ready: Callable[[Listening], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a SIGTERM that comes before the host is open ends it at once.

    Raises:
        SettingsError: nobody could ever be let in.
        NotServed: the address cannot be had.
    """
    if not settings.tokens:
        raise SettingsError((Fault("tokens", f"is empty, so nobody could be let in: {NO_TOKEN_MEND}"),))
    if settings.profile == "memory":
        _log.warning("the memory profile keeps nothing: every run is gone when this process ends")
    with anyio.CancelScope() as scope:
        async with AsyncExitStack() as stack:
            with _terminated(scope.cancel):
                host = await stack.enter_async_context(runstream.open(settings, held=True, patient=True))
            await _served(host, settings, on_ready)


async def _served(host: Host, settings: Settings, on_ready: Callable[[Listening], None]) -> None:
    node = {"node": host.store.node}
    async with anyio.create_task_group() as tasks:

        def ready(listening: Listening) -> None:
            _log.info("serving at %s", listening.url, extra=node)
            remembering.settle()
            host.begin()
            on_ready(listening)

        def drain() -> None:
            _log.info("draining", extra=node)
            tasks.start_soon(host.drain)

        await serve(host.app, config_of(settings), on_ready=ready, drain=drain)


@contextmanager
def _terminated(end: Callable[[], None]) -> Generator[None]:
    """Have *end* called by SIGTERM, which the first process of a container would not notice otherwise."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def config_of(settings: Settings) -> Config:
    """The listener's side of the settings."""
    listen = settings.listen
    return Config(
        host=listen.host,
        port=listen.port,
        certificate=str(listen.certificate) if listen.certificate else None,
        key=str(listen.key) if listen.key else None,
        drain_s=settings.node.drain_s * 2 + 1,
    )
