"""One agent run: what it may be asked, what it becomes, and what must happen outside next.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from actors import budgets, by_hand, calls, prompt, revisions, session
from actors.budgets import Budget
from actors.calls import OpenCall
from actors.decider import Decision, Receipt, Refusal
from actors.errors import Problem
from actors.events import (
    CallCleared,
    EndCause,
    HostRun,
    KeyBurned,
    KeyReserved,
    Origin,
    ReviewAsked,
    ReviewSettled,
    ReviewSettling,
    RunAccepted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunErased,
    RunEvent,
    RunFailed,
    RunHandedOver,
    RunResumed,
    RunStarted,
    SessionTurn,
    StepStarted,
    TicketOffered,
    ToolCall,
    ToolCalled,
    ToolCompleted,
    ToolFact,
    ToolProgressed,
    ToolStarted,
    TurnCompleted,
    Usage,
)
from actors.jsontext import compacted
from actors.ports import ModelRequest, Turn
from actors.request import RunRequest
from actors.transcript import Transcript
from actors.usage import sanitised, total

INTERRUPTED = Problem("JOB_INTERRUPTED", "The job was interrupted, and what it did is not known.", outcome="uncertain")
LOSSES = frozenset[EndCause]({"node", "overflow", "shutdown", "history"})
"""Causes that are no rule's and nobody's wish: a job that ends by one is interrupted (jobs §4)."""

_ERASED = Problem("OPERATION_UNCERTAIN", "What was recorded of this was erased.", outcome="uncertain")
_NO_RUN = Problem("RUN_NOT_FOUND", "There is no such run.")
_EXPIRED = Problem("JOB_EXPIRED", "The job's payload was erased when its time was over.")

# Commands.


class Accept(Struct, frozen=True, tag="accept", kw_only=True):
    """Take on a caller's request; *admitted* when its slot is held already."""

    subject: str
    request: RunRequest
    admitted: bool
    max_steps: int
    max_output_tokens: int
    max_attempts: int
    idle_timeout_ms: int
    origin: Origin = "foreground"
    fingerprint: str = ""
    permit: str = ""
    account: str = ""
    tools: tuple[ToolFact, ...] = ()
    session: SessionTurn | None = None
    principal: str = ""
    retention_ms: int = 0
    record_bytes_max: int = 0
    budgets: tuple[Budget, ...] = ()
    accounted: bool = False
    interactive: bool = False
    host: HostRun | None = None


class ReserveKey(Struct, frozen=True, tag="reserve_key"):
    """Claim a key for a session's turn, which will be the run *run_id*."""

    subject: str
    fingerprint: str
    run_id: str


class BurnKey(Struct, frozen=True, tag="burn_key"):
    """What a key was claimed for was refused."""


class Start(Struct, frozen=True, tag="start"):
    """The slot a queued run waited for was granted."""


class EnterStep(Struct, frozen=True, tag="enter_step"):
    """A model call is about to be made."""

    step: int


class Answer(Struct, frozen=True, tag="answer"):
    """The model answered; *artifact_id* is a fresh UUID for the draft, should there be one."""

    step: int
    turn: Turn
    streamed: bool
    artifact_id: str


class Fail(Struct, frozen=True, tag="fail"):
    """The run cannot go on."""

    problem: Problem
    cause: EndCause = "rule"


class Cancel(Struct, frozen=True, tag="cancel"):
    """The run's cancel signal fired."""

    problem: Problem
    cause: EndCause = "asked"


class TakeOver(Struct, frozen=True, tag="take_over"):
    """Its node is gone, or let go of it; *node* found it."""

    node: str
    repeats: bool = False
    """Whether a model call that was in flight, and of which nothing was shown, is made again instead of ending the run."""
    problem: Problem | None = None
    """Of a Host run: why it may not be begun by now."""


class HandOver(Struct, frozen=True, tag="hand_over"):
    """*node* shuts down, and the run stands between two effects."""

    node: str


Command: TypeAlias = (
    Accept
    | ReserveKey
    | BurnKey
    | Start
    | EnterStep
    | Answer
    | calls.Command
    | Fail
    | Cancel
    | TakeOver
    | HandOver
    | by_hand.Command
    | by_hand.TimeOut
)

# States.


