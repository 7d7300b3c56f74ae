"""Google's Gemini API (providers §6.4).

Nothing here waits, reads a clock or rolls a die; the ids of calls that came without one are made outside.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from actors.ports import AssistantMessage, Media, Message, ModelRequest, ToolMessage, Turn, UserMessage
from providers.alternating import alternating
from providers.gemini_answer import Reader
from providers.vendor_json import base64, given, label, offered, stored

_PARTS = msgspec.json.Decoder(list[Raw])


class GenerateContent(Struct, frozen=True, kw_only=True):
    """The codec; *new_id* names a call to which the vendor gave no id."""

    new_id: Callable[[], str]
    structured: bool = True

    def path(self, model: str) -> str:
        """Where requests for *model* go."""
        return f"models/{quote(model.removeprefix('models/'), safe='')}:streamGenerateContent?alt=sse"

    def body(self, request: ModelRequest) -> bytes:
        """The JSON of *request*."""
        system = None if request.instructions is None else {"parts": [{"text": request.instructions}]}
        functions = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.input_schema}
            for tool in request.tools
        ]
        members = {
            "contents": alternating(request.messages, _parts, model="model", parts="parts"),
            "generationConfig": {"maxOutputTokens": request.max_output_tokens, **self._format(request)},
            **given(
                systemInstruction=system,
                tools=[{"functionDeclarations": functions}] if functions else None,
            ),
        }
        return msgspec.json.encode(members)

    def _format(self, request: ModelRequest) -> dict[str, Any]:
        """The vendor's own mode for JSON, which many of its models refuse beside functions."""
        schema = offered(request.output_schema, structured=self.structured and not request.tools)
        if schema is None:
            return {}
        return {"responseMimeType": "application/json", "responseJsonSchema": schema}

    def reader(self) -> Reader:
        """What reads the chunks of one answer."""
        return Reader(self.new_id)

    def whole(self, data: bytes) -> Turn:
        """The turn of an answer in one piece, which looks like a chunk."""
        reader = self.reader()
        reader.read(data)
        return reader.turn()


def _parts(message: Message) -> Iterator[Any]:
    match message:
        case UserMessage(content, attachments):
            yield {"text": content}
            for media in attachments:
                yield from _media(media)
        case AssistantMessage(native=Raw() as native):
            yield from stored(_PARTS, native)
        case AssistantMessage(content, calls):
            if content or not calls:
                yield {"text": content}
            for call in calls:
                yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        case ToolMessage(call_id, name, content):
            response = {"result": Raw(content.encode())}
            yield {"functionResponse": {"id": call_id, "name": name, "response": response}}


def _media(media: Media) -> Iterator[dict[str, Any]]:
    yield {"text": label(media)}
    yield {"inlineData": {"mimeType": media.media_type, "data": base64(media)}}
