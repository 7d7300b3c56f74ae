"""A rate limited call waits as long as vendor and policy say together, or is not tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.ports import Retry
from providers.retry import wait_ms

policies = st.builds(Retry, st.integers(1, 5), st.integers(0, 60_000), st.integers(0, 60_000))


@pytest.mark.parametrize(
    ("attempt", "hint_ms", "policy", "wait"),
    [
        (1, 0, Retry(), None),
        (1, 0, Retry(3), 500),
        (2, 0, Retry(3), 1_000),
        (3, 0, Retry(3), None),
        (4, 0, Retry(5), 4_000),
        (1, 700, Retry(3), 700),
        (1, 700.2, Retry(3), 701),
        (1, 30_001, Retry(3), None),
        (2, 0, Retry(3, 20_000), None),
        (1, 0, Retry(2, 0), 0),
    ],
)
def test_the_wait_is_the_longer_of_hint_and_backoff(
    attempt: int, hint_ms: float, policy: Retry, wait: int | None
) -> None:
    assert wait_ms(attempt, hint_ms, policy) == wait


@given(policies, st.integers(1, 6), st.floats(0, 100_000))
def test_a_hint_is_never_shortened_and_no_wait_exceeds_the_policy(policy: Retry, attempt: int, hint_ms: float) -> None:
    wait = wait_ms(attempt, hint_ms, policy)
    assert wait is None or hint_ms <= wait <= policy.max_delay_ms
