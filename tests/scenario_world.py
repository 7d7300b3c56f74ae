"""The world of a scenario: nodes over one store, a scripted model, tools that note what they did, and a clock."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import anyio
import msgspec
from msgspec import Raw

from actors.events import ToolCall
from actors.node import NodeSettings
from actors.ports import (
    ModelContext,
    ModelRequest,
    PolicyContext,
    Probe,
    ProviderInfo,
    ToolContext,
    ToolDefinition,
    Turn,
)
from actors.request import Features, HostLimits
from api.app import Edge, create_app
from api.grants import TokenEntry, Tokens, token_digest
from api.parts import Gate, Parts
from eventstore import keys
from eventstore.fake_link import fake_server
from eventstore.fake_store import open_fake_store
from eventstore.ledger import RedisLedger
from eventstore.memory import Memory, MemoryStore
from eventstore.redis_store import RedisStore
from eventstore.store import Caps, Deployment, Store
from runstream.host import Host, Options, open_host

Config = Mapping[str, Any]
PATIENCE_S = 20.0
SLOWNESS = 500
"""How much slower the host's time goes than ours, where a scenario moves it: a millisecond is half a second."""
DEPLOYMENT = Deployment("scenarios", 4, b"k" * 32)
Opening: TypeAlias = Callable[[str], AbstractAsyncContextManager[RedisStore]]
"""Opens the store of a node by its name."""


