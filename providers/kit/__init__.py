"""What an adapter has to do, as cases that any adapter can be put through (docs/providers.md).

An adapter's author writes a `Stage`: a vendor that answers as it is told, and the adapter connected to it.
No test runner is needed; a case that fails raises `NotConforming`.
"""

from providers.kit.asking import LOOKUP, Heard, NotConforming, request
from providers.kit.conformance import CASES, DEADLINE_S, Case, conform, run
from providers.kit.failures import PATIENCE_S, STATUSES
from providers.kit.stage import SECRET, Answer, Played, Stage

__all__ = [
    "CASES",
    "DEADLINE_S",
    "LOOKUP",
    "PATIENCE_S",
    "SECRET",
    "STATUSES",
    "Answer",
    "Case",
    "Heard",
    "NotConforming",
    "Played",
    "Stage",
    "conform",
    "request",
    "run",
]
