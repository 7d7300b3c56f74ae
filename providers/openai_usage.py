"""Tokens as OpenAI counts them: alike in both of its APIs, but under other names (providers §6.1, §6.2).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from providers.vendor_json import Count, given


class _Read(Struct):
    cached_tokens: Count = None


class _Wrote(Struct):
    reasoning_tokens: Count = None


class ResponsesUsage(Struct):
    """The usage of a response."""

    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: _Read | None = None
    output_tokens_details: _Wrote | None = None

    @property
    def counted(self) -> Mapping[str, Any]:
        """The counts in the wire's names; what is not told is left out."""
        return _counted(self.input_tokens, self.output_tokens, self.input_tokens_details, self.output_tokens_details)


class ChatUsage(Struct):
    """The usage of a completion."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: _Read | None = None
    completion_tokens_details: _Wrote | None = None

    @property
    def counted(self) -> Mapping[str, Any]:
        """The counts in the wire's names; what is not told is left out."""
        return _counted(self.prompt_tokens, self._written, self.prompt_tokens_details, self.completion_tokens_details)

    @property
    def _written(self) -> Count:
        """All output; xAI counts reasoning beside the rest of it, which only the total shows."""
        match self:
            case ChatUsage(
                prompt_tokens=int(read),
                completion_tokens=int(wrote),
                completion_tokens_details=_Wrote(int(thought)),
                total_tokens=int(total),
            ) if total == read + wrote + thought:
                return wrote + thought
            case _:
                return self.completion_tokens


def _counted(read: Count, wrote: Count, of_read: _Read | None, of_wrote: _Wrote | None) -> Mapping[str, Any]:
    return given(
        inputTokens=read,
        outputTokens=wrote,
        cachedInputTokens=of_read.cached_tokens if of_read else None,
        reasoningTokens=of_wrote.reasoning_tokens if of_wrote else None,
    )
