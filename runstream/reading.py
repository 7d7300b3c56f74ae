"""Turns loose data into a frozen Struct, strictly, and tells every fault found instead of the first.

A fault names its key and what would be allowed there; it never repeats a text that was given, which may be a secret.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    runtime_checkable,
)

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

S = TypeVar("S", bound=Struct)

Custom = Mapping[type, tuple[Callable[[str], Any], str]]
"""How types of ours are made of a text, and what they are called in a fault."""

_NAMED = re.compile(r"([a-zA-Z]+(?:\.[a-z]+)?): (.+)", re.DOTALL)
_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    type(None): "null",
}


class Fault(NamedTuple):
    """What is wrong at a dotted key, and what to do about it."""

    key: str
    why: str


class Loose(str):
    """A text from the environment, where a number and a list are texts too."""

    __slots__ = ()


@runtime_checkable
class Judged(Protocol):
    """A Struct with rules that no type can say."""

    def faults(self) -> Iterator[Fault]:
        """Return what breaks them; keys are relative."""
        ...


class _Missing:
    """Stands for a value that was wrong."""


_MISSING = _Missing()


def read(kind: type[S], data: Mapping[str, Any], custom: Custom) -> tuple[S | None, list[Fault]]:
    """The *kind* that *data* states, unless there are faults, and all of these."""
    faults: list[Fault] = []
    made = _Reader(custom, faults).struct(kind, data, "")
    return (None if isinstance(made, _Missing) or faults else made), faults


class _Reader:
    def __init__(self, custom: Custom, faults: list[Fault]) -> None:
        self._custom = custom
        self._faults = faults

    def struct(self, kind: type[S], data: Mapping[str, Any], key: str) -> "S | _Missing":
        """The Struct that a table states; a member that is wrong leaves the rest to be judged too."""
        known = {field.name: field for field in fields(kind)}
        for name in data.keys() - known.keys():
            self._fault(_joined(key, name), _unknown(str(name), known))
        members = {name: self._member(field, data, _joined(key, name)) for name, field in known.items()}
        if any(member is _MISSING for member in members.values()):
            return _MISSING
        try:
            made = kind(**members)
        except ValueError as error:
            self._fault(*_placed(key, str(error)))
            return _MISSING
        if isinstance(made, Judged):
            for fault in made.faults():
                self._fault(_joined(key, fault.key), fault.why)
        return made

    def _member(self, field: FieldInfo, data: Mapping[str, Any], key: str) -> Any:
        if field.name in data:
            return self._value(field.type, data[field.name], key)
        if field.required:
            return self._fault(key, f"is missing: give {self._wanted(field.type)}")
        return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()

    def _value(self, kind: Any, value: Any, key: str) -> Any:
        plain = _bare(kind)
        origin = get_origin(plain)
        if origin is tuple:
            return self._sequence(get_args(plain)[0], value, key)
        if origin in {dict, Mapping}:
            return self._mapping(get_args(plain)[1], value, key)
        if isinstance(plain, type) and issubclass(plain, Struct):
            table = self._container(value, dict, "a table", key)
            return _MISSING if table is _MISSING else self.struct(plain, table, key)
        return self._scalar(kind, value, key)

    def _sequence(self, kind: Any, value: Any, key: str) -> Any:
        if isinstance(value, Loose) and not value.lstrip().startswith("[") and _bare(kind) is str:
            value = [Loose(one.strip()) for one in value.split(",") if one.strip()]
        found = self._container(value, list, "a list", key)
        if found is _MISSING:
            return _MISSING
        made = [self._value(kind, one, f"{key}[{number}]") for number, one in enumerate(found)]
        return _MISSING if any(one is _MISSING for one in made) else tuple(made)

    def _mapping(self, kind: Any, value: Any, key: str) -> Any:
        found = self._container(value, dict, "a table", key)
        if found is _MISSING:
            return _MISSING
        made = {name: self._value(kind, one, _joined(key, name)) for name, one in found.items()}
        return _MISSING if any(one is _MISSING for one in made.values()) else made

    def _container(self, value: Any, kind: type, word: str, key: str) -> Any:
        if isinstance(value, Loose):
            try:
                value = msgspec.json.decode(str(value))
            except (msgspec.DecodeError, RecursionError):
                return self._fault(key, f"must be {word}, written as JSON")
        return value if isinstance(value, kind) else self._fault(key, f"must be {word}, not {_shown(value)}")

    def _scalar(self, kind: Any, value: Any, key: str) -> Any:
        if kind is Any:
            return value
        try:
            return msgspec.convert(
                str(value) if isinstance(value, Loose) else value,
                kind,
                strict=not isinstance(value, Loose),
                dec_hook=self._made,
            )
        except (msgspec.ValidationError, ValueError):
            shown = "what was given" if _bare(kind) in self._custom else _shown(value)
            if isinstance(value, str) and _literals(kind):
                near = get_close_matches(value, _literals(kind), 1)
                shown = f"{value!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            return self._fault(key, f"must be {self._wanted(kind)}, not {shown}")

    def _made(self, kind: type, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("no text")  # noqa: TRY004 - the caller hears of ValueError only
        return self._custom[kind][0](value)

    def _wanted(self, kind: Any) -> str:
        """What is allowed for *kind*, in words."""
        if get_origin(kind) in {Union, UnionType}:
            return " or ".join(self._wanted(one) for one in get_args(kind) if one is not type(None))
        metas = [one for one in get_args(kind)[1:] if isinstance(one, Meta)] if get_origin(kind) is Annotated else []
        told = next((meta.description for meta in metas if meta.description), None)
        plain = _bare(kind)
        if told is not None:
            return told
        if plain in self._custom:
            return self._custom[plain][1]
        if _literals(plain):
            return "one of " + ", ".join(f'"{one}"' for one in _literals(plain))
        return _WORDS.get(plain, "a list" if get_origin(plain) is tuple else "a table") + _bounds(metas)

    def _fault(self, key: str, why: str) -> _Missing:
        self._faults.append(Fault(key, why))
        return _MISSING


def _bare(kind: Any) -> Any:
    """The type without what is annotated to it, and without None beside a single other one."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in {Union, UnionType}:
        others = [one for one in get_args(kind) if one is not type(None)]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def _literals(kind: Any) -> Sequence[str]:
    plain = _bare(kind)
    return cast("Sequence[str]", get_args(plain)) if get_origin(plain) is Literal else ()


