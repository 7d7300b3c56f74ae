"""A node's store in a process of its own that appends as fast as it can: `python -m bench.appending SOCKET`.

It says that it is ready, waits for a line, and prints how many appends were recorded in a second.
"""

import asyncio
import os
import sys
import time
import uuid

import anyio
import uvloop

from eventstore.endpoint import Endpoint
from eventstore.redis_store import RedisStore, open_redis_store
from eventstore.store import Append, Deployment, Event, Part, Recorded

RUNS, SECONDS, WARM_S = 64, 3.0, 0.5
PAYLOAD = b"x" * 256


async def main(socket: str) -> None:
    """Append for a while."""
    node = f"n{os.getpid()}"
    async with open_redis_store(Endpoint(path=socket), Deployment("bench", 64, b"k" * 32), node) as store:
        actors = [str(uuid.uuid4()) for _ in range(RUNS)]
        for actor in actors:
            claim = Part(actor=actor, log=0, events=(Event(b"{}", 1),), items=(b"{}",), owner=node, lease_ms=60_000)
            assert isinstance(await store.append(Append(command="c", parts=(claim,))), Recorded)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        counts: list[int] = []
        async with anyio.create_task_group() as tasks:
            for actor in actors:
                tasks.start_soon(_appended, store, actor, counts)
        print(sum(counts) / SECONDS, flush=True)


async def _appended(store: RedisStore, actor: str, counts: list[int]) -> None:
    """Append to a run until the time is over; those of its middle count."""
    began = time.perf_counter()
    number = count = 0
    while (now := time.perf_counter() - began) < SECONDS + 2 * WARM_S:
        number += 1
        part = Part(actor=actor, log=number, events=(Event(PAYLOAD),), epoch=1)
        assert isinstance(await store.append(Append(command=f"x1.{number}", parts=(part,))), Recorded)
        count += WARM_S <= now < WARM_S + SECONDS
    counts.append(count)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
