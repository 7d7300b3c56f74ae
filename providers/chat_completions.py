"""Chat completions as OpenAI made them and many servers speak them, local ones too (providers §6.2).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.ports import (
    AssistantMessage,
    Media,
    Message,
    ModelRequest,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    Turn,
    UserMessage,
)
from providers.chat_answer import Reader, whole
from providers.failures import failed
from providers.vendor_json import data_url, given, label, offered


class ChatCompletions(Struct, frozen=True, kw_only=True):
    """The codec; *structured* says whether the server is given the schema of the output."""

    structured: bool = False

    def path(self, model: str) -> str:  # noqa: ARG002 - the same for every model
        """Where requests go."""
        return "chat/completions"

    def body(self, request: ModelRequest) -> bytes:
        """The JSON of *request*."""
        system = () if request.instructions is None else ({"role": "system", "content": request.instructions},)
        members = {
            "model": request.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [*system, *map(_message, request.messages)],
            "max_tokens": request.max_output_tokens,
            **given(
                tools=[_tool(tool) for tool in request.tools] or None,
                response_format=self._format(offered(request.output_schema, structured=self.structured)),
            ),
        }
        return msgspec.json.encode(members)

    def _format(self, schema: Raw | None) -> dict[str, Any] | None:
        if schema is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}

    def reader(self) -> Reader:
        """What reads the chunks of one answer."""
        return Reader()

    def whole(self, data: bytes) -> Turn:
        """The turn of a completion object."""
        return whole(data)


def _message(message: Message) -> Any:
    match message:
        case UserMessage(content, ()):
            return {"role": "user", "content": content}
        case UserMessage(content, attachments):
            parts = [{"type": "text", "text": content}]
            return {"role": "user", "content": parts + [part for one in attachments for part in _media(one)]}
        case AssistantMessage(native=Raw() as native):
            return native
        case AssistantMessage(content, ()):
            return {"role": "assistant", "content": content}
        case AssistantMessage(content, calls):
            return {"role": "assistant", "content": content or None, "tool_calls": [_written(call) for call in calls]}
        case ToolMessage(call_id, _, content):
            return {"role": "tool", "tool_call_id": call_id, "content": content}


def _media(media: Media) -> Iterator[dict[str, Any]]:
    if not media.media_type.startswith("image/"):
        raise failed("UNSUPPORTED_MODALITY")
    yield {"type": "text", "text": label(media)}
    yield {"type": "image_url", "image_url": {"url": data_url(media)}}


def _written(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": bytes(call.arguments).decode()}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}
