"""What must hold of a deployment whatever happened to it: judged from what clients saw and what the store holds.

Nothing here waits, reads a clock or rolls a die. Whoever gathers a history leaves out what it cannot know.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})
Kind: TypeAlias = Literal["run", "key", "session", "approval", "ticket", "other"]
Said: TypeAlias = Literal[
    "started", "job", "completed", "decision", "delivery", "cancelled", "session", "turn", "deleted"
]


class Written(NamedTuple):
    """One entry of a log."""

    version: int
    command: str
    event: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.event["type"])


class Kept(NamedTuple):
    """What the store holds of one actor."""

    actor: str
    log: Sequence[Written]
    feed: Mapping[int, bytes]
    """Each item as clients see it."""
    log_head: int
    feed_head: int
    ended: bool
    whole: bool = True
    """Whether nothing of it was erased or trimmed."""

    @property
    def kind(self) -> Kind:
        first = self.log[0].kind if self.log else ""
        known: dict[str, Kind] = {
            "run.accepted": "run",
            "key.reserved": "key",
            "session.created": "session",
            "approval.requested": "approval",
            "ticket.opened": "ticket",
        }
        return known.get(first, "other")

    @property
    def lost(self) -> bool:
        """Whether it ended because the store had lost what was seen of it."""
        return bool(self.log) and self.log[-1].event.get("cause") == "history"

    def of(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Its events of these kinds."""
        return [one.event for one in self.log if one.kind in kinds]


class Read(NamedTuple):
    """One reading of one feed by one client, from a cursor on."""

    reader: str
    feed: str
    """The run's id; a view that numbers its events otherwise has a name of its own."""
    after: int
    events: Sequence[tuple[int, bytes]]
    over: bool
    """Whether the reader was told that nothing follows."""


class Acknowledged(NamedTuple):
    """What a client was told is so."""

    what: Said
    actor: str
    detail: Any = None


class Effect(NamedTuple):
    """A tool did something; call ids are never used twice by the workload."""

    run: str
    call: str
    tool: str
    idempotent: bool = False
    application: bool = False


class Owned(NamedTuple):
    """An append that named an epoch, and was written."""

    actor: str
    epoch: int
    node: str


class Outcome(NamedTuple):
    """How an attempt under a key ended for its client."""

    key: str
    run: str
    end: Mapping[str, Any]
    """The terminal event."""
    replayed: bool


class History(NamedTuple):
    """All of it."""

    kept: Sequence[Kept] = ()
    reads: Sequence[Read] = ()
    acknowledged: Sequence[Acknowledged] = ()
    effects: Sequence[Effect] = ()
    owned: Sequence[Owned] = ()
    """In the order in which they were written."""
    outcomes: Sequence[Outcome] = ()
    held: Mapping[str, Iterable[str]] = {}
    """Holders of permits that are in use, by pool, once all is over; one that is not begun lapses by itself."""
    due: Sequence[tuple[str, str]] = ()
    """Actors and reasons that are due or will be, once all is over."""
    listed: Sequence[tuple[str, str]] = ()
    """Names of lists and their members, once all is over."""
    complaints: Sequence[str] = ()
    """What clients or nodes met that nobody may meet."""
    may_lose: bool = False
    """Whether what was shown, and is no end, may be lost with a server; whoever saw it is shown nothing after it."""


def faults(history: History) -> list[str]:
    """What is wrong with *history*."""
    return [one for check in CHECKS for one in check(history)]


# Streams.


def contiguous(history: History) -> Iterator[str]:
    """Logs and feeds have no gap, and their heads say how far they go."""
    for kept in history.kept:
        if kept.whole and [one.version for one in kept.log] != list(range(1, kept.log_head + 1)):
            yield f"the log of {kept.actor} has a gap or goes beyond its head {kept.log_head}"
        if kept.whole and sorted(kept.feed) != list(range(1, kept.feed_head + 1)):
            yield f"the feed of {kept.actor} has a gap or goes beyond its head {kept.feed_head}"


