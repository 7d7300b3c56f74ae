"""Codes, statuses and envelopes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Problem
from api import problems


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("HOST_STARTING", 503),
        ("ORIGIN_DENIED", 403),
        ("UNAUTHORIZED", 401),
        ("NOT_FOUND", 404),
        ("BODY_TOO_LARGE", 413),
        ("INTERNAL_ERROR", 500),
        ("TOOL_OUTCOME_UNCERTAIN", 409),
        ("IDLE_TIMEOUT", 504),
        ("CANCELLED", 502),
        ("BUSY", 429),
        ("OPERATION_RECORD_LIMIT", 503),
        ("RUNTIME_BUSY", 409),
        ("RUNTIME_NOT_FOUND", 404),
        ("RUNTIME_ANYTHING_ELSE", 503),
        ("JOB_EXPIRED", 410),
        ("INVALID_OUTPUT", 502),
        ("NEVER_HEARD_OF", 502),
        ("INVALID_CONTEXT", 400),
        ("INVALID_ARTIFACT", 400),
        ("STORE_UNAVAILABLE", 503),
    ],
)
def test_a_status_follows_from_the_code(code: str, status: int) -> None:
    assert problems.status_of(code) == status


def test_no_code_stands_in_two_rows() -> None:
    rows = [
        code for table in (problems._ROWS, problems.DEVIATIONS) for codes in table.values() for code in codes.split()
    ]
    assert len(rows) == len(set(rows))


@given(code=st.text(min_size=1), message=st.text(), retryable=st.booleans())
def test_an_envelope_is_always_whole_and_small(*, code: str, message: str, retryable: bool) -> None:
    code = code.encode("utf-8", "replace").decode()
    body = problems.envelope(Problem(code, message, retryable))
    assert len(body) <= problems.ERROR_BYTES_MAX or len(code) > 1_000
    error = json.loads(body)["error"]
    assert error.keys() == {"code", "message", "retryable"}
    assert error["retryable"] is retryable


def test_a_message_that_utf8_cannot_carry_is_told_as_far_as_it_goes() -> None:
    assert json.loads(problems.envelope(Problem("X", "a\ud800b")))["error"]["message"] == "a?b"


def test_an_uncertain_outcome_is_told() -> None:
    assert json.loads(problems.envelope(Problem("X", "", outcome="uncertain")))["error"]["outcome"] == "uncertain"


def test_the_error_of_an_event_is_told_member_for_member() -> None:
    error = b'{"code":"X","message":"m","retryable":false,"later":1e2}'
    assert problems.enveloped(error) == b'{"error":' + error + b"}"


def test_an_error_too_long_for_clients_is_cut() -> None:
    long = json.dumps({"code": "X", "message": "m" * 70_000, "retryable": True}).encode()
    body = problems.enveloped(long)
    assert len(body) <= problems.ERROR_BYTES_MAX
    assert json.loads(body)["error"]["retryable"] is True
