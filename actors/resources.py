"""The resource authority: the host's own say, before every step, whether a run may consume more (scheduling §6)."""

import logging
from typing import Literal, Protocol, TypeAlias

import anyio
from msgspec import Struct

from actors.errors import Problem
from actors.events import Usage

log = logging.getLogger(__name__)

Answer: TypeAlias = Literal["allow", "deny", "unknown"]
UnknownPolicy: TypeAlias = Literal["reject", "allow"]

_DENIED = Problem("RESOURCE_ADMISSION_DENIED", "The resource authority does not admit this step.")
_UNKNOWN = Problem("RESOURCE_USAGE_UNKNOWN", "The resource authority does not know what was used.")
_UNAVAILABLE = Problem("RESOURCE_POLICY_UNAVAILABLE", "The resource authority did not answer.")


class ResourceQuestion(Struct, frozen=True, kw_only=True):
    """Who is about to take which step; nothing of what is said in it."""

    provider: str
    subject: str
    host_id: str
    account: str | None
    run_id: str
    model: str
    step: int
    usage: Usage
    """What the run consumed before this step, as far as every step reported it."""


class ResourceAuthority(Protocol):
    """Knows what is left of what the host shares out, over all its runs.

    It has no time limit of its own: an end of the run cancels the asking.
    """

    async def __call__(self, question: ResourceQuestion, /) -> Answer:
        """Answer whether the step may begin; whatever is raised, or answered otherwise, lets no step begin."""
        ...


async def judged(authority: ResourceAuthority, question: ResourceQuestion, unknown: UnknownPolicy) -> Problem | None:
    """Ask *authority*, and return what ends the run, or None where its step may begin.

    What an authority raises is never shown: only its type is logged. A cancellation from outside passes through.
    """
    answers: list[object] = []

    async def ask() -> None:
        try:
            answers.append(await authority(question))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it fails closed, and must not end the host
            log.error("the resource authority failed on run %s: %s", question.run_id, type(error).__qualname__)

    async with anyio.create_task_group() as tasks:  # an authority that cancels itself ends alone
        tasks.start_soon(ask)
    return _meaning(answers[0] if answers else None, unknown)


def _meaning(answer: object, unknown: UnknownPolicy) -> Problem | None:
    match answer if isinstance(answer, str) else None:
        case "allow":
            return None
        case "deny":
            return _DENIED
        case "unknown":
            return _UNKNOWN if unknown == "reject" else None
        case _:
            return _UNAVAILABLE
