"""Two readings of the protocol agree: the tests' oracle of the strictest client, and the client that is published.

Neither knows the other; what one takes and the other refuses is a mistake in one of them.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runstream_client import ClientError
from runstream_client.asked import Asked
from runstream_client.conformance.cases import suite
from runstream_client.reading import RunReader, result_of

from tests import strict_client

VECTORS = Path(__file__).parent / "vectors"
NAMES = ("application-tools", "approvals", "client-conformance", "context", "jobs", "negotiation", "sessions")
CLIENTS = suite("client-conformance")
STREAMS = sorted(name for name, base in CLIENTS["bases"].items() if isinstance(base, list))
ODD: Sequence[Any] = (None, True, False, 0, -1, 1, 2, 2.0, 0.5, 2**53, 10**400, "", "x", "\ud800", [], {}, [None])


def judged(check: Any, request: Mapping[str, Any], body: bytes) -> tuple[list[str], str]:
    """The types that *check* delivers of a stream, and the code that it raises."""
    types: list[str] = []
    try:
        return check(dict(request), body, types), ""
    except (ClientError, strict_client.ClientError) as error:
        return types, error.code


def by_the_oracle(request: Any, body: bytes, types: list[str]) -> list[str]:
    check = strict_client.StreamCheck(request)
    try:
        check.feed(body)
        check.result()
    finally:
        types += check.types
    return types


def by_the_client(request: Any, body: bytes, types: list[str]) -> list[str]:
    reader = RunReader(Asked(request))
    for event in reader.feed(body):
        types += [event.type]
    result_of(reader.last if reader.ended else None)
    return types


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_vectors_are_those_of_the_host(name: str) -> None:
    whole = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    ours = suite(name)
    assert ours
    assert {member: whole[member] for member in ours} == ours


@st.composite
def bent(draw: st.DrawFn) -> tuple[str, bytes]:
    """A stream of the vectors in which a few members were removed or replaced."""
    name = draw(st.sampled_from(STREAMS))
    events: Any = json.loads(json.dumps(CLIENTS["bases"][name]))
    for _ in range(draw(st.integers(1, 2))):
        inside: Any = draw(st.sampled_from(events))
        key = draw(st.sampled_from(sorted(inside)))
        while isinstance(inside[key], dict | list) and inside[key] and draw(st.integers(0, 3)):
            inside = inside[key]
            key = draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        if isinstance(inside, dict) and len(inside) > 1 and draw(st.booleans()):
            del inside[key]
        else:
            inside[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        if not all(isinstance(event, dict) and event for event in events):
            break
    return name, b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


@given(bent())
@settings(max_examples=150, deadline=None)
def test_whatever_is_wrong_with_a_stream_both_say_the_same(stream: tuple[str, bytes]) -> None:
    name, body = stream
    request = next(
        CLIENTS["requests"][case["request"]]
        for case in CLIENTS["cases"]
        if case["op"] == "stream" and case["response"].get("base") == name
    )
    assert judged(by_the_client, request, body) == judged(by_the_oracle, request, body)
