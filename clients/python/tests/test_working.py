"""Tickets are executed and reviews decided while a run is read; and the events of a job come without pages."""

import logging
from typing import Any

import pytest

from runstream_client import (
    Client,
    Misuse,
    ProtocolBroken,
    Refused,
    Tool,
    calls,
)
from runstream_client.conformance.peer import Peer, Reply, json_of

from .conftest import QUICK, Either
from .telling import (
    APPROVAL,
    CALL,
    COMPLETED,
    DENIED,
    JOB_ID,
    REQUEST,
    RESUMED,
    RUN,
    RUN_ID,
    STAMP,
    STARTED,
    TICKET,
    answer,
    delta,
    numbered,
    page,
    refusal,
    stream,
)

REVIEWED: Any = {"approvals": {"mode": "interactive", "idlePolicy": "pause"}}
ASKS = {"type": "approval.requested", "approval": APPROVAL}
TICKETED = {"type": "tool.execution.requested", "execution": TICKET}
DONE = {"type": "tool.completed", "callId": "c-1", "output": 1}
RESOLVED = {"approvalId": "ap-1", "runId": RUN_ID, "callId": "c-1", "outcome": "approved", "decidedAt": STAMP}
RECEIPT = {"executionId": "ex-1", "runId": RUN_ID, "callId": "c-1", "status": "accepted"}


def tool(function: Any) -> Tool:
    return Tool(name="look", description="Look it up.", input_schema={"type": "object"}, function=function)


def noting(seen: list[Any], answer: Any) -> Any:
    """A function that notes what it was given."""

    def noted(argument: Any) -> Any:
        seen.append(argument)
        return answer

    return noted


def awaited(either: Either, function: Any) -> Any:
    """*function* as the client's users write it."""
    if either.kind is Client:
        return function

    async def slowly(*arguments: Any) -> Any:
        return function(*arguments)

    return slowly


def test_a_ticket_is_executed_once_and_its_result_handed_in(either: Either, host: Peer) -> None:
    seen: list[Any] = []
    host.answering(stream(numbered(STARTED, TICKETED, DONE, COMPLETED)), answer(RECEIPT))
    with either.client(host.url) as client:
        look = awaited(either, noting(seen, {"found": 3}))
        told, error = either.read(client.work(REQUEST, tools=[tool(look)]))
    assert (error, len(told), seen) == (None, 4, [CALL["arguments"]])
    sent, result = host.asked
    assert b'"tools":["look"],"applicationTools":[{"name":"look","description":"Look it up."' in sent.body
    assert (result.path, result.body) == (
        "/v1/tool-executions/results",
        b'{"executionId":"ex-1","runId":"%b","callId":"c-1","output":{"found":3}}' % RUN_ID.encode(),
    )


