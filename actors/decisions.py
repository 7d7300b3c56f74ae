"""What people and applications answer, on any node: decisions about approvals, progress and results of tickets.

The order of checks is the protocol's (approvals §3.1, application-tools §4.3); who is first is decided by the run's log.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import anyio
from msgspec import Raw

from actors import calls, codec, run, values
from actors.companions import APPROVALS_POOL, TICKETS_POOL, inbox, pool_of
from actors.decider import Refusal
from actors.errors import Problem, Refused
from actors.events import ApprovalRequested, ReviewSettled, ReviewSettling, TicketOpened, ToolFact
from actors.jsontext import encoded, strict_json
from actors.node import Node
from actors.shell import Told, TooLate
from eventstore.store import Caps, Unavailable

log = logging.getLogger(__name__)

OUTPUT_BYTES_MAX = 128_000
INBOX_MAX = 1_000
"""So many of each partition are looked at for one list."""
OUTCOMES: dict[str, Literal["approved", "denied", "cancelled"]] = {
    "approve": "approved",
    "deny": "denied",
    "cancel": "cancelled",
}
_NO_APPROVAL = "There is no such pending approval."
_NO_TICKET = "There is no such open execution."


class Caller(NamedTuple):
    """Who answers, and what it may answer to."""

    subject: str
    may_decide: Callable[[str, str], bool]
    """Of provider and tool name."""
    may_execute: Callable[[str, str], bool]
    """Of provider and application tool name."""


class Decided(NamedTuple):
    """A decision that is stored; it means nothing about the tool."""

    run_id: str
    call_id: str
    settled: ReviewSettled


class Waiting(NamedTuple):
    """What waits for a decision."""

    approval_id: str
    asked: ApprovalRequested


class Decisions:
    """Takes answers for runs that any node may own."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def decide(
        self,
        caller: Caller,
        approval_id: str,
        run_id: str,
        call: dict[str, Any],
        decision: Literal["approve", "deny", "cancel"],
    ) -> Decided:
        """Settle a pending approval, as the node's own work: a caller that leaves takes nothing back.

        Raises:
            Refused: APPROVAL_NOT_FOUND, FORBIDDEN, APPROVAL_MISMATCH, in this order; APPROVAL_AUDIT_FAILED in the place
                of any where its record cannot be written.
            Unavailable: the store did not answer; whether it was settled is not known.
        """
        return await self._node.carried_out(
            lambda: self._decide(caller, approval_id, run_id, call, decision), undo=lambda _: None
        )

    async def _decide(
        self,
        caller: Caller,
        approval_id: str,
        run_id: str,
        call: dict[str, Any],
        decision: Literal["approve", "deny", "cancel"],
    ) -> Decided:
        asked = await self._asked(approval_id)
        if asked is None or asked.subject != caller.subject:
            raise await self.rejected(caller, "APPROVAL_NOT_FOUND", _NO_APPROVAL, approval_id, run_id)
        if not await self._pending(asked, approval_id):
            raise await self.rejected(caller, "APPROVAL_NOT_FOUND", _NO_APPROVAL, approval_id, run_id)
        if not caller.may_decide(asked.provider, asked.call.name):
            raise await self.rejected(caller, "FORBIDDEN", "This token may not decide that call.", approval_id, run_id)
        if run_id != asked.run_id or not _same_call(asked, call):
            raise await self.rejected(
                caller, "APPROVAL_MISMATCH", "The decision names another run or call.", approval_id, run_id
            )
        awaits_audit = self._node.around.audit is not None
        command = calls.Settle(approval_id, OUTCOMES[decision], caller.subject, awaits_audit)
        try:
            told = await self._told(asked.run_id, command, not_after_ms=asked.expires_ms or 0)
        except TooLate:
            await self._told(asked.run_id, calls.Expire(awaits_audit))
            raise await self.rejected(caller, "APPROVAL_NOT_FOUND", _NO_APPROVAL, approval_id, run_id) from None
        settled = await self._settled(asked.run_id, told)
        await self._gave_back(APPROVALS_POOL, approval_id, self._node.around.approvals)
        if isinstance(told.answer, Refusal):
            raise await self.rejected(caller, told.answer.problem.code, _NO_APPROVAL, approval_id, run_id)
        if settled is None:
            raise Refused(calls.UNAUDITED.code, calls.UNAUDITED.message)
        return Decided(asked.run_id, asked.call.id, settled)

    async def waiting(self, caller: Caller, most: int) -> Sequence[Waiting]:
        """List what waits for the caller's decision, on all nodes, the oldest first (extensions §3).

        What the caller may not decide is left out; so is what was decided, or ran out, in the meantime.

        Raises:
            Unavailable: the store did not answer.
        """
        found: list[Waiting] = []
        for approval_id, _ in await self._node.around.store.listed(inbox(caller.subject), INBOX_MAX):
            asked = await self._asked(approval_id) if len(found) < most else None
            if asked is None or not caller.may_decide(asked.provider, asked.call.name):
                continue
            if asked.expires_ms is None or self._node.around.store.now_ms() < asked.expires_ms:
                found.append(Waiting(approval_id, asked))
        return found

    async def report(self, caller: Caller, execution_id: str, run_id: str, call_id: str) -> None:
        """Note that an application works on its ticket.

        Raises:
            Refused: TOOL_EXECUTION_NOT_FOUND, FORBIDDEN, TOOL_EXECUTION_MISMATCH, in this order.
        """
        await self._node.carried_out(lambda: self._report(caller, execution_id, run_id, call_id), undo=lambda _: None)

    async def _report(self, caller: Caller, execution_id: str, run_id: str, call_id: str) -> None:
        ticket, _ = await self._open_ticket(caller, execution_id, run_id, call_id)
        _check(await self._told(ticket.run_id, calls.Report(execution_id)))

    async def deliver(self, caller: Caller, execution_id: str, run_id: str, call_id: str, output: Raw | None) -> None:
        """Take the result of a ticket, or None for the application's failure; either uses the ticket up.

        Raises:
            Refused: as `report`, then TOOL_OUTPUT_LIMIT or INVALID_TOOL_OUTPUT, both with the ticket used up.
        """
        await self._node.carried_out(
            lambda: self._deliver(caller, execution_id, run_id, call_id, output), undo=lambda _: None
        )

    async def _deliver(self, caller: Caller, execution_id: str, run_id: str, call_id: str, output: Raw | None) -> None:
        ticket, fact = await self._open_ticket(caller, execution_id, run_id, call_id)
        refused: Refused | None = None
        if output is not None and len(bytes(output)) > OUTPUT_BYTES_MAX:
            refused = Refused("TOOL_OUTPUT_LIMIT", f"The output is over {OUTPUT_BYTES_MAX} bytes.", uncertain=True)
        elif output is not None and not await anyio.to_thread.run_sync(calls.suits_output, output, fact):
            refused = Refused("INVALID_TOOL_OUTPUT", "The output does not suit the tool's schema.", uncertain=True)
        told = await self._told(ticket.run_id, calls.Deliver(execution_id, None if refused else output))
        await self._gave_back(TICKETS_POOL, execution_id, self._node.around.tickets)
        _check(told)
        if refused is not None:
            raise refused

    async def _asked(self, approval_id: str) -> ApprovalRequested | None:
        """Read what an approval is about; None for an id that is none."""
        first = await self._first(approval_id, APPROVALS_POOL)
        event = None if first is None else codec.decode_approval(first)
        return event if isinstance(event, ApprovalRequested) else None

    async def _ticket(self, execution_id: str) -> TicketOpened | None:
        """Read what a ticket is for; None for an id that is none."""
        first = await self._first(execution_id, TICKETS_POOL)
        event = None if first is None else codec.decode_ticket(first)
        return event if isinstance(event, TicketOpened) else None

    async def _first(self, actor: str, pool: str) -> bytes | None:
        """Read the first event of a companion that *pool* counts; None for an id of anything else."""
        if not values.is_actor_id(actor):
            return None
        log = [entry.data for entry in (await self._node.around.store.look(actor)).entries]
        return log[0] if pool_of(log) == pool else None

    async def _pending(self, asked: ApprovalRequested, approval_id: str) -> bool:
        """Whether a decision may still come; one that is too late by Redis time writes the expiry."""
        state, _ = await self._node.around.shell.state(asked.run_id)
        open_call = state.open if isinstance(state, run.Live) else None
        if open_call is None or open_call.stage != "reviewed" or open_call.approval_id != approval_id:
            return False
        if open_call.by_hand:
            return False  # of a Host run, which is decided about through the Host (Host mapping §3)
        if asked.expires_ms is None or self._node.around.store.now_ms() < asked.expires_ms:
            return True
        await self._told(asked.run_id, calls.Expire(awaits_audit=self._node.around.audit is not None))
        return False

    async def _settled(self, run_id: str, told: Told) -> ReviewSettled | None:
        """How a decision came out, once the audit sink has its record; None where that was not to be had."""
        if any(isinstance(event, ReviewSettling) and event.by for event in told.events):
            return await self._node.settlements.finished(run_id, told.state)
        return next((event for event in told.events if isinstance(event, ReviewSettled)), None)

    async def _open_ticket(
        self, caller: Caller, execution_id: str, run_id: str, call_id: str
    ) -> tuple[TicketOpened, ToolFact]:
        ticket = await self._ticket(execution_id)
        if ticket is None or ticket.subject != caller.subject:
            raise Refused("TOOL_EXECUTION_NOT_FOUND", _NO_TICKET)
        state, _ = await self._node.around.shell.state(ticket.run_id)
        open_call = state.open if isinstance(state, run.Live) else None
        if not isinstance(state, run.Live) or open_call is None or open_call.execution_id != execution_id:
            raise Refused("TOOL_EXECUTION_NOT_FOUND", _NO_TICKET)
        if not caller.may_execute(ticket.provider, ticket.name):
            raise Refused("FORBIDDEN", "This token may not execute that tool.")
        if (run_id, call_id) != (ticket.run_id, ticket.call_id):
            raise Refused("TOOL_EXECUTION_MISMATCH", "The post names another run or call.")
        return ticket, run.fact_of(state, open_call)

    async def _gave_back(self, pool: str, holder: str, caps: Caps) -> None:
        """Give back the permit of what is settled, so that whoever hears of it finds room; the due set reminds the nodes."""
        try:
            await self._node.around.store.give(pool, holder, caps)
        except Unavailable:
            log.warning("the permit of %s waits for the sweep", holder)

    async def _told(self, run_id: str, command: run.Command, not_after_ms: int = 0) -> Told:
        return await self._node.told(run_id, command, not_after_ms=not_after_ms)

    async def rejected(self, caller: Caller, code: str, message: str, approval_id: str, run_id: str) -> Refused:
        """Write the audit of a rejected decision, and return the refusal.

        A record that cannot be written takes the place of the refusal (approvals §3.1).
        """
        record = {"type": "approval.rejected", "subject": caller.subject, "code": code}
        record |= {name: text for name, text in (("approvalId", approval_id), ("runId", run_id)) if text}
        sink = self._node.around.audit
        if sink is not None and not await sink.took(record, self._node.around.fresh_id()):
            return Refused(calls.UNAUDITED.code, calls.UNAUDITED.message)
        partition_by = approval_id if values.is_actor_id(approval_id) else self._node.around.fresh_id()
        try:
            await self._node.around.store.post(partition_by, encoded(record))
        except Unavailable:
            return Refused(calls.UNAUDITED.code, calls.UNAUDITED.message)
        return Refused(code, message)


def _check(told: Told) -> None:
    if isinstance(told.answer, Refusal):
        problem: Problem = told.answer.problem
        raise Refused(problem.code, problem.message)


def _same_call(asked: ApprovalRequested, call: dict[str, Any]) -> bool:
    stored = {
        "id": asked.call.id,
        "name": asked.call.name,
        "arguments": strict_json(bytes(asked.call.arguments).decode()),
    }
    return values.same(stored, call)
