"""Budgets: what a run reported decides whether it goes on, and silence is told from thrift."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.budgets import Budget, Budgets, allowance, verdict
from actors.events import Usage
from actors.usage import SAFE

TOKENS = Budget(max_tokens=100)
COST = Budget(max_cost_usd=0.3)
LENIENT = Budget(max_tokens=100, unknown_usage="allow")
LIMIT, UNKNOWN = "RESOURCE_LIMIT", "RESOURCE_USAGE_UNKNOWN"

counts = st.none() | st.integers(0, 60) | st.integers(SAFE - 1, SAFE)
usages = st.none() | st.builds(
    Usage, input_tokens=counts, output_tokens=counts, cost_usd=st.none() | st.floats(0, 1) | st.just(1e308)
)
budgets = st.builds(
    Budget,
    max_tokens=st.just(0) | st.integers(1, 200) | st.just(SAFE),
    max_cost_usd=st.just(0.0) | st.floats(0.01, 2) | st.just(1e308),
    unknown_usage=st.sampled_from(["reject", "allow"]),
)


def tokens(put_in: int | None, put_out: int | None = 0) -> Usage:
    return Usage(input_tokens=put_in, output_tokens=put_out)


def code(of: Budget | tuple[Budget, ...], *reported: Usage | None, continues: bool = True) -> str | None:
    problem = verdict((of,) if isinstance(of, Budget) else of, reported, continues=continues)
    assert problem is None or not problem.retryable
    return None if problem is None else problem.code


def test_nothing_is_judged_before_the_first_step() -> None:
    assert code(Budget(max_tokens=1, max_cost_usd=0.1)) is None


def test_a_run_without_budgets_may_be_silent_and_thirsty() -> None:
    assert code((), None, tokens(SAFE, SAFE)) is None
    assert code(Budget(), None, tokens(SAFE, SAFE)) is None


@pytest.mark.parametrize(
    ("used", "goes_on", "is_final"),
    [(99, None, None), (100, LIMIT, None), (101, LIMIT, LIMIT)],
)
def test_a_final_answer_exactly_at_the_cap_completes_and_nothing_goes_on_from_there(
    used: int, goes_on: str | None, is_final: str | None
) -> None:
    assert code(TOKENS, tokens(used - 40, 10), tokens(20, 10), continues=True) == goes_on
    assert code(TOKENS, tokens(used - 40, 10), tokens(20, 10), continues=False) == is_final


def test_cached_and_reasoning_tokens_and_estimated_costs_are_not_counted() -> None:
    assert code(TOKENS, Usage(50, 50, 49, 49)) is None
    assert code(COST, Usage(cost_usd=0.1, api_equivalent_cost_usd=9)) is None


def test_costs_are_added_as_they_are_written() -> None:
    tenths = [Usage(cost_usd=0.1)] * 3
    assert sum(0.1 for _ in tenths) > 0.3
    assert code(COST, *tenths, continues=False) is None
    assert code(COST, *tenths, continues=True) == LIMIT
    assert code(COST, *tenths, Usage(cost_usd=5e-324), continues=False) == LIMIT


@pytest.mark.parametrize("continues", [True, False])
def test_a_silent_step_ends_the_run_only_where_the_budget_says_so(*, continues: bool) -> None:
    for silent in (None, Usage(), tokens(1, None), tokens(None, 1), Usage(cost_usd=1)):
        assert code(TOKENS, tokens(1, 1), silent, continues=continues) == UNKNOWN
        assert code(LENIENT, tokens(1, 1), silent, continues=continues) is None
    assert code(COST, tokens(1, 1), continues=continues) == UNKNOWN


def test_only_what_a_cap_needs_must_be_reported() -> None:
    assert code(TOKENS, tokens(1, 1)) is None
    assert code(COST, Usage(cost_usd=0)) is None


def test_what_is_known_counts_beside_what_is_not() -> None:
    assert code(LENIENT, tokens(60, 40), None) == LIMIT
    assert code(LENIENT, tokens(60, 40), None, continues=False) is None
    assert code(LENIENT, tokens(60, None), tokens(None, 41), continues=False) == LIMIT


def test_a_known_excess_comes_before_an_unknown_whichever_budget_it_breaks() -> None:
    assert code(TOKENS, tokens(101), None) == LIMIT
    assert code((COST, TOKENS), tokens(101)) == LIMIT
    assert code((COST, TOKENS), tokens(10)) == UNKNOWN


def test_all_budgets_apply_together() -> None:
    assert code((Budget(max_tokens=1_000), TOKENS), tokens(100)) == LIMIT
    assert code((LENIENT, TOKENS), None) == UNKNOWN


def test_a_sum_that_no_client_could_read_is_an_excess_even_under_a_higher_cap() -> None:
    assert code(Budget(max_tokens=SAFE), tokens(SAFE), tokens(0, 1), continues=False) == LIMIT
    assert code(Budget(max_cost_usd=1e308), *[Usage(cost_usd=1e308)] * 2, continues=False) == LIMIT
    assert code(Budget(max_cost_usd=1e308), Usage(cost_usd=float(SAFE)), continues=False) is None


def test_the_allowance_is_what_the_tightest_budget_leaves() -> None:
    assert allowance((COST,), [tokens(1)]) is None
    assert allowance((TOKENS,), []) == 100
    assert allowance((Budget(max_tokens=70), COST, TOKENS), [tokens(20, 10), None, tokens(None, 5)]) == 35
    assert allowance((TOKENS,), [tokens(100)]) == allowance((TOKENS,), [tokens(SAFE, SAFE)]) == 1


def test_default_subject_and_account_bind_together() -> None:
    known = Budgets(default=TOKENS, subjects={"ann": COST}, accounts={"team": LENIENT})
    assert known.of("ann", "team") == (TOKENS, COST, LENIENT)
    assert known.of("bob", "") == (TOKENS,)
    assert Budgets(subjects={"ann": COST}).of("bob", "team") == ()


def test_only_budgets_by_account_need_an_account() -> None:
    assert Budgets(accounts={"team": TOKENS}).needs_account
    assert not Budgets(default=TOKENS, subjects={"ann": TOKENS}).needs_account


def test_a_budget_is_kept_in_logs_under_names_that_stay() -> None:
    written = b'{"max_tokens":5,"max_cost_usd":0.5,"unknown_usage":"allow"}'
    assert msgspec.json.encode(Budget(5, 0.5, "allow")) == written
    assert msgspec.json.decode(written, type=Budget) == Budget(5, 0.5, "allow")
    assert msgspec.json.decode(b"{}", type=Budget) == Budget() == Budget(0, 0.0, "reject")


@given(st.lists(budgets, max_size=3), st.lists(usages, max_size=4))
def test_the_allowance_is_at_least_one_and_never_above_a_cap(caps: list[Budget], reported: list[Usage | None]) -> None:
    left = allowance(caps, reported)
    bounds = [budget.max_tokens for budget in caps if budget.max_tokens]
    assert (left is None) == (not bounds)
    assert left is None or 1 <= left <= min(bounds)


@given(st.lists(budgets, max_size=3), st.lists(usages, min_size=1, max_size=4), usages)
def test_more_usage_never_lets_a_run_go_on(
    caps: list[Budget], reported: list[Usage | None], further: Usage | None
) -> None:
    for continues in (False, True):
        before = verdict(caps, reported, continues=continues)
        after = verdict(caps, [*reported, further], continues=continues)
        assert before is None or after is not None
        assert before is None or after is None or before.code in (after.code, UNKNOWN)


@given(st.lists(budgets, max_size=3), st.lists(usages, min_size=1, max_size=3), st.integers(0, 200))
def test_a_higher_count_is_never_judged_more_gently(
    caps: list[Budget], reported: list[Usage | None], more: int
) -> None:
    lower = verdict(caps, [*reported, Usage(more, more, cost_usd=more / 100)], continues=True)
    higher = verdict(caps, [*reported, Usage(2 * more, more + 1, cost_usd=more / 50)], continues=True)
    assert lower is None or (higher is not None and lower.code in (higher.code, UNKNOWN))


@given(st.lists(budgets, max_size=3), st.lists(usages, max_size=4))
def test_whoever_may_go_on_may_also_end(caps: list[Budget], reported: list[Usage | None]) -> None:
    assert verdict(caps, reported, continues=True) is not None or verdict(caps, reported, continues=False) is None
