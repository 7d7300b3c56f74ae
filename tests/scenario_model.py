"""The provider `mock` of the scenarios: answers each step of a run as its script says, and remembers what it was asked."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from msgspec import Raw

from actors.events import ToolCall
from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, Turn, UserMessage

Config = Mapping[str, Any]
_NO_JSON: Mapping[str, Any] = {
    "a non-JSON container of 1000 bytes": bytearray(1_000),
    "an object with a function member": {"private": print},
    "an object with a NaN number": Raw(b'{"private":NaN}'),
}


class Scripted:
    """Follows one script in each run, or the one for the run's input or tools."""

    def __init__(
        self, script: Sequence[Config], *, by_input: Config | None = None, by_tools: Config | None = None
    ) -> None:
        self.info = described({})
        self.calls = 0
        self.asked: list[ModelRequest] = []
        self.blocked: Counter[int] = Counter()
        """How many calls wait at a gate, by their step."""
        self.gates: dict[str, anyio.Event] = {}
        self._script = script
        self._by_input = by_input or {}
        self._by_tools = by_tools or {}
        self._steps: Counter[str] = Counter()

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        assert request.model in (self.info.models or ())
        self.calls += 1
        self.asked.append(request)
        turn = self._followed(request)[self._steps[context.run_id]]
        self._steps[context.run_id] += 1
        said = [one.content for one in request.messages if isinstance(one, UserMessage)]
        assert turn.get("requiresEarlierUserMessage", said[0]) in said
        emitted = turn.get("emitText", ())
        for piece in [emitted] if isinstance(emitted, str) else emitted:
            context.emit_text(piece)
        if "block" in turn:
            await self._wait_at(turn["block"], self._steps[context.run_id])
        if "throws" in turn:
            raise RuntimeError(turn["throws"])
        calls = tuple(_call(call) for call in turn.get("toolCalls", ()))
        return Turn(text=turn.get("text", ""), tool_calls=calls, usage=turn.get("usage"), native=_native(turn))

    async def inspect(self) -> Probe | None:
        return None

    def gate(self, name: str) -> anyio.Event:
        """The gate called *name*, closed until a scenario releases it."""
        return self.gates.setdefault(name, anyio.Event())

    async def _wait_at(self, gate: str, step: int) -> None:
        self.blocked[step] += 1
        try:
            await self.gate(gate).wait()
        finally:
            self.blocked[step] -= 1

    def _followed(self, request: ModelRequest) -> Sequence[Config]:
        """The script of the run that makes *request*."""
        asked = [one.content for one in request.messages if isinstance(one, UserMessage)][-1]
        if asked in self._by_input:
            return [self._by_input[asked]]
        tools = " ".join(tool.name for tool in request.tools) or "none"
        followed: Sequence[Config] = self._by_tools.get(tools, self._script)
        return followed


def described(config: Config) -> ProviderInfo:
    """The provider as *config* has it: its models, what it can, and the account that it is bound to."""
    usage = config.get("usage") or {}
    return ProviderInfo(
        id="mock",
        name="Mock",
        vendor="mock",
        auth_mode="none",
        capabilities={"tools": True, "textStreaming": True, **config.get("capabilities", {})},
        models=tuple(config.get("models", ("demo",))),
        account=usage.get("accounts", {}).get("mock"),
    )


def _call(call: Config) -> ToolCall:
    arguments = call["argumentsRaw"] if "argumentsRaw" in call else json.dumps(call["arguments"], ensure_ascii=False)
    return ToolCall(call["id"], call["name"], Raw(arguments.encode()))


def _native(turn: Config) -> Any:
    """What the adapter leaves with its turn, which may be nothing that can be kept."""
    if "nativeKind" in turn:
        return _NO_JSON[turn["nativeKind"]]
    return Raw(json.dumps(turn["native"]).encode()) if "native" in turn else None
