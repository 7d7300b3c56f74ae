"""Codecs for tests: events in, a turn or a code out, without a network."""

from typing import Any, NamedTuple

import msgspec
import pytest

from actors.errors import Failed
from actors.ports import Turn
from providers.codec import Codec


class Folded(NamedTuple):
    """A turn, what was said on the way, and how often there was progress."""

    turn: Turn
    texts: list[str]
    progress: int


def folded(codec: Codec, *events: Any) -> Folded:
    """What *events* add up to; a text is sent as it is, everything else as JSON."""
    reader = codec.reader()
    texts: list[str] = []
    progress = 0
    for event in events:
        said = reader.read(event if isinstance(event, bytes) else msgspec.json.encode(event))
        texts += [said.text] if said.text else []
        progress += said.progress
        if said.ended:
            break
    return Folded(reader.turn(), texts, progress)


def code(codec: Codec, *events: Any) -> str:
    """The code that *events* fail with."""
    with pytest.raises(Failed) as caught:
        folded(codec, *events)
    return caught.value.problem.code


def whole_code(codec: Codec, document: Any) -> str:
    """The code that one document fails with."""
    with pytest.raises(Failed) as caught:
        codec.whole(document if isinstance(document, bytes) else msgspec.json.encode(document))
    return caught.value.problem.code


MALFORMED = (
    b"",
    b"null",
    b"[]",
    b"7",
    b'"text"',
    b"{",
    b'{"type":7}',
    b"\xff",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"type":"x"} {"type":"x"}',
    b"NaN",
)
"""What no vendor's event is, whatever it is about."""
