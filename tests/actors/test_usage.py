"""What turns consumed: whatever a vendor reports, clients read whole safe counts and sums of what is known."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.events import Usage
from actors.usage import SAFE, sanitised, total

NAMES = ["inputTokens", "cachedInputTokens", "outputTokens", "reasoningTokens", "costUsd", "apiEquivalentCostUsd"]
FIELDS = ["input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"]
odd: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)
reports = st.dictionaries(st.sampled_from([*NAMES, "other"]), odd)
usages = st.builds(
    Usage,
    input_tokens=st.none() | st.integers(0, SAFE),
    output_tokens=st.none() | st.integers(0, 10),
    cost_usd=st.none() | st.floats(0, 1e308),
)


@given(reports)
def test_a_report_of_anything_becomes_safe_counts_and_finite_costs(report: dict[str, Any]) -> None:
    usage = sanitised(report)
    for field in FIELDS:
        count = getattr(usage, field)
        assert count is None or (type(count) is int and 0 <= count <= SAFE)
    for cost in (usage.cost_usd, usage.api_equivalent_cost_usd):
        assert cost is None or (math.isfinite(cost) and cost >= 0)
    for part, whole in ((usage.cached_input_tokens, usage.input_tokens), (usage.reasoning_tokens, usage.output_tokens)):
        assert part is None or whole is None or part <= whole


@given(st.lists(usages, min_size=1, max_size=4))
def test_a_sum_is_shown_only_where_every_turn_reported_and_the_sum_is_safe(turns: list[Usage]) -> None:
    counts = [turn.input_tokens for turn in turns]
    added = sum(count or 0 for count in counts)
    assert total(turns).input_tokens == (None if None in counts or added > SAFE else added)
    cost = total(turns).cost_usd
    assert cost is None or math.isfinite(cost)


def test_a_turn_without_a_report_leaves_every_sum_unknown() -> None:
    assert total([Usage(1, 0, 1, 0, 0.5), None]) == Usage()
    assert total([]) == Usage()


def test_zero_is_a_count() -> None:
    assert sanitised({"inputTokens": 0, "costUsd": 0}) == Usage(input_tokens=0, cost_usd=0)
    assert total([Usage(input_tokens=0), Usage(input_tokens=0)]) == Usage(input_tokens=0)
