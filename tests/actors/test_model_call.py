"""A model call on its way to the feed: what gathers, what is bounded, what ends it."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw

from actors import model_call, run
from actors.errors import Failed
from actors.model_call import Answered, Call, FeedItems
from actors.plan import Hold
from actors.ports import ModelContext, ModelRequest, ToolCall, Turn
from projections import wire_feed
from tests.actors.support import DEADLINE_S, FakeModel

pytestmark = pytest.mark.anyio

REQUEST = ModelRequest(model="m", messages=())
RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"


class Feed:
    """Takes appends, each as long as the test says."""

    def __init__(self) -> None:
        self.appends: list[list[bytes]] = []
        self.at_s: list[float] = []
        self.free = anyio.Event()
        self.free.set()

    async def pour(self, _: Hold, items: Sequence[bytes]) -> None:
        self.appends.append(list(items))
        self.at_s.append(anyio.current_time())
        await self.free.wait()

    @property
    def text(self) -> str:
        return text_of([item for append in self.appends for item in append])


def text_of(items: Sequence[bytes]) -> str:
    told = [msgspec.json.decode(wire_feed.numbered(1, item)) for item in items]
    return "".join(event["text"] for event in told if event["type"] == "text.delta")


async def made(model: FakeModel, feed: Feed, hold: Hold, idle_s: float = 0) -> model_call.Outcome:
    call = Call(
        pour=feed.pour,
        hold=hold,
        items=FeedItems(wire_feed.deltas, wire_feed.progress),
        now_ms=lambda: 1,
        idle_s=idle_s,
        progress_s=anyio.current_time(),
    )
    with anyio.fail_after(DEADLINE_S):
        return await call.made(model, REQUEST, "ann")


def model(act: Any, **turn: Any) -> FakeModel:
    async def answer(_: ModelRequest, context: ModelContext) -> Turn:
        await act(context)
        return Turn(**turn)

    return FakeModel(answer)


async def test_text_gathers_while_an_append_is_in_flight() -> None:
    feed, hold = Feed(), Hold(RUN_ID, 1, 0)

    async def act(context: ModelContext) -> None:
        feed.free = anyio.Event()
        context.emit_text("a")
        while not feed.appends:
            await anyio.lowlevel.checkpoint()
        for piece in "bcd":
            context.emit_text(piece)
            await anyio.lowlevel.checkpoint()
        assert len(feed.appends) == 1
        feed.free.set()

    assert await made(model(act, text="abcd"), feed, hold) == Answered(Turn(text="abcd"), streamed=True)
    assert feed.text + text_of(hold.pending) == "abcd"


async def test_the_first_text_goes_at_once_and_twenty_milliseconds_lie_between_appends() -> None:
    feed, hold = Feed(), Hold(RUN_ID, 1, 0)

    async def act(context: ModelContext) -> None:
        while len(feed.appends) < 4:
            context.emit_text("x")
            await anyio.lowlevel.checkpoint()

    begun = anyio.current_time()
    turn = model(act)
    await made(turn, feed, hold)
    assert feed.at_s[0] - begun < model_call.DELTA_GAP_S
    gaps = [later - earlier for earlier, later in zip(feed.at_s, feed.at_s[1:], strict=False)]
    assert min(gaps) >= model_call.DELTA_GAP_S * 0.99


async def test_what_is_left_at_the_end_goes_with_the_fact() -> None:
    feed, hold = Feed(), Hold(RUN_ID, 1, 0)

    async def act(context: ModelContext) -> None:
        context.emit_text("all of it")

    await made(model(act, text="all of it"), feed, hold)
    assert feed.text + text_of(hold.pending) == "all of it"


async def test_text_that_differs_from_the_answer_is_a_malformed_answer() -> None:
    async def act(context: ModelContext) -> None:
        context.emit_text("one")

    outcome = await made(model(act, text="two"), Feed(), Hold(RUN_ID, 1, 0))
    assert isinstance(outcome, run.Fail)
    assert outcome.problem.code == "INVALID_PROVIDER_RESPONSE"


@pytest.mark.parametrize(
    "turn",
    [
        {"text": "\ud800"},
        {"native": b"{"},
        {"tool_calls": (("c", "n", b"nope"),)},
        {"tool_calls": (("\udfff", "n", b"{}"),)},
    ],
)
async def test_an_answer_that_no_log_can_hold_is_malformed(turn: dict[str, Any]) -> None:
    calls = tuple(ToolCall(id_, name, Raw(arguments)) for id_, name, arguments in turn.pop("tool_calls", ()))
    native = Raw(turn.pop("native")) if "native" in turn else None
    outcome = await made(
        model(lambda _: anyio.lowlevel.checkpoint(), tool_calls=calls, native=native, **turn),
        Feed(),
        Hold(RUN_ID, 1, 0),
    )
    assert isinstance(outcome, run.Fail)
    assert outcome.problem.code == "INVALID_PROVIDER_RESPONSE"


async def test_a_lone_surrogate_in_a_piece_of_text_ends_the_call() -> None:
    async def act(context: ModelContext) -> None:
        context.emit_text("\ud800")
        await anyio.sleep_forever()

    outcome = await made(model(act), Feed(), Hold(RUN_ID, 1, 0))
    assert isinstance(outcome, run.Fail)


async def test_a_model_that_outruns_the_store_by_two_million_bytes_is_cancelled() -> None:
    feed = Feed()
    feed.free = anyio.Event()

    async def act(context: ModelContext) -> None:
        context.emit_text("first")
        while not feed.appends:
            await anyio.lowlevel.checkpoint()
        for _ in range(201):
            context.emit_text("x" * 10_000)
        feed.free.set()
        await anyio.sleep_forever()

    outcome = await made(model(act), feed, Hold(RUN_ID, 1, 0))
    assert isinstance(outcome, run.Cancel)
    assert (outcome.problem.code, outcome.cause) == ("OUTPUT_BUFFER_LIMIT", "buffer")


async def test_silence_longer_than_the_idle_limit_ends_the_call() -> None:
    outcome = await made(model(lambda _: anyio.sleep_forever()), Feed(), Hold(RUN_ID, 1, 0), idle_s=0.03)
    assert isinstance(outcome, run.Cancel)
    assert (outcome.problem.code, outcome.problem.retryable, outcome.cause) == ("IDLE_TIMEOUT", True, "idle")


async def test_text_and_progress_put_the_idle_limit_off_and_empty_text_does_not() -> None:
    async def act(context: ModelContext) -> None:
        for report in (partial(context.emit_text, "x"), context.report_progress) * 3:
            await anyio.sleep(0.06)
            report()
        while True:
            context.emit_text("")
            await anyio.sleep(0.01)

    begun = anyio.current_time()
    outcome = await made(model(act), Feed(), Hold(RUN_ID, 1, 0), idle_s=0.15)
    assert isinstance(outcome, run.Cancel)
    assert anyio.current_time() - begun >= 0.06 * 6 + 0.15


async def test_progress_is_shown_at_most_once_a_second() -> None:
    feed, hold = Feed(), Hold(RUN_ID, 1, 0)

    async def act(context: ModelContext) -> None:
        for _ in range(50):
            context.report_progress()
            await anyio.lowlevel.checkpoint()

    await made(model(act), feed, hold)
    shown = [item for append in feed.appends for item in append] + hold.pending
    assert [wire_feed.event_type(item) for item in shown] == [b"run.progress"]


async def test_a_typed_failure_is_passed_on_and_an_untyped_one_tells_nothing() -> None:
    async def typed(_: ModelContext) -> None:
        raise Failed("RATE_LIMITED", "Slow down.", retryable=True)

    async def untyped(_: ModelContext) -> None:
        raise ValueError("sk-secret")

    outcome = await made(model(typed), Feed(), Hold(RUN_ID, 1, 0))
    assert isinstance(outcome, run.Fail)
    assert (outcome.problem.code, outcome.problem.retryable) == ("RATE_LIMITED", True)
    outcome = await made(model(untyped), Feed(), Hold(RUN_ID, 1, 0))
    assert isinstance(outcome, run.Fail)
    assert outcome.problem.code == "INTERNAL_ERROR"
    assert "secret" not in repr(outcome)


async def test_a_model_that_ignores_its_cancellation_is_not_waited_for() -> None:
    release = anyio.Event()
    late: list[str] = []

    async def act(context: ModelContext) -> None:
        with suppress(BaseException):  # the point of this model
            await anyio.sleep_forever()
        await release.wait()
        context.emit_text("late")
        late.append("reported")

    feed = Feed()
    outcome = await made(model(act), feed, Hold(RUN_ID, 1, 0), idle_s=0.02)
    assert isinstance(outcome, run.Cancel)
    release.set()
    with anyio.fail_after(DEADLINE_S):
        while not late:
            await anyio.lowlevel.checkpoint()
    assert not feed.text
