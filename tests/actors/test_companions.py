"""What is written beside a run's events: the logs of approvals, tickets and sessions, and the audit."""

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import calls, codec, run, session
from actors.companions import SESSIONS_POOL, pool_of
from actors.decider import Companion
from actors.errors import Problem
from actors.events import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    SessionDeleted,
    SessionTurn,
    TicketClosed,
    TicketOpened,
    TurnCommitted,
    TurnReleased,
    TurnReserved,
    Visible,
)
from actors.ports import Turn
from tests.actors.reviewing import (
    APPROVAL,
    FACTS,
    REVIEWED,
    TICKET,
    Story,
    accepted,
    call,
    proposed,
    proposing,
)
from tests.actors.runs import ARTIFACT, NOW, RUN_ID, SESSION, beside

EXPIRING = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 50}


def written(story: Story, command: run.Command, *, after_ms: int = 0) -> list[Companion]:
    """What the shell would write beside the events that *command* causes."""
    state = story.state
    return beside(RUN_ID, state, story.tell(command, after_ms=after_ms).events)


def asked() -> Story:
    story = proposed(call("reviewed"), approvals=EXPIRING)
    story.tell(calls.AskReview(APPROVAL))
    return story


def offered() -> Story:
    story = proposed(call("app"), call("host", "c2"))
    story.tell(calls.Offer(TICKET))
    return story


def test_an_approval_begins_with_all_that_a_decision_is_checked_against() -> None:
    (requested,) = written(proposed(call("reviewed"), approvals=EXPIRING), calls.AskReview(APPROVAL))
    assert (requested.actor, requested.log, requested.ended) == (APPROVAL, 0, False)
    assert codec.decode_approval(requested.event) == ApprovalRequested(
        NOW, RUN_ID, "ann", "fake", call("reviewed"), "pause", NOW + 50
    )
    assert pool_of([requested.event]) == "approvals"
    assert msgspec.json.decode(requested.audit)["type"] == "approval.requested"


@pytest.mark.parametrize("outcome", ["approved", "denied", "cancelled"])
def test_a_decision_ends_the_approval_and_is_audited(outcome: str) -> None:
    command = msgspec.convert({"type": "settle", "approval_id": APPROVAL, "outcome": outcome, "by": "bo"}, calls.Settle)
    (settled,) = written(asked(), command)
    assert (settled.actor, settled.log, settled.ended) == (APPROVAL, 1, True)
    assert codec.decode_approval(settled.event) == msgspec.convert(
        {"type": "approval.decided", "at_ms": NOW, "outcome": outcome, "by": "bo"}, ApprovalDecided
    )
    record = msgspec.json.decode(settled.audit)
    assert (record["type"], record["subject"], record["provider"]) == ("approval.resolved", "ann", "fake")


def test_an_expiry_ends_the_approval_and_is_audited() -> None:
    for command in (calls.Expire(), calls.Settle(APPROVAL, "approved", "bo")):
        (settled,) = written(asked(), command, after_ms=50)
        assert codec.decode_approval(settled.event) == ApprovalExpired(NOW + 50)
        assert (settled.log, settled.ended) == (1, True)
        assert b"expired" in settled.audit


def test_the_end_of_the_run_cancels_the_approval_in_the_same_append() -> None:
    for command in (run.Cancel(Problem("CANCELLED", "x")), run.Fail(Problem("X", "x")), run.TakeOver("n2")):
        (settled,) = written(asked(), command)
        assert codec.decode_approval(settled.event) == ApprovalDecided(NOW, "cancelled")


def test_a_ticket_is_opened_with_the_offer_and_holds_what_a_result_is_checked_against() -> None:
    (opened,) = written(proposed(call("app")), calls.Offer(TICKET))
    assert (opened.actor, opened.log, opened.ended, opened.audit) == (TICKET, 0, False, b"")
    assert codec.decode_ticket(opened.event) == TicketOpened(NOW, RUN_ID, "ann", "fake", "c1", "app")
    assert pool_of([opened.event]) == "tickets"


def test_a_report_leaves_the_ticket_as_it_is() -> None:
    story = offered()
    assert written(story, calls.Report(TICKET), after_ms=5) == []
    assert written(story, calls.Report(TICKET), after_ms=5) == []


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
    (closed,) = written(offered(), command)
    assert (closed.actor, closed.log, closed.ended) == (TICKET, 1, True)
    assert codec.decode_ticket(closed.event) == TicketClosed(NOW)


def test_a_ticket_stays_open_when_its_job_changes_hands() -> None:
    story = proposed(call("app"), origin="job")
    story.tell(calls.Offer(TICKET))
    assert written(story, run.TakeOver("n2")) == []


def test_a_call_of_the_host_writes_nothing_beside_its_run() -> None:
    story = proposed(call("host"))
    assert written(story, calls.BeginTool()) == []
    assert written(story, calls.Return("c1", Raw(b"1"))) == []


