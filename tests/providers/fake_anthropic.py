"""Anthropic's Messages API as its documentation shows it on the wire."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
from typing_extensions import override

from providers.kit import SECRET, Answer
from tests.providers.fake_http import Asked
from tests.providers.fake_vendor import Dialect, pieces


class AnthropicDialect(Dialect):
    """Speaks `POST messages`."""

    kind = "anthropic"
    model = "claude-test"
    path = "/v1/messages"

    @override
    def check(self, asked: Asked) -> None:
        body = asked.json
        assert asked.path == self.path
        assert asked.headers["x-api-key"] == self.key
        assert asked.headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in asked.headers
        assert (body["model"], body["stream"], body["max_tokens"]) == (self.model, True, 500)
        assert body["system"] == "Be brief."
        roles = [message["role"] for message in body["messages"]]
        assert roles[0] == "user"
        assert all(one != other for one, other in pairwise(roles)), "roles must alternate"
        for message in body["messages"]:
            assert message["content"], "a message needs content"
            for block in message["content"]:
                assert block["type"] != "text" or block["text"], "a text block needs text"
        self._check_calls(body["messages"])
        for tool in body.get("tools", ()):
            assert {*tool} == {"name", "description", "input_schema"}

    def _check_calls(self, messages: list[Any]) -> None:
        """The results of calls stand first in the message right behind the one that asked for them."""
        for asking, telling in pairwise([*messages, {"content": []}]):
            called = [block["id"] for block in asking["content"] if block["type"] == "tool_use"]
            told = [block.get("tool_use_id") for block in telling["content"][: len(called)]]
            assert called == told, "every call needs its result"

    @override
    def events(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        usage = self._usage(answer)
        begun = self._message([], None) | {"usage": {**usage, "output_tokens": 1} if usage else None}
        yield {"type": "message_start", "message": begun}
        yield {"type": "ping"}
        for index, block in enumerate(self._blocks(answer)):
            yield from self._growing(index, block, answer)
        if answer.end == "error":
            yield {"type": "error", "error": {"type": "overloaded_error", "message": SECRET}}
        elif answer.end not in {"silence", "cut"}:
            delta = {"stop_reason": self._reason(answer), "stop_sequence": None}
            yield {"type": "message_delta", "delta": delta, "usage": self._last(usage)}
            yield {"type": "message_stop"}

    def _growing(self, index: int, block: Mapping[str, Any], answer: Answer) -> Iterator[Mapping[str, Any]]:
        empty: dict[str, Any]
        grown: list[dict[str, Any]]
        match block["type"]:
            case "redacted_thinking":
                empty, grown = {**block}, []
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                grown = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
                grown += [{"type": "signature_delta", "signature": piece} for piece in pieces(block["signature"])]
            case "tool_use":
                empty = {**block, "input": {}}
                written = msgspec.json.encode(block["input"]).decode()
                cut = written[:-2] if answer.end == "length" else written
                grown = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(cut))]
            case _:
                empty = {"type": "text", "text": ""}
                grown = [{"type": "text_delta", "text": piece} for piece in answer.text]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in grown:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "ping"}
        if answer.end not in {"silence", "cut"}:
            yield {"type": "content_block_stop", "index": index}

    def _blocks(self, answer: Answer) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if answer.thought or answer.state:
            blocks.append({"type": "thinking", "thinking": answer.thought, "signature": answer.state})
            blocks.append({"type": "redacted_thinking", "data": f"redacted-{answer.state}"})
        if answer.text:
            blocks.append({"type": "text", "text": "".join(answer.text)})
        for call in answer.calls:
            told = msgspec.json.decode(call.arguments)
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": told})
        return blocks

    def _reason(self, answer: Answer) -> str:
        words = {"length": "max_tokens", "refusal": "refusal"}
        return words.get(answer.end, "tool_use" if answer.calls else "end_turn")

    def _usage(self, answer: Answer) -> dict[str, Any] | None:
        if answer.counted is None:
            return None
        read, cached, wrote, _ = answer.counted
        return {
            "input_tokens": read - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": wrote,
            "service_tier": "standard",
        }

    def _last(self, usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The counts at the end, which older models tell of the output alone."""
        return {"output_tokens": usage["output_tokens"]} if usage else None

    def _message(self, blocks: list[Any], reason: str | None) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
        }

    @override
    def whole(self, answer: Answer) -> Mapping[str, Any]:
        return self._message(self._blocks(answer), self._reason(answer)) | {"usage": self._usage(answer)}
