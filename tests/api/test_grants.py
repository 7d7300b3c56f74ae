"""What a token allows, and which policies are none."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.events import RunAccepted
from actors.request import encoded_request
from actors.request_parts import ApplicationTool, RetrievalOption, RunRequest, SessionOption
from api.grants import (
    InvalidPolicy,
    Principal,
    Principals,
    TokenEntry,
    Tokens,
    allows_run,
    holder_of,
    may_use_job,
    still_allows,
    token_digest,
)

TOKEN = "a-token-of-at-least-32-characters"
OTHER = "another-token-of-32-characters-or-more"


def entry(**members: object) -> TokenEntry:
    given_members = {"digest": token_digest(TOKEN), "subject": "ann", "providers": ["mock"]} | members
    return msgspec.convert(given_members, TokenEntry)


def principal(**members: object) -> Principal:
    found = Tokens([entry(**members)]).principal(TOKEN)
    assert found is not None
    return found


def request(**members: object) -> RunRequest:
    return RunRequest(**({"provider": "mock", "model": "demo", "input": "hi"} | members))  # type: ignore[arg-type]


def tool(name: str) -> ApplicationTool:
    return ApplicationTool(name=name, description="x", input_schema=msgspec.Raw(b"{}"))


def test_a_bearer_is_known_by_its_digest_alone() -> None:
    found = principal()
    assert found.subject == "ann"
    assert found.id == hashlib.sha256(TOKEN.encode()).hexdigest()
    assert TOKEN not in repr(found)


@given(st.text(max_size=200))
def test_no_other_bearer_is_anybody(bearer: str) -> None:
    tokens = Tokens([entry()])
    assert (tokens.principal(bearer) is None) == (bearer != TOKEN)


def test_two_entries_with_one_token_are_refused() -> None:
    with pytest.raises(InvalidPolicy, match="two entries"):
        Tokens([entry(), entry(subject="bo")])


@pytest.mark.parametrize(
    "members",
    [
        {"subject": ""},
        {"subject": "a" * 129},
        {"subject": "\U0001f600" * 65},
        {"providers": ["a"] * 257},
        {"providers": [""]},
        {"providers": ["a" * 257]},
        {"tools": [""]},
        {"approveTools": ["a"] * 257},
        {"applicationTools": [{"name": "no-dash"}]},
        {"applicationTools": [{"name": "a"}, {"name": "a"}]},
        {"applicationTools": [{"name": "a", "extra": 1}]},
        {"applicationTools": [{"name": f"a{n}"} for n in range(33)]},
        {"jobs": ["events"]},
        {"jobs": ["read"] * 4},
        {"sessions": ["create"] * 5},
        {"retrieval": {"search": [".x"]}},
        {"retrieval": {"delete": ["a"] * 257}},
        {"retrieval": {"ingest": []}},
        {"manageProviders": 1},
        {"digest": "A" * 64},
        {"digest": "a" * 63},
        {"token": TOKEN},
        {"providers": None},
    ],
)
def test_a_malformed_policy_is_refused_where_it_is_made(members: dict[str, object]) -> None:
    with pytest.raises((InvalidPolicy, msgspec.ValidationError)):
        entry(**members)


def test_a_direct_construction_is_checked_too() -> None:
    with pytest.raises(InvalidPolicy, match="subject"):
        TokenEntry(digest=token_digest(TOKEN), subject="", providers=())


@pytest.mark.parametrize(
    "token", ["short", "x" * 31, "x" * 4097, "with a space in it, otherwise long enough", "ä" * 32]
)
def test_a_token_that_no_client_could_send_is_refused(token: str) -> None:
    with pytest.raises(InvalidPolicy):
        token_digest(token)


@pytest.mark.parametrize(
    ("granted", "asked"),
    [
        ({}, {}),
        ({"tools": ["t"]}, {"tools": ("t",)}),
        ({"applicationTools": [{"name": "t"}]}, {"tools": ("t",), "application_tools": (tool("t"),)}),
        ({"retrieval": {"search": ["c"]}}, {"retrieval": RetrievalOption(corpus="c")}),
        ({"sessions": ["continue"]}, {"session": SessionOption("s", 1)}),
    ],
)
def test_what_is_granted_may_be_run(granted: dict[str, object], asked: dict[str, object]) -> None:
    assert allows_run(principal(**granted), request(**asked)) is None


@pytest.mark.parametrize(
    ("granted", "asked"),
    [
        ({"providers": []}, {}),
        ({"providers": [], "manageProviders": True}, {}),
        ({"approveTools": ["t"]}, {"tools": ("t",)}),
        ({"applicationTools": [{"name": "t"}]}, {"tools": ("t",)}),
        ({"tools": ["t"]}, {"tools": ("t",), "application_tools": (tool("t"),)}),
        ({"retrieval": {"index": ["c"], "delete": ["c"]}}, {"retrieval": RetrievalOption(corpus="c")}),
        ({"sessions": ["create", "read", "delete"]}, {"session": SessionOption("s", 1)}),
    ],
)
def test_what_is_not_granted_is_forbidden(granted: dict[str, object], asked: dict[str, object]) -> None:
    refusal = allows_run(principal(**granted), request(**asked))
    assert refusal is not None
    assert refusal.code == "FORBIDDEN"


def test_an_omitted_approval_rule_of_an_application_tool_forces_one() -> None:
    assert principal(applicationTools=[{"name": "t"}]).policy.application_tools[0].requires_approval


# Sessions and jobs.


def test_a_principal_is_found_again_by_its_id() -> None:
    tokens: Principals = Tokens([entry()])
    found = tokens.principal(TOKEN)
    assert found is not None
    assert tokens.durable(found.id) is found
    assert tokens.durable("") is None
    assert tokens.durable(TOKEN) is None
    assert tokens.durable(token_digest(OTHER)) is None


def test_a_holder_may_what_its_policy_says() -> None:
    holder = holder_of(principal(sessions=["create", "delete"]))
    assert (holder.subject, holder.operations) == ("ann", frozenset({"create", "delete"}))
    assert (holder.may_use("mock"), holder.may_use("other")) == (True, False)
    assert holder_of(principal()).operations == frozenset()


USES: dict[str, object] = {"tools": ("t",), "retrieval": RetrievalOption(corpus="c")}
COVERS: dict[str, object] = {"tools": ["t"], "retrieval": {"search": ["c"]}}
FALLS_SHORT: list[dict[str, object]] = [{"providers": ["other"]}, {"tools": ["u"]}, {"retrieval": {"index": ["c"]}}]


def stored(**members: object) -> RunAccepted:
    """A job as its log keeps it, submitted with the only token there is."""
    accepted = encoded_request(request(**members))
    return RunAccepted(0, "ann", "mock", "demo", accepted, origin="job", principal=token_digest(TOKEN))


def test_a_stored_job_may_be_used_by_whom_all_grants_allow_what_it_uses() -> None:
    enough = principal(**COVERS)
    assert may_use_job(enough)(stored(**USES))
    assert may_use_job(enough, enough)(stored(**USES))
    for less in FALLS_SHORT:
        assert not may_use_job(principal(**COVERS | less))(stored(**USES))
        assert not may_use_job(enough, principal(**COVERS | less))(stored(**USES))
        assert not may_use_job(principal(**COVERS | less), enough)(stored(**USES))


def test_a_job_is_taken_up_only_while_its_principal_may_still_run_it() -> None:
    now = COVERS | {"jobs": ["submit"]}
    assert still_allows(Tokens([entry(**now)]), stored(**USES)) is None
    lost: list[dict[str, object]] = [
        *FALLS_SHORT,
        {"jobs": ["read", "cancel"]},
        {"subject": "bo"},
        {"digest": token_digest(OTHER)},
    ]
    for change in lost:
        problem = still_allows(Tokens([entry(**now | change)]), stored(**USES))
        assert problem is not None, change
        assert (problem.code, problem.retryable) == ("FORBIDDEN", False)
    assert still_allows(Tokens([]), stored()) is not None


@given(st.sets(st.sampled_from(["a", "b"])), st.sets(st.sampled_from(["a", "b"])), st.sets(st.sampled_from(["a", "b"])))
def test_two_grants_allow_what_each_of_them_does(first: set[str], second: set[str], wanted: set[str]) -> None:
    may = may_use_job(principal(tools=sorted(first)), principal(tools=sorted(second)))
    assert may(stored(tools=tuple(sorted(wanted)))) == (wanted <= first & second)
