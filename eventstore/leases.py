"""Who may believe what about a lease: others, that it has lapsed; its owner, that it still runs.

All times but `redis_ms` are of the node's own clock, one that runs during suspend and never jumps; two nodes' clocks are
never compared. Both sides err towards the owner: after an outage the living owners come first (DESIGN §5).
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

PAUSE_MS: Final = 3_000
"""Answers further apart than this are not unbroken."""
JUMP_MS: Final = 1_000
"""Redis time that moved this much against the own clock has jumped."""
MARGIN_MS: Final = 2_000
"""For so long before its lease ends an owner starts nothing new; a third of a lease that is shorter than three of it."""


class Row(Struct, frozen=True):
    """Unbroken answers of one partition's primary."""

    first_ms: int
    last_ms: int
    ahead_ms: int
    """How far Redis time was ahead of the own clock at the first answer."""
    replication_id: str


class Watch(Struct, frozen=True):
    """What a node saw of one partition, and so whether it may treat a lease there as lapsed."""

    row: Row | None = None

    def answered(self, mono_ms: int, redis_ms: int, replication_id: str = "") -> "Watch":
        """The watch after an answer stamped *redis_ms* was read at *mono_ms*; whatever breaks the row begins another."""
        row = self.row
        if row is None or not self.continues(mono_ms, redis_ms, replication_id):
            return Watch(Row(mono_ms, mono_ms, redis_ms - mono_ms, replication_id))
        return Watch(replace(row, last_ms=max(row.last_ms, mono_ms)))

    def failed(self) -> "Watch":
        """The watch after an error, or after a connection was lost."""
        return Watch()

    def may_judge(self, lease_ms: int, mono_ms: int) -> bool:
        """Whether leases of *lease_ms* that Redis shows as past may be treated as lapsed at *mono_ms*."""
        row = self.row
        return row is not None and mono_ms - row.last_ms <= PAUSE_MS and row.last_ms - row.first_ms >= lease_ms

    def continues(self, mono_ms: int, redis_ms: int, replication_id: str = "") -> bool:
        """Whether an answer stamped *redis_ms*, read at *mono_ms*, goes on with the row there is."""
        row = self.row
        return (
            row is not None
            and mono_ms - row.last_ms <= PAUSE_MS
            and abs(redis_ms - mono_ms - row.ahead_ms) <= JUMP_MS
            and replication_id == row.replication_id
        )


class Holding(Struct, frozen=True):
    """An owner's lease, counted from the moment it sent the last claim or renewal that was answered."""

    sent_mono_ms: int
    lease_ms: int

    def renewed(self, sent_mono_ms: int) -> "Holding":
        """The lease after a renewal sent at *sent_mono_ms* was answered; answers may come out of order."""
        return replace(self, sent_mono_ms=max(self.sent_mono_ms, sent_mono_ms))

    def may_start(self, mono_ms: int) -> bool:
        """Whether a model or tool call may still be started at *mono_ms*."""
        return mono_ms < self.sent_mono_ms + self.lease_ms - min(MARGIN_MS, self.lease_ms // 3)

    def expired(self, mono_ms: int) -> bool:
        """Whether the lease may be over for others at *mono_ms*: nothing counts any more until a renewal says "yours"."""
        return mono_ms >= self.sent_mono_ms + self.lease_ms
