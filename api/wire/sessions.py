"""`POST /v1/sessions/create`, `/read` and `/delete` (sessions §2, §3)."""

from typing import TypeVar

import anyio
from litestar.types import Receive
from msgspec import UNSET, Struct, UnsetType

from actors.errors import Refused
from actors.events import SessionMode, Visible
from actors.session import CONTENT_UNITS_MAX, Open
from actors.sessions import Shown, Wanted
from actors.shapes import Check, Misshapen, array, one_of, record, text
from api.answers import Call
from api.bodies import QUICK_BODY_BYTES, parsed
from api.grants import Principal, holder_of
from api.parts import Parts, SessionStore
from api.posts import served
from projections import session_view
from projections.session_view import SessionInfo

HISTORY_MAX = 100

_INVALID = "INVALID_SESSION"
_UNAVAILABLE = "SESSIONS_UNAVAILABLE"

T = TypeVar("T")


class Creation(Struct, frozen=True):
    """The conversation that is to begin."""

    provider: str
    model: str
    mode: SessionMode
    history: tuple[Visible, ...] = ()
    instructions: str | None = None


class Named(Struct, frozen=True):
    """Which session is meant."""

    id: str


class Snapshot(Struct, frozen=True, omit_defaults=True):
    """A session, and what its owner and the model said."""

    session: SessionInfo
    history: tuple[Visible, ...]
    instructions: str | UnsetType = UNSET


class Forgotten(Struct, frozen=True):
    """The receipt of a deletion."""

    id: str
    deleted: bool


_CONTENT = text(0, CONTENT_UNITS_MAX)
_SAID = record(Visible, {"role": one_of("user", "assistant"), "content": _CONTENT}, {})
_CREATION = record(
    Creation,
    {
        "provider": text(1, 80, r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}"),
        "model": text(1, 200, r"[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}"),
        "mode": one_of("history", "native"),
    },
    {"history": array(_SAID, 0, HISTORY_MAX), "instructions": _CONTENT},
)
_NAMED = record(Named, {"id": text(36, 36, r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")}, {})
"""Ids of any letter case pass, but are looked up as they are."""


async def create(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one beginning."""
    await served(parts, call, receive, _created)


async def look(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one look."""
    await served(parts, call, receive, _shown)


async def delete(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one deletion."""
    await served(parts, call, receive, _deleted)


def read(body: bytes, check: Check[T], store: SessionStore | None) -> tuple[SessionStore, T]:
    """The *store* there is, and what *body* asks of it.

    Raises:
        Refused: INVALID_REQUEST if it is not JSON, then SESSIONS_UNAVAILABLE, then INVALID_SESSION.
    """
    document = parsed(body, out_of_range=_UNAVAILABLE if store is None else _INVALID)
    if store is None:
        raise Refused(_UNAVAILABLE, "This host keeps no sessions.")
    try:
        return store, check(document)
    except Misshapen as fault:
        raise Refused(_INVALID, str(fault)) from None


async def _read(parts: Parts, body: bytes, check: Check[T]) -> tuple[SessionStore, T]:
    if len(body) > QUICK_BODY_BYTES:
        return await anyio.to_thread.run_sync(read, body, check, parts.sessions)
    return read(body, check, parts.sessions)


async def _created(parts: Parts, principal: Principal, body: bytes) -> Snapshot:
    store, asked = await _read(parts, body, _CREATION)
    wanted = Wanted(asked.provider, asked.model, asked.mode, asked.history, asked.instructions)
    return _snapshot(await store.create(holder_of(principal), wanted))


async def _shown(parts: Parts, principal: Principal, body: bytes) -> Snapshot:
    store, asked = await _read(parts, body, _NAMED)
    return _snapshot(await store.read(holder_of(principal), asked.id))


async def _deleted(parts: Parts, principal: Principal, body: bytes) -> Forgotten:
    store, asked = await _read(parts, body, _NAMED)
    await store.delete(holder_of(principal), asked.id)
    return Forgotten(asked.id, deleted=True)


def _snapshot(found: Shown) -> Snapshot:
    instructions = found.state.created.instructions
    return Snapshot(_info(found.id, found.state), found.state.history, UNSET if instructions is None else instructions)


def _info(session_id: str, state: Open) -> SessionInfo:
    created = state.created
    return session_view.info(
        session_id,
        revision=state.revision,
        provider=created.provider,
        model=created.model,
        mode=created.mode,
        state="running" if state.running else "interrupted" if state.interrupted else "ready",
        created_ms=created.at_ms,
        updated_ms=state.updated_ms,
        retention_ms=created.retention_ms,
    )
