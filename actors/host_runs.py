"""Runs as the Host protocol changes them, on any node: created, cancelled, decided about and resumed, each under a key.

A change is one append to the run's log under a command id made of (subject, operation, key), so whoever comes again
finds it there; its outcome is recorded with the key afterwards. Whoever died in between left a reservation that the
next one finishes (DESIGN §3). A refusal is told only once it is recorded, because nothing else would say it again.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct

from actors import by_hand, calls, errors, host_key, host_names, ids, run, upkeep, values
from actors.bounds import Bounds, accept
from actors.companions import APPROVALS_POOL, HOST_KEYS_POOL
from actors.decider import Refusal
from actors.dispatch import HOST_RUNS_POOL, line_up
from actors.errors import Problem, Refused
from actors.events import (
    HostKeyEvent,
    HostRun,
    ReviewSettled,
    ReviewSettling,
    RunAccepted,
    RunCancelled,
    RunEvent,
    RunResumed,
    ToolCall,
)
from actors.node import Node
from actors.request import RunRequest
from actors.revisions import Status
from actors.shell import Shell, Told, TooLate
from eventstore.store import Caps, Claim, Heads, Unavailable

log = logging.getLogger(__name__)

Operation: TypeAlias = Literal["create_run", "cancel_run", "resolve_approval", "resume_run"]
Why: TypeAlias = Literal["", "not_found", "conflict"]
BEGIN_TRIES = 3
"""How many places may lapse, each before its run was stored, until the caller is told to try later."""
NO_RUN: Mapping[str, str] = {"provider": "none", "model": "none", "input": "-"}
"""What stands in the place of a request that is none."""
_TOO_LARGE = frozenset({"OPERATION_RECORD_LIMIT", "RESPONSE_TOO_LARGE"})


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of the Host protocol on this deployment."""

    max_runs: int = 1_000
    """Host runs that are kept, whether they have ended or not."""
    max_runs_per_subject: int = 100
    max_keys: int = 100_000
    max_workers: int = 32
    """Host runs that a node executes at once; where it takes jobs on too, the larger bound holds for both together."""


class Creator(NamedTuple):
    """Who creates runs: the subject, and the credential that must still be good when a run is taken up; empty for none."""

    subject: str
    principal: str = ""
    waived: frozenset[str] = frozenset()


class Keyed(NamedTuple):
    """A request under its subject's key; *fingerprint* is of its canonical form."""

    subject: str
    key: str
    fingerprint: str


class Found(NamedTuple):
    """A run as one look found it, for whoever asks what its caller may do, and then changes it."""

    actor: str
    state: run.Live | run.Ended

    @property
    def accepted(self) -> RunAccepted:
        """What it began with."""
        return self.state.accepted

    @property
    def under_review(self) -> ToolCall | None:
        """The call that somebody may decide about."""
        return by_hand.under_review(self.state) if isinstance(self.state, run.Live) else None


class Outcome(Struct, frozen=True, omit_defaults=True):
    """How a change went, as its key says it from then on."""

    revision: int = 0
    status: Status = "created"
    code: Why = ""
    """Why it was refused; empty where it was not."""

    @property
    def applied(self) -> bool:
        """Whether the run was changed."""
        return not self.code


_NOT_FOUND = Outcome(code="not_found")
_outcomes: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)
_Act: TypeAlias = Callable[[str], Awaitable[Outcome]]


