"""The seams of a store on a Redis Cluster: one link, and one subscribing connection, over a socket to each primary.

Everything goes by the slot of its first key. What a moved slot, a lost primary or a failover does to a command is told to
whoever sent it, as the pause that it is, and the map is looked at again meanwhile; nothing is sent twice here either.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from eventstore import keys
from eventstore.endpoint import chores, said
from eventstore.fleet import Fleet
from eventstore.link import ConnectionLost, Link, OnConnected, ReplyError, Script, Word
from eventstore.slots import DELAY_S_MAX, DOUBTFUL, Slots, key_in
from eventstore.socket_link import Limits, SocketLink
from eventstore.socket_messages import Hearing, SocketMessages

_AGAIN_S, _AGAIN_S_MAX = 0.02, 0.5
_KEYLESS: Final = keys.LEDGER_TAG
"""Where a command without a key goes that stands alone: to the primary that holds the ledger."""

_log = logging.getLogger(__name__)


class ClusterLink:
    """A `Link` to all primaries of a cluster; made by `open_cluster_link`."""

    def __init__(self, slots: Slots, fleet: Fleet[SocketLink]) -> None:
        self._slots = slots
        self._fleet = fleet

    async def call(self, *words: Word) -> Any:
        """Send one command; one without a key goes to the primary of the ledger."""
        try:
            return await self.of(key_in(words) or _KEYLESS).call(*words)
        except (ConnectionLost, ReplyError) as error:
            self._slots.doubt_for(error)
            raise

    async def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send commands in one write to each primary; one without a key goes where the one before it went."""
        groups: dict[SocketLink, list[int]] = {}
        key = next((key for words in commands if (key := key_in(words))), _KEYLESS)
        try:
            for number, words in enumerate(commands):
                key = key_in(words) or key
                groups.setdefault(self.of(key), []).append(number)
            if len(groups) == 1:
                replies = await next(iter(groups)).pipeline(commands)
            else:
                replies = await _gathered(groups, commands)
        except (ConnectionLost, ReplyError) as error:
            self._slots.doubt_for(error)
            raise
        for reply in replies:
            if isinstance(reply, ReplyError):
                self._slots.doubt_for(reply)
        return replies

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Run *script* on the primary of its first key; all its keys are of one slot."""
        try:
            return await self.of(keys[0]).script(script, keys, args)
        except (ConnectionLost, ReplyError) as error:
            self._slots.doubt_for(error)
            raise

    def primaries(self) -> Sequence[Link]:
        """The links to all primaries that are known now."""
        return self._fleet.all()

    def of(self, key: str) -> SocketLink:
        """The link to the primary of *key*; raises `ReplyError` where none is known."""
        return self._fleet.of(key)


async def _gathered(groups: dict[SocketLink, list[int]], commands: Sequence[Sequence[Word]]) -> list[Any]:
    """Send each of *groups*, which are numbers of *commands*, to its link, and return the replies in their order."""
    sent = [link.pipeline([commands[number] for number in group]) for link, group in groups.items()]
    replies: list[Any] = [None] * len(commands)
    for group, found in zip(groups.values(), await asyncio.gather(*sent), strict=True):
        for number, reply in zip(group, found, strict=True):
            replies[number] = reply
    return replies


@asynccontextmanager
async def open_cluster_link(
    slots: Slots,
    *,
    name: str = "runstream",
    limits: Limits | None = None,
    on_connected: OnConnected | None = None,
) -> AsyncGenerator[ClusterLink]:
    """Connect to every primary of *slots*, also to those that come later; *on_connected* as for `open_link`.

    Raises:
        ReplyError: a server refused the account.
        Unfit: *on_connected* refused a server.
    """
    bounds = replace(limits or Limits(), delay_s_max=DELAY_S_MAX)
    async with chores() as tasks:
        fleet = Fleet(slots, lambda primary: SocketLink(primary, name, bounds, on_connected), tasks)
        try:
            await fleet.launch()
            with slots.watched(fleet.match):
                await fleet.match()
                yield ClusterLink(slots, fleet)
        finally:
            fleet.close()


class ClusterMessages:
    """A `Messages` over all primaries of a cluster; made by `open_cluster_messages`."""

    def __init__(
        self,
        slots: Slots,
        fleet: Fleet[SocketMessages],
        tasks: TaskGroup,
        on_gap: Callable[[], None],
        patience_s: float,
    ) -> None:
        self._slots = slots
        self._fleet = fleet
        self._tasks = tasks
        self._on_gap = on_gap
        self._patience_s = patience_s
        self._at: dict[str, SocketMessages | None] = {}
        """Each channel that is wanted, and where it was asked for."""

    async def subscribe(self, channel: str) -> None:
        """Subscribe at the primary of *channel*, wherever that goes meanwhile.

        The channel stays wanted when this fails or is cancelled, until it is left.

        Raises:
            ConnectionLost: no server confirmed it within the patience.
        """
        self._at.setdefault(channel, None)
        delay_s = _AGAIN_S
        with anyio.move_on_after(self._patience_s):
            try:
                while channel in self._at and not await self._confirmed(channel):
                    self._slots.doubt()
                    await anyio.sleep(delay_s)
                    delay_s = min(2 * delay_s, _AGAIN_S_MAX)
            except anyio.get_cancelled_exc_class():  # by our patience or by whoever asks
                if self._at.get(channel) is None:
                    self._tasks.start_soon(self._follow, [channel])
                raise
            return
        raise ConnectionLost(f"no server confirmed a subscription to {channel} in time")

    async def unsubscribe(self, channel: str) -> None:
        messages = self._at.pop(channel, None)
        if messages is not None:
            await messages.unsubscribe(channel)

    async def match(self) -> None:
        """Go by the new map: channels whose primary is another one now are asked for there."""
        await self._fleet.match()
        asked = [(channel, at) for channel, at in self._at.items() if at is not None]
        moved = [(channel, at) for channel, at in asked if at is not self._where(channel)]
        for channel, at in moved:
            self._at[channel] = None
            await at.unsubscribe(channel)
        if moved:
            self._on_gap()  # before anything is heard there: it may be another history that goes on
            self._tasks.start_soon(self._follow, [channel for channel, _ in moved])

    async def _follow(self, moved: Sequence[str]) -> None:
        """Subscribe to what *moved*, and then say that there was a gap."""
        async with anyio.create_task_group() as tasks:
            for channel in moved:
                tasks.start_soon(self._persist, channel)
        self._on_gap()

    async def _persist(self, channel: str) -> None:
        """Subscribe to *channel* until it is confirmed, or left, or somebody else's to do."""
        delay_s = _AGAIN_S
        while channel in self._at:
            try:
                if await self._confirmed(channel):
                    return
            except ReplyError as error:
                _log.warning("channel %s: not subscribed: %s", channel, said(error))
                return
            self._slots.doubt()
            await anyio.sleep(delay_s)
            delay_s = min(2 * delay_s, _AGAIN_S_MAX)

    async def _confirmed(self, channel: str) -> bool:
        """Subscribe once; answers whether that was confirmed. Raises `ReplyError` for what waiting does not mend."""
        at = self._at[channel] = self._where(channel)
        if at is None:
            return False
        try:
            await at.subscribe(channel)
        except (ConnectionLost, ReplyError) as error:
            await at.unsubscribe(channel)
            if self._at.get(channel) is at:
                self._at[channel] = None
            if isinstance(error, ReplyError) and error.code not in DOUBTFUL:
                raise
            return False
        return self._at.get(channel) is at  # else it was left, or moved, meanwhile

    def _where(self, channel: str) -> SocketMessages | None:
        """The connection to the primary of *channel*; none where no primary is known."""
        try:
            return self._fleet.of(channel)
        except ReplyError:
            return None


@asynccontextmanager
async def open_cluster_messages(
    slots: Slots,
    on_message: Callable[[str, bytes], None],
    on_gap: Callable[[], None],
    *,
    name: str = "runstream-ear",
    hearing: Hearing | None = None,
) -> AsyncGenerator[ClusterMessages]:
    """Connect to every primary of *slots* and stay subscribed; the callbacks are those of `open_messages`.

    Raises:
        ReplyError: a server refused the account.
    """
    how = replace(hearing or Hearing(), sharded=True, delay_s_max=DELAY_S_MAX)
    async with chores() as tasks:
        fleet = Fleet(slots, lambda primary: SocketMessages(primary, name, how, on_message, on_gap), tasks)
        messages = ClusterMessages(slots, fleet, tasks, on_gap, how.patience_s)
        try:
            await fleet.launch()
            with slots.watched(messages.match):
                await messages.match()
                yield messages
        finally:
            fleet.close()
