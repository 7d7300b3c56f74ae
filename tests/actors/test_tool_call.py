"""A call of a host tool: what its output is worth, what it reports, and that nobody waits for one that will not end."""

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from msgspec import Raw

from actors import tool_call
from actors.activity import FeedItems
from actors.plan import Hold
from actors.ports import ToolCall, ToolContext, ToolDefinition
from actors.tool_call import Call, Failed, Idle, Output
from projections import wire_feed
from runstream.threads import in_thread
from tests.actors.support import DEADLINE_S

pytestmark = pytest.mark.anyio

RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
Acting = Callable[[Mapping[str, Any], ToolContext], Awaitable[object]]


class FakeTool:
    """Does as the test says."""

    definition = ToolDefinition("look", "Looks.", Raw(b"{}"))
    requires_approval = False
    idempotent = False

    def __init__(self, act: Acting, output_bytes_max: int = 1_000_000) -> None:
        self._act = act
        self.output_bytes_max = output_bytes_max

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self._act(arguments, context)


class Feed:
    def __init__(self) -> None:
        self.hold = Hold(RUN_ID, 1, 0)
        self.items: list[bytes] = []

    async def pour(self, _: Hold, items: Sequence[bytes]) -> None:
        self.items.extend(items)

    @property
    def shown(self) -> list[Any]:
        return [json.loads(wire_feed.numbered(1, item)) for item in [*self.items, *self.hold.pending]]


async def made(
    tool: FakeTool, feed: Feed | None = None, idle_s: float = 0, arguments: bytes = b"{}"
) -> tool_call.Outcome:
    feed = feed or Feed()
    call = Call(
        pour=feed.pour,
        hold=feed.hold,
        items=FeedItems(wire_feed.deltas, wire_feed.progress),
        now_ms=lambda: 1,
        idle_s=idle_s,
        progress_s=anyio.current_time(),
    )
    with anyio.fail_after(DEADLINE_S):
        return await call.made(tool, ToolCall("c1", "look", Raw(arguments)), "ann")


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():
            await anyio.lowlevel.checkpoint()


def giving(output: object, output_bytes_max: int = 1_000_000) -> FakeTool:
    async def act(_: Mapping[str, Any], _context: ToolContext) -> object:
        return output

    return FakeTool(act, output_bytes_max)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (None, b"null"),
        (False, b"false"),
        ({"b": 1, "a": ["é", "\u2028"]}, '{"b":1,"a":["é","\u2028"]}'.encode()),
        ([10**400, 2**64 + 1, 1.0, -0.0, 1e300], b"[1%s,18446744073709551617,1.0,-0.0,1e+300]" % (b"0" * 400)),
    ],
)
async def test_an_output_is_its_compact_json_with_every_number_as_it_was(output: object, text: bytes) -> None:
    outcome = await made(giving(output))
    assert isinstance(outcome, Output)
    assert bytes(outcome.value) == text


def circular() -> object:
    row: list[object] = []
    row.append(row)
    return row


def nested(levels: int) -> object:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    "output",
    [float("nan"), [float("inf")], "\ud800", {"\udfff": 1}, b"bytes", {1: 2}, {1, 2}, object(), circular(), nested(65)],
    ids=repr,
)
async def test_an_output_that_is_not_json_is_a_failure(output: object) -> None:
    assert await made(giving(output)) == Failed("TOOL_FAILED")


async def test_an_output_may_have_as_many_bytes_as_its_tool_allows_and_not_one_more() -> None:
    assert await made(giving("é" * 4, 10)) == Output(Raw('"éééé"'.encode()))
    assert await made(giving("é" * 4 + "x", 10)) == Failed("TOOL_OUTPUT_LIMIT")
    assert await made(giving("x" * 999_998)) == Output(Raw(b'"%s"' % (b"x" * 999_998)))
    assert await made(giving("x" * 999_999)) == Failed("TOOL_OUTPUT_LIMIT")


async def test_the_tool_sees_the_arguments_to_the_digit_and_knows_whose_call_it_is() -> None:
    seen: list[Any] = []

    async def act(arguments: Mapping[str, Any], context: ToolContext) -> object:
        seen.append((arguments, context.run_id, context.call_id, context.subject, context.cancelled()))
        return None

    await made(FakeTool(act), arguments=b'{"n":123456789012345678901234567890}')
    assert seen == [({"n": 123456789012345678901234567890}, RUN_ID, "c1", "ann", False)]


