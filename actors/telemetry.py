"""What a node tells of itself while it works; this port hears nothing, and so costs nothing.

Nothing told here is anything that a user wrote, nor who they are. What is told are words of ours, how long things took,
and names of providers, models and tools, which whoever listens keeps within the configured ones. Ids of runs go to spans
and log lines alone, never to a metric. A verb must only note what it hears: it is called in the middle of the work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Literal, NamedTuple, TypeAlias

from actors import run
from actors.events import Origin, RunAccepted

Outcome: TypeAlias = Literal["completed", "failed", "cancelled", "interrupted"]
"""How an errand went; *interrupted*: this node did not see it end, since the run ended or went elsewhere."""


class About(NamedTuple):
    """What a log line is about, as far as the task that writes it knows."""

    node: str
    run: str = ""
    epoch: int = 0


ABOUT: ContextVar[About | None] = ContextVar("runstream_about", default=None)
"""Inherited by every task that works for the same run."""


class Labels(NamedTuple):
    """What of a run may be told."""

    origin: Origin
    provider: str
    model: str


class Levels(NamedTuple):
    """How a node stands at this moment."""

    leases: int
    """Runs that it executes, those that wait for their slot included."""
    permits: int
    """Run slots that they hold."""
    waiting: int
    """Runs of it that wait for a slot."""
    viewers: int
    """Callers that follow a run through it."""
    silent: int
    """Partitions whose last call failed, or none of which was answered yet."""


class Correlation(NamedTuple):
    """What a caller says of itself for tracing (overview §12), checked."""

    trace_id: int = 0
    """0 where no trace was named."""
    span_id: int = 0
    sampled: bool = False
    request_id: str = ""


class Noted:
    """An errand under way; whoever carries it out says how it went."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: Outcome = "interrupted"


class Telemetry:
    """Hears nothing; `runstream.telemetry` has one that does."""

    def watch(self, levels: Callable[[], Levels]) -> None:
        """Note whom to ask how the node stands."""

    def caller(self, correlation: Correlation) -> AbstractContextManager[None]:
        """What is begun meanwhile belongs to the caller's trace."""
        del correlation
        return nullcontext()

    def run(self, labels: Labels, about: About) -> AbstractContextManager[Noted]:
        """This node executes a run meanwhile."""
        del labels, about
        return nullcontext(Noted())

    def step(self, labels: Labels) -> AbstractContextManager[Noted]:
        """A model is called meanwhile."""
        del labels
        return nullcontext(Noted())

    def tool(self, name: str) -> AbstractContextManager[Noted]:
        """A host tool is called meanwhile."""
        del name
        return nullcontext(Noted())

    def run_began(self, labels: Labels) -> None:
        """A run was accepted here."""

    def run_ended(self, labels: Labels, outcome: Outcome, seconds: float) -> None:
        """The end of a run was recorded here, *seconds* after it was accepted."""

    def appended(self, outcome: str, seconds: float) -> None:
        """An append of facts was answered; text on its way to a feed is not told."""

    def took_over(self) -> None:
        """A run that another node left was claimed."""

    def fenced(self) -> None:
        """A run that was executed here went elsewhere."""

    def store_paused(self) -> None:
        """A partition that had answered does not any more."""

    def connected(self) -> None:
        """A connection to the store was made, the first one or another."""

    def usage_not_kept(self) -> None:
        """A usage record was offered and not taken."""


SILENT = Telemetry()


def labels_of(accepted: RunAccepted) -> Labels:
    """What may be told of the run that was *accepted*."""
    return Labels(accepted.origin, accepted.provider, accepted.model)


def tell_change(telemetry: Telemetry, before: run.State, after: run.State, now_ms: int) -> None:
    """Tell of a run's beginning or end, whichever lies between two states of it; each was recorded once, by one node."""
    if not isinstance(after, run.Live | run.Ended):
        return
    labels = labels_of(after.accepted)
    if isinstance(before, run.New):
        telemetry.run_began(labels)
    if isinstance(after, run.Ended) and not isinstance(before, run.Ended):
        telemetry.run_ended(labels, after.kind, max(0, now_ms - after.accepted.at_ms) / 1_000)


def outcome_of(command: run.Command) -> Outcome:
    """How the errand went that ended in *command*."""
    match command:
        case run.Fail():
            return "failed"
        case run.Cancel():
            return "cancelled"
        case _:
            return "completed"
