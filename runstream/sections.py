"""The sections of the settings that bound what runs may use: slots, budgets, steps, and calls that wait for others."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from actors.budgets import Budget, Budgets
from actors.request import HostLimits
from actors.usage import SAFE
from eventstore.store import Caps
from runstream.reading import Fault

Many: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]

_INT32_MAX = 2_147_483_647
_SUBJECT_CHARS_MAX = 128
_ID = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}\Z"
_IDS = "letters, digits, '.', '_' and '-', at most 80 of them, a letter or digit first"
Id: TypeAlias = Annotated[str, Meta(pattern=_ID, description=_IDS)]


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Waiting lines for run slots."""

    total: Many
    per_subject: Many


class SchedulingSettings(Struct, frozen=True, kw_only=True):
    """How many runs may execute at once, over all nodes (scheduling §1)."""

    total: Many = 32
    per_subject: Many = 4
    per_account: Many | None = None
    subjects: Mapping[str, Many] = {}
    accounts: Mapping[str, Many] = {}
    queue: QueueSettings | None = None

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        yield from _unnamed(self.subjects, self.accounts)

    def caps(self, subject: str, account: str) -> Caps:
        """The bounds for a run of *subject* on *account* (empty for none); 0 is no bound of its own."""
        return Caps(
            total=self.total,
            per_subject=self.subjects.get(subject, self.per_subject),
            per_account=self.accounts.get(account, self.per_account or 0) if account else 0,
            queue_total=self.queue.total if self.queue else 0,
            queue_per_subject=self.queue.per_subject if self.queue else 0,
        )

    @property
    def needs_account(self) -> bool:
        """Whether a run without an account is refused (`ADMISSION_IDENTITY_REQUIRED`)."""
        return self.per_account is not None or bool(self.accounts)


class BudgetSettings(Struct, frozen=True, kw_only=True):
    """What one run may use, as far as its model tells (scheduling §5)."""

    unknown_usage: Literal["reject", "allow"]
    max_tokens: Annotated[int, Meta(ge=1, le=SAFE)] | None = None
    max_cost_usd: Annotated[float, Meta(gt=0)] | None = None

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        if self.max_cost_usd is not None and not math.isfinite(self.max_cost_usd):
            yield Fault("max_cost_usd", "must be a number above 0 with an end; leave it out for no bound")

    def budget(self) -> Budget:
        """The same as the rules of a run know it."""
        return Budget(
            max_tokens=self.max_tokens or 0, max_cost_usd=self.max_cost_usd or 0.0, unknown_usage=self.unknown_usage
        )


class ResourcesSettings(Struct, frozen=True, kw_only=True):
    """Budgets of a run, all that match at once, and what an authority's "unknown" means (scheduling §5, §6)."""

    default: BudgetSettings | None = None
    subjects: Mapping[str, BudgetSettings] = {}
    accounts: Mapping[str, BudgetSettings] = {}
    authority_unknown: Literal["reject", "allow"] = "reject"

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        yield from _unnamed(self.subjects, self.accounts)

    def budgets(self) -> Budgets:
        """The budgets as the rules of a run know them."""
        return Budgets(
            default=self.default.budget() if self.default else None,
            subjects={subject: one.budget() for subject, one in self.subjects.items()},
            accounts={account: one.budget() for account, one in self.accounts.items()},
        )


class LimitsSettings(Struct, frozen=True, kw_only=True):
    """Upper bounds on what a request may ask for."""

    max_steps: Annotated[int, Meta(ge=1, le=64)] = 64
    max_output_tokens: Annotated[int, Meta(ge=1, le=65_536)] = 65_536
    idle_timeout_ms: Annotated[int, Meta(ge=1, le=_INT32_MAX)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=5)] = 5

    def host_limits(self) -> HostLimits:
        """The bounds as request checks know them."""
        return HostLimits(
            max_steps=self.max_steps,
            max_output_tokens=self.max_output_tokens,
            idle_timeout_ms=self.idle_timeout_ms,
            max_attempts=self.max_attempts,
        )


class ApprovalsSettings(Struct, frozen=True, kw_only=True):
    """Calls that wait for a person (approvals §1)."""

    interactive: bool = False
    allow_idle_pause: bool = True
    max_pending: Many = 1_000


class ApplicationToolsSettings(Struct, frozen=True, kw_only=True):
    """Calls that the application executes (application-tools §1)."""

    enabled: bool = False
    require_approval: bool = True
    max_pending: Many = 1_000


def utf16_units(text: str) -> int:
    """The length of *text* as the protocol counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _unnamed(subjects: Iterable[str], accounts: Iterable[str]) -> Iterator[Fault]:
    """What stands in the place of a subject or an account, and can be none (scheduling §1)."""
    for subject in subjects:
        if subject == "__proto__" or not 1 <= utf16_units(subject) <= _SUBJECT_CHARS_MAX:
            yield Fault(f"subjects.{subject}", f"a subject has 1 to {_SUBJECT_CHARS_MAX} characters")
    for account in accounts:
        if re.match(_ID, account) is None:
            yield Fault(f"accounts.{account}", f"an account is {_IDS}")
