"""The host scenarios of the shared vectors, step by step, against a whole host whose model and tool do as each step says."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from msgspec import Raw
from typing_extensions import override

from actors.ports import ModelContext, ModelRequest, ToolContext, ToolDefinition, Turn
from api.grants import Policy
from eventstore.memory import MemoryStore
from eventstore.store import Unavailable
from tests.actors.reviewing import CountingTool, call
from tests.actors.support import FakeModel, new_memory, until
from tests.api.host import vectors
from tests.api.host.hosting import Desk, hosting, policy
from tests.host_client import Object, whole

pytestmark = pytest.mark.anyio

SCENARIOS = vectors.read("lifecycle")["hostScenarios"]
ANYTHING = Raw(b'{"type":"object"}')


class Failing:
    """A store that is down for a while."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if self.down and name in {"append", "look", "take", "give", "begun", "settle", "page", "enlist", "dispatch"}:
            raise Unavailable("down")
        return getattr(self._store, name)


class Writing(CountingTool):
    """The reviewed tool of the scenarios, whose output comes when the scenario says so."""

    def __init__(self) -> None:
        super().__init__("write", reviewed=True)
        self.definition = ToolDefinition("write", "Writes.", ANYTHING)
        self.gate = anyio.Event()

    @override
    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        await super().call(arguments, context)
        await self.gate.wait()
        return "ok"


class Play:
    """One scenario on a stage of its own."""

    def __init__(self) -> None:
        self.tool = Writing()
        self.model = FakeModel(self._answer)
        self.store: Any = Failing(MemoryStore(new_memory(), "n1"))
        self.real_ids: dict[str, str] = {}
        """Ids that the host made, by those of the vectors."""
        self._turns: asyncio.Queue[Turn] = asyncio.Queue()

    async def _answer(self, _: ModelRequest, __: ModelContext) -> Turn:
        return await self._turns.get()

    async def step(self, desk: Desk, step: Mapping[str, Any]) -> None:
        if "engine" in step:
            await self._engine(desk, step)
            return
        request = json.loads(self._real(json.dumps(step["request"])))
        who = writer(step["principal"])
        answer = await desk.raw(json.dumps(self._runnable(request)).encode(), who)
        told = whole(answer.body)
        expect = json.loads(self._real(json.dumps(step["expect"])))
        assert holds(told, expect), (step["request"], told)
        assert not any(word in answer.body.decode() for word in step.get("mustNotContain", ()))

    def _runnable(self, request: Object) -> Object:
        """The request, whose prompt also names the tool that the scenario's worker uses."""
        given = request["body"].get("input")
        if isinstance(given, dict) and "prompt" in given:
            request["body"]["input"] = given | {"tools": ["write"]}
        return request

    async def _engine(self, desk: Desk, step: Mapping[str, Any]) -> None:
        match step:
            case {"engine": "complete", "result": {"content": content}}:
                self._turns.put_nowait(Turn(text=content))
                await desk.until("run-1", lambda view: view["status"] == "completed")
            case {"engine": "suspend"}:
                self._turns.put_nowait(Turn(tool_calls=(call(step["toolName"], step["toolCallId"], b"{}"),)))
                view = await desk.waiting("run-1")
                self.real_ids[step["approvalId"]] = view["approval"]["approvalId"]
            case {"engine": "admitToolResult"}:
                self.tool.gate.set()
                await desk.until("run-1", lambda view: view["revision"] == 7)
            case {"engine": "timeOut"}:
                await desk.until("run-1", lambda view: view["status"] == "timed_out")
            case {"engine": "storeDown" | "storeUp" as engine}:
                self.store.down = engine == "storeDown"
            case _:
                raise AssertionError(step)

    def _real(self, text: str) -> str:
        for told, real in self.real_ids.items():
            text = text.replace(f'"{told}"', f'"{real}"')
        return text


def writer(subject: str) -> Policy:
    return policy(subject, tools=("write",), approve_tools=("write",))


def holds(value: Any, subset: Any) -> bool:
    match subset:
        case dict() if not subset:
            return bool(value == {})
        case dict():
            return isinstance(value, dict) and all(
                name in value and holds(value[name], subset[name]) for name in subset
            )
        case list():
            return len(value) == len(subset) and all(map(holds, value, subset))
        case _:
            return bool(value == subset)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
async def test_a_host_plays_every_scenario_of_the_vectors(scenario: Any) -> None:
    play = Play()
    async with hosting(play.model, play.store, play.tool) as desk:
        desk.who = writer("alice")
        for step in scenario["steps"]:
            await play.step(desk, step)
        assert desk.faults == []
        if scenario["id"] == "approve-resume-reclaim":
            assert len(play.tool.seen) == 1
            await until(lambda: not desk.host.node.executing)
