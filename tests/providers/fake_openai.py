"""OpenAI's Responses API, and xAI's, as their documentation shows them on the wire."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from typing_extensions import override

from providers.kit import SECRET, Answer
from tests.providers.fake_http import Asked
from tests.providers.fake_vendor import Dialect, pieces, usage_of

REFUSAL = "I would rather not."


class ResponsesDialect(Dialect):
    """Speaks `POST responses`."""

    kind = "openai"
    model = "gpt-test"
    path = "/v1/responses"
    strict: ClassVar[bool | None] = False

    @override
    def check(self, asked: Asked) -> None:
        body = asked.json
        assert asked.path == self.path
        assert asked.headers["authorization"] == f"Bearer {self.key}"
        assert (body["model"], body["stream"], body["store"]) == (self.model, True, False)
        assert body["include"] == ["reasoning.encrypted_content"]
        assert body["max_output_tokens"] == 500
        assert body["instructions"] == "Be brief."
        for tool in body.get("tools", ()):
            assert tool["type"] == "function"
            assert {*tool} == {"type", "name", "description", "parameters"} | (
                {"strict"} if self.strict is False else set()
            )
        for item in body["input"]:
            assert "role" in item or item["type"] in {"function_call", "function_call_output", "reasoning", "message"}
        called = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
        told = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
        assert called == told, "every call needs its output"

    @override
    def events(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        for number, event in enumerate(self._events(answer)):
            yield {**event, "sequence_number": number}

    def _events(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        yield {"type": "response.created", "response": self._response("in_progress")}
        yield {"type": "response.in_progress", "response": self._response("in_progress")}
        for index, item in enumerate(self._output(answer)):
            at = {"output_index": index}
            begun = {**item, **self._empty(item), "status": "in_progress"}
            yield {"type": "response.output_item.added", "item": begun, **at}
            yield {"type": "keepalive"}
            yield from self._growing(item, answer, {"item_id": item["id"], **at})
            yield {"type": "response.output_item.done", "item": item, **at}
        if answer.end == "error":
            error = {"code": "server_error", "message": SECRET}
            yield {"type": "error", **error, "param": None}
            yield {"type": "response.failed", "response": {**self._response("failed"), "error": error}}
        elif answer.end not in {"silence", "cut"}:
            ended = "incomplete" if answer.end == "length" else "completed"
            yield {"type": f"response.{ended}", "response": self.whole(answer)}

    def _empty(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """What an item lacks before it grows."""
        empty: dict[str, Mapping[str, Any]] = {"reasoning": {"summary": []}, "function_call": {"arguments": ""}}
        return empty.get(item["type"], {"content": []})

    def _growing(
        self, item: Mapping[str, Any], answer: Answer, place: Mapping[str, Any]
    ) -> Iterator[Mapping[str, Any]]:
        match item["type"]:
            case "reasoning":
                at = {**place, "summary_index": 0}
                part = {"type": "summary_text", "text": ""}
                yield {"type": "response.reasoning_summary_part.added", "part": part, **at}
                for piece in pieces(answer.thought):
                    yield {"type": "response.reasoning_summary_text.delta", "delta": piece, "obfuscation": "xY", **at}
                yield {"type": "response.reasoning_summary_text.done", "text": answer.thought, **at}
                yield {"type": "response.reasoning_summary_part.done", "part": item["summary"][0], **at}
            case "function_call":
                for piece in self._written(item["arguments"]):
                    yield {"type": "response.function_call_arguments.delta", "delta": piece, **place}
                yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"], **place}
            case _:
                yield from self._speaking(item["content"][0], answer, {**place, "content_index": 0})

    def _written(self, arguments: str) -> Iterator[str]:
        yield from pieces(arguments)

    def _speaking(self, part: Mapping[str, Any], answer: Answer, at: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        refused = part["type"] == "refusal"
        kind, member = ("refusal", "refusal") if refused else ("output_text", "text")
        yield {"type": "response.content_part.added", "part": {**part, member: ""}, **at}
        for piece in pieces(REFUSAL) if refused else answer.text:
            yield {"type": f"response.{kind}.delta", "delta": piece, **at}
        yield {"type": f"response.{kind}.done", member: part[member], **at}
        yield {"type": "response.content_part.done", "part": part, **at}

    def _response(self, status: str) -> dict[str, Any]:
        """A response object without an answer."""
        return {
            "id": "resp_1",
            "object": "response",
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            "store": False,
            "usage": None,
        }

    @override
    def whole(self, answer: Answer) -> Mapping[str, Any]:
        return self._response("incomplete" if answer.end == "length" else "completed") | {
            "incomplete_details": {"reason": "max_output_tokens"} if answer.end == "length" else None,
            "output": self._output(answer),
            "usage": usage_of(
                answer,
                lambda read, cached, wrote, thought: {
                    "input_tokens": read,
                    "input_tokens_details": {"cached_tokens": cached},
                    "output_tokens": wrote,
                    "output_tokens_details": {"reasoning_tokens": thought},
                    "total_tokens": read + wrote,
                },
            ),
        }

    def _output(self, answer: Answer) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if answer.thought or answer.state:
            summary = [{"type": "summary_text", "text": answer.thought}]
            items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": answer.state})
        text = {"type": "output_text", "text": "".join(answer.text), "annotations": [], "logprobs": []}
        content = [text] if answer.text else []
        if answer.end == "refusal":
            content = [{"type": "refusal", "refusal": REFUSAL}]
        if content:
            items.append(
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
            )
        for call in answer.calls:
            written = bytes(call.arguments).decode()
            written = written[:-2] if answer.end == "length" else written
            items.append(
                {
                    "type": "function_call",
                    "id": f"fc_{call.id}",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": written,
                    "status": "incomplete" if answer.end == "length" else "completed",
                }
            )
        return items


class XaiDialect(ResponsesDialect):
    """The same as xAI speaks it: the arguments of a call come in one piece."""

    kind = "xai"
    model = "grok-test"
    strict: ClassVar[bool | None] = None

    @override
    def _written(self, arguments: str) -> Iterator[str]:
        yield arguments
