"""The Messages API of Anthropic (providers §6.3).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.ports import AssistantMessage, Media, Message, ModelRequest, ToolMessage, Turn, UserMessage
from providers.alternating import alternating
from providers.anthropic_answer import Reader, whole
from providers.vendor_json import base64, given, label, offered, stored

_BLOCKS = msgspec.json.Decoder(list[Raw])


class Messages(Struct, frozen=True, kw_only=True):
    """The codec; *structured* says whether the vendor is given the schema of the output."""

    structured: bool = True

    def path(self, model: str) -> str:  # noqa: ARG002 - the same for every model
        """Where requests go."""
        return "messages"

    def body(self, request: ModelRequest) -> bytes:
        """The JSON of *request*."""
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in request.tools
        ]
        members = {
            "model": request.model,
            "stream": True,
            "messages": alternating(request.messages, _blocks, model="assistant", parts="content"),
            "max_tokens": request.max_output_tokens,
            **given(
                system=request.instructions,
                tools=tools or None,
                output_config=self._format(offered(request.output_schema, structured=self.structured)),
            ),
        }
        return msgspec.json.encode(members)

    def _format(self, schema: Raw | None) -> dict[str, Any] | None:
        if schema is None or not _is_known(schema):
            return None
        return {"format": {"type": "json_schema", "schema": schema}}

    def reader(self) -> Reader:
        """What reads the events of one answer."""
        return Reader()

    def whole(self, data: bytes) -> Turn:
        """The turn of a message object."""
        return whole(data)


def _blocks(message: Message) -> Iterator[Any]:
    match message:
        case UserMessage(content, attachments):
            yield from _text(content)
            for media in attachments:
                yield from _media(media)
        case AssistantMessage(native=Raw() as native):
            yield from (block for block in stored(_BLOCKS, native) if not _is_empty(block))
        case AssistantMessage(content, calls):
            yield from _text(content)
            for call in calls:
                yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        case ToolMessage(call_id, _, content):
            yield {"type": "tool_result", "tool_use_id": call_id, "content": content}


def _text(content: str) -> Iterator[dict[str, Any]]:
    """The block of a text; the vendor takes no empty one."""
    if content:
        yield {"type": "text", "text": content}


class _Text(Struct, frozen=True, tag="text"):
    text: str


_WRITTEN = msgspec.json.Decoder(_Text)


def _is_empty(block: Raw) -> bool:
    """Whether *block* is a text without words: the vendor may write one, but takes none back."""
    try:
        return not _WRITTEN.decode(block).text.strip()
    except msgspec.ValidationError:
        return False


def _media(media: Media) -> Iterator[dict[str, Any]]:
    yield {"type": "text", "text": label(media)}
    kind = "image" if media.media_type.startswith("image/") else "document"
    yield {"type": kind, "source": {"type": "base64", "media_type": media.media_type, "data": base64(media)}}


class _Schema(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the vendor's own mode knows of JSON Schema; a schema with more is asked for in words alone."""

    type: str | None = None
    properties: dict[str, "_Schema"] = {}
    required: Any = None
    additional_properties: bool = True
    items: "_Schema | None" = None
    any_of: tuple["_Schema", ...] = ()
    enum: Any = None
    const: Any = None
    title: Any = None
    description: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether every object in it is closed, as the vendor asks."""
        here = self.type != "object" or not self.additional_properties
        within = (*self.properties.values(), *self.any_of, *([self.items] if self.items else ()))
        return here and all(one.is_closed for one in within)


_SCHEMA = msgspec.json.Decoder(_Schema)


def _is_known(schema: Raw) -> bool:
    """Whether the vendor's own mode takes *schema*."""
    try:
        return _SCHEMA.decode(schema).is_closed
    except (msgspec.DecodeError, RecursionError):
        return False
