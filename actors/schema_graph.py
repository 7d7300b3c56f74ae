"""A JSON Schema as a graph: which schema applies which others, to the same value or to a value inside it.

From it follow three things before any value is seen: that every reference stays within the document, that no value can
send an engine round in circles, and how much work a value of a given depth may cost at most.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import referencing
import referencing.exceptions
from msgspec import Struct

Schema: TypeAlias = dict[str, Any]

NODES_MAX = 1_000
"""Schemas within one schema; meta-validation alone would take the slower engine seconds beyond it."""
CHAIN_MAX = 64
"""Schemas that may lead from one to the next for the same value; an engine's stack is not endless."""
COST_MAX = 10**15

SAME_LISTS = ("allOf", "anyOf", "oneOf")
SAME_SINGLES = ("not", "if", "then", "else")
SAME_MAPS = ("dependentSchemas", "dependencies")
CHILD_LISTS = ("prefixItems", "items")
CHILD_SINGLES = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "additionalItems", "unevaluatedItems",
    "contains",
)  # fmt: skip
CHILD_MAPS = ("properties", "patternProperties")
DEFINITIONS = ("$defs", "definitions")
_UNEVALUATED = {"unevaluatedItems", "unevaluatedProperties"}


class Unusable(ValueError):
    """The schema cannot be used; the message says why."""


class Edge(Struct, frozen=True):
    """One application: *key* is the member or index of the child, "*" for any, None for the same value."""

    target: int
    key: str | None


class Graph(Struct, frozen=True):
    """The schemas that may be applied, and for each what it applies; the first is the root."""

    schemas: tuple[Schema, ...]
    edges: tuple[tuple[Edge, ...], ...]
    order: tuple[int, ...]
    """Such that every edge to the same value points to a later one."""

    def costs(self, pattern_weights: Mapping[str, int]) -> Iterator[int]:
        """The most work that one value at depth 0, 1, 2 … can cost."""
        weights = [_weight(schema, pattern_weights) for schema in self.schemas]
        applied: Counter[int] = Counter({0: 1})
        while applied:
            inner = self._spread(applied)
            yield min(COST_MAX, sum(times * weights[node] for node, times in applied.items()))
            applied = inner

    def _spread(self, applied: Counter[int]) -> Counter[int]:
        """What is applied to a child, once *applied* was completed by what the same value meets on the way."""
        by_key: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for node in self.order:
            if times := min(applied[node], COST_MAX):
                for edge in self.edges[node]:
                    (applied if edge.key is None else by_key[edge.key])[edge.target] += times
        anywhere = by_key.pop("*", Counter[int]())
        inner: Counter[int] = Counter()
        for counts in by_key.values():
            inner |= counts
        return inner + anywhere


def graph_of(root: Schema, specification: referencing.Specification[Any]) -> Graph:
    """The graph of the schema *root*, without any `$schema`.

    Raises:
        Unusable: for a reference out of the document or to nowhere, for a circle, and for too many schemas.
    """
    return _Walk(root, specification).graph()


def subschemas(schema: Schema) -> Iterator[tuple[str | None, Schema]]:
    """The schemas that stand in *schema*, each with the key of the value it applies to; "" where it does not apply."""
    yield from ((None, each) for word in SAME_LISTS for each in _list(schema, word))
    yield from ((None, each) for word in SAME_SINGLES for each in _single(schema, word))
    yield from ((None, each) for word in SAME_MAPS for _, each in _map(schema, word))
    yield from ((f"[{at}]", each) for word in CHILD_LISTS for at, each in enumerate(_list(schema, word)))
    yield from (("*", each) for word in CHILD_SINGLES for each in _single(schema, word))
    yield from ((f".{name}", each) for name, each in _map(schema, "properties"))
    yield from (("*", each) for _, each in _map(schema, "patternProperties"))
    yield from (("", each) for word in DEFINITIONS for _, each in _map(schema, word))
    yield from (("", each) for each in _single(schema, "contentSchema"))


def _list(schema: Schema, word: str) -> list[Schema]:
    value = schema.get(word)
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Schema", each) for each in items if isinstance(each, dict)]


def _single(schema: Schema, word: str) -> list[Schema]:
    value = schema.get(word)
    return [cast("Schema", value)] if isinstance(value, dict) else []


def _map(schema: Schema, word: str) -> list[tuple[str, Schema]]:
    value = schema.get(word)
    members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return [(name, each) for name, each in members.items() if isinstance(each, dict)]


