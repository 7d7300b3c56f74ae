"""How a run's end reads through the Host: its event, its result and its error (Host runtime §11, mapping §4 and C20)."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import UNSET

from actors import events
from actors.errors import Problem
from actors.events import Usage

Status: TypeAlias = Literal[
    "created", "running", "waiting_for_approval", "completed", "failed", "cancelled", "timed_out"
]
DENIED = "tool approval denied"
CANCELLED = "agent run cancelled"
_LOSSES = frozenset({"node", "overflow", "history"})
_ERRORS: Mapping[str, str] = {
    "APPROVAL_EXPIRED": "approval expired",
    "APPROVAL_REQUIRED": "Tool call denied",
    "DEADLINE_REACHED": "Timeout",
    "IDLE_TIMEOUT": "Timeout",
    "RATE_LIMITED": "Rate limited",
}
_STOPS: Mapping[str, str] = {"APPROVAL_REQUIRED": "tool_call_denied", "STEP_LIMIT": "tool_round_budget_exceeded"}
_TIMED_OUT = frozenset({"DEADLINE_REACHED", "APPROVAL_EXPIRED", "IDLE_TIMEOUT"})


class Spent(NamedTuple):
    """What the turns so far consumed; what was not reported counts as nothing."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cost_usd: float | None = None

    def plus(self, usage: Usage | None) -> "Spent":
        """The sums with one more turn."""
        if usage is None:
            return self
        cost_usd = self.cost_usd if usage.cost_usd is None else (self.cost_usd or 0.0) + usage.cost_usd
        return Spent(
            self.input + (usage.input_tokens or 0),
            self.output + (usage.output_tokens or 0),
            self.cached + (usage.cached_input_tokens or 0),
            self.reasoning + (usage.reasoning_tokens or 0),
            cost_usd,
        )


class End(NamedTuple):
    """An end as the Host tells it."""

    type: str
    status: Status
    data: Any
    result: Any
    error: str
    uncertain: bool


def completed(name: str, event: events.RunCompleted, spent: Spent) -> End:
    """The end of the run *name* that has its answer."""
    result = _result(name, event.text, event.finish_reason, spent)
    if event.output is not UNSET:
        result["output"] = event.output
    return End("run_completed", "completed", result, result, "", uncertain=False)


def failed(name: str, event: events.RunFailed, spent: Spent, settled: events.ReviewSettled | None) -> End:
    """The end of the run *name* by a rule, a provider or a loss; *settled* is the answer that ended it, if one did."""
    problem = event.problem
    uncertain = problem.outcome is not UNSET
    if problem.code == "APPROVAL_DENIED" and settled is not None:
        data = {"approval_id": settled.approval_id, "resolution": "denied", "reason": settled.reason}
        return End("approval_denied", "failed", data, None, settled.reason or DENIED, uncertain)
    if problem.code == "APPROVAL_EXPIRED" and settled is not None:
        data = {"approval_id": settled.approval_id, "wire_code": problem.code}
        return End("run_timed_out", "timed_out", data, data, _ERRORS[problem.code], uncertain)
    if event.cause in _LOSSES and problem.code not in _TIMED_OUT:
        return End("run_failed", "failed", {}, {}, "execution interrupted", uncertain)
    return _stopped(name, problem, spent, "failed")


def cancelled(name: str, event: events.RunCancelled, spent: Spent) -> End:
    """The end of the run *name* by its cancel signal."""
    if event.cause in {"idle", "shutdown", "buffer", "rule"} or event.problem.code in _TIMED_OUT:
        return _stopped(name, event.problem, spent, "cancelled")
    error = CANCELLED if event.reason is UNSET else event.reason
    uncertain = event.problem.outcome is not UNSET
    return End("run_cancelled", "cancelled", {}, {}, error, uncertain)


def _stopped(name: str, problem: Problem, spent: Spent, otherwise: Literal["failed", "cancelled"]) -> End:
    """An end that its worker gave the run."""
    status: Status = "timed_out" if problem.code in _TIMED_OUT else otherwise
    stop = "deadline_reached" if status == "timed_out" else _STOPS.get(problem.code, problem.code.lower())
    told = {"wire_code": problem.code} | ({"outcome": "uncertain"} if problem.outcome is not UNSET else {})
    result = _result(name, "", stop, spent, told)
    error = "Cancelled" if status == "cancelled" else _ERRORS.get(problem.code, problem.message)
    return End(f"run_{status}", status, result, result, error, problem.outcome is not UNSET)


def _result(name: str, content: str, stop: str, spent: Spent, told: Mapping[str, str] | None = None) -> dict[str, Any]:
    usage = {
        "prompt_tokens": spent.input,
        "completion_tokens": spent.output,
        "total_tokens": spent.input + spent.output,
        "cached_prompt_tokens": spent.cached,
        "reasoning_tokens": spent.reasoning,
    }
    parts = ("input_usd", "cached_input_usd", "output_usd", "reasoning_usd")
    # No provider tells what each part cost, only the whole.
    cost = None if spent.cost_usd is None else dict.fromkeys(parts, 0.0) | {"total_usd": spent.cost_usd}
    metadata = {"run_id": name, **(told or {})}
    return {"content": content, "stop_reason": stop, "metadata": metadata, "usage": usage, "cost": cost}
