"""The checks before a route, one by one and in their order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import pipeline
from api.grants import Tokens
from api.pipeline import Admitted, Answered, Head, Rules
from tests.api.hosted import TOKENS, entries

RULES = Rules(Tokens(entries()), frozenset({b"https://desk.example"}))
AUTH = (b"authorization", b"Bearer " + TOKENS["reader"].encode())
JSON = (b"content-type", b"application/json")
FOREIGN = (b"origin", b"https://other.test")
KNOWN = (b"origin", b"https://desk.example")
BAD_VERSION = (b"agenticdriver-version", b"2.0")


def told(
    method: str, target: bytes, *headers: pipeline.Line, state: pipeline.State = "open", rules: Rules = RULES
) -> str:
    """The route, the code of the refusal, or the bare status."""
    match pipeline.decided(rules, state, Head(method, target, headers)):
        case Admitted(route=route):
            return route
        case Answered(body=b"", status=status):
            return str(status)
        case Answered(body=body):
            return str(json.loads(body)["error"]["code"])


def test_each_check_comes_before_the_next() -> None:
    everything_wrong = (FOREIGN, BAD_VERSION)
    assert told("GET", b"/nowhere", *everything_wrong, state="starting") == "HOST_STARTING"
    assert told("GET", b"/nowhere", *everything_wrong, state="closing") == "HOST_SHUTTING_DOWN"
    assert told("GET", b"/nowhere", *everything_wrong) == "ORIGIN_DENIED"
    assert told("OPTIONS", b"/nowhere", KNOWN, BAD_VERSION) == "204"
    assert told("GET", b"/health", KNOWN, BAD_VERSION) == "health"
    assert told("GET", b"/nowhere", KNOWN, BAD_VERSION) == "UNAUTHORIZED"
    assert told("GET", b"/nowhere", AUTH, BAD_VERSION) == "UNSUPPORTED_PROTOCOL_VERSION"
    assert told("GET", b"/nowhere", AUTH) == "NOT_FOUND"
    assert told("POST", b"/v1/runs", AUTH, (b"content-length", b"9999999")) == "INVALID_REQUEST"
    assert told("POST", b"/v1/runs", AUTH, JSON, (b"content-encoding", b"br"), (b"content-length", b"9999999")) == (
        "INVALID_REQUEST"
    )
    assert told("POST", b"/v1/runs", AUTH, JSON, (b"content-length", b"1000001")) == "BODY_TOO_LARGE"
    assert told("POST", b"/v1/runs", AUTH, JSON, (b"content-length", b"9" * 5_000)) == "BODY_TOO_LARGE"
    assert told("POST", b"/v1/runs", AUTH, JSON, (b"content-length", b"1000000")) == "runs"


@pytest.mark.parametrize("state", ["starting", "closing"])
def test_health_tells_that_the_host_is_not_open(state: pipeline.State) -> None:
    assert told("GET", b"/health", state=state) in {"HOST_STARTING", "HOST_SHUTTING_DOWN"}


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/protocol?x=1",
        b"/v1/protocol?",
        b"/v1/protocol#x",
        b"/v1/protocol/",
        b"//v1/protocol",
        b"/v1//protocol",
        b"/v1/./protocol",
        b"/v1/%70rotocol",
        b"/V1/protocol",
        b"/v1/providers?refresh=false",
        b"/v1/providers?refresh=true&x=1",
        b"/v1/providers?refresh=%74rue",
        b"/health?",
        b"",
        b"*",
    ],
)
def test_a_path_is_matched_as_it_came(target: bytes) -> None:
    assert told("GET", target, AUTH) == "NOT_FOUND"
    assert told("GET", target) == "UNAUTHORIZED"


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
@pytest.mark.parametrize("target", [b"/health", b"/v1/protocol", b"/v1/providers"])
def test_another_method_is_nothing_after_authentication(method: str, target: bytes) -> None:
    assert told(method, target, AUTH) == "NOT_FOUND"
    assert told(method, target) == "UNAUTHORIZED"


@pytest.mark.parametrize(
    "lines",
    [
        [b"bearer " + TOKENS["reader"].encode()],
        [b"Bearer  " + TOKENS["reader"].encode()],
        [b"Bearer\t" + TOKENS["reader"].encode()],
        [b"Bearer " + TOKENS["reader"].encode() + b" x"],
        [b"Bearer "],
        [b"Bearer"],
        [b""],
        [b"Bearer " + b"x" * 4_097],
        [b"Bearer \xff\xfe" + b"x" * 32],
        [b"Bearer a\x00" + b"x" * 32],
        [b"Basic " + TOKENS["reader"].encode()],
        [AUTH[1], AUTH[1]],
        [AUTH[1], b""],
    ],
)
def test_a_bearer_that_is_not_exactly_one_is_nobody(lines: list[bytes]) -> None:
    assert told("GET", b"/v1/protocol", *[(b"authorization", line) for line in lines]) == "UNAUTHORIZED"


@pytest.mark.parametrize("values", [[b"1.0", b"1.0"], [b""], [b"1.0,1.0"], [b"v1.0"], [b"1.0\xff"], [b"1.00"], [b"1"]])
def test_a_version_that_is_not_exactly_one_is_refused(values: list[bytes]) -> None:
    lines = [(b"agenticdriver-version", value) for value in values]
    assert told("GET", b"/v1/protocol", AUTH, *lines) == "UNSUPPORTED_PROTOCOL_VERSION"


def test_blanks_around_a_header_value_are_no_part_of_it() -> None:
    assert told(
        "GET", b"/v1/protocol", (b"authorization", b" " + AUTH[1] + b"\t"), (b"agenticdriver-version", b"1.0 ")
    ) == ("protocol")


@pytest.mark.parametrize("origins", [[b"null"], [b""], [b"https://desk.example/"], [KNOWN[1], KNOWN[1]], [b"\xff"]])
def test_an_origin_that_is_not_listed_is_denied(origins: list[bytes]) -> None:
    assert told("GET", b"/health", *[(b"origin", origin) for origin in origins]) == "ORIGIN_DENIED"


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        (b"application/json", True),
        (b"APPLICATION/JSON", True),
        (b"application/json;charset=utf-8", True),
        (b"application/json  ; charset=utf-8", True),
        (b"application/json x", False),
        (b"application/jsonp", False),
        (b"text/json", False),
        (b"", False),
        (b"application/json, application/json", False),
    ],
)
def test_a_body_is_json_by_its_media_type(*, value: bytes, fine: bool) -> None:
    assert (told("POST", b"/v1/runs", AUTH, (b"content-type", value)) == "runs") is fine


@pytest.mark.parametrize(("value", "fine"), [(b"identity", True), (b"", True), (b"gzip", False), (b"Identity", False)])
def test_a_body_is_not_encoded(*, value: bytes, fine: bool) -> None:
    assert (told("POST", b"/v1/runs", AUTH, JSON, (b"content-encoding", value)) == "runs") is fine


def test_a_stream_is_selected_by_a_substring_of_accept() -> None:
    def streamed(*accept: bytes) -> bool:
        lines = [(b"accept", value) for value in accept]
        decision = pipeline.decided(RULES, "open", Head("POST", b"/v1/runs", [AUTH, JSON, *lines]))
        assert isinstance(decision, Admitted)
        return decision.streamed

    assert streamed(b"text/event-stream;q=0")
    assert streamed(b"application/json", b"text/event-stream")
    assert not streamed(b"Text/Event-Stream")
    assert not streamed()


def test_tls_is_told_to_browsers_only_where_it_is_served() -> None:
    assert (b"strict-transport-security", b"max-age=31536000") in pipeline.base(tls=True)
    assert pipeline.base() == pipeline.BASE


def scope(path: str, **more: Any) -> dict[str, Any]:
    return {"method": "GET", "path": path, "headers": [], **more}


@pytest.mark.parametrize(
    ("given_scope", "target"),
    [
        (scope("/v1/protocol", raw_path=b"/v1/protocol"), b"/v1/protocol"),
        (scope("/v1/protocol"), b"/v1/protocol"),
        (scope("/v1/protocol", raw_path=b"/v1/protocol", query_string=b"x=1"), b"/v1/protocol?x=1"),
        (scope("/v1/protocol", raw_path=b"/v1/%70rotocol"), b"/v1/%70rotocol"),
        (
            scope("/v1/protocol", raw_path=b"/v1/protocol", extensions={pipeline.TARGET: b"/v1/protocol?"}),
            b"/v1/protocol?",
        ),
        (scope("/health", extensions={pipeline.TARGET: b"http://x/health"}), b"/health"),
        (scope("/in/v1/protocol", root_path="/in", raw_path=b"/in/v1/protocol"), b"/v1/protocol"),
        (scope("/v1/protocol", root_path="/in", raw_path=b"/in/v1/protocol"), b"/v1/protocol"),
        (scope("/v1/protocol", root_path="/in", raw_path=b"/v1/protocol"), b"/v1/protocol"),
        (scope("/v1/protocol/", raw_path=b"/in/v1/protocol"), b"/v1/protocol"),
        (scope("/v1/protocol/", raw_path=b"/in/v1/protocol/"), b"/v1/protocol/"),
        (scope("/inside", root_path="/in", raw_path=b"/inside"), b"/inside"),
        (scope("/in", root_path="/in", raw_path=b"/in"), b"/in"),
        (scope("/in/v1/protocol", root_path="/in", raw_path=b"/in/v1/%70rotocol"), b"/in/v1/%70rotocol"),
        (scope("/\udcff", raw_path=b"/%ff"), b"/%ff"),
    ],
)
def test_the_target_is_found_wherever_the_application_is_mounted(given_scope: dict[str, Any], target: bytes) -> None:
    assert pipeline.head_of(given_scope).target == target


HEADER_NAMES = st.sampled_from(
    [
        b"authorization",
        b"agenticdriver-version",
        b"origin",
        b"accept",
        b"content-type",
        b"content-encoding",
        b"content-length",
    ]
)
LINES = st.lists(
    st.tuples(HEADER_NAMES, st.one_of(st.binary(max_size=80), st.sampled_from([AUTH[1], b"1.0", JSON[1]])))
)


@given(st.text(max_size=10), st.binary(max_size=60), LINES, st.sampled_from(["starting", "open", "closing"]))
def test_whatever_comes_is_decided(
    method: str, target: bytes, lines: list[pipeline.Line], state: pipeline.State
) -> None:
    decision = pipeline.decided(RULES, state, Head(method, target, lines))
    assert [line for line in decision.headers if line[0] == b"agenticdriver-version"] == [
        (b"agenticdriver-version", b"1.0")
    ]
    if isinstance(decision, Answered):
        assert decision.status < 500 or state != "open"
    else:
        assert state == "open"
        assert decision.route == "health" or decision.principal is not None


@given(st.text(max_size=30), st.text(max_size=10), st.binary(max_size=30), st.binary(max_size=30))
def test_any_scope_has_a_target(path: str, root: str, raw: bytes, query: bytes) -> None:
    assert isinstance(pipeline.head_of(scope(path, root_path=root, raw_path=raw, query_string=query)).target, bytes)
