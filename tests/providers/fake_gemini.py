"""Google's Gemini API as its documentation shows it on the wire."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar

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
    line_end = b"\r\n"
    ids: ClassVar[bool] = True
    """Whether calls have ids; those of older models have none."""

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
        self._check_calls(body["contents"])
        for tool in body.get("tools", ()):
            for function in tool["functionDeclarations"]:
                assert {*function} == {"name", "description", "parametersJsonSchema"}

    def _check_calls(self, contents: list[Any]) -> None:
        """A content with calls is followed by one with as many results, of the same names."""
        for asking, telling in pairwise([*contents, {"parts": []}]):
            called = [part["functionCall"]["name"] for part in asking["parts"] if "functionCall" in part]
            told = [part["functionResponse"]["name"] for part in telling["parts"] if "functionResponse" in part]
            assert called == told, "every call needs its result"

    @override
    def events(self, answer: Answer) -> Iterator[Mapping[str, Any]]:
        if answer.end == "refusal":
            blocked = {"blockReason": "SAFETY", "safetyRatings": [{"category": "HARM", "probability": "HIGH"}]}
            yield {"promptFeedback": blocked, "usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 3}}
            return
        for part in self._parts(answer):
            yield self._chunk([part]) | self._usage(answer, whole=False)
        if answer.end == "error":
            yield {"error": {"code": 503, "message": SECRET, "status": "UNAVAILABLE"}}
        elif answer.end not in {"silence", "cut"}:
            yield self._chunk([], "MAX_TOKENS" if answer.end == "length" else "STOP") | self._usage(answer)

    def _chunk(self, parts: list[dict[str, Any]], reason: str | None = None) -> dict[str, Any]:
        content = {"role": "model", **({"parts": parts} if parts else {})}
        candidate = {"content": content, "index": 0, **({"finishReason": reason} if reason else {})}
        return {"candidates": [candidate], "modelVersion": self.model, "responseId": "r1"}

    def _parts(self, answer: Answer) -> Iterator[dict[str, Any]]:
        if answer.thought:
            yield {"text": answer.thought, "thought": True}
        for piece in answer.text:
            yield {"text": piece}
        for number, call in enumerate(answer.calls):
            told = {"name": call.name, "args": msgspec.json.decode(call.arguments)}
            told |= {"id": call.id} if self.ids else {}
            yield {"functionCall": told, **({"thoughtSignature": answer.state} if answer.state and not number else {})}

    def _usage(self, answer: Answer, *, whole: bool = True) -> dict[str, Any]:
        """The counts so far; what was written is told at the end alone."""
        told = usage_of(
            answer,
            lambda read, cached, wrote, thought: {
                "promptTokenCount": read,
                "cachedContentTokenCount": cached,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": read}],
                "totalTokenCount": read + wrote if whole else read,
                **({"candidatesTokenCount": wrote - thought, "thoughtsTokenCount": thought} if whole else {}),
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


class GeminiWithoutIds(GeminiDialect):
    """The same as its older models speak it."""

    ids: ClassVar[bool] = False
