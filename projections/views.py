"""A run as either protocol shows it: today the Host's view, folded from the log (Host protocol §8.3)."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.events import HostContext
from projections.host_feed import Approval, Feed
from projections.host_result import Status


class HostView(Struct, frozen=True, kw_only=True):
    """A run for whoever asks through the Host; metadata is as it was given, and filtered where it goes out."""

    run_id: str
    revision: int
    status: Status
    context: HostContext
    created_ms: int
    updated_ms: int
    completed_ms: int | None = None
    approval: Approval | None = None
    result: Any = None
    error: str = ""
    metadata: Mapping[str, str] = {}


class _OfWire(Struct):
    """What a wire request says of itself for others."""

    metadata: dict[str, str] | None = None


def host_view(feed: Feed) -> HostView | None:
    """The view of a run as far as it was folded; None before its first event."""
    accepted = feed.accepted
    if accepted is None:
        return None
    host, end = accepted.host, feed.end
    metadata = host.metadata if host is not None else _metadata(accepted.request)
    if end is not None and end.uncertain:
        metadata = {**metadata, "outcome": "uncertain"}
    return HostView(
        run_id=feed.name,
        revision=feed.sequence,
        status=feed.status,
        context=HostContext(feed.name) if host is None else host.context,
        created_ms=accepted.at_ms,
        updated_ms=feed.updated_ms,
        completed_ms=None if end is None else feed.updated_ms,
        approval=feed.approval,
        result=None if end is None else end.result,
        error="" if end is None else end.error,
        metadata=metadata,
    )


def _metadata(request: Raw) -> Mapping[str, str]:
    return msgspec.json.decode(request, type=_OfWire).metadata or {}
