"""How a figure is told."""

from collections.abc import Awaitable, Callable
from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    """One row of the table."""

    name: str
    ours: str
    raw: str
    ratio: str
    target: str
    met: bool

    @property
    def row(self) -> str:
        """The row as Markdown."""
        verdict = "yes" if self.met else "no"
        return f"| {self.name} | {self.ours} | {self.raw} | {self.ratio} | {self.target} | {verdict} |"


HEADER = "| Bench | Runstream | Raw limit | Ratio | Target | Met |\n| --- | --- | --- | --- | --- | --- |"


async def compared(
    ours: Callable[[], Awaitable[float]], raw: Callable[[], Awaitable[float]], rounds: int = 5
) -> tuple[float, float, float]:
    """Measure both in turn, A B A B …; return the medians and the median of the ratios pair by pair."""
    await ours()  # warm
    await raw()
    pairs = [(await ours(), await raw()) for _ in range(rounds)]
    return (
        median(one for one, _ in pairs),
        median(other for _, other in pairs),
        median(one / other for one, other in pairs),
    )


def rate(per_second: float) -> str:
    """A rate for people."""
    return f"{per_second:,.0f}/s"
