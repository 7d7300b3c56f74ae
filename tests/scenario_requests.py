"""The requests of a scenario that are no streams, each to another node than the one before."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from anyio.abc import TaskGroup

from tests.api.asgi_client import Told, sent
from tests.host_rules import host_answer
from tests.scenario_asking import Asking
from tests.scenario_clock import patience, until
from tests.scenario_jobs import at_the_end, came_to, judge_pages
from tests.scenario_words import Config, Names, judge_body, judge_error
from tests.scenario_world import Node, World, bearer
from tests.strict_client import checked_response

_OPS = {
    "/v1/approvals/decisions": "approval-decision",
    "/v1/tool-executions/progress": "tool-progress",
    "/v1/tool-executions/results": "tool-result",
    "/v1/sessions/create": "session-create",
    "/v1/sessions/read": "session-read",
    "/v1/sessions/delete": "session-delete",
    "/v1/jobs/submit": "job-submit",
    "/v1/jobs/read": "job-read",
    "/v1/jobs/cancel": "job-cancel",
    "/v1/jobs/events": "job-events",
}


class Requests:
    """Sends them, and judges what is answered."""

    def __init__(self, names: Names, world: World, tasks: TaskGroup, node: Callable[[int], Node]) -> None:
        self.under_way: dict[str, Asking] = {}
        """Runs that nobody has waited for yet."""
        self._names = names
        self._world = world
        self._tasks = tasks
        self._node = node
        self._posts = count()
        self._turns = count()

    async def run(self, step: Config) -> None:
        asking = Asking(self._names.resolved(step["request"]))
        node = self._world.nodes[next(self._turns) % len(self._world.nodes)]
        self._tasks.start_soon(asking.carry, node.app, bearer(step["as"]))
        if step.get("background"):
            self.under_way[step["id"]] = asking
        else:
            await self._answered(step, asking)

    async def awaited(self, step: Config) -> None:
        with patience(step.get("withinMs", 5_000) / 1_000):
            await self._answered(step, self.under_way[step["id"]])

    async def _answered(self, step: Config, asking: Asking) -> None:
        told = await asking.told()
        if told.status == 200:
            checked_response("run", asking.request, told.status, told.headers, told.body)
        self._names.save(step.get("save", {}), self._judge_answer(step, told))

    async def post(self, step: Config) -> None:
        self._names.save(step.get("save", {}), self._judge_answer(step, await self._told(step)))

    async def _told(self, step: Config) -> Told:
        """The answer to one post, which a strict client has taken if it is one."""
        body = self._names.resolved(step.get("body"))
        text = self._names.written(step["rawBody"]) if "rawBody" in step else json.dumps(body).encode()
        told = await self._sent(self._node(1 + next(self._posts) % 2), step, "POST", step["path"], text)
        if told.status == 200:
            checked_response(_OPS[step["path"]], json.loads(text), told.status, told.headers, told.body)
        return told

    async def poll(self, step: Config) -> None:
        post, wanted = step["post"], step["until"]
        found: Any = {}

        async def holds() -> bool:
            nonlocal found
            found = self._judge_answer({"expect": {"status": 200}}, await self._told(post))
            return came_to(found, wanted)

        try:
            with patience(5):
                await until(holds)
        except TimeoutError:
            raise AssertionError(f"{found}, not {wanted}") from None
        self._names.save(step.get("save", {}), found)

    async def page_all(self, step: Config) -> None:
        pages: list[Told] = []
        while not pages or not at_the_end(pages[-1]):
            after = json.loads(pages[-1].body)["nextCursor"] if pages else 0
            body = {"id": step["id"], "after": after, "limit": step["limit"]}
            pages.append(await self._told({"as": step["as"], "path": "/v1/jobs/events", "body": body}))
        judge_pages(pages, step)

    async def get(self, step: Config) -> None:
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
            return answered
        assert told.status == expect["status"], answered
        judge_body(answered, expect)
        assert expect.get("bodyExcludes", "\0").encode() not in told.body
        return answered
