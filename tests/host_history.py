"""What must hold of Host runs whatever happened: judged from what clients were told, and from what the store holds.

Nothing here waits, reads a clock or rolls a die, and nothing of the host's own counting is asked.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.history import Kept, Written

HOST_ENDS = frozenset({"completed", "failed", "cancelled", "timed_out"})
_ALWAYS = frozenset(
    {
        "run.accepted",
        "run.started",
        "review.asked",
        "run.resumed",
        "tool.completed",
        "run.completed",
        "run.failed",
        "run.cancelled",
    }
)
"""Kinds of events of a Host run that are each one Host event; so is an answer that approves (Host mapping §4)."""


class Answered(NamedTuple):
    """How a change under a key was answered, once it was decided."""

    asker: str
    subject: str
    operation: str
    key: str
    run: str
    """The id of the run's log."""
    asked: Mapping[str, Any]
    code: str
    """Empty where it was carried out."""
    revision: int
    status: str


class Viewed(NamedTuple):
    """A run as one client was shown it; a client's views are in the order in which it asked."""

    reader: str
    run: str
    view: Mapping[str, Any]


class HostRead(NamedTuple):
    """Events of one run that one client read, from a cursor on."""

    reader: str
    run: str
    after: int
    events: Sequence[tuple[int, bytes]]
    over: bool
    """Whether the reader was told that nothing follows."""


class HostHistory(NamedTuple):
    """All of it, in the order in which it came."""

    kept: Sequence[Kept] = ()
    answers: Sequence[Answered] = ()
    views: Sequence[Viewed] = ()
    reads: Sequence[HostRead] = ()


def host_faults(history: HostHistory) -> list[str]:
    """What is wrong with *history*."""
    return [one for check in HOST_CHECKS for one in check(history)]


def one_outcome_per_key(history: HostHistory) -> Iterator[str]:
    """Whoever asks under a key is told the same, on any node, at any time (Host runtime §8)."""
    told: dict[tuple[str, str, str], set[tuple[str, int, str]]] = defaultdict(set)
    for one in history.answers:
        told[one.subject, one.operation, one.key].add((one.code, one.revision, one.status))
    for (_, operation, key), outcomes in told.items():
        if len(outcomes) > 1:
            yield f"{operation} under {key} was answered with {sorted(outcomes)}"


def revisions_as_told(history: HostHistory) -> Iterator[str]:
    """A change raises the revision it named by one, and is what the log holds there; no other change is (§3, §9)."""
    logs = {kept.actor: _host_events(kept) for kept in history.kept}
    of: dict[tuple[str, int], str] = {}
    for one in history.answers:
        if one.code:
            continue
        expected = 2 if one.operation == "create_run" else one.asked["expectedRevision"] + 1
        if (one.revision, one.status) != (expected, _status_after(one)):
            yield f"{one.asker} was told {one.revision} {one.status} of {one.operation} at {expected - 1} of {one.run}"
        events = logs.get(one.run, ())
        found = events[one.revision - 1] if 0 < one.revision <= len(events) else None
        if found is None or not _is_that(one, found):
            yield f"{one.operation} made revision {one.revision} of {one.run}, where {found and found.kind} is"
        if of.setdefault((one.run, one.revision), f"{one.operation} {one.key}") != f"{one.operation} {one.key}":
            yield f"{one.operation} {one.key} and {of[one.run, one.revision]} both made {one.revision} of {one.run}"


def refused_for_a_reason(history: HostHistory) -> Iterator[str]:
    """A conflict names a revision that the run has had, and not one before that which was named."""
    logs = {kept.actor: _host_events(kept) for kept in history.kept}
    for one in history.answers:
        if one.code != "conflict" or one.operation == "create_run":
            continue
        if not one.asked["expectedRevision"] <= one.revision <= len(logs.get(one.run, ())):
            yield f"{one.operation} at {one.asked['expectedRevision']} of {one.run} conflicts with {one.revision}"


