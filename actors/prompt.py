"""What a model is asked, and what its final answer is worth: both functions of the request and the turns so far."""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from actors import session
from actors.context import draft, supplied, system_text, user_message
from actors.errors import Problem, Refused
from actors.events import RunAccepted, Stored, TurnCompleted
from actors.jsontext import NotJson, compacted, strict_json
from actors.ports import AssistantMessage, Message, ModelRequest, Retry, ToolDefinition, ToolMessage, UserMessage
from actors.request import HostLimits, RunRequest, retry_policy
from actors.schema import compiled
from actors.transcript import Said

_INVALID_OUTPUT = Problem("INVALID_OUTPUT", "The final answer is not JSON that suits the outputSchema.")


class Final(Struct, frozen=True):
    """What a final answer adds to its text."""

    output: Raw | UnsetType = UNSET
    sources: Raw | UnsetType = UNSET
    artifacts: Raw | UnsetType = UNSET


def model_request(
    request: RunRequest, said: Iterable[Said], accepted: RunAccepted, allowance: int | None = None
) -> ModelRequest:
    """The next model step of a run in which *said* was said; *allowance* is what is left of its budgets, in tokens."""
    inputs = supplied(request.attachments or ())
    messages: list[Message] = [
        UserMessage(past.content) if past.role == "user" else AssistantMessage(past.content)
        for past in request.history or ()
    ]
    messages.append(user_message(request.input, inputs))
    messages.extend(_message(one) for one in said)
    return ModelRequest(
        model=request.model,
        messages=tuple(messages),
        instructions=system_text(request.instructions, request.output_schema, context=bool(inputs)),
        tools=tuple(ToolDefinition(fact.name, fact.description, fact.input_schema) for fact in accepted.tools),
        max_output_tokens=accepted.max_output_tokens
        if allowance is None
        else min(accepted.max_output_tokens, allowance),
        retry=_retry(request, accepted.max_attempts),
        output_schema=request.output_schema,
    )


def in_session(asked: ModelRequest, request: RunRequest, state: session.Open) -> ModelRequest:
    """What a model is *asked* in a turn of a session: what was said there comes first, its instructions in place of the run's."""
    before = state.created.history if state.created.mode == "native" else state.history
    told: tuple[Message, ...] = (
        *(UserMessage(one.content) if one.role == "user" else AssistantMessage(one.content) for one in before),
        *(_told(one) for one in state.stored),
    )
    instructions = system_text(state.created.instructions, request.output_schema, context=False)
    return msgspec.structs.replace(asked, messages=told + asked.messages, instructions=instructions)


def _told(one: Stored) -> Message:
    match one.role:
        case "user":
            return UserMessage(one.content)
        case "assistant":
            return AssistantMessage(one.content, one.tool_calls, one.native or None)
        case "tool":
            return ToolMessage(one.call_id, one.name, one.content)


def _message(said: Said) -> Message:
    if isinstance(said, TurnCompleted):
        return AssistantMessage(said.text, said.tool_calls, said.native or None)
    return ToolMessage(said.call_id, said.name, bytes(said.output).decode())


def final(request: RunRequest, text: str, artifact_id: str) -> Final | Problem:
    """What the result shows beside the final *text*, or why the answer is no answer (runs §6, context §5)."""
    inputs = supplied(request.attachments or ())
    output: Raw | UnsetType = UNSET
    if request.output_schema is not None:
        found = _output(request.output_schema, text)
        if found is None:
            return _INVALID_OUTPUT
        output = found
    artifacts: Raw | UnsetType = UNSET
    if request.output_artifact is not None:
        try:
            made = draft(artifact_id, request.output_artifact, text, output or None, inputs)
        except Refused as refused:
            return refused.problem
        artifacts = Raw(msgspec.json.encode([made]))
    sources = Raw(msgspec.json.encode([one.manifest for one in inputs])) if inputs else UNSET
    return Final(output, sources, artifacts)


def _output(schema: Raw, text: str) -> Raw | None:
    """The JSON of *text* without insignificant space, every token as the model wrote it; None if it does not suit."""
    try:
        value = strict_json(text)
    except NotJson:
        return None
    return Raw(compacted(text)) if compiled(bytes(schema)).accepts(value) else None


def _retry(request: RunRequest, max_attempts: int) -> Retry:
    return retry_policy(request, HostLimits(max_attempts=max_attempts))
