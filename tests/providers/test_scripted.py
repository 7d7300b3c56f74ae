"""A scripted model does what its script says, and the request alone decides which turn is due."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.errors import Failed
from actors.ports import AssistantMessage, Media, Message, ModelRequest, Retry, ToolCall, ToolMessage, Turn, UserMessage
from providers import ready, speech
from providers.failures import FAILURES
from providers.script import Script, ScriptTurn, scripts
from providers.scripted import Scripted, described
from tests.providers.asking import ANSWERED, RESULT, Heard, request

pytestmark = pytest.mark.anyio

READY = ready.models()

messages = st.lists(
    st.one_of(
        st.builds(UserMessage, st.text(), st.just(())),
        st.builds(AssistantMessage, st.text(), st.just(())),
        st.builds(ToolMessage, st.just("c"), st.just("f"), st.text()),
    ),
    max_size=12,
)


def scripted(heard: Heard, *turns: dict[str, Any]) -> Scripted:
    models = scripts({"m": {"turns": turns}}) if turns else READY
    return Scripted(described(models), models, sleep=heard.sleep)


async def answered(turn: dict[str, Any], asked: ModelRequest | None = None) -> tuple[Turn, Heard]:
    heard = Heard()
    return await scripted(heard, turn).complete(asked or request(), heard.context()), heard


async def failure(model: Scripted, heard: Heard, asked: ModelRequest) -> Failed:
    with pytest.raises(Failed) as caught:
        await model.complete(asked, heard.context())
    return caught.value


async def test_increments_arrive_one_by_one_after_the_stated_delays() -> None:
    turn, heard = await answered({"stream": ["Hel", "lo"], "delay_ms": 5, "usage": {"inputTokens": 4}})
    assert (heard.said, turn.text, turn.usage) == (["Hel", "lo"], "Hello", {"inputTokens": 4})
    assert heard.slept == [0.005, 0.005]


async def test_an_unstreamed_text_is_only_returned() -> None:
    turn, heard = await answered({"text": "whole", "finish_reason": "length"})
    assert (turn.text, turn.finish_reason, heard.said) == ("whole", "length", [])
    assert turn.usage is None


@pytest.mark.parametrize(("value", "text"), [({"ok": True}, '{"ok":true}'), (None, "null"), ([1, 2.5], "[1,2.5]")])
async def test_a_json_answer_is_compact(value: Any, text: str) -> None:
    turn, _ = await answered({"json": value})
    assert turn.text == text


async def test_an_echo_repeats_the_persons_last_message_word_by_word() -> None:
    turn, heard = await answered({"echo": True}, request("one  two\nthree", before=(UserMessage("zero"), ANSWERED)))
    assert heard.said == ["one  ", "two\n", "three"]
    assert turn.text == "one  two\nthree"


async def test_an_echo_comes_in_tokens_if_asked() -> None:
    _, heard = await answered({"echo": True, "tokens": True}, request("streaming words"))
    assert heard.said == ["stre", "amin", "g", " word", "s"]


async def test_an_echo_replaces_what_utf8_cannot_carry() -> None:
    turn, _ = await answered({"echo": True}, request("a \ud800 b \U0001f600"))
    assert turn.text == "a \ufffd b \U0001f600"


async def test_a_reply_mentions_the_request() -> None:
    reply = {"reply": "$words words, $lines lines, “$opening”, $result, $other, $input", "usage": "words"}
    turn, heard = await answered(reply, request("a b\nc", ANSWERED, RESULT))
    assert turn.text == '3 words, 2 lines, “a b c”, {"found":3}, $other, a b\nc'
    assert "".join(heard.said) == turn.text
    assert turn.usage == {"inputTokens": 6, "outputTokens": 12}


async def test_each_answer_since_the_persons_message_moves_to_the_next_turn_and_the_last_repeats() -> None:
    heard = Heard()
    model = scripted(heard, {"text": "first"}, {"text": "second"})
    history = (UserMessage("before"), ANSWERED, ANSWERED)
    texts = [
        (await model.complete(request("now", *after, before=history), heard.context())).text
        for after in ((), (ANSWERED, RESULT), (ANSWERED, RESULT, ANSWERED, RESULT))
    ]
    assert texts == ["first", "second", "second"]


async def test_tools_are_asked_for_by_name_or_as_offered_with_fresh_ids() -> None:
    calls = {"tool_calls": [{"id": "x", "name": "f", "arguments": {"n": 1}}, {"arguments": {}}], "native": {"s": 1}}
    first, _ = await answered(calls, request(tools=("weather", "other")))
    second, _ = await answered(calls, request("hi", ANSWERED, RESULT))
    assert first.tool_calls == (ToolCall("x", "f", Raw(b'{"n":1}')), ToolCall("call-1-2", "weather", Raw(b"{}")))
    assert second.tool_calls[1] == ToolCall("call-2-2", "lookup", Raw(b"{}"))
    assert first.native == Raw(b'{"s":1}')


async def test_a_failure_comes_after_the_stated_increments_with_a_fixed_text() -> None:
    heard = Heard()
    fail = {"code": "RATE_LIMITED", "retryable": True, "after": 3}
    failed = await failure(scripted(heard, {"stream": list("abcde"), "fail": fail}), heard, request())
    assert heard.said == ["a", "b", "c"]
    assert (failed.problem.code, failed.problem.retryable) == ("RATE_LIMITED", True)
    assert failed.problem.message == FAILURES["RATE_LIMITED"].message


async def test_a_failure_without_a_text_still_streams_before_it() -> None:
    heard = Heard()
    failed = await failure(
        scripted(heard, {"fail": {"code": "OTHER", "after": 2, "uncertain": True}}), heard, request()
    )
    assert heard.said == ["partial ", "partial "]
    assert (failed.problem.outcome, failed.problem.retryable) == ("uncertain", False)


async def test_an_exception_without_a_type_passes_as_it_is() -> None:
    heard = Heard()
    with pytest.raises(RuntimeError, match="secret"):
        await scripted(heard, {"raise": "secret"}).complete(request(), heard.context())


async def test_progress_is_reported_at_its_pace_before_the_answer() -> None:
    turn, heard = await answered({"progress": 16, "every_ms": 20, "text": "done", "wait_ms": 100})
    assert (heard.progress, heard.slept, turn.text) == (16, [0.1] + [0.02] * 16, "done")


async def test_rate_limits_are_waited_out_within_the_policy() -> None:
    limit = {"rate_limit": {"times": 2, "retry_after_ms": 10}, "text": "served"}
    turn, heard = await answered(limit, request(retry=Retry(3, 5)))
    assert (turn.text, heard.slept) == ("served", [0.01, 0.01])


@pytest.mark.parametrize(("policy", "slept"), [(Retry(), []), (Retry(2, 5), [0.01]), (Retry(5, 0, 9), [])])
async def test_a_rate_limit_beyond_the_policy_is_reported(policy: Retry, slept: list[float]) -> None:
    heard = Heard()
    model = scripted(heard, {"rate_limit": {"times": 2, "retry_after_ms": 10}, "text": "served"})
    failed = await failure(model, heard, request(retry=policy))
    assert (failed.problem.code, failed.problem.retryable, heard.slept) == ("RATE_LIMITED", True, slept)


async def test_a_model_without_a_script_is_a_vendors_error() -> None:
    heard = Heard()
    assert (await failure(scripted(heard, {}), heard, request(model="other"))).problem.code == "PROVIDER_ERROR"


async def test_a_hang_ends_when_it_is_cancelled_and_not_before() -> None:
    heard = Heard()
    model = scripted(heard, {"stream": ["a"], "hang": True})
    with anyio.CancelScope() as scope:
        heard.cancel_on_text = scope
        await model.complete(request(), heard.context())
    assert scope.cancelled_caught


async def test_a_deaf_model_answers_although_it_was_cancelled() -> None:
    heard = Heard()
    model = scripted(heard, {"stream": ["a"], "hang": True, "ignore_cancel": True})
    with anyio.CancelScope() as scope:
        scope.cancel()
        turn = await model.complete(request(), heard.context())
        assert (turn.text, heard.slept) == ("a", [60.0])


async def test_a_burst_lets_other_tasks_run() -> None:
    heard = Heard()
    turns_of_others: list[int] = []

    async def other() -> None:
        while len(heard.said) < 2_000:
            turns_of_others.append(len(heard.said))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await scripted(heard).complete(request(model="burst"), heard.context())
    gaps = [after - before for before, after in pairwise(turns_of_others)]
    assert len(turns_of_others) > 20
    assert max(gaps) <= 64


@pytest.mark.parametrize("name", sorted(name for name in READY if not name.startswith("hang")))
async def test_every_ready_model_answers_or_fails_without_telling_a_secret(name: str) -> None:
    heard = Heard()
    asked = request("tell me", model=name, tools=("lookup",), retry=Retry(5))
    kept = deepcopy(asked)
    if name == "fail-untyped":
        with pytest.raises(RuntimeError):
            await scripted(heard).complete(asked, heard.context())
    elif name.startswith("fail-"):
        failed = await failure(scripted(heard), heard, asked)
        assert name.removesuffix("-500") == "fail-" + failed.problem.code.lower().replace("_", "-")
        assert failed.problem.message == FAILURES[failed.problem.code].message
    else:
        turn = await scripted(heard).complete(asked, heard.context())
        assert "".join(heard.said) in ("", turn.text)
    assert asked == kept


async def test_the_probe_lists_the_scripts() -> None:
    probe = await scripted(Heard(), {}).inspect()
    assert probe is not None
    assert (probe.code, probe.models, probe.complete) == ("CATALOG_AVAILABLE", ("m",), True)


@given(st.text(), st.booleans())
def test_pieces_joined_are_the_text_again(text: str, tokens: bool) -> None:  # noqa: FBT001
    found = speech.pieces(text, tokens)
    assert "".join(found) == text
    assert "" not in found


@given(messages, st.integers(1, 4))
def test_the_turn_follows_from_the_messages_alone(said: list[Message], count: int) -> None:
    script = Script(tuple(ScriptTurn(text=str(index)) for index in range(count)))
    since = next((i for i in range(len(said), 0, -1) if isinstance(said[i - 1], UserMessage)), 0)
    answers = sum(isinstance(message, AssistantMessage) for message in said[since:])
    assert speech.turn_for(script, said).text == str(min(answers, count - 1))


@given(messages.filter(bool), st.sampled_from(sorted(ready.MODELS)))
def test_whatever_is_asked_the_answer_is_text_that_utf8_carries(said: list[Message], name: str) -> None:
    asked = ModelRequest(model=name, messages=tuple(said))
    turn = speech.turn_for(READY[name], said)
    answer = speech.answer(turn, asked, "".join(speech.increments(turn, asked)))
    assert msgspec.json.decode(msgspec.json.encode(answer.text)) == answer.text


async def test_attachments_do_not_disturb_an_echo() -> None:
    asked = ModelRequest(model="m", messages=(UserMessage("see", (Media("image/png", b"\x89", Raw(b"{}")),)),))
    turn, _ = await answered({"echo": True}, asked)
    assert turn.text == "see"
