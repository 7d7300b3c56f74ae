"""A session as its owner sees it: in the answers of its routes, and in the result of a turn's run (sessions §2)."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from actors.events import SessionMode, SessionTurn, timestamp

State: TypeAlias = Literal["ready", "running", "interrupted"]


class SessionInfo(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A session as its owner sees it; the expiry is absent while a turn runs."""

    id: str
    revision: int
    provider: str
    model: str
    mode: SessionMode
    state: State
    created_at: str
    updated_at: str
    expires_at: str | UnsetType = UNSET


def info(  # noqa: PLR0913 - each is a member
    session_id: str,
    *,
    revision: int,
    provider: str,
    model: str,
    mode: SessionMode,
    state: State,
    created_ms: int,
    updated_ms: int,
    retention_ms: int,
) -> SessionInfo:
    """The session that these values are."""
    return SessionInfo(
        session_id,
        revision,
        provider,
        model,
        mode,
        state,
        timestamp(created_ms),
        timestamp(updated_ms),
        UNSET if state == "running" else timestamp(updated_ms + retention_ms),
    )


def committed(turn: SessionTurn, provider: str, model: str, at_ms: int) -> SessionInfo:
    """The session once its *turn* was committed at *at_ms*."""
    return info(
        turn.id,
        revision=turn.revision + 1,
        provider=provider,
        model=model,
        mode=turn.mode,
        state="ready",
        created_ms=turn.created_ms,
        updated_ms=max(at_ms, turn.updated_ms),
        retention_ms=turn.retention_ms,
    )
