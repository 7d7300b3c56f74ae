"""The shared vectors of the dispatcher, of pages and of clients, each case of them."""

import json
from typing import Any

import pytest

from actors.events import HostContext
from api.host import dispatcher, encoding, envelope, names
from api.host.encoding import EventPage, Unsayable
from api.host.failures import VERSION
from api.host.requests import ListEvents, Request
from api.host.service import page_of as paged
from tests.api.host import vectors
from tests.api.host.vectors import Stub
from tests.host_client import RefusedToSend, Rejected, body_taken, built, page_taken, taken, whole
from tests.host_client import envelope as sent

pytestmark = pytest.mark.anyio

DISPATCHER, EVENTS = vectors.read("dispatcher"), vectors.read("events")


def cases(found: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", found, ids=lambda case: case["id"])


def hardened(case: Any) -> bool:
    """Whether the case allows, or prefers, that this host refuses: for a quirk or a length."""
    return case["id"] in {"env-long-idempotency-key", "q-after-negative"}


@cases(DISPATCHER["dispatch"])
async def test_the_dispatcher_answers_every_envelope_of_the_vectors(case: Any) -> None:
    text = case.get("requestText") or json.dumps(case["request"])
    stub, expect = Stub(case.get("service")), case["expect"]
    answer = await dispatcher.answered(text.encode(), stub)
    told = json.loads(answer.body)
    if hardened(case) and len(stub.seen) != expect["serviceCalls"]:
        assert told["error"]["code"] == "invalid_request"
        return
    assert len(stub.seen) == expect["serviceCalls"]
    if "decoded" in expect:
        ((call, asked),) = stub.seen
        received = vectors.decoded(call, asked)
        assert {name: received[name] for name in expect["decoded"]} == expect["decoded"]
    if told["error"] is not None:
        message = told["error"].pop("message")
        assert message
        assert message == case.get("messageEquals", message)
        assert not any(word in message for word in case.get("mustNotContain", ()))
    assert told == expect["response"]
    assert not any(word in answer.body.decode() for word in case.get("mustNotContain", ()))


@cases([case for case in DISPATCHER["dispatch"] if "reason" in case and "service" not in case])
def test_the_check_that_fires_first_is_the_one_of_the_vectors(case: Any) -> None:
    text = case.get("requestText") or json.dumps(case["request"])
    refusal = envelope.decoded(text.encode())
    assert isinstance(refusal, envelope.Refusal)
    quirks = {"cancel-revision-minus-zero": "revision-zero"}
    assert refusal.slug == quirks.get(case["id"], case["reason"])


@cases(DISPATCHER["typedDispatch"])
async def test_a_request_that_was_parsed_before_keeps_its_operation(case: Any) -> None:
    request, expect, stub = case["request"], case["expect"], Stub()
    asked = envelope.request_typed(
        request["protocolVersion"], request["operation"], request["body"], request_id=request["requestId"]
    )
    told = whole((await dispatcher.dispatched(asked, stub)).body)
    assert len(stub.seen) == expect["serviceCalls"]
    assert (told["error"]["code"], told["operation"]) == (expect["code"], expect["operation"])
    assert told["error"]["details"] == expect["details"]


async def test_a_request_that_was_parsed_before_is_checked_from_its_id_on() -> None:
    stub = Stub()
    good = envelope.request_typed(VERSION, "get_run", {"runId": "run-1"}, request_id="r")
    bad = envelope.request_typed(VERSION, "cancel_run", {"runId": "run-1", "expectedRevision": 1}, request_id="r")
    assert isinstance(good, Request)
    assert isinstance(bad, envelope.Refusal)
    assert bad.slug == "idempotency-key-missing"
    assert whole((await dispatcher.dispatched(good, stub)).body)["ok"]


@pytest.mark.parametrize("case", DISPATCHER["negotiation"])
def test_of_the_versions_offered_ours_is_chosen(case: Any) -> None:
    assert envelope.selected(case["offered"]) == case["selected"]


@pytest.mark.parametrize("case", DISPATCHER["sensitiveMetadataNames"], ids=lambda case: case["key"])
def test_a_name_that_stands_for_a_credential_is_known(case: Any) -> None:
    assert names.is_sensitive(case["key"]) == case["sensitive"]


def projection(case_id: str) -> Any:
    return next(case for case in DISPATCHER["projection"] if case["id"] == case_id)


def test_a_view_holds_nothing_private_of_what_is_stored() -> None:
    case = projection("src-public-projection")
    stored, expect = case["stored"], case["expect"]
    view = vectors.view_of(
        stored["id"],
        {
            "revision": stored["revision"],
            "status": stored["status"],
            "contextMetadata": stored["context"]["metadata"],
            "approval": stored["suspension"],
        },
    )
    told = encoding.told(view, None)
    for name, value in expect["view"].items():
        shown = {key: told[name][key] for key in value} if isinstance(value, dict) else told[name]
        assert shown == value
    assert not any(word in json.dumps(told) for word in expect["mustNotContain"])


def test_a_context_is_flattened_for_telemetry_without_its_secrets() -> None:
    case = projection("src-context-attributes")
    context = HostContext(**case["context"])
    assert names.attributes(context, case["attributesBefore"]) == case["attributesAfter"]
    order = case["subjectOrder"]
    for at in range(len(order)):
        words: dict[str, Any] = {"run_id": "run"} | {name: name for name in order[at:]}
        known = HostContext(**words)
        assert names.subject_of(known) == order[at]


def test_bodies_that_a_client_builds_carry_no_token() -> None:
    case = projection("src-approval-bodies-carry-no-token")
    given = {"runId": "run-1", "approvalId": "ap-1"}
    built_ = [
        built("resolve_approval", given | {"expectedRevision": 3, "resolution": "approved"}),
        built("resume_run", given | {"expectedRevision": 4}),
    ]
    assert built_ == case["bodies"]
    assert not any(word in json.dumps(built_) for word in case["mustNotContain"])


@cases(DISPATCHER["client"]["cases"])
def test_the_strict_client_takes_what_the_reference_takes(case: Any) -> None:
    text = case.get("responseText") or json.dumps(case["response"])
    if case["expect"]["envelope"] == "reject":
        with pytest.raises(Rejected):
            taken(text)
        return
    answer = taken(text)
    match case["expect"].get("body"):
        case "accept":
            body_taken(answer["operation"], answer.get("body", {}))
        case "reject":
            with pytest.raises(Rejected):
                body_taken(answer["operation"], answer.get("body", {}))
        case _:
            assert answer["error"] is not None


@pytest.mark.parametrize("case", DISPATCHER["clientEncoders"]["cases"])
async def test_what_the_strict_client_sends_is_what_the_dispatcher_takes(case: Any) -> None:
    if case["refused"]:
        with pytest.raises(RefusedToSend):
            built(case["operation"], case["args"])
        return
    body = built(case["operation"], case["args"])
    assert body == case["body"]
    text = json.dumps(sent(case["operation"], body, key="k"))
    assert whole((await dispatcher.answered(text.encode(), Stub())).body)["ok"]


@cases(EVENTS["servicePages"])
async def test_a_page_goes_out_only_if_its_invariants_hold(case: Any) -> None:
    stub = Stub({"kind": "returnsPage", "page": case["page"]})
    text = json.dumps(sent("list_events", case["query"]))
    told = whole((await dispatcher.answered(text.encode(), stub)).body)
    assert told["ok"] == case["expect"]["ok"]
    if told["ok"]:
        assert told["body"] == case["expect"]["body"]
    else:
        assert told["error"]["code"] == case["expect"]["code"]


@cases(EVENTS["queries"])
async def test_a_query_is_read_as_the_vectors_read_it(case: Any) -> None:
    stub, expect = Stub(), case["expect"]
    told = json.loads((await dispatcher.answered(json.dumps(sent("list_events", case["body"])).encode(), stub)).body)
    if hardened(case):
        assert (told["error"]["code"], stub.seen) == ("invalid_request", [])
    elif expect["accepted"]:
        ((call, asked),) = stub.seen
        assert vectors.decoded(call, asked)["request"] == expect["decoded"]
    else:
        assert (told["error"]["code"], len(stub.seen)) == (expect["code"], expect["serviceCalls"])


@cases(EVENTS["clientPages"])
def test_the_strict_client_takes_the_pages_that_the_reference_takes(case: Any) -> None:
    if case["expect"] == "accept":
        page_taken(case["body"])
        return
    with pytest.raises(Rejected):
        page_taken(case["body"])


@pytest.mark.parametrize("case", EVENTS["paging"]["cases"])
def test_a_log_is_paged_as_the_vectors_page_it(case: Any) -> None:
    log = [vectors.event_of({"sequence": number}) for number in EVENTS["paging"]["logSequences"]]
    asked = ListEvents("run-1", case["afterSequence"], case["limit"])
    page = paged(log, asked)
    assert [event.sequence for event in page.events] == case["sequences"]
    assert (page.next_sequence, page.has_more) == (case["nextSequence"], case["hasMore"])


@cases(EVENTS["durableEventDocuments"])
def test_an_event_without_number_or_type_is_never_told(case: Any) -> None:
    one = case["event"]
    event = vectors.event_of({"runId": one["run_id"], **{name: one[name] for name in ("sequence", "type", "status")}})
    if case["expect"] == "accepted":
        assert encoding.event(event)["type"] == one["type"]
    elif case["id"] != "durable-event-schema":  # our events carry no version of their own: the log's tags are that
        with pytest.raises(Unsayable):
            encoding.event(event)


def test_a_page_that_nobody_asked_for_is_not_told() -> None:
    with pytest.raises(Unsayable):
        encoding.told(EventPage((), 0, has_more=False), None)