@pytest.mark.parametrize(
    "error", [ValueError("sk-secret"), SystemExit("sk-secret"), BaseExceptionGroup("sk-secret", [KeyboardInterrupt()])]
)
async def test_what_a_tool_raises_is_a_failure_that_tells_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(_: Mapping[str, Any], _context: ToolContext) -> object:
        raise error

    with caplog.at_level(logging.DEBUG, "actors"):
        assert await made(FakeTool(act)) == Failed("TOOL_FAILED")
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


async def test_a_tool_that_cancels_itself_does_not_hang_the_run() -> None:
    async def act(_: Mapping[str, Any], _context: ToolContext) -> object:
        raise asyncio.CancelledError

    assert await made(FakeTool(act)) == Failed("TOOL_FAILED")


async def test_silence_longer_than_the_idle_limit_ends_the_call_and_the_tool_can_see_it() -> None:
    contexts: list[ToolContext] = []

    async def act(_: Mapping[str, Any], context: ToolContext) -> None:
        contexts.append(context)
        await anyio.sleep_forever()

    assert await made(FakeTool(act), idle_s=0.03) == Idle()
    assert contexts[0].cancelled()


async def test_progress_puts_the_idle_limit_off() -> None:
    async def act(_: Mapping[str, Any], context: ToolContext) -> None:
        for _beat in range(6):
            await anyio.sleep(0.06)
            context.report_progress()
        await anyio.sleep_forever()

    begun = anyio.current_time()
    assert await made(FakeTool(act), idle_s=0.2) == Idle()
    assert anyio.current_time() - begun >= 0.06 * 6 + 0.2


async def test_progress_is_shown_as_the_tools_and_at_most_once_a_second() -> None:
    feed = Feed()

    async def act(_: Mapping[str, Any], context: ToolContext) -> object:
        for _beat in range(50):
            context.report_progress()
            await anyio.lowlevel.checkpoint()
        return None

    await made(FakeTool(act), feed)
    assert [(event["type"], event["phase"]) for event in feed.shown] == [("run.progress", "tool")]


async def test_progress_reported_just_before_the_end_goes_with_the_outcome() -> None:
    async def at_once(_: Mapping[str, Any], context: ToolContext) -> object:
        context.report_progress()
        return None

    async def from_a_thread(_: Mapping[str, Any], context: ToolContext) -> object:
        return await in_thread(context.report_progress, "look")

    for act in (at_once, from_a_thread):
        feed = Feed()
        assert await made(FakeTool(act), feed) == Output(Raw(b"null"))
        assert len(feed.shown) == 1


async def test_a_thread_may_report_more_than_the_loop_can_hear_and_after_its_end() -> None:
    feed, go_on, ended = Feed(), threading.Event(), threading.Event()

    def work(context: ToolContext) -> None:
        for _ in range(100_000):
            context.report_progress()
        go_on.wait(DEADLINE_S)
        context.report_progress()
        ended.set()

    async def act(_: Mapping[str, Any], context: ToolContext) -> object:
        return await in_thread(lambda: work(context), "look")

    assert await made(FakeTool(act), feed, idle_s=0.3) == Idle()
    go_on.set()
    await until(ended.is_set)
    assert len(feed.shown) == 1


def test_a_report_after_the_loop_is_gone_is_dropped() -> None:
    contexts: list[ToolContext] = []

    async def act(_: Mapping[str, Any], context: ToolContext) -> None:
        contexts.append(context)

    asyncio.run(made(FakeTool(act)))
    late = threading.Thread(target=contexts[0].report_progress)
    late.start()
    late.join(DEADLINE_S)
    assert not late.is_alive()


async def test_a_tool_that_ignores_its_cancellation_is_left_at_once() -> None:
    contexts: list[ToolContext] = []
    release, late = anyio.Event(), anyio.Event()
    feed = Feed()

    async def act(_: Mapping[str, Any], context: ToolContext) -> None:
        contexts.append(context)
        with suppress(BaseException):  # the point of this tool
            await anyio.sleep_forever()
        await release.wait()
        context.report_progress()
        late.set()
        raise ValueError

    async with anyio.create_task_group() as group:

        async def executor() -> None:
            await made(FakeTool(act), feed)

        group.start_soon(executor)
        await until(lambda: contexts)
        assert not contexts[0].cancelled()
        group.cancel_scope.cancel()
    assert contexts[0].cancelled()
    release.set()
    await late.wait()
    assert not feed.shown
