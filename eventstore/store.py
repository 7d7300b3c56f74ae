"""What a store promises: logs, feeds, leases, due times and permits, whoever keeps them.

Three stores keep this contract and pass one suite: `memory` (the reference), Redis, and the Redis code on fakeredis.
Payloads are opaque bytes; a store knows versions, numbers, epochs and times, never runs.
An answer that a rule forbids the append is a value, because its sender acts on it;
a store that cannot answer raises `Unavailable`, and then the same append may be sent again unchanged.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

Reason: TypeAlias = Literal["lease", "work", "approval", "idle", "deadline", "client", "permit", "retention", "usage"]

AUDIT_MS = 30_000
"""An audit of the ledger whose node was not heard of for so long is another's to take on."""
PUSHED_ITEM_BYTES_MAX = 8_192
"""An append whose items together are larger travels to other nodes by number only (DESIGN §6)."""


class Unavailable(Exception):
    """The partition pauses: outage, failover, slot move. Try again after *retry_after_ms*; nothing is known of the rest."""

    def __init__(self, why: str, retry_after_ms: int = 1_000) -> None:
        super().__init__(why)
        self.retry_after_ms = retry_after_ms


class HistoryLost(Exception):
    """The store no longer holds what its heads promise of *actor*; it must never be begun anew with OK."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"history of {actor} is lost")
        self.actor = actor


class Heads(Struct, frozen=True):
    """How far an actor's streams go, and who may write them. All zero for an actor that has no log."""

    log: int = 0
    """Version: number of log events."""
    feed: int = 0
    """Number of the last feed item."""
    feed_bytes: int = 0
    """Bytes of all items ever in the feed."""
    oldest: int = 1
    """Number of the oldest item still kept."""
    last_ms: int = 0
    """Redis time of the last append that wrote the log."""
    epoch: int = 0
    """The fence: raised by each new owner and by the end."""
    owner: str = ""
    """The node whose lease it is; empty for nobody."""
    lease_ms: int = 0
    """Redis time at which the owner's lease ends; 0 without owner."""
    ended: bool = False
    erased: bool = False


class Entry(NamedTuple):
    """One event of a log."""

    version: int
    feed_head: int
    """Number of the last feed item once this event was written: what time travel needs."""
    command: str
    """Id of the command that wrote it."""
    data: bytes


class Item(NamedTuple):
    """One item of a feed; its bytes have a hole where the number goes."""

    number: int
    data: bytes


class Look(NamedTuple):
    """An actor as it stands now: one consistent view."""

    heads: Heads
    entries: Sequence[Entry]
    """The log after the version asked for (after the snapshot's where one is answered), up to `heads.log`."""
    snapshot: "Snapshot | None"
    now_ms: int
    """Redis time."""


class Snapshot(NamedTuple):
    """The fold of a log up to *version*, as its owner encoded it; a cache, and may be missing.

    Of an erased actor: the epitaph that its erasure left, which stays for ever.
    """

    version: int
    data: bytes


class Page(NamedTuple):
    """Part of a feed: one consistent view."""

    heads: Heads
    items: Sequence[Item]
    """Contiguous, beginning after the cursor; ends at `heads.feed` or where the byte bound was met (never empty for that)."""


class Met(NamedTuple):
    """An actor as it was met: how far it goes, and what it is."""

    actor: str
    heads: Heads
    first: bytes
    """The first event of its log; of an erased one the epitaph; empty for one that is not there, or left nothing."""


class Event(NamedTuple):
    """One event to be written."""

    data: bytes
    items: int = 0
    """How many items of its part stand in the feed once this event is written; deltas taken along count before it."""