class _Walk:
    def __init__(self, root: Schema, specification: referencing.Specification[Any]) -> None:
        self._specification = specification
        self._legacy = specification.name == "draft-07"
        self._numbers: dict[int, int] = {}
        self._schemas: list[Schema] = []
        self._edges: list[list[Edge]] = []
        self._resolvers: list[Any] = []
        self._dynamic: defaultdict[str, list[int]] = defaultdict(list)
        self._calls: list[tuple[int, str]] = []
        registry: referencing.Registry[Any] = referencing.Registry()
        self._number(root, registry.resolver_with_root(specification.create_resource(root)))

    def graph(self) -> Graph:
        done = 0
        while done < len(self._schemas):
            self._visit(done)
            done += 1
        for caller, anchor in self._calls:
            self._edges[caller].extend(Edge(target, None) for target in self._dynamic[anchor])
        edges = tuple(tuple(each) * _repeats(schema) for each, schema in zip(self._edges, self._schemas, strict=True))
        return Graph(tuple(self._schemas), edges, _ordered(edges))

    def _number(self, schema: Schema, resolver: Any) -> int:
        number = self._numbers.setdefault(id(schema), len(self._schemas))
        if number == len(self._schemas):
            if number >= NODES_MAX:
                raise Unusable(f"more than {NODES_MAX} schemas")
            if "$schema" in schema:
                raise Unusable("$schema where no schema was expected")
            if schema.get("$async") is True:
                raise Unusable("$async")
            self._schemas.append(schema)
            self._edges.append([])
            self._resolvers.append(resolver)
            if isinstance(anchor := schema.get("$dynamicAnchor"), str):
                self._dynamic[anchor].append(number)
        return number

    def _visit(self, number: int) -> None:
        schema, resolver = self._schemas[number], self._resolvers[number]
        bare = self._legacy and "$ref" in schema
        for key, each in subschemas(schema):
            inner = resolver.in_subresource(self._specification.create_resource(each))
            target = self._number(each, inner)
            if key != "" and not bare:
                self._edges[number].append(Edge(target, key))
        for word in ("$ref",) if self._legacy else ("$ref", "$dynamicRef"):
            if isinstance(reference := schema.get(word), str):
                self._refer(number, word, reference)

    def _refer(self, number: int, word: str, reference: str) -> None:
        try:
            found: Any = self._resolvers[number].lookup(reference)
        except (referencing.exceptions.Unresolvable, LookupError, ValueError, TypeError, AttributeError):
            raise Unusable(f"{word} that does not resolve within the document") from None
        contents: object = found.contents
        if isinstance(contents, dict):
            target = cast("Schema", contents)
            self._edges[number].append(Edge(self._number(target, found.resolver), None))
            anchor = target.get("$dynamicAnchor")
            if word == "$dynamicRef" and isinstance(anchor, str) and reference.endswith(f"#{anchor}"):
                self._calls.append((number, anchor))
        elif not isinstance(contents, bool):
            raise Unusable(f"{word} to something that is no schema")


def _repeats(schema: Schema) -> int:
    """How often an engine may go through what *schema* applies: again, to learn what was evaluated."""
    return 2 if _UNEVALUATED & schema.keys() else 1


def _weight(schema: Schema, pattern_weights: Mapping[str, int]) -> int:
    patterns = [schema.get("pattern"), *schema.get("patternProperties", ())]
    heavy = sum(pattern_weights.get(each, 0) for each in patterns if isinstance(each, str))
    data = sum(size(schema[word]) for word in ("enum", "const", "dependentRequired") if word in schema)
    return 1 + heavy + data + sum(map(_width, schema.values()))


def _width(value: object) -> int:
    return len(cast("Schema | list[Any]", value)) if isinstance(value, (dict, list)) else 1


def size(value: object) -> int:
    """How many JSON values *value* is made of."""
    if isinstance(value, dict):
        return 1 + sum(size(each) for each in cast("dict[str, object]", value).values())
    return 1 + sum(size(each) for each in cast("list[object]", value)) if isinstance(value, list) else 1


def _ordered(edges: Sequence[Sequence[Edge]]) -> tuple[int, ...]:
    """The topological order of the edges that apply to the same value."""
    same = [[edge.target for edge in each if edge.key is None] for each in edges]
    waiting = Counter(target for each in same for target in each)
    ready = [node for node in range(len(edges)) if not waiting[node]]
    length = dict.fromkeys(ready, 1)
    for node in ready:
        for target in same[node]:
            waiting[target] -= 1
            length[target] = max(length.get(target, 0), length[node] + 1)
            if not waiting[target]:
                ready.append(target)
    if len(ready) < len(edges):
        raise Unusable("a schema that applies itself to the same value")
    if max(length.values()) > CHAIN_MAX:
        raise Unusable(f"more than {CHAIN_MAX} schemas in a chain")
    return tuple(ready)
