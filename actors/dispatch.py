"""Takes queued jobs and Host runs up: asks the ledger for those whose turn it is, checks that they still may run, and begins them.

The ledger's line is a cache (DESIGN §3): a job that it forgot is found by its due member `work` and lined up again.
"""

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import anyio

from actors import errors, run, upkeep
from actors.errors import Problem
from actors.events import RunAccepted
from actors.plan import Claiming
from actors.shell import TooLate
from actors.slots import store_by
from actors.telemetry import ABOUT, About
from eventstore import clock
from eventstore.store import Caps, Claim, Dispatched, HistoryLost, Store, Unavailable

if TYPE_CHECKING:
    from actors.node import Node

log = logging.getLogger(__name__)

POOL = "runs"
JOBS_POOL = "jobs"
BYTES_POOL = "job-bytes"
HOST_RUNS_POOL = "host-runs"
JOBS_LANE, HOST_LANE = "jobs", "host"
"""Lanes of the line: what is not a node's to serve is left to those whose it is."""
BLOCK_BYTES = 16_384
"""Room for jobs' records is counted in blocks of this size, so that small jobs ask for it once."""
TAKEN_UP_AT_ONCE_MAX = 32


class Worker:
    """What a node does for queued jobs and Host runs."""

    def __init__(
        self,
        node: "Node",
        *,
        lanes: Collection[str],
        workers_max: int,
        poll_s: float,
        bytes_max: int,
        why_not: Callable[[RunAccepted], Problem | None],
        authority: Callable[[RunAccepted], Problem | None],
    ) -> None:
        self._node = node
        self._lanes = lanes
        self._workers_max = workers_max
        self._poll_s = poll_s
        self._bytes = Caps(total=bytes_max)
        self._why_not = why_not
        """What keeps an accepted job from being begun."""
        self._authority = authority
        """What ends one that is running: whoever submitted it may not any more."""
        self._news = anyio.Event()
        self._beginning: set[str] = set()

    def room(self) -> None:
        """Note that a queued job may find room."""
        self._news.set()

    async def work(self) -> None:
        """Take jobs up until the node closes, as they find room here."""
        await self._node.open.wait()
        while not self._node.closing.is_set():
            self._news = anyio.Event()
            try:
                while await self._take_up():
                    pass
                self._reauthorized()
            except Unavailable:
                log.debug("no job can be taken up: the store pauses")
            except Exception:
                log.exception("taking up jobs failed and goes on")
            with anyio.move_on_after(self._poll_s):
                await self._news.wait()

    async def grown(self, run_id: str, accepted: RunAccepted, room: int) -> bool:
        """Take the *room* (bytes) that a running job's record needs by now; False if there is none."""
        store = self._node.around.store
        claim = Claim(BYTES_POOL, run_id, store.node, accepted.subject, weight=room)
        permit = await store.take(claim, self._bytes, self._node.settings.permit_begin_ms)
        if permit.taken == "granted" and permit.begin_by_ms:  # the ledger had forgotten the job
            await store.begun(claim)
            await store.begun(Claim(JOBS_POOL, run_id, store.node, accepted.subject))
        return permit.taken == "granted"

    async def _take_up(self) -> bool:
        """Take up what there is room for; whether there may be more."""
        running = {one for one, each in self._node.executing.items() if each.origin != "foreground"} | self._beginning
        most = min(self._workers_max - len(running), TAKEN_UP_AT_ONCE_MAX)
        if most <= 0 or self._node.closing.is_set():
            return False
        found = await self._node.around.store.dispatch(POOL, most, self._node.caps("", ""), self._lanes)
        for one in found:
            self._beginning.add(one.holder)
            self._node.tasks.start_soon(self._begin, one)
        return len(found) == most

    async def _begin(self, dispatched: Dispatched) -> None:
        ABOUT.set(About(self._node.around.store.node, dispatched.holder))
        try:
            await self._begun(dispatched)
        except (TooLate, errors.Fenced):
            log.info("job %s was taken up elsewhere", dispatched.holder)
        except (Unavailable, HistoryLost) as error:
            log.warning("job %s was not taken up: %s", dispatched.holder, error)
        except Exception:
            log.exception("taking up job %s failed", dispatched.holder)
        finally:
            self._beginning.discard(dispatched.holder)

    async def _begun(self, dispatched: Dispatched) -> None:
        node, run_id = self._node, dispatched.holder
        state = node.around.shell.known(run_id)
        is_hot = isinstance(state, run.Live)
        if not is_hot:
            state, _ = await node.around.shell.state(run_id)
        problem = self._why_not(state.accepted) if isinstance(state, run.Live) else None
        by_name = isinstance(state, run.Live) and state.accepted.host is not None
        if not isinstance(state, run.Live) or (problem is not None and not by_name):
            if problem is not None:
                await node.around.shell.tell(run_id, run.Fail(problem), command_id=node.around.fresh_id())
            await node.released(run_id)
            return
        sent = clock.mono_ms()
        told = await node.around.shell.tell(
            run_id,
            # A Host run has begun, and looks at its deadline before anything else.
            run.TakeOver(node.around.store.node, problem=problem) if by_name else run.Start(),
            command_id=node.around.fresh_id(),
            claim=Claiming(node.around.store.node, node.settings.lease_ms),
            fresh=is_hot,
            not_after_ms=store_by(dispatched.begin_by_ms, node.settings.permit_begin_ms),
        )
        if told.events and isinstance(told.state, run.Live):
            node.execute(run_id, told, sent, node.claim_of(told.state))
        elif isinstance(told.state, run.Ended):
            await node.released(run_id)

    def _reauthorized(self) -> None:
        """End the jobs here whose submitter lost what they need (jobs §3)."""
        for run_id, execution in self._node.executing.items():
            state = self._node.around.shell.known(run_id)
            if execution.origin != "foreground" and isinstance(state, run.Live):
                problem = self._authority(state.accepted)
                if problem is not None:
                    self._node.end_soon(run_id, run.Cancel(problem, "rule"))


async def line_up(
    store: Store, caps: Callable[[str, str], Caps], run_id: str, accepted: RunAccepted, keep: int
) -> None:
    """Put a stored job or Host run into the line, and its place and room into the ledger, should that have forgotten them.

    *keep* is how many ms a granted slot is kept until the job must have begun.
    """
    subject, account = accepted.subject, accepted.account
    if accepted.host is not None:
        await store.begun(Claim(HOST_RUNS_POOL, run_id, store.node, subject))
    else:
        weight = room_bytes(accepted)
        await store.begun(Claim(JOBS_POOL, run_id, store.node, subject))
        await store.begun(Claim(BYTES_POOL, run_id, store.node, subject, weight=weight))
    claim, lane = Claim(POOL, run_id, store.node, subject, account), JOBS_LANE if accepted.host is None else HOST_LANE
    await store.enlist(claim, caps(subject, account), accepted.at_ms, keep, lane)


def room_bytes(accepted: RunAccepted, feed_bytes: int = 0) -> int:
    """The room that the ledger keeps for a job with so large a feed: whole blocks, in bytes."""
    return blocks(record_bytes(len(bytes(accepted.request)) + feed_bytes))


def record_bytes(payload_bytes: int) -> int:
    """The size of a job's record with so much in it: room is always kept for its end (jobs §1)."""
    return payload_bytes + upkeep.JOB_RESERVE_BYTES


def blocks(size: int) -> int:
    """*size* rounded up to whole blocks, in bytes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
