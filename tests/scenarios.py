"""Plays the protocol's scenarios, which are data, against hosts: what each step does, and what must then be so."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from actors import run
from api import sse
from tests.api.asgi_stream import Streaming
from tests.scenario_asking import Asking
from tests.scenario_claims import Seen, faults, startup_errors
from tests.scenario_clock import until
from tests.scenario_requests import Requests
from tests.scenario_words import Config, Names, fixture, judge_error, judge_events, merged
from tests.scenario_world import PATIENCE_S, Clock, Node, Opening, World, bearer, moved_by, patience

_FOLDER = Path(__file__).parent / "vectors"
_IN_TIME = {"eventually", "store"}
_HOLDING: Config = {"scheduling": {"total": 1, "perSubject": 1, "queue": {"total": 8, "perSubject": 8}}}
"""Run slots of a scenario that keeps a run before its first model call: there is one, and it is taken."""


def suite(name: str) -> Config:
    """The vectors called *name*."""
    loaded: Config = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def moves_time(scenario: Config) -> bool:
    """Whether *scenario* puts the hosts' clock forward; a lease goes by a clock that nobody can move."""
    return any(step["do"] == "advance" and "lease" not in step.get("note", "") for step in _steps(scenario))


def _steps(scenario: Config) -> Iterator[Config]:
    for step in scenario["steps"]:
        yield step
        yield from _steps(step) if "steps" in step else ()


async def play(vectors: Config, scenario: Config, nodes: int, redis: Opening | None = None) -> None:
    """Play *scenario* on so many nodes; raises AssertionError where a host does not do as it says.

    One that moves time is played on the memory store, any other on *redis* or its emulation.
    """
    names = Names(vectors["fixtures"])
    hosts, models = vectors["fixtures"]["hosts"], vectors["fixtures"]["models"]
    held = any("holdBeforeModel" in step for step in _steps(scenario))
    host = merged(fixture(hosts, scenario["host"]), scenario.get("override", {}))
    config = merged(names.resolved(host), _HOLDING if held else {})
    if failing := [step for step in _steps(scenario) if "startupError" in step]:
        assert all(step["startupError"] in startup_errors(merged(config, step.get("with", {}))) for step in failing)
        return
    script = names.resolved(fixture(models, scenario["model"]))
    more: dict[str, Any] = {"by_input": scenario.get("modelByInput"), "by_tools": scenario.get("modelByTools")}
    more["survivor"] = any(step["do"] == "kill" for step in _steps(scenario))
    clock = Clock() if moves_time(scenario) else None
    with patience(PATIENCE_S), moved_by(clock):
        async with anyio.create_task_group() as tasks:
            world = World(config, script, nodes=nodes, clock=clock, redis=redis, **more)
            try:
                await world.open()
                await Play(scenario, names, world, tasks).play()
            finally:
                await world.close()
                tasks.cancel_scope.cancel()