class New(Struct, frozen=True, tag="new"):
    """Nothing was asked yet."""


class Live(Struct, frozen=True, gc=False, tag="live"):
    """Accepted and not ended: queued until *started*, then between effects or in a model call."""

    accepted: RunAccepted
    request: RunRequest
    started: bool = False
    step: int = 0
    """Steps entered so far."""
    turns: Transcript = Transcript()
    """Turns and tool outputs, in order."""
    answered: int = 0
    """Turns completed; one fewer than *step* while a model call is open."""
    proposed: tuple[ToolCall, ...] = ()
    """Calls of the last turn that have not come up yet."""
    open: OpenCall | None = None
    used: tuple[str, ...] = ()
    """Call ids of earlier turns."""
    handed_ms: int = 0
    """When its node let go of it; 0 while nobody did."""
    revision: int = 0
    """Number of its Host events."""
    claimed: bool = False
    """Whether a node has taken it up that did not accept it."""
    reviewed: tuple[str, ...] = ()
    """Of a Host run: calls of the turn that were approved, and resumed."""
    resumed: str = ""
    """Of a Host run: the approval that was claimed last, until the next one is asked for."""

    @property
    def usages(self) -> list[Usage | None]:
        """What each completed step reported."""
        return [one.usage for one in self.turns if isinstance(one, TurnCompleted)]


class Ended(Struct, frozen=True, tag="ended"):
    """Over for good."""

    accepted: RunAccepted
    kind: Literal["completed", "failed", "cancelled"]
    at_ms: int
    cause: EndCause | None = None
    executed: bool = True
    """Whether it ever had its slot."""
    revision: int = 0
    status: revisions.Status = "completed"
    """As the Host tells it."""


class Reserved(Struct, frozen=True, tag="reserved"):
    """No run, but a key that stands for one (sessions §7)."""

    subject: str
    fingerprint: str
    run_id: str
    burned: bool = False


class Buried(Struct, frozen=True, tag="buried"):
    """Over, and its payload erased."""

    epitaph: RunErased


State: TypeAlias = New | Live | Ended | Reserved | Buried

# Effects.


class AwaitPermit(Struct, frozen=True):
    """Wait until the ledger grants the slot."""

    permit: str


class BeginStep(Struct, frozen=True):
    """Everything is ready for model step *step*: record it."""

    step: int


class CallModel(Struct, frozen=True):
    """Ask *provider* to answer; the transcript says how often."""

    provider: str
    step: int
    request: ModelRequest
    """Without what the run's session adds."""


Effect: TypeAlias = AwaitPermit | BeginStep | CallModel | calls.Effect


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """What *command* causes; no events when what it asks for is already so."""
    if isinstance(command, Accept | ReserveKey | BurnKey):
        return _claimed(state, command, now_ms)
    if isinstance(command, by_hand.Command | by_hand.TimeOut):
        return _of_host(state, command, now_ms)
    match state, command:
        case Buried(), _:
            return Decision([], Refusal(_ERASED))
        case Live(started=False), Start():
            return Decision([RunStarted(now_ms)], Receipt())
        case Live(started=True), EnterStep(step) if step == state.step + 1 and _is_between(state):
            return Decision([_entered(state, step, now_ms)], Receipt())
        case Live(), Answer(step) if _calling(state) and step == state.step:
            return Decision(_answered(state, command, now_ms), Receipt())
        case Live(), calls.AskReview() if (asked := by_hand.question(state, command, now_ms)) is not None:
            return Decision([asked], Receipt())
        case Live(open=OpenCall() as open_call), _ if isinstance(command, calls.Command):
            decision = calls.decide(_around(state, open_call), command, now_ms)
            return Decision(_with_end(state, decision.events), decision.answer)
        case Live(), Fail(problem, cause):
            return Decision(_over(state, RunFailed(now_ms, problem, cause)), Receipt())
        case Live(), Cancel(problem, cause):
            return Decision(_over(state, RunCancelled(now_ms, problem, cause)), Receipt())
        case Live(), TakeOver():
            return Decision(_taken_over(state, command, now_ms), Receipt())
        case Live(handed_ms=0), HandOver(node) if may_hand_over(state):
            return Decision([RunHandedOver(now_ms, node)], Receipt())
        case _, _ if isinstance(command, calls.Command):
            return Decision([], calls.answer_without_call(command))
        case New(), _:
            return Decision([], Refusal(_NO_RUN))
        case _:
            return Decision([], Receipt("already"))


