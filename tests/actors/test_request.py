"""Example by example: which request is refused with which code, and which rule comes first (runs §3, §4)."""

from typing import Any

import pytest

from actors.errors import Refused
from actors.request import (
    Catalog,
    Features,
    HostLimits,
    ProviderFacts,
    RunRequest,
    ToolFacts,
    attempts,
    checked,
    decoded_request,
    encoded_request,
    idle_timeout_ms,
    max_output_tokens,
    max_steps,
    retry_policy,
)

SAFE = 2**53 - 1
EVERYTHING = Features(
    sessions=True, idempotency=True, approvals=True, application_tools=True, retrieval=True, context_resolver=True
)
MOCK = ProviderFacts(
    models=("demo",),
    capabilities={"tools": True, "safeRetries": True, "textStreaming": True, "off": False},
    input_media_types={"demo": ("image/png",)},
)
FULL = Catalog(
    providers={"mock": MOCK, "bare": ProviderFacts(), "closed": ProviderFacts(models=())},
    tools={"clock": ToolFacts()},
    features=EVERYTHING,
)
BARE = Catalog(providers=FULL.providers, tools=FULL.tools)
TOOL = {"name": "lookup", "description": "Looks it up", "inputSchema": {"type": "object"}}
TEXT = {"type": "text", "mediaType": "text/plain", "source": {"id": "a", "revision": "1"}, "text": "x"}
REFERENCE = {"type": "reference", "id": "r", "revision": "1", "mediaType": "text/plain"}
SESSION = {"id": "6f1d0d0a-6a5f-4d7e-9d3a-0a1b2c3d4e5f", "revision": 0}
DEEP: Any = {}
for _ in range(70):
    DEEP = {"a": DEEP}


def run(**members: Any) -> dict[str, Any]:
    return {"provider": "mock", "model": "demo", "input": "Hello", **members}


def refusal(document: object, catalog: Catalog = FULL) -> str:
    with pytest.raises(Refused) as caught:
        checked(document, catalog)
    assert not caught.value.problem.retryable
    return caught.value.code


def test_a_plain_request_is_accepted_and_absent_members_stay_absent() -> None:
    request = checked(run(), BARE)
    assert request == RunRequest(provider="mock", model="demo", input="Hello")
    assert bytes(encoded_request(request)) == b'{"provider":"mock","model":"demo","input":"Hello"}'


