"""Whatever is sent, in whatever order of members."""

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Refused
from actors.fingerprint import canonical, fingerprint
from actors.request import checked, decoded_request, encoded_request
from tests.actors.test_request import BARE, FULL, FULLEST, REFERENCE, SESSION, TEXT, TOOL, run

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["mock", "demo", "\ud800"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = {**FULLEST, "session": SESSION}
PIECES = st.sampled_from(
    [TEXT, REFERENCE, TOOL, SESSION, [TEXT], [REFERENCE, TEXT], [TOOL], ["clock"], {}, {"type": "object"}]
)
REQUESTS = st.fixed_dictionaries(
    {"provider": st.sampled_from(["mock", "bare"]), "model": st.just("demo"), "input": st.text(min_size=1, max_size=5)},
    optional={
        name: st.just(value) | ANYTHING | PIECES
        for name, value in MEMBERS.items()
        if name not in {"provider", "model", "input"}
    },
)
LIKELY = st.dictionaries(st.sampled_from(sorted(set(MEMBERS) - {"session"})), st.none(), max_size=8).map(
    lambda chosen: run(**{name: MEMBERS[name] for name in chosen})
)


def shuffled(value: Any, seed: int) -> Any:
    if isinstance(value, dict):
        names = list(value)
        random.Random(seed).shuffle(names)  # noqa: S311 - any order will do, the same one each time
        return {name: shuffled(value[name], seed + 1) for name in names}
    return [shuffled(each, seed + 1) for each in value] if isinstance(value, list) else value


@given(ANYTHING | REQUESTS)
def test_any_document_is_accepted_or_refused(document: Any) -> None:
    for catalog in (BARE, FULL):
        try:
            request = checked(document, catalog)
        except Refused as refused:
            assert refused.code.isupper()  # noqa: PT017 - some are refused, some are not
        else:
            assert decoded_request(encoded_request(request)) == request


@given(LIKELY, st.integers(0, 1000))
def test_the_order_of_members_changes_nothing(document: dict[str, Any], seed: int) -> None:
    try:
        request = checked(document, FULL)
    except Refused as refused:
        try:
            checked(shuffled(document, seed), FULL)
        except Refused as again:
            assert again.code == refused.code  # noqa: PT017 - the order of rules is not the order of members
        return
    other = checked(shuffled(document, seed), FULL)
    assert fingerprint(request) == fingerprint(other)
    assert decoded_request(encoded_request(other)) == other
    assert fingerprint(decoded_request(encoded_request(other))) == fingerprint(request)


def test_a_fingerprint_sees_every_value_every_presence_and_every_order_of_items() -> None:
    base = run(history=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], idempotencyKey="k")
    variants = [
        base,
        {**base, "history": base["history"][::-1]},
        {**base, "history": []},
        {name: value for name, value in base.items() if name != "history"},
        {**base, "idempotencyKey": "l"},
        {**base, "metadata": {}},
        {**base, "metadata": {"a": ""}},
        {**base, "idleTimeoutMs": 0},
        {**base, "tools": []},
        {**base, "instructions": ""},
        {**base, "outputSchema": {"enum": [1]}},
        {**base, "outputSchema": {"enum": [2**53 + 1]}},
        {**base, "outputSchema": {"enum": [2**53]}},
        {**base, "outputSchema": {"enum": ["1"]}},
        {**base, "outputSchema": {"enum": [True]}},
    ]
    prints = [fingerprint(checked(each, FULL)) for each in variants]
    assert len(set(prints)) == len(prints)


def test_numbers_count_by_value() -> None:
    assert fingerprint(checked(run(maxSteps=3.0), FULL)) == fingerprint(checked(run(maxSteps=3), FULL))
    score = [run(retrieval={"corpus": "c", "minScore": each}) for each in (1, 1.0)]
    assert len({fingerprint(checked(each, FULL)) for each in score}) == 1
    assert (
        canonical(b'{"b":[1.0,-0.0,1e2,2.50],"a":9223372036854775808}')
        == b'{"a":9223372036854775808,"b":[1,0,100,2.5]}'
    )


def test_members_are_sorted_by_utf_16_units() -> None:
    """U+1F600 is written as a surrogate pair, which sorts before U+FFFD."""
    document = json.dumps({"\ufffd": 1, "\U0001f600": 2, "a": 3}).encode()
    assert list(json.loads(canonical(document))) == ["a", "\U0001f600", "\ufffd"]


def test_the_fingerprint_of_a_known_request_never_changes() -> None:
    """A store outlives an upgrade of its host; whoever must change this number breaks every key that is in use."""
    assert fingerprint(checked(FULLEST, FULL)) == "743118bce1bc5a9a70d7fe3e54e77efdb372c6ec0042f5392f1a0fba09a0cdc3"
