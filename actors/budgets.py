"""What a run may consume, judged by what its own steps reported (scheduling §5).

These are observed limits: the answer in flight may overshoot, and nothing that was consumed comes back.
Logs hold a `Budget`, so this module imports nothing of the vocabulary when it is loaded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from actors.errors import Problem

if TYPE_CHECKING:  # the vocabulary itself imports Budget
    from actors.events import Usage

_SAFE = 2**53 - 1


class Budget(Struct, frozen=True, gc=False, omit_defaults=True):
    """One cap on tokens, on cost, or on both; 0 is no cap. Its fields are in logs: add, never rename or retype."""

    max_tokens: int = 0
    """Input and output together; cached and reasoning tokens are parts of them."""
    max_cost_usd: float = 0.0
    unknown_usage: Literal["reject", "allow"] = "reject"
    """Whether a run may go on, or end well, once a step did not report what the cap needs."""


class Budgets(Struct, frozen=True, kw_only=True):
    """The budgets of a deployment, by whom they bind."""

    default: Budget | None = None
    """Binds every run, beside whatever else does."""
    subjects: Mapping[str, Budget] = {}
    accounts: Mapping[str, Budget] = {}

    @property
    def needs_account(self) -> bool:
        """Whether a run whose provider is bound to no account must be refused (`ADMISSION_IDENTITY_REQUIRED`)."""
        return bool(self.accounts)

    def of(self, subject: str, account: str) -> tuple[Budget, ...]:
        """All budgets that bind a run of *subject* on *account*; they apply together."""
        found = (self.default, self.subjects.get(subject), self.accounts.get(account))
        return tuple(budget for budget in found if budget is not None)


class _Observed(NamedTuple):
    """One kind of consumption against its cap."""

    name: str
    cap: Fraction
    known: Fraction
    """The sum of all that was reported, be it of every step or of some."""
    complete: bool
    """Whether every step reported all that the cap needs."""

    def exceeds(self, *, continues: bool) -> bool:
        return self.known > _SAFE or self.known > self.cap or (continues and self.known >= self.cap)


def verdict(budgets: Sequence[Budget], usages: Sequence["Usage | None"], *, continues: bool) -> Problem | None:
    """What ends a run whose steps so far reported *usages* (None: nothing); None when it may go on.

    It *continues* before a step and after a turn with calls; a final answer exactly at the cap is within it.
    A known excess comes before an unknown, whichever budget it breaks: it holds whatever the silent steps consumed,
    and no policy about the unknown can lift it.
    """
    if not usages:
        return None
    observed = [(budget, one) for budget in budgets for one in _observed(budget, usages)]
    for _, one in observed:
        if one.exceeds(continues=continues):
            return Problem("RESOURCE_LIMIT", f"The run used up its {one.name} budget.")
    for budget, one in observed:
        if not one.complete and budget.unknown_usage == "reject":
            return Problem("RESOURCE_USAGE_UNKNOWN", f"A step did not report what the {one.name} budget needs.")
    return None


def allowance(budgets: Sequence[Budget], usages: Sequence["Usage | None"]) -> int | None:
    """The most tokens that the next step may put out, at least 1; None where no budget caps tokens."""
    caps = [budget.max_tokens for budget in budgets if budget.max_tokens]
    return max(1, min(caps) - int(_known(usages, _tokens))) if caps else None


def _observed(budget: Budget, usages: Sequence["Usage | None"]) -> Iterator[_Observed]:
    for name, cap, reported in (("token", budget.max_tokens, _tokens), ("cost", budget.max_cost_usd, _cost)):
        if cap:
            complete = all(usage is not None and None not in reported(usage) for usage in usages)
            yield _Observed(name, _exact(cap), _known(usages, reported), complete)


def _known(usages: Sequence["Usage | None"], reported: Callable[["Usage"], tuple[float | None, ...]]) -> Fraction:
    values = [value for usage in usages if usage is not None for value in reported(usage)]
    return sum((_exact(value) for value in values if value is not None), Fraction())


def _tokens(usage: "Usage") -> tuple[float | None, ...]:
    return usage.input_tokens, usage.output_tokens


def _cost(usage: "Usage") -> tuple[float | None, ...]:
    return (usage.cost_usd,)


def _exact(value: float) -> Fraction:
    """The number as it is written: three steps at 0.1 are not above a cap of 0.3."""
    return Fraction(str(value))
