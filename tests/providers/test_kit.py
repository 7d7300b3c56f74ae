"""The kit sees what is wrong: each of its cases fails an adapter that breaks what the case is about."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from typing_extensions import override

from actors.errors import Failed
from actors.ports import Model, ModelContext, ModelRequest, Probe, ProviderInfo, Retry, Turn
from providers import kit
from providers.kit import SECRET, Answer, conformance
from tests.providers.fake_openai import ResponsesDialect
from tests.providers.fake_vendor import FakeStage, Playing

pytestmark = pytest.mark.anyio


class Broken:
    """An adapter that does all but one thing right."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner

    @property
    def info(self) -> ProviderInfo:
        return self.described(self.inner.info)

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        try:
            return self.changed(await self.inner.complete(self.asked(request), self.told(context)))
        except Failed as failed:
            return self.excused(failed)

    async def inspect(self) -> Probe | None:
        return await self.inner.inspect()

    # What is broken in one of them.

    def described(self, info: ProviderInfo) -> ProviderInfo:
        return info

    def asked(self, request: ModelRequest) -> ModelRequest:
        return request

    def told(self, context: ModelContext) -> ModelContext:
        return context

    def changed(self, turn: Turn) -> Turn:
        return turn

    def excused(self, failed: Failed) -> Turn:
        raise failed


def breaking(name: str, how: Callable[..., Any]) -> type[Broken]:
    return type("Breaking", (Broken,), {name: staticmethod(how)})


def silent(context: ModelContext) -> ModelContext:
    return replace(context, emit_text=lambda _: None)


def idle(context: ModelContext) -> ModelContext:
    return replace(context, report_progress=lambda: None)


def loud(failed: Failed) -> Turn:
    raise Failed(failed.problem.code, SECRET)


def hopeful(failed: Failed) -> Turn:
    raise Failed(failed.problem.code, retryable=True)


async def lost(_: Broken) -> Probe | None:
    return Probe("NO_SUCH_CODE")


class Clinging(Broken):
    """Goes on with a call that nobody waits for."""

    @override
    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        self.task = asyncio.ensure_future(self.inner.complete(request, context))
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self.task)


BREAKING: Mapping[str, type[Broken]] = {
    "describes_itself": breaking("described", lambda info: replace(info, name="")),
    "probes_soundly": type("Lost", (Broken,), {"inspect": lost}),
    "streams_text": breaking("told", silent),
    "counts_tokens": breaking("changed", lambda turn: replace(turn, usage=None)),
    "leaves_usage_unknown": breaking("changed", lambda turn: replace(turn, usage={"inputTokens": 0})),
    "answers_with_nothing": breaking("changed", lambda turn: replace(turn, text="…")),
    "keeps_thoughts_apart": breaking("told", idle),
    "calls_tools": breaking("changed", lambda turn: replace(turn, native=None)),
    "calls_tools_at_once": breaking("changed", lambda turn: replace(turn, tool_calls=turn.tool_calls[::-1])),
    "tells_the_output_limit": breaking("changed", lambda turn: replace(turn, finish_reason="stop")),
    "refuses_a_cut_call": breaking("excused", lambda _: Turn()),
    "tells_a_refusal": breaking("excused", lambda _: Turn()),
    "hides_a_failure": breaking("excused", loud),
    "tells_a_broken_stream": breaking("excused", lambda _: Turn()),
    "tells_every_status": breaking("excused", hopeful),
    "tries_again_when_told_to_wait": breaking("asked", lambda request: replace(request, retry=Retry())),
    "stops_at_once": Clinging,
}


class BrokenStage(FakeStage):
    def __init__(self, kind: type[Broken]) -> None:
        super().__init__(ResponsesDialect())
        self.kind = kind

    @override
    @asynccontextmanager
    async def playing(self, *answers: Answer) -> AsyncIterator[Playing]:
        async with super().playing(*answers) as played:
            played.model = self.kind(played.model)  # type: ignore[assignment]
            yield played


def test_every_case_has_an_adapter_that_fails_it() -> None:
    assert BREAKING.keys() == kit.CASES.keys()


@pytest.mark.parametrize("case", kit.CASES)
async def test_a_case_fails_the_adapter_that_breaks_it(case: str) -> None:
    with pytest.raises(kit.NotConforming, match=f"^{case}: "):
        await kit.run(case, kit.CASES[case], BrokenStage(BREAKING[case]))


async def test_all_cases_are_put_to_an_adapter_but_those_left_out() -> None:
    await kit.conform(FakeStage(ResponsesDialect()), without=kit.CASES.keys() - {"streams_text"})
    with pytest.raises(kit.NotConforming, match=r"^counts_tokens: "):
        await kit.conform(BrokenStage(BREAKING["counts_tokens"]))


async def test_a_case_that_does_not_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "DEADLINE_S", 0.05)

    async def never(_: kit.Stage) -> None:
        await anyio.sleep_forever()

    with pytest.raises(kit.NotConforming, match="did not end"):
        await kit.run("never", never, FakeStage(ResponsesDialect()))


async def test_what_breaks_in_the_stage_itself_is_no_verdict() -> None:
    async def broken(_: kit.Stage) -> None:
        async with anyio.create_task_group():
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await kit.run("broken", broken, FakeStage(ResponsesDialect()))
