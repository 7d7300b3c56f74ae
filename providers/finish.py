"""How an answer ended: well, cut by the output limit, or as a failure of its vendor's (providers §5).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from providers.failures import failed

Finish: TypeAlias = Literal["stop", "length"]


def finish(reason: str | None, ends: Mapping[str, Finish], *, calls: bool, refused: bool = False) -> Finish:
    """What a turn says of the end that its vendor calls *reason*; *ends* are those that are no failure.

    Raises:
        Failed: PROVIDER_FAILED for any other end, PROVIDER_REFUSAL, or TRUNCATED_TOOL_CALL where the limit may have cut *calls*.
    """
    ended = ends.get(reason or "")
    if ended is None:
        raise failed("PROVIDER_FAILED")
    if refused:
        raise failed("PROVIDER_REFUSAL")
    if calls and ended == "length":
        raise failed("TRUNCATED_TOOL_CALL")
    return ended