def same_for_all(history: History) -> Iterator[str]:
    """Every reader sees each number once, in order, and the same under it as all others and the store."""
    known: dict[tuple[str, int], bytes] = {
        (kept.actor, number): data for kept in history.kept for number, data in kept.feed.items()
    }
    stored = {kept.actor for kept in history.kept if kept.whole}
    lost = {kept.actor for kept in history.kept if kept.lost}
    gone: dict[tuple[str, int], bytes] = {}
    for read in history.reads:
        numbers = [number for number, _ in read.events]
        if numbers != list(range(read.after + 1, read.after + 1 + len(numbers))):
            yield f"{read.reader} read {numbers} of {read.feed} after {read.after}"
        if read.feed in lost or (history.may_lose and not read.over):
            yield from _of_one_history(read, known, gone)
            continue
        for number, data in read.events:
            if read.feed in stored and (read.feed, number) not in known:
                yield f"{read.reader} saw number {number} of {read.feed}, which is not stored"
            elif known.setdefault((read.feed, number), data) != data:
                other = known[read.feed, number]
                yield f"{read.reader} saw something else under {number} of {read.feed}: {data!r}, and not {other!r}"


def _of_one_history(
    read: Read, known: Mapping[tuple[str, int], bytes], gone: dict[tuple[str, int], bytes]
) -> Iterator[str]:
    """Whoever saw what was lost saw nothing of what took its place; and all who saw it saw the same."""
    parted = False
    for number, data in read.events:
        at = (read.feed, number)
        if known.get(at) != data:
            parted = True
            if gone.setdefault(at, data) != data:
                yield f"{read.reader} saw something else under {number} of {read.feed}, before it was lost"
        elif parted:
            yield f"{read.reader} saw number {number} of {read.feed} after what was lost of it"


def one_end(history: History) -> Iterator[str]:
    """A run has one terminal event, the last; a reader who was told that all is over saw it."""
    for kept in history.kept:
        if kept.kind != "run":
            continue
        ends = [one.version for one in kept.log if one.kind in ENDS]
        if ends != ([kept.log_head] if kept.ended else []):
            yield f"the log of {kept.actor} ends at {ends}, its head is {kept.log_head}, ended: {kept.ended}"
        shown = [number for number, data in kept.feed.items() if _type_of(data) in ENDS]
        if kept.whole and shown != ([kept.feed_head] if kept.ended else []):
            yield f"the feed of {kept.actor} ends at {shown}, its head is {kept.feed_head}, ended: {kept.ended}"
    for read in history.reads:
        ends = [number for number, data in read.events if _type_of(data) in ENDS]
        if ends and (len(ends) > 1 or ends[0] != read.events[-1][0]):
            yield f"{read.reader} read on in {read.feed} after its end"
        if read.over and read.events and not ends:
            yield f"{read.reader} was told that {read.feed} is over, and saw no end"


def texts_whole(history: History) -> Iterator[str]:
    """What was streamed of a turn is what the turn says, nothing of it twice."""
    for kept in history.kept:
        if kept.kind != "run" or not kept.whole:
            continue
        streamed = [""]
        for number in sorted(kept.feed):
            if _type_of(kept.feed[number]) == "step.started":
                streamed.append("")
            elif _type_of(kept.feed[number]) == "text.delta":
                streamed[-1] += json.loads(kept.feed[number])["text"]
        for event in kept.of("turn.completed"):
            step, text = event["step"], event.get("text", "")
            if event.get("streamed") and (step >= len(streamed) or streamed[step] != text):
                yield f"step {step} of {kept.actor} says {text!r}, and showed {streamed[step:][:1]}"


def all_ended(history: History) -> Iterator[str]:
    """Whatever was accepted has ended."""
    for kept in history.kept:
        if kept.kind in {"run", "approval", "ticket"} and not kept.ended:
            yield f"the {kept.kind} {kept.actor} has not ended; last: {kept.log[-1].kind}"


# Owners.


def one_writer(history: History) -> Iterator[str]:
    """An epoch has one writer, and epochs rise."""
    writers: dict[tuple[str, int], str] = {}
    last: dict[str, int] = {}
    for actor, epoch, node in history.owned:
        if writers.setdefault((actor, epoch), node) != node:
            yield f"{node} wrote {actor} under epoch {epoch} of {writers[actor, epoch]}"
        if epoch < last.get(actor, 0):
            yield f"{node} wrote {actor} under epoch {epoch} after {last[actor]}"
        last[actor] = max(epoch, last.get(actor, 0))
    for kept in history.kept:
        if kept.kind == "run":  # beside it, each run counts its own commands
            yield from _commands_rise(kept)


def _commands_rise(kept: Kept) -> Iterator[str]:
    """What an executor wrote rises within its epoch, and by epochs; a command wrote in one place."""
    before = (0, 0)
    places: dict[str, int] = {}
    for one in kept.log:
        if places.setdefault(one.command, one.version) != one.version and kept.log[one.version - 2].command != (
            one.command
        ):
            yield f"the command {one.command} wrote {kept.actor} twice"
        if not _is_executors(one.command):
            continue
        epoch, number = map(int, one.command[1:].split("."))
        if (epoch, number) < before:
            yield f"{kept.actor} has {one.command} after x{before[0]}.{before[1]}"
        before = epoch, number


