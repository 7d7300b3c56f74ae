"""What the `strict` profile waits for where there are replicas: that enough of them have what was written.

A round asks, on one connection and in this order, whether each append is on the primary that answers now, writes a
counter, and waits until enough replicas have that. So an append that a failover lost is never taken for a kept one,
whichever server answered it first. Rounds run over two connections in turn; each takes along all that came meanwhile.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskGroup

from eventstore import appends, keys
from eventstore.endpoint import chores
from eventstore.link import ConnectionLost, Link, ReplyError, Word
from eventstore.store import Append

Road: TypeAlias = Callable[[str], Link]
"""From the hash tag of a partition to the link to its primary, over a connection that is the barrier's alone."""
OpenRoad: TypeAlias = Callable[[], AbstractAsyncContextManager[Road]]

_COMMAND_AT: Final = "local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1] return found and found[2][6]"
"""The command id of a log entry, without its bytes."""
_COUNT: Final = "#!lua flags=allow-oom\nreturn redis.call('INCR', KEYS[1])"
_WAIT_MS: Final = 1_000
_ROUND_MAX: Final = 512
_AGAIN_S, _AGAIN_S_MAX = 0.01, 0.5


ENDS_MAX: Final = 4_096
"""How many of the ends that were found kept last are remembered."""


class Short(Exception):
    """Too few replicas have it, or the primary lost it: whether it is kept is not known."""


class Proof(NamedTuple):
    """How to see that something was written: the reply to *words* is *found*."""

    tag: str
    words: Sequence[Word]
    found: bytes


def proof(append: Append, tag: str) -> Proof | None:
    """What shows that *append* is there; nothing for what nobody waits for: deltas, and what writes no log or owner."""
    command = append.command.encode()
    for part in append.parts:
        if part.events and part.log is not None:
            entry = f"{part.log + 1}-0"
            return Proof(tag, ("EVAL", _COMMAND_AT, 1, keys.log(tag, part.actor), entry), command)
    for part in append.parts:
        if appends.marks(part):
            return Proof(tag, ("HGET", keys.heads(tag, part.actor), "k"), command)
    return None


def end_of(tag: str, actor: str) -> Proof:
    """What shows that *actor* has ended, whoever ended it."""
    return Proof(tag, ("HGET", keys.heads(tag, actor), "x"), b"1")


class KeptEnds:
    """Actors whose ends are known to be kept, while one history of the server lasts: another may have lost them."""

    def __init__(self) -> None:
        self._history = ""
        self._actors: OrderedDict[str, None] = OrderedDict()

    def has(self, actor: str, history: str) -> bool:
        """Whether the end of *actor* is kept in *history*."""
        return history == self._history and actor in self._actors

    def add(self, actor: str, history: str) -> None:
        """Note that the end of *actor* is kept in *history*; of many the last ones are remembered."""
        if history != self._history:
            self._history = history
            self._actors.clear()
        self._actors[actor] = None
        if len(self._actors) > ENDS_MAX:
            self._actors.popitem(last=False)


class _Waiter(NamedTuple):
    proof: Proof
    kept: asyncio.Future[bool | None]
    """Whether it is kept; None where that could not be asked."""


class _Lane:
    """The waiters of one primary, and the roads there that are free."""

    def __init__(self, roads: Sequence[Road]) -> None:
        self.waiting: list[_Waiter] = []
        self.free = list(roads)


class Barrier:
    """Waits for *replicas* replicas; made by `open_barrier`."""

    def __init__(self, roads: Sequence[Road], replicas: int, tasks: TaskGroup, patience_s: float) -> None:
        self._roads = roads
        self._replicas = replicas
        self._tasks = tasks
        self._patience_s = patience_s
        self._lanes: dict[Link, _Lane] = {}

    async def passed(self, proof: Proof) -> None:
        """Return once enough replicas have what *proof* shows.

        Raises:
            Short: too few have it, or nobody could be asked within the patience.
        """
        delay_s, kept = _AGAIN_S, None
        with anyio.move_on_after(self._patience_s):
            while (kept := await self._asked(proof)) is None:
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, _AGAIN_S_MAX)
        if not kept:
            raise Short(f"fewer than {self._replicas} replicas are known to have what shows as {proof.found.decode()}")

    async def _asked(self, proof: Proof) -> bool | None:
        try:
            primary = self._roads[0](proof.tag)
        except ReplyError:
            return None
        lane = self._lanes.setdefault(primary, _Lane(self._roads))
        waiter = _Waiter(proof, asyncio.get_running_loop().create_future())
        lane.waiting.append(waiter)
        if lane.free:
            self._tasks.start_soon(self._run, primary, lane, lane.free.pop())
        return await waiter.kept

    async def _run(self, primary: Link, lane: _Lane, road: Road) -> None:
        """Go round until nobody waits."""
        while lane.waiting:
            batch, lane.waiting = lane.waiting[:_ROUND_MAX], lane.waiting[_ROUND_MAX:]
            try:
                await self._round(road(batch[0].proof.tag), batch)
            except (ConnectionLost, ReplyError):
                pass  # each asks again, until its patience ends
            finally:
                for waiter in batch:
                    if not waiter.kept.done():
                        waiter.kept.set_result(None)
        lane.free.append(road)
        if len(lane.free) == len(self._roads):
            self._lanes.pop(primary, None)

    async def _round(self, link: Link, batch: Sequence[_Waiter]) -> None:
        *there, counted, acked = await link.pipeline(
            [
                *(waiter.proof.words for waiter in batch),
                ("EVAL", _COUNT, 1, keys.barrier(batch[0].proof.tag)),
                ("WAIT", self._replicas, _WAIT_MS),
            ]
        )
        if isinstance(counted, ReplyError) or isinstance(acked, ReplyError):
            return
        for waiter, found in zip(batch, there, strict=True):
            if not waiter.kept.done() and not isinstance(found, ReplyError):
                waiter.kept.set_result(_kept(found, waiter, acked, self._replicas))


def _kept(found: Any, waiter: _Waiter, acked: int, replicas: int) -> bool:
    return found == waiter.proof.found and acked >= replicas


@asynccontextmanager
async def open_barrier(road: OpenRoad, replicas: int, patience_s: float) -> AsyncGenerator[Barrier]:
    """Open a barrier over two connections that *road* opens to each primary."""
    async with road() as one, road() as other, chores() as tasks:
        yield Barrier((one, other), replicas, tasks, patience_s)
