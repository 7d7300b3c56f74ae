"""Chat completions as OpenAI made them and local servers speak them."""

from collections.abc import Iterator, Mapping
from typing import Any

from typing_extensions import override

from actors.ports import ToolCall
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
        assert {message["role"] for message in body["messages"]} <= {"system", "user", "assistant", "tool"}
        self._check_calls(body["messages"])
        for tool in body.get("tools", ()):
            assert {*tool["function"]} == {"name", "description", "parameters"}

    def _check_calls(self, messages: list[Any]) -> None:
        """The results of calls stand right behind the message that asked for them."""
        open_calls: list[str] = []
        for message in messages:
            assert message["role"] == "tool" or not open_calls, "every call needs its result"
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            open_calls += [call["id"] for call in message.get("tool_calls", ())]
        assert not open_calls, "every call needs its result"

    @override
    def events(self, answer: Answer) -> Iterator[Any]:
        yield self._chunk({"role": "assistant", "content": None if answer.calls else "", "refusal": None})
        for piece in pieces(answer.thought):
            yield self._chunk({"reasoning_content": piece})
        for piece in answer.text:
            yield self._chunk({"content": piece})
        for delta in self._calling(answer):
            yield self._chunk({"tool_calls": [delta]})
        if answer.end == "refusal":
            yield self._chunk({"refusal": "I would rather not."})
        if answer.end == "error":
            yield {"error": {"message": SECRET, "type": "server_error", "code": 500}}
        elif answer.end not in {"silence", "cut"}:
            yield self._chunk({}, self._reason(answer))
            if answer.counted:
                yield self._around([]) | {"usage": self._usage(answer)}
            yield DONE

    def _calling(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        """Pieces of the calls; those of several calls come mixed, as some servers send them."""
        for index, call in enumerate(answer.calls):
            function = {"name": call.name, "arguments": ""}
            yield {"index": index, "id": call.id, "type": "function", "function": function}
        for index, call in enumerate(answer.calls):
            for piece in pieces(self._arguments(call, answer)):
                yield {"index": index, "function": {"arguments": piece}}

    def _arguments(self, call: ToolCall, answer: Answer) -> str:
        written = bytes(call.arguments).decode()
        return written[:-2] if answer.end == "length" else written

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> Mapping[str, Any]:
        return self._around([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}])

    def _around(self, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_767_225_600,
            "model": self.model,
            "service_tier": "default",
            "system_fingerprint": "fp_1",
            "choices": choices,
            "usage": None,
        }

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
                "function": {"name": call.name, "arguments": self._arguments(call, answer)},
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
    """The same as xAI speaks it: each call comes whole, and reasoning is counted beside the rest of the output."""

    kind = "xai-chat"
    model = "grok-test"

    @override
    def _calling(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        for index, call in enumerate(answer.calls):
            function = {"name": call.name, "arguments": self._arguments(call, answer)}
            yield {"index": index, "id": call.id, "type": "function", "function": function}

    @override
    def _usage(self, answer: Answer) -> Any:
        return usage_of(
            answer,
            lambda read, cached, wrote, thought: {
                "prompt_tokens": read,
                "completion_tokens": wrote - thought,
                "total_tokens": read + wrote,
                "prompt_tokens_details": {"text_tokens": read, "image_tokens": 0, "cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
                "num_sources_used": 0,
            },
        )
