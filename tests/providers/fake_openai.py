"""OpenAI's Responses API, and xAI's, as their documentation shows them on the wire."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from typing_extensions import override

from providers.kit import SECRET, Answer
from tests.providers.fake_http import Asked
from tests.providers.fake_vendor import Dialect, pieces, usage_of


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

    @override
    def events(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        yield {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
        yield {"type": "response.in_progress", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
        for index, item in enumerate(self._output(answer)):
            place = {"output_index": index, "item_id": item["id"]}
            yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress"}, **place}
            yield from self._growing(item, answer, place)
            yield {"type": "response.output_item.done", "item": item, **place}
        if answer.end == "error":
            error = {"code": "server_error", "message": SECRET}
            yield {"type": "response.failed", "response": {"status": "failed", "error": error, "output": []}}
        elif answer.end not in {"silence", "cut"}:
            ended = "incomplete" if answer.end == "length" else "completed"
            yield {"type": f"response.{ended}", "response": self.whole(answer)}

    def _growing(
        self, item: Mapping[str, Any], answer: Answer, place: Mapping[str, Any]
    ) -> Iterator[Mapping[str, Any]]:
        match item["type"]:
            case "reasoning":
                for piece in pieces(answer.thought):
                    yield {"type": "response.reasoning_summary_text.delta", "delta": piece, **place}
            case "function_call":
                for piece in pieces(item["arguments"]):
                    yield {"type": "response.function_call_arguments.delta", "delta": piece, **place}
            case _:
                part = item["content"][0]
                yield {"type": "response.content_part.added", "part": {"type": part["type"], "text": ""}, **place}
                for piece in answer.text:
                    yield {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place}
                yield {"type": "response.content_part.done", "part": part, **place}

    @override
    def whole(self, answer: Answer) -> Mapping[str, Any]:
        return {
            "id": "resp_1",
            "object": "response",
            "status": "incomplete" if answer.end == "length" else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if answer.end == "length" else None,
            "error": None,
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
        content = [{"type": "output_text", "text": "".join(answer.text), "annotations": []}] if answer.text else []
        if answer.end == "refusal":
            content = [{"type": "refusal", "refusal": "I would rather not."}]
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
                }
            )
        return items


class XaiDialect(ResponsesDialect):
    """The same as xAI speaks it."""

    kind = "xai"
    model = "grok-test"
    strict: ClassVar[bool | None] = None
