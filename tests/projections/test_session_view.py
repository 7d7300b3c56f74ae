"""A session as its owner sees it: its members, its times, and what a turn leaves of it (sessions §2)."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from actors.events import SessionTurn
from projections.session_view import SessionInfo, State, committed, info
from tests.strict_results import session_info
from tests.strict_values import Json

SESSION = "0b6c2a52-7777-4f7e-9a41-5f2f5f3b7c10"
TURN = SessionTurn(SESSION, 2, 0, "history", 1_000, 2_000, 500)


def shown(one: SessionInfo) -> Json:
    """*one* as a client reads it, once it has found it sound."""
    value: Json = json.loads(msgspec.json.encode(one))
    session_info(value)
    return value


def found(state: State, revision: int = 0) -> Json:
    return shown(
        info(
            SESSION,
            revision=revision,
            provider="fake",
            model="m",
            mode="history",
            state=state,
            created_ms=1_767_607_200_000,
            updated_ms=1_767_607_200_007,
            retention_ms=1,
        )
    )


def test_a_new_session_has_all_its_members_and_a_revision_of_zero() -> None:
    assert found("ready") == {
        "id": SESSION,
        "revision": 0,
        "provider": "fake",
        "model": "m",
        "mode": "history",
        "state": "ready",
        "createdAt": "2026-01-05T10:00:00.000Z",
        "updatedAt": "2026-01-05T10:00:00.007Z",
        "expiresAt": "2026-01-05T10:00:00.008Z",
    }


@pytest.mark.parametrize(("state", "expires"), [("ready", True), ("running", False), ("interrupted", True)])
def test_the_expiry_is_absent_exactly_while_a_turn_runs(state: State, *, expires: bool) -> None:
    value = found(state, 3)
    assert isinstance(value, dict)
    assert ("expiresAt" in value) == expires
    assert (value["state"], value["revision"]) == (state, 3)


def test_a_committed_turn_leaves_its_session_ready_and_one_revision_on() -> None:
    one = committed(TURN, "fake", "m", 3_000)
    shown(one)
    assert (one.id, one.revision, one.mode, one.state) == (SESSION, 1, "history", "ready")
    assert (one.created_at, one.updated_at, one.expires_at) == (
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:03.000Z",
        "1970-01-01T00:00:03.500Z",
    )


def test_no_clock_takes_a_session_back_before_its_last_change() -> None:
    assert committed(TURN, "fake", "m", 1_500) == committed(TURN, "fake", "m", 2_000)
    assert committed(replace(TURN, updated_ms=0), "fake", "m", 1_500).updated_at == "1970-01-01T00:00:01.500Z"
