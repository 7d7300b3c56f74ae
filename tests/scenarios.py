"""Plays the protocol's scenarios, which are data, against hosts: what each step does, and what must then be so."""

import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from actors import run
from api import sse
from tests.api.asgi_client import Told, sent
from tests.api.asgi_stream import Streaming
from tests.host_rules import host_answer
from tests.scenario_words import Config, Names, fixture, judge_error, judge_events, merged
from tests.scenario_world import PATIENCE_S, Clock, Node, Opening, World, bearer, moved_by, patience
from tests.strict_client import checked_response

_FOLDER = Path(__file__).parent / "vectors"
_OPS = {
    "/v1/approvals/decisions": "approval-decision",
    "/v1/tool-executions/progress": "tool-progress",
    "/v1/tool-executions/results": "tool-result",
}


def suite(name: str) -> Config:
    """The vectors called *name*."""
    loaded: Config = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def moves_time(scenario: Config) -> bool:
    """Whether *scenario* puts the hosts' clock forward."""
    return '"advance"' in json.dumps(scenario)


async def play(vectors: Config, scenario: Config, nodes: int, redis: Opening | None = None) -> None:
    """Play *scenario* on so many nodes; raises AssertionError where a host does not do as it says.

    One that moves time is played on the memory store, any other on *redis* or its emulation.
    """
    names = Names(vectors["fixtures"])
    hosts, models = vectors["fixtures"]["hosts"], vectors["fixtures"]["models"]
    host = names.resolved(fixture(hosts, scenario["host"]))
    config = merged(host, scenario.get("override", {}))
    script = names.resolved(fixture(models, scenario["model"]))
    clock = Clock() if moves_time(scenario) else None
    with patience(PATIENCE_S), moved_by(clock):
        async with anyio.create_task_group() as tasks:
            world = World(config, script, nodes=nodes, clock=clock, redis=redis)
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
        self._posts = count()
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
        doing: Mapping[str, Callable[[Config], Any]] = {
            "stream": self._stream,
            "read": self._read,
            "run": self._run,
            "post": self._post,
            "get": self._get,
            "close": self._close,
            "advance": self._advance,
            "release": self._release,
            "restart": self._restart,
            "shutdown": self._shutdown,
            "repeat": self._repeat,
            "assert": self._assert,
        }
        await doing[step["do"]](step)

    # Runs.

    async def _stream(self, step: Config) -> None:
        self._owner = (self._owner + 1) % len(self._world.nodes) if self._streams else 0
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

    # Other requests.

    async def _run(self, step: Config) -> None:
        body = json.dumps(self._names.resolved(step["request"])).encode()
        told = await self._sent(self._world.nodes[self._owner], step, "POST", "/v1/runs", body)
        self._judge_answer(step, told)

    async def _post(self, step: Config) -> None:
        body = self._names.resolved(step.get("body"))
        text = self._names.written(step["rawBody"]) if "rawBody" in step else json.dumps(body).encode()
        told = await self._sent(self._node(1 + next(self._posts) % 2), step, "POST", step["path"], text)
        answered = self._judge_answer(step, told)
        if told.status == 200:
            checked_response(_OPS[step["path"]], json.loads(text), told.status, told.headers, told.body)
        self._names.save(step.get("save", {}), answered)

    async def _get(self, step: Config) -> None:
        told = await self._sent(self._node(1), step, "GET", step["path"], b"")
        features = self._judge_answer(step, told)["features"]
        assert set(step["expect"].get("featuresInclude", ())) <= set(features)
        assert not set(step["expect"].get("featuresExclude", ())) & set(features)

    async def _sent(self, node: Node, step: Config, method: str, path: str, body: bytes) -> Told:
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {bearer(step['as'])}".encode())]
        return await sent(node.app, method, path.encode(), headers, body)

    def _judge_answer(self, step: Config, told: Told) -> Any:
        answered = host_answer(told.status, told.headers, told.body)
        expect = self._names.resolved(step["expect"])
        if "code" in expect:
            judge_error(told.status, answered, expect)
        else:
            assert told.status == expect["status"], answered
            assert answered == answered | expect.get("body", {}), answered
        return answered

    # The world.

    async def _close(self, step: Config) -> None:
        stream = self._streams[step["id"]]
        with patience(step.get("withinMs", 2_000) / 1_000):
            if step.get("whileReading"):
                async with anyio.create_task_group() as reading:
                    reading.start_soon(stream.events, None)
                    await anyio.lowlevel.checkpoint()
                    stream.leave()
            stream.leave()
            await stream.over.wait()
            await self._until(lambda: self._ended(run_of(stream)))

    async def _ended(self, run_id: str) -> bool:
        state, _ = await self._node(1).host.state(run_id)
        return isinstance(state, run.Ended)

    async def _advance(self, step: Config) -> None:
        assert self._world.clock is not None
        self._world.clock.advance(step["ms"], timers=step.get("timers", True))
        for _ in range(100):  # what is due now gets its turns
            await anyio.lowlevel.checkpoint()

    async def _release(self, step: Config) -> None:
        self._world.model.gate(step["name"]).set()

    async def _restart(self, _: Config) -> None:
        await self._world.close()
        await self._world.open()

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
        if not step.get("eventually"):
            assert not (faults := await self._faults(step)), faults
            return

        async def holds() -> bool:
            return not await self._faults(step)

        with patience(self._scenario.get("withinMs", 5_000) / 1_000):
            await self._until(holds)

    async def _faults(self, step: Config) -> list[str]:
        """What *step* says of the hosts and is not so."""
        world, audit = self._world, await self._world.audit()
        kinds = [record["type"] for record in audit]
        found: dict[str, Any] = {
            "effects": world.effects,
            "effectCount": len(world.effects),
            "modelCalls": world.model.calls,
            "audit": {kind: kinds.count(kind) for kind in step.get("audit", ())},
            "lastAudit": kinds[-1] if kinds else None,
        }
        if "auditContains" in step:
            found["auditContains"] = next(
                (step["auditContains"] for one in map(_flat, audit) if one == one | step["auditContains"]), 0
            )
        if "pending" in step:
            found["pending"] = await world.pending()
        if "usageStatus" in step or "modelSignalAborted" in step:
            state, _ = await self._node(2).host.state(self._runs[-1])
            found["usageStatus"] = state.kind if isinstance(state, run.Ended) else "live"
            found["modelSignalAborted"] = found["usageStatus"] == "cancelled"
        if "noEventContains" in step:
            raw = b"".join(stream.raw for stream in self._streams.values())
            found["noEventContains"] = step["noEventContains"] if step["noEventContains"].encode() not in raw else raw
        told = {name: value for name, value in step.items() if name not in {"do", "eventually", "note"}}
        return [f"{name}: {found[name]}, not {value}" for name, value in told.items() if found[name] != value]

    # Nodes, and waiting.

    def _node(self, beside: int) -> Node:
        """The node that stands *beside* places after the one that serves the last stream."""
        return self._world.nodes[(self._owner + beside) % len(self._world.nodes)]

    def _judge(self, stream: Streaming) -> None:
        if not stream.over.is_set():
            stream.left = True
        stream.judge()

    async def _until(self, holds: Callable[[], Any]) -> None:
        while not await holds():
            await anyio.lowlevel.checkpoint()


def _flat(record: Config) -> dict[str, Any]:
    """An audit record with the members of its resolution beside its own, as scenarios name them."""
    return {**record, **record.get("resolution", {})}


def run_of(stream: Streaming) -> str:
    """The run that *stream* shows."""
    return str(stream.check.events[0]["runId"])
