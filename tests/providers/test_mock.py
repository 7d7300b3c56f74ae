"""The mock behaves as providers §7 says, and the cross-client suite's messages have their effects."""

from typing import Any

import anyio
import pytest
from msgspec import Raw

from actors.errors import Failed
from actors.ports import ModelContext, ModelRequest, Retry, ToolCall, Turn
from providers.mock import CONNECTED, Mock, conformance
from tests.providers.asking import ANSWERED, RESULT, Heard, request

pytestmark = pytest.mark.anyio


async def said(heard: Heard, asked: ModelRequest) -> Turn:
    return await Mock(conformance(heard.sleep)).complete(asked, heard.context())


async def test_the_mock_answers_alike_whatever_it_is_asked() -> None:
    heard = Heard()
    mock = Mock()
    turns = [await mock.complete(request(text), heard.context()) for text in ("hello", "conformance-cost")]
    assert [turn.text for turn in turns] == ["AgenticDriver is connected."] * 2
    assert [turn.usage for turn in turns] == [{"inputTokens": 0, "outputTokens": 0}] * 2
    assert (heard.said, mock.calls) == ([], 2)


async def test_the_mock_shows_itself_as_the_protocol_says() -> None:
    info = Mock().info
    assert (info.id, info.name, info.vendor, info.auth_mode, info.models) == (
        "mock",
        "Offline demo",
        "mock",
        "none",
        ("demo",),
    )
    assert info.capabilities == {
        "tools": True,
        "textStreaming": False,
        "historyContinuation": True,
        "nativeContinuation": True,
    }
    assert (info.usage_source, info.usage_stat_id) == ("synthetic", None)
    assert await Mock().inspect() is None


async def test_the_mock_refuses_retries() -> None:
    mock = Mock()
    with pytest.raises(Failed) as caught:
        await mock.complete(request(retry=Retry(2)), Heard().context())
    assert (caught.value.problem.code, mock.calls) == ("UNSUPPORTED_CAPABILITY", 1)


async def test_a_test_may_replace_the_turn() -> None:
    async def turn(asked: ModelRequest, context: ModelContext) -> Turn:
        context.emit_text(asked.model)
        return Turn(text=asked.model)

    heard = Heard()
    assert (await Mock(turn).complete(request(), heard.context())).text == "m"
    assert heard.said == ["m"]


@pytest.mark.parametrize(
    ("text", "slept", "progress", "usage"),
    [
        ("hello", [], 0, CONNECTED.usage),
        ("conformance-quiet", [0.08], 0, CONNECTED.usage),
        ("conformance-progress", [0.02] * 16, 16, CONNECTED.usage),
        ("conformance-cost", [], 0, {"apiEquivalentCostUsd": 0.25}),
    ],
)
async def test_the_suites_messages_wait_work_and_cost(
    text: str, slept: list[float], progress: int, usage: dict[str, Any]
) -> None:
    heard = Heard()
    turn = await said(heard, request(text))
    assert (turn.text, turn.usage, turn.tool_calls) == (CONNECTED.text, usage, ())
    assert (heard.slept, heard.progress) == (slept, progress)


async def test_the_suites_stall_ends_only_by_cancellation() -> None:
    with anyio.move_on_after(0) as scope:
        await said(Heard(), request("conformance-stall"))
    assert scope.cancelled_caught


async def test_the_suites_uncertain_failure_is_not_retryable() -> None:
    with pytest.raises(Failed) as caught:
        await said(Heard(), request("conformance-uncertain"))
    problem = caught.value.problem
    assert (problem.code, problem.outcome, problem.retryable) == ("IDLE_TIMEOUT", "uncertain", False)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("conformance-approval", ToolCall("call-1", "approved_echo", Raw(b'{"text":"conformance"}'))),
        ("conformance-application-tool", ToolCall("call-1", "application_lookup", Raw(b'{"query":"solar"}'))),
    ],
)
async def test_the_suites_tools_are_called_once_and_then_answered(text: str, call: ToolCall) -> None:
    first = await said(Heard(), request(text))
    second = await said(Heard(), request(text, ANSWERED, RESULT))
    assert first.tool_calls == (call,)
    assert (second.tool_calls, second.text) == ((), CONNECTED.text)


async def test_the_suites_session_leaves_a_state_for_the_next_turn() -> None:
    first = await said(Heard(), request("session-first"))
    following = await said(Heard(), request("session-next", before=(ANSWERED,)))
    assert (first.native, following.native) == (Raw(b'{"turn":1}'), Raw(b'{"turn":2}'))
