"""Every call that has one JSON answer: what is sent, and what the answer must be beside it.

Nothing here waits. A `Call` is data; the drivers send it and let it judge what came back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import UNSET

from runstream_client.asked import Asked, check_result, check_retrieval, needed, same
from runstream_client.errors import Misuse
from runstream_client.events import Approval, Execution, TicketCall
from runstream_client.evidence import RetrievalResult
from runstream_client.pages import job_page, run_page
from runstream_client.providers import ProtocolInfo, Provider, ProviderList, SetupSnapshot
from runstream_client.records import (
    DecisionReceipt,
    DeleteReceipt,
    Inbox,
    IndexReceipt,
    Job,
    JobPage,
    RunPage,
    SessionDeleted,
    SessionSnapshot,
    TicketReceipt,
)
from runstream_client.requests import (
    Decision,
    DeleteRequest,
    IndexRequest,
    IngestRequest,
    RunRequest,
    SearchRequest,
    SessionRequest,
    SetupRequest,
)
from runstream_client.results import RunResult
from runstream_client.shapes import S, shaped
from runstream_client.wire import GET_S, Exchange, checked_cursor, events_path, got, posted

T = TypeVar("T")

_DECIDED = {"approve": "approved", "deny": "denied", "cancel": "cancelled"}


class Call(NamedTuple, Generic[T]):
    """A request, and what its answer is taken for; `judge` raises `Unsound`."""

    exchange: Exchange
    judge: Callable[[Any], T]


def protocol() -> Call[ProtocolInfo]:
    return Call(got("v1/protocol"), partial(shaped, ProtocolInfo))


def providers(*, refresh: bool) -> Call[tuple[Provider, ...]]:
    path = "v1/providers?refresh=true" if refresh else "v1/providers"

    def judge(value: Any) -> tuple[Provider, ...]:
        return shaped(ProviderList, value).providers

    return Call(got(path), judge)


def run(request: RunRequest) -> Call[RunResult]:
    """A run whose result alone is wanted.

    Raises:
        Misuse: it would have to ask or to hand out tickets on the way, which needs a stream.
    """
    if request.get("applicationTools"):
        raise Misuse("TOOL_STREAM_REQUIRED", "a run with application tools is streamed")
    if request.get("approvals"):
        raise Misuse("APPROVAL_STREAM_REQUIRED", "a run with approvals is streamed")

    def judge(value: Any) -> RunResult:
        result = shaped(RunResult, value)
        check_result(Asked(request), result)
        return result

    return Call(posted("v1/runs", request), judge)


def decide(approval_id: str, run_id: str, call: TicketCall, decision: Decision) -> Call[DecisionReceipt]:
    repeated = {"id": call.id, "name": call.name, "arguments": call.arguments}
    sent = {"approvalId": approval_id, "runId": run_id, "call": repeated, "decision": decision}

    def judge(value: Any) -> DecisionReceipt:
        receipt = shaped(DecisionReceipt, value)
        same((receipt.approval_id, receipt.run_id, receipt.call_id), (approval_id, run_id, call.id), "call")
        same(receipt.outcome, _DECIDED[decision], "decision")
        return receipt

    return Call(posted("v1/approvals/decisions", sent), judge)


def decide_about(approval: Approval, decision: Decision) -> Call[DecisionReceipt]:
    return decide(approval.approval_id, approval.run_id, approval.call, decision)


def pending(limit: int | None) -> Call[Inbox]:
    sent = {} if limit is None else {"limit": limit}
    return Call(posted("v1/approvals/list", sent), partial(shaped, Inbox))


def progress(execution: Execution) -> Call[TicketReceipt]:
    return _ticket("progress", execution, {}, "progress")


def progress_soon(execution: Execution) -> Call[TicketReceipt]:
    """The same, for somebody who has better things to do than to wait."""
    call = progress(execution)
    return call._replace(exchange=call.exchange._replace(within_s=GET_S))


def tool_result(execution: Execution, output: Any) -> Call[TicketReceipt]:
    return _ticket("results", execution, {"output": output}, "accepted")


def tool_failed(execution: Execution) -> Call[TicketReceipt]:
    return _ticket("results", execution, {"error": "APPLICATION_TOOL_FAILED"}, "accepted")


def _ticket(route: str, execution: Execution, more: dict[str, Any], status: str) -> Call[TicketReceipt]:
    names = (execution.execution_id, execution.run_id, execution.call.id)
    sent: dict[str, Any] = dict(zip(("executionId", "runId", "callId"), names, strict=True)) | more

    def judge(value: Any) -> TicketReceipt:
        receipt = shaped(TicketReceipt, value)
        same((receipt.execution_id, receipt.run_id, receipt.call_id), names, "ticket")
        same(receipt.status, status, "status")
        return receipt

    return Call(posted(f"v1/tool-executions/{route}", sent), judge)


def session_create(request: SessionRequest) -> Call[SessionSnapshot]:
    def judge(value: Any) -> SessionSnapshot:
        snapshot = shaped(SessionSnapshot, value)
        session = snapshot.session
        asked = (request["provider"], request["model"], request["mode"])
        same((session.provider, session.model, session.mode), asked, "session than the one asked for")
        needed(session.revision == 0 and session.state == "ready", "a new session that is not new")
        same([_plain(message) for message in snapshot.history], [*map(dict, request.get("history", ()))], "history")
        same(snapshot.instructions, request.get("instructions", UNSET), "instructions")
        return snapshot

    return Call(posted("v1/sessions/create", request), judge)


def _plain(message: Any) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def session_read(session_id: str) -> Call[SessionSnapshot]:
    def judge(value: Any) -> SessionSnapshot:
        snapshot = shaped(SessionSnapshot, value)
        same(snapshot.session.id, session_id, "session")
        return snapshot

    return Call(posted("v1/sessions/read", {"id": session_id}), judge)


def session_delete(session_id: str) -> Call[SessionDeleted]:
    return _named("v1/sessions/delete", session_id, SessionDeleted)


def job_submit(key: str, request: RunRequest, *, interactive: bool = False) -> Call[Job]:
    sent: dict[str, Any] = {"key": key, "request": request} | ({"interactive": True} if interactive else {})

    def judge(value: Any) -> Job:
        job = shaped(Job, value)
        same((job.provider, job.model), (request["provider"], request["model"]), "provider or model")
        return job

    return Call(posted("v1/jobs/submit", sent), judge)


def job_read(job_id: str) -> Call[Job]:
    return _named("v1/jobs/read", job_id, Job)


def job_cancel(job_id: str) -> Call[Job]:
    return _named("v1/jobs/cancel", job_id, Job)


def _named(path: str, name: str, kind: type[S]) -> Call[S]:
    def judge(value: Any) -> S:
        found = shaped(kind, value)
        same(found.id, name, "id")  # type: ignore[attr-defined]
        return found

    return Call(posted(path, {"id": name}), judge)


def job_events(job_id: str, after: int, limit: int | None) -> Call[JobPage]:
    sent = {"id": job_id, "after": after} | ({} if limit is None else {"limit": limit})
    return Call(posted("v1/jobs/events", sent), partial(job_page, job_id, after, limit))


def run_events(run_id: str, cursor: str) -> Call[RunPage]:
    exchange = got(events_path(run_id))._replace(last_event_id=checked_cursor(cursor))
    return Call(exchange, partial(run_page, run_id, cursor))


def search(request: SearchRequest) -> Call[RetrievalResult]:
    def judge(value: Any) -> RetrievalResult:
        found = shaped(RetrievalResult, value)
        check_retrieval(request, found)
        return found

    return Call(posted("v1/retrieval/search", request), judge)


def index(request: IndexRequest) -> Call[IndexReceipt]:
    source = request["source"]

    def judge(value: Any) -> IndexReceipt:
        return _indexed(value, request["corpus"], source["id"], source["revision"])

    return Call(posted("v1/retrieval/index", request), judge)


def ingest(request: IngestRequest) -> Call[IndexReceipt]:
    document = request["document"]
    source = document if document["type"] == "reference" else document["source"]

    def judge(value: Any) -> IndexReceipt:
        receipt = _indexed(value, request["corpus"], source["id"], source["revision"])
        needed(receipt.ingestion is not UNSET, "no word of how the document was taken in")
        return receipt

    return Call(posted("v1/retrieval/ingest", request), judge)


def _indexed(value: Any, corpus: str, source_id: str, revision: str) -> IndexReceipt:
    receipt = shaped(IndexReceipt, value)
    same((receipt.corpus, receipt.source_id, receipt.revision), (corpus, source_id, revision), "document")
    return receipt


def delete(request: DeleteRequest) -> Call[DeleteReceipt]:
    names = (request["corpus"], request["sourceId"], request["revision"])

    def judge(value: Any) -> DeleteReceipt:
        receipt = shaped(DeleteReceipt, value)
        same((receipt.corpus, receipt.source_id, receipt.revision), names, "document")
        return receipt

    return Call(posted("v1/retrieval/delete", request), judge)


def setup(request: SetupRequest) -> Call[SetupSnapshot]:
    def judge(value: Any) -> SetupSnapshot:
        snapshot = shaped(SetupSnapshot, value)
        if request["action"] != "list":
            needed(len(snapshot.attempts) == 1, "not the one attempt")
            _check_attempt(request, snapshot)
        return snapshot

    return Call(posted("v1/management/setup", request), judge)


def _check_attempt(request: SetupRequest, snapshot: SetupSnapshot) -> None:
    (attempt,) = snapshot.attempts
    if "provider" in request:
        asked = (request.get("revision"), request.get("method"), request["provider"]["id"])
        same((attempt.revision, attempt.method, attempt.provider_id), asked, "attempt")
        same(attempt.account_id, request["provider"]["accountId"], "account")
    else:
        same(attempt.id, request.get("id"), "attempt")
