"""Decisions, progress and results over HTTP: whatever is posted, only the right answer to the right question counts."""

import copy
import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import values
from actors.jsontext import strict_json
from actors.request import Features
from api.parts import advertised
from eventstore.store import Unavailable
from tests.actors.support import new_memory
from tests.api.answering import (
    CONFIG,
    DECISIONS,
    OFF,
    PATHS,
    PROGRESS,
    RESULTS,
    Waiting,
    code_of,
    executing,
    posted,
    reviewing,
)
from tests.api.asgi_client import sent
from tests.scenario_world import World, bearer

pytestmark = pytest.mark.anyio

seldom = settings(max_examples=25, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just(10**400))
JSONS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
CHANGES = st.dictionaries(
    st.sampled_from(["approvalId", "runId", "call", "decision", "subject", "__proto__"]), JSONS, min_size=1, max_size=3
)
CALL_CHANGES = st.dictionaries(st.sampled_from(["id", "name", "arguments", "extra"]), JSONS, min_size=1, max_size=3)
TICKET_CHANGES = st.dictionaries(
    st.sampled_from(["executionId", "runId", "callId", "error", "subject"]), JSONS, min_size=1, max_size=3
)


# Nothing that is not exactly right has any effect.


@given(st.lists(st.tuples(CHANGES, CALL_CHANGES, st.booleans()), min_size=1, max_size=8))
@seldom
async def test_an_altered_decision_is_a_typed_refusal_and_leaves_the_approval_as_it_was(
    changes: list[tuple[dict[str, Any], dict[str, Any], bool]],
) -> None:
    async with reviewing() as waiting:
        for change, of_call, inner in changes:
            right = waiting.decision()
            body = waiting.decision(call=right["call"] | of_call) if inner else waiting.decision(**change)
            if not values.same(body, right) and body.get("decision") not in ("deny", "cancel"):
                told = await waiting.post(DECISIONS, body)
                assert (told.status, code_of(told)) in {
                    (400, "INVALID_APPROVAL"),
                    (400, "INVALID_REQUEST"),
                    (404, "APPROVAL_NOT_FOUND"),
                    (409, "APPROVAL_MISMATCH"),
                }, body
        assert waiting.world.effects == []
        assert (await waiting.post(DECISIONS, waiting.decision())).status == 200
        assert (await waiting.rest())[-1] == "run.completed"
        assert waiting.world.effects == [{"text": "Reviewed", "ids": [1, 2]}]


@given(st.lists(st.one_of(st.binary(max_size=60), JSONS.map(lambda value: json.dumps(value).encode())), max_size=12))
@seldom
async def test_whatever_is_posted_is_answered_by_a_typed_refusal(bodies: list[bytes]) -> None:
    async with reviewing() as waiting:
        for body in bodies:
            for path in PATHS:
                told = await waiting.post(path, body)
                assert (told.status, code_of(told)) in {
                    (400, "INVALID_REQUEST"),
                    (400, "INVALID_APPROVAL" if path == DECISIONS else "INVALID_TOOL_EXECUTION"),
                }, body
        assert (await waiting.post(DECISIONS, waiting.decision(decision="deny"))).status == 200


@given(st.lists(TICKET_CHANGES, min_size=1, max_size=8))
@seldom
async def test_an_altered_result_is_a_typed_refusal_and_leaves_the_ticket_as_it_was(
    changes: list[dict[str, Any]],
) -> None:
    async with executing() as waiting:
        for change in changes:
            body = waiting.ticket(output=1) | change
            if not values.same(body, waiting.ticket(output=1)):
                assert (await waiting.post(RESULTS, body)).status in {400, 404, 409}, body
                del body["output"]
                assert (await waiting.post(PROGRESS, body)).status in {400, 404, 409}, body
        assert (await waiting.post(RESULTS, waiting.ticket(output=1))).status == 200
        assert (await waiting.rest())[-1] == "run.completed"


# Values.


