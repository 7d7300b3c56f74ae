"""A node's own clock: it runs during suspend where the system has one that does, and never jumps (DESIGN §5)."""

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def mono_ms() -> int:
    """Milliseconds since some moment of this machine; no other machine's clock compares to it."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
