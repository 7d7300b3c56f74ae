"""How long a refused model call waits before it is tried again (runs §10).

Nothing here waits, reads a clock or rolls a die.
"""

import re
from collections.abc import Sequence
from email.utils import format_datetime, parsedate_to_datetime
from math import ceil

from actors.ports import Retry

_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")


def hint_ms(lines: Sequence[str], now_ms: float) -> float | None:
    """How long the vendor asks to wait in the *lines* of its `Retry-After`, 0 without any.

    None for what is neither decimal seconds nor a date in the canonical form of HTTP: then there is no other attempt.
    """
    if not lines:
        return 0.0
    told = lines[0]
    if len(lines) == 1 and _SECONDS.fullmatch(told):
        return float(told) * 1_000
    try:
        date = parsedate_to_datetime(told)
        canonical = format_datetime(date, usegmt=True)
    except (ValueError, OverflowError):
        return None
    return max(0.0, date.timestamp() * 1_000 - now_ms) if [canonical] == lines else None


def wait_ms(attempt: int, hint_ms: float, policy: Retry) -> int | None:
    """The wait after the *attempt* that a 429 ended, the first being 1; None when the policy allows no other.

    The vendor's *hint_ms* is never shortened: a wait beyond the policy's longest ends the trying.
    """
    if attempt >= policy.max_attempts:
        return None
    wait = ceil(max(hint_ms, policy.base_delay_ms * 2 ** (attempt - 1)))
    return wait if wait <= policy.max_delay_ms else None
