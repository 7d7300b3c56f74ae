"""What the strictest published client accepts inside an answer: checks of JSON values, built from small ones.

Nothing here waits or reads a clock.
A check says nothing when the value is sound and raises `Unsound`, which names the member, when it is not.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import TypeAlias
from urllib.parse import urlsplit

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Object: TypeAlias = dict[str, "Json"]
Check: TypeAlias = Callable[[Json], None]

SAFE = 2**53 - 1
ID = r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}"
INSTANCE = r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}"
MODEL = r"[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}"
EMBEDDING_MODEL = r"[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,199}"
TOOL = r"[a-zA-Z_][a-zA-Z0-9_]{0,63}"
SHA = r"[0-9a-f]{64}"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
UUID_ANY_CASE = r"(?i:" + UUID + ")"
TEXT_MEDIA = ("text/plain", "text/markdown")
MEDIA = (*TEXT_MEDIA, "image/png", "image/jpeg", "image/webp", "application/pdf")

_RFC_3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?(Z|[+-]([0-9]{2}):([0-9]{2}))"
)
_MILLIS_Z = re.compile(r".{19}\.[0-9]{3}Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Unsound(Exception):
    """A value that a strict client refuses; the text says which and why."""


def need(holds: object, what: str) -> None:
    """Nothing, if it *holds*."""
    if not holds:
        raise Unsound(what)


def units(text: str) -> int:
    """The length of *text* in UTF-16 code units, which is what bounds count."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def parsed(text: str) -> Json:
    """The strict JSON value that *text* holds: no NaN, no infinities, not even by overflow."""
    try:
        value: Json = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Unsound(f"not JSON: {error}") from error
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def members(value: Json) -> Object:
    """*value* as an object."""
    if not isinstance(value, dict):
        raise Unsound("not an object")
    return value


def items(value: Json) -> list[Json]:
    """*value* as an array."""
    if not isinstance(value, list):
        raise Unsound("not an array")
    return value


def string(value: Json) -> str:
    """*value* as a string."""
    if not isinstance(value, str):
        raise Unsound("not a string")
    return value


def count(value: Json) -> int:
    """*value* as a JSON integer; `4.0` and `true` are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unsound("not an integer")
    return value


def member(value: Json, *path: str) -> Json:
    """What lies at *path* in *value*; every step must be there."""
    for name in path:
        inside = members(value)
        need(name in inside, f"{name} is missing")
        value = inside[name]
    return value


def echoes(request: Object, value: Json, *names: str) -> None:
    """Nothing, if *value* repeats the members *names* of *request*."""
    for name in names:
        need(member(value, name) == member(request, name), f"another {name}")


def anything(_: Json) -> None:
    """Nothing: any JSON value is sound."""


def boolean(value: Json) -> None:
    """Nothing, for true and false."""
    need(isinstance(value, bool), "not a boolean")


def obj(value: Json) -> None:
    """Nothing, for any object."""
    members(value)


def text(low: int = 0, high: int = SAFE, pattern: str | None = None, *, printable: bool = False) -> Check:
    """A check of a string: its length in code units, its whole-string *pattern*, no control characters."""

    def check(value: Json) -> None:
        found = string(value)
        need(low <= units(found) <= high, "a string of the wrong length")
        need(pattern is None or re.fullmatch(pattern, found) is not None, "a string of the wrong form")
        need(not printable or (not _CONTROL.search(found) and found == found.strip()), "a control character")

    return check


def integer(low: int = 0, high: int = SAFE) -> Check:
    """A check of a JSON integer between *low* and *high*."""

    def check(value: Json) -> None:
        need(low <= count(value) <= high, "an integer out of range")

    return check


def number(low: float = 0.0, high: float = math.inf) -> Check:
    """A check of a finite number between *low* and *high*."""

    def check(value: Json) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Unsound("not a number")
        need(low <= value <= high, "a number out of range")

    return check


def one_of(*allowed: str | bool | int) -> Check:
    """A check that a value is one of *allowed*, in type too."""

    def check(value: Json) -> None:
        need(any(type(value) is type(one) and value == one for one in allowed), f"not one of {allowed}")

    return check


def array(inner: Check, high: int = SAFE) -> Check:
    """A check of an array of at most *high* values."""

    def check(value: Json) -> None:
        found = items(value)
        need(len(found) <= high, "too many items")
        for index, item in enumerate(found):
            _at(str(index), inner, item)

    return check


def mapping(inner: Check) -> Check:
    """A check of an object whose member names are free."""

    def check(value: Json) -> None:
        for name, item in members(value).items():
            _at(name, inner, item)

    return check


def shape(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None, *, strict: bool = False) -> Check:
    """A check of an object; a *strict* one has no other members, and null is never absent."""
    may = optional or {}

    def check(value: Json) -> None:
        found = members(value)
        for name, inner in required.items():
            need(name in found, f"{name} is missing")
            _at(name, inner, found[name])
        for name, inner in may.items():
            if name in found:
                _at(name, inner, found[name])
        unknown = found.keys() - required.keys() - may.keys()
        need(not strict or not unknown, f"unknown members {sorted(unknown)}")

    return check


def both(*checks: Check) -> Check:
    """A check that is all of *checks*, in order."""

    def check(value: Json) -> None:
        for inner in checks:
            inner(value)

    return check


def distinct(values: list[Json], what: str) -> None:
    """Nothing, if no two *values* are equal."""
    need(all(values.index(value) == index for index, value in enumerate(values)), f"{what} repeated")


def _at(name: str, inner: Check, value: Json) -> None:
    try:
        inner(value)
    except Unsound as error:
        raise Unsound(f"{name}: {error}") from error


def timestamp(value: Json) -> None:
    """Nothing, for a real date and time with a zone."""
    found = _RFC_3339.fullmatch(string(value))
    if found is None:
        raise Unsound("not a timestamp")
    year, month, day, hour, minute, second = (int(part) for part in found.group(1, 2, 3, 4, 5, 6))
    try:
        date(year, month, day)
    except ValueError as error:
        raise Unsound("no such day") from error
    need(hour <= 23 and minute <= 59 and second <= 59, "no such time")
    need(int(found[9] or 0) <= 23 and int(found[10] or 0) <= 59, "no such zone")


def millis_z(value: Json) -> None:
    """Nothing, for a timestamp of exactly milliseconds in UTC, which is all a host may write."""
    timestamp(value)
    need(_MILLIS_Z.fullmatch(string(value)) is not None, "not YYYY-MM-DDTHH:MM:SS.mmmZ")


def uri(value: Json) -> None:
    """Nothing, for a bounded `https:` or `app:` address without credentials."""
    text(1, 2048, r"(https|app)://[^\s]+")(value)
    try:
        parts = urlsplit(string(value))
    except ValueError as error:
        raise Unsound("not an address") from error
    need("@" not in parts.netloc, "credentials in an address")


USAGE = shape(
    {},
    {
        **dict.fromkeys(("inputTokens", "cachedInputTokens", "outputTokens", "reasoningTokens"), integer()),
        **dict.fromkeys(("costUsd", "apiEquivalentCostUsd"), number()),
    },
)
ERROR = shape(
    {"code": text(1), "message": text(), "retryable": boolean},
    {"outcome": one_of("uncertain")},
)
CALL = shape({"id": text(1), "name": text(1), "arguments": obj})
TICKET_CALL = shape({"id": text(1, 256), "name": text(1, 64, TOOL), "arguments": obj})