class Clock:
    """The hosts' time, for their store and their event loop alike; it nearly stands, and moves when it is told to."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._loop_s = asyncio.get_running_loop().time()
        self._store_ms = time.time_ns() // 1_000_000
        self._timers_ms = 0
        self._ahead_ms = 0

    def advance(self, ms: int, *, timers: bool) -> None:
        """Put the time forward; without *timers* only the store knows of it."""
        self._ahead_ms += ms
        self._timers_ms += ms if timers else 0

    def store_ms(self) -> int:
        return self._store_ms + self._ahead_ms + int(self._passed_s() * 1_000)

    def loop_s(self) -> float:
        return self._loop_s + self._timers_ms / 1_000 + self._passed_s()

    def _passed_s(self) -> float:
        return (time.monotonic() - self._began_s) / SLOWNESS


@contextmanager
def moved_by(clock: Clock | None) -> Iterator[None]:
    """Let the running event loop go by *clock*."""
    loop: Any = asyncio.get_running_loop()
    if clock is not None:
        loop.time = clock.loop_s
    try:
        yield
    finally:
        if clock is not None:
            del loop.time


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Give the body so much real time, however the loop's clock goes; raises TimeoutError."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        timer = threading.Timer(seconds, loop.call_soon_threadsafe, (scope.cancel,))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
    if scope.cancelled_caught:
        raise TimeoutError


class Scripted:
    """The provider `mock`: answers each step of a run as its script says."""

    info = ProviderInfo(
        id="mock",
        name="Mock",
        vendor="mock",
        auth_mode="none",
        capabilities={"tools": True, "textStreaming": True},
        models=("demo",),
    )

    def __init__(self, script: Sequence[Config]) -> None:
        self.calls = 0
        self.gates: dict[str, anyio.Event] = {}
        self._script = script
        self._steps: Counter[str] = Counter()

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        assert request.model == "demo"
        self.calls += 1
        turn = self._script[self._steps[context.run_id]]
        self._steps[context.run_id] += 1
        for piece in turn.get("emitText", ()):
            context.emit_text(piece)
        if "block" in turn:
            await self.gate(turn["block"]).wait()
        if "throws" in turn:
            raise RuntimeError(turn["throws"])
        calls = tuple(_call(call) for call in turn.get("toolCalls", ()))
        return Turn(text=turn.get("text", ""), tool_calls=calls, usage=turn.get("usage"))

    async def inspect(self) -> Probe | None:
        return None

    def gate(self, name: str) -> anyio.Event:
        """The gate called *name*, closed until a scenario releases it."""
        return self.gates.setdefault(name, anyio.Event())


def _call(call: Config) -> ToolCall:
    arguments = call["argumentsRaw"] if "argumentsRaw" in call else json.dumps(call["arguments"], ensure_ascii=False)
    return ToolCall(call["id"], call["name"], Raw(arguments.encode()))


class NotingTool:
    """A host tool that notes with what it was executed."""

    idempotent = False
    output_bytes_max = 1_000_000

    def __init__(self, config: Config, effects: list[Any]) -> None:
        schema = json.dumps(config["inputSchema"]).encode()
        self.definition = ToolDefinition(config["name"], "A tool of the scenario.", Raw(schema))
        self.requires_approval = config.get("requiresApproval", False)
        self._result = config["result"]
        self._effects = effects

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        assert not context.cancelled()
        self._effects.append(dict(arguments))
        return self._result


class Node(NamedTuple):
    host: Host
    app: Edge


class World:
    """Some nodes of one deployment, as a scenario configures them."""

    def __init__(
        self,
        config: Config,
        script: Sequence[Config],
        *,
        nodes: int = 1,
        clock: Clock | None = None,
        memory: Memory | None = None,
        redis: Opening | None = None,
        around: Callable[[Any], Any] = lambda store: store,
    ) -> None:
        self.config = config
        self.model = Scripted(script)
        self.effects: list[Any] = []
        self.clock = clock
        self.nodes: list[Node] = []
        self._count = nodes
        self._names = count()
        self._around = around
        self._memory = Memory(DEPLOYMENT, clock.store_ms) if clock else memory
        self._redis = redis or partial(open_fake_store, fake_server(), DEPLOYMENT)
        self._open = AsyncExitStack()

    async def open(self) -> None:
        """Open the nodes."""
        for _ in range(self._count):
            store = await self._open.enter_async_context(self._store(f"n{next(self._names)}"))
            self.nodes.append(await self._open.enter_async_context(_opened(self._around(store), self)))

    async def close(self) -> None:
        """Close the nodes; what they stored stays."""
        self.nodes = []
        await self._open.aclose()

    async def audit(self) -> list[Any]:
        """Every audit record, those of one run in their order."""
        if self._memory is not None:
            return [json.loads(entry) for partition in range(4) for entry in self._memory.outbox[partition]]
        entries: list[Any] = []
        async with self._store("observer") as store:
            for tag in keys.tags(DEPLOYMENT.partitions):
                found = await store._commands.call("XRANGE", keys.outbox(tag), "-", "+")
                entries.extend(json.loads(fields[1]) for _, fields in found)
        return entries

    async def pending(self) -> int:
        """Approvals and tickets that count against their bounds."""
        if self._memory is not None:
            return sum([(await self._memory.ledger.counted(pool)).held for pool in ("approvals", "tickets")])
        async with self._store("observer") as store:
            ledger = RedisLedger(store._commands)
            return sum([(await ledger.counted(pool)).held for pool in ("approvals", "tickets")])

    @asynccontextmanager
    async def _store(self, name: str) -> AsyncIterator[Any]:
        if self._memory is not None:
            yield MemoryStore(self._memory, name)
            return
        async with self._redis(name) as store:
            yield store


@asynccontextmanager
async def _opened(store: Store, world: World) -> AsyncIterator[Node]:
    config = world.config
    tools = {tool["name"]: NotingTool(tool, world.effects) for tool in config.get("tools", ())}
    async with open_host(store, {"mock": world.model}, _options(config, slow=world.clock is not None), tools) as host:
        gate = Gate()
        gate.closing = host.node.closing
        parts = Parts(
            runs=host.runs,
            answers=host.decisions,
            catalog=host.catalog,
            tokens=Tokens([_token(alias, policy) for alias, policy in config["tokens"].items()]),
            discovery=_Unlisted(),
            gate=gate,
        )
        yield Node(host, create_app(parts))


class _Unlisted:
    async def listed(self, ids: Any, *, refresh: bool = False) -> Sequence[object]:  # noqa: ARG002
        return []


def bearer(alias: str) -> str:
    """The token called *alias*."""
    return f"{alias}-".ljust(32, "0")


def _token(alias: str, policy: Config) -> TokenEntry:
    return msgspec.convert({**policy, "digest": token_digest(bearer(alias))}, TokenEntry)


def _options(config: Config, *, slow: bool) -> Options:
    approvals, tools = config.get("approvals", {}), config.get("applicationTools", {})
    caps = Caps(total=config.get("maxConcurrentRuns", 32), per_subject=config.get("maxConcurrentRunsPerSubject", 8))
    return Options(
        limits=HostLimits(idle_timeout_ms=config.get("limits", {}).get("idleTimeoutMs")),
        features=Features(
            idempotency=config.get("operations", False),
            approvals=approvals.get("interactive", False),
            approvals_may_pause=approvals.get("allowIdlePause", True),
            application_tools=tools.get("enabled", False),
        ),
        node=NodeSettings(lease_ms=600_000 if slow else 2_000, routine_ms=50, reassured_s=0.1, drain_s=0.3),
        caps=lambda _subject, _account: caps,
        policy=_policy(config["approveHook"]) if "approveHook" in config else None,
        audit=_sink(config["auditSink"]) if "auditSink" in config else None,
        approvals=Caps(total=approvals.get("maxPending", 1_000)),
        tickets=Caps(total=tools.get("maxPending", 1_000)),
        application_tools_reviewed=tools.get("requireApproval", True),
    )


def _policy(hook: object) -> Any:
    async def refusing(_call: ToolCall, _context: PolicyContext) -> bool:
        return False

    async def mutating(call: ToolCall, _context: PolicyContext) -> bool:
        json.loads(bytes(call.arguments)).update(injected=True)
        return True

    return refusing if hook is False else mutating


def _sink(config: Any) -> Any:
    """A sink that fails as *config* says.

    `async` is a sink of upstream's, whose sinks are functions, that returns a promise: nobody knows whether it kept the record.
    Ours are coroutines, so the same fault is one that returns something instead of None when it is done.
    """

    async def promising(_record: Config) -> object:
        return asyncio.get_running_loop().create_future()

    async def failing(record: Config) -> None:
        if record["type"] == config["throwOn"]:
            raise RuntimeError(config["message"])

    return promising if config == "async" else failing
