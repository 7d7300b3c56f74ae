"""An edge over fake runs on a free loopback port, for the tests that need a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio

from actors.foreground import Runs
from actors.request import Catalog, ProviderFacts
from api.app import Edge, Gate, Limits, Parts, create_app
from api.connection import Bounds
from api.grants import TokenEntry, Tokens, token_digest
from api.server import Config, Listening, serve
from providers.discovery import Discovery
from providers.mock import INFO, Mock
from tests.api.fake_runs import FakeRuns, Script, asking
from tests.api.fake_stores import FakeJobs, FakeSessions
from tests.http_client import Tcp

TOKENS = {"reader": "reader-token-0123456789-0123456789", "nobody": "nobody-token-0123456789-0123456789"}
BEARER = ("Authorization", f"Bearer {TOKENS['reader']}")
JSON = ("Content-Type", "application/json")
STREAM = ("Accept", "text/event-stream")
NOBODY: Any = None
"""Who takes answers, where the catalog has no feature that asks."""
RUN: dict[str, Any] = {"provider": "mock", "model": "demo", "input": "hello"}


@dataclass
class Hosted:
    """A host that listens, and what stands behind it."""

    target: Tcp
    runs: FakeRuns
    model: Mock
    gate: Gate
    app: Edge
    listening: Listening
    serving: set[int]
    """Requests that the application is busy with, by the identity of their scope."""

    def app_tasks(self) -> int:
        """How many requests the application is busy with."""
        return len(self.serving)


def entries() -> tuple[TokenEntry, ...]:
    """The tokens of the shared vectors."""
    return (
        TokenEntry(
            digest=token_digest(TOKENS["reader"]),
            subject="ann",
            providers=("mock",),
            jobs=("submit", "read", "cancel"),
            sessions=("create", "read", "continue", "delete"),
        ),
        TokenEntry(digest=token_digest(TOKENS["nobody"]), subject="bo", providers=()),
    )


def catalog() -> Catalog:
    """The mock alone."""
    return Catalog(providers={"mock": ProviderFacts(models=INFO.models, capabilities=INFO.capabilities)})


def parts(runs: Runs, discovery: Discovery, **more: Any) -> Parts:
    """Everything an edge needs."""
    return Parts(
        runs=runs,
        answers=NOBODY,
        catalog=catalog(),
        tokens=Tokens(entries()),
        discovery=discovery,
        allowed_origins=frozenset({"https://desk.example"}),
        sessions=FakeSessions(),
        jobs=FakeJobs(),
        **more,
    )


@asynccontextmanager
async def hosted(
    script: Script | None = None,
    *,
    bounds: Bounds | None = None,
    limits: Limits | None = None,
    runs: FakeRuns | None = None,
    drain_s: float = 5,
    jobs: bool = True,
) -> AsyncIterator[Hosted]:
    """Serve on a free port until left."""
    model = Mock()
    runs = runs or FakeRuns(script or asking(model))
    gate = Gate()

    def drain() -> None:
        gate.close()
        runs.cancel_all()

    async with Discovery({"mock": model}) as discovery, anyio.create_task_group() as tasks:
        made = parts(runs, discovery, gate=gate, limits=limits or Limits())
        app = create_app(made if jobs else replace(made, jobs=None))
        ready = anyio.Event()
        serving: set[int] = set()

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                return await app(scope, receive, send)
            serving.add(id(scope))
            try:
                await app(scope, receive, send)
            finally:
                serving.discard(id(scope))

        listening: list[Listening] = []

        def on_ready(now: Listening) -> None:
            listening.append(now)
            ready.set()

        async def listen() -> None:
            config = Config(port=0, bounds=bounds or Bounds(), drain_s=drain_s)
            await serve(counted, config, on_ready=on_ready, drain=drain)

        tasks.start_soon(listen)
        await ready.wait()
        try:
            yield Hosted(Tcp("127.0.0.1", listening[0].port), runs, model, gate, app, listening[0], serving)
        finally:
            listening[0].stop()


async def until(condition: Any, deadline_s: float = 5) -> None:
    """Wait until *condition* holds."""
    with anyio.fail_after(deadline_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await anyio.sleep(0.002)
