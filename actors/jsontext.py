"""JSON text, strictly: what RFC 8259 calls JSON, and nothing that another parser might read differently.

Refused besides bad syntax: duplicate members, NaN and infinities (also a number that overflows to one), integers beyond the
interpreter's digit limit, lone surrogates, and more than `DEPTH_MAX` containers inside each other.
"""

import json
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import NoReturn, cast

DEPTH_MAX = 64
"""How many arrays and objects may lie inside each other; far below where any parser or walker here would run out of stack."""

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*'
_STRINGS = re.compile(_STRING + r'(?:"|\\?\Z)', re.DOTALL)
_STRING_OR_BLANK = re.compile(f'({_STRING}")|[ \\t\\n\\r]+', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", bytes([2, 0, 2, 0]))


class NotJson(ValueError):
    """The text is not strict JSON; the message says which rule it broke."""


class OutOfRange(NotJson):
    """A number in the text is beyond what a double can hold."""


def strict_json(text: str, *, repeats: bool = False) -> object:
    """The value of a strict JSON *text*; surrounding JSON white space is allowed.

    Where *repeats* are allowed, the last of members with one name counts.

    Raises:
        NotJson: for whatever the module's rules refuse.
    """
    if _too_deep(text):
        raise NotJson("too many nested containers")
    try:
        value: object = (_LAST_WINS if repeats else _ONCE).decode(text)
        if _SURROGATE_ESCAPE.search(text):
            encoded(value)
    except UnicodeEncodeError:
        raise NotJson("lone surrogate") from None
    except json.JSONDecodeError as error:
        raise NotJson(str(error).partition("\n")[0]) from None
    except NotJson:
        raise
    except ValueError:  # more digits than the interpreter turns into an integer
        raise OutOfRange("number out of range") from None
    return value


def encoded(value: object) -> bytes:
    """The compact JSON of a JSON *value*: no white space, no escapes that are not needed.

    Raises:
        ValueError: for a value that JSON text cannot carry.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def compacted(text: str) -> bytes:
    """The valid JSON *text* without insignificant white space; every token, numbers above all, stays as written."""
    return _STRING_OR_BLANK.sub(r"\1", text).encode()


def is_json(value: object) -> bool:
    """Whether *value*, from whatever source, is what `strict_json` could have returned."""
    level: list[object] = [value]
    for _ in range(DEPTH_MAX):
        if not all(map(_is_node, level)):
            return False
        level = [child for each in level for child in _children(each)]
    if any(isinstance(each, (dict, list)) for each in level):
        return False
    try:
        encoded(value)
    except (TypeError, ValueError):
        return False
    return True


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return False
    brackets = _STRINGS.sub("", text).encode("ascii", "ignore").translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(step - 1 for step in brackets), default=0) > DEPTH_MAX


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotJson("duplicate member")
    return members


def _not_a_number(word: str) -> NoReturn:
    raise NotJson(f"{word} is not JSON")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise OutOfRange("number out of range")
    return number


_ONCE = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_not_a_number, parse_float=_finite_float)
_LAST_WINS = json.JSONDecoder(parse_constant=_not_a_number, parse_float=_finite_float)


def _is_node(value: object) -> bool:
    if type(value) is dict:
        return all(type(name) is str for name in cast("dict[object, object]", value))
    return value is None or type(value) in (list, str, int, float, bool)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()
