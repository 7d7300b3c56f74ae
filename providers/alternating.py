"""A conversation for vendors that want their two roles to take turns (providers §6.3, §6.4).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Callable, Iterable
from typing import Any

from actors.ports import AssistantMessage, Message


def alternating(
    messages: Iterable[Message], parts_of: Callable[[Message], Iterable[Any]], *, model: str, parts: str
) -> list[dict[str, Any]]:
    """The *messages* with neighbours of one role in one and none that is empty.

    *model* is the vendor's name for the role that is not the user, *parts* that of the member that holds what is said.
    """
    taken: list[dict[str, Any]] = []
    for message in messages:
        role = model if isinstance(message, AssistantMessage) else "user"
        said = list(parts_of(message))
        if taken and taken[-1]["role"] == role:
            taken[-1][parts].extend(said)
        elif said:
            taken.append({"role": role, parts: said})
    return taken
