"""What a token allows, and which policies are none."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.request_parts import ApplicationTool, RetrievalOption, RunRequest, SessionOption
from api.grants import InvalidPolicy, Principal, TokenEntry, Tokens, allows_run, token_digest

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
