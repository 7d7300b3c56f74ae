"""What the command line says beside a refusal: where to look, and what to change."""

from pathlib import Path

import pytest

from runstream.mending import asking, looking, mended, remote
from runstream.models import with_named
from runstream.settings import Settings

SCRIPTED = Settings(state_dir=Path("state"))


def test_a_line_that_begins_with_a_code_that_can_be_mended_says_how() -> None:
    lines = ["BUSY: later", "NOT_FOUND: nothing here", "stopped"]
    assert mended(lines, {"NOT_FOUND": "look elsewhere"}) == [
        "BUSY: later",
        "NOT_FOUND: nothing here -> look elsewhere",
        "stopped",
    ]


@pytest.mark.parametrize(
    ("provider", "base_url", "code", "mend"),
    [
        ("scripted", "", "UNSUPPORTED_MODEL", "`runstream providers scripted` tells which there are"),
        ("nobody", "", "UNKNOWN_PROVIDER", "`runstream providers` tells which there are"),
        ("openai", "", "AUTH_REQUIRED", "put it into the variable OPENAI_API_KEY"),
        ("openai", "", "PROVIDER_UNREACHABLE", "it was looked for at https://api.openai.com/v1/"),
        ("openai-compatible", "http://127.0.0.1:1/v1", "AUTH_REQUIRED", "give it one in the settings"),
        (
            "openai-compatible",
            "http://127.0.0.1:1/v1",
            "PROVIDER_UNREACHABLE",
            "it was looked for at http://127.0.0.1:1/v1/",
        ),
        (
            "openai-compatible",
            "http://127.0.0.1:1/v1",
            "UNSUPPORTED_MODEL",
            "`runstream providers --base-url http://127.0.0.1:1/v1` tells which there are",
        ),
    ],
)
def test_a_question_to_a_provider_says_what_mends_it(provider: str, base_url: str, code: str, mend: str) -> None:
    settings = with_named(SCRIPTED, provider, base_url)
    assert asking(settings, provider, base_url)[code] == mend


def test_a_host_elsewhere_is_reached_by_its_address_alone_and_with_a_token_of_its() -> None:
    mends = remote("mock")
    assert "/v1" in mends["NOT_FOUND"]
    assert "RUNSTREAM_TOKEN" in mends["UNAUTHORIZED"]
    assert "the provider mock" in mends["FORBIDDEN"]


def test_a_run_that_is_not_found_may_be_in_another_place() -> None:
    assert looking(SCRIPTED)["RUN_NOT_FOUND"].startswith(f"looked for in {SCRIPTED.state_dir}; --state-dir")
