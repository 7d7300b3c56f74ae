"""Looks at what Redis holds: who has which run meanwhile, and everything afterwards.

Models of the workload name their calls alike in each run, so here a call is called after its run too.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from eventstore import keys, words
from eventstore.link import ConnectionLost, Link, ReplyError
from eventstore.store import Entry
from projections import wire_feed
from tests.history import Effect, Kept, Owned, Written
from tests.system.house import House

LOOK_S = 0.1
WAIT_MS = 500
TROUBLE = (ConnectionLost, ReplyError, OSError, TimeoutError)
_EVERYTHING = ("-", "+")


def connected(house: House) -> AbstractAsyncContextManager[Link]:
    """A connection of the test's own to the primary, whichever that is."""
    return house.servers.link()


async def watched(link: Link, owned: list[Owned], replicas: int) -> None:
    """Note who holds which run under which epoch, again and again, until cancelled.

    What fewer *replicas* have is not noted: nobody acts upon it, and a failover may lose it.
    """
    over: set[bytes] = set()
    while True:
        with suppress(*TROUBLE):
            await _noted(link, owned, over, replicas)
        await anyio.sleep(LOOK_S)


async def _noted(link: Link, owned: list[Owned], over: set[bytes], replicas: int) -> None:
    by_tag: dict[str, list[bytes]] = defaultdict(list)
    for key in await link.call("KEYS", "*:h:*"):
        if key not in over:
            by_tag[_tag_of(key)].append(key)
    for tag, found in by_tag.items():
        asked = [("HMGET", key, "e", "o", "x") for key in found]
        *answers, counted, acked = await link.pipeline(
            [*asked, ("INCR", keys.barrier(tag)), ("WAIT", replicas, WAIT_MS)]
        )
        if any(isinstance(one, ReplyError) for one in (*answers, counted, acked)) or acked < replicas:
            continue
        for key, (epoch, owner, ended) in zip(found, answers, strict=True):
            if owner:
                owned.append(Owned(_actor_of(key), int(epoch), owner.decode()))
            if ended == b"1":
                over.add(key)


async def kept_in(link: Link) -> list[Kept]:
    """Read all actors."""
    found: list[Kept] = []
    for key in await link.call("KEYS", "*:h:*"):
        tag, actor = _tag_of(key), _actor_of(key)
        answers = await link.pipeline(
            [
                ("HMGET", key, *words.FIELDS),
                ("XRANGE", keys.log(tag, actor), *_EVERYTHING),
                ("XRANGE", keys.feed(tag, actor), *_EVERYTHING),
            ]
        )
        for answer in answers:
            if isinstance(answer, ReplyError):
                raise answer
        heads = words.heads(answers[0])
        log = [_written(actor, one) for one in words.entries(answers[1], "")]
        feed = {item.number: wire_feed.numbered(item.number, item.data) for item in words.items(answers[2])}
        whole = not heads.erased and heads.oldest == 1
        found.append(Kept(actor, log, feed, heads.log, heads.feed, heads.ended, whole))
    return found


def _written(actor: str, entry: Entry) -> Written:
    """An entry of a log; many runs write to a session's, each under commands of its own."""
    event = _told(actor, entry.data)
    command = f"{event['run_id']} {entry.command}" if "run_id" in event else entry.command
    return Written(entry.version, command, event)


def _told(actor: str, data: bytes) -> Mapping[str, Any]:
    """The event in *data*; its call has a name that no other run's has."""
    event: dict[str, Any] = msgspec.json.decode(data)
    if event["type"] == "tool.called":
        event["call"]["id"] = call_of(actor, event["call"]["id"])
    if "call_id" in event:
        event["call_id"] = call_of(actor, event["call_id"])
    return event


def call_of(run: str, call: str) -> str:
    """The name of a call over all runs."""
    return f"{run}/{call}"


async def held_in(link: Link) -> dict[str, list[str]]:
    """Read who holds permits that are in use, by pool; one that is not begun has the time at which it lapses."""
    return {
        key.decode().split(":", 2)[2]: [one.decode() for one in await link.call("ZRANGEBYSCORE", key, 0, 0)]
        for key in await link.call("KEYS", "{g}:held:*")
    }


async def due_in(link: Link) -> list[tuple[str, str]]:
    """Read what is due or will be."""
    found: list[tuple[str, str]] = []
    for key in await link.call("KEYS", "*:due"):
        for member in await link.call("ZRANGE", key, 0, -1):
            actor, _, reason = member.decode().rpartition("|")
            found.append((actor, reason))
    return found


async def listed_in(link: Link) -> list[tuple[str, str]]:
    """Read the lists."""
    return [
        (key.decode().split(":", 2)[2], one.decode())
        for key in await link.call("KEYS", "*:z:*")
        for one in await link.call("ZRANGE", key, 0, -1)
    ]


async def strange_keys(link: Link) -> list[str]:
    """Find keys that nobody declared, and that so have no lifetime."""
    return [key.decode() for key in await link.call("KEYS", "*") if keys.kind_of(key.decode()) is None]


async def effects_in(calls: Path) -> list[Effect]:
    """Read what the host's tools noted that they did."""
    noted = anyio.Path(calls)
    lines = (await noted.read_text()).splitlines() if await noted.exists() else []
    return [Effect(run, call_of(run, call), "note") for run, call, _ in map(str.split, lines)]


def _tag_of(key: bytes) -> str:
    return key.decode().split(":", 1)[0]


def _actor_of(key: bytes) -> str:
    return key.decode().split(":", 2)[2]
