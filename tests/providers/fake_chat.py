"""Chat completions as OpenAI made them and local servers speak them."""

from collections.abc import Iterator, Mapping
from typing import Any

from typing_extensions import override

from providers.kit import SECRET, Answer
from tests.providers.fake_http import Asked
from tests.providers.fake_vendor import DONE, Dialect, pieces, usage_of


class ChatDialect(Dialect):
    """Speaks `POST chat/completions`."""

    kind = "openai-compatible"
    model = "org/local-test:7b"
    path = "/v1/chat/completions"

    @override
    def check(self, asked: Asked) -> None:
        body = asked.json
        assert asked.path == self.path
        assert asked.headers["authorization"] == f"Bearer {self.key}"
        assert (body["model"], body["stream"], body["max_tokens"]) == (self.model, True, 500)
        assert body["stream_options"] == {"include_usage": True}
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        for message in body["messages"]:
            assert message["role"] in {"system", "user", "assistant", "tool"}
            assert message["role"] != "tool" or message["tool_call_id"]
        for tool in body.get("tools", ()):
            assert {*tool["function"]} == {"name", "description", "parameters"}

    @override
    def events(self, answer: Answer) -> Iterator[Any]:
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in pieces(answer.thought):
            yield self._chunk({"reasoning_content": piece})
        for piece in answer.text:
            yield self._chunk({"content": piece})
        for index, call in enumerate(answer.calls):
            begun = {
                "index": index,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": ""},
            }
            yield self._chunk({"tool_calls": [begun]})
        # Pieces of several calls come mixed, as some servers send them.
        for index, call in enumerate(answer.calls):
            for piece in pieces(bytes(call.arguments).decode()):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        if answer.end == "refusal":
            yield self._chunk({"refusal": "I would rather not."})
        if answer.end == "error":
            yield {"error": {"message": SECRET, "type": "server_error", "code": 500}}
        elif answer.end not in {"silence", "cut"}:
            yield self._chunk({}, self._reason(answer))
            if answer.counted:
                yield {"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": self._usage(answer)}
            yield DONE

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> Mapping[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {"id": "c1", "object": "chat.completion.chunk", "model": self.model, "choices": [choice], "usage": None}

    def _reason(self, answer: Answer) -> str:
        return "length" if answer.end == "length" else "tool_calls" if answer.calls else "stop"

    def _usage(self, answer: Answer) -> Any:
        return usage_of(
            answer,
            lambda read, cached, wrote, thought: {
                "prompt_tokens": read,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens": wrote,
                "completion_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": read + wrote,
            },
        )

    @override
    def whole(self, answer: Answer) -> Mapping[str, Any]:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": bytes(call.arguments).decode()},
            }
            for call in answer.calls
        ]
        message = {
            "role": "assistant",
            "content": "".join(answer.text),
            "refusal": "I would rather not." if answer.end == "refusal" else None,
            **({"tool_calls": calls} if calls else {}),
        }
        choice = {"index": 0, "message": message, "finish_reason": self._reason(answer)}
        return {"id": "c1", "object": "chat.completion", "choices": [choice], "usage": self._usage(answer)}


class XaiChatDialect(ChatDialect):
    """The same as xAI speaks it."""

    kind = "xai-chat"
    model = "grok-test"
