"""How a vector's operation is asked of either client, and what came of it in one form for both."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from runstream_client import AsyncClient, Client, ClientError
from runstream_client.conformance.cases import Case
from runstream_client.events import Execution, TicketCall


class Outcome(NamedTuple):
    """What a client delivered and raised."""

    types: tuple[str, ...]
    error: ClientError | None


def _execution(sent: Mapping[str, Any]) -> Execution:
    call = TicketCall(id=sent["callId"], name="any", arguments={})
    return Execution(execution_id=sent["executionId"], run_id=sent["runId"], call=call)


def _decided(client: Any, sent: Mapping[str, Any]) -> Any:
    """The digest's wire request names the call as an object; a client call of the vectors names its id alone."""
    told: dict[str, Any] = sent.get("call") or {"id": sent["callId"], "name": "any", "arguments": {}}
    return client.approvals.decide_by_id(sent["approvalId"], sent["runId"], TicketCall(**told), sent["decision"])


_CALLS: Mapping[str, Callable[[Any, Any], Any]] = {
    "run": lambda client, sent: client.run(sent),
    "protocol": lambda client, _: client.protocol(),
    "providers": lambda client, _: client.providers(),
    "approval-decision": _decided,
    "tool-result": lambda client, sent: client.tools.result(_execution(sent), sent.get("output")),
    "tool-progress": lambda client, sent: client.tools.progress(_execution(sent)),
    "session-create": lambda client, sent: client.sessions.create(sent),
    "session-read": lambda client, sent: client.sessions.read(sent["id"]),
    "session-delete": lambda client, sent: client.sessions.delete(sent["id"]),
    "job-submit": lambda client, sent: client.jobs.submit(sent["key"], sent["request"]),
    "job-read": lambda client, sent: client.jobs.read(sent["id"]),
    "job-cancel": lambda client, sent: client.jobs.cancel(sent["id"]),
    "job-events": lambda client, sent: client.jobs.page(sent["id"], sent["after"], sent.get("limit")),
    "retrieval-search": lambda client, sent: client.retrieval.search(sent),
    "retrieval-index": lambda client, sent: client.retrieval.index(sent),
    "retrieval-ingest": lambda client, sent: client.retrieval.ingest(sent),
    "retrieval-delete": lambda client, sent: client.retrieval.delete(sent),
    "provider-setup": lambda client, sent: client.management.setup(sent),
}


def asked(client: Client, case: Case) -> Outcome:
    """Ask the client that blocks."""
    types: list[str] = []
    try:
        if case.op != "stream":
            _CALLS[case.op](client, case.argument)
            return Outcome((), None)
        with client.stream(case.argument) as stream:
            for event in stream:
                types.append(event.type)
                if event.type == case.leaves_after:
                    return Outcome(tuple(types), None)
            stream.result()
    except ClientError as error:
        return Outcome(tuple(types), error)
    return Outcome(tuple(types), None)


async def asked_async(client: AsyncClient, case: Case) -> Outcome:
    """Ask the client that awaits."""
    types: list[str] = []
    try:
        if case.op != "stream":
            await cast("Awaitable[object]", _CALLS[case.op](client, case.argument))
            return Outcome((), None)
        async with client.stream(case.argument) as stream:
            async for event in stream:
                types.append(event.type)
                if event.type == case.leaves_after:
                    return Outcome(tuple(types), None)
            await stream.result()
    except ClientError as error:
        return Outcome(tuple(types), error)
    return Outcome(tuple(types), None)


def wrong_with(case: Case, outcome: Outcome) -> str | None:
    """What *outcome* has that the vector does not expect."""
    expect, error = case.expect, outcome.error
    if "error" not in expect:
        types = tuple(expect.get("types", outcome.types))
        return None if error is None and outcome.types == types else f"{error!r} after {outcome.types}"
    if error is None:
        return f"no {expect['error']}"
    told = (error.code, error.retryable, error.outcome)
    code = error.code if expect["error"] == "*" else expect["error"]
    meant = (code, expect.get("retryable", error.retryable), expect.get("outcome", error.outcome))
    return None if told == meant else f"{error!r}, {told} and not {meant}"