class Part(Struct, frozen=True, kw_only=True, gc=False):
    """What one append does to one actor; every append names at least one exact head."""

    actor: str
    log: int | None = None
    """The exact version the log must have; required to write events."""
    events: tuple[Event, ...] = ()
    feed: int | None = None
    """The exact number the feed must stand at; None means *next*: the store numbers the items after whatever is there."""
    items: tuple[bytes, ...] = ()
    epoch: int | None = None
    """The writer's fence; `Fenced` unless it is current. None for a command from elsewhere."""
    owner: str | None = None
    """None leaves the owner; a node id claims (only where no lease is running) and raises the epoch; "" hands back."""
    lease_ms: int = 0
    """For a claim: length of the lease."""
    ended: bool = False
    """The actor ends: the epoch rises, the lease goes, and nothing may be appended any more but an erasure."""
    erase: bool = False
    """Streams and snapshot go in the same step; heads stay for ever. Only for an actor that ended or ends here."""
    epitaph: bytes = b""
    """With *erase*: what is kept for ever in the place of the snapshot, and answers for the actor; empty for nothing."""
    trim: bool = False
    """The feed goes, whole, and `oldest` becomes one above `feed`; the log stays. Only for an actor that ended."""


class Due(NamedTuple):
    """Something must happen with *actor* at *at_ms* by Redis time; None clears it. `lease` is kept by the store itself."""

    actor: str
    reason: Reason
    at_ms: int | None


class Listed(NamedTuple):
    """A member of this partition's part of a list, for example of a subject's runs; None takes it off."""

    name: str
    """For example `runs:<subject>`."""
    member: str
    score: int | None


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """One step in one partition, all or nothing."""

    command: str
    """Id of the command; the first entry in each stream keeps it, so a repeat is recognised."""
    parts: tuple[Part, ...]
    due: tuple[Due, ...] = ()
    listed: tuple[Listed, ...] = ()
    outbox: tuple[bytes, ...] = ()
    not_before_ms: int = 0
    not_after_ms: int = 0
    """Redis times between which the append counts, [from, to); 0 for no bound."""


class Placed(NamedTuple):
    """Where one part of an append stands."""

    heads: Heads
    """After the append; of a repeat, as they are now. An owner's append that writes only its feed, or only one event,
    may be answered with the rest of the heads as this node last heard of them, and with Redis time as it estimates it."""
    first: int
    """Number of its first feed item; 0 without items."""


class Recorded(NamedTuple):
    """Written; *repeated* if by an earlier sending of the same command."""

    parts: tuple[Placed, ...]
    now_ms: int
    repeated: bool = False


class Conflict(NamedTuple):
    """A head is not where the append said; nothing was written. Heads in the order of the parts."""

    heads: tuple[Heads, ...]
    now_ms: int


class Fenced(NamedTuple):
    """The epoch is not current, or a claim met a running lease; nothing was written."""

    heads: tuple[Heads, ...]
    now_ms: int


class Ended(NamedTuple):
    """An actor of the append has ended; nothing was written."""

    heads: tuple[Heads, ...]
    now_ms: int


class Lost(NamedTuple):
    """A stream is missing although its head is above zero, or there although it is zero; nothing was written."""

    actor: str
    now_ms: int


class OutsideWindow(NamedTuple):
    """It was too early or too late by Redis time; nothing was written."""

    now_ms: int


Outcome: TypeAlias = Recorded | Conflict | Fenced | Ended | Lost | OutsideWindow


class Ripe(NamedTuple):
    """A due member whose time had come, moved 2 s ahead; `work` under a lease moves to that lease's end, unanswered."""

    actor: str
    reason: Reason
    due_ms: int
    """The time it was due, as it was before the move."""


class Swept(NamedTuple):
    """What a sweep of a partition found."""

    ripe: Sequence[Ripe]
    now_ms: int
    """Redis time."""
    next_ms: int
    """When to sweep again: the next member is due then, those that were moved included; 0 if nothing is."""


class Caps(Struct, frozen=True):
    """Bounds of one pool of permits over all nodes. 0 means not bounded (queue: no waiting line at all)."""

    total: int
    per_subject: int = 0
    per_account: int = 0
    per_node: int = 0
    queue_total: int = 0
    queue_per_subject: int = 0


class Claim(Struct, frozen=True):
    """Who asks for a permit. One holder id is one permit, however often it asks."""

    pool: str
    holder: str
    node: str
    """Rung when a waiting holder is granted."""
    subject: str
    account: str = ""
    weight: int = 1
    """How much of the pool's room it takes: counted against every bound, and given back whole."""


