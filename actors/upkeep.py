"""What the store must know of a run so that it is looked after: when it is due, how long it is kept, what stays of it.

Nothing here waits, reads a clock or rolls a die.
"""

from actors import calls, codec
from actors.calls import OpenCall
from actors.decider import Standing
from actors.events import RunAccepted, RunErased
from actors.run import Buried, Ended, Live, New, Reserved, State, grace_ms, parked
from eventstore.store import Reason

RETENTION_MS = 7 * 24 * 3_600 * 1_000
"""How long a run is kept after its end, and the feed of one with a key, whose log stays until an operator erases it."""
QUEUED_LOOK_MS = 10_000
"""How long after its acceptance a job is looked for that no line of the ledger may know."""
ACCOUNTED_AFTER_MS = 5_000
"""So long the node that ended a run has to deliver its usage record, until any other does."""
JOB_RESERVE_BYTES = 4_096
"""Of a job's bound, what is kept for its end (jobs §1)."""


def standing(state: State) -> Standing:
    """What the store must know: of an ended run, when its permit and its payload are due to go."""
    match state:
        case New() | Reserved():
            return Standing()
        case Live(accepted=accepted, open=open_call):
            return Standing(
                parked=parked(state),
                released=state.handed_ms > 0,
                due=_due(state, open_call),
                listed={f"runs:{accepted.subject}": accepted.at_ms},
            )
        case Ended(accepted=accepted, at_ms=at_ms):
            left: dict[Reason, int] = {"retention": expires_ms(state)}
            if accepted.permit:
                left["permit"] = at_ms
            if accepted.accounted and state.executed:
                left["usage"] = at_ms + ACCOUNTED_AFTER_MS
            return Standing(ended=True, due=left, listed={f"runs:{accepted.subject}": accepted.at_ms})
        case Buried():
            return Standing(ended=True)


def is_in_line(state: Live) -> bool:
    """Whether it waits to be taken up for the first time, by any node that has room."""
    if state.accepted.host is not None:
        return not state.claimed
    return state.accepted.origin == "job" and not state.started


def expires_ms(state: Ended) -> int:
    """When the payload of an ended run goes; of a keyed one, its feed alone."""
    return kept_until_ms(state.accepted, state.at_ms)


def kept_until_ms(accepted: RunAccepted, ended_ms: int) -> int:
    """Until when a run is kept that ended at *ended_ms*."""
    return ended_ms + (accepted.retention_ms or RETENTION_MS)


def keeps_log(state: Ended) -> bool:
    """Whether the log of an ended run answers for its key as long as nobody erases it."""
    return bool(state.accepted.fingerprint) and state.accepted.origin == "foreground"


def feed_max(state: State) -> int:
    """How many bytes a job's feed may have, with room kept for its end; 0 is no bound."""
    if not isinstance(state, Live) or not state.accepted.record_bytes_max:
        return 0
    return max(1, state.accepted.record_bytes_max - JOB_RESERVE_BYTES - len(bytes(state.accepted.request)))


def epitaph(state: State, now_ms: int) -> bytes:
    """What stays of a run with a key: whose it was, and what the key was used for."""
    if not isinstance(state, Ended) or not state.accepted.fingerprint:
        return b""
    accepted = state.accepted
    return codec.encode(RunErased(now_ms, accepted.subject, accepted.origin, accepted.fingerprint))


def _due(state: Live, open_call: OpenCall | None) -> dict[Reason, int]:
    """When somebody must look at a run that waits, or that nobody works on."""
    accepted = state.accepted
    due: dict[Reason, int] = {}
    if is_in_line(state):
        due["work"] = accepted.at_ms + QUEUED_LOOK_MS
    if accepted.host is not None and accepted.host.context.deadline_ms is not None:
        due["deadline"] = max(accepted.host.context.deadline_ms, accepted.at_ms)
    if state.handed_ms:
        due["work"] = state.handed_ms
    if grace_ms(state):
        due["client"] = accepted.at_ms + grace_ms(state)
    if open_call is not None and open_call.stage == "reviewed" and open_call.expires_ms is not None:
        due["approval"] = open_call.expires_ms
    if open_call is not None and open_call.settling is not None:
        due["approval"] = open_call.settling.at_ms + calls.RESENT_AFTER_MS
    if open_call is not None and parked(state) and open_call.idles and accepted.idle_timeout_ms:
        due["idle"] = open_call.active_ms + accepted.idle_timeout_ms
    return due