def _of_host(state: State, command: by_hand.Command | by_hand.TimeOut, now_ms: int) -> Decision:
    """What the Host's own commands cause, of whatever origin the run is."""
    match state:
        case Live():
            decision = by_hand.decide(state, command, now_ms)
            return Decision(_with_end(state, decision.events), decision.answer)
        case _ if isinstance(command, by_hand.TimeOut):
            return Decision([], Receipt("already"))
        case Ended():
            return Decision([], Refusal(by_hand.CONFLICT))
        case _:
            return Decision([], Refusal(_NO_RUN))


def _claimed(state: State, command: Accept | ReserveKey | BurnKey, now_ms: int) -> Decision:
    """What it causes that a run, or a key for one, is asked for; whoever was first has it."""
    match state, command:
        case New(), Accept():
            return Decision(_accepted(command, now_ms), Receipt("new"))
        case New(), ReserveKey(subject, fingerprint, run_id):
            return Decision([KeyReserved(now_ms, subject, fingerprint, run_id)], Receipt("new"))
        case ((Live() | Ended() | Reserved() | Buried()), (Accept() | ReserveKey())):
            return Decision([], _met(state, command.fingerprint))
        case Reserved(burned=False), BurnKey():
            return Decision([KeyBurned(now_ms)], Receipt())
        case _:
            return Decision([], Receipt("already"))


def evolve(state: State, event: RunEvent) -> State:
    """The state after *event*; events are facts, so this never refuses one."""
    kind = type(event)
    after = _EVOLVED[kind](state, event) if isinstance(state, Live) or kind in _OF_ANY_STATE else state
    return _counted(state, event, after) if kind in revisions.COUNTED else after


def _counted(state: State, event: RunEvent, after: State) -> State:
    """*after* at its revision: the number of the run's Host events."""
    match state, after:
        case New(), Live():
            return replace(after, revision=1)
        case Live(), Live() | Ended():
            added = revisions.added(event, started=state.started, by_hand=by_hand.is_by_hand(state))
            return replace(after, revision=state.revision + added)
        case _:
            return after


def _begun(_: State, event: RunAccepted) -> Live:
    used = () if event.session is None else event.session.used
    return Live(event, msgspec.json.decode(event.request, type=RunRequest), used=used)


def _of_key(state: State, event: KeyReserved | KeyBurned) -> State:
    if isinstance(event, KeyReserved):
        return Reserved(event.subject, event.fingerprint, event.run_id)
    return replace(state, burned=True) if isinstance(state, Reserved) else state


def next_effect(state: State) -> Effect | None:
    """What must happen outside next; the same question after a replay is the recovery."""
    match state:
        case Live(started=False):
            return AwaitPermit(state.accepted.permit)
        case Live() if _calling(state):
            accepted = state.accepted
            return CallModel(
                accepted.provider,
                state.step,
                prompt.model_request(state.request, state.turns, accepted, allowance(state)),
            )
        case Live(open=OpenCall() as open_call):
            return calls.effect(_around(state, open_call))
        case Live() if (call := by_hand.next_review(state)) is not None:
            return calls.Review(call, interactive=True)
        case Live():
            return BeginStep(state.step + 1)
        case New() | Ended() | Reserved() | Buried():
            return None


def resumable(state: Live) -> bool:
    """Whether the run outlives the node and the connection that it began on (DESIGN §5)."""
    return state.accepted.origin != "foreground" or state.request.resume is not None


def parked(state: Live) -> bool:
    """Whether it waits for somebody outside, and belongs to nobody meanwhile."""
    return resumable(state) and state.open is not None and state.open.waits


def grace_ms(state: Live) -> int:
    """How long a run may be without an attached client; 0 where that means nothing to it."""
    resume = state.request.resume if state.accepted.origin == "foreground" else None
    return 0 if resume is None else resume.grace_ms


def interrupted(state: Ended) -> bool:
    """Whether an ended job is what jobs §4 calls interrupted."""
    return state.kind == "failed" and state.cause in LOSSES


