"""How long a client goes on trying where it may try again at all: bounded, growing, and never in step with others."""

from collections.abc import Callable

from msgspec import Struct

Chance = Callable[[], float]


class Patience(Struct, frozen=True, kw_only=True):
    """For reading on: a stream that was cut, a page of a job. What may have had an effect is never repeated unkeyed."""

    attempts: int = 8
    """How often in a row without anything new."""
    first_s: float = 0.25
    most_s: float = 10.0
    silence_s: float = 45.0
    """How long a host may send nothing on a stream that can be continued; it sends a heartbeat each 15 s."""
    poll_s: float = 2.0
    """The longest pause between two looks at a job that has nothing new."""

    def pause_s(self, failures: int, chance: float, told_ms: int | None = None) -> float:
        """How long to wait after so many *failures*; a host that told how long is taken at its word, within bounds."""
        if told_ms is not None:
            return min(told_ms / 1_000, self.most_s)
        return self._grown(failures, self.most_s) * (0.5 + chance / 2)

    def idle_s(self, looks: int, chance: float) -> float:
        """How long to wait after so many *looks* at a job without anything new."""
        return self._grown(looks, self.poll_s) * (0.5 + chance / 2)

    def _grown(self, times: int, most_s: float) -> float:
        return min(self.first_s * 2.0 ** min(times - 1, 32), most_s)
