"""What the one door promises of both engines: dialects, closed references, bounded work (runs §6)."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from actors.errors import Refused
from actors.patterns import Pattern
from actors.schema import EngineName, compiled
from actors.schema_graph import CHAIN_MAX, NODES_MAX

NEW = "https://json-schema.org/draft/2020-12/schema"
OLD = "http://json-schema.org/draft-07/schema"
ENGINES: list[EngineName] = ["jsonschema", "jsonschema-rs"]


@pytest.fixture(params=ENGINES)
def accepts(request: pytest.FixtureRequest) -> Callable[[object, object], bool]:
    return lambda schema, value: compiled(schema, request.param).accepts(value)


@pytest.fixture(params=ENGINES)
def refuses(request: pytest.FixtureRequest) -> Callable[[object], bool]:
    def check(schema: object) -> bool:
        with pytest.raises(Refused) as caught:
            compiled(schema, request.param)
        return caught.value.code == "INVALID_SCHEMA"

    return check


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a", 1], False),
        ({"$schema": OLD, "items": [{"type": "string"}], "additionalItems": False}, ["a", 1], False),
        ({"$schema": OLD + "#", "items": [{"type": "string"}], "additionalItems": False}, ["a"], True),
        ({"$schema": OLD, "prefixItems": [{"type": "string"}]}, [1], True),
        ({"$schema": NEW, "prefixItems": [{"type": "string"}], "items": False}, ["a", 1], False),
        ({"$schema": NEW + "#", "prefixItems": [{"type": "string"}]}, [1], False),
        ({"$schema": NEW, "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"a": 1}, True),
        ({"$schema": NEW, "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"b": 1}, False),
        ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"b": 1}, True),
        ({"definitions": {"a": {"type": "string"}}, "$ref": "#/definitions/a"}, 1, False),
        ({"definitions": {"a": {}}, "$ref": "#/definitions/a", "type": "string"}, 1, True),
        ({"$schema": NEW, "$defs": {"a": {}}, "$ref": "#/$defs/a", "type": "string"}, 1, False),
        ({"definitions": {"a": {"$id": "#here", "type": "string"}}, "$ref": "#here"}, 1, False),
        ({"$schema": NEW, "$id": "x:/a", "$defs": {"b": {"$id": "b", "$defs": {"c": {"$anchor": "k", "type": "null"}}}}, "$ref": "b#k"}, 1, False),
        ({"format": "ipv4"}, "no address", True),
        ({"$schema": NEW, "format": "ipv4"}, "no address", True),
        ({"contentMediaType": "application/json", "contentEncoding": "base64"}, "{", True),
        ({"unknown": {"$ref": "http://example.com/"}, "x-note": 1}, 1, True),
        ({"properties": {"$schema": {"type": "string"}, "format": {"type": "string"}}}, {"format": 1}, False),
        ({"const": {"$schema": "x", "format": 1}}, {"$schema": "x", "format": 1}, True),
        ({"multipleOf": 0.01}, 0.07, True),
        ({"multipleOf": 0.5}, 10**400, True),
        ({"maximum": 1e308}, 10**400, False),
        ({"maximum": 2**64}, 2**64 + 1, False),
        ({"const": 2**70}, 2**70 + 1, False),
        ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, True, False),
        ({"enum": [1]}, True, False),
        ({"uniqueItems": True}, [1, True, "1", [1], [True], {"a": 1}, {"a": True}, None], True),
        ({"uniqueItems": True}, [{"a": [1, 2.0]}, {"a": [1.0, 2]}], False),
        ({"maxLength": 1}, "\U0001f600", True),
        ({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["c"]}, {"c": 1, "a": {"b": {}}}, False),
        (True, 1, True),
        (False, 1, False),
        (b'{"type": "string"}', "a", True),
    ],
)  # fmt: skip
def test_both_engines_judge_alike(
    accepts: Callable[[object, object], bool], schema: object, value: object, *, valid: bool
) -> None:
    assert accepts(schema, value) is valid


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "https://json-schema.org/draft/2019-09/schema"}, {"$schema": OLD + "##"}, {"$schema": ""}, {"$schema": 7}, {"$schema": None},
        {"type": "nope"}, {"minLength": -1}, {"$schema": NEW, "items": [{}]}, {"properties": 1}, {"required": "a"}, [], 1, None, "x",
        {"$async": True}, {"properties": {"a": {"$async": True}}},
        {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "file:///etc/passwd"}, {"$ref": "other.json"}, {"$ref": "#/nope"}, {"$ref": "#nope"},
        {"$ref": OLD + "#"}, {"$schema": NEW, "$dynamicRef": "http://127.0.0.1:9/x#a"}, {"$schema": NEW, "$dynamicRef": "#nope"},
        {"properties": {"a": {"items": {"$ref": "http://127.0.0.1:9/x"}}}}, {"definitions": {"unused": {"$ref": "#/nope"}}},
        {"$id": "http://127.0.0.1:9/", "properties": {"a": {"$id": "b/", "$ref": "c"}}}, {"$schema": NEW, "$id": "http://[", "$ref": "x"},
        {"x": {"$ref": "http://127.0.0.1:9/x"}, "$ref": "#/x"}, {"$ref": "#/allOf/x", "allOf": [{}]}, {"$ref": "#/type", "type": "string"},
        {"properties": {"a": {"$schema": NEW}}}, {"x": {"$schema": OLD}, "$ref": "#/x"},
        {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"anyOf": [{}, {"$ref": "#"}]}}, {"$schema": NEW, "$dynamicAnchor": "a", "$dynamicRef": "#a"},
        {"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}}},
        {"pattern": "("}, {"patternProperties": {"[": {}}}, {"pattern": "(a{1000}){1000}"},
        {"properties": {f"p{n}": {"pattern": f"[^a]{{999}}{n}"} for n in range(400)}},
        {"properties": {f"p{n}": {} for n in range(NODES_MAX)}},
        b"", b"{", b'{"type":"string","type":"object"}', b"\xff", {"const": float("nan")}, {1: 2},
    ],
    ids=lambda schema: repr(schema)[:70],
)  # fmt: skip
def test_what_cannot_be_used_is_an_invalid_schema(refuses: Callable[[object], bool], schema: object) -> None:
    assert refuses(schema)


def test_an_embedded_schema_of_the_same_dialect_keeps_its_bounds(accepts: Callable[[object, object], bool]) -> None:
    hostile = {"properties": {"a": {"$schema": OLD + "#", "pattern": "^(a+)+$"}}}
    assert not accepts(hostile, {"a": "a" * 10_000 + "!"})


def doubling(word: str, levels: int) -> dict[str, Any]:
    """A schema of a few hundred bytes that applies its last definition 2 to the power of *levels* times."""
    chain = {f"d{n}": {word: [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(levels)}
    return {"definitions": {**chain, f"d{levels}": {"type": "integer"}}, "$ref": "#/definitions/d0"}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


BOMBS: list[tuple[str, object, object]] = [
    ("allOf doubled", doubling("allOf", 30), 1),
    ("anyOf doubled", doubling("anyOf", 30), "x"),
    ("oneOf doubled", doubling("oneOf", 30), 1),
    ("doubled at each level", {"allOf": [{"properties": {"a": {"$ref": "#"}}}] * 2}, nested(60)),
    ("unevaluated in unevaluated", {"$schema": NEW, "$ref": "#/$defs/d0", "$defs": {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] if n < 28 else [True], "unevaluatedProperties": False} for n in range(29)
    }}, {"a": 1}),
    ("a long enum", {"items": {"enum": list(range(50_000))}}, list(range(50_000, 100_000))),
    ("many patterns", {"patternProperties": {f"^a{n}": {"type": "integer"} for n in range(400)}}, {f"a{n}": "" for n in range(20_000)}),
    ("a backtracking pattern", {"items": {"pattern": "^(a+)+$"}}, ["a" * 900 + "!"] * 1000),
    ("a long string", {"pattern": "^(a|a)*$"}, "a" * 900_000 + "!"),
    ("unique objects", {"uniqueItems": True, "maxItems": 1}, [{"a": n} for n in range(50_000)]),
    ("unevaluated items", {"$schema": NEW, "prefixItems": [True], "allOf": [{"prefixItems": [True]}], "unevaluatedItems": False}, list(range(100_000))),
    ("a value quoted in many errors", {"anyOf": [{"type": "string"}] * 900}, list(range(100_000))),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), [bomb[1:] for bomb in BOMBS], ids=[bomb[0] for bomb in BOMBS])
def test_no_schema_can_stall_the_node_whatever_the_value(
    accepts: Callable[[object, object], bool], schema: object, value: object
) -> None:
    start = time.process_time()
    assert not accepts(schema, value)
    assert time.process_time() - start < 8


def test_no_document_can_stall_the_node_by_being_no_schema(refuses: Callable[[object], bool]) -> None:
    start = time.process_time()
    assert refuses({"type": [{"a": n} for n in range(50_000)]})
    assert refuses({"$schema": NEW, "properties": {f"p{n}": {"type": "string"} for n in range(25_000)}})
    assert refuses({"patternProperties": {f"[a-z0]{{1,1000}}{n}": {"type": "string"} for n in range(900)}})
    assert time.process_time() - start < 8


def test_a_chain_of_references_has_an_end(
    accepts: Callable[[object, object], bool], refuses: Callable[[object], bool]
) -> None:
    def chain(links: int) -> dict[str, Any]:
        steps = {f"d{n}": {"$ref": f"#/definitions/d{n + 1}"} for n in range(links)}
        return {"definitions": {**steps, f"d{links}": {"type": "null"}}, "$ref": "#/definitions/d0"}

    assert accepts(chain(CHAIN_MAX - 2), None)
    assert not accepts(chain(CHAIN_MAX - 2), 1)
    assert refuses(chain(CHAIN_MAX))


def test_ordinary_large_outputs_are_judged_in_time(accepts: Callable[[object, object], bool]) -> None:
    row = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    rows: list[Any] = [{"a": "x", "b": n} for n in range(10_000)]
    assert accepts({"items": row}, rows)
    assert not accepts({"items": row}, [*rows, {"b": 1}])


def test_look_around_is_for_the_fast_engine_only_and_bounded_there() -> None:
    schema = {"items": {"not": {"pattern": "^(?=(a+)+$)b"}}}
    with pytest.raises(Refused):
        compiled(schema, "jsonschema")
    start = time.process_time()
    compiled(schema, "jsonschema-rs").accepts(["a" * 1000 + "!"] * 5000)
    assert time.process_time() - start < 8
    assert compiled({"pattern": "^(?=.*[A-Z]).{2}$"}, "jsonschema-rs").accepts("aB")
    assert not compiled({"pattern": "^(?=.*[A-Z]).{2}$"}, "jsonschema-rs").accepts("ab")
    with pytest.raises(Refused):
        compiled({"patternProperties": {f"(?=a{n})": {} for n in range(17)}}, "jsonschema-rs")


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^\d+$", "\u0661", False), (r"^\w$", "\u00e9", False), (r"^\s$", "\ufeff", True), (r"^\s$", "\x1c", False), (r"^\S$", "\u00e9", True),
        (r"^[\s\d]+$", "\u00a01", True), (r"^[^\s]$", "\u2003", False), (r"^[\S]$", "\u2003", False), (r"^a$", "a\n", False), (r"^.$", "\r", False),
        (r"^.$", "\u2028", False), (r"^.$", "\U0001f600", True), (r"\cA", "\x01", True), (r"[\b]", "\x08", True), (r"\b\u0430", "\u0430", False),
        (r"^\u00e9$", "\u00e9", True), (r"^\u{1F600}$", "\U0001f600", True), (r"^\uD83D\uDE00$", "\U0001f600", True), (r"^\x41\0$", "A\0", True),
        (r"^\p{Letter}\p{gc=Nd}\P{L}$", "\u00e91-", True), (r"^\p{Script=Greek}$", "\u03b1", True), (r"[]", "a", False), (r"^[^]$", "\n", True),
        (r"^[[a]$", "[", True), (r"^[\]a]$", "]", True), (r"^\/\-\_$", "/-_", True), (r"^(?:a|(?<n>b))$", "b", True), ("a", "xax", True),
        ("^[[][ab]$", "[a", True), ("^[[][ab]$", "[[", False), ("^[a[^][bc]$", "^b", True), ("^[(?]$", "?", True), ("^[(?][ab]$", "(b", True),
        ("^[(?=]$", "=", True), (r"^[(?\]]$", "]", True), (r"^[[\]]$", "]", True), ("^[(?[][.]$", "[.", True), ("^[[][.]$", "[a", False),
    ],
)  # fmt: skip
def test_a_regular_pattern_means_what_ecmascript_says(pattern: str, text: str, *, found: bool) -> None:
    assert Pattern(pattern).occurs(text) is found


@pytest.mark.parametrize("pattern", [r"(?=a)", r"(?<!a)", r"(a)\1", r"\k<n>", r"\A", r"\Z", r"\a", "(?i)a", "(?P<n>a)", "a**", "(", "[", "\\", r"\p{No_Such}", r"\u{110000}"])  # fmt: skip
def test_what_is_not_regular_is_said_to_be_so(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Pattern(pattern)