FULLEST = run(
    instructions="",
    history=[{"role": "user", "content": ""}, {"role": "assistant", "content": "b"}],
    attachments=[TEXT, REFERENCE],
    retrieval={
        "corpus": "c", "sourceIds": ["a"], "query": "q", "limit": 14, "maxContextBytes": 1, "minScore": -1
    },
    outputArtifact={"name": "a.json", "mediaType": "application/json"},
    idempotencyKey="k:1",
    retry={"maxAttempts": 5, "baseDelayMs": 0, "maxDelayMs": 60_000},
    approvals={"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 2**31 - 1},
    applicationTools=[{**TOOL, "outputSchema": {"maximum": 2**70}, "requiresApproval": False}],
    tools=["clock", "lookup"],
    requiredCapabilities=["tools", "textStreaming"],
    maxSteps=64,
    maxOutputTokens=65_536,
    idleTimeoutMs=0,
    outputSchema={"const": 1.0, "maximum": 2**63, "enum": [1, 1.0, 1e300]},
    metadata={"": "x" * 500, "k" * 80: ""},
)  # fmt: skip


def test_a_request_with_every_member_survives_the_log_unchanged() -> None:
    request = checked(FULLEST, FULL)
    stored = bytes(encoded_request(request))
    assert decoded_request(stored) == request
    assert bytes(encoded_request(decoded_request(stored))) == stored
    assert b'"outputSchema":{"const":1.0,"maximum":9223372036854775808,"enum":[1,1.0,1e+300]}' in stored
    assert b'"maximum":1180591620717411303424' in stored


def test_whole_floats_count_as_integers_and_are_kept_as_such() -> None:
    request = checked(run(maxSteps=3.0, idleTimeoutMs=1e3), BARE)
    assert bytes(encoded_request(request)).endswith(b'"maxSteps":3,"idleTimeoutMs":1000}')


def test_lengths_count_utf_16_units() -> None:
    checked(run(input="\U0001f600" * 50_000), BARE)
    assert refusal(run(input="\U0001f600" * 50_000 + "x")) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "document", [None, [], "", 1, True, {}, {1: 2}, {"provider": "mock", "model": "demo"}], ids=repr
)
def test_what_is_no_request_object_is_invalid(document: object) -> None:
    assert refusal(document) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("apiKey", "k"), ("maxsteps", 1), ("max_steps", 1),
        *((name, None) for name in FULLEST), ("session", None),
        *((name, True) for name in FULLEST if name != "input"), ("input", True),
        ("provider", ""), ("provider", "-a"), ("provider", "mock\n"), ("provider", "a" * 81), ("provider", "mück"),
        ("model", ""), ("model", "demo\n"), ("model", "a" * 201), ("model", "a b"),
        ("input", ""), ("input", "x" * 100_001), ("input", "\ud800"), ("instructions", "x" * 100_001),
        ("history", [{"role": "system", "content": ""}]), ("history", [{"role": "user"}]), ("history", {}),
        ("history", [{"role": "user", "content": "", "name": "x"}]), ("history", [{"role": "user", "content": ""}] * 101),
        ("attachments", [TEXT] * 17), ("attachments", [{}]), ("attachments", [{**TEXT, "type": "video"}]),
        ("attachments", [{**TEXT, "text": ""}]), ("attachments", [{**TEXT, "mediaType": "image/png"}]),
        ("attachments", [{**TEXT, "source": {"id": "a"}}]), ("attachments", [{**TEXT, "extra": 1}]),
        ("attachments", [{**REFERENCE, "source": {"id": "a", "revision": "1"}}]), ("attachments", [{**TEXT, "type": []}]),
        ("retrieval", {}), ("retrieval", {"corpus": "c", "limit": 17}), ("retrieval", {"corpus": "c", "sourceIds": []}),
        ("retrieval", {"corpus": "c", "minScore": 1.1}), ("retrieval", {"corpus": "c", "query": ""}),
        ("outputArtifact", {"name": "a/b", "mediaType": "text/plain"}), ("outputArtifact", {"name": "a\tb", "mediaType": "text/plain"}),
        ("outputArtifact", {"name": "", "mediaType": "text/plain"}), ("outputArtifact", {"name": "a", "mediaType": "text/html"}),
        ("idempotencyKey", ""), ("idempotencyKey", "a" * 129), ("idempotencyKey", "k\n"), ("idempotencyKey", "_k"),
        ("retry", {}), ("retry", {"maxAttempts": 0}), ("retry", {"maxAttempts": 6}), ("retry", {"maxAttempts": 1.5}),
        ("retry", {"maxAttempts": 1, "baseDelayMs": 60_001}), ("retry", {"maxAttempts": 1, "maxDelayMs": -1}),
        ("session", {"id": "x", "revision": 0}), ("session", {**SESSION, "revision": SAFE + 1}), ("session", {**SESSION, "revision": -1}),
        ("approvals", {"mode": "interactive"}), ("approvals", {"mode": "auto", "idlePolicy": "pause"}),
        ("approvals", {"mode": "interactive", "idlePolicy": "pause", "expiresAfterMs": 0}),
        ("applicationTools", []), ("applicationTools", [TOOL] * 33), ("applicationTools", [{**TOOL, "name": "1a"}]),
        ("applicationTools", [{**TOOL, "description": ""}]), ("applicationTools", [{**TOOL, "inputSchema": []}]),
        ("applicationTools", [{**TOOL, "inputSchema": True}]), ("applicationTools", [{**TOOL, "requiresApproval": 1}]),
        ("tools", ["clock"] * 33), ("tools", ["a-b"]), ("tools", ["clock\n"]), ("tools", "clock"), ("tools", [1]),
        ("requiredCapabilities", ["tools", "tools"]), ("requiredCapabilities", ["1"]), ("requiredCapabilities", ["t"] * 33),
        ("maxSteps", 0), ("maxSteps", 65), ("maxSteps", "8"), ("maxSteps", 1.5), ("maxSteps", float("inf")), ("maxSteps", float("nan")),
        ("maxOutputTokens", 65_537), ("idleTimeoutMs", -1), ("idleTimeoutMs", 2**31), ("idleTimeoutMs", 10**400),
        ("outputSchema", []), ("outputSchema", "{}"), ("outputSchema", {"a": float("nan")}), ("outputSchema", {1: 2}), ("outputSchema", DEEP),
        ("metadata", {"a": 1}), ("metadata", {"k" * 81: ""}), ("metadata", {"k": "x" * 501}), ("metadata", {str(n): "" for n in range(33)}),
        ("metadata", {"\ud800": ""}), ("metadata", []),
    ],
)  # fmt: skip
def test_a_member_of_the_wrong_shape_is_invalid(member: str, value: object) -> None:
    assert refusal(run(**{member: value})) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("code", "members", "catalog"),
    [
        ("SESSIONS_UNAVAILABLE", {"session": SESSION, "history": []}, BARE),
        ("SESSION_HISTORY_CONFLICT", {"session": SESSION, "history": []}, FULL),
        ("SESSION_HISTORY_CONFLICT", {"session": SESSION, "instructions": ""}, FULL),
        ("SESSION_CONTEXT_UNSUPPORTED", {"session": SESSION, "attachments": [TEXT]}, FULL),
        ("SESSION_CONTEXT_UNSUPPORTED", {"session": SESSION, "retrieval": {"corpus": "c"}}, FULL),
        ("RETRIEVAL_UNAVAILABLE", {"retrieval": {"corpus": "c"}}, BARE),
        ("INVALID_RETRIEVAL", {"retrieval": {"corpus": "c"}, "attachments": [TEXT] * 9}, FULL),
        ("INVALID_RETRIEVAL", {"retrieval": {"corpus": "c", "limit": 16}, "attachments": [TEXT]}, FULL),
        ("IDEMPOTENCY_UNAVAILABLE", {"idempotencyKey": "k"}, BARE),
        ("UNKNOWN_PROVIDER", {"provider": "absent"}, FULL),
        ("INVALID_CONTEXT", {"attachments": [TEXT, TEXT]}, FULL),
        ("CONTEXT_UNAVAILABLE", {"attachments": [REFERENCE]}, BARE),
        ("UNSUPPORTED_MODALITY", {"attachments": [{**REFERENCE, "mediaType": "application/pdf"}]}, FULL),
        ("INVALID_ARTIFACT", {"outputArtifact": {"name": "..", "mediaType": "text/plain"}}, FULL),
        ("INVALID_ARTIFACT", {"outputArtifact": {"name": "a", "mediaType": "application/json"}}, FULL),
        ("UNSUPPORTED_CAPABILITY", {"provider": "bare", "retry": {"maxAttempts": 2}}, FULL),
        ("UNSUPPORTED_MODEL", {"model": "other"}, FULL),
        ("UNSUPPORTED_MODEL", {"provider": "closed"}, FULL),
        ("UNSUPPORTED_CAPABILITY", {"requiredCapabilities": ["telepathy"]}, FULL),
        ("UNSUPPORTED_CAPABILITY", {"requiredCapabilities": ["tools", "off"]}, FULL),
        ("UNSUPPORTED_TOOLS", {"provider": "bare", "tools": ["clock", "clock"]}, FULL),
        ("INVALID_REQUEST", {"tools": ["clock", "clock"]}, FULL),
        ("APPLICATION_TOOLS_UNAVAILABLE", {"applicationTools": [TOOL]}, BARE),
        ("TOOL_DEFINITION_CONFLICT", {"applicationTools": [{**TOOL, "name": "clock"}], "tools": ["clock"]}, FULL),
        ("TOOL_DEFINITION_CONFLICT", {"applicationTools": [TOOL, TOOL], "tools": ["lookup"]}, FULL),
        ("INVALID_REQUEST", {"applicationTools": [TOOL], "tools": ["absent"]}, FULL),
        ("TOOL_DEFINITION_LIMIT", {"applicationTools": [{**TOOL, "inputSchema": {"$comment": "x" * 128_000}}], "tools": ["lookup"]}, FULL),
        ("INVALID_SCHEMA", {"applicationTools": [{**TOOL, "inputSchema": {"type": "nope"}}], "tools": ["lookup"]}, FULL),
        ("INVALID_SCHEMA", {"applicationTools": [{**TOOL, "outputSchema": {"$ref": "http://x/y"}}], "tools": ["lookup"]}, FULL),
        ("UNKNOWN_TOOL", {"tools": ["clock", "absent"]}, FULL),
        ("UNKNOWN_TOOL", {"tools": ["lookup"], "approvals": {"mode": "interactive", "idlePolicy": "pause"}}, BARE),
        ("APPROVAL_UNAVAILABLE", {"approvals": {"mode": "interactive", "idlePolicy": "pause"}}, BARE),
        ("INVALID_SCHEMA", {"outputSchema": {"$async": True}}, FULL),
    ],
)  # fmt: skip
def test_each_rule_has_its_code(code: str, members: dict[str, Any], catalog: Catalog) -> None:
    assert refusal(run(**members), catalog) == code


