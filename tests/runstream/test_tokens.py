"""Tokens: what is made, and the entry that lets it in."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.grants import ApplicationToolGrant, InvalidPolicy, RetrievalGrant, TokenEntry, Tokens
from runstream import tokens
from runstream.settings import Settings
from runstream.sources import Places, settings_of

pytestmark = pytest.mark.anyio

NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9), max_size=3).map(tuple)


def settings(toml: str, folder: Places) -> Settings:
    return settings_of(tomllib.loads(toml), folder, folder.home)


@pytest.fixture
def where(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("home")
    return Places(folder, folder, folder)


async def test_a_token_is_long_new_and_fit_for_a_header() -> None:
    made = {await tokens.fresh() for _ in range(50)}
    assert len(made) == 50
    assert all(len(one) == 43 and one.isascii() and one.replace("-", "").replace("_", "").isalnum() for one in made)


async def test_the_entry_lets_its_token_in_and_no_other(where: Places) -> None:
    token = await tokens.fresh()
    entry = tokens.entry_for(token, subject="alice", providers=("scripted",))
    known = Tokens(settings(tokens.toml(entry), where).tokens)
    principal = known.principal(token)
    assert principal is not None
    assert principal.subject == "alice"
    assert known.principal(await tokens.fresh()) is None
    assert token not in tokens.toml(entry)


@given(
    st.builds(
        TokenEntry,
        digest=st.just("ab" * 32),
        subject=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        providers=NAMES,
        tools=NAMES,
        approve_tools=NAMES,
        application_tools=st.lists(
            st.builds(ApplicationToolGrant, st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.booleans()),
            max_size=3,
            unique_by=lambda grant: grant.name,
        ).map(tuple),
        jobs=st.sampled_from([(), ("read",), ("submit", "read", "cancel")]),
        sessions=st.sampled_from([(), ("continue",)]),
        retrieval=st.sampled_from([RetrievalGrant(), RetrievalGrant(("a",), ("b", "c"))]),
        manage_providers=st.booleans(),
        read_metrics=st.booleans(),
    )
)
def test_the_settings_read_every_entry_as_it_was_made(entry: TokenEntry) -> None:

    where = Places(Path("/"), Path("/"), Path("/"))
    assert settings(tokens.toml(entry), where).tokens == (entry,)


def test_a_policy_that_breaks_a_rule_makes_no_entry() -> None:
    with pytest.raises(InvalidPolicy, match="subject"):
        tokens.entry_for("x" * 43, subject="", providers=())
    with pytest.raises(InvalidPolicy, match="token"):
        tokens.entry_for("short", subject="a", providers=())