Taken: TypeAlias = Literal["granted", "queued", "busy", "full"]
"""`busy`: no room and no waiting line; `full`: the waiting line is full too."""


class Permit(NamedTuple):
    """Answer to a claim. A granted permit must be begun (by the holder's first append) before *begin_by_ms*."""

    taken: Taken
    begin_by_ms: int


class Dispatched(NamedTuple):
    """A queued holder that was granted its permit, for the node that asked for work."""

    holder: str
    begin_by_ms: int


class Ear(Protocol):
    """What a node wants to hear; called from the store's reader, so an implementation must only note it and return."""

    def rung(self, actor: str) -> None:
        """Somebody else wrote to an actor this node owns."""
        ...

    def work(self, partition: int) -> None:
        """Something in *partition* is due that nobody owns."""
        ...

    def granted(self, holder: str) -> None:
        """A waiting holder of this node was granted its permit."""
        ...

    def lost(self, actor: str) -> None:
        """The store came back without what this node wrote or showed of *actor*."""
        ...

    def room(self) -> None:
        """Queued holders may find room: whoever can take work should ask for it (`dispatch`)."""
        ...


class Heard(NamedTuple):
    """What a tail heard since it was last asked: contiguous items, none where only the log grew."""

    items: Sequence[Item]
    head: int
    """The highest number heard of."""
    ended: bool
    gap: bool = False
    """Something may have gone unheard: read the feed."""


class Tail(Protocol):
    """A follower's end of one run's channel: hints only, the feed stays the truth."""

    compared: bool
    """Whether somebody compares heads for all tails now and then; else a reader does after each silence."""
    lost: bool
    """Whether the store came back without what was shown here: whatever is read from now on is another history."""

    def read_to(self, head: int) -> None:
        """Note that the reader found the feed at *head*, and reads it up to there."""
        ...

    async def heard(self, patience_s: float) -> Heard | None:
        """Wait for news and take all of it; None when *patience_s* passed in silence."""
        ...


class Deployment(Struct, frozen=True):
    """What is fixed when a deployment is created, and pinned by every node at start."""

    id: str
    partitions: int
    id_key: bytes
    """Key of derived ids (DESIGN §3); never rotated, protects nothing."""
    layout: int = 1