def _bounds(metas: Sequence[Meta]) -> str:
    above = next((meta.gt for meta in metas if meta.gt is not None), None)
    least = next((meta.ge for meta in metas if meta.ge is not None), None)
    most = next((meta.le for meta in metas if meta.le is not None), None)
    match least, most:
        case None, None:
            return "" if above is None else f" above {above}"
        case _, None:
            return f" of at least {least}"
        case _:
            return f" from {least or 0} to {most}"


def _shown(value: Any) -> str:
    """What *value* is, without any text of it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)[:40]
        case Loose():
            return "what was given"
        case str():
            return "another text" if value else "an empty text"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def _unknown(name: str, known: Mapping[str, FieldInfo]) -> str:
    near = get_close_matches(name, known, 1)
    if near:
        return f"there is no such key; did you mean {near[0]!r}?"
    return f"there is no such key here; remove it, or use one of {', '.join(known)}"


def _joined(key: str, name: object) -> str:
    """The dotted key of a member; a name that TOML would quote is quoted."""
    told = str(name)
    if re.fullmatch(r"[A-Za-z0-9_.\[\]-]*", told) is None:
        told = msgspec.json.encode(told).decode(errors="replace")
    return ".".join(one for one in (key, told) if one)


def _placed(key: str, message: str) -> Fault:
    """Where a rule of a Struct was broken: its message may begin with the member's wire name."""
    found = _NAMED.fullmatch(message)
    if found is None:
        return Fault(key, message)
    name = re.sub(r"(?<=[a-z])([A-Z])", lambda capital: f"_{capital[1].lower()}", found[1])
    told = re.sub(r"\[\d+\]$", "", key).rpartition(".")[2]
    return Fault(key if told == name else _joined(key, name), found[2])