@pytest.mark.parametrize(
    ("proposed", "repeated"),
    [
        ("9007199254740993", "9007199254740992"),
        ("123456789012345678901234567890", "1.2345678901234568e29"),
        ("1", "1.0"),
        ("1.0", "1"),
        ("-0.0", "0"),
        ("0", "-0"),
        ("1e2", "100"),
        ("5e-324", "4.9e-324"),
        ("1e-400", "0"),
        ('"\\u00e9\\ud83c\\udf0d/"', '"é🌍\\/"'),
        ('{"a":1,"b":[{"c":2,"d":3}]}', '{ "b" : [ {"d":3, "c":2} ], "a" : 1 }'),
    ],
)
async def test_values_that_every_reader_takes_for_equal_are_one_call(proposed: str, repeated: str) -> None:
    async with reviewing(f'{{"v":{proposed}}}') as waiting:
        assert (await waiting.post(DECISIONS, _raw(waiting, f'{{"v":{repeated}}}'))).status == 200
        assert (await waiting.rest())[-1] == "run.completed"
        assert values.same(waiting.world.effects, [strict_json(f'{{"v":{proposed}}}')])


@pytest.mark.parametrize(
    ("proposed", "repeated"),
    [
        ("9007199254740993", "9007199254740994"),
        ("1", "true"),
        ("1", '"1"'),
        ("1", "1.0000000000000002"),
        ("0", "false"),
        ("0", "null"),
        ('"é"', '"e\\u0301"'),
        ("[1,2]", "[2,1]"),
        ("[1]", "[1,null]"),
        ("{}", '{"a":null}'),
        ("[]", "{}"),
    ],
)
async def test_values_that_differ_for_any_reader_are_another_call(proposed: str, repeated: str) -> None:
    async with reviewing(f'{{"v":{proposed}}}') as waiting:
        assert code_of(await waiting.post(DECISIONS, _raw(waiting, f'{{"v":{repeated}}}'))) == "APPROVAL_MISMATCH"
        assert (await waiting.post(DECISIONS, _raw(waiting, f'{{"v":{proposed}}}'))).status == 200


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"__proto__":1}', "INVALID_APPROVAL"),
        ('{"a":[[{"__proto__":{}}]]}', "INVALID_APPROVAL"),
        ('{"\\u005f_proto__":1}', "INVALID_APPROVAL"),
        ('{"v":1e400}', "INVALID_APPROVAL"),
        ('{"v":-1e400}', "INVALID_APPROVAL"),
        (f'{{"v":1{"0" * 400}}}', "INVALID_APPROVAL"),
        (f'{{"v":1{"0" * 5_000}}}', "INVALID_APPROVAL"),
        ('{"a":1,"a":1}', "INVALID_REQUEST"),
        ('{"v":NaN}', "INVALID_REQUEST"),
        ('{"v":"\\ud800"}', "INVALID_REQUEST"),
        (f'{{"v":{"[" * 80}{"]" * 80}}}', "INVALID_REQUEST"),
    ],
)
async def test_what_readers_would_see_differently_is_malformed(arguments: str, code: str) -> None:
    async with reviewing() as waiting:
        told = await waiting.post(DECISIONS, _raw(waiting, arguments))
        assert (told.status, code_of(told)) == (400, code)
        told = await posted(
            waiting.app, RESULTS, b'{"executionId":"e","runId":"r","callId":"c","output":%b}' % arguments.encode()
        )
        assert code_of(told) == code.replace("APPROVAL", "TOOL_EXECUTION")


async def test_members_come_in_any_order_and_a_body_may_begin_with_a_mark() -> None:
    async with reviewing() as waiting:
        body = json.dumps(dict(reversed(waiting.decision().items())), indent=1).encode("utf-8-sig")
        assert (await waiting.post(DECISIONS, body)).status == 200


async def test_an_output_reaches_the_run_as_it_was_sent() -> None:
    async with executing() as waiting:
        body = json.dumps(waiting.ticket(output=0)).replace(": 0}", ': {"n":9007199254740993,"z":-0.0,"t":"\\u2028é"}}')
        assert (await waiting.post(RESULTS, body.encode())).status == 200
        events = await waiting.stream.events(None)
        assert events[0]["output"] == {"n": 9007199254740993, "z": -0.0, "t": "\u2028é"}


# Bounds.


