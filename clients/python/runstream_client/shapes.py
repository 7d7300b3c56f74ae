"""Declares what an answer must look like: frozen Structs whose annotations are the rules (clients §4).

Types, bounds and patterns are judged by msgspec, which takes `4.0` and `true` for no integer and `null` for no absence.
What it cannot judge stands beside them in the annotation as a `Rule`, or in `agree`, which compares members.
"""

import re
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct

from runstream_client.strict_json import Unsound

SAFE = 2**53 - 1
"""The greatest integer that every client can hold."""

S = TypeVar("S", bound="Shape")


class Rule:
    """A rule about one value, for an annotation; *judge* returns what is wrong with it, or nothing."""

    def __init__(self, judge: Callable[[Any], str | None]) -> None:
        self.judge = judge


class Shape(Struct, frozen=True, kw_only=True, rename="camel"):
    """An object of the wire; members that it does not know are ignored, and absent ones are `UNSET`."""

    def __post_init__(self) -> None:
        for name, rule in _rules(type(self)):
            value = getattr(self, name)
            wrong = None if value is UNSET else rule.judge(value)
            if wrong:
                raise ValueError(f"{name} {wrong}")
        self.agree()

    def agree(self) -> None:
        """Compare members with each other; raises `ValueError`."""


def shaped(kind: type[S], value: Any) -> S:
    """*value* as a *kind*.

    Raises:
        Unsound: it is none.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unsound(str(error)) from None
    except UnicodeEncodeError:
        # msgspec looks up what is no plain text in UTF-8, which a lone surrogate does not have.
        raise Unsound("a lone surrogate where it means nothing") from None


def agreed(holds: object, otherwise: str) -> None:
    """Nothing, if it *holds*; for `agree`."""
    if not holds:
        raise ValueError(otherwise)


def units(text: str) -> int:
    """The length of *text* in UTF-16 code units, which is what the protocol counts."""
    return len(text) + sum(character > "\uffff" for character in text)


def at_most(most: int, least: int = 0) -> Rule:
    """A rule for the length of a string, in code units."""
    return Rule(lambda text: None if least <= units(text) <= most else f"is not of {least} to {most} characters")


@cache
def _rules(kind: type[Shape]) -> tuple[tuple[str, Rule], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, rule) for name, hint in hints.items() for rule in _within(hint))


def _within(hint: Any) -> Iterator[Rule]:
    """The rules in an annotation, also where it is one of a union."""
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if isinstance(part, Rule):
            yield part
        elif hasattr(part, "__metadata__"):
            yield from _within(part)


_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


def _real(text: str) -> str | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return "is not a timestamp"
    try:
        date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return "is a day that no calendar has"
    return None


def _whole(pattern: str) -> Meta:
    return Meta(pattern=rf"\A(?:{pattern})\Z")


def _trimmed(text: str) -> str | None:
    return "has space around it" if text != text.strip() else None


UUID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
"""A string that is not empty."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=SAFE)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=SAFE)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Timestamp: TypeAlias = Annotated[str, Rule(_real)]
"""A date and time with a zone, of a day that exists."""
Millis: TypeAlias = Annotated[str, _whole(r".{19}\.[0-9]{3}Z"), Rule(_real)]
"""A timestamp of exactly milliseconds in UTC, so that the order of texts is that of times."""
Id: TypeAlias = Annotated[str, _whole("[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}")]
InstanceId: TypeAlias = Annotated[str, _whole("[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}")]
ModelId: TypeAlias = Annotated[str, _whole(r"[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}")]
EmbeddingModelId: TypeAlias = Annotated[str, _whole("[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,199}")]
ToolName: TypeAlias = Annotated[str, _whole("[a-zA-Z_][a-zA-Z0-9_]{0,63}")]
TicketId: TypeAlias = Annotated[str, at_most(256, 1)]
Sha256: TypeAlias = Annotated[str, _whole("[0-9a-f]{64}")]
Uuid: TypeAlias = Annotated[str, _whole(UUID_PATTERN)]
UuidAnyCase: TypeAlias = Annotated[str, _whole(f"(?i:{UUID_PATTERN})")]
Label: TypeAlias = Annotated[str, _whole(r"[^\x00-\x1f\x7f]+"), Rule(_trimmed)]
"""A string for people: trimmed, without control characters."""