def may_hand_over(state: State) -> bool:
    """Whether another node can carry the run on: nothing is in flight of which only this one knows how it went."""
    if not isinstance(state, Live) or not resumable(state):
        return False
    if state.accepted.origin == "job" and not state.started:
        return False  # nobody's to hand over
    in_call = state.open is not None and state.open.stage == "started"
    return not _calling(state) and not in_call and not state.handed_ms


def allowance(state: Live) -> int | None:
    """How many tokens the next step may answer by what is left of the run's budgets (scheduling §5)."""
    return budgets.allowance(state.accepted.budgets, state.usages) if state.accepted.budgets else None


def overflow(code: str) -> Command:
    """The command that ends a run whose next record would be too large."""
    return Fail(Problem(code, "The run produced more than may be recorded.", outcome="uncertain"), "overflow")


def is_slow(state: State, command: Command) -> bool:
    """Whether deciding judges values by schemas that came from outside."""
    judges = isinstance(command, Answer | calls.Deliver)
    return judges and isinstance(state, Live) and bool(state.request.output_schema or state.accepted.tools)


def _accepted(command: Accept, now_ms: int) -> list[RunEvent]:
    request = command.request
    accepted = RunAccepted(
        at_ms=now_ms,
        subject=command.subject,
        provider=request.provider,
        model=request.model,
        request=Raw(msgspec.json.encode(request)),
        origin=command.origin,
        fingerprint=command.fingerprint,
        permit=command.permit,
        account=command.account,
        max_steps=command.max_steps,
        max_output_tokens=command.max_output_tokens,
        max_attempts=command.max_attempts,
        idle_timeout_ms=command.idle_timeout_ms,
        tools=command.tools,
        session=command.session,
        principal=command.principal,
        retention_ms=command.retention_ms,
        record_bytes_max=command.record_bytes_max,
        budgets=command.budgets,
        accounted=command.accounted,
        interactive=command.interactive,
        host=command.host,
    )
    return [accepted, RunStarted(now_ms)] if command.admitted else [accepted]


def _met(state: Live | Ended | Reserved | Buried, fingerprint: str) -> Receipt | Refusal:
    """What a key is told that was used before."""
    if not fingerprint or _fingerprint(state) != fingerprint:
        return Refusal(Problem("IDEMPOTENCY_CONFLICT", "The key was used for another request."))
    if isinstance(state, Buried):
        return Refusal(_EXPIRED if state.epitaph.origin == "job" else _ERASED)
    return Receipt("met")


def _fingerprint(state: Live | Ended | Reserved | Buried) -> str:
    match state:
        case Live() | Ended():
            return state.accepted.fingerprint
        case Buried():
            return state.epitaph.fingerprint
        case Reserved():
            return state.fingerprint


def _entered(state: Live, step: int, now_ms: int) -> RunEvent:
    """The next step, or the end that a rule puts in its place."""
    if by_hand.is_late(state, now_ms):
        return by_hand.timed_out(now_ms)
    why_not = _refusal_of_step(state)
    return StepStarted(now_ms, step) if why_not is None else RunFailed(now_ms, why_not)


def _refusal_of_step(state: Live) -> Problem | None:
    """Why the run may not ask its model again."""
    spent = budgets.verdict(state.accepted.budgets, state.usages, continues=True) if state.accepted.budgets else None
    turn = state.accepted.session
    if spent is not None or turn is None or not state.step:
        return spent
    return session.refusal_of_step(turn, state.request.input, state.turns)


def _answered(state: Live, command: Answer, now_ms: int) -> list[RunEvent]:
    turn = command.turn
    recorded = TurnCompleted(
        now_ms,
        command.step,
        turn.text,
        streamed=command.streamed,
        tool_calls=tuple(_compact(call) for call in turn.tool_calls),
        usage=None if turn.usage is None else sanitised(turn.usage),
        native=UNSET if turn.native is None else turn.native,
        finish_reason=turn.finish_reason,
    )
    spent = _spent(state, recorded)
    if spent is not None:
        return [recorded, RunFailed(now_ms, spent)]
    if not recorded.tool_calls:
        return [recorded, _final(state, recorded, command.artifact_id, now_ms)]
    tools = {fact.name: fact for fact in state.accepted.tools}
    last_step = state.step >= state.accepted.max_steps
    why_not = calls.refused(recorded.tool_calls, tools, state.used, last_step=last_step)
    if why_not is not None:
        return [recorded, RunFailed(now_ms, why_not)]
    if by_hand.is_by_hand(state):
        return [recorded, *by_hand.first_call(_turned(state, recorded), (), now_ms)]
    return [recorded, ToolCalled(now_ms, recorded.tool_calls[0])]