def test_a_run_counts_in_no_pool_of_companions() -> None:
    assert pool_of([codec.encode(proposed(call("host")).log[0])]) is None
    assert pool_of([]) is None


# Of a session's turn.

FOUND = SessionTurn(SESSION, 4, 1, "history", NOW - 9, NOW - 5, 1_000, record_bytes_max=10**6)


def turn(*commands: run.Command) -> Story:
    """The run of a session's turn, told *commands*."""
    story = Story(replace(accepted(*FACTS, approvals=EXPIRING), session=FOUND))
    for command in commands:
        story.tell(command)
    return story


def of_session(companion: Companion) -> object:
    assert companion.actor == SESSION
    return codec.decode_session(companion.event)


ENTER = run.EnterStep(1)
DELETE = run.Cancel(session.DELETED, "deleted")


def test_a_turn_is_reserved_right_after_what_it_was_found_at() -> None:
    story = turn()
    (reserved,) = beside(RUN_ID, run.New(), story.log)
    assert of_session(reserved) == TurnReserved(NOW, RUN_ID)
    assert (reserved.log, reserved.ended, reserved.erased) == (FOUND.version - 1, False, False)
    assert reserved.due == (("retention", None),)


def test_nothing_but_its_end_is_written_to_the_session_of_a_turn() -> None:
    story = turn()
    assert written(story, ENTER) == []
    assert written(story, proposing(call("host"))) == []
    assert written(story, calls.BeginTool()) == []
    assert written(story, calls.Return("c1", Raw(b"1"))) == []
    assert written(story, run.EnterStep(2)) == []


def test_a_completed_turn_is_committed_with_what_was_said_last() -> None:
    story = turn(ENTER, proposing(call("host"), text="so"), calls.BeginTool(), calls.Return("c1", Raw(b"1")))
    story.tell(run.EnterStep(2))
    answer = run.Answer(2, Turn(text="hi"), streamed=False, artifact_id=ARTIFACT)
    (committed,) = written(story, answer, after_ms=3)
    said = (Visible("user", "hello"), Visible("assistant", "hi"))
    assert of_session(committed) == TurnCommitted(NOW + 3, RUN_ID, said)
    assert (committed.log, committed.ended) == (FOUND.version, False)
    assert committed.due == (("retention", NOW + 3 + 1_000),)


@pytest.mark.parametrize("command", [run.Cancel(Problem("X", "x")), run.Fail(Problem("X", "x")), run.TakeOver("n2")])
def test_any_other_end_releases_the_turn_and_says_whether_a_model_was_asked(command: run.Command) -> None:
    for story, interrupted in ((turn(), False), (turn(ENTER), True)):
        (released,) = written(story, command)
        assert of_session(released) == TurnReleased(NOW, RUN_ID, interrupted)
        assert (released.log, released.due) == (FOUND.version, (("retention", NOW + 1_000),))


def test_the_end_of_a_turn_under_review_settles_the_review_and_releases_the_turn_in_one_append() -> None:
    story = turn(ENTER, proposing(call("reviewed")), calls.AskReview(APPROVAL))
    settled, released = written(story, run.Cancel(Problem("X", "x")))
    assert (settled.actor, codec.decode_approval(settled.event)) == (APPROVAL, ApprovalDecided(NOW, "cancelled"))
    assert of_session(released) == TurnReleased(NOW, RUN_ID, interrupted=True)


def test_a_deletion_ends_the_turn_its_ticket_and_its_session_in_one_append() -> None:
    story = turn(ENTER, proposing(call("app")), calls.Offer(TICKET))
    closed, deleted = written(story, DELETE)
    assert (closed.actor, codec.decode_ticket(closed.event)) == (TICKET, TicketClosed(NOW))
    assert of_session(deleted) == SessionDeleted(NOW)
    assert (deleted.log, deleted.ended, deleted.erased) == (FOUND.version, True, True)
    assert deleted.due == (("retention", None), ("permit", NOW))


def test_a_review_that_ends_a_turn_releases_it() -> None:
    story = turn(ENTER, proposing(call(REVIEWED.name)), calls.AskReview(APPROVAL))
    settled, released = written(story, calls.Settle(APPROVAL, "denied", "bo"))
    assert codec.decode_approval(settled.event) == ApprovalDecided(NOW, "denied", "bo")
    assert of_session(released) == TurnReleased(NOW, RUN_ID, interrupted=True)


def test_a_run_without_a_session_writes_to_none() -> None:
    story = Story(accepted(*FACTS))
    assert beside(RUN_ID, run.New(), story.log) == []
    assert written(story, DELETE) == []


def test_a_session_counts_in_its_own_pool() -> None:
    created = session.Create(
        subject="ann",
        provider="fake",
        model="m",
        account="acct",
        mode="native",
        limits=session.Limits(retention_ms=1),
    )
    (event,) = session.decide(session.New(), created, NOW).events
    assert pool_of([codec.encode(event)]) == SESSIONS_POOL
