"""The Responses API of OpenAI, which xAI speaks too (providers §6.1).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterator, Mapping
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
from providers.codec import DONE, Said
from providers.failures import failed
from providers.vendor_json import (
    Count,
    arguments,
    data_url,
    decoded,
    given,
    is_object_schema,
    label,
    stored,
)

_BEGUN = frozenset(f"response.{part}.{when}" for part in ("output_item", "content_part") for when in ("added", "done"))


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
                text=self._format(request.output_schema),
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
        if schema is None or not self.structured or not is_object_schema(schema):
            return None
        return {"format": {"type": "json_schema", "name": "output", "schema": schema, **given(strict=self.strict)}}

    def reader(self) -> "_Reader":
        """What reads the events of one answer."""
        return _Reader()

    def whole(self, data: bytes) -> Turn:
        """The turn of a response object."""
        return _turn(data)


class _Reader:
    def __init__(self) -> None:
        self._response: Raw | None = None

    def read(self, data: bytes) -> Said:
        if data == DONE:
            return Said(ended=True)
        match decoded(_EVENT, data):
            case _Event("error" | "response.failed"):
                raise failed("PROVIDER_FAILED")
            case _Event("response.completed" | "response.incomplete", response=response):
                self._response = response
                return Said(ended=True)
            case _Event("response.output_text.delta", delta=str(text)):
                return Said(text)
            case _Event("response.output_text.delta"):
                raise failed("INVALID_PROVIDER_RESPONSE")
            case _Event(kind, delta=delta):
                work = kind in _BEGUN or (kind.endswith(".delta") and isinstance(delta, str) and delta != "")
                return Said(progress=work)

    def turn(self) -> Turn:
        if self._response is None:
            raise failed("INCOMPLETE_STREAM")
        return _turn(self._response)


class _Event(Struct, rename={"kind": "type"}):
    kind: str
    delta: Any = None
    response: Raw = Raw()


class _Part(Struct, rename={"kind": "type"}):
    kind: str
    text: str = ""


class _Item(Struct, rename={"kind": "type"}):
    kind: str
    content: list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: Raw = Raw(b"null")


class _InputDetails(Struct):
    cached_tokens: Count = None


class _OutputDetails(Struct):
    reasoning_tokens: Count = None


class _Usage(Struct):
    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    status: str
    output: Raw
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None


_EVENT = msgspec.json.Decoder(_Event)
_RESPONSE = msgspec.json.Decoder(_Response)
_OUTPUT = msgspec.json.Decoder(list[_Item])
_ITEMS = msgspec.json.Decoder(list[Raw])


def _turn(data: bytes | Raw) -> Turn:
    """The turn of a final response object, which has the last word over what was streamed."""
    response = decoded(_RESPONSE, data)
    items = decoded(_OUTPUT, response.output)
    cut = _is_cut(response)
    parts = [part for item in items for part in item.content or ()]
    if any(part.kind == "refusal" for part in parts):
        raise failed("PROVIDER_REFUSAL")
    calls = [item for item in items if item.kind == "function_call"]
    if cut and calls:
        raise failed("TRUNCATED_TOOL_CALL")
    return Turn(
        text="".join(part.text for part in parts if part.kind == "output_text"),
        tool_calls=tuple(ToolCall(call.call_id, call.name, arguments(call.arguments)) for call in calls),
        usage=_usage(response.usage),
        native=response.output.copy(),
        finish_reason="length" if cut else "stop",
    )


def _is_cut(response: _Response) -> bool:
    """Whether the output limit ended the answer; what ended otherwise than by it, or whole, failed."""
    match response:
        case _Response("completed"):
            return False
        case _Response("incomplete", incomplete_details=_Incomplete("max_output_tokens")):
            return True
        case _:
            raise failed("PROVIDER_FAILED")


def _usage(told: _Usage | None) -> Mapping[str, Any] | None:
    if told is None:
        return None
    return given(
        inputTokens=told.input_tokens,
        outputTokens=told.output_tokens,
        cachedInputTokens=told.input_tokens_details.cached_tokens if told.input_tokens_details else None,
        reasoningTokens=told.output_tokens_details.reasoning_tokens if told.output_tokens_details else None,
    )


def _call_item(call: ToolCall) -> dict[str, Any]:
    written = bytes(call.arguments).decode()
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": written}
