"""What is written down of each vendor and of each failure is what the protocol's tables say."""

import pytest

from providers.failures import FAILURES, failed, of_status
from providers.vendors import VENDORS

PDF = {"m": ("application/pdf",)}


@pytest.mark.parametrize(
    ("kind", "vendor", "url", "key", "stat", "native"),
    [
        ("openai", "openai", "https://api.openai.com/v1/", "OPENAI_API_KEY", "openai-api", True),
        ("openai-compatible", "openai-compatible", "", "", "openai-compatible", False),
        ("anthropic", "anthropic", "https://api.anthropic.com/v1/", "ANTHROPIC_API_KEY", "claude", True),
        ("gemini", "gemini", "https://generativelanguage.googleapis.com/v1beta/", "GEMINI_API_KEY", None, True),
        ("xai", "xai", "https://api.x.ai/v1/", "XAI_API_KEY", None, True),
        ("xai-chat", "xai", "https://api.x.ai/v1/", "XAI_API_KEY", None, False),
    ],
)
def test_a_vendor_is_where_and_what_its_documentation_says(
    kind: str,
    vendor: str,
    url: str,
    key: str,
    stat: str | None,
    native: bool,  # noqa: FBT001
) -> None:
    known = {name: row for name, row in VENDORS.items() if name == kind}[kind]  # type: ignore[index]
    assert (known.vendor, known.base_url, known.key_env) == (vendor, url, key)
    info = known.info(instance="it", name="", auth_mode="api-key", models=None, media={}, tools=True, account=None)
    assert (info.vendor, info.usage_stat_id, info.usage_source) == (vendor, stat, "provider-response")
    assert info.capabilities == {
        "tools": True,
        "textStreaming": True,
        "safeRetries": True,
        "historyContinuation": True,
        "nativeContinuation": native,
        "images": False,
        "documents": False,
    }


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("openai", {"authorization": "Bearer k"}),
        ("openai-compatible", {"authorization": "Bearer k"}),
        ("anthropic", {"x-api-key": "k", "anthropic-version": "2023-06-01"}),
        ("gemini", {"x-goog-api-key": "k"}),
        ("xai", {"authorization": "Bearer k"}),
        ("xai-chat", {"authorization": "Bearer k"}),
    ],
)
def test_a_key_goes_where_its_vendor_looks_for_it(kind: str, headers: dict[str, str]) -> None:
    assert {name: row.auth("k") for name, row in VENDORS.items()}[kind] == headers  # type: ignore[index]


def test_only_what_another_try_may_mend_is_told_as_retryable() -> None:
    again = {code for code in FAILURES if failed(code).problem.retryable}
    assert again == {"PROVIDER_UNREACHABLE", "RATE_LIMITED", "IDLE_TIMEOUT"}
    assert not failed("PROVIDER_UNREACHABLE", uncertain=True).problem.retryable


def test_every_status_but_success_is_a_failure() -> None:
    told = {status: of_status(status) for status in range(100, 600)}
    assert {status for status, problem in told.items() if problem is None} == {*range(200, 300)}
    failures = {status: one.problem for status, one in told.items() if one is not None}
    assert {status for status, one in failures.items() if one.code == "PROVIDER_AUTH"} == {401, 403}
    assert {status for status, one in failures.items() if one.code == "RATE_LIMITED"} == {429}
    assert {status for status, one in failures.items() if one.retryable} == {429, *range(500, 600)}
