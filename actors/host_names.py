"""Which run a Host name means, to whoever looks: at the run's state or at a fold of its log (Host mapping §3)."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from actors import ids, upkeep, values
from actors.events import RunAccepted


class Seen(Protocol):
    """A run as somebody looked at it."""

    @property
    def accepted(self) -> RunAccepted:
        """What it began with."""
        ...


S = TypeVar("S", bound=Seen)


async def meant(id_key: bytes, subject: str, name: str, look: Callable[[str], Awaitable[S | None]]) -> S | None:
    """Look up what *subject* calls *name*: the run of that Host name first, then its wire run of that id.

    *look* finds a run by its id, where the subject may know of it.
    """
    named = await look(ids.run_of_host(id_key, subject, name))
    if named is not None or not values.is_actor_id(name):
        return named
    other = await look(name)
    return None if other is None or other.accepted.host is not None else other


def is_known(accepted: RunAccepted, ended_ms: int | None, subject: str, now_ms: int) -> bool:
    """Whether a run is *subject*'s, and still kept; *ended_ms* is None while it goes on."""
    if accepted.subject != subject:
        return False
    return ended_ms is None or now_ms < upkeep.kept_until_ms(accepted, ended_ms)
