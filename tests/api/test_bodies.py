"""Request bodies and JSON text: what is refused, what is kept, and how long it may take (wire overview §8)."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Refused
from actors.jsontext import DEPTH_MAX, NotJson, compacted, encoded, is_json, strict_json
from api.bodies import BODY_BYTES_MAX, may_be_slow, parsed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refusal(body: bytes) -> str:
    with pytest.raises(Refused) as caught:
        parsed(body)
    return caught.value.code


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \n", id="blank"),
        pytest.param(b'{"a": NaN}', id="NaN"),
        pytest.param(b"[Infinity]", id="Infinity"),
        pytest.param(b"[-Infinity]", id="minus Infinity"),
        pytest.param(b"[1e400]", id="a float that overflows"),
        pytest.param(b"1" * 5000, id="an endless integer"),
        pytest.param(b'{"a":1,"a":1}', id="a duplicate member"),
        pytest.param(b'[{"b":{"a":1,"\\u0061":2}}]', id="a duplicate member under another spelling"),
        pytest.param(b'"\\ud800"', id="half a surrogate pair"),
        pytest.param(b'{"\\udc00":1}', id="half a surrogate pair in a name"),
        pytest.param(b'"\\ude00\\ud83d"', id="a pair the wrong way round"),
        pytest.param(b'"\xc3\x28"', id="invalid UTF-8"),
        pytest.param(b'"\xed\xa0\x80"', id="a surrogate in UTF-8"),
        pytest.param("\ufeff\ufeff{}".encode(), id="two byte order marks"),
        pytest.param('{"a":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b"\xa01", id="a foreign space"),
        pytest.param(b"01", id="a leading zero"),
        pytest.param(b"[1,]", id="a trailing comma"),
        pytest.param(b"{}{}", id="two values"),
        pytest.param(b'"\n"', id="a raw line feed in a string"),
        pytest.param(b"'a'", id="single quotes"),
        pytest.param(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), id="one container too deep"),
        pytest.param(b'{"a":' * 100_000, id="very deep"),
    ],
)
def test_a_body_that_two_readers_might_read_differently_is_an_invalid_request(body: bytes) -> None:
    assert refusal(body) == "INVALID_REQUEST"


def test_a_body_above_the_bound_is_too_large() -> None:
    assert refusal(b" " * BODY_BYTES_MAX + b"1") == "BODY_TOO_LARGE"
    assert parsed(b" " * (BODY_BYTES_MAX - 1) + b"1") == 1


def test_one_byte_order_mark_is_tolerated() -> None:
    assert parsed("\ufeff{}".encode()) == {}


def test_whole_surrogate_pairs_and_deep_brackets_in_strings_are_fine() -> None:
    assert parsed(b'"\\ud83d\\ude00"') == "\U0001f600"
    assert parsed(b'["' + b"[{" * 1000 + b'\\"["]') == ["[{" * 1000 + '"[']
    deepest = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert encoded(parsed(deepest)) == deepest


def test_numbers_are_kept() -> None:
    document = parsed(b"[1, 1.0, 9223372036854775808, -0, 1e2]")
    assert document == [1, 1.0, 2**63, 0, 100.0]
    assert isinstance(document, list)
    assert [type(each) for each in document] == [int, float, int, int, float]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * BODY_BYTES_MAX,
        b"[[" * 40 + b'"' + b'\\"' * 499_900,
        b"[[" * 40 + b'"' * 999_900,
        b"[" + b"[]," * 333_000 + b"[]]",
        b"1" * BODY_BYTES_MAX,
        b"[" + b",".join([b"1" * 4300] * 230) + b"]",
        b"[" + b",".join([b'{"a":1.5}'] * 99_000) + b"]",
        b"[" + b",".join([b'"\\ud83d\\ude00"'] * 62_000) + b"]",
    ],
    ids=range(8),
)
def test_no_megabyte_takes_long(body: bytes) -> None:
    start = time.process_time()
    try:
        parsed(body)
    except Refused as refused:
        assert refused.code == "INVALID_REQUEST"  # noqa: PT017 - some are refused, some are not
    assert time.process_time() - start < 2


def test_compacting_changes_no_token() -> None:
    text = ' { "a b" : [ 1.0 , 9223372036854775808,\t1E400 ,"x \\" y" ] ,\r\n "\\u0061" : -0 } '
    assert compacted(text) == b'{"a b":[1.0,9223372036854775808,1E400,"x \\" y"],"\\u0061":-0}'


@given(JSON, st.sampled_from([None, 1, "\t"]))
def test_what_is_written_is_read_back_and_compacts_to_itself(value: Any, indent: int | str | None) -> None:
    spaced = json.dumps(value, indent=indent)
    assert strict_json(spaced) == value
    assert strict_json(compacted(spaced).decode()) == value
    assert compacted(encoded(value).decode()) == encoded(value)
    assert is_json(value)


@given(st.text(alphabet='{}[]",:\\ud8dc0123456789eE+-.truefalsn \n\ufeff', max_size=40))
def test_any_text_is_json_for_us_only_if_the_standard_library_agrees(text: str) -> None:
    try:
        value = strict_json(text)
    except NotJson:
        return
    assert json.loads(text) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        parsed(body)
    except Refused as refused:
        assert refused.code == "INVALID_REQUEST"  # noqa: PT017 - some are refused, some are not


@pytest.mark.parametrize("value", [(1,), {1: 2}, float("nan"), "\ud800", {"\udfff": 1}, object(), [[b""]]])
def test_what_json_cannot_carry_is_not_json(value: object) -> None:
    assert not is_json(value)


def test_a_value_deeper_than_any_text_may_be_is_not_json() -> None:
    deep: list[Any] = []
    for _ in range(DEPTH_MAX):
        deep = [deep]
    assert not is_json(deep)
    assert is_json(deep[0])
    deep.append(deep)
    assert not is_json(deep)


@pytest.mark.parametrize(
    ("body", "slow"),
    [
        (b'{"input":"x"}', False),
        (b'{"outputSchema":{}}', True),
        (rb'{"output\u0053chema":{}}', True),
        (rb'{"outputS\u0063hema":{}}', True),
        (b" " * 65_537, True),
    ],
)
def test_a_schema_is_found_however_its_name_is_spelled(body: bytes, *, slow: bool) -> None:
    assert may_be_slow(body) is slow
