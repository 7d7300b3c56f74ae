"""Everything at once: clients that do all there is to do over three hosts, while hosts, Redis and the way between are harmed.

What is random comes from a printed seed; `CHAOS_SEED` plays one again, and `CHAOS_S` says for how many seconds.
The deterministic twin of this is `tests/simulation`.
The clocks of the hosts are half a minute behind, right, and half a minute ahead, which may make no difference to anything.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from runstream_client import RunEvent, TextDelta
from runstream_client.reading import result_of

from eventstore.link import Link
from tests import clocks, history
from tests.history import History, Kept, Owned
from tests.http_client import fetch
from tests.system import looks
from tests.system.chaos_client import Notes
from tests.system.chaos_faults import Harm
from tests.system.chaos_work import SCRIPTS, Working
from tests.system.cluster import drawn
from tests.system.house import House, Shape, house_in
from tests.system.processes import LEASE_MS, POLL_S, gathered, until
from tests.system.users import User, asking_for, first, rest

pytestmark = [pytest.mark.anyio, pytest.mark.repo]

SLOW = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes a minute: set SLOW_TESTS=1")
SUBJECTS = ("ann", "bo", "cy", "di")
CLIENTS = 8
HARMED_S = float(os.environ.get("CHAOS_S") or 6)
ENDED_S = 30.0
"""Within this time after the last harm clients are done with what they had begun."""
SETTLED_S = 30.0
"""And after that nothing is open, due or held any more."""
OFF_S = {0: -30, 2: 30} if clocks.MAY_BE_OFF else {}
"""By how much the clocks of hosts are ahead."""
LOSSES = {"alone": (), "watched": ("HISTORY_LOST",), "spread": ("HISTORY_LOST",)}
"""What the last moments of a server that died may cost: text is shown before a replica has it."""
REPLICAS = {"alone": 0, "watched": 1, "spread": 1}
"""How many have what is acknowledged."""
PAUSED = 8
TICKS = 120
TICKING: dict[str, Any] = {"ticking": {"turns": [{"repeat": {"text": "tick ", "times": TICKS}, "delay_ms": 50}]}}
LONG: dict[str, Any] = {"ticking": {"turns": [{"repeat": {"text": "tick ", "times": TICKS}, "delay_ms": 150}]}}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    yield made
    if not os.environ.get("CHAOS_KEEP"):
        shutil.rmtree(made)


Houses = Callable[[Shape], AbstractAsyncContextManager[House]]


@pytest.fixture
def built(short_folder: Path) -> Houses:
    return partial(house_in, short_folder)


async def _seeded() -> int:
    """Draw a seed, or take the one that is to be played again, and print it."""
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1_000_000))  # noqa: S311 - no secret
    print(f"CHAOS_SEED={seed} CHAOS_S={HARMED_S:g}")  # noqa: T201 - so that a failure can be played again
    return seed


@pytest.mark.parametrize("redis", ["alone", "watched", "spread"])
async def test_whatever_happens_the_history_is_sound(
    built: Houses, redis: Literal["alone", "watched", "spread"]
) -> None:
    seed = await _seeded()
    shape = Shape(SCRIPTS, SUBJECTS, hosts=3, redis=redis, off_s=OFF_S)
    async with built(shape) as house, looks.connected(house) as link:
        notes, owned, found = Notes(LOSSES[redis]), list[Owned](), [""]
        async with anyio.create_task_group() as watching:
            watching.start_soon(looks.watched, link, owned, REPLICAS[redis])
            await _harmed(house, notes, seed)
            found = await _settled(house, notes, owned, link)
            watching.cancel_scope.cancel()
        print(f"{len(notes.reads)} readings, {notes.moves} moves, {dict(sorted(notes.ends.items()))}")  # noqa: T201
        assert not found, "\n".join(found)
        assert await looks.strange_keys(link) == []


async def _harmed(house: House, notes: Notes, seed: int) -> None:
    """Let clients work while harm is done, and finish what they had begun."""
    over = anyio.Event()
    harm, began_s = Harm(house, seed, HARMED_S), time.monotonic()
    with anyio.fail_after(HARMED_S + ENDED_S + 30):
        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                subject, chance = SUBJECTS[number % len(SUBJECTS)], drawn(f"{seed} client {number}")
                tasks.start_soon(Working(house, notes, subject, chance).work, number, over)
            await harm.run()
            over.set()
    print(f"clients were done after {time.monotonic() - began_s:.1f} s and {dict(harm.done)}")  # noqa: T201


async def _settled(house: House, notes: Notes, owned: list[Owned], link: Link) -> list[str]:
    """Wait until nothing is wrong with the history, which must be soon; what is wrong then."""
    found = ["nothing was looked at"]
    with anyio.move_on_after(SETTLED_S):
        while found:
            try:
                found = history.faults(await _history(house, notes, owned, link))
            except looks.TROUBLE as error:
                found = [f"nothing could be looked at: {error}"]
            await anyio.sleep(looks.LOOK_S)
    return found


async def _history(house: House, notes: Notes, owned: list[Owned], link: Link) -> History:
    return History(
        kept=await looks.kept_in(link),
        reads=notes.reads,
        acknowledged=notes.acknowledged,
        effects=[*await looks.effects_in(house.calls), *notes.effects],
        owned=owned,
        outcomes=notes.outcomes,
        held=await looks.held_in(link),
        due=await looks.due_in(link),
        listed=await looks.listed_in(link),
        complaints=notes.complaints,
        may_lose=house.replaceable,
    )


@pytest.mark.parametrize(
    ("lease_ms", "outage_s", "streams", "scripts"),
    [
        pytest.param(3_000, 4.0, 20, TICKING, id="4s-of-3s"),
        pytest.param(10_000, 12.0, 50, LONG, id="12s-of-10s", marks=[SLOW, pytest.mark.slow]),
    ],
)
async def test_no_stream_ends_of_an_outage_longer_than_the_lease(
    built: Houses, lease_ms: int, outage_s: float, streams: int, scripts: dict[str, Any]
) -> None:
    async with built(Shape(scripts, SUBJECTS, hosts=2, lease_ms=lease_ms, off_s=OFF_S)) as house:
        runs: list[list[RunEvent]] = []
        begun = 0

        async def read(number: int) -> None:
            nonlocal begun
            user = User(house.host(number % 2), subject=SUBJECTS[number % 4])
            async with user, user.stream(asking_for("ticking")) as stream:
                events = await first(stream, 3)
                begun += 1
                runs.append(events + await rest(stream))

        async with anyio.create_task_group() as tasks:
            for number in range(streams):
                tasks.start_soon(read, number)
            await until(lambda: begun == streams)
            with house.servers.frozen():
                began_s = time.monotonic()
                await until(lambda: time.monotonic() > began_s + outage_s)
                assert runs == []
        for events in runs:
            assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "tick " * TICKS
            assert result_of(events[-1]).text == "tick " * TICKS


async def test_a_paused_host_writes_nothing_after_its_leases_were_taken_over(built: Houses) -> None:
    document = asking_for("ticking", resume={"graceMs": 60_000})
    async with built(Shape(TICKING | SCRIPTS, SUBJECTS, hosts=2, off_s=OFF_S)) as house, looks.connected(house) as link:

        async def begun(number: int) -> None:
            async with User(house.host(0), subject=SUBJECTS[number % 4]) as user, user.stream(document) as stream:
                await first(stream, 3)

        await gathered([partial(begun, number) for number in range(PAUSED)], PAUSED)
        house.host(0).signal(signal.SIGSTOP)
        try:
            after = await _kept_until(link, lambda kept: all(one.ended for one in kept))
        finally:
            house.host(0).signal(signal.SIGCONT)
        lost = [one.actor for one in after if one.of("run.failed")]
        assert len(lost) == len(after) == PAUSED
        async with User(house.host(0)) as user:
            assert (await user.stream(asking_for("say")).result()).text
        await _ready(house, 0)
        now = {one.actor: one for one in await looks.kept_in(link)}
        assert [now[one.actor] for one in after] == after


async def _kept_until(link: Link, true: Callable[[list[Kept]], bool]) -> list[Kept]:
    """Wait for what hosts bring about in Redis; what it holds then."""
    with anyio.fail_after(LEASE_MS / 1_000 * 2 + 10):
        while not true(kept := await looks.kept_in(link)):  # noqa: ASYNC110 - another process sets no event of ours
            await anyio.sleep(POLL_S)
    return kept


async def _ready(house: House, number: int) -> None:
    """Wait until a host has heard of its loss and takes work again."""
    status = 0
    with anyio.fail_after(10):
        while status != 200:
            status = (await fetch(house.host(number).target, "GET", "/ready")).status
            await anyio.sleep(POLL_S)
