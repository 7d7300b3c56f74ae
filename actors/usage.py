"""What turns consumed: cleaned as reported, and summed where every turn reported it (runs §11)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from actors.events import Usage

SAFE = 2**53 - 1
_COUNTS = {
    "inputTokens": "input_tokens",
    "cachedInputTokens": "cached_input_tokens",
    "outputTokens": "output_tokens",
    "reasoningTokens": "reasoning_tokens",
}
_COSTS = {"costUsd": "cost_usd", "apiEquivalentCostUsd": "api_equivalent_cost_usd"}
_SUBSETS = (("cached_input_tokens", "input_tokens"), ("reasoning_tokens", "output_tokens"))


def sanitised(reported: Mapping[str, Any]) -> Usage:
    """What of a vendor's report may be shown: whole safe counts, finite costs, subsets not above their whole."""
    counts = {ours: _count(reported.get(theirs)) for theirs, ours in _COUNTS.items()}
    costs = {ours: _cost(reported.get(theirs)) for theirs, ours in _COSTS.items()}
    for part, whole in _SUBSETS:
        part_count, whole_count = counts[part], counts[whole]
        if part_count is not None and whole_count is not None and part_count > whole_count:
            counts[part] = None
    return Usage(**counts, **costs)  # type: ignore[arg-type]  # the tables above name the fields


def total(turns: Sequence[Usage | None]) -> Usage:
    """The sums of the fields that every turn reported; a count above 2^53-1 is left out."""
    return Usage(
        **{
            field: _sum([getattr(turn, field, None) for turn in turns])
            for field in (*_COUNTS.values(), *_COSTS.values())
        }
    )


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value == int(value) and 0 <= value <= SAFE else None


def _cost(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _sum(values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    added = sum(known)
    return None if (isinstance(added, int) and added > SAFE) or not math.isfinite(added) else added