class Play:
    """One scenario in progress."""

    def __init__(self, scenario: Config, names: Names, world: World, tasks: TaskGroup) -> None:
        self._scenario = scenario
        self._names = names
        self._world = world
        self._tasks = tasks
        self._streams: dict[str, Streaming] = {}
        self._owner = 0
        self._dead = False
        """Whether the hosts were killed, and only the one that stood by is left."""
        self._requests = Requests(names, world, tasks, self._node)
        self._runs: list[str] = []
        self._watched: dict[str, bytes] = {}
        self._owned: dict[str, Streaming] = {}

    async def play(self) -> None:
        """Do all steps, and judge what every client saw."""
        for step in self._scenario["steps"]:
            await self._step(step)
        for stream in self._streams.values():
            if stream.status == 200:
                self._judge(stream)
        if self._world.nodes:
            await self._watchers_saw_the_same()
        for stream in self._streams.values():
            stream.leave()
            await stream.over.wait()

    async def _step(self, step: Config) -> None:
        asking = self._requests
        doing: Mapping[str, Callable[[Config], Any]] = {
            "stream": self._stream,
            "read": self._read,
            "run": asking.run,
            "post": asking.post,
            "get": asking.get,
            "close": self._close,
            "advance": self._advance,
            "release": self._release,
            "restart": self._restart,
            "reconfigure": self._reconfigure,
            "kill": self._kill,
            "enqueue": self._enqueue,
            "poll": asking.poll,
            "pageAll": asking.page_all,
            "await": asking.awaited,
            "shutdown": self._shutdown,
            "repeat": self._repeat,
            "assert": self._assert,
        }
        await doing[step["do"]](step)

    # Runs.

    async def _stream(self, step: Config) -> None:
        self._owner = (self._owner + 1) % len(self._world.nodes) if self._streams else 0
        if step.get("holdBeforeModel"):
            await self._world.hold_slot("somebody")
        stream = self._streams[step["id"]] = Streaming(self._names.resolved(step["request"]))
        self._tasks.start_soon(stream.carry, self._world.nodes[self._owner].app, bearer(step["as"]))
        if "expectHttp" in step:
            await stream.over.wait()
            judge_error(stream.status, stream.refusal(), step["expectHttp"])
            return
        await self._watched_from_elsewhere(stream)
        await self._read(step)
        if "sameRunIdAs" in step:
            assert run_of(stream) == run_of(self._streams[step["sameRunIdAs"]])

    async def _read(self, step: Config) -> None:
        stream = self._streams[step["id"]]
        events = await stream.events(step.get("until"))
        forbidden = {*step.get("forbid", ()), *self._scenario.get("forbid", ())}
        judge_events(events, self._names.resolved(step["expect"]), set(step.get("allow", ())))
        assert not forbidden & {str(event["type"]) for event in events}
        self._names.save(step.get("save", {}), events[-1])

    async def _watched_from_elsewhere(self, stream: Streaming) -> None:
        """Follow the run of *stream* on another node, unless this is the replay of one that is watched."""
        while not stream.check.events and not stream.over.is_set():
            await anyio.lowlevel.checkpoint()
        run_id = run_of(stream)
        if run_id in self._watched:
            return
        self._runs.append(run_id)
        self._watched[run_id] = b""
        self._owned[run_id] = stream
        self._tasks.start_soon(self._watch, self._node(2).host, run_id)

    async def _watch(self, host: Any, run_id: str) -> None:
        async with aclosing(host.follow(run_id)) as batches:
            async for batch in batches:
                self._watched[run_id] += sse.frames(batch)

    async def _watchers_saw_the_same(self) -> None:
        for run_id, stream in self._owned.items():
            shown = stream.raw.replace(sse.HEARTBEAT, b"")
            while len(self._watched[run_id]) < len(shown):
                await anyio.lowlevel.checkpoint()
            assert self._watched[run_id].startswith(shown)
            assert stream.left or not stream.over.is_set() or self._watched[run_id] == shown

    # The world.

    async def _close(self, step: Config) -> None:
        left = self._streams.get(step["id"]) or self._requests.under_way[step["id"]]
        with patience(step.get("withinMs", 2_000) / 1_000):
            if step.get("whileReading") and isinstance(left, Streaming):
                async with anyio.create_task_group() as reading:
                    reading.start_soon(left.events, None)
                    await anyio.lowlevel.checkpoint()
                    left.leave()
            left.leave()
            await left.over.wait()
            await until(lambda: self._ended(left))
        await self._world.free_slots()

    async def _ended(self, left: Streaming | Asking) -> bool:
        """Whether the run that a client has left is over; one that nobody saw is, when nothing executes."""
        if isinstance(left, Asking):
            return not any(node.host.node.executing for node in self._world.nodes)
        state, _ = await self._node(1).host.state(run_of(left))
        return isinstance(state, run.Ended)

    async def _advance(self, step: Config) -> None:
        if self._world.clock is None:
            store = self._world.nodes[0].door
            then = store.now_ms() + step["ms"]
            while store.now_ms() < then:
                await anyio.lowlevel.checkpoint()
            return
        self._world.clock.advance(step["ms"], timers=step.get("timers", True))
        for _ in range(100):  # what is due now gets its turns
            await anyio.lowlevel.checkpoint()

    async def _release(self, step: Config) -> None:
        name = step.get("name") or step["gate"]
        if name == "held-admission":
            await self._world.free_slots()
        self._world.model.gate(name).set()

    async def _restart(self, step: Config) -> None:
        if self._dead:
            await self._world.go_on()
            return
        await self._world.again(self._names.resolved(step.get("override", {})))

    async def _reconfigure(self, step: Config) -> None:
        """Change what the hosts are told; what a credential allows changes while they work, all else needs others."""
        if "revokePrincipal" in step:
            self._world.known.revoke(step["revokePrincipal"])
        else:
            await self._restart(step)

    async def _kill(self, step: Config) -> None:
        """Let the hosts die; with *after*, as soon as one of them has stored an event of that type."""
        if "after" in step:
            for node in self._world.nodes:
                node.door.cut_after = f'"type":"{step["after"]}"'.encode()
            await self._step(step["step"])

            async def one_is_cut() -> bool:
                return any(node.door.cut for node in self._world.nodes)

            await until(one_is_cut)
        self._dead = True
        await self._world.kill()

    async def _enqueue(self, step: Config) -> None:
        self._world.bar()
        await self._step(step["step"])

    async def _shutdown(self, _: Config) -> None:
        for node in self._world.nodes:
            node.host.close()
        for stream in self._streams.values():
            await stream.over.wait()
        await self._world.close()

    async def _repeat(self, step: Config) -> None:
        for _ in range(step["times"]):
            for each in step["steps"]:
                await self._step(each)

    async def _assert(self, step: Config) -> None:
        if "setup" in step:
            await self._world.hold_slot("alice")
        raw = b"".join(stream.raw for stream in self._streams.values())
        seen = Seen(self._world, self._names, raw, self._runs)
        if not step.keys() & _IN_TIME:
            assert not (found := await faults(step, seen)), found
            return

        async def holds() -> bool:
            return not await faults(step, seen)

        try:
            with patience(self._scenario.get("withinMs", 5_000) / 1_000):
                await until(holds)
        except TimeoutError:
            raise AssertionError(await faults(step, seen)) from None

    # Nodes, and waiting.

    def _node(self, beside: int) -> Node:
        """The node that stands *beside* places after the one that serves the last stream."""
        return self._world.nodes[(self._owner + beside) % len(self._world.nodes)]

    def _judge(self, stream: Streaming) -> None:
        if not stream.over.is_set():
            stream.left = True
        stream.judge()


def run_of(stream: Streaming) -> str:
    """The run that *stream* shows."""
    return str(stream.check.events[0]["runId"])
