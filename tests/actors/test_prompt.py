"""What a model is asked, and what its final answer is worth."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from actors.errors import Problem
from actors.events import RunAccepted, TurnCompleted
from actors.ports import AssistantMessage, Retry, ToolCall, UserMessage
from actors.prompt import Final, final, model_request
from tests.actors.runs import ARTIFACT, request

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
