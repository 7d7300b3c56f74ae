"""Audits: the ledger is held against the runs where it may have forgotten something, and each difference is mended.

The ledger is a cache (DESIGN §3). Where a primary was promoted or restored, ledger and runs may have lost different
moments; where the ledger was deleted it knows nothing. One node then calls the roll of all actors: who holds a place
that the ledger does not count says again that it is in use; who is counted and holds nothing has it given back.

Every step may come twice, on any number of nodes: saying it again is saying it once, and what is given back is held by
nobody. A holder whose actor is not there may be just being stored, so it must be missing twice, `audited_again_s` apart.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias

import anyio

from actors import holdings, values
from eventstore.store import AUDIT_MS, Claim, HistoryLost, Met, Unavailable

if TYPE_CHECKING:
    from actors.node import Node

log = logging.getLogger(__name__)

LOOKED_UP_AT_ONCE = 32
"""Holders whose actors are read at once."""

_Holder: TypeAlias = tuple[str, str]
"""A pool, and who holds a permit of it."""


class Auditor:
    """Audits for one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._store = node.around.store
        self._counted_again = 0
        self._given_back = 0

    async def keep(self) -> None:
        """Ask again and again whether an audit is due, until cancelled; the first time when the node has settled."""
        await self._node.open.wait()
        while True:
            await anyio.sleep(self._node.settings.audited_s)
            try:
                await self.audit()
            except Unavailable:
                log.debug("the ledger cannot be held against the runs: the store pauses")
            except Exception:
                log.exception("to hold the ledger against the runs failed and is tried again")

    async def audit(self) -> None:
        """Hold the ledger against the runs, if that is due and nobody else is at it.

        Raises:
            Unavailable: the store pauses; whoever asks when this node's sign has faded begins anew.
        """
        history = await self._store.begin_audit(holdings.POOLS)
        if not history:
            return
        self._counted_again = self._given_back = 0
        missing = await self._round()
        if missing:
            await self._wait()
            for pool, holder in missing & await self._round():
                await self._give(pool, holder)
        await self._store.end_audit(holdings.POOLS, history)
        mended = self._counted_again, self._given_back
        level = logging.WARNING if any(mended) else logging.INFO
        log.log(level, "the ledger was held against the runs: %d counted again, %d given back", *mended)

    async def _round(self) -> set[_Holder]:
        """Mend what differs; the holders that lead nowhere."""
        held = {pool: frozenset(await self._store.held(pool)) for pool in holdings.POOLS}
        unmet = {(pool, holder) for pool, holders in held.items() for holder in holders}
        async with aclosing(self._store.roll()) as roll:
            async for some in roll:
                for met in some:
                    unmet -= await self._counted(met, held)
                await self._store.keep_audit()
        return await self._looked_up(sorted(unmet))

    async def _counted(self, met: Met, held: Mapping[str, Collection[str]]) -> set[_Holder]:
        """See to it that what *met* holds is counted, where it was not among *held*; what it is."""
        claims = await self._held_by(met) or ()
        for claim in claims:
            if claim.holder not in held[claim.pool]:
                await self._store.begun(claim)
                self._counted_again += 1
        return _holders(claims)

    async def _looked_up(self, unmet: Sequence[_Holder]) -> set[_Holder]:
        """Give back what is held by nobody of those that no actor was met for; who of them leads to no actor at all."""
        missing = {one for one in unmet if not values.is_actor_id(_actor(one[1]))}
        unmet = [one for one in unmet if one not in missing]
        for at in range(0, len(unmet), LOOKED_UP_AT_ONCE):
            some = unmet[at : at + LOOKED_UP_AT_ONCE]
            for (pool, holder), met in zip(some, await self._store.meet([_actor(one) for _, one in some]), strict=True):
                if not met.heads.log:
                    missing.add((pool, holder))
                elif (claims := await self._held_through(met)) is not None and (pool, holder) not in _holders(claims):
                    await self._give(pool, holder)
            await self._store.keep_audit()
        return missing

    async def _held_through(self, met: Met) -> list[Claim] | None:
        """What *met* holds, and the run that it stands for; None where that cannot be told."""
        claims = await self._held_by(met)
        if claims is not None and (run_id := holdings.run_of(met)):
            (run,) = await self._store.meet([run_id])
            of_run = await self._held_by(run)
            return None if of_run is None else claims + of_run
        return claims

    async def _held_by(self, met: Met) -> list[Claim] | None:
        """What *met* holds; None where that cannot be told, and then it keeps what it has."""
        try:
            if met.heads.log and not met.heads.erased and not met.first:
                raise HistoryLost(met.actor)
            claims = holdings.places(met)
            if holdings.may_have_slot(met):
                events = await self._node.around.shell.events(met.actor)
                claims += holdings.slot(events, met.heads.owner)
        except Unavailable:
            raise
        except Exception:  # what one actor does must not hold up the rest
            log.exception("it cannot be told what %s holds", met.actor)
            return None
        return claims

    async def _give(self, pool: str, holder: str) -> None:
        log.debug("%s holds nothing in the pool %s any more", holder, pool)
        await self._store.give(pool, holder, self._node.caps_of(pool))
        self._given_back += 1

    async def _wait(self) -> None:
        """Wait until what is just being stored is stored, and give signs meanwhile."""
        over = anyio.current_time() + self._node.settings.audited_again_s
        while (left := over - anyio.current_time()) > 0:
            await anyio.sleep(min(left, AUDIT_MS / 3_000))
            await self._store.keep_audit()


def _holders(claims: Iterable[Claim]) -> set[_Holder]:
    return {(claim.pool, claim.holder) for claim in claims}


def _actor(holder: str) -> str:
    """The actor that *holder* leads to: itself, or what a slot's holder begins with."""
    return holder.partition(":")[0]
