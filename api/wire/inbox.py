"""`POST /v1/approvals/list`: what waits for the caller's decision, with the exact calls (extensions §3)."""

from collections.abc import Iterator, Sequence

import msgspec
from litestar.types import Receive
from msgspec import UNSET, Raw, Struct, UnsetType

from actors.decisions import Waiting
from actors.errors import Refused
from actors.events import ToolCall, timestamp
from actors.shapes import Misshapen, record, whole
from api.answers import Call
from api.bodies import parsed
from api.grants import Principal, caller_of
from api.parts import Parts
from api.posts import served

APPROVALS_MAX = 100
ANSWER_BYTES_MAX = 1_500_000
"""What a list may hold, as a page of events; clients read 2,000,000 bytes of an answer (overview §8)."""

_encode = msgspec.json.Encoder().encode


class Asked(Struct, frozen=True):
    """How many are wanted."""

    limit: int = APPROVALS_MAX


class Pending(Struct, frozen=True, rename="camel", kw_only=True):
    """One approval, as `approval.requested` tells it."""

    approval_id: str
    run_id: str
    provider: str
    call: ToolCall
    requested_at: str
    idle_policy: str
    expires_at: str | UnsetType = UNSET


class Inbox(Struct, frozen=True, rename="camel"):
    """What waits; *has_more* where there may be more than were asked for."""

    approvals: Sequence[Raw]
    has_more: bool


_ASKED = record(Asked, {}, {"limit": whole(1, APPROVALS_MAX)})


async def look(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one list."""
    await served(parts, call, receive, _listed)


async def _listed(parts: Parts, principal: Principal, body: bytes) -> Inbox:
    document = parsed(body)
    if not parts.catalog.features.approvals:
        raise Refused("APPROVAL_UNAVAILABLE", "This host has no interactive approvals.")
    try:
        asked = _ASKED(document)
    except Misshapen as fault:
        raise Refused("INVALID_REQUEST", str(fault)) from None
    found = await parts.answers.waiting(caller_of(principal), asked.limit + 1)
    told = [Raw(data) for data in _fitting(found[: asked.limit])]
    return Inbox(told, len(found) > len(told))


def _fitting(found: Sequence[Waiting]) -> Iterator[bytes]:
    """Those of *found* that one answer holds, but at least one."""
    size = 0
    for waiting in found:
        data = _encode(_pending(waiting))
        if size and size + len(data) > ANSWER_BYTES_MAX:
            return
        size += len(data) + 1
        yield data


def _pending(waiting: Waiting) -> Pending:
    asked = waiting.asked
    return Pending(
        approval_id=waiting.approval_id,
        run_id=asked.run_id,
        provider=asked.provider,
        call=asked.call,
        requested_at=timestamp(asked.at_ms),
        idle_policy=asked.idle_policy,
        expires_at=UNSET if asked.expires_ms is None else timestamp(asked.expires_ms),
    )
