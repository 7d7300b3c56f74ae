"""Cases of answers that are none: cut, refused, failed, limited, or not waited for."""

from collections.abc import Mapping

import anyio
from msgspec import Raw

from actors.errors import Problem
from actors.ports import ToolCall
from providers.kit.asking import Heard, answered, expect, refused, request
from providers.kit.stage import Answer, Stage

PATIENCE_S = 1.0
"""For a vendor to see that nobody listens any more."""


async def tells_the_output_limit(stage: Stage) -> None:
    """An answer that the limit cut says so."""
    async with stage.playing(Answer(text=("Half an",), end="length")) as played:
        turn, _ = await answered(played)
        expect((turn.text, turn.finish_reason) == ("Half an", "length"), "the cut is not told")


async def refuses_a_cut_call(stage: Stage) -> None:
    """A call that the limit cut is never made."""
    called = ToolCall("call-1", "lookup", Raw(b'{"n":7}'))
    async with stage.playing(Answer(calls=(called,), end="length")) as played:
        _code(await refused(played, request(played, tools=True)), "TRUNCATED_TOOL_CALL")


async def tells_a_refusal(stage: Stage) -> None:
    """A model that will not answer is no answer."""
    async with stage.playing(Answer(end="refusal")) as played:
        _code(await refused(played), "PROVIDER_REFUSAL", "PROVIDER_FAILED")


async def hides_a_failure(stage: Stage) -> None:
    """What the vendor says of its failure stays with the vendor."""
    async with stage.playing(Answer(text=("Good ",), end="error")) as played:
        _code(await refused(played), "PROVIDER_FAILED")


async def tells_a_broken_stream(stage: Stage) -> None:
    """An answer without its end is none."""
    async with stage.playing(Answer(text=("Good ",), end="cut")) as played:
        _code(await refused(played), "INCOMPLETE_STREAM", "INTERNAL_ERROR")


def _code(problem: Problem, *codes: str) -> None:
    expect(problem.code in codes, f"it failed with {problem.code}")
    expect(not problem.retryable, f"{problem.code} is told as retryable")


STATUSES: Mapping[int, tuple[str, bool]] = {
    **dict.fromkeys((301, 302, 307, 400, 404, 405, 408, 409, 413, 422, 451), ("PROVIDER_ERROR", False)),
    **dict.fromkeys((401, 403), ("PROVIDER_AUTH", False)),
    429: ("RATE_LIMITED", True),
    **dict.fromkeys((500, 501, 502, 503, 504, 529), ("PROVIDER_ERROR", True)),
}


async def tells_every_status(stage: Stage) -> None:
    """Each status has its code, and only some are worth another try."""
    for status, wanted in STATUSES.items():
        async with stage.playing(Answer(status=status)) as played:
            problem = await refused(played)
            told = (problem.code, problem.retryable)
            expect(told == wanted, f"{status} is told as {told}")


async def tries_again_when_told_to_wait(stage: Stage) -> None:
    """A 429 is tried again as the policy of the run allows, and nothing else is."""
    async with stage.playing(Answer(status=429, retry_after="0"), Answer(text=("Now.",))) as played:
        if played.model.info.capabilities.get("safeRetries"):
            turn, _ = await answered(played, request(played, attempts=2))
            expect(turn.text == "Now.", f"the text is {turn.text!r}")
    for answer in (Answer(status=429, retry_after="soon"), Answer(status=503), Answer(end="cut")):
        async with stage.playing(answer, Answer(text=("Again.",))) as played:
            await refused(played, request(played, attempts=5))


async def stops_at_once(stage: Stage) -> None:
    """A call that is cancelled lets go of its vendor."""
    async with stage.playing(Answer(text=("Good ",), end="silence")) as played:
        heard = Heard()
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await played.model.complete(request(played), heard.context())

            tasks.start_soon(call)
            await heard.spoke.wait()
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(PATIENCE_S) as waiting:
            await played.left()
        expect(not waiting.cancelled_caught, "the vendor was not let go")
