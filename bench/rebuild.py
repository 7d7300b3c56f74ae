"""How fast a run is rebuilt from its log alone, without a snapshot."""

import time
import uuid
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec import Raw

from actors import codec, kinds
from actors.events import RunAccepted, RunEvent, RunStarted, StepStarted, TurnCompleted, Usage
from actors.shell import FeedOf, Shell
from bench.figures import Figure, rate
from eventstore.local import private_server
from eventstore.redis_store import open_redis_store
from eventstore.store import Append, Deployment, Event, Part, Recorded
from projections import wire_feed

EVENTS = 10_000
TARGET = 100_000
AT_MS = 1_767_607_200_000


async def figures() -> list[Figure]:
    """Measure the load of a run with 10,000 events."""
    with TemporaryDirectory() as folder:
        async with (
            private_server(Path(folder) / "state") as server,
            open_redis_store(server.endpoint, Deployment("bench", 64, b"k" * 32), "n1") as store,
        ):
            actor = str(uuid.uuid4())
            log = _log()
            for at in range(0, EVENTS, 500):
                events = tuple(Event(codec.encode(event)) for event in log[at : at + 500])
                part = Part(actor=actor, log=at, events=events)
                assert isinstance(await store.append(Append(command=f"c{at}", parts=(part,))), Recorded)
            rates: list[float] = []
            for _ in range(7):
                shell = Shell(
                    store,
                    kinds.RUN,
                    FeedOf(wire_feed.start, wire_feed.fold, wire_feed.items, wire_feed.too_large, wire_feed.thaw),
                )
                begun = time.perf_counter()
                _, heads = await shell.state(actor)
                rates.append(heads.log / (time.perf_counter() - begun))
                assert heads.log == EVENTS
    found = median(rates)
    name = "rebuild of a run with 10,000 log events, feed included"
    return [Figure(name, rate(found), "-", "-", f"at least {TARGET:,}/s", found >= TARGET)]


def _log() -> list[RunEvent]:
    request = Raw(b'{"provider":"scripted","model":"m","input":"hello"}')
    begun: list[RunEvent] = [RunAccepted(AT_MS, "ann", "scripted", "m", request), RunStarted(AT_MS)]
    while len(begun) < EVENTS:
        step = len(begun) // 2
        begun += [
            StepStarted(AT_MS, step),
            TurnCompleted(AT_MS, step, "An answer of some words.", streamed=True, usage=Usage(input_tokens=10)),
        ]
    return begun[:EVENTS]
