"""Every Redis key and channel: whose partition it is in, what it holds, how long it lives.

A partition is chosen by the first 32 bits of an actor's id, and all its keys share one hash tag, so that a script may
touch them together on a cluster. The tag of partition `p` of `P` is the first of `p`, `p.1`, `p.2`, ... whose cluster
slot lies in the `p`-th of `P` equal ranges of the 16,384 slots: a cluster that splits its slots evenly splits the
partitions evenly. `{g}` is one more slot, for the ledger and for what a deployment pins.

A key that is not made here is a bug; `kind_of` names the kind of any key, and `LIFETIMES` says how long that kind lives.
"""

from binascii import crc_hqx
from functools import lru_cache
from itertools import count
from re import compile as pattern
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "heads", "log", "feed", "snapshot", "due", "listed", "outbox", "barrier", "meta",
    "held", "by", "line", "turn", "asked", "gone", "queue", "qturn", "auditor",
]  # fmt: skip

LIFETIMES: Final = MappingProxyType[Kind, str](
    {
        "heads": "permanent: the tombstone of an erased actor too",
        "log": "goes when its actor is erased",
        "feed": "goes when its actor is erased or trimmed",
        "snapshot": "goes when its actor is erased; an epitaph in its place is permanent",
        "due": "permanent; empty, and so absent, when nothing is due",
        "listed": "goes with its last member",
        "outbox": "permanent; a janitor prunes what is older than promised",
        "barrier": "permanent: one counter",
        "meta": "permanent: what the deployment pins",
        "held": "goes with the last permit of its pool",
        "by": "permanent: one hash a pool, its counters and the records of its holders",
        "line": "goes with the last waiter",
        "turn": "goes with the last waiter",
        "asked": "goes with the last waiter",
        "gone": "30 s after its permit was given back",
        "queue": "goes with the last job that waits for a node",
        "qturn": "goes with the last job that waits for a node",
        "auditor": "goes when the audit of the ledger ends, or 30 s after its node was last heard of",
    }
)
"""How long a key of each kind lives. Only the ledger's have TTLs: what else ends, ends by an append."""

LEDGER_TAG: Final = "{g}"
SLOTS: Final = 16_384
_PER_NAME: Final[dict[str, Kind]] = {
    "h": "heads", "l": "log", "w": "feed", "s": "snapshot", "z": "listed",
    "held": "held", "by": "by", "line": "line", "turn": "turn", "asked": "asked", "gone": "gone",
    "queue": "queue", "qturn": "qturn",
}  # fmt: skip
_SINGLE: Final[dict[str, Kind]] = {
    "due": "due", "out": "outbox", "barrier": "barrier", "meta": "meta", "auditor": "auditor",
}  # fmt: skip
_KEY: Final = pattern(r"\{(?:g|\d+(?:\.\d+)?)\}:(\w+)(?s::(.+))?")


def partition(actor: str, partitions: int) -> int:
    """The partition of *actor* among *partitions*."""
    return int(actor[:8], 16) % partitions


def slot(tag: str) -> int:
    """The cluster slot of a key whose hash tag is *tag*, without its braces."""
    return crc_hqx(tag.encode(), 0) % SLOTS


@lru_cache(maxsize=8)
def tags(partitions: int) -> tuple[str, ...]:
    """The hash tags of all partitions, braces included."""
    return tuple("{" + _tag(p, partitions) + "}" for p in range(partitions))


def _tag(number: int, partitions: int) -> str:
    low, high = (n * SLOTS // partitions for n in (number, number + 1))
    names = (f"{number}.{n}" if n else f"{number}" for n in count())
    return next(name for name in names if low <= slot(name) < high)


def tag_of(actor: str, partitions: int) -> str:
    """The hash tag of *actor*."""
    return tags(partitions)[partition(actor, partitions)]


def heads(tag: str, actor: str) -> str:
    """A hash: how far the streams of *actor* go, and who may write them."""
    return f"{tag}:h:{actor}"


def log(tag: str, actor: str) -> str:
    """A stream: the events of *actor*."""
    return f"{tag}:l:{actor}"


def feed(tag: str, actor: str) -> str:
    """A stream: the wire items of *actor*, with the hole for their number."""
    return f"{tag}:w:{actor}"


def snapshot(tag: str, actor: str) -> str:
    """A string: `<version>:<fold>`."""
    return f"{tag}:s:{actor}"


def due(tag: str) -> str:
    """A sorted set: `<actor>|<reason>` by the Redis time at which it is due."""
    return f"{tag}:due"


def listed(tag: str, name: str) -> str:
    """A sorted set: this partition's part of the list *name*, for example `runs:<subject>`."""
    return f"{tag}:z:{name}"


def outbox(tag: str) -> str:
    """A stream: what sinks outside Redis must hear."""
    return f"{tag}:out"


def barrier(tag: str) -> str:
    """A counter: what the barrier connection of the `strict` profile writes."""
    return f"{tag}:barrier"


def meta(tag: str) -> str:
    """A hash: deployment id, number of partitions, layout; in every partition and beside the ledger."""
    return f"{tag}:meta"


def ledger(word: Literal["held", "by", "line", "turn", "asked", "gone", "queue", "qturn"], pool: str) -> str:
    """One of the keys of *pool*, as `ledger.lua` lists them."""
    return f"{LEDGER_TAG}:{word}:{pool}"


def auditor() -> str:
    """A string: the node that holds the ledger against the runs just now."""
    return f"{LEDGER_TAG}:auditor"


def heads_pattern() -> str:
    """What the keys of heads look like to `SCAN`, in every partition."""
    return "{*}:h:*"


def actor_of(heads_key: str) -> str:
    """The actor whose heads stand at *heads_key*."""
    return heads_key.split(":", 2)[2]


def items_channel(tag: str, actor: str) -> str:
    """Where followers of *actor* hear of new items."""
    return f"{tag}:c:{actor}"


def node_channel(tag: str, node: str) -> str:
    """Where *node* hears of others' writes to its actors; with the ledger's tag, of granted permits."""
    return f"{tag}:n:{node}"


def work_channel(tag: str) -> str:
    """Where idle nodes hear of work."""
    return f"{tag}:work"


def room_channel() -> str:
    """Where every node hears that queued jobs may find room; with the ledger's tag."""
    return f"{LEDGER_TAG}:room"


def kind_of(key: str) -> Kind | None:
    """The kind of *key*; nothing for one that is not made here."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    word, name = found.groups()
    return (_SINGLE if name is None else _PER_NAME).get(word)
