"""Usage records: what a whole log says was consumed, and how much of it is known."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Problem
from actors.events import (
    Origin,
    RunAccepted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    StepStarted,
    TurnCompleted,
    Usage,
)
from actors.usage import SAFE, total
from projections import usage

RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
NOW = 1_767_607_200_000
FACTS = usage.Accounting(
    host_id="h1", account="team", vendor="acme", auth_mode="api-key", source="provider-response", labels={"zone": "eu"}
)
COMPLETED = RunCompleted(NOW + 900, "private words", 2)
FAILED = RunFailed(NOW + 900, Problem("RATE_LIMITED", "private words"))
CANCELLED = RunCancelled(NOW + 900, Problem("CANCELLED", "private words"), "client")


def accepted(origin: Origin = "foreground") -> RunAccepted:
    return RunAccepted(NOW, "ann", "fake", "m", msgspec.Raw(b'{"input":"private words"}'), origin)


def log(*turns: Usage | None, end: RunEvent | None = COMPLETED, open_step: bool = False) -> list[RunEvent]:
    """A run that was queued for 200 ms, with a step for each of *turns* and, where *open_step*, one that never ended."""
    steps: list[RunEvent] = []
    for number, reported in enumerate(turns, 1):
        steps += [StepStarted(NOW + 300, number), TurnCompleted(NOW + 400, number, "private words", usage=reported)]
    last = [StepStarted(NOW + 500, len(turns) + 1)] if open_step else []
    return [accepted(), RunStarted(NOW + 200), *steps, *last, *([end] if end else [])]


def record(events: list[RunEvent], facts: usage.Accounting = FACTS) -> dict[str, Any]:
    made = usage.record(RUN_ID, events, facts)
    assert made is not None
    return made


def test_a_record_says_who_consumed_what_where_and_for_how_long() -> None:
    made = record(log(Usage(input_tokens=10, output_tokens=2), Usage(input_tokens=20)))
    told = (
        f'{{"schema":"agenticdriver.usage.v2","eventId":"{RUN_ID}","hostId":"h1","accountId":"team","runId":"{RUN_ID}",'
        '"subject":"ann","provider":"fake","vendor":"acme","model":"m","authMode":"api-key","status":"completed",'
        '"source":"provider-response","startedAt":"2026-01-05T10:00:00.200Z","finishedAt":"2026-01-05T10:00:00.900Z",'
        '"usage":{"inputTokens":30},"observedUsage":{"inputTokens":30,"outputTokens":2},'
        '"coverage":{"startedSteps":2,"completedSteps":2,"reportedSteps":{"inputTokens":2,"outputTokens":1}},'
        '"durationMs":700,"metadata":{"zone":"eu"}}'
    )
    assert msgspec.json.encode(made).decode() == told


def test_a_provider_without_account_has_none_in_its_records() -> None:
    facts = msgspec.structs.replace(FACTS, account=None)
    assert "accountId" not in record(log(), facts)


@pytest.mark.parametrize(("end", "status"), [(COMPLETED, "completed"), (FAILED, "failed"), (CANCELLED, "cancelled")])
def test_the_end_says_how_the_run_stands_and_nothing_of_what_was_said(end: RunEvent, status: str) -> None:
    made = record(log(Usage(), end=end))
    assert made["status"] == status
    assert b"private" not in msgspec.json.encode(made)


def test_a_step_that_did_not_complete_leaves_the_usage_unknown_and_what_was_observed_is_told() -> None:
    made = record(log(Usage(input_tokens=10, cost_usd=0.5), open_step=True, end=CANCELLED))
    assert made["usage"] == {}
    assert made["observedUsage"] == {"inputTokens": 10, "costUsd": 0.5}
    assert made["coverage"] == {
        "startedSteps": 2,
        "completedSteps": 1,
        "reportedSteps": {"inputTokens": 1, "costUsd": 1},
    }


def test_zero_is_reported_and_silence_is_not() -> None:
    assert record(log(Usage(output_tokens=0), None))["observedUsage"] == {"outputTokens": 0}
    assert record(log(None))["coverage"] == {"startedSteps": 1, "completedSteps": 1, "reportedSteps": {}}


def test_a_sum_that_no_client_could_read_is_left_out() -> None:
    made = record(log(Usage(input_tokens=SAFE, cost_usd=1e308), Usage(input_tokens=1, cost_usd=1e308)))
    assert made["usage"] == made["observedUsage"] == {}
    assert made["coverage"]["reportedSteps"] == {"inputTokens": 2, "costUsd": 2}


@pytest.mark.parametrize("events", [[], log(end=None), log(Usage(), end=None), [accepted("job")]])
def test_a_run_that_has_not_ended_has_no_record(events: list[RunEvent]) -> None:
    assert usage.record(RUN_ID, events, FACTS) is None


def test_a_job_that_ended_before_it_began_was_not_executed() -> None:
    assert usage.record(RUN_ID, [accepted("job"), CANCELLED], FACTS) is None
    assert usage.record(RUN_ID, [accepted("job"), RunStarted(NOW + 100), CANCELLED], FACTS) is not None


@pytest.mark.parametrize("origin", ["foreground", "host"])
def test_a_run_whose_start_is_not_in_its_log_started_when_it_was_accepted(origin: Origin) -> None:
    made = record([accepted(origin), CANCELLED])
    assert (made["startedAt"], made["durationMs"]) == ("2026-01-05T10:00:00.000Z", 900)
    assert made["coverage"]["startedSteps"] == 0


def test_a_claim_changes_nothing() -> None:
    events = log(Usage(input_tokens=1))
    assert record([*events[:3], RunClaimed(NOW + 350, "n2"), *events[3:]]) == record(events)


counts = st.none() | st.integers(0, 9) | st.just(SAFE)
costs = st.none() | st.floats(0, 1e308)
usages = st.builds(Usage, counts, counts, counts, counts, costs, costs)


@given(st.lists(st.none() | usages, max_size=4))
def test_the_usage_of_a_run_that_completed_is_the_one_in_its_result(turns: list[Usage | None]) -> None:
    assert msgspec.json.encode(record(log(*turns))["usage"]) == msgspec.json.encode(total(turns))


@given(st.lists(st.none() | usages, max_size=4))
def test_what_counts_as_known_was_observed(turns: list[Usage | None]) -> None:
    whole, cut_off = record(log(*turns)), record(log(*turns, open_step=True))
    assert whole["usage"].items() <= whole["observedUsage"].items()
    assert whole["observedUsage"].keys() <= whole["coverage"]["reportedSteps"].keys()
    assert cut_off["usage"] == {}
    assert cut_off["observedUsage"] == whole["observedUsage"]
