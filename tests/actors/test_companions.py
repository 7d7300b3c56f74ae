"""What is written beside a run's events: the logs of approvals and tickets, and the audit."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import Raw

from actors import calls, codec, run
from actors.companions import companions, pool_of
from actors.decider import Companion
from actors.errors import Problem
from actors.events import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    TicketClosed,
    TicketOpened,
)
from tests.actors.reviewing import APPROVAL, TICKET, Story, call, proposed
from tests.actors.runs import NOW, RUN_ID

EXPIRING = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 50}


def beside(story: Story, command: run.Command, *, after_ms: int = 0) -> list[Companion]:
    """What the shell would write beside the events that *command* causes."""
    state = story.state
    events = story.tell(command, after_ms=after_ms).events

    def written() -> Iterator[Companion]:
        before = state
        for event in events:
            after = run.evolve(before, event)
            yield from companions(RUN_ID, before, event, after)
            before = after

    return list(written())


def asked() -> Story:
    story = proposed(call("reviewed"), approvals=EXPIRING)
    story.tell(calls.AskReview(APPROVAL))
    return story


def offered() -> Story:
    story = proposed(call("app"), call("host", "c2"))
    story.tell(calls.Offer(TICKET))
    return story


def test_an_approval_begins_with_all_that_a_decision_is_checked_against() -> None:
    (requested,) = beside(proposed(call("reviewed"), approvals=EXPIRING), calls.AskReview(APPROVAL))
    assert (requested.actor, requested.log, requested.ended) == (APPROVAL, 0, False)
    assert codec.decode_approval(requested.event) == ApprovalRequested(
        NOW, RUN_ID, "ann", "fake", call("reviewed"), "pause", NOW + 50
    )
    assert pool_of([requested.event]) == "approvals"
    assert msgspec.json.decode(requested.audit)["type"] == "approval.requested"


@pytest.mark.parametrize("outcome", ["approved", "denied", "cancelled"])
def test_a_decision_ends_the_approval_and_is_audited(outcome: str) -> None:
    command = msgspec.convert({"type": "settle", "approval_id": APPROVAL, "outcome": outcome, "by": "bo"}, calls.Settle)
    (settled,) = beside(asked(), command)
    assert (settled.actor, settled.log, settled.ended) == (APPROVAL, 1, True)
    assert codec.decode_approval(settled.event) == msgspec.convert(
        {"type": "approval.decided", "at_ms": NOW, "outcome": outcome, "by": "bo"}, ApprovalDecided
    )
    record = msgspec.json.decode(settled.audit)
    assert (record["type"], record["subject"], record["provider"]) == ("approval.resolved", "ann", "fake")


def test_an_expiry_ends_the_approval_and_is_audited() -> None:
    for command in (calls.Expire(), calls.Settle(APPROVAL, "approved", "bo")):
        (settled,) = beside(asked(), command, after_ms=50)
        assert codec.decode_approval(settled.event) == ApprovalExpired(NOW + 50)
        assert (settled.log, settled.ended) == (1, True)
        assert b"expired" in settled.audit


def test_the_end_of_the_run_cancels_the_approval_in_the_same_append() -> None:
    for command in (run.Cancel(Problem("CANCELLED", "x")), run.Fail(Problem("X", "x")), run.TakeOver("n2")):
        (settled,) = beside(asked(), command)
        assert codec.decode_approval(settled.event) == ApprovalDecided(NOW, "cancelled")


def test_a_ticket_is_opened_with_the_offer_and_holds_what_a_result_is_checked_against() -> None:
    (opened,) = beside(proposed(call("app")), calls.Offer(TICKET))
    assert (opened.actor, opened.log, opened.ended, opened.audit) == (TICKET, 0, False, b"")
    assert codec.decode_ticket(opened.event) == TicketOpened(NOW, RUN_ID, "ann", "fake", "c1", "app")
    assert pool_of([opened.event]) == "tickets"


def test_a_report_leaves_the_ticket_as_it_is() -> None:
    story = offered()
    assert beside(story, calls.Report(TICKET), after_ms=5) == []
    assert beside(story, calls.Report(TICKET), after_ms=5) == []


@pytest.mark.parametrize(
    "command",
    [
        calls.Deliver(TICKET, Raw(b"1")),
        calls.Deliver(TICKET, None),
        run.Cancel(Problem("CANCELLED", "x")),
        run.TakeOver("n2"),
    ],
)
def test_a_result_or_the_end_of_the_run_closes_the_ticket_once(command: run.Command) -> None:
    (closed,) = beside(offered(), command)
    assert (closed.actor, closed.log, closed.ended) == (TICKET, 1, True)
    assert codec.decode_ticket(closed.event) == TicketClosed(NOW)


def test_a_ticket_stays_open_when_its_job_changes_hands() -> None:
    story = proposed(call("app"), origin="job")
    story.tell(calls.Offer(TICKET))
    assert beside(story, run.TakeOver("n2")) == []


def test_a_call_of_the_host_writes_nothing_beside_its_run() -> None:
    story = proposed(call("host"))
    assert beside(story, calls.BeginTool()) == []
    assert beside(story, calls.Return("c1", Raw(b"1"))) == []


def test_a_run_counts_in_no_pool_of_companions() -> None:
    assert pool_of([codec.encode(proposed(call("host")).log[0])]) is None
    assert pool_of([]) is None
