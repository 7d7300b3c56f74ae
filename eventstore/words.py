"""The words of the scripts: appends into keys and arguments, answers into outcomes, stream entries into entries.

The other side of this is written at the top of each `.lua` file. Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from eventstore import appends, keys
from eventstore.link import Script, Word
from eventstore.store import (
    PUSHED_ITEM_BYTES_MAX,
    Append,
    Conflict,
    Ended,
    Entry,
    Fenced,
    Heads,
    Item,
    Lost,
    Outcome,
    OutsideWindow,
    Part,
    Placed,
    Reason,
    Recorded,
    Ripe,
    Snapshot,
)

FIELDS: Final = ("l", "w", "wb", "lo", "t", "e", "o", "u", "x", "d")
"""The fields of the heads hash, in the order of `Heads`."""
_WIDTH: Final = len(FIELDS)
_PLACED: Final = _WIDTH + 1


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


APPEND: Final = Script("append", _text("append.lua"))
APPEND_ALWAYS: Final = Script("append-always", APPEND.text, allow_oom=True)
"""The same script for what must be written even when memory is full: claims, ends and erasures free what others hold."""
DELTA: Final = Script("delta", _text("delta.lua"))
FACT: Final = Script("fact", _text("fact.lua"))
"""The same, for the two shapes that are nearly all there is; where one answers nothing, `APPEND` is asked."""
RENEW: Final = Script("renew", _text("renew.lua"), allow_oom=True)
SWEEP: Final = Script("sweep", _text("sweep.lua"), allow_oom=True)
SAVE: Final = Script("save", _text("save.lua"))


class Said(NamedTuple):
    """One call of a script."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Word]


def append(append: Append, tag: str, publish: str) -> Said:
    """The call that writes *append* in the partition of *tag*."""
    parts = append.parts
    streams: list[str] = []
    args: list[Word] = [append.command, publish, tag, _more(append)]
    changes = always = False
    for part in parts:
        actor = part.actor
        streams += (f"{tag}:h:{actor}", f"{tag}:l:{actor}", f"{tag}:w:{actor}")
        change = ""
        if appends.marks(part):
            change, changes = _change(part), True
            always = always or part.log != 0
        args += (
            actor,
            "" if part.log is None else part.log,
            "" if part.feed is None else part.feed,
            "" if part.epoch is None else part.epoch,
            change,
            len(part.events),
            len(part.items),
        )
        for event in part.events:
            args += (event.items, event.data)
        args += part.items
        if part.erase:
            args.append(part.epitaph)
    if changes or args[3]:
        streams += (keys.due(tag), keys.outbox(tag))
        streams += (keys.snapshot(tag, part.actor) for part in parts)
        streams += (keys.listed(tag, listed.name) for listed in append.listed)
        args += _tail(append)
    return Said(APPEND_ALWAYS if always else APPEND, streams, args)


class Ours:
    """What is ready for the next append to an actor of this node: its keys, and its heads as last heard of."""

    __slots__ = ("channel", "heads", "of_feed", "of_log")

    def __init__(self, tag: str, actor: str, heads: Heads) -> None:
        self.heads = heads
        self.of_log = (keys.heads(tag, actor), keys.log(tag, actor))
        self.of_feed = (self.of_log[0], keys.feed(tag, actor))
        self.channel = keys.items_channel(tag, actor)


def quick(append: Append, ours: Ours, publish: str) -> Said | None:
    """The call that writes *append* if it is an event or a delta that an owner sends, and nothing speaks against it.

    What comes this way has no flaw, so that need not be asked; and it is nearly all there is, so each step here counts.
    """
    if len(append.parts) != 1 or append.due or append.listed or append.outbox:
        return None
    part = append.parts[0]
    events, items, epoch = part.events, part.items, part.epoch
    if epoch is None or part.owner is not None or part.ended or part.erase or part.trim or part.epitaph:
        return None
    if append.not_before_ms or append.not_after_ms:
        return None
    command, channel = append.command, ours.channel
    if events:
        log = part.log
        if items or len(events) != 1 or not log or part.feed is not None or events[0].items:
            return None
        head = log + 1
        fact: tuple[Word, ...] = (epoch, log, f"{head}-0", command, publish, channel, head, events[0].data)
        return Said(FACT, ours.of_log, fact)
    feed = part.feed
    if not items or not feed or part.log is not None:
        return None
    head = feed + len(items)
    size = len(items[0]) if len(items) == 1 else sum(map(len, items))
    travels = size <= PUSHED_ITEM_BYTES_MAX
    line = f"{feed + 1}|{head}|0|{len(items) if travels else 0}\n"
    delta: tuple[Word, ...] = (
        epoch,
        feed,
        f"{feed + 1}-0",
        command,
        publish,
        channel,
        head,
        line,
        int(travels),
        *items,
    )
    return Said(DELTA, ours.of_feed, delta)


def written(part: Part, known: Heads, answer: int) -> Heads:
    """The heads after a quick append that was answered with *answer*; before it the node knew them as *known*."""
    log, feed, feed_bytes, last_ms = known.log, known.feed, known.feed_bytes, known.last_ms
    if part.events:
        log, last_ms = (part.log or 0) + 1, max(last_ms, answer)
    else:
        feed, feed_bytes = (part.feed or 0) + len(part.items), answer
    return Heads(log, feed, feed_bytes, known.oldest, last_ms, known.epoch, known.owner, known.lease_ms)


