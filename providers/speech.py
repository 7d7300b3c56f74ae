"""What the turns of a script say to a request.

Nothing here waits, reads a clock or rolls a die: a replay on another node says the same.
"""

import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from actors.ports import AssistantMessage, Message, ModelRequest, ToolCall, ToolMessage, Turn, UserMessage
from providers.script import Script, ScriptTurn

_WORD = re.compile(r"\S+\s*|\s+")
_TOKEN = re.compile(r"\s?\S{1,4}|\s")
_OPENING_WORDS = 8
_OPENING_CHARACTERS = 80


def turn_for(script: Script, messages: Sequence[Message]) -> ScriptTurn:
    """The turn that answers *messages*: one for each answer that the run's user message had before."""
    answered = 0
    for message in messages:
        if isinstance(message, UserMessage):
            answered = 0
        elif isinstance(message, AssistantMessage):
            answered += 1
    return script.turns[min(answered, len(script.turns) - 1)]


def increments(turn: ScriptTurn, request: ModelRequest) -> Sequence[str]:
    """What *turn* streams, piece by piece, up to where it fails."""
    spoken = _spoken(turn, request)
    return spoken if turn.fail is None else spoken[: turn.fail.after]


def _spoken(turn: ScriptTurn, request: ModelRequest) -> Sequence[str]:
    if turn.stream is not None:
        return turn.stream
    if turn.repeat is not None:
        return (turn.repeat.text,) * turn.repeat.times
    if turn.reply is not None:
        return pieces(Template(turn.reply).safe_substitute(facts(request)), turn.tokens)
    if turn.echo:
        return pieces(_last_input(request.messages), turn.tokens)
    if turn.fail is not None and not turn.texts:
        return ("partial ",) * turn.fail.after
    return ()


def pieces(text: str, tokens: bool) -> Sequence[str]:  # noqa: FBT001 - mirrors the script's member
    """*text* cut into words or into shorter tokens; joined they are *text* again."""
    return (_TOKEN if tokens else _WORD).findall(text)


def facts(request: ModelRequest) -> dict[str, str]:
    """What a reply may mention of *request*."""
    said = _last_input(request.messages)
    words = said.split()
    opening = " ".join(words[:_OPENING_WORDS])[:_OPENING_CHARACTERS]
    return {
        "input": said,
        "opening": opening,
        "words": str(len(words)),
        "lines": str(len(said.splitlines())),
        "result": next((_sound(m.content) for m in reversed(request.messages) if isinstance(m, ToolMessage)), ""),
    }


def answer(turn: ScriptTurn, request: ModelRequest, streamed: str) -> Turn:
    """What *turn* returns after it *streamed* its increments."""
    text = streamed or _whole(turn)
    return Turn(
        text=text,
        tool_calls=_calls(turn, request),
        usage=_usage(turn, request, text),
        native=None if turn.native is UNSET else _raw(turn.native),
        finish_reason=turn.finish_reason,
    )


def _whole(turn: ScriptTurn) -> str:
    return msgspec.json.encode(turn.json).decode() if turn.json is not UNSET else turn.text or ""


def _calls(turn: ScriptTurn, request: ModelRequest) -> tuple[ToolCall, ...]:
    offered = request.tools[0].name if request.tools else "lookup"
    step = 1 + sum(isinstance(message, AssistantMessage) for message in request.messages)
    return tuple(
        ToolCall(
            f"call-{step}-{index}" if call.id is None else call.id,
            offered if call.name is None else call.name,
            _raw(call.arguments),
        )
        for index, call in enumerate(turn.tool_calls, 1)
    )


def _usage(turn: ScriptTurn, request: ModelRequest, text: str) -> Mapping[str, Any] | None:
    if turn.usage != "words":
        return turn.usage
    read = sum(len(message.content.split()) for message in request.messages)
    return {"inputTokens": read, "outputTokens": len(text.split())}


def _last_input(messages: Sequence[Message]) -> str:
    return next((_sound(m.content) for m in reversed(messages) if isinstance(m, UserMessage)), "")


def _sound(text: str) -> str:
    """*text* with U+FFFD for what UTF-8 cannot carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))
