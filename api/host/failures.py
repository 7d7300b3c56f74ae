"""Host error codes: what each means to HTTP, and which of them a refusal of ours folds into (Host mapping §8)."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, field

from actors.errors import Problem
from api import problems

Code: TypeAlias = Literal[
    "invalid_request",
    "unsupported_protocol_version",
    "unauthorized",
    "forbidden",
    "not_found",
    "conflict",
    "unavailable",
    "internal",
]
VERSION = "2026-07-01"
STATUSES: Mapping[str, int] = {
    "": 200,
    "invalid_request": 400,
    "unsupported_protocol_version": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "unavailable": 503,
    "internal": 500,
}
"""HTTP statuses, which only repeat the code; the empty one stands for success."""
_FOLDED: Mapping[int, Code] = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    410: "not_found",
    413: "invalid_request",
    429: "unavailable",
    503: "unavailable",
    504: "unavailable",
}
_OURS: Mapping[str, Code] = {"HOST_KEY_CONFLICT": "conflict", "HOST_RUNS_FULL": "unavailable"}
"""Codes that only this protocol's service knows."""


class Failure(Struct, frozen=True):
    """Why a request failed; *details* go out as they are, *metadata* without sensitive names."""

    code: Code
    message: str
    retryable: bool = False
    details: Any = field(default_factory=dict[str, Any])
    metadata: Mapping[str, str] = {}


INTERNAL = Failure("internal", "agent host service operation failed")
UNREADABLE = Failure("invalid_request", "The request is not strict JSON.")
NOT_FOUND = Failure("not_found", "There is no such run.")
FORBIDDEN = Failure("forbidden", "This principal may not do that.")


def unsupported() -> Failure:
    """The refusal of another version, which says which there is."""
    return Failure(
        "unsupported_protocol_version",
        f"This host speaks version {VERSION}.",
        details={"supportedVersions": [VERSION]},
    )


def failure_of(problem: Problem) -> Failure:
    """What a Host caller is told of *problem*; nothing of one that is ours to mend."""
    code = _OURS.get(problem.code) or _FOLDED.get(problems.status_of(problem.code), "internal")
    if code == "internal":
        return INTERNAL
    details: dict[str, Any] = {} if problem.code in _OURS else {"wireCode": problem.code}
    if problem.outcome is not UNSET:
        details["outcome"] = problem.outcome
    return Failure(code, problem.message, code == "unavailable", details)
