"""How long a refused model call waits before it is tried again (runs §10).

Nothing here waits, reads a clock or rolls a die.
"""

from math import ceil

from actors.ports import Retry


def wait_ms(attempt: int, hint_ms: float, policy: Retry) -> int | None:
    """The wait after the *attempt* that a 429 ended, the first being 1; None when the policy allows no other.

    The vendor's *hint_ms* is never shortened: a wait beyond the policy's longest ends the trying.
    """
    if attempt >= policy.max_attempts:
        return None
    wait = ceil(max(hint_ms, policy.base_delay_ms * 2 ** (attempt - 1)))
    return wait if wait <= policy.max_delay_ms else None
