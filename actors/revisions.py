"""How a run stands for the Host: its revision, which is the number of its Host events, and its status (Host runtime §1, §2).

The events themselves are `projections.host_feed`; that both count alike is a property that is tested.
Nothing here waits, reads a clock or rolls a die.
"""

from typing import Literal, TypeAlias

from actors.events import (
    ReviewAsked,
    ReviewSettled,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    ToolCompleted,
)

Status: TypeAlias = Literal[
    "created", "running", "waiting_for_approval", "completed", "failed", "cancelled", "timed_out"
]
DEADLINE_REACHED = "DEADLINE_REACHED"
COUNTED = frozenset[type](
    {
        RunAccepted,
        RunStarted,
        ReviewAsked,
        ReviewSettled,
        RunResumed,
        ToolCompleted,
        RunCompleted,
        RunFailed,
        RunCancelled,
    }
)
"""Events that may be Host events; of a long log most are not, and need not be looked at closer."""
_TIMED_OUT = frozenset({DEADLINE_REACHED, "APPROVAL_EXPIRED", "IDLE_TIMEOUT"})


def added(event: RunEvent, *, started: bool, by_hand: bool) -> int:
    """How many Host events *event* is, in a run that was *started* before it, and is resumed *by_hand* or by itself."""
    match event:
        case RunFailed():
            return 1 if started else 2  # what never began cannot fail: it begins first (DESIGN §5)
        case ReviewSettled(outcome="approved"):
            return 1 if by_hand else 2  # the grant, and the claim that comes with it
        case (
            RunAccepted()
            | RunStarted()
            | ReviewAsked()
            | RunResumed()
            | ToolCompleted()
            | RunCompleted()
            | RunCancelled()
        ):
            return 1
        case _:
            return 0


def end_of(event: RunCompleted | RunFailed | RunCancelled) -> Status:
    """The status that *event* leaves for good (Host mapping §4)."""
    match event:
        case RunCompleted():
            return "completed"
        case RunFailed(problem=problem) | RunCancelled(problem=problem) if problem.code in _TIMED_OUT:
            return "timed_out"
        case RunFailed():
            return "failed"
        case RunCancelled():
            return "cancelled"