class HostRuns:
    """Changes the runs of a deployment for those who speak the Host protocol."""

    def __init__(
        self,
        node: Node,
        keys: Shell[host_key.State, host_key.Command, HostKeyEvent],
        bounds: Callable[[RunRequest, str, frozenset[str]], Bounds],
        limits: Limits,
    ) -> None:
        self._node = node
        self._keys = keys
        self._bounds = bounds
        self._key_caps = Caps(total=limits.max_keys)
        self._run_caps = Caps(total=limits.max_runs, per_subject=limits.max_runs_per_subject)

    async def found(self, subject: str, name: str) -> Found | None:
        """Look up what *subject* calls *name*, to be changed.

        Raises:
            Unavailable: the store did not answer.
            HistoryLost: it lost what it should keep.
        """
        id_key = self._node.around.store.deployment.id_key
        return await host_names.meant(id_key, subject, name, lambda actor: self._seen(subject, actor))

    async def create(self, who: Creator, keyed: Keyed, host: HostRun, request: RunRequest | None) -> Outcome:
        """Accept and start a run; *request* is what its input asks for, None where that is nothing the host could run.

        Raises:
            Refused: OPERATION_STORE_FULL, HOST_RUNS_FULL; HOST_KEY_CONFLICT; BODY_TOO_LARGE.
            Unavailable: the store did not answer; the same request may be sent again.
        """
        actor = ids.run_of_host(self._node.around.store.deployment.id_key, keyed.subject, host.context.run_id)

        async def act(command_id: str) -> Outcome:
            for _ in range(BEGIN_TRIES):
                try:
                    return await self._created(who, actor, command_id, host, request)
                except TooLate:
                    continue
            raise Unavailable("no run could be stored within the time that its place is kept")

        return await self._once("create_run", keyed, actor, act)

    async def cancel(self, keyed: Keyed, name: str, found: Found | None, command: by_hand.Cancel) -> Outcome:
        """End the run that *name* was *found* to mean, where it stands at the expected revision; raises as `create`."""

        async def act(command_id: str) -> Outcome:
            if found is None:
                return _NOT_FOUND
            told = await self._node.around.shell.tell(found.actor, command, command_id=command_id, fresh=True)
            if not await self._carried_out(found.actor, told, command_id, _is_cancelled):
                return _refused(told)
            if not told.heads.owner:  # else its executor gives the slot back, once it has stopped
                await self._node.released(found.actor)
            return Outcome(command.expected + 1, "cancelled")

        return await self._once("cancel_run", keyed, name, act)

    async def resolve(self, keyed: Keyed, name: str, found: Found | None, command: by_hand.Resolve) -> Outcome:
        """Settle the approval that a run waits for; raises as `create`, and APPROVAL_AUDIT_FAILED."""
        command = msgspec.structs.replace(command, awaits_audit=self._node.around.audit is not None)

        async def act(command_id: str) -> Outcome:
            return _NOT_FOUND if found is None else await self._resolved(found, command_id, command)

        return await self._once("resolve_approval", keyed, name, act)

    async def resume(self, keyed: Keyed, name: str, found: Found | None, command: by_hand.Resume) -> Outcome:
        """Claim the approved call of a run, for the first time or again; raises as `create`.

        A living owner goes on, since what it records next is decided after this; in the place of a lost one this node
        takes the run over as the rules of a takeover have it (DESIGN §5).
        """

        async def act(command_id: str) -> Outcome:
            if found is None:
                return _NOT_FOUND
            told = await self._node.told(found.actor, command, command_id=command_id, fresh=True)
            if not await self._carried_out(found.actor, told, command_id, _is_resumed):
                return _refused(told)
            if any(isinstance(event, RunResumed) and event.again for event in told.events):
                await self._taken_over(found.actor, told.heads)
            return Outcome(command.expected + 1, "running")

        return await self._once("resume_run", keyed, name, act)

    async def _seen(self, subject: str, actor: str) -> Found | None:
        state, _ = await self._node.around.shell.state(actor)
        if not isinstance(state, run.Live | run.Ended):
            return None
        ended_ms = state.at_ms if isinstance(state, run.Ended) else None
        is_known = host_names.is_known(state.accepted, ended_ms, subject, self._node.around.store.now_ms())
        return Found(actor, state) if is_known else None

    async def _once(self, operation: Operation, keyed: Keyed, about: str, act: _Act) -> Outcome:
        """Have *act* change the run once for this key, as the node's own work: a caller that leaves takes nothing back."""
        id_key = self._node.around.store.deployment.id_key
        key_id = ids.host_key(id_key, keyed.subject, operation, keyed.key)
        reserve = host_key.Reserve(keyed.subject, keyed.fingerprint, about)
        return await self._node.carried_out(lambda: self._kept(key_id, reserve, act), undo=lambda _: None)

    async def _kept(self, key_id: str, reserve: host_key.Reserve, act: _Act) -> Outcome:
        around = self._node.around
        state, heads = await self._keys.state(key_id)
        if isinstance(state, host_key.New) and not heads.erased:
            await self._take_key(key_id, reserve.subject)
        told = await self._keys.tell(key_id, reserve, command_id=around.fresh_id())
        if isinstance(told.answer, Refusal):
            raise Refused.of(host_key.CONFLICT)
        if isinstance(told.state, host_key.Settled):
            return _outcomes.decode(told.state.outcome)
        outcome = await act(key_id)
        settle = host_key.Settle(Raw(msgspec.json.encode(outcome)), outcome.applied)
        try:
            told = await self._keys.tell(key_id, settle, command_id=around.fresh_id())
        except Unavailable:
            if not outcome.applied:
                raise
            log.warning("what key %s stands for is in its run's log alone", key_id)
            return outcome
        return _outcomes.decode(told.state.outcome) if isinstance(told.state, host_key.Settled) else outcome

    async def _take_key(self, key_id: str, subject: str) -> None:
        store = self._node.around.store
        key = Claim(HOST_KEYS_POOL, key_id, store.node, subject)
        permit = await store.take(key, self._key_caps, self._node.settings.permit_begin_ms)
        if permit.taken != "granted":
            raise Refused("OPERATION_STORE_FULL", "No further idempotency key can be kept.")
        await store.begun(key)

    async def _created(
        self, who: Creator, actor: str, command_id: str, host: HostRun, request: RunRequest | None
    ) -> Outcome:
        around, name = self._node.around, host.context.run_id
        seen = await self._seen(who.subject, name) if values.is_actor_id(name) else None
        if seen is not None:
            return Outcome(seen.state.revision, _status(seen.state), "conflict")
        state, heads = await around.shell.state(actor)
        is_new = isinstance(state, run.New) and not heads.erased
        begin_by_ms = await self._place(actor, who.subject) if is_new else 0
        told = await around.shell.tell(
            actor,
            self._accept(who, actor, host, request),
            command_id=command_id,
            fresh=is_new,
            not_after_ms=begin_by_ms,
        )
        if isinstance(told.answer, Refusal):
            if told.answer.problem.code in _TOO_LARGE:
                raise Refused("BODY_TOO_LARGE", told.answer.problem.message)
            return _refused(told)
        if isinstance(told.state, run.Live) and upkeep.is_in_line(told.state):
            await self._lined_up(actor, told.state)
        return Outcome(2, "running")

    def _accept(self, who: Creator, actor: str, host: HostRun, request: RunRequest | None) -> run.Accept:
        if request is None:
            asked = msgspec.convert(NO_RUN, RunRequest)
            bounds = Bounds(max_steps=1, max_output_tokens=1, max_attempts=1, idle_timeout_ms=0, account="")
        else:
            asked, bounds = request, self._bounds(request, who.subject, who.waived)
        more: Mapping[str, Any] = {"subject": who.subject, "principal": who.principal, "permit": actor, "host": host}
        return accept(asked, bounds, admitted=True, origin="host", **more)

    async def _place(self, actor: str, subject: str) -> int:
        """Take a place among the Host runs; the time until which it is kept."""
        store = self._node.around.store
        claim = Claim(HOST_RUNS_POOL, actor, store.node, subject)
        permit = await store.take(claim, self._run_caps, self._node.settings.permit_begin_ms)
        if permit.taken != "granted":
            raise Refused("HOST_RUNS_FULL", "No further run can be kept.", retryable=True)
        return permit.begin_by_ms

    async def _lined_up(self, actor: str, state: run.Live) -> None:
        """Put a stored run into the line; what the store does not hear now is made up for when the run is looked for."""
        node = self._node
        try:
            await line_up(node.around.store, node.caps, actor, state.accepted, node.settings.permit_begin_ms)
        except Unavailable:
            log.warning("run %s waits to be lined up", actor)

    async def _resolved(self, found: Found, command_id: str, command: by_hand.Resolve) -> Outcome:
        open_call = found.state.open if isinstance(found.state, run.Live) else None
        expires_ms = 0 if open_call is None else open_call.expires_ms or 0
        try:
            told = await self._node.told(
                found.actor, command, not_after_ms=expires_ms, command_id=command_id, fresh=True
            )
        except TooLate:
            told = await self._node.told(found.actor, calls.Expire(command.awaits_audit))
            return _refused(told)
        if not await self._carried_out(found.actor, told, command_id, partial(_is_settled, command)):
            return _refused(told)
        await self._settled(found.actor, told, command.approval_id)
        await self._gave_back(command.approval_id)
        if command.outcome == "denied":
            return Outcome(command.expected + 1, "failed")
        if found.accepted.host is not None:
            return Outcome(command.expected + 1, "waiting_for_approval")
        return Outcome(command.expected + 2, "running")  # granted and claimed in one step (Host mapping §9, C2)

    async def _carried_out(self, actor: str, told: Told, command_id: str, is_it: Callable[[RunEvent], bool]) -> bool:
        """Whether a command did what it asked for.

        Not so if it was refused; nor if it came too late, or its record was too large, and it ended the run instead.
        """
        if isinstance(told.answer, Refusal):
            return False
        # What came again is known by its id alone where the log was folded into a snapshot meanwhile.
        return any(map(is_it, told.events or await self._node.around.shell.caused(actor, command_id)))

    async def _settled(self, actor: str, told: Told, approval_id: str) -> None:
        """Have the audit sink take the record of an answer that holds only then.

        Raises:
            Refused: APPROVAL_AUDIT_FAILED; the run has ended by it.
        """
        state = told.state
        if isinstance(state, run.Live) and state.open is not None and state.open.settling is not None:
            settled = await self._node.settlements.finished(actor, state)
        elif any(isinstance(event, ReviewSettled) for event in told.events):
            return
        else:
            events = await self._node.around.shell.events(actor)
            answers = [event for event in events if isinstance(event, ReviewSettled)]
            settled = next((answer for answer in answers if answer.approval_id == approval_id), None)
        if settled is None:
            raise Refused.of(calls.UNAUDITED)

    async def _gave_back(self, approval_id: str) -> None:
        around = self._node.around
        try:
            await around.store.give(APPROVALS_POOL, approval_id, around.approvals)
        except Unavailable:
            log.warning("the permit of %s waits for the sweep", approval_id)

    async def _taken_over(self, actor: str, heads: Heads) -> None:
        """Take a run over whose owner is lost; a living one goes on."""
        if actor in self._node.executing or not self._node.sweeps.may_judge(actor, heads):
            return
        try:
            await self._node.take_over(actor)
        except (errors.Fenced, Unavailable):
            log.info("run %s is carried on elsewhere", actor)


def _is_cancelled(event: RunEvent) -> bool:
    return isinstance(event, RunCancelled)


def _is_resumed(event: RunEvent) -> bool:
    return isinstance(event, RunResumed)


def _is_settled(command: by_hand.Resolve, event: RunEvent) -> bool:
    """Whether *event* is the answer that was given; the end of a run settles what was asked too."""
    return isinstance(event, ReviewSettled | ReviewSettling) and event.outcome == command.outcome


def _refused(told: Told) -> Outcome:
    """The refusal of a command, as the run stands that refused it."""
    problem: Problem = told.answer.problem if isinstance(told.answer, Refusal) else by_hand.CONFLICT
    if problem == by_hand.NO_APPROVAL or problem.code == "RUN_NOT_FOUND":
        return _NOT_FOUND
    if not isinstance(told.state, run.Live | run.Ended):
        return Outcome(code="conflict")
    return Outcome(told.state.revision, _status(told.state), "conflict")


def _status(state: run.Live | run.Ended) -> Status:
    return by_hand.status(state) if isinstance(state, run.Live) else state.status
