"""What an answer must look like where no vector shows it: lengths to the last character, and what must agree with what."""

from typing import Any

import pytest

from runstream_client.conformance.cases import suite
from runstream_client.evidence import Location
from runstream_client.providers import Provider
from runstream_client.records import Job
from runstream_client.results import RunResult
from runstream_client.shapes import shaped
from runstream_client.strict_json import Unsound

from .telling import job

RESULT: Any = suite("context")["clientResult"]["base"]
SOURCE: Any = RESULT["sources"][0]
DRAFT: Any = {
    "id": "7d0f3c52-91ab-4c6e-8a15-2b6d4e0c9f31",
    "name": "letter.txt",
    "mediaType": "text/plain",
    "status": "draft",
    "content": "Dear all",
    "sha256": "a" * 64,
    "sourceIds": [SOURCE["id"]],
}


@pytest.mark.parametrize(
    ("section", "sound"), [("x" * 256, True), ("x" * 257, False), ("😀" * 128, True), ("😀" * 129, False)]
)
def test_a_length_is_counted_in_units_of_utf_16(section: str, *, sound: bool) -> None:
    if sound:
        assert shaped(Location, {"section": section}).section == section
    else:
        with pytest.raises(Unsound):
            shaped(Location, {"section": section})


@pytest.mark.parametrize(
    ("change", "sound"),
    [
        ({}, True),
        ({"sourceIds": []}, True),
        ({"sourceIds": [SOURCE["id"]] * 2}, False),
        ({"sourceIds": ["another"]}, False),
        ({"status": "sent"}, False),
        ({"name": ".."}, False),
        ({"name": "a/b"}, False),
        ({"name": "x" * 128}, True),
        ({"name": "x" * 129}, False),
        ({"content": "x" * 262_144}, True),
        ({"content": "x" * 262_145}, False),
        ({"sha256": "A" * 64}, False),
        ({"later": 1}, False),
    ],
)
def test_a_draft_is_one_of_sources_that_were_given(change: dict[str, Any], *, sound: bool) -> None:
    result = {**RESULT, "artifacts": [DRAFT | change]}
    if sound:
        assert shaped(RunResult, result).artifacts
    else:
        with pytest.raises(Unsound):
            shaped(RunResult, result)


@pytest.mark.parametrize(("count", "sound"), [(16, True), (17, False)])
def test_a_run_has_no_more_sources_than_it_may(count: int, *, sound: bool) -> None:
    result = {**RESULT, "sources": [SOURCE | {"id": f"s{number}"} for number in range(count)], "artifacts": []}
    if sound:
        assert len(shaped(RunResult, result).sources or ()) == count
    else:
        with pytest.raises(Unsound):
            shaped(RunResult, result)


@pytest.mark.parametrize(
    ("state", "cursor", "sound"), [("completed", 2, True), ("completed", 1, False), ("queued", 1, False)]
)
def test_a_job_that_has_ended_has_the_events_of_its_end(state: str, cursor: int, *, sound: bool) -> None:
    if sound:
        assert shaped(Job, job(cursor, state)).ended
    else:
        with pytest.raises(Unsound):
            shaped(Job, job(cursor, state))


@pytest.mark.parametrize("missing", ["tools", "textStreaming"])
def test_a_provider_says_whether_it_can_do_what_everybody_asks_for(missing: str) -> None:
    provider = suite("client-conformance")["bases"]["providers"]["providers"][0]
    assert shaped(Provider, provider).capabilities
    capable = {name: able for name, able in provider["capabilities"].items() if name != missing}
    with pytest.raises(Unsound):
        shaped(Provider, provider | {"capabilities": capable})


@pytest.mark.parametrize("odd", [4.0, "4", True, None, -1, 2**53, 10**400])
@pytest.mark.parametrize("member", ["inputTokens", "costUsd"])
def test_usage_is_counted_in_numbers_that_everybody_can_hold(member: str, odd: Any) -> None:
    if member == "costUsd" and odd in (4.0, 2**53) and odd is not True:
        assert shaped(RunResult, {**RESULT, "usage": {member: odd}}).usage.cost_usd == odd
        return
    with pytest.raises(Unsound):
        shaped(RunResult, {**RESULT, "usage": {member: odd}})