def _spent(state: Live, turn: TurnCompleted) -> Problem | None:
    """Why what was consumed up to *turn* ends the run."""
    if not state.accepted.budgets:
        return None
    return budgets.verdict(state.accepted.budgets, [*state.usages, turn.usage], continues=bool(turn.tool_calls))


def _with_end(state: Live, events: Sequence[RunEvent]) -> list[RunEvent]:
    """*events*, and where one of them ends the run by itself, what its end settles."""
    if len(events) == 1 and isinstance(events[0], RunFailed | RunCancelled):
        return _over(state, events[0])
    return list(events)


def _compact(call: ToolCall) -> ToolCall:
    """*call* with its arguments in one line, every token as the model wrote it."""
    return ToolCall(call.id, call.name, Raw(compacted(bytes(call.arguments).decode())))


def _over(state: Live, end: RunFailed | RunCancelled) -> list[RunEvent]:
    """The end, what it settles, and how sure it is of the open call; what was being settled stays as it was decided."""
    if state.accepted.origin == "job" and end.cause in LOSSES:
        end = RunFailed(end.at_ms, INTERRUPTED, end.cause)
    told = replace(end, problem=calls.at_the_end(state.open, end.problem))
    if state.open is not None and state.open.stage == "reviewed":
        return [ReviewSettled(end.at_ms, state.open.approval_id, "cancelled"), told]
    if state.open is not None and state.open.settling is not None and end.problem != calls.UNAUDITED:
        return [calls.settled(state.open.settling), told]
    return [told]


def fact_of(state: Live, open_call: OpenCall) -> ToolFact:
    """What is known of the tool of *open_call*."""
    return next(fact for fact in state.accepted.tools if fact.name == open_call.call.name)


def _around(state: Live, open_call: OpenCall) -> calls.Around:
    following = state.proposed[0] if state.proposed else None
    return calls.Around(open_call, fact_of(state, open_call), by_hand.reviewer(state), following)


def _called(state: Live, event: ToolCalled) -> Live:
    """The run after one more call of the turn came up; of a Host run, one that has been reviewed if it had to be."""
    opened = calls.opened(None, event)
    if opened is not None and event.call.id in state.reviewed:
        opened = replace(opened, stage="cleared")
    return replace(state, open=opened, proposed=state.proposed[1:])


def _reviewing(state: Live, event: ReviewAsked | RunResumed) -> Live:
    """The run after a person was asked; of a Host run about a call that has not come up, until it is resumed."""
    match event:
        case ReviewAsked(call_id=""):
            return replace(state, open=calls.opened(state.open, event))
        case ReviewAsked(call_id=call_id):
            call = next((one for one in state.proposed if one.id == call_id), None)
            asked = None if call is None else OpenCall(call, active_ms=event.at_ms, by_hand=True)
            return replace(state, open=calls.opened(asked, event), resumed="")
        case RunResumed(again=False) if state.open is not None:
            reviewed = (*state.reviewed, state.open.call.id)
            return replace(state, open=None, reviewed=reviewed, resumed=event.approval_id)
        case RunResumed():
            return state


def _in_call(
    state: Live, event: ReviewSettled | ReviewSettling | CallCleared | ToolStarted | TicketOffered | ToolProgressed
) -> Live:
    return replace(state, open=calls.opened(state.open, event))


def _turned(state: Live, turn: TurnCompleted) -> Live:
    return replace(
        state,
        turns=state.turns.followed_by(turn),
        answered=state.answered + 1,
        proposed=turn.tool_calls,
        reviewed=(),
        used=(*state.used, *[call.id for call in turn.tool_calls]) if turn.tool_calls else state.used,
    )


