"""The official JSON Schema Test Suite, both drafts, through both engines.

In `json_schema_suite/`: the required tests that need no second document, and the ECMA-262 patterns; its licence is beside them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import Refused
from actors.schema import EngineName, compiled

SUITE = Path(__file__).parent / "json_schema_suite"
ENGINES: list[EngineName] = ["jsonschema", "jsonschema-rs"]
REFUSED = {
    ("draft7", "definitions", "validate definition against metaschema"),
    ("draft7", "ref", "remote ref, containing refs itself"),
    ("draft2020-12", "defs", "validate definition against metaschema"),
    ("draft2020-12", "dynamicRef", "strict-tree schema, guards against misspelled properties"),
    ("draft2020-12", "dynamicRef", "tests for implementation dynamic anchor and reference link"),
    ("draft2020-12", "dynamicRef", "$ref and $dynamicAnchor are independent of order - $defs first"),
    ("draft2020-12", "dynamicRef", "$ref and $dynamicAnchor are independent of order - $ref first"),
    ("draft2020-12", "dynamicRef", "$ref to $dynamicRef finds detached $dynamicAnchor"),
    ("draft2020-12", "ref", "remote ref, containing refs itself"),
}
"""Groups whose schema refers to another document, a meta-schema for the most part: refused by the protocol (runs §6)."""


def groups() -> Iterator[Any]:
    for file in sorted(SUITE.glob("*/*.json")):
        for group in json.loads(file.read_text()):
            name = (file.parent.name, file.stem, group["description"])
            yield pytest.param(name, group, id=" | ".join(name))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "group"), list(groups()))
def test_the_official_suite(name: tuple[str, str, str], group: dict[str, Any], engine: EngineName) -> None:
    if name in REFUSED:
        with pytest.raises(Refused, match="within the document"):
            compiled(group["schema"], engine)
        return
    validator = compiled(group["schema"], engine)
    wrong = [test["description"] for test in group["tests"] if validator.accepts(test["data"]) is not test["valid"]]
    assert not wrong


NAMES = st.sampled_from(["a", "b", "ab", "x1", "\u00e9"])
NUMBERS = st.integers(-3, 5) | st.sampled_from([0.5, 1.0, 2.5, 2**64, 0.1])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text("ab1\u00e9\U0001f600", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
COUNTS = st.integers(0, 3)
PATTERNS = st.sampled_from(["^a", "b$", r"^\w+$", r"\d", "^(a|b)*$", "[^a]", r"\S"])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
REFERENCES = st.sampled_from(["#/$defs/one", "#/$defs/two"])


def members(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    maps, lists = st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, min_size=1, max_size=3)
    return {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3), "const": VALUES,
        "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
        "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 3]),
        "minLength": COUNTS, "maxLength": COUNTS, "minItems": COUNTS, "maxItems": COUNTS, "minProperties": COUNTS, "maxProperties": COUNTS,
        "pattern": PATTERNS, "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2), "uniqueItems": st.booleans(),
        "properties": maps, "additionalProperties": inner, "propertyNames": inner, "required": st.lists(NAMES, max_size=2, unique=True),
        "contains": inner, "allOf": lists, "anyOf": lists, "oneOf": lists, "not": inner, "if": inner, "then": inner, "else": inner,
    }  # fmt: skip


OLD_SCHEMAS = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional=members(st.booleans())),
    lambda inner: st.fixed_dictionaries({}, optional={
        **members(inner), "items": inner | st.lists(inner, min_size=1, max_size=3), "additionalItems": inner,
        "dependencies": st.dictionaries(NAMES, inner | st.lists(NAMES, max_size=2, unique=True), max_size=2),
    }),
    max_leaves=6,
)  # fmt: skip
NEW_SCHEMAS = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional=members(st.booleans())) | st.fixed_dictionaries({"$ref": REFERENCES}),
    lambda inner: st.fixed_dictionaries({}, optional={
        **members(inner), "prefixItems": st.lists(inner, min_size=1, max_size=3), "items": inner, "minContains": COUNTS, "maxContains": COUNTS,
        "unevaluatedItems": inner, "unevaluatedProperties": inner, "dependentSchemas": st.dictionaries(NAMES, inner, max_size=2),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
    }),
    max_leaves=6,
)  # fmt: skip
WHOLE = OLD_SCHEMAS | st.builds(
    lambda root, one, two: {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"one": one, "two": two},
        **root,
    },
    NEW_SCHEMAS.filter(lambda schema: isinstance(schema, dict)),
    OLD_SCHEMAS.filter(lambda schema: isinstance(schema, bool)),
    st.just({"type": "object", "properties": {"a": {"$ref": "#/$defs/two"}, "b": {"$ref": "#"}}}),
)


@settings(max_examples=60)
@given(WHOLE, st.lists(VALUES, min_size=1, max_size=6))
def test_both_engines_agree_on_any_schema_and_value(schema: Any, values: list[Any]) -> None:
    verdicts: list[list[bool] | str] = []
    for engine in ENGINES:
        try:
            validator = compiled(schema, engine)
        except Refused as refused:
            verdicts.append(refused.problem.message)
        else:
            verdicts.append([validator.accepts(value) for value in values])
    assert verdicts[0] == verdicts[1]
