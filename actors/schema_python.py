"""The JSON Schema engine that is always there: jsonschema, made safe for schemas and values of strangers.

Patterns run on RE2, work is counted and bounded, nothing is fetched, and the engine's messages, which nobody reads, stay
short whatever they quote.
"""

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import jsonschema_specifications  # type: ignore[import-untyped] # pyright: ignore[reportMissingTypeStubs]
import referencing
from jsonschema import Draft7Validator, Draft202012Validator, ValidationError, validators
from referencing.jsonschema import DRAFT7, DRAFT202012

from actors.patterns import Pattern
from actors.schema_graph import size

FUEL = 9_000_000
"""Units of work, of about a tenth of a microsecond, that one validation may take."""
META_FUEL = 3_000_000
"""The same for the question whether a document is a schema at all, which is asked before a run is accepted."""
APPLYING = 30
"""The work of applying one schema to one value, whatever stands in it; counted twice by the way jsonschema does it."""
FOLLOWING = 150
"""The work of following a reference."""
MATCHING = 20
"""The work of matching one short pattern."""

_META_PATTERNS = (r"^[^#]*#?$", r"^[A-Za-z_][-A-Za-z0-9._]*$")
_fuel: ContextVar[list[int]] = ContextVar("fuel")
_patterns: ContextVar[Mapping[str, Pattern]] = ContextVar("patterns")


class TooCostly(Exception):
    """The value would take more work than a validation may."""


def _short(self: object) -> str:  # noqa: ARG001 - any value looks the same
    return "…"


class _Array(list[Any]):
    __repr__ = _short


class _Object(dict[str, Any]):
    __slots__ = ("cost",)
    __repr__ = _short
    cost: int


class _Text(str):
    __slots__ = ()
    __repr__ = _short


def quiet(value: object) -> object:
    """The JSON *value* with short representations, and each object with the work it is as a schema."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        made = _Object((name, quiet(each)) for name, each in members.items())
        made.cost = APPLYING + sum(_cost(word, each) for word, each in members.items())
        return made
    if isinstance(value, list):
        return _Array(map(quiet, cast("list[object]", value)))
    return _Text(value) if isinstance(value, str) else value


def _cost(word: str, value: object) -> int:
    if word in {"$ref", "$dynamicRef"}:
        return FOLLOWING
    if word in {"enum", "const", "dependentRequired"}:
        return 2 * size(value)
    return len(cast("list[object]", value)) if isinstance(value, (dict, list)) else 1


class PythonEngine:
    """One compiled schema."""

    def __init__(self, schema: object, dialect: str, patterns: Mapping[str, Pattern]) -> None:
        self._validator = _validator(quiet(schema), dialect, cast("Any", referencing.Registry)())
        self._compiled = patterns

    def accepts(self, value: object) -> bool:
        """Whether *value* is valid. A value that would take too much work or stack is not."""
        return _accepts(self._validator, self._compiled, value, FUEL)


def is_schema(document: object, dialect: str) -> bool:
    """Whether *document* is valid under the meta-schema of its *dialect*."""
    return _accepts(_meta(dialect), {each: Pattern(each) for each in _META_PATTERNS}, document, META_FUEL)


def _validator(schema: object, dialect: str, known: Any) -> Any:
    resource = (DRAFT7 if dialect == "draft-07" else DRAFT202012).create_resource(cast("Any", schema))
    base = resource.id() or ""
    resolver = known.with_resource(base, resource).crawl().resolver(base)
    return _CLASSES[dialect](schema, _resolver=resolver)


@lru_cache
def _meta(dialect: str) -> Any:
    """The meta-schema's validator; without `$schema`, at which jsonschema would go on with a class of its own."""
    known = cast("Any", jsonschema_specifications).REGISTRY
    parts = [(uri, known.contents(uri)) for uri in known if "/draft/2020-12/" in uri]
    resources: Any = [(uri, DRAFT202012.create_resource(_undeclared(part))) for uri, part in parts]
    stock: Any = Draft7Validator if dialect == "draft-07" else Draft202012Validator
    registry = cast("Any", referencing.Registry)()
    return _validator(_undeclared(stock.META_SCHEMA), dialect, registry.with_resources(resources))


def _undeclared(schema: Any) -> Any:
    return quiet({name: each for name, each in schema.items() if name != "$schema"})


def _accepts(validator: Any, patterns: Mapping[str, Pattern], value: object, work: int) -> bool:
    fuel, compiled = _fuel.set([work]), _patterns.set(patterns)
    try:
        return bool(validator.is_valid(quiet(value)))
    except (TooCostly, RecursionError):
        return False
    finally:
        _fuel.reset(fuel)
        _patterns.reset(compiled)


def _spend(work: int) -> None:
    left = _fuel.get(None)
    if left is not None:
        left[0] -= work
        if left[0] < 0:
            raise TooCostly


def _keywords(schema: Any) -> Any:
    _spend(schema.cost)
    return schema.items()


def _keywords_or_ref(schema: Any) -> Any:
    _spend(schema.cost)
    return [("$ref", schema["$ref"])] if "$ref" in schema else schema.items()


_FAULT = "not valid"


def _pattern(_validator: Any, pattern: str, instance: object, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str):
        _spend(MATCHING + (len(instance) >> 5))
        if not _patterns.get()[pattern].occurs(instance):
            yield ValidationError(_FAULT)


