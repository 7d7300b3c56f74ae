"""Does this value suit that JSON Schema? One door to two engines (runs §6).

jsonschema is always there; jsonschema-rs, where it is installed, takes over whatever it can do within bounds.
Drafts are 07 (the default) and 2020-12, `format` and content keywords are not asserted, nothing is ever fetched.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from referencing.jsonschema import DRAFT7, DRAFT202012

from actors.errors import Refused
from actors.jsontext import NotJson, encoded, is_json, strict_json
from actors.patterns import Pattern
from actors.schema_graph import Graph, Schema, Unusable, graph_of, subschemas
from actors.schema_python import PythonEngine, is_schema

if TYPE_CHECKING:
    from actors.schema_rust import RustEngine

EngineName: TypeAlias = Literal["jsonschema", "jsonschema-rs"]

CACHED = 128
CACHED_BYTES_MAX = 65_536
"""Larger schemas are compiled each time, so that the cache stays small."""
PATTERNS_SIZE_MAX = 200_000
"""Instructions of all the patterns of a schema."""
IRREGULAR_MAX = 16
"""Patterns with look-around or back-references, which only the fast engine has."""

_DIALECTS = {
    "http://json-schema.org/draft-07/schema": "draft-07",
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
}
_NOT_ASSERTED = {"$schema", "format", "contentMediaType", "contentEncoding"}


class _Engine(Protocol):
    def accepts(self, value: object) -> bool: ...


class Validator:
    """A compiled schema."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def accepts(self, value: object) -> bool:
        """Whether the JSON *value* is valid under the schema; one that would take too much work to tell is not."""
        return self._engine.accepts(value)


def compiled(schema: object, engine: EngineName | None = None) -> Validator:
    """The validator of *schema*, given as JSON bytes or as a value; *engine* is for tests that need a certain one.

    Raises:
        Refused: INVALID_SCHEMA.
    """
    if not isinstance(schema, bytes) and not is_json(schema):
        raise Refused("INVALID_SCHEMA", "The schema is not JSON")
    text = schema if isinstance(schema, bytes) else encoded(schema)
    made = _cached if len(text) <= CACHED_BYTES_MAX else _compiled
    try:
        return made(text, engine)
    except UnicodeDecodeError:
        raise Refused("INVALID_SCHEMA", "The schema is not JSON") from None
    except (Unusable, NotJson) as fault:
        raise Refused("INVALID_SCHEMA", f"The schema cannot be used: {fault}") from None


def _compiled(text: bytes, engine: EngineName | None) -> Validator:
    schema = strict_json(text.decode())
    dialect = _dialect(schema)
    fast = fast_engine() if engine != "jsonschema" else None
    if not (is_schema if fast is None else fast.is_schema)(schema, dialect):
        raise Unusable("not valid under its meta-schema")
    if not isinstance(schema, dict):
        return Validator(PythonEngine(schema, dialect, {}))
    root = cast("Schema", schema)
    _tidy(root, dialect)
    graph = graph_of(root, DRAFT7 if dialect == "draft-07" else DRAFT202012)
    patterns, irregular = _patterns(graph)
    if irregular and fast is None:
        raise Unusable("a pattern that is not regular")
    slow = None if irregular else PythonEngine(root, dialect, patterns)
    if fast is not None:
        return Validator(fast(root, dialect, graph, irregular, slow))
    return Validator(PythonEngine(root, dialect, patterns))


@cache
def fast_engine() -> "type[RustEngine] | None":
    """The engine of the extra `fast`, if it is installed."""
    try:
        from actors.schema_rust import RustEngine  # noqa: PLC0415 - optional
    except ImportError:  # pragma: no cover - the tests' environment has it
        return None
    return RustEngine


_cached = lru_cache(CACHED)(_compiled)


def _dialect(schema: object) -> str:
    if not isinstance(schema, dict) or "$schema" not in schema:
        return "draft-07"
    named = cast("Schema", schema)["$schema"]
    if not isinstance(named, str) or named.removesuffix("#") not in _DIALECTS:
        raise Unusable("$schema names no dialect that is known here")
    return _DIALECTS[named.removesuffix("#")]


def _tidy(schema: Schema, dialect: str) -> None:
    """Takes from *schema*, which is ours alone, what an engine must not see: dialects (settled) and what is not asserted."""
    if "$schema" in schema and _dialect(schema) != dialect:
        raise Unusable("schemas of different dialects")
    for word in _NOT_ASSERTED & schema.keys():
        del schema[word]
    for _, inner in subschemas(schema):
        _tidy(inner, dialect)


def _patterns(graph: Graph) -> tuple[dict[str, Pattern], set[str]]:
    """The regular patterns of the graph, compiled, and the other ones; no more are compiled than it may have."""
    regular: dict[str, Pattern] = {}
    irregular: set[str] = set()
    size = 0
    for source in {each for schema in graph.schemas for each in _pattern_sources(schema)}:
        try:
            regular[source] = Pattern(source)
            size += regular[source].size
        except ValueError:
            irregular.add(source)
        if len(irregular) > IRREGULAR_MAX or size > PATTERNS_SIZE_MAX:
            raise Unusable("too many patterns")
    return regular, irregular


def _pattern_sources(schema: Schema) -> Iterator[str]:
    if isinstance(source := schema.get("pattern"), str):
        yield source
    if isinstance(sources := schema.get("patternProperties"), dict):
        yield from cast("Schema", sources)
