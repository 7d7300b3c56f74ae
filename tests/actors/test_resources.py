"""The resource authority: what it answers, fails at or keeps to itself, and what becomes of the step."""

import logging
from typing import Any

import anyio
import pytest
from msgspec.structs import fields

from actors.events import Usage
from actors.resources import ResourceAuthority, ResourceQuestion, UnknownPolicy, judged

pytestmark = pytest.mark.anyio

QUESTION = ResourceQuestion(
    provider="fake",
    subject="ann",
    host_id="h",
    account=None,
    run_id="r1",
    model="m",
    step=2,
    usage=Usage(input_tokens=3),
)


def answering(answer: Any) -> ResourceAuthority:
    async def authority(_: ResourceQuestion, /) -> Any:
        return answer

    return authority


def raising(error: BaseException) -> ResourceAuthority:
    async def authority(_: ResourceQuestion, /) -> Any:
        raise error

    return authority


async def code(authority: ResourceAuthority, unknown: UnknownPolicy = "reject") -> str | None:
    problem = await judged(authority, QUESTION, unknown)
    assert problem is None or not problem.retryable
    return None if problem is None else problem.code


@pytest.mark.parametrize(
    ("answer", "unknown", "outcome"),
    [
        ("allow", "reject", None),
        ("deny", "allow", "RESOURCE_ADMISSION_DENIED"),
        ("unknown", "reject", "RESOURCE_USAGE_UNKNOWN"),
        ("unknown", "allow", None),
    ],
)
async def test_an_answer_lets_the_step_begin_or_ends_the_run(
    answer: str, unknown: UnknownPolicy, outcome: str | None
) -> None:
    assert await code(answering(answer), unknown) == outcome


@pytest.mark.parametrize("answer", [None, True, 1, "Allow", "", ["allow"], {"answer": "allow"}])
async def test_any_other_answer_is_none(answer: Any) -> None:
    assert await code(answering(answer), "allow") == "RESOURCE_POLICY_UNAVAILABLE"


@pytest.mark.parametrize(
    "error", [ValueError("sk-private"), SystemExit(3), TimeoutError(), ExceptionGroup("", [OSError()])]
)
async def test_an_authority_that_fails_lets_nothing_begin_and_only_its_kind_is_told(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert await code(raising(error), "allow") == "RESOURCE_POLICY_UNAVAILABLE"
    assert type(error).__name__ in caplog.text
    assert "private" not in caplog.text


async def test_an_authority_that_cancels_itself_ends_alone() -> None:
    assert await code(raising(anyio.get_cancelled_exc_class()())) == "RESOURCE_POLICY_UNAVAILABLE"


async def test_the_end_of_the_run_ends_the_asking() -> None:
    seen = list[str]()

    async def waiting(_: ResourceQuestion, /) -> Any:
        try:
            asked.set()
            await anyio.sleep_forever()
        finally:
            seen.append("stopped")

    asked = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(judged, waiting, QUESTION, "allow")
        await asked.wait()
        tasks.cancel_scope.cancel()
    assert seen == ["stopped"]


async def test_the_authority_is_asked_once_about_identities_and_counts_alone() -> None:
    asked = list[ResourceQuestion]()

    async def noting(question: ResourceQuestion, /) -> Any:
        asked.append(question)
        return "allow"

    assert await code(noting) is None
    assert asked == [QUESTION]
    names = [field.name for field in fields(ResourceQuestion)]
    assert names == ["provider", "subject", "host_id", "account", "run_id", "model", "step", "usage"]
