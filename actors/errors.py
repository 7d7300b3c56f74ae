"""Refusals and failures, named by who must act.

`Refused` is for the caller, `Unavailable` (from the store) for the runtime, `Fenced` for the executor.
What a model or a tool got wrong is no exception but an event: the run must remember it.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field


class Problem(Struct, frozen=True):
    """The public error object of both an HTTP envelope and a terminal event (wire overview §9)."""

    code: str
    message: str
    retryable: bool = False
    outcome: Literal["uncertain"] | UnsetType = UNSET
    run_id: str | UnsetType = field(default=UNSET, name="runId")
    """Of our own: the run that is in the way, told to those who can follow it (extensions §1)."""
    oldest: int | UnsetType = UNSET
    """Of our own: number of the oldest event that is still kept."""


class Refused(Exception):
    """The caller asked for something it cannot have; never retried by us."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        retryable: bool = False,
        uncertain: bool = False,
        run_id: str | UnsetType = UNSET,
        oldest: int | UnsetType = UNSET,
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        outcome: Literal["uncertain"] | UnsetType = "uncertain" if uncertain else UNSET
        self.problem = Problem(code, message or code, retryable, outcome, run_id, oldest)

    @classmethod
    def of(cls, problem: Problem) -> "Refused":
        """The refusal that tells *problem*."""
        refused = cls(problem.code, problem.message)
        refused.problem = problem
        return refused

    @property
    def code(self) -> str:
        """The stable code that clients branch on."""
        return self.problem.code


class Failed(Exception):
    """What a provider raises when a model call failed in a way it understands (providers §5).

    The executor records it as the run's failure; any other exception becomes `INTERNAL_ERROR` without detail.
    """

    def __init__(self, code: str, message: str = "", *, retryable: bool = False, uncertain: bool = False) -> None:
        super().__init__(code)
        self.problem = Problem(code, message or code, retryable, "uncertain" if uncertain else UNSET)


class Fenced(Exception):
    """Another node owns the run, or the run has ended: stop, touch nothing."""
