"""Calls that no vector shows an accepted answer of, and requests that are hard to write."""

from typing import Any

import pytest

from runstream_client import ClientError, Misuse, ProtocolBroken
from runstream_client.conformance.cases import suite
from runstream_client.conformance.peer import Peer, Reply
from runstream_client.events import Execution, TicketCall
from runstream_client.wire import NODES_MAX

from .conftest import TOKEN, Either
from .telling import REQUEST, RUN, answer, numbered, stream

FOUND = suite("retrieval")["clientResult"]["base"]["retrieval"]
DOCUMENT = suite("retrieval")["documents"]["pilot@r1"]
SEARCH: Any = {"corpus": "shelf", "query": "moorings"}
RECEIPT = {"corpus": "shelf", "sourceId": "pilot", "revision": "r1", "documentSha256": "d" * 64, "chunks": 1}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, ""),
        ({"sourceIds": ["pilot"], "limit": 1, "maxContextBytes": 39, "minScore": 0.75}, ""),
        ({"sourceIds": ["log"]}, "INVALID_RESPONSE"),
        ({"maxContextBytes": 38}, "INVALID_RESPONSE"),
        ({"minScore": 0.76}, "INVALID_RESPONSE"),
        ({"corpus": "other"}, "INVALID_RESPONSE"),
    ],
)
def test_what_was_found_is_within_what_was_asked(either: Either, host: Peer, more: Any, code: str) -> None:
    host.answering(answer(FOUND))
    with either.client(host.url) as client:
        if code:
            with pytest.raises(ProtocolBroken, match=code):
                either.done(client.retrieval.search, SEARCH | more)
        else:
            (hit,) = either.done(client.retrieval.search, SEARCH | more).hits
            assert (hit.chunk_id, hit.score) == ("pilot-p1", 0.75)


def test_receipts_of_documents_are_taken(either: Either, host: Peer) -> None:
    gone = {name: RECEIPT[name] for name in ("corpus", "sourceId", "revision")}
    host.answering(answer(RECEIPT | {"status": "unchanged"}), answer(gone | {"deleted": False}))
    with either.client(host.url) as client:
        assert either.done(client.retrieval.index, DOCUMENT).status == "unchanged"
        assert either.done(client.retrieval.delete, gone).deleted is False
    assert [one.path for one in host.asked] == ["/v1/retrieval/index", "/v1/retrieval/delete"]


def test_a_lone_surrogate_goes_out_as_it_came_in(either: Either, host: Peer) -> None:
    ticket = Execution(execution_id="e", run_id="r", call=TicketCall(id="c", name="look", arguments={}))
    host.answering(answer({"executionId": "e", "runId": "r", "callId": "c", "status": "accepted"}))
    with either.client(host.url) as client:
        either.done(client.tools.result, ticket, "ä\ud800")
    assert host.asked[0].body.endswith(b'"output":"\\u00e4\\ud800"}')


def test_a_refusal_that_is_cut_is_told_by_its_status(either: Either, host: Peer) -> None:
    host.answering(Reply([b'{"error'], head=b"HTTP/1.1 429 No\r\nContent-Length: 99\r\n\r\n"))
    with either.client(host.url) as client, pytest.raises(ClientError) as caught:
        either.done(client.run, REQUEST)
    assert (caught.value.code, caught.value.retryable) == ("HTTP_ERROR", True)


@pytest.mark.parametrize("count", [0, NODES_MAX + 1])
def test_a_client_speaks_to_some_nodes_and_not_to_any_number(either: Either, count: int) -> None:
    with pytest.raises(Misuse, match="INVALID_REQUEST"):
        either.kind(["https://example.org"] * count, token=TOKEN)


def test_an_address_that_no_parser_takes_is_no_source(either: Either, host: Peer) -> None:
    manifest = suite("context")["clientResult"]["base"]["sources"][0] | {"uri": "https://[::1"}
    ended = RUN[-1] | {"result": RUN[-1]["result"] | {"sources": [manifest]}}
    host.answering(stream(numbered(RUN[0], ended)))
    with either.client(host.url) as client:
        assert either.read(client.stream(REQUEST))[1].code == "INVALID_STREAM"  # type: ignore[union-attr]


def test_a_review_that_nobody_here_decides_is_only_shown(either: Either, host: Peer) -> None:
    asks = {
        "type": "approval.requested",
        "approval": suite("approvals")["clientChecks"]["bases"]["stream"][1]["approval"],
    }
    asks["approval"] = asks["approval"] | {"runId": RUN[0]["runId"]}
    reviewed: Any = REQUEST | {"approvals": {"mode": "interactive", "idlePolicy": "pause"}}
    host.answering(stream(numbered(RUN[0], asks, RUN[-1])))
    with either.client(host.url) as client:
        told, error = either.read(client.work(reviewed))
    assert (error, len(told), len(host.asked)) == (None, 3, 1)


@pytest.mark.parametrize("count", [0, 2])
def test_a_step_of_a_sign_in_is_answered_with_its_one_attempt(either: Either, host: Peer, count: int) -> None:
    found = suite("client-conformance")
    attempt, request = found["bases"]["setup-ready"]["attempts"][0], found["requests"]["setup-status"]
    other = attempt | {"id": "1a2b3c4d-5e6f-4a7b-8c9d-0e1f2a3b4c5d"}
    host.answering(answer({"version": 1, "attempts": [attempt, other][:count]}))
    with either.client(host.url) as client, pytest.raises(ProtocolBroken, match="INVALID_RESPONSE"):
        either.done(client.management.setup, request)