@pytest.mark.parametrize("broken", [lambda _: 1 / 0, lambda _: object(), lambda _: float("nan")])
def test_a_tool_that_fails_is_told_to_the_host_and_nothing_of_it_besides(
    either: Either, host: Peer, broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host.answering(stream(numbered(STARTED, TICKETED, DENIED)), answer(RECEIPT))
    with either.client(host.url) as client, caplog.at_level(logging.CRITICAL):
        _, error = either.read(client.work(REQUEST, tools=[tool(awaited(either, broken))]))
    assert error is None
    assert host.asked[1].body.endswith(b'"callId":"c-1","error":"APPLICATION_TOOL_FAILED"}')


@pytest.mark.parametrize("decision", ["approve", "deny", "cancel", None])
def test_somebody_is_asked_about_the_exact_call(either: Either, host: Peer, decision: Any) -> None:
    outcomes = {"approve": "approved", "deny": "denied", "cancel": "cancelled"}
    host.answering(stream(numbered(STARTED, ASKS, COMPLETED)), answer(RESOLVED | {"outcome": outcomes.get(decision)}))
    with either.client(host.url) as client:
        calls: list[Any] = []
        approve = awaited(either, noting(calls, decision))
        told, error = either.read(client.work(REQUEST | REVIEWED, approve=approve))
    assert (error, len(told), [one.call.arguments for one in calls]) == (None, 3, [CALL["arguments"]])
    assert [one.path for one in host.asked[1:]] == (["/v1/approvals/decisions"] if decision else [])
    if decision:
        assert b'"call":{"id":"c-1","name":"look","arguments":{"query":"tides"}}' in host.asked[1].body


def test_an_answer_whose_receipt_was_lost_is_sent_again_where_the_run_outlives_its_node(
    either: Either, host: Peer, other: Peer
) -> None:
    told = numbered(STARTED, TICKETED, DONE, COMPLETED)
    host.answering(stream(told[:2]), Reply(head=b""), stream(told[2:]))
    other.answering(refusal("TOOL_EXECUTION_NOT_FOUND", 404), Reply(head=b""))
    calls: list[Any] = []
    with either.client(host.url, other.url) as client:
        look = awaited(either, noting(calls, 1))
        events, error = either.read(client.work(RESUMED, tools=[tool(look)]))
    assert (error, [event.raw for event in events], len(calls)) == (None, told, 1)
    assert host.asked[1].body == other.asked[0].body
    assert other.asked[0].path == "/v1/tool-executions/results"


def test_an_answer_that_nobody_takes_is_told_and_the_run_is_not_read_on(either: Either, host: Peer) -> None:
    told = numbered(STARTED, TICKETED, DONE, COMPLETED)
    host.answering(stream(told[:2]), *[Reply(head=b"")] * (1 + QUICK.attempts), stream(told[2:]))
    with either.client(host.url) as client:
        events, error = either.read(client.work(RESUMED, tools=[tool(awaited(either, lambda _: 1))]))
    assert ([event.raw for event in events], error and error.code) == (told[:2], "CONNECTION_LOST")
    assert [one.path for one in host.asked[1:]] == ["/v1/tool-executions/results"] * (1 + QUICK.attempts)


def test_a_node_that_answers_is_asked_again(either: Either, host: Peer, other: Peer) -> None:
    host.answering(stream(RUN), stream(RUN))
    with either.client(host.url, other.url) as client:
        assert either.read(client.stream(RESUMED))[1] is None
        assert either.read(client.stream(RESUMED))[1] is None
    assert other.asked == []


def test_without_resume_an_answer_is_sent_once(either: Either, host: Peer) -> None:
    host.answering(stream(numbered(STARTED, TICKETED, DONE, COMPLETED)), Reply(head=b""), answer(RECEIPT))
    with either.client(host.url) as client:
        _, error = either.read(client.work(REQUEST, tools=[tool(awaited(either, lambda _: 1))]))
    assert (error and error.code, len(host.asked)) == ("CONNECTION_LOST", 2)


def test_a_refusal_that_leaves_the_run_waiting_is_told(either: Either, host: Peer) -> None:
    host.answering(stream(numbered(STARTED, ASKS, COMPLETED)), refusal("FORBIDDEN", 403))
    with either.client(host.url) as client:
        _, error = either.read(client.work(REQUEST | REVIEWED, approve=awaited(either, lambda _: "approve")))
    assert isinstance(error, Refused)
    assert error.code == "FORBIDDEN"


@pytest.mark.parametrize("code", ["INVALID_TOOL_OUTPUT", "TOOL_OUTPUT_LIMIT"])
def test_of_an_output_that_the_host_does_not_take_the_stream_tells_what_comes(
    either: Either, host: Peer, code: str
) -> None:
    unsure = {"code": "TOOL_OUTCOME_UNCERTAIN", "message": "", "retryable": False, "outcome": "uncertain"}
    told = numbered(STARTED, TICKETED, {"type": "run.failed", "error": unsure})
    host.answering(stream(told), refusal(code, 400, outcome="uncertain"))
    with either.client(host.url) as client:
        events, error = either.read(client.work(REQUEST, tools=[tool(awaited(either, lambda _: "no"))]))
    assert (error, [event.raw for event in events], len(host.asked)) == (None, told, 2)


def test_what_was_settled_before_is_not_done_again_by_whoever_joins_a_run(either: Either, host: Peer) -> None:
    later = {
        "type": "tool.execution.requested",
        "execution": {**TICKET, "executionId": "ex-2", "call": CALL | {"id": "c-2"}},
    }
    told = numbered(
        STARTED, ASKS, {"type": "approval.resolved", "resolution": RESOLVED}, TICKETED, DONE, later, COMPLETED
    )
    history = {"runId": RUN_ID, "state": "running", "events": told[:6], "cursor": "6.d6", "hasMore": False}
    receipt = RECEIPT | {"executionId": "ex-2", "callId": "c-2"}
    host.answering(answer(history), stream(told, dated=True), answer(receipt))
    calls: list[Any] = []
    with either.client(host.url) as client:
        look = awaited(either, noting(calls, 1))
        approve = awaited(either, noting(calls, "approve"))
        events, error = either.read(client.follow(RUN_ID, tools=[tool(look)], approve=approve))
    assert (error, [event.raw for event in events], len(calls)) == (None, told, 1)
    assert b'"executionId":"ex-2"' in host.asked[2].body


def test_whoever_executes_tickets_does_not_join_a_run_that_others_began(either: Either, host: Peer) -> None:
    host.answering(refusal("OPERATION_IN_PROGRESS", 409, retryable=True, runId=RUN_ID))
    with either.client(host.url) as client:
        keyed: Any = RESUMED | {"idempotencyKey": "k"}
        _, error = either.read(client.work(keyed, tools=[tool(awaited(either, lambda _: 1))]))
    assert (error and error.code, len(host.asked)) == ("OPERATION_IN_PROGRESS", 1)


@pytest.mark.parametrize("functions", [{}, {"function": 1}, {"function": noting([], 1), "long_function": print}])
def test_what_cannot_be_called_is_refused(either: Either, host: Peer, functions: Any) -> None:
    broken = Tool(name="look", description="Look it up.", input_schema={"type": "object"}, **functions)
    approver: Any = 1
    with either.client(host.url) as client:
        for hands in ({"tools": [broken]}, {"approve": approver}):
            with pytest.raises(Misuse, match="INVALID_CALLBACK"):
                client.work(REQUEST, **hands)
            with pytest.raises(Misuse, match="INVALID_CALLBACK"):
                client.follow(RUN_ID, **hands)
    assert host.asked == []


def reporting(either: Either, seen: list[bool], times: int, then: Any = None) -> Tool:
    """A tool that reports some *times*, and notes what it is told."""

    def look(arguments: dict[str, Any], report: Any) -> int:
        seen.extend(report() for _ in range(times))
        return len(arguments)

    async def look_slowly(arguments: dict[str, Any], report: Any) -> int:
        for _ in range(times):
            seen.append(await report())
            if then is not None:
                await then()
        return len(arguments)

    given: Any = look if either.kind is Client else look_slowly
    return Tool(name="look", description="Look it up.", input_schema={"type": "object"}, long_function=given)


def test_a_tool_that_takes_long_says_that_it_is_at_work_and_hears_whether_that_is_of_use(
    either: Either, host: Peer
) -> None:
    seen: list[bool] = []
    taken = answer(RECEIPT | {"status": "progress"})
    host.answering(
        stream(numbered(STARTED, TICKETED, DONE, COMPLETED)),
        taken,
        taken,
        refusal("TOOL_EXECUTION_NOT_FOUND", 404),
        answer(RECEIPT),
    )
    with either.client(host.url) as client:
        told, error = either.read(client.work(REQUEST, tools=[reporting(either, seen, 3)]))
    assert (error, len(told), seen) == (None, 4, [True, True, False])
    assert [one.path for one in host.asked[1:]] == [
        *["/v1/tool-executions/progress"] * 3,
        "/v1/tool-executions/results",
    ]
    assert host.asked[1].body == b'{"executionId":"ex-1","runId":"%b","callId":"c-1"}' % RUN_ID.encode()
    assert host.asked[4].body.endswith(b'"output":1}')


@pytest.mark.parametrize(
    "lost",
    [
        Reply(head=b""),
        refusal("FORBIDDEN", 403),
        refusal("HOST_SHUTTING_DOWN", 503),
        answer(RECEIPT | {"status": "progress", "callId": "c-2"}),
    ],
)
@pytest.mark.parametrize("request_of", [REQUEST, RESUMED])
def test_a_report_that_is_lost_fails_no_call_and_is_not_sent_again(
    either: Either, host: Peer, lost: Reply, request_of: Any
) -> None:
    seen: list[bool] = []
    host.answering(stream(numbered(STARTED, TICKETED, DONE, COMPLETED)), lost, answer(RECEIPT))
    with either.client(host.url) as client:
        told, error = either.read(client.work(request_of, tools=[reporting(either, seen, 1)]))
    assert (error, len(told), seen) == (None, 4, [True])
    assert [one.path.rpartition("/")[2] for one in host.asked[1:]] == ["progress", "results"]


def test_a_report_takes_no_longer_than_a_get(either: Either, host: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GET_S", 0.2)
    seen: list[bool] = []
    host.answering(
        stream(numbered(STARTED, TICKETED, DONE, COMPLETED)), Reply(head=b"HTTP/1.1 20", ending="hold"), answer(RECEIPT)
    )
    with either.client(host.url) as client:
        told, error = either.read(client.work(REQUEST, tools=[reporting(either, seen, 1)]))
    assert (error, len(told), seen) == (None, 4, [True])
    assert host.left.is_set()


def test_a_call_whose_client_was_closed_hears_that_nobody_waits(either: Either, host: Peer) -> None:
    seen: list[bool] = []
    host.answering(stream(numbered(STARTED, TICKETED), ending="hold"))
    with either.client(host.url) as client:

        def look(_: dict[str, Any], report: Any) -> None:
            client.close()
            seen.append(report())

        async def look_slowly(_: dict[str, Any], report: Any) -> None:
            await client.close()
            seen.append(await report())

        given: Any = look if either.kind is Client else look_slowly
        long = Tool(name="look", description="Look it up.", input_schema={"type": "object"}, long_function=given)
        _, error = either.read(client.work(REQUEST, tools=[long]))
    assert (error and error.code, seen, len(host.asked)) == ("CLIENT_CLOSED", [False], 1)


def test_the_events_of_a_job_come_without_pages(either: Either, host: Peer, other: Peer) -> None:
    first, second, third, last = RUN
    host.answering(
        page([], 0, 0),
        page([first, second], 0, 3),
        Reply(head=b""),
        page([], 3, 3),
        page([last], 3, 4, "completed"),
    )
    other.answering(page([third], 2, 3), refusal("HOST_SHUTTING_DOWN", 503))
    with either.client(host.url, other.url) as client:
        reading = client.job_events(JOB_ID)
        told, error = either.read(reading)
        assert (reading.run_id, reading.cursor) == (RUN_ID, "4")
    assert (error, [event.raw for event in told]) == (None, RUN)


def test_the_end_of_a_job_is_its_result_from_any_number_on(either: Either, host: Peer) -> None:
    host.answering(page(RUN[2:], 2, 4, "completed"), page(RUN[2:], 2, 4, "completed"), refusal("JOB_EXPIRED", 410))
    with either.client(host.url) as client:
        assert either.done(client.job_events(JOB_ID, 2).result).text == "teal"
        assert either.read(client.job_events(JOB_ID, 1))[1].code == "INVALID_RESPONSE"  # type: ignore[union-attr]
        assert either.read(client.job_events(JOB_ID))[1].code == "JOB_EXPIRED"  # type: ignore[union-attr]


def test_an_inbox_and_a_page_of_a_run_are_read(either: Either, host: Peer) -> None:
    inbox = {"approvals": [APPROVAL | {"provider": "mock"}], "hasMore": False}
    history = {"runId": RUN_ID, "state": "running", "events": RUN[1:2], "cursor": "2.d2", "hasMore": True}
    host.answering(
        answer(inbox), answer(RESOLVED), answer(history), answer(history | {"events": RUN[2:3]}), json_of(b"[]")
    )
    with either.client(host.url) as client:
        (waiting,) = either.done(client.approvals.pending, 5).approvals
        assert either.done(client.approvals.decide, waiting, "approve").outcome == "approved"
        found = either.done(client.runs.page, RUN_ID, "1")
        assert ([event.raw for event in found.events], found.cursor) == (RUN[1:2], "2.d2")
        for _ in range(2):
            with pytest.raises(Exception, match="INVALID_RESPONSE"):
                either.done(client.runs.page, RUN_ID, "1")
    assert delta("al")["text"] == RUN[2]["text"]


@pytest.mark.parametrize(
    ("change", "sound"),
    [
        ({}, True),
        ({"hasMore": True}, False),
        ({"events": [], "cursor": "1"}, True),
        ({"events": [], "cursor": "1", "hasMore": True}, False),
        ({"events": numbered(RUN[0], RUN[-1], RUN[1])[1:], "cursor": "3"}, False),
        ({"runId": JOB_ID}, False),
        ({"state": "lost"}, False),
        ({"cursor": "3"}, False),
    ],
)
def test_a_page_of_a_run_goes_on_to_its_end_and_not_further(
    either: Either, host: Peer, change: dict[str, Any], *, sound: bool
) -> None:
    ended = {"runId": RUN_ID, "state": "completed", "events": RUN[1:], "cursor": "4.d4", "hasMore": False}
    host.answering(answer(ended | change))
    with either.client(host.url) as client:
        if sound:
            assert either.done(client.runs.page, RUN_ID, "1.d1").run_id == RUN_ID
        else:
            with pytest.raises(ProtocolBroken, match="INVALID_RESPONSE"):
                either.done(client.runs.page, RUN_ID, "1.d1")
