"""What a model is asked, and what its final answer is worth."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from actors import calls, run
from actors.errors import Problem
from actors.events import RunAccepted, SessionMode, TurnCompleted, Visible
from actors.ports import AssistantMessage, ModelRequest, Retry, ToolCall, ToolMessage, Turn, UserMessage
from actors.prompt import Final, final, in_session, model_request
from tests.actors.reviewing import HOST, accepted
from tests.actors.runs import ARTIFACT, RUN_ID, SESSION, Talk, request

NOTES = {
    "type": "text",
    "mediaType": "text/plain",
    "source": {"id": "notes", "revision": "1"},
    "text": "Sources say so.",
}
JSON_FILE = {"name": "out.json", "mediaType": "application/json"}


def asked(turns: tuple[TurnCompleted, ...] = (), **members: Any) -> Any:
    accepted = RunAccepted(1, "ann", "fake", "m", Raw(b"{}"), max_output_tokens=100, max_attempts=2)
    return model_request(request(**members), turns, accepted)


def test_a_plain_request_is_its_input_alone() -> None:
    made = asked()
    assert made.messages == (UserMessage("hello"),)
    assert (made.model, made.instructions, made.max_output_tokens) == ("m", None, 100)


def test_history_comes_first_then_the_input_then_the_turns_with_the_state_their_adapter_left() -> None:
    call = ToolCall("c1", "lookup", Raw(b"{}"))
    turn = TurnCompleted(1, 1, "Let me look.", tool_calls=(call,), native=Raw(b'{"s":1.0}'))
    past = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    made = asked((turn, TurnCompleted(2, 2, "More.")), history=past)
    assert made.messages == (
        UserMessage("a"),
        AssistantMessage("b"),
        UserMessage("hello"),
        AssistantMessage("Let me look.", (call,), Raw(b'{"s":1.0}')),
        AssistantMessage("More."),
    )


def test_a_schema_is_demanded_in_the_instructions_of_every_step() -> None:
    schema = {"type": "object", "required": ["n"]}
    first, second = asked(outputSchema=schema, instructions="Be brief."), asked(outputSchema=schema)
    assert first.instructions.startswith("Be brief.")
    assert '"required":["n"]' in first.instructions
    assert '"required":["n"]' in second.instructions


def test_text_that_was_attached_lies_inside_the_users_message() -> None:
    (message,) = asked(attachments=[NOTES]).messages
    assert "Sources say so." in message.content
    assert message.content != "hello"


def test_attempts_are_the_callers_within_the_hosts() -> None:
    made = asked(retry={"maxAttempts": 5, "baseDelayMs": 1, "maxDelayMs": 2})
    assert made.retry == Retry(2, 1, 2)


def test_an_answer_without_a_schema_is_text_alone() -> None:
    assert final(request(), "anything", ARTIFACT) == Final()


@pytest.mark.parametrize("text", ['{"n": 1} trailing', '{"n":1,"n":2}', '{"n":NaN}', '{"m":1}', "", "[" * 100_000])
def test_an_answer_that_is_not_strict_json_of_the_schema_is_no_answer(text: str) -> None:
    found = final(request(outputSchema={"type": "object", "required": ["n"]}), text, ARTIFACT)
    assert isinstance(found, Problem)
    assert found.code == "INVALID_OUTPUT"


def test_an_artifact_holds_the_answer_and_the_sources_it_was_made_from() -> None:
    found = final(
        request(outputSchema={}, outputArtifact=JSON_FILE, attachments=[NOTES]), '{ "n": 9007199254740993 }', ARTIFACT
    )
    assert isinstance(found, Final)
    assert found.output == Raw(b'{"n":9007199254740993}')
    assert found.artifacts is not UNSET
    assert found.sources is not UNSET
    (made,) = msgspec.json.decode(found.artifacts)
    (source,) = msgspec.json.decode(found.sources)
    assert (made["id"], made["name"], made["mediaType"]) == (ARTIFACT, "out.json", "application/json")
    assert (source["id"], source["bytes"]) == ("notes", len("Sources say so."))
    assert made["sourceIds"] == ["notes"]


# In a session.

BEFORE = (Visible("user", "a"), Visible("assistant", "b"))
TOLD = (UserMessage("a"), AssistantMessage("b"))
LOOKED_UP = ToolCall("c1", "host", Raw(b'{"n":1}'))
NATIVE = Raw(b'{"state":1.0}')


def turn_of(talk: Talk, run_id: str, said: str, **members: Any) -> ModelRequest:
    """What the model is asked first in the next turn of *talk*."""
    option = {"id": SESSION, "revision": talk.open.revision}
    talk.begin(accepted(HOST, approvals=None, session=option, input=said, **members), run_id)
    talk.tell_run(run.EnterStep(1), run_id)
    return told(talk, run_id)


def told(talk: Talk, run_id: str) -> ModelRequest:
    """What the model is asked now in the running turn of *talk*."""
    state, effect = talk.runs[run_id], run.next_effect(talk.runs[run_id])
    assert isinstance(state, run.Live)
    assert isinstance(effect, run.CallModel)
    return in_session(effect.request, state.request, talk.open)


def used_a_tool(talk: Talk) -> ModelRequest:
    """What the model is asked in the second step of a first turn, which completes after it."""
    turn_of(talk, RUN_ID, "look")
    first = Turn(text="Let me look.", tool_calls=(LOOKED_UP,), native=NATIVE)
    talk.tell_run(run.Answer(1, first, streamed=False, artifact_id=ARTIFACT))
    talk.tell_run(calls.BeginTool())
    talk.tell_run(calls.Return("c1", Raw(b'{"found":1.0}')))
    talk.tell_run(run.EnterStep(2))
    second = told(talk, RUN_ID)
    done = Turn(text="It is 1.", native=NATIVE)
    talk.tell_run(run.Answer(2, done, streamed=False, artifact_id=ARTIFACT))
    return second


FIRST_TURN = (
    UserMessage("look"),
    AssistantMessage("Let me look.", (LOOKED_UP,), NATIVE),
    ToolMessage("c1", "host", '{"found":1.0}'),
)


@pytest.mark.parametrize("mode", ["history", "native"])
def test_a_turn_is_told_what_its_session_began_with_and_then_all_of_itself(mode: SessionMode) -> None:
    assert used_a_tool(Talk(mode, history=BEFORE)).messages == TOLD + FIRST_TURN


def test_the_next_turn_of_a_session_of_history_is_told_what_can_be_seen() -> None:
    talk = Talk("history", history=BEFORE)
    used_a_tool(talk)
    messages = turn_of(talk, "next", "more").messages
    assert messages == (*TOLD, UserMessage("look"), AssistantMessage("It is 1."), UserMessage("more"))


def test_the_next_turn_of_a_native_session_is_told_every_message_with_its_adapters_state() -> None:
    talk = Talk("native", history=BEFORE)
    used_a_tool(talk)
    messages = turn_of(talk, "next", "more").messages
    assert messages == (*TOLD, *FIRST_TURN, AssistantMessage("It is 1.", (), NATIVE), UserMessage("more"))
    assert [one.content for one in talk.open.history] == ["a", "b", "look", "It is 1."]


@pytest.mark.parametrize("instructions", [None, "", "Be brief."])
def test_the_instructions_of_a_session_stand_for_those_of_the_run_and_a_schema_is_demanded_all_the_same(
    instructions: str | None,
) -> None:
    plain = turn_of(Talk(instructions=instructions), RUN_ID, "look")
    assert plain.instructions == asked(instructions=instructions).instructions
    schema = {"type": "object", "required": ["n"]}
    demanding = turn_of(Talk(instructions=instructions), RUN_ID, "look", outputSchema=schema)
    assert demanding.instructions is not None
    assert demanding.instructions.startswith(instructions or "")
    assert '"required":["n"]' in demanding.instructions


def test_all_else_that_a_model_is_asked_is_the_runs() -> None:
    made = turn_of(Talk(), RUN_ID, "look")
    assert (made.model, made.max_output_tokens, [tool.name for tool in made.tools]) == ("m", 100, ["host"])