def nothing_before_it_is_resumed(history: HostHistory) -> Iterator[str]:
    """A Host run calls nothing before all calls of its turn that need it were reviewed, approved and resumed (§5)."""
    for kept in history.kept:
        if not _is_host(kept):
            continue
        protected = {tool["name"] for tool in kept.log[0].event.get("tools", ()) if tool.get("requires_approval")}
        turn: list[Mapping[str, Any]] = []
        asked: dict[str, str] = {}
        resumed: set[str] = set()
        for one in kept.log:
            if one.kind == "turn.completed":
                turn = [call for call in one.event.get("tool_calls", ()) if call["name"] in protected]
            elif one.kind == "review.asked":
                asked[one.event["approval_id"]] = one.event["call_id"]
            elif one.kind == "run.resumed":
                resumed.add(asked.get(one.event["approval_id"], ""))
            elif one.kind == "tool.called":
                for call in turn:
                    if call["id"] not in resumed:
                        yield f"{kept.actor} came to {one.event['call']['id']} before {call['id']} was resumed"


def events_alike(history: HostHistory) -> Iterator[str]:
    """Every reader sees each number once, in order, and the same under it as all others; as many as the log holds."""
    logs = {kept.actor: _host_events(kept) for kept in history.kept}
    known: dict[tuple[str, int], bytes] = {}
    for read in history.reads:
        numbers = [number for number, _ in read.events]
        if numbers != list(range(read.after + 1, read.after + 1 + len(numbers))):
            yield f"{read.reader} read the Host events {numbers} of {read.run} after {read.after}"
        for number, data in read.events:
            if known.setdefault((read.run, number), data) != data:
                yield f"{read.reader} saw something else as Host event {number} of {read.run}"
        last = read.after + len(numbers)
        if last > len(logs.get(read.run, ())):
            yield f"{read.reader} saw {last} Host events of {read.run}, which has {len(logs.get(read.run, ()))}"
        if read.over and last != len(logs.get(read.run, ())):
            yield f"{read.reader} was told that {read.run} is over after {last} Host events"
        if read.over and json.loads(read.events[-1][1])["status"] not in HOST_ENDS:
            yield f"{read.reader} was told that {read.run} is over, and saw no end"


def views_alike(history: HostHistory) -> Iterator[str]:
    """A view belongs to its revision; to a client it never goes back, nor behind what the client was told."""
    known: dict[tuple[str, int], Mapping[str, Any]] = {}
    last: dict[tuple[str, str], int] = defaultdict(int)
    for one in history.views:
        revision = one.view["revision"]
        if known.setdefault((one.run, revision), one.view) != one.view:
            yield f"{one.reader} saw another view of {one.run} at {revision}"
        if revision < last[one.reader, one.run]:
            yield f"{one.reader} saw {one.run} at {revision} after {last[one.reader, one.run]}"
        last[one.reader, one.run] = revision


def _host_events(kept: Kept) -> list[Written]:
    """The entries that are one Host event each: the first is revision 1."""
    return [one for one in kept.log if one.kind in _ALWAYS or one.event.get("outcome") == "approved"]


def _is_host(kept: Kept) -> bool:
    return kept.kind == "run" and bool(kept.log[0].event.get("host"))


def _status_after(one: Answered) -> str:
    if one.operation == "resolve_approval":
        return "waiting_for_approval" if one.asked["resolution"] == "approved" else "failed"
    return "cancelled" if one.operation == "cancel_run" else "running"


def _is_that(one: Answered, found: Written) -> bool:
    """Whether the event *found* is what the change does."""
    match one.operation:
        case "create_run":
            return found.kind == "run.started"
        case "cancel_run":
            return found.kind == "run.cancelled"
        case "resume_run":
            return found.kind == "run.resumed" and found.event["approval_id"] == one.asked["approvalId"]
        case _ if one.asked["resolution"] == "denied":
            return found.kind == "run.failed"
        case _:
            return found.kind == "review.settled" and found.event["approval_id"] == one.asked["approvalId"]


HOST_CHECKS = (
    one_outcome_per_key,
    revisions_as_told,
    refused_for_a_reason,
    nothing_before_it_is_resumed,
    events_alike,
    views_alike,
)
