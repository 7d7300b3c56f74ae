"""Shapes of JSON values: small checks that combine, for request objects that must be right to the letter (runs §3).

A check takes a JSON value and returns what the host keeps of it, or raises `Misshapen` with the place and the rule.
Lengths count UTF-16 units, patterns match whole strings, `1.0` is an integer, a boolean never is, and null is not absence.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec import Raw, Struct

from actors.jsontext import encoded, is_json

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Check: TypeAlias = Callable[[object], T]

SAFE = 2**53 - 1
"""The largest integer that every reader of JSON keeps exactly."""


class Misshapen(ValueError):
    """A value has the wrong shape; *place* is where, as member names and indexes joined by dots."""

    def __init__(self, rule: str, place: str = "") -> None:
        super().__init__(f"{place}: {rule}" if place else rule)
        self.rule = rule
        self.place = place

    def within(self, name: str) -> "Misshapen":
        """The same fault seen from outside, where the value is the member *name*."""
        return Misshapen(self.rule, f"{name}.{self.place}" if self.place else name)


def units(text: str) -> int:
    """The length of *text* in UTF-16 units.

    Raises:
        UnicodeEncodeError: when the text holds half of a surrogate pair.
    """
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def text(least: int = 0, most: int = SAFE, pattern: str | None = None) -> Check[str]:
    """A string of *least* to *most* UTF-16 units that matches *pattern* as a whole."""
    matches = re.compile(pattern).fullmatch if pattern is not None else None

    def check(value: object) -> str:
        if not isinstance(value, str):
            raise Misshapen("must be a string")
        if len(value) > most or not least <= _sound_units(value) <= most:
            raise Misshapen(f"must have {least} to {most} characters")
        if matches is not None and matches(value) is None:
            raise Misshapen(f"must match {pattern}")
        return value

    return check


def whole(least: int, most: int) -> Check[int]:
    """An integer from *least* to *most*."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
            raise Misshapen("must be an integer")
        if not least <= value <= most:
            raise Misshapen(f"must be from {least} to {most}")
        return int(value)

    return check


def number(least: float, most: float) -> Check[float]:
    """A number from *least* to *most*; kept as a float, so that 1 and 1.0 are one value."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise Misshapen(f"must be a number from {least} to {most}")
        return float(value)

    return check


def boolean(value: object) -> bool:
    """The boolean *value*."""
    if not isinstance(value, bool):
        raise Misshapen("must be true or false")
    return value


def one_of(*words: str) -> Check[str]:
    """One of these *words*."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise Misshapen(f"must be one of {', '.join(words)}")
        return value

    return check


def array(item: Check[T], least: int, most: int, *, distinct: bool = False) -> Check[tuple[T, ...]]:
    """An array of *least* to *most* items, all different if *distinct*."""

    def check(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise Misshapen("must be an array")
        items: list[object] = value  # pyright: ignore[reportUnknownVariableType]
        if not least <= len(items) <= most:
            raise Misshapen(f"must have {least} to {most} items")
        kept = tuple(_inside(str(index), item, each) for index, each in enumerate(items))
        if distinct and len(set(kept)) != len(kept):
            raise Misshapen("must not repeat an item")
        return kept

    return check


def strings(entries: int, key: int, value: int) -> Check[dict[str, str]]:
    """An object of strings with bounded *entries*, *key* and *value*."""
    name, content = text(0, key), text(0, value)

    def check(document: object) -> dict[str, str]:
        members = _members(document)
        if len(members) > entries:
            raise Misshapen(f"must have at most {entries} members")
        return {name(each): _inside(each, content, held) for each, held in members.items()}

    return check


def raw_object(value: object) -> Raw:
    """Any JSON object, as compact JSON, so that what only passes through is not changed."""
    return Raw(encoded(json_object(value)))


def json_object(value: object) -> dict[str, object]:
    """Any JSON object."""
    members = _members(value)
    if not is_json(members):
        raise Misshapen("must be JSON")
    return members


def record(made: Callable[..., S], required: dict[str, Check[Any]], optional: dict[str, Check[Any]]) -> Check[S]:
    """A strict object: every *required* member, no unknown one; *made* takes what is there under its name in snake case."""
    wire = {_camel(name): (name, check) for name, check in (required | optional).items()}
    needed = [_camel(name) for name in required]

    def check(value: object) -> S:
        given = _members(value)
        if unknown := [name for name in given if name not in wire]:
            raise Misshapen("is not a known member", _shown(unknown[0]))
        if missing := [name for name in needed if name not in given]:
            raise Misshapen("is required", missing[0])
        found = {wire[name][0]: _inside(name, wire[name][1], held) for name, held in given.items()}
        return made(**found)

    return check


def tagged(member: str, cases: Mapping[str, Check[T]]) -> Check[T]:
    """One of several objects, told apart by the string in *member*, which the chosen check does not see."""
    tag = one_of(*cases)

    def check(value: object) -> T:
        given = dict(_members(value))
        if member not in given:
            raise Misshapen("is required", member)
        return cases[_inside(member, tag, given.pop(member))](given)

    return check


def _members(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Misshapen("must be an object")
    members: dict[object, object] = value  # pyright: ignore[reportUnknownVariableType]
    if not all(isinstance(name, str) for name in members):
        raise Misshapen("must have strings as member names")
    return members  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def _sound_units(value: str) -> int:
    try:
        return units(value)
    except UnicodeEncodeError:
        raise Misshapen("must not hold a lone surrogate") from None


def _inside(name: str, check: Check[T], value: object) -> T:
    try:
        return check(value)
    except Misshapen as fault:
        raise fault.within(_shown(name)) from None


def _shown(name: str) -> str:
    return name if len(name) <= 80 and name.isprintable() else repr(name[:80])  # noqa: PLR2004 - long enough for any of ours


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
