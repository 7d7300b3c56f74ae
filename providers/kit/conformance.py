"""Puts an adapter through the cases."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeAlias

import anyio

from providers.kit import answers, failures
from providers.kit.asking import NotConforming
from providers.kit.stage import Stage

DEADLINE_S = 20.0
"""For one case."""

Case: TypeAlias = Callable[[Stage], Awaitable[None]]

CASES: Mapping[str, Case] = {
    case.__name__: case
    for case in (
        answers.describes_itself,
        answers.probes_soundly,
        answers.streams_text,
        answers.counts_tokens,
        answers.leaves_usage_unknown,
        answers.answers_with_nothing,
        answers.keeps_thoughts_apart,
        answers.calls_tools,
        answers.calls_tools_at_once,
        failures.tells_the_output_limit,
        failures.refuses_a_cut_call,
        failures.tells_a_refusal,
        failures.hides_a_failure,
        failures.tells_a_broken_stream,
        failures.tells_every_status,
        failures.tries_again_when_told_to_wait,
        failures.stops_at_once,
    )
}
"""By name."""


async def conform(stage: Stage, *, without: Collection[str] = ()) -> None:
    """Put an adapter through all cases but those named in *without*.

    Raises:
        NotConforming: at the first case that fails, which its text names.
    """
    for name, case in CASES.items():
        if name not in without:
            await run(name, case, stage)


async def run(name: str, case: Case, stage: Stage) -> None:
    """Put an adapter through one *case*.

    Raises:
        NotConforming: it fails, or does not end.
    """
    try:
        with anyio.fail_after(DEADLINE_S):
            await case(stage)
    except TimeoutError:
        raise NotConforming(f"{name}: did not end within {DEADLINE_S:g} s") from None
    except (NotConforming, BaseExceptionGroup) as error:
        fault = _fault_in(error)
        if fault is None:
            raise
        raise NotConforming(f"{name}: {fault}") from None


def _fault_in(error: BaseException) -> NotConforming | None:
    """The fault that *error* is or, where the stage has tasks of its own, is a group around."""
    match error:
        case NotConforming():
            return error
        case BaseExceptionGroup(exceptions=within):
            return next((fault for one in within if (fault := _fault_in(one))), None)
        case _:
            return None
