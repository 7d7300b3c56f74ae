"""What a sweep finds due: lapsed leases, jobs nobody knows of, permits, expiries, records and payloads to be taken care of.

Each chore is a command to an actor, or a step that may come twice; two nodes that do the same one harm nothing.
"""

import logging
from typing import TYPE_CHECKING

from actors import by_hand, calls, companions, errors, host_key, run, session, upkeep
from actors.clients import GONE
from actors.dispatch import BYTES_POOL, HOST_RUNS_POOL, POOL, line_up
from eventstore.store import Caps, HistoryLost, Ripe, Unavailable

if TYPE_CHECKING:
    from actors.node import Node

log = logging.getLogger(__name__)

LOOKED_AGAIN_MS = 30_000
"""How long after it was lined up anew a queued job is looked for once more."""
_OF_ANY_KIND = (
    POOL,
    companions.APPROVALS_POOL,
    companions.TICKETS_POOL,
    companions.SESSIONS_POOL,
    companions.HOST_KEYS_POOL,
)


class Chores:
    """Does what is due, for one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._around = node.around

    async def do(self, ripe: Ripe, *, judging: bool) -> None:
        """Do one; *judging* says that a lease may be treated as lapsed by now (DESIGN §5)."""
        actor = ripe.actor
        try:
            match ripe.reason:
                case "lease":
                    if judging and actor not in self._node.executing and self._node.claims:
                        await self._node.take_over(actor)
                case "work":
                    await self._look_for_work(actor)
                case "permit":
                    await self._take_back_permit(actor)
                case "retention":
                    await self._forget(actor)
                case "approval":
                    await self._let_expire(actor)
                case "idle":
                    await self._let_idle_out(actor)
                case "usage":
                    await self._node.account(actor)
                case "client":
                    if judging and not self._node.clients.has(actor):
                        await self._around.shell.tell(
                            actor, run.Cancel(GONE, "client"), command_id=self._around.fresh_id()
                        )
                case "deadline":
                    await self._around.shell.tell(actor, by_hand.TimeOut(), command_id=self._around.fresh_id())
        except (errors.Fenced, Unavailable):
            return  # its owner lives, or the sweep comes again
        except HistoryLost:
            log.exception("the store lost the history of %s", actor)
        except Exception:  # what one actor does must not hold up the rest of its partition
            log.exception("the chore %s of %s failed, and comes again", ripe.reason, actor)

    async def _look_for_work(self, actor: str) -> None:
        """Take up a run that was handed over; line a queued job up again, should the ledger have forgotten it."""
        store = self._around.store
        state, _ = await self._around.shell.state(actor)
        if isinstance(state, run.Live) and state.handed_ms:
            if self._node.claims:
                await self._node.take_over(actor)
            else:  # somebody else should find it at once
                await store.settle(actor, "work", store.now_ms())
        elif isinstance(state, run.Live) and upkeep.is_in_line(state):
            keep_ms = self._node.settings.permit_begin_ms
            await line_up(store, self._node.caps, actor, state.accepted, keep_ms)
            await store.settle(actor, "work", store.now_ms() + LOOKED_AGAIN_MS)
        else:
            await store.settle(actor, "work")

    async def _take_back_permit(self, actor: str) -> None:
        """Give back the permit of whatever *actor* is, or was."""
        look = await self._around.store.look(actor)
        pool = companions.pool_of([entry.data for entry in look.entries])
        if pool is None and not look.heads.erased:
            await self._node.released(actor, accounts=False)
            return
        for one in _OF_ANY_KIND if pool is None else (pool,):
            await self._around.store.give(one, actor, self._node.caps_of(one))
        await self._around.store.settle(actor, "permit")

    async def _forget(self, actor: str) -> None:
        """Erase whatever *actor* is: a run, an approval, a ticket, a Host key, or a session that nobody went on with."""
        command_id = f"e{self._around.fresh_id()}"
        pool = companions.pool_of([entry.data for entry in (await self._around.store.look(actor)).entries])
        if pool is None:
            await self._forget_run(actor, command_id)
        elif pool == companions.SESSIONS_POOL:
            told = await self._around.sessions.tell(actor, session.Expire(), command_id=command_id)
            if told.events:
                await self._around.store.give(pool, actor, self._node.caps_of(pool))
        elif pool == companions.HOST_KEYS_POOL:
            if self._around.host_keys is not None:
                await self._around.host_keys.tell(actor, host_key.Forget(), command_id=command_id)
        else:
            await self._around.shell.erase_companion(actor, command_id=command_id)

    async def _forget_run(self, actor: str, command_id: str) -> None:
        state, _ = await self._around.shell.state(actor)
        if isinstance(state, run.Ended) and upkeep.keeps_log(state):
            await self._around.shell.trim(actor, command_id=command_id)
            return
        if isinstance(state, run.Ended) and state.accepted.origin == "job":
            await self._around.store.give(BYTES_POOL, actor, Caps(total=0))
        if isinstance(state, run.Ended) and state.accepted.host is not None:
            await self._around.store.give(HOST_RUNS_POOL, actor, Caps(total=0))
        await self._around.shell.erase(actor, command_id=command_id)

    async def _let_expire(self, actor: str) -> None:
        """Let an approval expire, or carry on with its settlement, which some node has left."""
        command = calls.Expire(awaits_audit=self._around.audit is not None)
        told = await self._around.shell.tell(actor, command, command_id=self._around.fresh_id())
        if not told.events:
            self._node.settlements.take_up(actor, told.state)

    async def _let_idle_out(self, actor: str) -> None:
        state, _ = await self._around.shell.state(actor)
        if isinstance(state, run.Live):
            command = calls.IdleOut(state.accepted.idle_timeout_ms)
            await self._around.shell.tell(actor, command, command_id=self._around.fresh_id())
