"""What an actor holds in the ledger as its log has it: the truth that the ledger is held against (DESIGN §3).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from actors import codec, companions, run, upkeep
from actors.companions import APPROVALS_POOL, HOST_KEYS_POOL, KEYS_POOL, SESSIONS_POOL, TICKETS_POOL
from actors.dispatch import BYTES_POOL, HOST_RUNS_POOL, JOBS_POOL, POOL, room_bytes
from actors.events import KeyReserved, RunAccepted, RunErased, RunEvent
from eventstore.store import Claim, Heads, Met

POOLS = (
    POOL,
    JOBS_POOL,
    BYTES_POOL,
    HOST_RUNS_POOL,
    KEYS_POOL,
    APPROVALS_POOL,
    TICKETS_POOL,
    SESSIONS_POOL,
    HOST_KEYS_POOL,
)
"""Everything that the ledger counts."""


class _Owned(Struct):
    """What every first event of an approval, a ticket, a session and a Host key says."""

    subject: str


def places(met: Met) -> list[Claim]:
    """What *met* holds, but for the slot of a run that has not ended."""
    if not met.first:
        return []
    if (pool := companions.pool_of([met.first])) is not None:
        subject = msgspec.json.decode(met.first, type=_Owned).subject
        return [] if met.heads.ended else [Claim(pool, met.actor, "", subject)]
    match codec.decode_run(met.first):
        case RunAccepted() as accepted:
            return _of_run(met.actor, accepted, met.heads)
        case RunErased(origin="job", subject=subject):
            return [Claim(JOBS_POOL, met.actor, "", subject)]
        case RunErased(origin="foreground", subject=subject) | KeyReserved(subject=subject):
            return [Claim(KEYS_POOL, met.actor, "", subject)]
        case _:
            return []


def slot(log: Iterable[RunEvent], owner: str) -> list[Claim]:
    """The slot of the run with this *log* that *owner* executes, or nobody; none before it began or after its end."""
    state: run.State = run.New()
    for event in log:
        state = run.evolve(state, event)
    if not isinstance(state, run.Live) or not state.started or upkeep.is_in_line(state) or not state.accepted.permit:
        return []
    accepted = state.accepted
    return [Claim(POOL, accepted.permit, owner, accepted.subject, accepted.account)]


def may_have_slot(met: Met) -> bool:
    """Whether *met* is a run that has not ended, so that its log must be read to say whether it has a slot."""
    return not met.heads.ended and codec.is_of_run(met.first)


def run_of(met: Met) -> str:
    """The run that *met* stands for, if it is the key of a session's turn; else nothing."""
    if not met.first.startswith(b'{"type":"key.reserved"'):
        return ""
    event = codec.decode_run(met.first)
    return event.run_id if isinstance(event, KeyReserved) else ""


def _of_run(actor: str, accepted: RunAccepted, heads: Heads) -> list[Claim]:
    """The places of a run whose payload is kept, and the room of a job's record."""
    subject = accepted.subject
    if accepted.host is not None:
        return [Claim(HOST_RUNS_POOL, actor, "", subject)]
    if accepted.origin == "job":
        room = room_bytes(accepted, heads.feed_bytes)
        return [Claim(JOBS_POOL, actor, "", subject), Claim(BYTES_POOL, actor, "", subject, weight=room)]
    is_keyed = bool(accepted.fingerprint) and accepted.session is None  # the key of a turn has a record of its own
    return [Claim(KEYS_POOL, actor, "", subject)] if is_keyed else []
