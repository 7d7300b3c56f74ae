"""Looking at runs: whoever owns a run may follow it from any event, on any node, and in pages (extensions §1).

A cursor is `<number>` or `<number>.<digest>`; the digest says what was seen under that number, so that a store that came
back older is noticed by whoever saw more.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from typing import Literal, NamedTuple, TypeAlias

from actors import run, values
from actors.errors import Refused
from actors.events import RunAccepted
from actors.node import Node
from eventstore.reader import CursorAhead, CursorTooOld
from eventstore.store import Heads, HistoryLost, Item

State: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled"]
May: TypeAlias = Callable[[RunAccepted], bool]
Follow: TypeAlias = Callable[[str, int], AsyncGenerator[Sequence[Item]]]

NUMBER_DIGITS_MAX = 15
PAGE_BYTES_MAX = 1_500_000
PAGE_EVENTS_MAX = 1_000
_CURSOR = re.compile(rf"(0|[1-9][0-9]{{0,{NUMBER_DIGITS_MAX - 1}}})(?:\.([0-9a-f]{{8}}))?")


class Cursor(NamedTuple):
    """What a reader saw last."""

    number: int = 0
    digest: str = ""
    """Of the event under that number; empty where the reader does not know it."""


class Seen(NamedTuple):
    """Some events of a run, and how it stood when they were read."""

    run_id: str
    state: State
    head: int
    items: Sequence[Item]


class Watched(NamedTuple):
    """A run that is being followed."""

    run_id: str
    over: bool
    """Nothing will come any more after the cursor."""
    batches: AsyncIterator[Sequence[Item]]


def cursor_of(text: str) -> Cursor:
    """The cursor that *text* is; an empty one stands before the first event.

    Raises:
        Refused: INVALID_CURSOR.
    """
    found = _CURSOR.fullmatch(text) if text else None
    if text and found is None:
        raise Refused("INVALID_CURSOR", "A cursor is the number of an event, or its id as the stream told it.")
    return Cursor() if found is None else Cursor(int(found[1]), found[2] or "")


def digest_of(data: bytes) -> str:
    """What stands for an event in a cursor."""
    return hashlib.blake2s(data, digest_size=4).hexdigest()


class Viewing:
    """Shows the runs of a deployment to those they belong to."""

    def __init__(self, node: Node, follow: Follow) -> None:
        self._node = node
        self._follow = follow

    @asynccontextmanager
    async def watch(self, subject: str, run_id: str, may: May, cursor: Cursor) -> AsyncGenerator[Watched]:
        """Follow a run after *cursor*; a client of a run that may be resumed is attached meanwhile.

        Raises:
            Refused: RUN_NOT_FOUND, FORBIDDEN, INVALID_CURSOR, CURSOR_EXPIRED, HISTORY_LOST, in this order.
            Unavailable: the store did not answer.
        """
        state, heads = await self._found(subject, run_id, may)
        await self._check(run_id, heads, cursor)
        over = heads.ended and cursor.number == heads.feed
        async with aclosing(self._follow(run_id, cursor.number)) as batches:
            with self._attached(run_id, state):
                yield Watched(run_id, over, batches)

    async def page(self, subject: str, run_id: str, may: May, cursor: Cursor) -> Seen:
        """Read events after *cursor*, at most `PAGE_EVENTS_MAX` and at most `PAGE_BYTES_MAX` bytes but at least one.

        Raises:
            Refused: as `watch`.
            Unavailable: the store did not answer.
        """
        state, heads = await self._found(subject, run_id, may)
        await self._check(run_id, heads, cursor)
        page = await self._node.around.store.page(run_id, cursor.number, PAGE_BYTES_MAX)
        if page.heads.ended:
            await self._node.around.store.confirm_end(run_id)
        if page.heads.ended and not isinstance(state, run.Ended):
            state, _ = await self._found(subject, run_id, may)
        ended = state if isinstance(state, run.Ended) and page.heads.ended else None
        told: State = ended.kind if ended is not None else "running" if page.heads.feed else "queued"
        return Seen(run_id, told, page.heads.feed, page.items[:PAGE_EVENTS_MAX])

    def _attached(self, run_id: str, state: run.State) -> AbstractContextManager[None]:
        return self._node.clients.attached(run_id, run.grace_ms(state) if isinstance(state, run.Live) else 0)

    async def _found(self, subject: str, run_id: str, may: May) -> tuple[run.Live | run.Ended, Heads]:
        if not values.is_actor_id(run_id):
            raise _no_run()
        state, heads = await self._node.around.shell.state(run_id)
        if not isinstance(state, run.Live | run.Ended) or state.accepted.subject != subject:
            raise _no_run()
        if not may(state.accepted):
            raise Refused("FORBIDDEN", "This token does not allow the operation.")
        return state, heads

    async def _check(self, run_id: str, heads: Heads, cursor: Cursor) -> None:
        """Refuse a cursor that does not fit the run's feed."""
        if cursor.number > heads.feed:
            raise lost(run_id) if cursor.digest else ahead()
        if cursor.number + 1 < heads.oldest:
            raise too_old(heads.oldest)
        if cursor.digest and cursor.number >= heads.oldest:
            page = await self._node.around.store.page(run_id, cursor.number - 1, 1)
            if not page.items or digest_of(page.items[0].data) != cursor.digest:
                raise lost(run_id)


def refused_by(error: CursorAhead | CursorTooOld | HistoryLost, run_id: str) -> Refused:
    """What a reader is told whose cursor the feed refuses."""
    match error:
        case CursorAhead():
            return ahead()
        case CursorTooOld():
            return too_old(error.oldest)
        case HistoryLost():
            return lost(run_id)


def ahead() -> Refused:
    """The refusal of a cursor beyond the last event."""
    return Refused("INVALID_CURSOR", "The cursor is ahead of the run.")


def too_old(oldest: int) -> Refused:
    """The refusal of a cursor whose next event is not kept any more."""
    return Refused(
        "CURSOR_EXPIRED", f"What follows the cursor is not kept; the oldest kept is {oldest}.", oldest=oldest
    )


def lost(run_id: str) -> Refused:
    """The refusal of a cursor that saw what the store does not hold."""
    return Refused("HISTORY_LOST", f"The store lost what was seen of run {run_id}.", uncertain=True)


def _no_run() -> Refused:
    return Refused("RUN_NOT_FOUND", "There is no such run.")
