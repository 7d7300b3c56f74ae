"""`POST /v1/approvals/decisions` (approvals §3).

The body says what is decided and about which call, to the letter; who decides is the token's affair alone.
"""

from typing import Any, Literal, NamedTuple, cast

import anyio
from litestar.types import Receive
from msgspec import Struct

from actors import values
from actors.decisions import OUTCOMES
from actors.errors import Refused
from actors.shapes import Misshapen, json_object, one_of, record, text, units
from api.answers import Call
from api.bodies import QUICK_BODY_BYTES, parsed
from api.grants import Principal, caller_of
from api.parts import Parts
from api.posts import served
from projections import wire_feed

ID_UNITS_MAX = 256


class Echo(Struct, frozen=True):
    """The call as the decider saw it."""

    id: str
    name: str
    arguments: dict[str, Any]


class Decision(Struct, frozen=True):
    """What is decided about which call of which run."""

    approval_id: str
    run_id: str
    call: Echo
    decision: Literal["approve", "deny", "cancel"]


class Malformed(NamedTuple):
    """A body that is no decision, with those of its ids that are ones."""

    why: str
    approval_id: str = ""
    run_id: str = ""


_ID = text(1, ID_UNITS_MAX)


def _arguments(value: object) -> dict[str, object]:
    members = json_object(value)
    if not values.lossless(members):
        raise Misshapen("must not lose anything in any reader")
    return members


_DECISION = record(
    Decision,
    {
        "approval_id": _ID,
        "run_id": _ID,
        "call": record(Echo, {"id": _ID, "name": text(1, 64, r"[a-zA-Z_][a-zA-Z0-9_]*"), "arguments": _arguments}, {}),
        "decision": one_of(*OUTCOMES),
    },
    {},
)


async def decide(parts: Parts, call: Call, receive: Receive) -> None:
    """Serve one decision."""
    await served(parts, call, receive, _decided)


def read(body: bytes) -> Decision | Malformed:
    """What *body* decides, or why it decides nothing.

    Raises:
        Refused: INVALID_REQUEST, the body is not even JSON.
    """
    try:
        document = parsed(body, out_of_range="INVALID_APPROVAL")
    except Refused as refused:
        if refused.code != "INVALID_APPROVAL":
            raise
        return Malformed(refused.problem.message)
    try:
        return _DECISION(document)
    except Misshapen as fault:
        members = cast("dict[str, object]", document) if isinstance(document, dict) else {}
        return Malformed(str(fault), *(_id(members.get(name)) for name in ("approvalId", "runId")))


async def _decided(parts: Parts, principal: Principal, body: bytes) -> dict[str, str]:
    """Do what *body* says, and return the receipt: the resolution that the event shows."""
    asked = await anyio.to_thread.run_sync(read, body) if len(body) > QUICK_BODY_BYTES else read(body)
    caller, enabled = caller_of(principal), parts.catalog.features.approvals
    if isinstance(asked, Malformed):
        if not enabled:
            raise Refused("INVALID_APPROVAL", asked.why)
        raise await parts.answers.rejected(caller, "INVALID_APPROVAL", asked.why, asked.approval_id, asked.run_id)
    if not enabled:
        raise Refused("APPROVAL_NOT_FOUND", "This host has no interactive approvals.")
    call = {"id": asked.call.id, "name": asked.call.name, "arguments": asked.call.arguments}
    done = await parts.answers.decide(caller, asked.approval_id, asked.run_id, call, asked.decision)
    return wire_feed.resolved(done.run_id, done.call_id, done.settled)


def _id(value: object) -> str:
    """*value* if it is fit to be in the audit."""
    return value if isinstance(value, str) and units(value) <= ID_UNITS_MAX else ""
