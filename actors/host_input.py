"""What a Host run's input asks to be run: a wire run request, or a prompt that the host completes (Host mapping §9, C5).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping
from typing import Any, cast

from actors.errors import Refused
from actors.request import Catalog, RunRequest, checked

_NOT_HERE = ("idempotencyKey", "approvals", "session", "resume")
"""Members whose part the Host protocol plays itself, or that need somebody attached."""


def requested(value: object, defaults: Mapping[str, Any], catalog: Catalog) -> RunRequest:
    """The request that the JSON *value* asks for; *defaults* are the members that complete a prompt.

    Raises:
        Refused: it is none that this host could run.
    """
    if not isinstance(value, dict):
        raise Refused("INVALID_REQUEST", "The input is neither a run request nor a prompt.")
    members = cast("Mapping[str, Any]", value)
    document = _completed(members, defaults) if "prompt" in members and "input" not in members else members
    names = ", ".join(name for name in _NOT_HERE if name in document)
    if names:
        raise Refused("JOB_REQUEST_UNSUPPORTED", f"A Host run takes no {names}.")
    return checked(document, catalog)


def _completed(members: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: one for name, one in members.items() if name != "prompt"}
    return {**defaults, **given, "input": members["prompt"]}