@pytest.mark.parametrize("member", ["approvalId", "runId"])
@pytest.mark.parametrize(
    ("text", "fits"), [("x" * 256, True), ("x" * 257, False), ("🌍" * 128, True), ("🌍" * 129, False)]
)
async def test_an_id_has_at_most_256_units(member: str, text: str, fits: bool) -> None:  # noqa: FBT001
    async with reviewing() as waiting:
        code = code_of(await waiting.post(DECISIONS, waiting.decision(**{member: text})))
        refused = "APPROVAL_NOT_FOUND" if member == "approvalId" else "APPROVAL_MISMATCH"
        assert code == (refused if fits else "INVALID_APPROVAL")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": "x" * 256}, "APPROVAL_MISMATCH"),
        ({"id": "x" * 257}, "INVALID_APPROVAL"),
        ({"id": ""}, "INVALID_APPROVAL"),
        ({"name": "x" * 64}, "APPROVAL_MISMATCH"),
        ({"name": "x" * 65}, "INVALID_APPROVAL"),
        ({"name": "write\n"}, "INVALID_APPROVAL"),
        ({"name": "wríte"}, "INVALID_APPROVAL"),
    ],
)
async def test_a_repeated_call_keeps_the_bounds_of_calls(change: dict[str, Any], code: str) -> None:
    async with reviewing() as waiting:
        assert code_of(await waiting.post(DECISIONS, waiting.decision(call=waiting.asked["call"] | change))) == code