class Store(Protocol):
    """The contract (DESIGN §4). Every method raises `Unavailable` when the store did not answer for 5 s."""

    node: str
    deployment: Deployment

    async def append(self, append: Append) -> Outcome:
        """Write *append* or say why not. After `Unavailable` send the same object again: it is written at most once."""
        ...

    async def look(self, actor: str, after: int = 0, *, snapshot: bool = False) -> Look:
        """Read heads and the log after version *after*; with *snapshot*, that and only what follows it.

        Raises:
            HistoryLost: an entry at or below the head is missing though nothing was erased.
        """
        ...

    async def page(self, actor: str, after: int, bytes_max: int = 262_144) -> Page:
        """Read the feed after number *after*.

        Raises:
            HistoryLost: an item that should be kept is missing.
        """
        ...

    async def save(self, actor: str, snapshot: Snapshot) -> None:
        """Keep *snapshot* as a cache; best effort."""
        ...

    async def renew(self, partition: int, mine: Mapping[str, int], lease_ms: int) -> Mapping[str, Heads | None]:
        """Move the lease ends of up to 64 actors (id to epoch); heads of each, None for one that is no longer ours."""
        ...

    async def sweep(self, partition: int, most: int = 32, *, judging: bool = True) -> Swept:
        """Take due members whose time has come.

        Who may not judge yet whether a lease has lapsed (not *judging*) leaves it, and `client`, for those who may.
        """
        ...

    async def settle(self, actor: str, reason: Reason, at_ms: int | None = None) -> None:
        """Clear a due member whose matter is done, or put it off to *at_ms*; one that is not there stays away.

        Best effort, for reasons outside any log (`permit`, `usage`, `work`).
        """
        ...

    async def confirm_end(self, actor: str) -> None:
        """Return once the end of *actor*, which was read, may be told: as many servers have it as the profile promises.

        Raises:
            Unavailable: this is not known, or the end was lost; whoever reads it again finds out.
        """
        ...

    async def post(self, actor: str, entry: bytes) -> None:
        """Write *entry* to the outbox of the partition of *actor*, beside any append; it may be written twice."""
        ...

    async def listed(self, name: str, most: int) -> Sequence[tuple[str, int]]:
        """Read the first *most* members of the list *name* of each partition, with their scores, lowest score first."""
        ...

    async def prune(self, partition: int, before_ms: int) -> None:
        """Take entries off the outbox of *partition* that were written before *before_ms* by Redis time."""
        ...

    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        """Ask for a permit; asking again under the same holder answers the same (`queued` until granted).

        A holder that asks again with another weight gets it: a greater one only where there is room, else `busy`
        is answered and the permit stays as it was.
        """
        ...

    async def begun(self, claim: Claim) -> None:
        """Say that the permit of *claim* is in use, and on which node; takes it if a lost ledger had forgotten it."""
        ...

    async def enlist(self, claim: Claim, caps: Caps, queued_ms: int, begin_within_ms: int, lane: str = "") -> None:
        """Put a holder into the line of those that any node may take up which serves its *lane* (`dispatch`), once.

        Nothing if it has a permit. A lane's name is lower-case letters, or nothing.
        That line has no bound and nobody in it need ask again. *queued_ms* is its place among its subject's.
        *begin_within_ms* holds once it is granted. `Claim.node` means nothing here.
        """
        ...

    async def dispatch(self, pool: str, most: int, caps: Caps, lanes: Collection[str] = ("",)) -> Sequence[Dispatched]:
        """Take up to *most* (at most 32) holders of *lanes* off that line, each with a permit for this node.

        None if there is no room.
        Subjects in rotation, one holder of each a turn, its earliest whose own bounds leave room; waiters of `take`
        come first. Of *caps*, `total` and `per_node` hold for all; the rest are each holder's own.
        """
        ...

    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        """Hand a permit back, or leave the line; grants to whoever is next. Repeatable."""
        ...

    async def held(self, pool: str) -> Collection[str]:
        """Read who holds a permit of *pool* that was begun; whoever comes or goes meanwhile may be among them or not."""
        ...

    async def begin_audit(self, pools: Collection[str]) -> str:
        """Take the audit of *pools* on, if it is due and nobody is at it: the history it is about; else nothing.

        It is due where the ledger is on another history than at the last audit, or lacks what `end_audit` wrote there.
        Whoever took it on is believed to be at it for `AUDIT_MS` after each sign.
        """
        ...

    async def keep_audit(self) -> None:
        """Give a sign that this node is at it."""
        ...

    async def end_audit(self, pools: Collection[str], history: str) -> bool:
        """Note that *pools* say what the runs say; False if the ledger is on another history by now, and it is due again."""
        ...

    async def meet(self, actors: Sequence[str]) -> Sequence[Met]:
        """Read what each of *actors* is, in their order."""
        ...

    def roll(self) -> AsyncGenerator[Sequence[Met]]:
        """Read all actors, some at a time; one that is there all the while is met, maybe twice, unless its slot moves.

        Each step raises `Unavailable` like any other call, and then nothing is known of the rest.
        """
        ...

    def follow(self, actor: str) -> AbstractAsyncContextManager[Tail]:
        """Open a tail; once entered, nothing appended later goes unheard (or the tail says so)."""
        ...

    def listen(self, ear: Ear) -> None:
        """Name the one who hears this node's rings."""
        ...

    def partition_of(self, actor: str) -> int:
        """The partition that the first 32 bits of *actor* choose."""
        ...

    def now_ms(self) -> int:
        """Redis time as estimated from the last answer and this node's monotonic clock.

        It stands still where Redis time goes back, by a minute at most.
        """
        ...

    def history(self) -> str:
        """What names the history of the server that answers; another may lack the end of the one before."""
        ...


class OpenStore(Protocol):
    """How a store is opened: connections and background readers live inside the context."""

    def __call__(self) -> AbstractAsyncContextManager[Store]:
        """Open it."""
        ...


Followed: TypeAlias = AsyncIterator[Sequence[Item]]
