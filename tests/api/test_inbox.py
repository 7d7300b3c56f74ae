"""`POST /v1/approvals/list` over HTTP: shapes, the order of checks, and who sees what."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from actors.request import Features
from api import openapi
from api.grants import Policy
from eventstore.memory import MemoryStore
from tests.actors.reviewing import REVIEWED, CountingTool, anybody, begun, call, tooled, using
from tests.actors.support import new_memory, until_so
from tests.actors.test_inbox import asked
from tests.api.asgi_client import Told, sent
from tests.api.asking import JSON
from tests.api.test_run_events import Door
from tests.host_rules import host_answer

pytestmark = pytest.mark.anyio

LIST, DECIDE = b"/v1/approvals/list", b"/v1/approvals/decisions"
DECIDER = Policy(subject="ann", providers=("fake",), tools=("reviewed",), approve_tools=("reviewed",))
PAUSING = {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 60_000}


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Door]:
    tool = CountingTool("reviewed", reviewed=True)
    async with tooled(using(call("reviewed")), MemoryStore(new_memory(), "n1"), tool, **options) as host:
        door = Door(host)
        people = {
            "ann": DECIDER,
            "starter": replace(DECIDER, approve_tools=()),
            "elsewhere": replace(DECIDER, providers=("other",)),
            "bob": replace(DECIDER, subject="bob"),
        }
        door.people.presented = {
            name: replace(door.people.presented["ann"], policy=policy) for name, policy in people.items()
        }
        yield door


async def posted(door: Door, path: bytes, body: Any, who: str = "ann") -> Told:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = await sent(door.app, "POST", path, [JSON, (b"authorization", f"Bearer {who}".encode())], data)
    host_answer(told.status, told.headers, told.body)
    assert door.app.parts.faults.count == 0
    return told


async def listed(door: Door, who: str = "ann", **body: Any) -> Any:
    told = await posted(door, LIST, body, who)
    assert told.status == 200, told.body
    inbox = json.loads(told.body)
    jsonschema.Draft202012Validator(openapi.document()["components"]["schemas"]["Inbox"]).validate(inbox)
    return inbox


async def code(door: Door, body: Any, who: str = "ann") -> str:
    told = await posted(door, LIST, body, who)
    return "" if told.status == 200 else str(json.loads(told.body)["error"]["code"])


async def waits(door: Door) -> None:
    async def waiting() -> bool:
        return bool(await door.host.decisions.waiting(anybody(), 1))

    await until_so(waiting)


async def test_what_waits_is_told_as_its_event_tells_it_and_can_be_decided_by_that() -> None:
    async with opened() as door:
        run_id = await begun(door.host, REVIEWED, approvals=PAUSING)
        await waits(door)
        inbox = await listed(door)
        (waiting,) = inbox["approvals"]
        assert inbox["hasMore"] is False
        events = [json.loads(event) for event in await door.host.events(run_id)]
        (told,) = [event["approval"] for event in events if event["type"] == "approval.requested"]
        assert waiting == told | {"provider": "fake"}
        assert set(waiting) == {
            "approvalId",
            "runId",
            "provider",
            "call",
            "requestedAt",
            "idlePolicy",
            "expiresAt",
        }
        for who in ("starter", "elsewhere", "bob"):
            assert (await listed(door, who)) == {"approvals": [], "hasMore": False}
        decision = {name: waiting[name] for name in ("approvalId", "runId", "call")} | {"decision": "approve"}
        assert (await posted(door, DECIDE, decision)).status == 200
        assert await listed(door) == {"approvals": [], "hasMore": False}


async def test_a_question_without_a_limit_in_time_has_no_expiry() -> None:
    async with opened() as door:
        await begun(door.host, REVIEWED)
        await waits(door)
        ((waiting,), _) = (await listed(door)).values()
        assert "expiresAt" not in waiting
        assert waiting["idlePolicy"] == "continue"


async def test_a_limit_bounds_the_list_and_more_is_told() -> None:
    async with opened() as door:
        ids = [await asked(door.host.store, "ann", at_ms) for at_ms in range(103)]
        for limit, most in ((1, 1), (3, 3), (100, 100), (None, 100)):
            inbox = await (listed(door) if limit is None else listed(door, limit=limit))
            assert [one["approvalId"] for one in inbox["approvals"]] == ids[:most]
            assert inbox["hasMore"] is True


async def test_a_list_is_never_larger_than_clients_read() -> None:
    async with opened() as door:
        large = b'{"n":"' + b"x" * 120_000 + b'"}'
        for at_ms in range(20):
            await asked(door.host.store, "ann", at_ms, arguments=large)
        told = await posted(door, LIST, {})
        inbox = json.loads(told.body)
        assert 10 < len(inbox["approvals"]) < 20
        assert inbox["hasMore"] is True
        assert len(told.body) < 1_600_000


@pytest.mark.parametrize("count", [2, 3])
async def test_more_is_told_only_where_there_is_more_for_this_caller(count: int) -> None:
    async with opened() as door:
        for at_ms in range(count):
            await asked(door.host.store, "ann", at_ms)
            await asked(door.host.store, "ann", at_ms, name="other")
            await asked(door.host.store, "bob", at_ms)
        assert (await listed(door, limit=2))["hasMore"] == (count == 3)
        assert (await listed(door, limit=count))["hasMore"] is False


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": 101},
        {"limit": 1.5},
        {"limit": True},
        {"limit": "1"},
        {"limit": None},
        {"after": 1},
        [],
        None,
        b"",
        b"{",
        b'{"limit":1,"limit":2}',
    ],
)
async def test_anything_else_is_refused(body: Any) -> None:
    async with opened() as door:
        assert await code(door, body) == "INVALID_REQUEST"


async def test_a_host_without_approvals_has_no_inbox() -> None:
    async with opened(features=Features()) as door:
        for body in ({}, {"limit": 0}):
            assert await code(door, body) == "APPROVAL_UNAVAILABLE"
        assert await code(door, b"{") == "INVALID_REQUEST"


async def test_the_checks_of_every_route_come_first() -> None:
    async with opened() as door:
        assert await code(door, {}, "nobody") == "UNAUTHORIZED"
        told = await sent(door.app, "GET", LIST, [(b"authorization", b"Bearer ann")])
        assert told.status == 404
        told = await sent(door.app, "POST", LIST, [(b"authorization", b"Bearer ann")], b"{}")
        assert told.status == 400
        door.host.close()
        assert await code(door, {}) == "HOST_SHUTTING_DOWN"