async def test_a_call_of_the_greatest_size_can_be_shown_and_repeated_in_the_longest_writing() -> None:
    room = 128_000 - len('{"id":"c1","name":"write","arguments":{"v":""}}')
    async with reviewing(json.dumps({"v": "é" * (room // 2)}, ensure_ascii=False)) as waiting:
        body = json.dumps(waiting.decision()).encode()  # every é as six characters
        assert len(body) > 3 * room
        assert (await waiting.post(DECISIONS, body)).status == 200


@pytest.mark.parametrize(("size", "status"), [(1_000_000, 409), (1_000_001, 413)])
async def test_a_body_has_at_most_a_million_bytes(size: int, status: int) -> None:
    async with reviewing() as waiting:
        body = waiting.decision(call=waiting.asked["call"] | {"arguments": {"v": ""}})
        body["call"]["arguments"]["v"] = "x" * (size - len(json.dumps(body)))
        assert (await waiting.post(DECISIONS, body)).status == status


@pytest.mark.parametrize(("size", "code"), [(128_000, ""), (128_001, "TOOL_OUTPUT_LIMIT")])
async def test_an_output_has_at_most_128000_bytes_and_a_larger_one_uses_the_ticket_up(size: int, code: str) -> None:
    async with executing() as waiting:
        told = await waiting.post(RESULTS, waiting.ticket(output="x" * (size - 2)))
        assert code_of(told) == code
        assert (await waiting.rest())[-1] == ("run.failed" if code else "run.completed")
        assert code_of(await waiting.post(RESULTS, waiting.ticket(output=1))) == "TOOL_EXECUTION_NOT_FOUND"


# Who, and about what.


async def test_an_id_of_any_other_shape_or_thing_is_an_unknown_one() -> None:
    async with reviewing() as waiting:
        known = waiting.asked["approvalId"]
        others = [waiting.run_id, known.upper(), f"{known} ", known[:-1], "x", "../..", "a\x00b", "*", "{a}", "n" * 256]
        for path, member in ((DECISIONS, "approvalId"), (PROGRESS, "executionId"), (RESULTS, "executionId")):
            for other in [*others, *([] if path == DECISIONS else [known])]:
                ids = {"runId": waiting.run_id, member: other}
                rest = {"callId": "c1"} | ({"output": 1} if path == RESULTS else {})
                body = waiting.decision(**ids) if path == DECISIONS else ids | rest
                told = await waiting.post(path, body)
                assert (told.status, code_of(told)) == (
                    404,
                    "APPROVAL_NOT_FOUND" if path == DECISIONS else "TOOL_EXECUTION_NOT_FOUND",
                )


async def test_what_belongs_to_another_subject_is_answered_like_what_never_was() -> None:
    async with reviewing() as waiting:
        foreign = await waiting.post(DECISIONS, waiting.decision(), who="bob")
        unknown = await waiting.post(DECISIONS, waiting.decision(approvalId="never"), who="bob")
        assert (foreign.status, foreign.body) == (unknown.status, unknown.body)
    async with executing() as waiting:
        foreign = await waiting.post(RESULTS, waiting.ticket(output=1), who="bob")
        unknown = await waiting.post(RESULTS, waiting.ticket(executionId="never", output=1), who="bob")
        assert (foreign.status, foreign.body) == (unknown.status, unknown.body)


async def test_checks_come_in_their_order() -> None:
    async with reviewing() as waiting:
        wrong = waiting.decision(runId="other")
        assert code_of(await waiting.post(DECISIONS, wrong | {"decision": "maybe"}, who="bob")) == "INVALID_APPROVAL"
        assert code_of(await waiting.post(DECISIONS, wrong, who="bob")) == "APPROVAL_NOT_FOUND"
        assert code_of(await waiting.post(DECISIONS, wrong, who="idle")) == "FORBIDDEN"
        assert code_of(await waiting.post(DECISIONS, wrong)) == "APPROVAL_MISMATCH"
    async with executing() as waiting:
        wrong = waiting.ticket(runId="other", output=1)
        assert code_of(await waiting.post(RESULTS, wrong | {"error": 1}, who="bob")) == "INVALID_TOOL_EXECUTION"
        assert code_of(await waiting.post(RESULTS, wrong, who="bob")) == "TOOL_EXECUTION_NOT_FOUND"
        assert code_of(await waiting.post(RESULTS, wrong, who="idle")) == "FORBIDDEN"
        assert code_of(await waiting.post(RESULTS, wrong)) == "TOOL_EXECUTION_MISMATCH"


async def test_the_audit_names_the_ids_of_a_malformed_decision_where_they_are_fit() -> None:
    async with reviewing() as waiting:
        await waiting.post(DECISIONS, {"approvalId": "a", "runId": "r" * 257})
        await waiting.post(DECISIONS, None)
        records = [one for one in await waiting.world.audit() if one["type"] == "approval.rejected"]
        told = {"type": "approval.rejected", "subject": "alice", "code": "INVALID_APPROVAL"}
        assert sorted(records, key=len) == [told, told | {"approvalId": "a"}]


# A host without the features, and one without its store.


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_feature_the_route_is_there_and_knows_nothing(path: str) -> None:
    world = World(OFF, [], memory=new_memory())
    await world.open()
    try:
        call = {"id": "c", "name": "n", "arguments": {}}
        decision = {"approvalId": "a", "runId": "r", "call": call, "decision": "approve"}
        ticket = {"executionId": "e", "runId": "r", "callId": "c"} | ({"output": None} if path == RESULTS else {})
        told = await posted(world.nodes[0].app, path, decision if path == DECISIONS else ticket)
        assert code_of(told) == ("APPROVAL_NOT_FOUND" if path == DECISIONS else "TOOL_EXECUTION_NOT_FOUND")
        told = await posted(world.nodes[0].app, path, {})
        assert code_of(told) == ("INVALID_APPROVAL" if path == DECISIONS else "INVALID_TOOL_EXECUTION")
        assert await world.audit() == []
    finally:
        await world.close()


@pytest.mark.parametrize("path", PATHS)
async def test_the_checks_before_a_route_hold_for_every_post(path: str) -> None:
    world = World(CONFIG, [], memory=new_memory())
    await world.open()
    try:
        app, who = world.nodes[0].app, (b"authorization", f"Bearer {bearer('alice')}".encode())
        json_type = (b"content-type", b"application/json")
        assert (await sent(app, "POST", path.encode(), [json_type], b"{}")).status == 401
        assert (await sent(app, "GET", path.encode(), [who])).status == 404
        assert (await sent(app, "POST", f"{path}?x=1".encode(), [json_type, who], b"{}")).status == 404
        assert (await sent(app, "POST", f"{path}/".encode(), [json_type, who], b"{}")).status == 404
        assert code_of(await sent(app, "POST", path.encode(), [who], b"{}")) == "INVALID_REQUEST"
        zipped = (b"content-encoding", b"gzip")
        assert code_of(await sent(app, "POST", path.encode(), [json_type, who, zipped], b"{}")) == "INVALID_REQUEST"
        world.nodes[0].host.close()
        assert code_of(await sent(app, "POST", path.encode(), [json_type, who], b"{}")) == "HOST_SHUTTING_DOWN"
    finally:
        await world.close()


class Troubled:
    """A node's store that does not answer, or not yet, to the calls that are named."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.broken: set[str] = set()
        self.held: set[str] = set()
        self.entered = anyio.Event()
        self.free = anyio.Event()
        self._store: Any = None

    def over(self, store: Any) -> "Troubled":
        self._store = store
        return self

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(name, found) if name in {"append", "look", "post"} else found

    def _guarded(self, name: str, call: Any) -> Any:
        async def guarded(*words: Any, **named: Any) -> Any:
            if name in self.broken:
                raise ZeroDivisionError("private")
            if name in self.failing:
                raise Unavailable("the test took it away")
            if name in self.held:
                self.entered.set()
                await self.free.wait()
            return await call(*words, **named)

        return guarded


async def test_a_store_that_does_not_answer_is_said_and_a_lost_audit_takes_the_place_of_a_refusal() -> None:
    store = Troubled()
    async with reviewing(around=store.over) as waiting:
        store.failing = {"post"}
        told = await waiting.post(DECISIONS, waiting.decision(runId="other"))
        assert (told.status, code_of(told)) == (503, "APPROVAL_AUDIT_FAILED")
        told = await waiting.post(DECISIONS, {})
        assert (told.status, code_of(told)) == (503, "APPROVAL_AUDIT_FAILED")
        store.failing = {"look"}
        told = await waiting.post(DECISIONS, waiting.decision())
        assert (told.status, code_of(told), json.loads(told.body)["error"]["retryable"]) == (
            503,
            "STORE_UNAVAILABLE",
            True,
        )
        store.failing = set()
        assert (await waiting.post(DECISIONS, waiting.decision())).status == 200


async def test_a_decision_outlives_the_client_that_sent_it() -> None:
    store = Troubled()
    async with reviewing(around=store.over) as waiting:
        store.held = {"append"}
        async with anyio.create_task_group() as clients:
            clients.start_soon(_sent_and_forgotten, waiting)
            await store.entered.wait()
            clients.cancel_scope.cancel()
        store.free.set()
        assert (await waiting.rest())[-1] == "run.completed"
        assert len(waiting.world.effects) == 1


async def _sent_and_forgotten(waiting: Waiting) -> None:
    await waiting.post(DECISIONS, waiting.decision())


def _raw(waiting: Waiting, arguments: str) -> bytes:
    """The decision with *arguments* written like that."""
    body = copy.deepcopy(waiting.decision())
    body["call"]["arguments"] = "ARGUMENTS"
    return json.dumps(body).replace('"ARGUMENTS"', arguments).encode()


async def test_a_client_that_leaves_before_its_body_is_whole_is_answered_nothing() -> None:
    async with reviewing() as waiting:
        messages: list[Any] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
        told: list[Any] = []

        async def receive() -> Any:
            await anyio.lowlevel.checkpoint()
            return messages.pop(0)

        async def send(message: Any) -> None:
            await anyio.lowlevel.checkpoint()
            told.append(message)

        path = DECISIONS.encode()
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {bearer('alice')}".encode())]
        scope = {"type": "http", "method": "POST", "path": DECISIONS, "raw_path": path, "headers": headers}
        await waiting.app(scope | {"query_string": b"", "root_path": ""}, receive, send)
        assert told == []
        assert (await waiting.post(DECISIONS, waiting.decision())).status == 200


async def test_a_failure_that_no_rule_foresaw_is_an_internal_error_without_detail() -> None:
    store = Troubled()
    async with reviewing(around=store.over) as waiting:
        store.broken = {"look"}
        told = await waiting.post(DECISIONS, waiting.decision())
        assert (told.status, code_of(told)) == (500, "INTERNAL_ERROR")
        assert b"private" not in told.body
        assert waiting.app.parts.faults.count == 1
        store.broken = set()


def test_the_features_are_named_in_the_order_of_the_protocol() -> None:
    told = advertised(("event-stream", "z-ours"), Features(approvals=True, application_tools=True))
    assert told == ("application-tools", "interactive-approvals", "event-stream", "approval-inbox", "z-ours")
    assert advertised(("event-stream",), Features()) == ("event-stream",)
    told = advertised(("event-stream",), Features(sessions=True), jobs=True)
    assert told == ("durable-jobs", "conversation-sessions", "event-stream", "interactive-jobs")
    assert advertised((), viewer=True) == ("stream-resumption",)