def _more(append: Append) -> str:
    bounds, due = (append.not_before_ms, append.not_after_ms), append.due
    if len(append.parts) == 1 and not (any(bounds) or due or append.listed or append.outbox):
        return ""
    work = any(member.reason == "work" and member.at_ms is not None for member in due)
    counts = (len(append.parts), *bounds, len(due), len(append.listed), len(append.outbox), int(work))
    return ",".join(map(str, counts))


def _change(part: Part) -> str:
    owner = "-" if part.owner is None else f"={part.owner}"
    goes = 2 if part.trim else int(part.erase)
    return f"{part.lease_ms},{part.ended:d},{goes},{owner}"


def _tail(append: Append) -> Iterator[Word]:
    for due in append.due:
        yield from (f"{due.actor}|{due.reason}", "" if due.at_ms is None else due.at_ms)
    for listed in append.listed:
        yield from (listed.member, "" if listed.score is None else listed.score)
    yield from append.outbox


def outcome(append: Append, answer: Sequence[Any]) -> Outcome:
    """What the script's *answer* to *append* means."""
    code: int = answer[0]
    now_ms: int = answer[1]
    match code:
        case 5:
            return Lost(append.parts[int(answer[2]) - 1].actor, now_ms)
        case 6:
            return OutsideWindow(now_ms)
        case _:
            starts = range(2, len(answer), _PLACED)
    if code <= 1:
        placed = tuple([Placed(_heads(answer, at + 1), answer[at]) for at in starts])
        return Recorded(placed, now_ms, code == 1)
    refused = (Conflict, Fenced, Ended)[code - 2]
    return refused(tuple([_heads(answer, at + 1) for at in starts]), now_ms)


def _heads(answer: Sequence[Any], at: int) -> Heads:
    log, feed, feed_bytes, oldest, last_ms, epoch, owner, lease_ms, ended, erased = answer[at : at + _WIDTH]
    return Heads(
        log,
        feed,
        feed_bytes,
        oldest,
        last_ms,
        epoch,
        owner.decode() if owner else "",
        lease_ms,
        ended == 1,
        erased == 1,
    )


def heads(fields: Sequence[bytes | None]) -> Heads:
    """The heads that `HMGET` or a renewal answers with."""
    log, feed, feed_bytes, oldest, last_ms, epoch, owner, lease_ms, ended, erased = fields
    return Heads(
        int(log or 0),
        int(feed or 0),
        int(feed_bytes or 0),
        int(oldest or 1),
        int(last_ms or 0),
        int(epoch or 0),
        (owner or b"").decode(),
        int(lease_ms or 0),
        ended == b"1",
        erased == b"1",
    )


def renewed(actors: Sequence[str], answer: Sequence[Any]) -> dict[str, Heads | None]:
    """What a renewal of *actors* answers, without its time."""
    found: dict[str, Heads | None] = {}
    at = 1
    for actor in actors:
        mine = answer[at] == 1
        found[actor] = heads([_bytes(field) for field in answer[at + 1 : at + 1 + _WIDTH]]) if mine else None
        at += 1 + mine * _WIDTH
    return found


def _bytes(field: bytes | int) -> bytes:
    return b"%d" % field if isinstance(field, int) else field


def ripe(answer: Sequence[Any]) -> list[Ripe]:
    """The members a sweep answers with."""
    found: list[Ripe] = []
    for member, due_ms in zip(answer[2::2], answer[3::2], strict=True):
        actor, _, reason = member.decode().rpartition("|")
        found.append(Ripe(actor, _reason(reason), int(due_ms)))
    return found


def _reason(word: str) -> Reason:
    return cast("Reason", word)  # only `append` writes members, from a `Reason`


def entries(answer: Iterable[Any], command: str) -> list[Entry]:
    """Log entries of an `XRANGE`; *command* wrote those before the first that names its own."""
    found: list[Entry] = []
    for number, fields in answer:
        if len(fields) > 4:  # noqa: PLR2004 - as `begins`
            command = fields[5].decode()
        found.append(Entry(int(number[:-2]), int(fields[3]), command, fields[1]))
    return found


def begins(entry: Any) -> bool:
    """Whether a log entry is the first of its append, and so names its command."""
    return len(entry[1]) > 4  # noqa: PLR2004 - e and w, then c


def number(entry: Any) -> int:
    """The number of an entry of either stream."""
    return int(entry[0][:-2])


def items(answer: Iterable[Any]) -> list[Item]:
    """Feed items of an `XRANGE`."""
    return [Item(int(number[:-2]), fields[1]) for number, fields in answer]


def snapshot(kept: bytes | None) -> Snapshot | None:
    """The snapshot that `save` kept, or the epitaph that an erasure left."""
    if kept is None:
        return None
    version, _, data = kept.partition(b":")
    return Snapshot(int(version), data)


def milliseconds(answer: Sequence[bytes]) -> int:
    """Redis time of a `TIME`."""
    return int(answer[0]) * 1000 + int(answer[1]) // 1000
