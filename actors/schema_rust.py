"""The fast JSON Schema engine: jsonschema-rs, while the work is known to be bounded; else the engine that counts."""

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import jsonschema_rs
from jsonschema import Draft7Validator, Draft202012Validator

from actors.schema_graph import Graph, Schema, Unusable
from actors.schema_python import PythonEngine

WORK_MAX = 30_000_000
"""Units of work beyond which this engine, which cannot be stopped, is not asked; about a second of its time."""
IRREGULAR_WEIGHT = 2_000
"""The work of one match of a pattern that backtracks."""
BACKTRACKS_MAX = 10_000
"""Steps back of one match; a string that needs more does not match."""


class RustEngine:
    """One compiled schema."""

    def __init__(
        self, root: Schema, dialect: str, graph: Graph, irregular: set[str], slow: PythonEngine | None
    ) -> None:
        """Raise `Unusable` for a schema that does not compile, which means one of its *irregular* patterns."""
        made: Any = jsonschema_rs.Draft7Validator if dialect == "draft-07" else jsonschema_rs.Draft202012Validator
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX)
        try:
            self._fast: Any = made(root, validate_formats=False, offline=True, pattern_options=options)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise Unusable("it does not compile") from error
        self._graph = graph
        self._weights = dict.fromkeys(irregular, IRREGULAR_WEIGHT)
        self._slow = slow

    def accepts(self, value: object) -> bool:
        """Whether *value* is valid. One that may take too much work is left to the engine that counts."""
        levels = _levels(value)
        costs = self._graph.costs(self._weights)
        work = 0
        for here, inner in zip(levels, [*levels[1:], 0], strict=True):
            work += next(costs, 0) * (here + inner)
            if work > WORK_MAX:
                return self._slow is not None and self._slow.accepts(value)
        return bool(self._fast.is_valid(value))

    @staticmethod
    def is_schema(document: object, dialect: str) -> bool:
        """Whether *document* is valid under the meta-schema of its *dialect*."""
        return bool(_meta(dialect).is_valid(document))


def _levels(value: object) -> list[int]:
    """How many values lie at each depth of *value*."""
    counts: list[int] = []
    level = [value]
    while level:
        counts.append(len(level))
        level = [child for each in level for child in _children(each)]
    return counts


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("Schema", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


@cache
def _meta(dialect: str) -> Any:
    if dialect == "draft-07":
        return jsonschema_rs.Draft7Validator(dict(Draft7Validator.META_SCHEMA), validate_formats=False)
    return jsonschema_rs.Draft202012Validator(dict(Draft202012Validator.META_SCHEMA), validate_formats=False)
