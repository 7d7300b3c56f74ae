"""What a request may use on this host, and the command that takes it on within that.

Nothing here waits, reads a clock or rolls a die.
"""

from typing import Any, NamedTuple

from actors import run
from actors.budgets import Budget
from actors.events import ToolFact
from actors.request import RunRequest


class Bounds(NamedTuple):
    """What a request may use on this host, after the host's own limits."""

    max_steps: int
    max_output_tokens: int
    max_attempts: int
    idle_timeout_ms: int
    account: str
    tools: tuple[ToolFact, ...] = ()
    budgets: tuple[Budget, ...] = ()
    accounted: bool = False
    retention_ms: int = 0
    unbound: bool = False
    """A budget of accounts binds, and the provider is bound to none: no new run may begin (runs §4 step 20)."""


def accept(request: RunRequest, bounds: Bounds, **more: Any) -> run.Accept:
    """The command that takes *request* on within *bounds*; *more* are its other members."""
    members: dict[str, Any] = {
        "request": request,
        "max_steps": bounds.max_steps,
        "max_output_tokens": bounds.max_output_tokens,
        "max_attempts": bounds.max_attempts,
        "idle_timeout_ms": bounds.idle_timeout_ms,
        "account": bounds.account,
        "tools": bounds.tools,
        "budgets": bounds.budgets,
        "accounted": bounds.accounted,
        "retention_ms": bounds.retention_ms,
    }
    return run.Accept(**(members | more))