def test_a_host_may_forbid_that_an_approval_stops_the_idle_timer() -> None:
    features = Features(approvals=True, approvals_may_pause=False)
    catalog = Catalog(providers=FULL.providers, features=features)
    assert refusal(run(approvals={"mode": "interactive", "idlePolicy": "pause"}), catalog) == "APPROVAL_POLICY"
    checked(run(approvals={"mode": "interactive", "idlePolicy": "continue"}), catalog)


def test_an_open_allowlist_takes_every_model_and_a_closed_one_none() -> None:
    checked(run(provider="bare", model="any/thing:[x]"), FULL)
    assert refusal(run(provider="closed")) == "UNSUPPORTED_MODEL"


def test_the_first_broken_rule_wins_down_the_whole_list() -> None:
    """Each step breaks one more rule, from the last to the first, and the code moves forward with it."""
    host = Catalog(providers={"mock": ProviderFacts(models=(), capabilities={})}, features=Features(retrieval=True))
    steps: list[tuple[str, dict[str, Any]]] = [
        ("UNSUPPORTED_TOOLS", {"outputSchema": {"type": 1}, "tools": ["t", "t"], "approvals": {"mode": "interactive", "idlePolicy": "pause"}}),
        ("UNSUPPORTED_CAPABILITY", {"requiredCapabilities": ["x"]}),
        ("UNSUPPORTED_MODEL", {"model": "other"}),
        ("UNSUPPORTED_CAPABILITY", {"retry": {"maxAttempts": 2}}),
        ("INVALID_ARTIFACT", {"outputArtifact": {"name": ".", "mediaType": "text/plain"}}),
        ("CONTEXT_UNAVAILABLE", {"attachments": [REFERENCE]}),
        ("INVALID_CONTEXT", {"attachments": [REFERENCE, REFERENCE]}),
        ("UNKNOWN_PROVIDER", {"provider": "absent"}),
        ("IDEMPOTENCY_UNAVAILABLE", {"idempotencyKey": "k"}),
        ("INVALID_RETRIEVAL", {"retrieval": {"corpus": "c", "limit": 16}}),
        ("SESSIONS_UNAVAILABLE", {"session": SESSION}),
        ("INVALID_REQUEST", {"apiKey": "k"}),
    ]  # fmt: skip
    document = run()
    open_models = Catalog(providers={"mock": ProviderFacts(capabilities={})}, features=host.features)
    for code, members in steps:
        document |= members
        catalog = open_models if code == "UNSUPPORTED_TOOLS" or document["model"] == "demo" else host
        assert refusal(document, catalog) == code


