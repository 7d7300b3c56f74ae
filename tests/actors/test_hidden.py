"""How the events of an interactive job are counted without those that its pages leave out."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from actors import calls, codec, run
from actors.errors import Problem
from actors.events import RunEvent
from actors.hidden import feed_number, hidden, renumbered, shown_before
from eventstore.store import Entry, Item
from projections import wire_feed
from tests.actors.reviewing import APPROVAL, TICKET, call, proposed
from tests.actors.runs import RUN_ID

some = settings(max_examples=50, deadline=None)
FEEDS = st.integers(0, 30).flatmap(
    lambda size: st.tuples(
        st.just(size), st.lists(st.integers(1, max(size, 1)), unique=True, max_size=size).map(sorted)
    )
)


def kept(size: int, left_out: Sequence[int]) -> list[int]:
    return [number for number in range(1, size + 1) if number not in left_out]


@some
@given(FEEDS)
def test_what_pages_show_is_numbered_without_a_gap(feed: tuple[int, list[int]]) -> None:
    size, left_out = feed
    items = [Item(number, b"%d" % number) for number in range(1, size + 1)]
    shown = renumbered(items, left_out)
    assert [item.number for item in shown] == list(range(1, len(shown) + 1))
    assert [item.data for item in shown] == [b"%d" % number for number in kept(size, left_out)]


@some
@given(FEEDS, st.integers(0, 30))
def test_a_page_goes_on_exactly_after_what_the_last_one_showed(feed: tuple[int, list[int]], after: int) -> None:
    size, left_out = feed
    shown = kept(size, left_out)
    after = min(after, len(shown))
    start = feed_number(after, left_out)
    rest = renumbered([Item(number, b"") for number in range(start + 1, size + 1)], left_out)
    assert [item.number for item in rest] == list(range(after + 1, len(shown) + 1))
    assert shown_before(start, left_out) == after
    assert start == 0 or after == 0 or start >= shown[after - 1]


@some
@given(FEEDS, st.integers(0, 30))
def test_counting_there_and_back_is_the_same(feed: tuple[int, list[int]], number: int) -> None:
    size, left_out = feed
    number = min(number, size)
    assert shown_before(number, left_out) == len([one for one in kept(size, left_out) if one <= number])
    assert shown_before(feed_number(shown_before(number, left_out), left_out), left_out) == shown_before(
        number, left_out
    )


def entries(log: Sequence[RunEvent]) -> tuple[list[Entry], list[str]]:
    """A log as the store has it, and the types of its feed."""
    feed, items, found = wire_feed.start(RUN_ID), list[bytes](), list[Entry]()
    for version, event in enumerate(log, 1):
        feed = wire_feed.fold(feed, event)
        items.extend(wire_feed.items(feed, event))
        found.append(Entry(version, len(items), "c", codec.encode(event)))
    return found, [wire_feed.event_type(item).decode() for item in items]


def test_left_out_is_what_asks_people_and_applications_and_nothing_else() -> None:
    story = proposed(call("reviewed"), origin="job")
    story.tell(calls.AskReview(APPROVAL))
    story.tell(calls.Settle(APPROVAL, "approved", "ann", awaits_audit=False))
    log, shown = entries(story.log)
    left_out = hidden(log)
    assert [shown[number - 1] for number in left_out] == ["approval.requested", "approval.resolved"]
    application = proposed(call("app"), origin="job")
    application.tell(calls.Offer(TICKET))
    log, shown = entries(application.log)
    assert [shown[number - 1] for number in hidden(log)] == ["tool.execution.requested"]


def test_an_end_that_settles_a_question_leaves_out_only_the_answer() -> None:
    story = proposed(call("reviewed"), origin="job")
    story.tell(calls.AskReview(APPROVAL))
    story.tell(run.Cancel(Problem("CANCELLED", "enough")))
    log, shown = entries(story.log)
    assert shown[-3:] == ["approval.requested", "approval.resolved", "run.cancelled"]
    assert [shown[number - 1] for number in hidden(log)] == shown[-3:-1]
