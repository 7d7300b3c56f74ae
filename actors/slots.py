"""Slots: the ledger's permits of the runs in a node's hands, waited for, granted, and said to be in use.

The ledger is a cache (DESIGN §3): what it may have forgotten is asked for, or said, again.
"""

import logging
from collections.abc import Callable

import anyio

from eventstore.store import Caps, Claim, Store, Unavailable

log = logging.getLogger(__name__)


class Slot:
    """What a run needs to start, as far as its node knows; without a *claim* the ledger knows nothing of it."""

    __slots__ = ("claim", "granted", "in_use", "started", "store_by_ms")

    def __init__(self, claim: Claim | None = None, *, started: bool) -> None:
        self.claim = claim
        self.granted = anyio.Event()
        self.store_by_ms = 0
        """By when the start of the run must be stored, by Redis time; 0 is no bound."""
        self.started = started
        self.in_use = False
        """Whether the ledger was told that it does not lapse."""
        if started:
            self.granted.set()

    def grant(self, store_by_ms: int) -> None:
        """Let the run start until *store_by_ms*."""
        self.store_by_ms = store_by_ms
        self.granted.set()

    def lapse(self) -> None:
        """Let the run wait again: it did not start in time, and the slot may be another's."""
        self.granted = anyio.Event()


class Slots:
    """The slots of a node's runs, by their holders."""

    def __init__(self, store: Store, caps: Callable[[str, str], Caps], keep_ms: int) -> None:
        self._store = store
        self._caps = caps
        self._keep_ms = keep_ms
        """A slot that was granted lapses unless its run is stored within this time."""
        self._held: dict[str, Slot] = {}

    def hold(self, slot: Slot) -> None:
        """Look after *slot* from now on."""
        if slot.claim is not None:
            self._held[slot.claim.holder] = slot

    def leave(self, slot: Slot) -> None:
        """Look after *slot* no more."""
        if slot.claim is not None and self._held.get(slot.claim.holder) is slot:
            del self._held[slot.claim.holder]

    def waiting(self, holder: str) -> Slot | None:
        """The slot that *holder* waits for."""
        slot = self._held.get(holder)
        return None if slot is None or slot.granted.is_set() else slot

    async def reassure(self) -> None:
        """Ask again for what is waited for, and say of the rest that it is in use, should the ledger have forgotten.

        All at once, lest a slow store cost the last their place.
        """
        async with anyio.create_task_group() as tasks:
            for slot in self._held.values():
                tasks.start_soon(self.tell, slot)

    async def confirm(self) -> None:
        """Say of slots that are in use that they are, before they lapse."""
        async with anyio.create_task_group() as tasks:
            for slot in self._held.values():
                if slot.started and not slot.in_use:
                    tasks.start_soon(self.tell, slot)

    async def tell(self, slot: Slot) -> None:
        """Tell the ledger that *slot* is in use, or ask for it; what fails is made up for by the next time."""
        claim = slot.claim
        if claim is None:
            return
        try:
            if slot.started:
                await self._store.begun(claim)
                slot.in_use = True
            elif not slot.granted.is_set():
                permit = await self._store.take(claim, self._caps(claim.subject, claim.account), self._keep_ms)
                if permit.taken == "granted":
                    slot.grant(store_by(permit.begin_by_ms, self._keep_ms))
        except Unavailable:
            log.debug("the ledger does not answer for the slot %s", claim.holder)
        except Exception:
            log.exception("the ledger cannot be asked for the slot %s; that goes on", claim.holder)


def store_by(begin_by_ms: int, keep_ms: int) -> int:
    """By when a run must be stored whose slot, kept for *keep_ms*, lapses at *begin_by_ms*; 0 is no bound.

    In the rest of the time the ledger is told that the slot is in use, or it would be given to another too.
    """
    return begin_by_ms and begin_by_ms - keep_ms // 3
