"""Requests, commands and frames for tests of the run, all by value."""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import msgspec

from actors import run
from actors.events import RunEvent
from actors.request import RunRequest
from projections import wire_feed

NOW = 1_767_607_200_000
RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
ARTIFACT = "5c0f5f0e-8d0b-4c5e-9a38-0e6f7c1d2b90"


def document(**members: Any) -> dict[str, Any]:
    """A request's body, with *members* by their names on the wire."""
    return {"provider": "fake", "model": "m", "input": "hello"} | members


def request(**members: Any) -> RunRequest:
    return msgspec.json.decode(msgspec.json.encode(document(**members)), type=RunRequest)


def accept(*, admitted: bool = True, fingerprint: str = "", max_steps: int = 8, **members: Any) -> run.Accept:
    return run.Accept(
        subject="ann",
        request=request(**members),
        admitted=admitted,
        max_steps=max_steps,
        max_output_tokens=100,
        max_attempts=1,
        idle_timeout_ms=0,
        fingerprint=fingerprint,
        permit="p1",
    )


def folded(events: Iterable[RunEvent], state: run.State | None = None) -> run.State:
    return reduce(run.evolve, events, state or run.New())


def items_of_log(log: Iterable[RunEvent], run_id: str = RUN_ID) -> list[bytes]:
    """The feed of a log as the shell makes it, text deltas aside."""
    feed, items = wire_feed.start(run_id), list[bytes]()
    for event in log:
        feed = wire_feed.fold(feed, event)
        items.extend(wire_feed.items(feed, event))
    return items


def framed(items: Sequence[bytes]) -> bytes:
    """The stream that a client is sent for *items*."""
    return b"".join(wire_feed.frame(number, item) for number, item in enumerate(items, 1))


def event_of(item: bytes, number: int = 1) -> Any:
    return msgspec.json.decode(wire_feed.numbered(number, item))
