"""Whether the node takes work, for whoever sends it some: `GET /ready` (docs/observability.md)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

Word: TypeAlias = Literal["starting", "draining", "store"]
SILENT_MS_MAX = 2_000
"""A partition that was not heard of for longer may be out of reach."""

_encode = msgspec.json.Encoder().encode
_READY = _encode({"status": "ready"})


class Facts(NamedTuple):
    """What a node knows of itself; the times are of its own clock."""

    starting: bool = False
    draining: bool = False
    touched_ms: Sequence[int | None] = ()
    """When each partition answered last: None if not yet, 0 if its last call failed."""
    now_ms: int = 0
    silent_ms_max: int = SILENT_MS_MAX


def why_not(facts: Facts) -> tuple[Word, ...]:
    """Why the node takes no work; nothing if it does."""
    words: dict[Word, bool] = {
        "starting": facts.starting or None in facts.touched_ms,
        "draining": facts.draining,
        "store": any(at is not None and facts.now_ms - at > facts.silent_ms_max for at in facts.touched_ms),
    }
    return tuple(word for word, holds in words.items() if holds)


def shown(why: Sequence[Word]) -> tuple[int, bytes]:
    """Status and body of the answer."""
    return (503, _encode({"status": "not-ready", "why": why})) if why else (200, _READY)
