"""A run as its caller holds it: admission, key, stream, and what happens when the caller leaves."""

from typing import Any

import anyio
import msgspec
import pytest
from typing_extensions import override

from actors import run
from actors.dispatch import POOL
from actors.errors import Refused
from actors.ports import ModelContext, ModelRequest, Turn
from actors.request import Features
from eventstore.memory import Memory, MemoryStore
from eventstore.store import Caps, Claim, Item, Permit, Unavailable
from projections import wire_feed
from tests.actors.support import (
    DEADLINE_S,
    FakeModel,
    asking,
    ended,
    hosted,
    items_of,
    new_memory,
    saying,
    stalling,
    types,
    until,
)

pytestmark = pytest.mark.anyio

PLAIN = ["run.started", "step.started", "usage.reported", "text.delta", "run.completed"]
KEYED = asking(idempotencyKey="k1")


def told(item: Item) -> Any:
    return msgspec.json.decode(wire_feed.numbered(item.number, item.data))


async def test_a_run_streams_from_its_start_to_its_result() -> None:
    async with hosted(saying("hi")) as host:
        items = await items_of(host, asking())
    assert types(items) == PLAIN
    assert [item.number for item in items] == [1, 2, 3, 4, 5]
    assert told(items[-1])["result"] == {
        "runId": told(items[0])["runId"],
        "provider": "fake",
        "model": "m",
        "text": "hi",
        "usage": {"inputTokens": 3, "outputTokens": 2},
        "steps": 1,
        "finishReason": "stop",
    }


async def test_streamed_text_comes_before_usage_and_is_not_repeated() -> None:
    async with hosted(saying("hi there", pieces=["hi ", "there"])) as host:
        items = await items_of(host, asking())
    assert types(items) == ["run.started", "step.started", "text.delta", "usage.reported", "run.completed"]
    assert told(items[2])["text"] == "hi there"


async def test_a_caller_that_leaves_cancels_its_run() -> None:
    async with hosted(stalling("some")) as host:
        async with host.attend(asking()) as attended:
            async for batch in attended.items():
                if "text.delta" in types(list(batch)):
                    break
        items = await ended(host, attended.run_id)
        assert types(items)[-1] == "run.cancelled"
        assert told(items[-1])["error"]["code"] == "CANCELLED"
        await until(lambda: not host.node.executing)


async def test_a_caller_that_leaves_before_the_first_event_cancels_its_run_and_frees_its_slot() -> None:
    async with hosted(stalling(), caps=Caps(total=1)) as host:
        for _ in range(3):
            await _room(host)