def _pattern_properties(validator: Any, patterns: Any, instance: object, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        members = cast("dict[str, Any]", instance)
        _spend(MATCHING * len(patterns) * len(members))
        for pattern, schema in patterns.items():
            occurs = _patterns.get()[pattern].occurs
            for name in [each for each in members if occurs(each)]:
                yield from validator.descend(members[name], schema)


def _additional_properties(validator: Any, extra: Any, instance: object, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        members = cast("dict[str, Any]", instance)
        for name in members.keys() - _named(schema, members):
            yield from validator.descend(members[name], extra)


def _named(schema: Mapping[str, Any], members: Mapping[str, Any]) -> set[Any]:
    """The members of an instance that `properties` and `patternProperties` speak of."""
    patterns = [_patterns.get()[each] for each in schema.get("patternProperties", ())]
    _spend((1 + MATCHING * len(patterns)) * len(members))
    named = {name for name in schema.get("properties", ()) if name in members}
    return named | {name for name in members if any(each.occurs(name) for each in patterns)}


def _unique_items(_validator: Any, wanted: object, instance: object, _schema: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list):
        items = cast("list[object]", instance)
        _spend(5 * size(items))
        if len({_identity(each) for each in items}) < len(items):
            yield ValidationError(_FAULT)


def _identity(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((name, _identity(each)) for name, each in cast("dict[str, object]", value).items())
    if isinstance(value, list):
        return tuple(_identity(each) for each in cast("list[object]", value))
    return (bool, value) if isinstance(value, bool) else value


def _multiple_of(_validator: Any, unit: Any, instance: object, _schema: Any) -> Iterator[ValidationError]:
    """By the decimal numbers that were written, so that 0.07 is a multiple of 0.01."""
    numeric = isinstance(instance, (int, float)) and not isinstance(instance, bool)
    if numeric and Fraction(repr(instance)) % Fraction(repr(unit)):
        yield ValidationError(_FAULT)


def _unevaluated_properties(validator: Any, rest: Any, instance: object, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        members = cast("dict[str, Any]", instance)
        for name in members.keys() - _seen(validator, members, schema, _seen_members, own=True):
            yield from validator.descend(members[name], rest)


def _unevaluated_items(validator: Any, rest: Any, instance: object, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, list):
        items = cast("list[object]", instance)
        seen = _seen(validator, items, schema, _seen_items, own=True)
        for index, each in enumerate(items):
            if index not in seen:
                yield from validator.descend(each, rest)


def _seen(validator: Any, instance: Any, schema: Any, here: Callable[..., set[Any]], *, own: bool = False) -> set[Any]:
    """The members or indexes of *instance* that *schema*, which it satisfies, evaluates."""
    if not isinstance(schema, dict):
        return set()
    seen = here(validator, instance, schema, own=own)
    for inner in _applied(validator, instance, cast("dict[str, Any]", schema)):
        seen |= _seen(inner, instance, inner.schema, here)
    return seen


def _seen_members(_validator: Any, instance: dict[str, Any], schema: dict[str, Any], *, own: bool) -> set[Any]:
    if "additionalProperties" in schema or ("unevaluatedProperties" in schema and not own):
        return set(instance)
    return _named(schema, instance)


def _seen_items(validator: Any, instance: list[Any], schema: dict[str, Any], *, own: bool) -> set[Any]:
    if "items" in schema or ("unevaluatedItems" in schema and not own):
        return set(range(len(instance)))
    seen = set(range(len(schema.get("prefixItems", ()))))
    if "contains" in schema:
        contained = _into(validator, schema["contains"])
        seen |= {index for index, each in enumerate(instance) if contained.is_valid(each)}
    return seen


def _applied(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """The validators of those schemas in *schema* that apply to the same *instance* and accept it."""
    for word in ("$ref", "$dynamicRef"):
        if word in schema:
            found = validator._resolver.lookup(schema[word])  # noqa: SLF001 - the only way to follow a reference
            yield validator.evolve(schema=found.contents, _resolver=found.resolver)
    groups = [each for word in ("allOf", "anyOf", "oneOf") for each in schema.get(word, ())]
    groups += [each for name, each in schema.get("dependentSchemas", {}).items() if name in instance]
    if "if" in schema:
        condition = _into(validator, schema["if"])
        met = condition.is_valid(instance)
        groups += [schema[word] for word in (("if", "then") if met else ("else",)) if word in schema]
    for each in groups:
        inner = _into(validator, each)
        if inner.is_valid(instance):
            yield inner


def _into(validator: Any, schema: Any) -> Any:
    inner = validator._resolver.in_subresource(DRAFT202012.create_resource(schema))  # noqa: SLF001 - as above
    return validator.evolve(schema=schema, _resolver=inner)


_OURS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
}


def _class(stock: Any, keywords: Callable[[Any], Any], **ours: Any) -> Any:
    create = cast("Any", validators).create
    return create(
        stock.META_SCHEMA,
        {**stock.VALIDATORS, **_OURS, **ours},
        type_checker=stock.TYPE_CHECKER,
        id_of=stock.ID_OF,
        applicable_validators=keywords,
    )


_CLASSES: Mapping[str, Any] = {
    "draft-07": _class(Draft7Validator, _keywords_or_ref),
    "2020-12": _class(
        Draft202012Validator,
        _keywords,
        unevaluatedProperties=_unevaluated_properties,
        unevaluatedItems=_unevaluated_items,
    ),
}
