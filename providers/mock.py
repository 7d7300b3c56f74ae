"""The deterministic mock of the wire protocol, and what the public cross-client suite scripts into it (providers §7)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import anyio
from msgspec import Raw

from actors.ports import AssistantMessage, ModelContext, ModelRequest, Probe, ProviderInfo, ToolCall, Turn
from providers.failures import failed

TurnFunction: TypeAlias = Callable[[ModelRequest, ModelContext], Awaitable[Turn]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

INFO = ProviderInfo(
    id="mock",
    name="Offline demo",
    vendor="mock",
    auth_mode="none",
    models=("demo",),
    capabilities={"tools": True, "textStreaming": False, "historyContinuation": True, "nativeContinuation": True},
    usage_source="synthetic",
)
CONNECTED = Turn(text="AgenticDriver is connected.", usage={"inputTokens": 0, "outputTokens": 0})

_TOOLS: Mapping[str, tuple[str, bytes]] = {
    "conformance-approval": ("approved_echo", b'{"text":"conformance"}'),
    "conformance-application-tool": ("application_lookup", b'{"query":"solar"}'),
}
_TURNS: Mapping[str, Turn] = {
    "conformance-cost": Turn(text=CONNECTED.text, usage={"apiEquivalentCostUsd": 0.25}),
    "session-first": Turn(text=CONNECTED.text, usage=CONNECTED.usage, native=Raw(b'{"turn":1}')),
    "session-next": Turn(text=CONNECTED.text, usage=CONNECTED.usage, native=Raw(b'{"turn":2}')),
}


class Mock:
    """Answers every request alike, unless a test gives it another turn function; counts its *calls*."""

    def __init__(self, turn: TurnFunction | None = None, info: ProviderInfo = INFO) -> None:
        self.info = info
        self.calls = 0
        self._turn = turn

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        """Answer one step.

        Raises:
            Failed: the request asks for retries, which the mock does not do, or the turn function says so.
        """
        self.calls += 1
        if request.retry.max_attempts > 1:
            raise failed("UNSUPPORTED_CAPABILITY")
        return CONNECTED if self._turn is None else await self._turn(request, context)

    async def inspect(self) -> Probe | None:
        """Tell nothing: the mock has no probe."""
        return None


def conformance(sleep: Sleep = anyio.sleep) -> TurnFunction:
    """The turn function of the cross-client suite, which looks at the last message."""

    async def turn(request: ModelRequest, context: ModelContext) -> Turn:
        match request.messages[-1].content:
            case "conformance-stall":
                await anyio.sleep_forever()
            case "conformance-quiet":
                await sleep(0.08)
            case "conformance-progress":
                for _ in range(16):
                    await sleep(0.02)
                    context.report_progress()
            case "conformance-uncertain":
                raise failed("IDLE_TIMEOUT", uncertain=True)
            case _:
                pass
        return scripted(request)

    return turn


def scripted(request: ModelRequest) -> Turn:
    """The answer of the cross-client suite once every wait is over."""
    last = request.messages[-1].content
    if last not in _TOOLS:
        return _TURNS.get(last, CONNECTED)
    name, arguments = _TOOLS[last]
    step = 1 + sum(isinstance(message, AssistantMessage) for message in request.messages)
    return Turn(tool_calls=(ToolCall(f"call-{step}", name, Raw(arguments)),), usage=CONNECTED.usage)
