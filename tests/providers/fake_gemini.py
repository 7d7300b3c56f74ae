"""Google's Gemini API as its documentation shows it on the wire."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
from typing_extensions import override

from providers.kit import SECRET, Answer
from tests.providers.fake_http import Asked
from tests.providers.fake_vendor import Dialect, usage_of


class GeminiDialect(Dialect):
    """Speaks `streamGenerateContent`."""

    kind = "gemini"
    model = "gemini-test"
    path = "/v1/models/gemini-test:streamGenerateContent"
    event_names = False

    @override
    def check(self, asked: Asked) -> None:
        body = asked.json
        assert asked.path == self.path
        assert asked.query == {"alt": ["sse"]}
        assert asked.headers["x-goog-api-key"] == self.key
        assert "authorization" not in asked.headers
        assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
        assert body["generationConfig"]["maxOutputTokens"] == 500
        roles = [content["role"] for content in body["contents"]]
        assert roles[0] == "user"
        assert all(one != other for one, other in pairwise(roles)), "roles must alternate"
        assert all(content["parts"] for content in body["contents"]), "a content needs parts"
        for tool in body.get("tools", ()):
            for function in tool["functionDeclarations"]:
                assert {*function} == {"name", "description", "parametersJsonSchema"}

    @override
    def events(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        if answer.end == "refusal":
            yield {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
            return
        for part in self._parts(answer):
            yield self._chunk([part])
        if answer.end == "error":
            yield {"error": {"code": 500, "message": SECRET, "status": "INTERNAL"}}
        elif answer.end not in {"silence", "cut"}:
            yield self._chunk([{"text": ""}], "MAX_TOKENS" if answer.end == "length" else "STOP") | self._usage(answer)

    def _chunk(self, parts: list[dict[str, Any]], reason: str | None = None) -> dict[str, Any]:
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
        return {
            "candidates": [{**candidate, **({"finishReason": reason} if reason else {})}],
            "modelVersion": self.model,
        }

    def _parts(self, answer: Answer) -> Iterator[dict[str, Any]]:
        if answer.thought:
            yield {"text": answer.thought, "thought": True}
        for piece in answer.text:
            yield {"text": piece}
        for number, call in enumerate(answer.calls):
            told = {"id": call.id, "name": call.name, "args": msgspec.json.decode(call.arguments)}
            yield {"functionCall": told, **({"thoughtSignature": answer.state} if answer.state and not number else {})}

    def _usage(self, answer: Answer) -> dict[str, Any]:
        told = usage_of(
            answer,
            lambda read, cached, wrote, thought: {
                "promptTokenCount": read,
                "cachedContentTokenCount": cached,
                "candidatesTokenCount": wrote - thought,
                "thoughtsTokenCount": thought,
                "totalTokenCount": read + wrote,
            },
        )
        return {"usageMetadata": told} if told else {}

    @override
    def whole(self, answer: Answer) -> Mapping[str, Any]:
        if answer.end == "refusal":
            return next(self.events(answer))
        reason = "MAX_TOKENS" if answer.end == "length" else "STOP"
        return self._chunk(list(self._parts(answer)), reason) | self._usage(answer)

    @override
    def listed(self, models: tuple[str, ...]) -> Mapping[str, Any]:
        return {"models": [{"name": f"models/{model}", "displayName": "Test"} for model in models]}
