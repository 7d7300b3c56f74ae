"""What a run consumed, as one `agenticdriver.usage.v2` record for accounts outside (runs §11).

It follows from the log and the provider's facts alone: whoever makes it again, makes the same.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from actors import events
from actors.events import RunEvent, Usage, timestamp

SCHEMA = "agenticdriver.usage.v2"
SAFE = 2**53 - 1
_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Usage)}

Source: TypeAlias = Literal["provider-response", "cli-report", "adapter-report", "synthetic"]
End: TypeAlias = events.RunCompleted | events.RunFailed | events.RunCancelled
_STATUS: Mapping[type[End], str] = {
    events.RunCompleted: "completed",
    events.RunFailed: "failed",
    events.RunCancelled: "cancelled",
}


class Accounting(Struct, frozen=True, kw_only=True):
    """What of the host and of the run's provider goes into its record."""

    host_id: str
    account: str | None = None
    vendor: str
    auth_mode: Literal["api-key", "cli-session", "none"]
    source: Source
    """Who counted."""
    labels: Mapping[str, str] = {}
    """The host's own; nothing of the request."""


class _Story(NamedTuple):
    """What of a log its record tells."""

    accepted: events.RunAccepted
    started_ms: int
    end: End
    steps_started: int
    turns: Sequence[Usage | None]


def record(run_id: str, log: Sequence[RunEvent], facts: Accounting) -> dict[str, Any] | None:
    """The record of the run with this whole *log*; None where it has not ended, or ended as a job that never began."""
    story = _told(log)
    if story is None:
        return None
    accepted, reported = story.accepted, _reported(story.turns)
    sums = {name: _sum(values) for name, values in reported.items()}
    observed = {name: added for name, added in sums.items() if added is not None}
    account = {} if facts.account is None else {"accountId": facts.account}
    return {
        "schema": SCHEMA,
        "eventId": run_id,
        "hostId": facts.host_id,
        **account,
        "runId": run_id,
        "subject": accepted.subject,
        "provider": accepted.provider,
        "vendor": facts.vendor,
        "model": accepted.model,
        "authMode": facts.auth_mode,
        "status": _STATUS[type(story.end)],
        "source": facts.source,
        "startedAt": timestamp(story.started_ms),
        "finishedAt": timestamp(story.end.at_ms),
        "usage": {name: added for name, added in observed.items() if len(reported[name]) == story.steps_started},
        "observedUsage": observed,
        "coverage": {
            "startedSteps": story.steps_started,
            "completedSteps": len(story.turns),
            "reportedSteps": {name: len(values) for name, values in reported.items()},
        },
        "durationMs": max(0, story.end.at_ms - story.started_ms),
        "metadata": dict(facts.labels),
    }


def _told(log: Sequence[RunEvent]) -> _Story | None:
    accepted = next((event for event in log if isinstance(event, events.RunAccepted)), None)
    end = next((event for event in log if isinstance(event, End)), None)
    started_ms = next((event.at_ms for event in log if isinstance(event, events.RunStarted)), None)
    if accepted is None or end is None or (started_ms is None and accepted.origin == "job"):
        return None
    return _Story(
        accepted,
        # Only a job is without it because it never began: any other showed `run.started` when it was accepted.
        accepted.at_ms if started_ms is None else started_ms,
        end,
        sum(isinstance(event, events.StepStarted) for event in log),
        [event.usage for event in log if isinstance(event, events.TurnCompleted)],
    )


def _reported(turns: Sequence[Usage | None]) -> dict[str, list[float]]:
    """The values of each field that any turn reported."""
    found = {name: [getattr(turn, field, None) for turn in turns] for name, field in _FIELDS.items()}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {name: values for name, values in known.items() if values}


def _sum(values: Sequence[float]) -> float | None:
    """The sum as a result has it: none where it is no safe count or no finite cost."""
    added = sum(values)
    return None if (isinstance(added, int) and added > SAFE) or not math.isfinite(added) else added
