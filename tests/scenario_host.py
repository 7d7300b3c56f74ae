"""One node of a scenario, as its configuration says: options, tools, tokens, and the application over it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from actors import jobs, session
from actors.events import ToolCall
from actors.node import NodeSettings
from actors.ports import PolicyContext, ToolContext, ToolDefinition
from actors.request import Features, HostLimits
from api.app import Edge, create_app
from api.grants import Policy, Principal, TokenEntry, Tokens, still_allows, token_digest
from api.parts import ALWAYS, Gate, Parts
from eventstore.store import Caps
from runstream.host import Host, Options, open_host
from tests.scenario_doors import Doorway
from tests.scenario_model import Scripted, described

Config = Mapping[str, Any]


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


class Known:
    """The credentials of a scenario; `durable` in its configuration names those that stand for another's principal."""

    def __init__(self, config: Config) -> None:
        stands_for = config.get("durable", {})
        policies = {alias: policy for alias, policy in config["tokens"].items() if policy is not None}
        self._tokens = Tokens(_entry(alias, policy) for alias, policy in policies.items() if alias not in stands_for)
        self._narrowed = {
            bearer(alias): Principal(token_digest(bearer(of)), msgspec.convert(policies[alias], Policy))
            for alias, of in stands_for.items()
        }
        self._revoked: set[str] = set()

    def revoke(self, alias: str) -> None:
        """Let the principal called *alias* be nobody from now on."""
        self._revoked.add(token_digest(bearer(alias)))

    def principal(self, bearer: str) -> Principal | None:
        found = self._narrowed.get(bearer) or self._tokens.principal(bearer)
        return None if found is None or found.id in self._revoked else found

    def durable(self, principal_id: str) -> Principal | None:
        return None if principal_id in self._revoked else self._tokens.durable(principal_id)


class Node(NamedTuple):
    host: Host
    app: Edge
    door: Doorway

    async def die(self) -> None:
        """Be gone without a word: what is under way is dropped, and the store neither hears nor answers any more."""
        self.door.cut = True
        node: Any = self.host.node
        node.drain = _nothing
        for execution in self.host.node.executing.values():
            execution.scope.cancel()


async def _nothing() -> None:
    return


@asynccontextmanager
async def opened(
    door: Doorway, config: Config, model: Scripted, effects: list[Any], known: Known, *, slow: bool
) -> AsyncGenerator[Node]:
    """Open a node over its store; *slow* says that its clock nearly stands."""
    model.info = described(config)
    tools = {tool["name"]: NotingTool(tool, effects) for tool in config.get("tools", ())}
    store: Any = door
    async with open_host(store, {"mock": model}, _options(config, known, slow=slow), tools) as host:
        gate = Gate()
        gate.closing = host.node.closing
        parts = Parts(
            runs=host.runs,
            answers=host.decisions,
            sessions=host.sessions,
            jobs=host.jobs,
            catalog=host.catalog,
            tokens=known,
            discovery=_Unlisted(),
            gate=gate,
            features=ALWAYS,
        )
        yield Node(host, create_app(parts), door)


class _Unlisted:
    async def listed(self, ids: Any, *, refresh: bool = False) -> Sequence[object]:  # noqa: ARG002
        return []


def bearer(alias: str) -> str:
    """The token called *alias*."""
    return f"{alias}-".ljust(32, "0")


def _entry(alias: str, policy: Config) -> TokenEntry:
    return msgspec.convert({**policy, "digest": token_digest(bearer(alias))}, TokenEntry)


def caps_of(config: Config) -> Caps:
    """The bounds on run slots."""
    scheduling = config.get("scheduling", {})
    queue = scheduling.get("queue", {})
    return Caps(
        total=scheduling.get("total", config.get("maxConcurrentRuns", 32)),
        per_subject=scheduling.get("perSubject", config.get("maxConcurrentRunsPerSubject", 8)),
        queue_total=queue.get("total", 0),
        queue_per_subject=queue.get("perSubject", 0),
    )


def _options(config: Config, known: Known, *, slow: bool) -> Options:
    approvals, tools = config.get("approvals", {}), config.get("applicationTools", {})
    caps = caps_of(config)
    kept, detached = config.get("sessions"), config.get("jobs")
    lease_ms = 600_000 if slow else (detached or {}).get("leaseMs", 2_000)
    return Options(
        limits=HostLimits(idle_timeout_ms=config.get("limits", {}).get("idleTimeoutMs")),
        features=Features(
            idempotency=config.get("operations", False),
            approvals=approvals.get("interactive", False),
            approvals_may_pause=approvals.get("allowIdlePause", True),
            application_tools=tools.get("enabled", False),
        ),
        node=NodeSettings(lease_ms=lease_ms, routine_ms=50, reassured_s=0.1, drain_s=0.3),
        caps=lambda _subject, _account: caps,
        policy=_policy(config["approveHook"]) if "approveHook" in config else None,
        audit=_sink(config["auditSink"]) if "auditSink" in config else None,
        approvals=Caps(total=approvals.get("maxPending", 1_000)),
        tickets=Caps(total=tools.get("maxPending", 1_000)),
        application_tools_reviewed=tools.get("requireApproval", True),
        sessions=None if kept is None else _limits(kept, session.Limits),
        jobs=None if detached is None else _limits(detached, jobs.Limits),
        authority=lambda accepted: still_allows(known, accepted),
    )


def _limits(config: Config, kind: type[Any]) -> Any:
    """The bounds of *kind* that *config* names as the protocol does."""
    told = {name: config[camel] for name in kind.__struct_fields__ if (camel := _camel(name)) in config}
    return kind(**told)


def _camel(name: str) -> str:
    """*name* as the protocol writes it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


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
