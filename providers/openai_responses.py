"""The Responses API of OpenAI, which xAI speaks too (providers §6.1).

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
from providers.failures import failed
from providers.openai_answer import Reader, whole
from providers.vendor_json import data_url, given, label, offered, stored

_ITEMS = msgspec.json.Decoder(list[Raw])


class Responses(Struct, frozen=True, kw_only=True):
    """The codec; what differs between those who speak it are its members."""

    strict: bool | None = None
    """What is said of the strictness of schemas; None says nothing."""
    documents: bool = True
    structured: bool = True
    """Whether the vendor is given the schema of the output, beside the demand in the instructions."""

    def path(self, model: str) -> str:  # noqa: ARG002 - the same for every model
        """Where requests go."""
        return "responses"

    def body(self, request: ModelRequest) -> bytes:
        """The JSON of *request*; nothing is stored at the vendor, so reasoning travels encrypted."""
        members = {
            "model": request.model,
            "input": [item for message in request.messages for item in self._items(message)],
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": request.max_output_tokens,
            **given(
                instructions=request.instructions,
                tools=[self._tool(tool) for tool in request.tools] or None,
                text=self._format(offered(request.output_schema, structured=self.structured)),
            ),
        }
        return msgspec.json.encode(members)

    def _items(self, message: Message) -> Iterator[Any]:
        match message:
            case UserMessage(content, ()):
                yield {"role": "user", "content": content}
            case UserMessage(content, attachments):
                parts = [{"type": "input_text", "text": content}]
                yield {"role": "user", "content": parts + [part for one in attachments for part in self._media(one)]}
            case AssistantMessage(native=Raw() as native):
                yield from stored(_ITEMS, native)
            case AssistantMessage(content, calls):
                if content or not calls:
                    yield {"role": "assistant", "content": content}
                yield from map(_call_item, calls)
            case ToolMessage(call_id, _, content):
                yield {"type": "function_call_output", "call_id": call_id, "output": content}

    def _media(self, media: Media) -> Iterator[dict[str, Any]]:
        yield {"type": "input_text", "text": label(media)}
        if media.media_type.startswith("image/"):
            yield {"type": "input_image", "image_url": data_url(media), "detail": "auto"}
        elif self.documents:
            source = msgspec.json.decode(media.source)["id"]
            yield {"type": "input_file", "filename": f"{source}.pdf", "file_data": data_url(media)}
        else:
            raise failed("UNSUPPORTED_MODALITY")

    def _tool(self, tool: ToolDefinition) -> dict[str, Any]:
        members = {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
        }
        return members | given(strict=self.strict)

    def _format(self, schema: Raw | None) -> dict[str, Any] | None:
        if schema is None:
            return None
        return {"format": {"type": "json_schema", "name": "output", "schema": schema, **given(strict=self.strict)}}

    def reader(self) -> Reader:
        """What reads the events of one answer."""
        return Reader()

    def whole(self, data: bytes) -> Turn:
        """The turn of a response object."""
        return whole(data)


def _call_item(call: ToolCall) -> dict[str, Any]:
    written = bytes(call.arguments).decode()
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": written}
