"""A block of what Anthropic's Messages API answers, and how it grows (providers §6.3).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from providers.codec import Said
from providers.failures import failed
from providers.vendor_json import arguments, decoded, encoded, is_given

_GROWING = ("text", "thinking", "signature")
"""The members of a block that come in pieces as they are; the arguments of a call come as pieces of JSON."""
_GROWS: Mapping[str, str] = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}
"""The kind of block that a delta belongs to, where there is but one."""


class Delta(Struct, rename={"kind": "type"}):
    """What is added to a block; that of a whole message says why it stopped."""

    kind: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: Raw = Raw()
    stop_reason: str | None = None


class _Names(Struct, rename={"kind": "type"}):
    """What is read of a block: its kind, its text, and what a call says of itself."""

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""


_NAMES = msgspec.json.Decoder(_Names)
_TEXT = msgspec.json.Decoder(str)


class Block:
    """A part of the answer: as it began, and what was added to it."""

    def __init__(self, members: Mapping[str, Raw]) -> None:
        self._members = {name: value.copy() for name, value in members.items()}
        self._added: dict[str, list[str]] = {}
        self._citations: list[Raw] = []
        self.names = decoded(_NAMES, encoded(self._members))
        self.is_open = True

    def add(self, delta: Delta) -> Said:
        """Grow, and return what that says; a delta of a new kind says nothing.

        Raises:
            Failed: INVALID_PROVIDER_RESPONSE for the delta of another block.
        """
        if _GROWS.get(delta.kind, self.names.kind) != self.names.kind:
            raise failed("INVALID_PROVIDER_RESPONSE")
        match delta:
            case Delta("text_delta", text=text):
                return self._more("text", text, Said(text))
            case Delta("input_json_delta", partial_json=piece):
                return self._more("input", piece, Said(progress=True))
            case Delta("thinking_delta", thinking=piece):
                return self._more("thinking", piece, Said(progress=True))
            case Delta("signature_delta", signature=piece):
                return self._more("signature", piece, Said(progress=True))
            case Delta("citations_delta", citation=citation) if is_given(citation):
                self._citations.append(citation.copy())
                return Said(progress=True)
            case _:
                return Said()

    def _more(self, member: str, piece: str, said: Said) -> Said:
        self._added.setdefault(member, []).append(piece)
        return said

    @property
    def text(self) -> str:
        """The visible text."""
        return self.names.text + "".join(self._added.get("text", ())) if self.names.kind == "text" else ""

    @property
    def input(self) -> Raw:
        """The arguments of a call: what was streamed, else what it began with."""
        streamed = "".join(self._added.get("input", ()))
        return arguments(encoded(streamed) if streamed else self._members.get("input", Raw(b"{}")))

    @property
    def native(self) -> Mapping[str, Any]:
        """The block as the vendor wants it back."""
        grown: dict[str, Raw] = {name: self._grown(name) for name in _GROWING if name in self._added}
        if self.names.kind == "tool_use" or "input" in self._added:
            grown["input"] = self.input
        if self._citations:
            grown["citations"] = encoded(self._citations)
        return {**self._members, **grown}

    def _grown(self, member: str) -> Raw:
        began = decoded(_TEXT, self._members.get(member, Raw(b'""')))
        return encoded(began + "".join(self._added[member]))