def _is_executors(command: str) -> bool:
    return command.startswith("x") and command[1:].replace(".", "", 1).isdigit()


# Effects.


def effects_once(history: History) -> Iterator[str]:
    """A tool's effect happens at most once, if it may not be repeated; and only after it was recorded that it begins."""
    begun, ended = _calls(history)
    count: dict[str, int] = defaultdict(int)
    for effect in history.effects:
        count[effect.call] += 1
        if count[effect.call] == 2 and not effect.idempotent:
            yield f"{effect.tool} did {effect.call} of {effect.run} again"
        if begun.get(effect.call) != effect.run:
            yield f"{effect.tool} did {effect.call} of {effect.run}, and nothing said that it begins"
    for call in ended:
        if call not in count:
            yield f"the call {call} has an output, and nothing was done"


def _calls(history: History) -> tuple[dict[str, str], set[str]]:
    """Calls that were begun, with their runs, and calls that have an output."""
    begun: dict[str, str] = {}
    ended: set[str] = set()
    for kept in history.kept:
        call = ""
        for one in kept.log if kept.kind == "run" else ():
            if one.kind == "tool.called":
                call = str(one.event["call"]["id"])
            elif one.kind in {"tool.started", "ticket.offered"}:
                begun[call] = kept.actor
            elif one.kind == "tool.completed":
                ended.add(str(one.event["call_id"]))
    return begun, ended


# Answers.


def acknowledged(history: History) -> Iterator[str]:
    """What a client was told is so."""
    runs = {kept.actor: kept for kept in history.kept}
    for one in history.acknowledged:
        kept = runs.get(one.actor)
        if kept is None or not kept.log_head:
            yield f"{one.what} was acknowledged of {one.actor}, of which nothing is stored"
        elif kept.whole and not _HOLDS[one.what](kept, one.detail):
            yield f"{one.what} ({one.detail}) was acknowledged of {one.actor}, and is not stored"


def _settled_as(kept: Kept, detail: Any) -> bool:
    approval, outcome, by = detail
    return any(
        (event["approval_id"], event["outcome"], event.get("by", "")) == (approval, outcome, by)
        for event in kept.of("review.settled")
    )


_HOLDS: Mapping[Said, Callable[[Kept, Any], bool]] = {
    "started": lambda kept, _: kept.kind == "run",
    "job": lambda kept, _: kept.kind == "run" and kept.log[0].event.get("origin") == "job",
    "completed": lambda kept, text: [event["text"] for event in kept.of("run.completed")] == [text],
    "decision": _settled_as,
    "delivery": lambda kept, call: any(event["call_id"] == call for event in kept.of("tool.completed")),
    "cancelled": lambda kept, _: kept.ended,
    "session": lambda kept, _: kept.kind == "session",
    "turn": lambda kept, run: any(event["run_id"] == run for event in kept.of("turn.committed")),
    "deleted": lambda kept, _: bool(kept.of("session.deleted")),
}


def one_decision(history: History) -> Iterator[str]:
    """An approval is settled once, by both logs alike, and only one decision about it was acknowledged."""
    settled: dict[str, list[str]] = defaultdict(list)
    for kept in history.kept:
        if kept.kind == "run":
            for event in kept.of("review.settled"):
                settled[event["approval_id"]].append(str(event["outcome"]))
    for kept in history.kept:
        if kept.kind != "approval" or not kept.whole:
            continue
        told = [_outcome_of(one.event) for one in kept.log[1:]]
        if len(settled[kept.actor]) > 1 or told != settled[kept.actor]:
            yield f"the approval {kept.actor} was settled as {settled[kept.actor]}, and says {told}"
    decisions: dict[str, set[str]] = defaultdict(set)
    for one in history.acknowledged:
        if one.what == "decision":
            approval, outcome, _ = one.detail
            decisions[approval].add(outcome)
    for approval, outcomes in decisions.items():
        if len(outcomes) > 1:
            yield f"of the approval {approval} more than one decision was acknowledged: {sorted(outcomes)}"


def _outcome_of(event: Mapping[str, Any]) -> str:
    return str(event["outcome"]) if event["type"] == "approval.decided" else str(event["type"]).rpartition(".")[2]