def test_a_request_may_lower_a_limit_of_the_host_but_not_raise_it() -> None:
    host = HostLimits(max_steps=4, max_output_tokens=100, idle_timeout_ms=50, max_attempts=2)
    plain, wide = (
        checked(run(), FULL),
        checked(run(maxSteps=64, maxOutputTokens=65_536, idleTimeoutMs=90, retry={"maxAttempts": 5}), FULL),
    )
    tight = checked(run(maxSteps=1, maxOutputTokens=1, idleTimeoutMs=1), FULL)
    unlimited = HostLimits()
    assert [max_steps(each, unlimited) for each in (plain, wide, tight)] == [8, 64, 1]
    assert [max_steps(each, host) for each in (plain, wide, tight)] == [4, 4, 1]
    assert [max_output_tokens(each, unlimited) for each in (plain, wide, tight)] == [4096, 65_536, 1]
    assert [max_output_tokens(each, host) for each in (plain, wide, tight)] == [100, 100, 1]
    assert [idle_timeout_ms(each, unlimited) for each in (plain, wide, tight)] == [None, 90, 1]
    assert [idle_timeout_ms(each, host) for each in (plain, wide, tight)] == [50, 50, 1]
    assert [attempts(each, unlimited) for each in (plain, wide)] == [1, 5]
    assert [attempts(each, host) for each in (plain, wide)] == [1, 2]


def test_idle_timeout_zero_is_no_wish() -> None:
    request = checked(run(idleTimeoutMs=0), BARE)
    assert idle_timeout_ms(request, HostLimits()) is None
    assert idle_timeout_ms(request, HostLimits(idle_timeout_ms=20)) == 20
    assert idle_timeout_ms(request, HostLimits(idle_timeout_ms=0)) is None


def test_a_retry_policy_has_the_protocols_defaults() -> None:
    plain, zero = checked(run(), FULL), checked(run(retry={"maxAttempts": 3, "baseDelayMs": 0, "maxDelayMs": 0}), FULL)
    policy, none = retry_policy(plain, HostLimits()), retry_policy(zero, HostLimits())
    assert (policy.max_attempts, policy.base_delay_ms, policy.max_delay_ms) == (1, 500, 30_000)
    assert (none.max_attempts, none.base_delay_ms, none.max_delay_ms) == (3, 0, 0)