async def _room(host: Any) -> None:
    """Wait until the only slot is free."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            try:
                async with host.attend(asking()) as attended:
                    pass
            except Refused:
                await anyio.lowlevel.checkpoint()
                continue
            await ended(host, attended.run_id)
            return


async def test_more_runs_than_slots_are_refused_as_busy() -> None:
    async with hosted(stalling(), caps=Caps(total=8, per_subject=1)) as host, host.attend(asking(), subject="ann"):
        with pytest.raises(Refused) as refused:
            async with host.attend(asking(), subject="ann"):
                pass
        assert (refused.value.code, refused.value.problem.retryable) == ("BUSY", True)
        async with host.attend(asking(), subject="bo") as other:
            assert other.run_id


async def test_a_queued_run_starts_when_a_slot_is_given_back() -> None:
    gate = anyio.Event()

    async def answer(_: ModelRequest, __: ModelContext) -> Turn:
        await gate.wait()
        return Turn(text="hi")

    model = FakeModel(answer)
    caps = Caps(total=1, queue_total=1, queue_per_subject=1)
    async with hosted(model, caps=caps) as host, anyio.create_task_group() as tasks:
        done: list[list[str]] = []

        async def ask() -> None:
            done.append(types(await items_of(host, asking())))

        tasks.start_soon(ask)
        await until(lambda: model.calls == 1)
        tasks.start_soon(ask)
        await until(lambda: len(host.node.executing) == 2)
        with pytest.raises(Refused) as refused:
            await items_of(host, asking())
        assert refused.value.code == "QUEUE_FULL"
        assert model.calls == 1
        gate.set()
        await until(lambda: len(done) == 2)
        assert done == [["run.started", "step.started", "text.delta", "run.completed"]] * 2


async def test_a_queued_run_whose_caller_leaves_never_starts() -> None:
    model = stalling()
    caps = Caps(total=1, queue_total=2, queue_per_subject=2)
    async with hosted(model, caps=caps) as host, host.attend(asking()):
        async with host.attend(asking()) as queued:
            pass
        assert types(await ended(host, queued.run_id)) == ["run.started", "run.cancelled"]
        assert model.calls == 1


async def test_the_same_key_and_request_replays_the_outcome_without_another_call() -> None:
    model = saying("hi", pieces=["hi"])
    async with hosted(model) as host:
        first = await items_of(host, KEYED)
        again = await items_of(host, dict(reversed(KEYED.items())))
    assert model.calls == 1
    assert types(again) == ["run.started", "step.started", "usage.reported", "run.completed"]
    assert [item.number for item in again] == [1, 2, 3, 4]
    assert told(again[-1])["result"] == told(first[-1])["result"]
    assert told(again[0])["timestamp"] == told(first[0])["timestamp"]


async def test_a_key_belongs_to_its_subject() -> None:
    model = saying("hi")
    async with hosted(model) as host:
        (first, *_), (second, *_) = await items_of(host, KEYED, "ann"), await items_of(host, KEYED, "bo")
    assert told(first)["runId"] != told(second)["runId"]
    assert model.calls == 2


async def test_the_same_key_with_another_request_conflicts() -> None:
    async with hosted(saying("hi")) as host:
        await items_of(host, KEYED)
        with pytest.raises(Refused) as refused:
            await items_of(host, KEYED | {"input": "other"})
    assert refused.value.code == "IDEMPOTENCY_CONFLICT"


async def test_a_key_whose_run_executes_is_in_progress_on_every_node() -> None:
    memory = new_memory()
    async with (
        hosted(stalling(), MemoryStore(memory, "n1")) as one,
        hosted(stalling(), MemoryStore(memory, "n2")) as two,
        one.attend(KEYED, subject="ann"),
    ):
        for host in (one, two):
            with pytest.raises(Refused) as refused:
                await items_of(host, KEYED)
            assert (refused.value.code, refused.value.problem.retryable) == ("OPERATION_IN_PROGRESS", True)


async def test_a_key_whose_caller_left_replays_as_uncertain() -> None:
    model = stalling()
    async with hosted(model) as host:
        async with host.attend(KEYED, subject="ann") as attended:
            pass
        await ended(host, attended.run_id)
        calls = model.calls
        items = await items_of(host, KEYED)
        assert types(items)[-1] == "run.failed"
        assert told(items[-1])["error"] == {
            "code": "OPERATION_UNCERTAIN",
            "message": "The outcome of this operation is not known.",
            "retryable": False,
            "outcome": "uncertain",
        }
        assert model.calls == calls


async def test_a_stored_failure_is_final_for_its_key() -> None:
    async def fail(_: ModelRequest, __: ModelContext) -> Turn:
        raise ValueError

    model = FakeModel(fail)
    async with hosted(model) as host:
        first, again = await items_of(host, KEYED), await items_of(host, KEYED)
    assert types(first) == types(again) == ["run.started", "step.started", "run.failed"]
    assert model.calls == 1


async def test_many_submits_of_one_key_over_two_nodes_give_one_run() -> None:
    memory = new_memory()
    model = saying("hi")
    codes: list[str] = []
    async with (
        hosted(model, MemoryStore(memory, "n1"), caps=Caps(total=100)) as one,
        hosted(model, MemoryStore(memory, "n2"), caps=Caps(total=100)) as two,
        anyio.create_task_group() as tasks,
    ):

        async def submit(host: Any) -> None:
            try:
                codes.append(types(await items_of(host, KEYED))[-1])
            except Refused as refused:
                codes.append(refused.code)

        for number in range(40):
            tasks.start_soon(submit, (one, two)[number % 2])
    assert model.calls == 1
    assert set(codes) <= {"run.completed", "OPERATION_IN_PROGRESS"}
    assert "run.completed" in codes


class Slow(MemoryStore):
    """A store whose first permits have lapsed before a run can be stored with them."""

    def __init__(self, memory: Memory, lapsed: int) -> None:
        super().__init__(memory, "n1")
        self.lapsed = lapsed

    @override
    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        permit = await super().take(claim, caps, begin_within_ms)
        if claim.pool != POOL or not self.lapsed:
            return permit
        self.lapsed -= 1
        return Permit(permit.taken, 1)


@pytest.mark.parametrize("document", [asking(), KEYED], ids=["plain", "keyed"])
async def test_a_slot_that_lapsed_before_its_run_was_stored_is_taken_again(document: dict[str, Any]) -> None:
    memory = new_memory()
    async with hosted(saying("hi"), Slow(memory, 2), caps=Caps(total=1)) as host:
        assert types(await items_of(host, document))[-1] == "run.completed"
    assert not (await memory.ledger.counted(POOL)).held


async def test_a_store_too_slow_to_begin_any_run_is_told_as_unavailable() -> None:
    memory = new_memory()
    async with hosted(saying("hi"), Slow(memory, 100)) as host:
        with pytest.raises(Unavailable):
            await items_of(host, asking())
    assert not (await memory.ledger.counted(POOL)).held
    assert not any(kept.heads.log for kept in memory.actors.values())


class Away(MemoryStore):
    """A store that carries out what it does not answer any more, and that nothing can be given back to before *back*."""

    def __init__(self, memory: Memory, *, lasting: bool) -> None:
        super().__init__(memory, "n1")
        self.lasting = lasting
        self.back = anyio.Event()
        self.given = anyio.Event()

    @override
    async def take(self, claim: Claim, caps: Caps, begin_within_ms: int) -> Permit:
        await super().take(claim, caps, begin_within_ms)
        raise Unavailable("no answer")

    @override
    async def give(self, pool: str, holder: str, caps: Caps) -> None:
        await self.back.wait()
        if not self.lasting:
            await super().give(pool, holder, caps)
        self.given.set()
        if self.lasting:
            raise Unavailable("no answer")


@pytest.mark.parametrize("lasting", [False, True], ids=["for a while", "for long"])
async def test_a_caller_hears_of_an_outage_before_its_slot_is_given_back(*, lasting: bool) -> None:
    memory = new_memory()
    store = Away(memory, lasting=lasting)
    async with hosted(saying("hi"), store) as host:
        with anyio.fail_after(5), pytest.raises(Unavailable):
            await items_of(host, asking())
        store.back.set()
        with anyio.fail_after(5):
            await store.given.wait()
    assert bool((await memory.ledger.counted(POOL)).held) is lasting


async def test_a_full_store_refuses_new_keys_and_still_replays_old_ones() -> None:
    async with hosted(saying("hi"), keys=Caps(total=1)) as host:
        await items_of(host, KEYED)
        with pytest.raises(Refused) as refused:
            await items_of(host, asking(idempotencyKey="k2"))
        assert refused.value.code == "OPERATION_STORE_FULL"
        assert types(await items_of(host, KEYED))[-1] == "run.completed"


async def test_a_run_too_large_to_record_ends_for_that_reason() -> None:
    async with hosted(saying("x" * 3_000), log_bytes_max=2_000) as host:
        items = await items_of(host, asking())
    assert told(items[-1])["error"]["code"] == "OPERATION_RECORD_LIMIT"
    assert told(items[-1])["error"]["outcome"] == "uncertain"


async def test_a_result_that_no_client_would_read_ends_the_run() -> None:
    async with hosted(saying("\u0001" * 400_000)) as host:
        items = await items_of(host, asking())
    assert types(items)[-1] == "run.failed"
    assert told(items[-1])["error"]["code"] == "RESPONSE_TOO_LARGE"


async def test_a_closing_host_takes_nothing_on_and_ends_what_runs() -> None:
    async with hosted(stalling()) as host, host.attend(asking()) as attended, anyio.create_task_group() as tasks:
        tasks.start_soon(host.drain)
        await host.node.closing.wait()
        with pytest.raises(Refused) as refused:
            await items_of(host, asking())
        assert refused.value.code == "HOST_SHUTTING_DOWN"
        items = await ended(host, attended.run_id)
        assert told(items[-1])["error"]["code"] == "CANCELLED"


async def test_an_idle_run_is_cancelled_as_retryable() -> None:
    async with hosted(stalling("x")) as host:
        items = await items_of(host, asking(idleTimeoutMs=30))
    assert types(items)[-1] == "run.cancelled"
    assert told(items[-1])["error"] == {
        "code": "IDLE_TIMEOUT",
        "message": "No progress within the idle interval.",
        "retryable": True,
    }


async def test_a_run_is_cancelled_through_another_node() -> None:
    memory = new_memory()
    async with (
        hosted(stalling("x"), MemoryStore(memory, "n1")) as one,
        hosted(stalling(), MemoryStore(memory, "n2")) as two,
        one.attend(asking()) as attended,
    ):
        await two.cancel(attended.run_id)
        assert types(await ended(one, attended.run_id))[-1] == "run.cancelled"
        await until(lambda: not one.node.executing)
        await two.cancel(attended.run_id)
        state, _ = await two.state(attended.run_id)
        assert isinstance(state, run.Ended)


async def test_json_mode_refuses_what_needs_a_stream_after_admission() -> None:
    features = Features(idempotency=True, application_tools=True, approvals=True)
    approvals = {"mode": "interactive", "idlePolicy": "pause"}
    async with hosted(saying("hi"), features=features) as host:
        with pytest.raises(Refused) as refused:
            async with host.attend(asking(approvals=approvals), streamed=False):
                pass
        assert refused.value.code == "APPROVAL_STREAM_REQUIRED"