def one_run_per_key(history: History) -> Iterator[str]:
    """A key stands for one run; once that completed, everybody who asks hears the same.

    The workload never asks two things with the same input, so two runs with one input are one thing done twice.
    """
    asked: dict[str, list[str]] = defaultdict(list)
    for kept in history.kept:
        request = kept.log[0].event["request"] if kept.kind == "run" else {}
        if request.get("idempotencyKey") or (kept.kind == "run" and kept.log[0].event.get("origin") == "job"):
            asked[request["input"]].append(kept.actor)
    for runs in asked.values():
        if len(runs) > 1:
            yield f"one key stands for {sorted(runs)}"
    by_key: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in history.outcomes:
        by_key[outcome.key].append(outcome)
    for key, outcomes in by_key.items():
        if len({one.run for one in outcomes}) > 1:
            yield f"the key {key} was answered by {sorted({one.run for one in outcomes})}"
        ends = {(one.end["type"], one.end.get("result", {}).get("text")) for one in outcomes}
        if len(ends) > 1 and any(kind == "run.completed" for kind, _ in ends):
            yield f"the key {key} was told {sorted(map(str, ends))}"


# Sessions.


def sessions_whole(history: History) -> Iterator[str]:
    """Turns of a session come one after another, each ends with its run, and none is left running."""
    runs = {kept.actor: kept for kept in history.kept if kept.kind == "run"}
    committed: set[str] = set()
    whole = {kept.actor for kept in history.kept if kept.kind == "session" and kept.whole}
    for kept in history.kept:
        if kept.actor not in whole:
            continue
        running = ""
        for one in kept.log[1:]:
            run = str(one.event.get("run_id", ""))
            if (one.kind == "turn.reserved") == bool(running) and one.kind != "session.deleted":
                yield f"the session {kept.actor} has {one.kind} of {run} while {running or 'nothing'} runs"
            if one.kind in {"turn.committed", "turn.released"} and run != running:
                yield f"the session {kept.actor} has {one.kind} of {run}, not of {running}"
            if one.kind == "turn.committed":
                committed.add(run)
            running = run if one.kind == "turn.reserved" else ""
        if running and (running not in runs or runs[running].ended):
            yield f"the session {kept.actor} is left running {running}"
    for actor, kept in runs.items():
        named = kept.log[0].event.get("session")
        if named is not None and named["id"] in whole and bool(kept.of("run.completed")) != (actor in committed):
            yield f"the turn {actor} of {named['id']} ended as {kept.log[-1].kind}, committed: {actor in committed}"


# What is left.


def nothing_left(history: History) -> Iterator[str]:
    """Nobody holds what is over, nothing is due any more but retention, and nothing waits in an inbox."""
    may_hold = _holding(history)
    for pool, holders in history.held.items():
        if pool in {"keys", "host-keys"}:
            continue
        for holder in sorted(set(holders) - may_hold.get(pool, set())):
            yield f"{holder} still holds a permit of {pool}"
    for actor, reason in history.due:
        if reason != "retention":
            yield f"{reason} of {actor} is still due"
    for name, member in history.listed:
        if name.startswith("inbox:"):
            yield f"{member} still waits in {name}"


def all_counted(history: History) -> Iterator[str]:
    """The ledger counts whoever holds a place when all is over; so only after it was held against the runs."""
    for pool, holders in _holding(history).items():
        for holder in sorted(holders - set(history.held.get(pool, ()))):
            yield f"{holder} is not counted in {pool}"


def _holding(history: History) -> dict[str, set[str]]:
    """Who holds a place when all is over, by its pool."""
    open_sessions = {kept.actor for kept in history.kept if kept.kind == "session" and not kept.ended}
    jobs = {kept.actor for kept in history.kept if kept.kind == "run" and kept.log[0].event.get("origin") == "job"}
    hosts = {kept.actor for kept in history.kept if kept.kind == "run" and kept.log[0].event.get("host")}
    return {"sessions": open_sessions, "jobs": jobs, "job-bytes": jobs, "host-runs": hosts}


def no_complaints(history: History) -> Iterator[str]:
    """Nobody met what nobody may meet."""
    yield from history.complaints


def _type_of(event: bytes) -> str:
    begin = len(b'{"type":"')
    return event[begin : event.index(b'"', begin)].decode()


CHECKS = (
    contiguous,
    same_for_all,
    one_end,
    texts_whole,
    all_ended,
    one_writer,
    effects_once,
    acknowledged,
    one_decision,
    one_run_per_key,
    sessions_whole,
    nothing_left,
    no_complaints,
)
