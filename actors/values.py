"""JSON values as an approval and a ticket bind them (approvals §6): equal as every reader of JSON sees them.

Numbers are IEEE doubles, booleans are no numbers, members have no order, strings are compared as they are.
Values are those of `jsontext.strict_json`, so they are nowhere deeper than it allows.
"""

import re
from typing import TypeGuard, cast

from actors.jsontext import encoded, is_json
from actors.shapes import units

CALL_ID_UNITS_MAX = 256
CALL_BYTES_MAX = 128_000
"""Compact JSON of a call; an echo of it, escaped, stays below the bound of a request."""

_INTEGRAL_BELOW = 1e21
"""Doubles without a fraction are written without one below this, as ECMAScript does."""
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")


def lossless(value: object) -> bool:
    """Whether *value* comes through every reader: no member `__proto__` at any depth, no number beyond a double."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return "__proto__" not in members and all(map(lossless, members.values()))
    if isinstance(value, list):
        return all(map(lossless, cast("list[object]", value)))
    return not _is_number(value) or abs(_double(value)) < float("inf")


def as_doubles(value: object) -> object:
    """The lossless *value* with each number at its double, so that every client can repeat it.

    Those without a fraction are integers where ECMAScript writes them so: two values are `same` if and only if
    these forms have the same compact JSON, but for the order of members.
    """
    if isinstance(value, dict):
        return {name: as_doubles(each) for name, each in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [as_doubles(each) for each in cast("list[object]", value)]
    return _shortest(_double(value)) if _is_number(value) else value


def same(one: object, other: object) -> bool:
    """Whether two values are equal by the binding rules."""
    if _is_number(one) and _is_number(other):
        return _double(one) == _double(other)
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return left.keys() == right.keys() and all(same(each, right[name]) for name, each in left.items())
    if isinstance(one, list) and isinstance(other, list):
        row, column = cast("list[object]", one), cast("list[object]", other)
        return len(row) == len(column) and all(map(same, row, column))
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def representable(call_id: str, name: str, arguments: object) -> bool:
    """Whether a proposed call can be shown to a person or an application, and repeated by them to the letter."""
    call = {"id": call_id, "name": name, "arguments": arguments}
    # Within another object, because that is where a decision repeats it; this also refuses lone surrogates.
    if not isinstance(arguments, dict) or not is_json({"call": call}) or not lossless(call):
        return False
    if not 1 <= units(call_id) <= CALL_ID_UNITS_MAX or _NAME.fullmatch(name) is None:
        return False
    return len(encoded(as_doubles(call))) <= CALL_BYTES_MAX


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _shortest(number: float) -> int | float:
    return int(number) if number.is_integer() and abs(number) < _INTEGRAL_BELOW else number


def is_actor_id(text: str) -> bool:
    """Whether *text* is spelled as ids of actors are: a lower-case UUID."""
    return _UUID.fullmatch(text) is not None


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
