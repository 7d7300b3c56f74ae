"""The small languages of the vectors: patches of JSON documents, and values that are too long to be written out.

Nothing here waits.
"""

import copy
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any, cast

Patch = Sequence[Mapping[str, Any]]


def generated(value: Any) -> Any:
    """*value* with `$repeat` and `$concat` carried out."""
    match value:
        case {"$repeat": [str(text), int(times)]}:
            return text * times
        case {"$concat": parts}:
            return "".join(generated(part) for part in parts)
        case dict():
            return {name: generated(inner) for name, inner in cast("dict[str, Any]", value).items()}
        case list():
            return [generated(inner) for inner in cast("Iterable[Any]", value)]
        case _:
            return value


def patched(document: Any, patch: Patch) -> Any:
    """*document* after *patch*: RFC 6902, or the shorter form with `at`, `set`, `remove` and `insertEventAfter`."""
    whole = {"": copy.deepcopy(document)}
    for step in patch:
        if "insertEventAfter" in step:
            whole[""] = _inserted(whole[""], step)
        elif "at" in step:
            _put(whole, step["at"], step.get("set"), kind="remove" if step.get("remove") else "set")
        else:
            _operated(whole, step)
    return whole[""]


def _operated(whole: Any, step: Mapping[str, Any]) -> None:
    kind, path = step["op"], step["path"]
    if kind in {"copy", "move"}:
        inside, last = _place(whole, step["from"])
        value = copy.deepcopy(inside[last])
        if kind == "move":
            del inside[last]
        _put(whole, path, value, kind="add")
    else:
        _put(whole, path, step.get("value"), kind=kind)


def _put(whole: Any, pointer: str, value: Any, *, kind: str) -> None:
    inside, last = _place(whole, pointer)
    if kind == "remove":
        del inside[last]
    elif kind == "add" and isinstance(inside, list):
        items = cast("MutableSequence[Any]", inside)
        items.insert(len(items) if last == "-" else last, generated(value))
    else:
        inside[last] = generated(value)


def _place(whole: Any, pointer: str) -> tuple[Any, Any]:
    *way, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
    inside = whole
    for step in way:
        inside = inside[_key(inside, step)]
    return inside, _key(inside, last)


def _key(inside: Any, step: str) -> Any:
    return int(step) if isinstance(inside, list) and step != "-" else step


def _inserted(events: list[Any], step: Mapping[str, Any]) -> list[Any]:
    """*events* with one more, numbered anew."""
    at, first = step["insertEventAfter"] + 1, events[0]
    found = [*events[:at], generated(step["event"]), *events[at:]]
    shared = {"runId": first["runId"], "timestamp": first["timestamp"]}
    return [event | shared | {"sequence": number} for number, event in enumerate(found, 1)]
