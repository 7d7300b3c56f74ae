"""A provider whose models follow scripts: deterministic, without a network, able to fail in every way a vendor can."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
import anyio.lowlevel

from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, Retry, Turn
from providers import retry, speech
from providers.failures import failed
from providers.script import RateLimit, Script, ScriptTurn

_BURST = 64
"""Increments without a delay before other tasks get their turn."""
_IGNORED_HANG_S = 60.0


def described(scripts: Mapping[str, Script], instance: str = "scripted") -> ProviderInfo:
    """How an *instance* that follows *scripts* shows itself."""
    return ProviderInfo(
        id=instance,
        name="Scripted models",
        vendor="scripted",
        auth_mode="none",
        models=tuple(scripts),
        capabilities={
            "tools": True,
            "textStreaming": True,
            "safeRetries": True,
            "historyContinuation": True,
            "nativeContinuation": True,
        },
        usage_source="synthetic",
    )


class Scripted:
    """Answers each model by its script; which turn is due follows from the request alone."""

    def __init__(
        self,
        info: ProviderInfo,
        scripts: Mapping[str, Script],
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.info = info
        self._scripts = scripts
        self._sleep = sleep

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        """Follow the script of the request's model.

        Raises:
            Failed: the script says so, or there is none.
        """
        if request.model not in self._scripts:
            raise failed("PROVIDER_ERROR")
        turn = speech.turn_for(self._scripts[request.model], request.messages)
        spoken = speech.increments(turn, request)
        with anyio.CancelScope(shield=turn.ignore_cancel):
            await self._admit(turn.rate_limit, request.retry)
            await self._prepare(turn, context)
            await self._speak(spoken, turn.delay_ms, context)
            await self._end(turn)
        return speech.answer(turn, request, "".join(spoken))

    async def inspect(self) -> Probe | None:
        """Tell which models have a script."""
        return Probe("CATALOG_AVAILABLE", tuple(self._scripts), complete=True)

    async def _admit(self, limit: RateLimit | None, policy: Retry) -> None:
        if limit is None:
            return
        for attempt in range(1, limit.times + 1):
            wait_ms = retry.wait_ms(attempt, limit.retry_after_ms, policy)
            if wait_ms is None:
                raise failed("RATE_LIMITED")
            await self._sleep(wait_ms / 1_000)

    async def _prepare(self, turn: ScriptTurn, context: ModelContext) -> None:
        await self._pause(turn.wait_ms)
        for _ in range(turn.progress):
            await self._pause(turn.every_ms)
            context.report_progress()

    async def _speak(self, spoken: Sequence[str], delay_ms: int, context: ModelContext) -> None:
        for number, piece in enumerate(spoken, 1):
            await self._pause(delay_ms)
            context.emit_text(piece)
            if number % _BURST == 0:
                await anyio.lowlevel.checkpoint()

    async def _end(self, turn: ScriptTurn) -> None:
        if turn.hang:
            await (self._sleep(_IGNORED_HANG_S) if turn.ignore_cancel else anyio.sleep_forever())
        if turn.fail is not None:
            raise failed(turn.fail.code, retryable=turn.fail.retryable, uncertain=turn.fail.uncertain)
        if turn.raises is not None:
            raise RuntimeError(turn.raises)

    async def _pause(self, delay_ms: int) -> None:
        if delay_ms:
            await self._sleep(delay_ms / 1_000)