def _final(state: Live, turn: TurnCompleted, artifact_id: str, now_ms: int) -> RunEvent:
    answer = prompt.final(state.request, turn.text, artifact_id)
    if isinstance(answer, Problem):
        return RunFailed(now_ms, answer)
    in_session = state.accepted.session
    if in_session is not None:
        why_not = session.refusal_of_commit(in_session, state.request.input, (*state.turns, turn))
        if why_not is not None:
            return RunFailed(now_ms, why_not)
    return RunCompleted(
        now_ms,
        turn.text,
        steps=state.step,
        usage=total([*state.usages, turn.usage]),
        finish_reason=turn.finish_reason,
        output=answer.output,
        sources=answer.sources,
        artifacts=answer.artifacts,
    )


def _taken_over(state: Live, command: TakeOver, now_ms: int) -> Sequence[RunEvent]:
    """Origin decides (DESIGN §5): a plain foreground run ends; others go on, unless something was in flight.

    A queued job, and a run that waits, belong to nobody: whoever asks saw an owner that let go of it meanwhile.
    A started call whose tool is idempotent is made again under the same call id; any other is uncertain.
    A Host run's deadline is looked at first, and when it is taken up for the first time, whether it can be run at all.
    """
    if parked(state) or (state.accepted.origin == "job" and not state.started):
        return []
    if by_hand.is_late(state, now_ms):
        return _over(state, by_hand.timed_out(now_ms))
    host = state.accepted.host
    problem = command.problem or (None if host is None else host.problem)
    if problem is not None and not state.claimed:
        return _over(state, RunFailed(now_ms, problem))
    started = state.open is not None and state.open.stage == "started"
    repeatable = started and state.open is not None and _around(state, state.open).fact.idempotent
    in_flight = (_calling(state) and not command.repeats) or (started and not repeatable)
    if not resumable(state) or in_flight:
        lost = Problem("OPERATION_UNCERTAIN", "The node that served this run was lost.", outcome="uncertain")
        return _over(state, RunFailed(now_ms, lost, "node"))
    return [RunClaimed(now_ms, command.node)]


def _calling(state: Live) -> bool:
    return state.step > state.answered


def _is_between(state: Live) -> bool:
    """Whether nothing stands between the run and its next step."""
    return not _calling(state) and state.open is None and not state.proposed


def _held(state: Live, event: RunStarted | RunClaimed | RunHandedOver) -> Live:
    match event:
        case RunStarted():
            return replace(state, started=True, handed_ms=0)
        case RunClaimed():
            return replace(state, handed_ms=0, claimed=True)
        case RunHandedOver(at_ms=at_ms):
            return replace(state, handed_ms=at_ms)


def _ended(state: Live, event: RunCompleted | RunFailed | RunCancelled) -> Ended:
    kind: Literal["completed", "failed", "cancelled"] = (
        "completed" if isinstance(event, RunCompleted) else "failed" if isinstance(event, RunFailed) else "cancelled"
    )
    cause = None if isinstance(event, RunCompleted) else event.cause
    return Ended(state.accepted, kind, event.at_ms, cause, state.started, state.revision, revisions.end_of(event))


_EVOLVED: Final[Mapping[type[RunEvent], Callable[[Any, Any], State]]] = {
    RunAccepted: _begun,
    RunStarted: _held,
    RunClaimed: _held,
    RunHandedOver: _held,
    RunErased: lambda _, event: Buried(event),
    KeyReserved: _of_key,
    KeyBurned: _of_key,
    StepStarted: lambda state, event: replace(state, step=event.step),
    TurnCompleted: _turned,
    ToolCalled: _called,
    ToolCompleted: lambda state, event: replace(state, open=None, turns=state.turns.followed_by(event)),
    ReviewAsked: _reviewing,
    ReviewSettled: _in_call,
    ReviewSettling: _in_call,
    RunResumed: _reviewing,
    CallCleared: _in_call,
    ToolStarted: _in_call,
    TicketOffered: _in_call,
    ToolProgressed: _in_call,
    RunCompleted: _ended,
    RunFailed: _ended,
    RunCancelled: _ended,
}
"""What each kind of event makes of a run, by its type: a long log is read event by event, and a table is read at once."""
_OF_ANY_STATE: Final = frozenset[type[RunEvent]]({RunAccepted, RunErased, KeyReserved, KeyBurned})
"""Events that a run need not be live for."""
