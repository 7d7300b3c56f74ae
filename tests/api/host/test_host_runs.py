"""Host runs from their creation to their end, on any node, beside the wire: one run, two protocols."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from typing_extensions import override

from actors import codec, ids
from actors.decisions import Caller
from actors.events import RunClaimed
from actors.host_key import KEPT_MS
from actors.host_runs import Limits
from actors.jobs import Limits as JobLimits
from actors.node import NodeSettings
from actors.ports import ModelContext, ModelRequest, ToolMessage, Turn
from api.grants import Principal, host_access
from api.host.reading import Gone, Reading, Seen
from api.host.service import HostService
from eventstore.memory import Memory, MemoryStore
from eventstore.store import HistoryLost
from projections import wire_feed
from tests.actors.reviewing import ALL_FEATURES, CountingTool, call, open_companion
from tests.actors.support import Clock, FakeModel, asking, new_memory, saying, stalling, until, until_so
from tests.actors.working import anything, code_of
from tests.api.host import vectors
from tests.api.host.hosting import BRISK, Desk, creating, gathered, hosting, policy, rounds
from tests.host_client import Object, envelope

pytestmark = pytest.mark.anyio

RECORDED = {case["id"]: case for case in vectors.read("lifecycle")["recordedRuns"]}
NOT_SHOWN = {
    "stored-run-documents": "no document of a run is stored here, only its events (`tests/actors/test_golden.py`)",
    "runner-stop-requested": "a node that is told to stop hands a Host run over instead of ending it",
    "runner-projection-failure": "a tool's output is shown to the model whole, so projecting it cannot fail",
    "store-reopen": "a killed host is opened again on what it stored (`tests/system/test_host_protocol.py`)",
}
"""Runs recorded on the reference that have no counterpart among these tests, and why."""
FAST = NodeSettings(lease_ms=120, routine_ms=10, permit_begin_ms=5_000, reassured_s=0.05, drain_s=0.01)


def reviewed(*, idempotent: bool = False) -> CountingTool:
    return CountingTool("reviewed", reviewed=True, idempotent=idempotent)


def plan(name: str = "run-1", *more: str, **members: Any) -> Object:
    return creating(name, input={"prompt": name, "tools": ["reviewed", *more]}, **members)


def recorded(case: str) -> list[str]:
    """The event types of a recorded run, but for audits of projections: here a model is shown the whole output."""
    return [name for name in RECORDED[case]["eventTypes"] if name != "tool_output_projection_recorded"]


@asynccontextmanager
async def two_nodes(model: FakeModel, memory: Memory, *tools: CountingTool, **options: Any) -> AsyncIterator[Any]:
    async with (
        hosting(model, MemoryStore(memory, "n1"), *tools, **options) as one,
        hosting(model, MemoryStore(memory, "n2"), *tools, **options) as two,
    ):
        yield one, two


def actor_of(memory: Memory, name: str, subject: str = "ann") -> str:
    return ids.run_of_host(memory.deployment.id_key, subject, name)


async def test_a_plain_run_is_the_recorded_one() -> None:
    async with hosting(saying("done"), MemoryStore(new_memory(), "n1")) as desk:
        await desk.create("run-1")
        view = await desk.ended("run-1")
        assert await desk.types("run-1") == recorded("runner-plain")
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        more = {"cached_prompt_tokens": 0, "reasoning_tokens": 0}
        assert view["result"] == {
            "content": "done",
            "stop_reason": "stop",
            "metadata": {"run_id": "run-1"},
            "usage": usage | more,
            "cost": None,
        }
        assert (view["error"], view["completedAtUnixMs"]) == ("", view["updatedAtUnixMs"])
        assert view["context"]["traceId"].startswith("trace-")


async def test_two_protected_calls_of_a_batch_are_both_reviewed_before_either_runs() -> None:
    tool, model = reviewed(), rounds([call("reviewed", "c1"), call("reviewed", "c2")])
    async with two_nodes(model, new_memory(), tool) as (one, two):
        await one.done("create_run", plan())
        await two.approved("run-1")
        assert tool.seen == []
        first = await one.waiting("run-1")
        assert first["approval"]["toolCallId"] == "c2"
        await one.approved("run-1")
        assert (await two.ended("run-1"))["status"] == "completed"
        assert [seen[1] for seen in tool.seen] == ["c1", "c2"]
        assert await one.types("run-1") == recorded("runner-batch-approvals")


async def test_calls_that_need_no_review_wait_for_those_that_do() -> None:
    tool, free = reviewed(), CountingTool("host")
    model = rounds([call("host", "c1"), call("reviewed", "c2")])
    async with hosting(model, MemoryStore(new_memory(), "n1"), tool, free) as desk:
        await desk.done("create_run", plan("run-1", "host"))
        view = await desk.waiting("run-1")
        assert (view["approval"]["toolCallId"], free.seen) == ("c2", [])
        await desk.approved("run-1")
        await desk.ended("run-1")
        assert [event["toolCallId"] for event in await desk.events("run-1")][-3:] == ["c1", "c2", ""]


async def test_a_policy_that_refuses_a_call_ends_the_run_as_recorded() -> None:
    async def refusing(*_: object) -> bool:
        return False

    model = rounds([call("reviewed")])
    async with hosting(model, MemoryStore(new_memory(), "n1"), reviewed(), policy=refusing) as desk:
        await desk.done("create_run", plan())
        view, case = await desk.ended("run-1"), RECORDED["runner-approval-service-denies"]
        assert await desk.types("run-1") == recorded("runner-approval-service-denies")
        assert (view["error"], view["result"]["stop_reason"]) == (case["error"], case["resultStopReason"])


async def test_a_deadline_that_has_passed_ends_the_run_as_recorded_even_if_it_could_not_run_at_all() -> None:
    case = RECORDED["runner-deadline"]
    async with hosting(saying("no"), MemoryStore(new_memory(), "n1")) as desk:
        for name, given in (("run-1", {"prompt": "x"}), ("run-2", 7)):
            await desk.done("create_run", creating(name, context={"deadlineUnixMs": 5}, input=given))
            view = await desk.ended(name)
            assert await desk.types(name) == case["eventTypes"]
            assert (view["error"], view["result"]["stop_reason"]) == (case["error"], case["resultStopReason"])


@pytest.mark.parametrize(
    "given", [None, "hi", [1], {}, {"prompt": 3}, {"prompt": "x", "provider": "nobody"}, {"prompt": "x", "extra": 1},
              {"prompt": "x", "session": {"id": "1", "revision": 0}}, {"prompt": "x", "idempotencyKey": "k"}]
)  # fmt: skip
async def test_an_input_that_is_no_request_is_accepted_and_ends_the_run_when_it_is_taken_up(given: Any) -> None:
    model = saying("no")
    async with hosting(model, MemoryStore(new_memory(), "n1")) as desk:
        told = await desk.done("create_run", creating("run-1", input=given))
        assert told == {"runId": "run-1", "revision": 2, "status": "running"}
        view = await desk.ended("run-1")
        assert (view["status"], model.calls) == ("failed", 0)
        assert await desk.types("run-1") == ["run_created", "run_started", "run_failed"]


async def test_a_whole_run_request_is_run_as_it_says() -> None:
    async with hosting(saying('{"a":1}'), MemoryStore(new_memory(), "n1")) as desk:
        asked = asking(outputSchema={"type": "object"}, instructions="Be brief.")
        await desk.done("create_run", creating("run-1", input=asked))
        assert (await desk.ended("run-1"))["result"]["output"] == {"a": 1}


async def test_a_provider_that_fails_is_told_in_a_few_words() -> None:
    from actors.errors import Failed  # noqa: PLC0415

    async def fails(_: ModelRequest, __: ModelContext) -> Turn:
        raise Failed("RATE_LIMITED", "Slow down.", retryable=True)

    async with hosting(FakeModel(fails), MemoryStore(new_memory(), "n1")) as desk:
        await desk.create("run-1")
        view = await desk.ended("run-1")
        assert (view["status"], view["error"]) == ("failed", RECORDED["runner-model-error"]["error"])
        assert view["result"]["metadata"] == {"run_id": "run-1", "wire_code": "RATE_LIMITED"}


async def test_a_result_sums_what_every_model_call_used() -> None:
    about = RECORDED["runner-accounting"]["about"]
    names = ("inputTokens", "outputTokens", "cachedInputTokens", "reasoningTokens")
    used: list[dict[str, Any]] = [dict(zip(names, each, strict=True)) for each in ((12, 4, 3, 0), (4, 2, 0, 1))]
    for one in used:
        one["costUsd"] = 0.25

    async def counts(request: ModelRequest, _: ModelContext) -> Turn:
        is_last = any(isinstance(message, ToolMessage) for message in request.messages)
        return Turn(text="done", usage=used[1]) if is_last else Turn(tool_calls=(call("host"),), usage=used[0])

    async with hosting(FakeModel(counts), MemoryStore(new_memory(), "n1"), CountingTool("host")) as desk:
        await desk.create("run-1", input={"prompt": "x", "tools": ["host"]})
        result = (await desk.ended("run-1"))["result"]
    told = result["usage"]
    words = ("prompt", "completion", "total", "cached_prompt", "reasoning")
    shown = ", ".join(f"{told[f'{word}_tokens']} {word.removesuffix('_prompt')}" for word in words)
    assert shown in about
    assert result["cost"]["total_usd"] == 0.5


def test_each_run_that_was_recorded_is_shown_or_cannot_be() -> None:
    shown = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in RECORDED if f'"{name}"' not in shown} == set()
    assert RECORDED.keys() >= NOT_SHOWN.keys()


async def test_of_many_at_one_revision_on_two_nodes_exactly_one_is_applied() -> None:
    async with two_nodes(stalling("a"), new_memory()) as (one, two):
        await one.create("run-1")
        body = {"runId": "run-1", "expectedRevision": 2}
        codes = await gathered(
            *[desk.code("cancel_run", body, f"k{at}{desk is one}") for at in range(8) for desk in (one, two)]
        )
        assert sorted(set(codes)) == ["", "conflict"]
        assert codes.count("") == 1


async def test_twins_of_one_key_on_two_nodes_are_one_run_and_one_answer() -> None:
    memory = new_memory()
    async with two_nodes(stalling("a"), memory) as (one, two):
        told = await gathered(*[desk.asked("create_run", creating("run-1"), "k") for desk in (one, two) * 6])
        assert {json.dumps(answer["body"]) for answer in told} == {
            json.dumps({"runId": "run-1", "revision": 2, "status": "running"})
        }
        assert await one.types("run-1") == ["run_created", "run_started"]


async def test_text_that_streams_between_a_look_and_a_cancel_does_not_move_the_revision() -> None:
    async with hosting(stalling(*"abcdef"), MemoryStore(new_memory(), "n1")) as desk:
        await desk.create("run-1")
        view = await desk.view("run-1")
        actor = actor_of(desk.host.store._memory, "run-1")  # type: ignore[attr-defined]
        await until_so(lambda: _streams(desk, actor))
        told = await desk.done("cancel_run", {"runId": "run-1", "expectedRevision": view["revision"], "reason": ""})
        assert told["revision"] == 3
        assert (await desk.view("run-1"))["error"] == ""


async def _streams(desk: Desk, actor: str) -> bool:
    return b"text.delta" in b"".join(await desk.host.events(actor))


async def test_a_waiting_run_times_out_at_its_deadline_whoever_looks() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with hosting(rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed(), node=FAST) as desk:
        await desk.done("create_run", plan(context={"deadlineUnixMs": clock() + 60_000}))
        view = await desk.waiting("run-1")
        clock.ahead_ms += 60_001
        ended = await desk.ended("run-1")
        assert (ended["status"], ended["error"], ended["approval"]) == ("timed_out", "Timeout", None)
        late = {"runId": "run-1", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        told = await desk.asked("resolve_approval", late | {"resolution": "approved"}, "late")
        assert told["error"]["details"] == {"revision": 4, "status": "timed_out"}


async def test_a_decision_after_the_deadline_writes_the_end_and_is_refused() -> None:
    clock = Clock()
    slow = replace(FAST, routine_ms=60_000)
    async with hosting(rounds([call("reviewed")]), MemoryStore(new_memory(clock), "n1"), reviewed(), node=slow) as desk:
        await desk.done("create_run", plan(context={"deadlineUnixMs": clock() + 60_000}))
        view = await desk.waiting("run-1")
        clock.ahead_ms += 60_001
        body = {"runId": "run-1", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        assert await desk.code("resolve_approval", body | {"resolution": "approved"}) == "conflict"
        assert (await desk.types("run-1"))[-1] == "run_timed_out"


async def test_a_waiting_run_survives_its_node_and_is_resumed_on_another() -> None:
    memory, tool, model = new_memory(), reviewed(), rounds([call("reviewed")])
    async with hosting(model, MemoryStore(memory, "n1"), tool) as desk:
        await desk.done("create_run", plan())
        await desk.resolve(await desk.waiting("run-1"), reason="fine", metadata={"desk": "7", "apiKey": "s"})
    async with hosting(model, MemoryStore(memory, "n2"), tool) as desk:
        view = await desk.view("run-1")
        assert (view["approval"]["reason"], view["approval"]["metadata"]) == ("fine", {"desk": "7"})
        await desk.resume(view)
        assert (await desk.ended("run-1"))["status"] == "completed"
        assert len(tool.seen) == 1


async def test_a_claim_whose_node_is_lost_is_taken_over_when_it_is_claimed_again() -> None:
    clock = Clock()
    memory, tool = new_memory(clock), reviewed(idempotent=True)
    gate = anyio.Event()

    class Slow(CountingTool):
        @override
        async def call(self, arguments: Any, context: Any) -> object:
            await tool.call(arguments, context)
            await gate.wait()
            return "ok"

    slow = Slow("reviewed", reviewed=True, idempotent=True)
    model = rounds([call("reviewed")])
    async with hosting(model, MemoryStore(memory, "n2"), tool, node=replace(FAST, routine_ms=20)) as two:
        async with anyio.create_task_group() as tasks:

            async def lost() -> None:
                async with hosting(model, MemoryStore(memory, "n1"), slow, node=FAST) as one:
                    await one.done("create_run", plan())
                    await one.approved("run-1")
                    await until(lambda: len(tool.seen) == 1)
                    held.set()
                    await anyio.sleep_forever()

            held = anyio.Event()
            two.host.node.closing.set()  # it takes nothing up by itself yet
            tasks.start_soon(lost)
            await held.wait()
            tasks.cancel_scope.cancel()
        two.host.node.closing = anyio.Event()
        clock.ahead_ms += 60_000
        view = await two.view("run-1")
        told = await two.resume(view)
        assert (told["revision"], told["status"]) == (view["revision"] + 1, "running")
        assert (await two.ended("run-1"))["status"] == "completed"
        types = await two.types("run-1")
        assert types[:6] == recorded("runner-suspend-resume")[:6]
        assert types[-2:] == ["tool_result_admitted", "run_completed"]
        assert [seen[:2] for seen in tool.seen] == [(actor_of(memory, "run-1"), "c1")] * 2


async def test_a_run_of_a_node_that_drains_goes_on_elsewhere() -> None:
    memory, model = new_memory(), saying("done")
    async with hosting(model, MemoryStore(memory, "n1"), held=True) as one:
        await one.create("run-1")
        assert (await one.view("run-1"))["status"] == "running"
    async with hosting(model, MemoryStore(memory, "n2"), node=FAST) as two:
        assert (await two.ended("run-1"))["status"] == "completed"


async def test_an_external_audit_has_the_record_of_an_answer_before_it_holds() -> None:
    kept: list[Any] = []
    refuses = False

    async def sink(record: Any) -> None:
        if refuses:
            raise OSError("full")
        kept.append(record)

    model = rounds([call("reviewed", "c1")])
    async with hosting(model, MemoryStore(new_memory(), "n1"), reviewed(), audit=sink) as desk:
        await desk.done("create_run", plan("run-1"))
        await desk.approved("run-1")
        await desk.ended("run-1")
        assert [record["type"] for record in kept] == ["approval.requested", "approval.resolved"]
        assert kept[0]["approval"]["call"]["id"] == "c1"
        await desk.done("create_run", plan("run-2"))
        view = await desk.waiting("run-2")
        refuses = True
        body = {"runId": "run-2", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        told = await desk.asked("resolve_approval", body | {"resolution": "approved"}, "k")
        assert (told["error"]["code"], told["error"]["details"]) == (
            "unavailable",
            {"wireCode": "APPROVAL_AUDIT_FAILED"},
        )
        assert (await desk.ended("run-2"))["status"] == "failed"


# Beside the wire.


async def test_a_host_run_is_read_paged_and_cancelled_as_a_job_under_its_id() -> None:
    memory = new_memory()
    async with two_nodes(stalling("a"), memory, jobs=JobLimits(retention_ms=60_000)) as (one, two):
        await one.create("run-1")
        actor, jobs = actor_of(memory, "run-1"), two.host.jobs
        assert (await jobs.read("ann", actor, anything)).state == "running"
        assert await code_of(jobs.read("bo", actor, anything)) == "JOB_NOT_FOUND"
        page = await jobs.page("ann", actor, anything, 0)
        assert wire_feed.event_type(page.items[0].data) == b"run.started"
        assert (await jobs.cancel("ann", actor, anything)).state == "cancelled"
        view = await one.view("run-1")
        assert (view["status"], view["revision"], view["error"]) == ("cancelled", 3, "agent run cancelled")


async def test_what_a_host_run_waits_for_is_decided_through_the_host_alone() -> None:
    memory = new_memory()
    async with hosting(
        rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed(), features=ALL_FEATURES
    ) as desk:
        await desk.done("create_run", plan())
        view = await desk.waiting("run-1")
        caller = Caller("ann", lambda _provider, _tool: True, lambda _provider, _tool: True)
        assert list(await desk.host.decisions.waiting(caller, 10)) == []
        approval_id, actor = view["approval"]["approvalId"], actor_of(memory, "run-1")
        asked = {"id": "c1", "name": "reviewed", "arguments": {"n": 1}}
        decided = desk.host.decisions.decide(caller, approval_id, actor, asked, "approve")
        assert await code_of(decided) == "APPROVAL_NOT_FOUND"
        assert (await desk.view("run-1"))["revision"] == 3


async def test_a_foreground_run_is_seen_decided_about_and_ended_through_the_host() -> None:
    memory, tool = new_memory(), reviewed()
    model = rounds([call("reviewed")])
    async with two_nodes(model, memory, tool, features=ALL_FEATURES) as (one, two):
        wanted = asking(tools=["reviewed"], approvals={"mode": "interactive", "idlePolicy": "pause"})
        async with one.host.attend(wanted | {"metadata": {"team": "a", "apiKey": "s"}}, subject="ann") as attended:
            name = attended.run_id
            view = await two.waiting(name)
            assert (view["runId"], view["metadata"]) == (name, {"team": "a"})
            assert view["approval"]["approvalId"] == open_companion(memory, "approval")
            early = {"runId": name, "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
            assert await two.code("resume_run", early) == "conflict"
            told = await two.resolve(view)
            assert (told["revision"], told["status"]) == (5, "running")
            events = [wire_feed.event_type(item.data) async for batch in attended.items() for item in batch]
        assert events.count(b"approval.resolved") == 1
        assert events[-1] == b"run.completed"
        kinds = ["approval_required", "approval_granted", "run_resumed", "tool_result_admitted", "run_completed"]
        assert (await two.types(name))[2:] == kinds
        assert await two.code("cancel_run", {"runId": name, "expectedRevision": 7}) == "conflict"


async def test_a_run_is_another_subjects_to_nobody_through_either_protocol() -> None:
    memory = new_memory()
    async with hosting(stalling("a"), MemoryStore(memory, "n1"), jobs=JobLimits(retention_ms=60_000)) as desk:
        await desk.create("run-1")
        actor, bo = actor_of(memory, "run-1"), policy("bo")
        for name in ("run-1", actor):
            assert await desk.code("get_run", {"runId": name}, who=bo) == "not_found"
            assert await desk.code("list_events", {"runId": name}, who=bo) == "not_found"
            assert await desk.code("cancel_run", {"runId": name, "expectedRevision": 2}, who=bo) == "not_found"
        assert await desk.code("get_run", {"runId": actor}) == "not_found"  # a Host run has its name alone


async def test_a_run_may_not_be_created_under_the_id_of_one_that_its_subject_sees() -> None:
    async with (
        hosting(stalling("a"), MemoryStore(new_memory(), "n1")) as desk,
        desk.host.attend(asking(), subject="ann") as attended,
    ):
        name = attended.run_id
        assert await desk.code("create_run", creating(name)) == "conflict"
        assert await desk.code("create_run", creating(name), who=policy("bo")) == ""
        assert (await desk.view(name, policy("bo")))["context"]["traceId"]
        told = await desk.done("cancel_run", {"runId": name, "expectedRevision": 2, "reason": "so"})
        assert told == {"runId": name, "revision": 3, "status": "cancelled"}


@pytest.mark.parametrize(
    ("members", "operation"),
    [
        ({"jobs": ()}, "create_run"),
        ({"providers": ()}, "create_run"),
        ({"tools": ()}, "create_run"),
        ({"providers": ()}, "get_run"),
        ({"tools": ()}, "list_events"),
        ({"providers": ()}, "cancel_run"),
        ({"approve_tools": ()}, "resolve_approval"),
        ({"tools": ()}, "resume_run"),
    ],
)
async def test_whoever_lacks_a_grant_is_forbidden_and_leaves_no_key_behind(members: Any, operation: str) -> None:
    memory = new_memory()
    async with hosting(rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed()) as desk:
        await desk.done("create_run", plan())
        view = await desk.waiting("run-1")
        named = {"runId": "run-1", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        body = plan("run-2") if operation == "create_run" else named | {"resolution": "approved"}
        before = len(memory.actors)
        assert await desk.code(operation, body, "k", policy(**members)) == "forbidden"
        assert len(memory.actors) <= before + 2  # looking leaves at most empty heads in a memory
        assert (await desk.view("run-1"))["revision"] == 3


async def test_a_credential_that_lost_its_grant_keeps_a_run_from_being_taken_up() -> None:
    from actors.errors import Problem  # noqa: PLC0415

    lost = Problem("FORBIDDEN", "No.")
    async with hosting(saying("no"), MemoryStore(new_memory(), "n1"), authority=lambda _: lost) as desk:
        await desk.create("run-1")
        view = await desk.ended("run-1")
        assert (view["status"], view["result"]["metadata"]["wire_code"]) == ("failed", "FORBIDDEN")


# Bounds, and what is kept.


async def test_no_more_runs_and_keys_are_kept_than_the_host_allows() -> None:
    limits = Limits(max_runs=2, max_keys=3)
    async with hosting(stalling("a"), MemoryStore(new_memory(), "n1"), host=limits) as desk:
        assert [await desk.code("create_run", creating(f"r{at}")) for at in range(4)] == [
            "",
            "",
            "unavailable",
            "unavailable",
        ]


async def test_a_run_and_its_keys_are_forgotten_in_their_time_and_never_begun_again() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with hosting(saying("done"), MemoryStore(memory, "n1"), node=FAST, run_kept_ms=1_000) as desk:
        await desk.asked("create_run", creating("run-1"), "k")
        await desk.ended("run-1")
        clock.ahead_ms += 1_001
        await until(lambda: memory.actors[actor_of(memory, "run-1")].heads.erased)
        assert await desk.code("get_run", {"runId": "run-1"}) == "not_found"
        assert (await desk.asked("create_run", creating("run-1"), "k"))["ok"]  # as its key was told at first
        assert await desk.code("create_run", creating("run-1"), "k2") == "conflict"
        key = ids.host_key(memory.deployment.id_key, "ann", "create_run", "k")
        clock.ahead_ms += KEPT_MS
        await until(lambda: memory.actors[key].heads.erased)
        assert await desk.code("create_run", creating("run-1"), "k") == "conflict"
        assert (await memory.ledger.counted("host-runs")).held == 0


async def test_a_follower_sees_a_run_grow_and_end_on_another_node_and_goes_on_from_any_event() -> None:
    memory, model = new_memory(), rounds([call("reviewed")])
    async with two_nodes(model, memory, reviewed()) as (one, two):
        await one.done("create_run", plan())
        parts = two.host.agent_host
        seen = await HostService(parts, host_access(None, Principal("", policy()))).visible("run-1")
        assert isinstance(seen, Seen)
        told: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def follow() -> None:
                async with aclosing(parts.reading.follow(seen, 0, 0.2)) as batches:
                    async for batch in batches:
                        told.extend(event.type for event in batch)

            tasks.start_soon(follow)
            await until(lambda: "approval_required" in told)
            await one.resolve(await one.view("run-1"))
            await until(lambda: told[-1] == "approval_granted")
            await one.resume(await one.view("run-1"))
        assert told == await one.types("run-1")
        async with aclosing(parts.reading.follow(seen, 4, 0.2)) as batches:
            rest = [event.sequence async for batch in batches for event in batch]
        assert rest == list(range(5, len(told) + 1))


async def test_a_follower_of_a_run_that_is_erased_is_told_so() -> None:
    clock = Clock()
    memory = new_memory(clock)
    async with hosting(saying("done"), MemoryStore(memory, "n1"), node=FAST, run_kept_ms=1_000) as desk:
        await desk.create("run-1")
        await desk.ended("run-1")
        assert desk.host.agent_host is not None
        reading = desk.host.agent_host.reading
        seen = await reading.found("ann", "run-1")
        assert seen is not None
        clock.ahead_ms += 1_001
        await until(lambda: memory.actors[seen.actor].heads.erased)
        with pytest.raises(Gone):
            async with aclosing(reading.follow(seen, 0, 0.2)) as batches:
                await anext(batches)


class Restored(MemoryStore):
    """A store that may be put back to an older state."""

    histories = 0

    @override
    def history(self) -> str:
        return str(self.histories)


async def test_a_follower_goes_on_with_another_history_only_if_it_has_what_was_shown() -> None:
    memory = new_memory()
    store = Restored(memory, "n2")
    async with hosting(rounds([call("reviewed")]), MemoryStore(memory, "n1"), reviewed()) as desk:
        await desk.done("create_run", plan())
        await desk.waiting("run-1")
        reading = Reading(store)
        seen = await reading.found("ann", "run-1")
        assert seen is not None
        async with aclosing(reading.follow(seen, 0, 0.01)) as batches:
            shown = await anext(batches)
            store.histories += 1
            assert [await anext(batches) for _ in range(3)] == [(), (), ()]
            last = memory.actors[seen.actor].log[memory.actors[seen.actor].heads.log]
            event = replace(codec.decode_run(last.data), at_ms=1)
            memory.actors[seen.actor].log[last.version] = last._replace(data=codec.encode(event))
            store.histories += 1
            with pytest.raises(HistoryLost):
                _ = [batch async for batch in batches]
        again = await reading.found("ann", "run-1")
        assert again is not None
        assert (again.feed.sequence, again.feed.updated_ms) == (shown[-1].sequence, 1)


async def test_a_run_is_claimed_before_it_is_executed_and_only_once() -> None:
    memory = new_memory()
    async with two_nodes(saying("done"), memory) as (one, two):
        await gathered(*[desk.create(f"r{at}{desk is one}") for at in range(5) for desk in (one, two)])
        for at in range(5):
            for first in (True, False):
                await one.ended(f"r{at}{first}")
                log = await one.host.log(actor_of(memory, f"r{at}{first}"))
                assert [isinstance(entry.event, RunClaimed) for entry in log].count(True) == 1


@pytest.mark.parametrize("resolution", ["approved", "denied"])
async def test_what_waits_is_decided_through_any_node_though_another_took_it_over_just_now(resolution: str) -> None:
    memory = new_memory()
    async with two_nodes(rounds([call("reviewed")]), memory, reviewed()) as (one, two):
        await one.done("create_run", plan())
        view = await one.waiting("run-1")
        await two.host.node.take_over(actor_of(memory, "run-1"))
        await one.resolve(view, resolution)
        if resolution == "approved":
            await one.resume(await one.view("run-1"))
        assert (await one.ended("run-1"))["status"] == ("completed" if resolution == "approved" else "failed")


async def test_a_host_without_the_protocol_answers_no_envelope() -> None:
    async with hosting(saying("x"), MemoryStore(new_memory(), "n1"), host=None) as desk:
        assert desk.host.agent_host is None
        assert await code_of(desk.host.envelope(b"{}", policy())) == "NOT_FOUND"
    async with hosting(saying("x"), MemoryStore(new_memory(), "n1"), node=BRISK) as desk:
        assert (await desk.host.envelope({}, policy()))["error"]["code"] == "invalid_request"
        assert (await desk.host.envelope(b"[", policy()))["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    "strange", [{"body": {"runId": "r", "limit": math.nan}}, {"requestId": "\ud800"}, {"body": {"runId": {1}}}]
)
async def test_an_envelope_that_no_text_could_be_is_answered_too(strange: Object) -> None:
    async with hosting(saying("x"), MemoryStore(new_memory(), "n1"), node=BRISK) as desk:
        asked = envelope("list_events", {"runId": "r"}) | strange
        assert (await desk.host.envelope(asked, policy()))["error"]["code"] == "invalid_request"
