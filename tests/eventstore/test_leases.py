"""When others may treat a lease as lapsed, and until when its owner may rely on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.leases import JUMP_MS, MARGIN_MS, PAUSE_MS, Holding, Watch

LEASE_MS = 10_000
AHEAD_MS = 1_800_000_000_000


def watched(*answers: tuple[int, int], start: Watch | None = None) -> Watch:
    """A watch after answers, each (own clock, Redis time without what it is ahead)."""
    watch = start or Watch()
    for mono_ms, redis_ms in answers:
        watch = watch.answered(mono_ms, redis_ms + AHEAD_MS, "r1")
    return watch


def steady(first_ms: int, last_ms: int, start: Watch | None = None) -> Watch:
    return watched(*((t, t) for t in range(first_ms, last_ms + 1, 1_000)), start=start)


def test_a_node_judges_only_after_one_lease_time_of_answers() -> None:
    assert not Watch().may_judge(LEASE_MS, 0)
    assert not steady(0, 9_000).may_judge(LEASE_MS, 9_500)
    assert steady(0, 10_000).may_judge(LEASE_MS, 10_500)


def test_a_longer_lease_wants_a_longer_row() -> None:
    watch = steady(0, 15_000)
    assert watch.may_judge(LEASE_MS, 15_000)
    assert not watch.may_judge(2 * LEASE_MS, 15_000)


def test_an_error_starts_the_count_again() -> None:
    watch = steady(21_000, 30_000, start=steady(0, 20_000).failed())
    assert not watch.may_judge(LEASE_MS, 30_000)
    assert steady(31_000, 31_000, start=watch).may_judge(LEASE_MS, 31_000)


def test_a_pause_starts_the_count_again() -> None:
    assert watched((0, 0), (PAUSE_MS, PAUSE_MS)).may_judge(PAUSE_MS, PAUSE_MS)
    late = 20_000 + PAUSE_MS + 1
    assert not watched((late, late), start=steady(0, 20_000)).may_judge(LEASE_MS, late)


def test_a_node_that_slept_after_the_last_answer_does_not_judge() -> None:
    watch = steady(0, 20_000)
    assert watch.may_judge(LEASE_MS, 20_000 + PAUSE_MS)
    assert not watch.may_judge(LEASE_MS, 20_000 + PAUSE_MS + 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_jump_of_redis_time_starts_the_count_again(sign: int) -> None:
    watch = steady(0, 20_000)
    near, far = 21_000 + sign * JUMP_MS, 21_000 + sign * (JUMP_MS + 1)
    assert watched((21_000, near), start=watch).may_judge(LEASE_MS, 21_000)
    assert not watched((21_000, far), start=watch).may_judge(LEASE_MS, 21_000)


def test_jumps_that_add_up_are_seen() -> None:
    watch = watched(*((t, t + t // 5) for t in range(0, 9_001, 1_000)))
    assert not watch.may_judge(LEASE_MS // 2, 9_000)


def test_another_replication_id_starts_the_count_again() -> None:
    watch = steady(0, 20_000).answered(21_000, 21_000 + AHEAD_MS, "r2")
    assert not watch.may_judge(LEASE_MS, 21_000)


def test_what_does_not_go_on_with_the_row_is_seen_before_it_is_counted() -> None:
    watch = steady(0, 20_000)
    assert watch.continues(21_000, 21_000 + AHEAD_MS, "r1")
    assert not watch.continues(21_000, 51_000 + AHEAD_MS, "r1")
    assert not watch.continues(21_000, 21_000 + AHEAD_MS, "r2")
    assert not Watch().continues(0, 0)


def test_answers_out_of_order_break_nothing() -> None:
    watch = watched((20_500, 20_500), (20_400, 20_400), start=steady(0, 20_000))
    assert watch.may_judge(LEASE_MS, 20_500)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(-1_500, 1_500), st.booleans()), max_size=40))
def test_a_node_judges_exactly_after_an_unbroken_row(steps: list[tuple[int, int, bool]]) -> None:
    watch, now, ahead = Watch(), 0, AHEAD_MS
    since: int | None = None
    anchor = last = 0
    for gap, drift, error in steps:
        now, ahead = now + gap, ahead + drift
        if error:
            watch, since = watch.failed(), None
            continue
        watch = watch.answered(now, now + ahead)
        if since is None or now - last > PAUSE_MS or abs(ahead - anchor) > JUMP_MS:
            since, anchor = now, ahead
        last = now
        assert watch.may_judge(LEASE_MS, now) == (now - since >= LEASE_MS)


def test_an_owner_counts_from_the_sending_and_starts_nothing_near_the_end() -> None:
    holding = Holding(sent_mono_ms=1_000, lease_ms=LEASE_MS)
    assert holding.may_start(11_000 - MARGIN_MS - 1)
    assert not holding.may_start(11_000 - MARGIN_MS)
    assert not holding.expired(10_999)
    assert holding.expired(11_000)


def test_a_short_lease_keeps_a_third() -> None:
    holding = Holding(sent_mono_ms=0, lease_ms=3_000)
    assert holding.may_start(1_999)
    assert not holding.may_start(2_000)


def test_a_late_answer_never_shortens_a_lease() -> None:
    holding = Holding(0, LEASE_MS).renewed(2_000).renewed(1_000)
    assert holding == Holding(2_000, LEASE_MS)
    assert Holding(0, LEASE_MS).renewed(12_000).may_start(12_000), "an owner whose epoch is still its own goes on"


@given(sent=st.integers(0, 10_000), delay=st.integers(0, 5_000), lease=st.integers(1, 30_000))
def test_an_owner_stops_before_anybody_may_take_over(sent: int, delay: int, lease: int) -> None:
    ends_for_others = sent + delay + lease  # Redis wrote the lease's end no earlier than it was sent
    assert Holding(sent, lease).expired(ends_for_others)
    assert not Holding(sent, lease).may_start(ends_for_others)
