"""On what terms runs are taken on: their bounds, their tools, and whether a stored job may still begin."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from actors.bounds import accept
from actors.budgets import Budget, Budgets
from actors.errors import Problem, Refused
from actors.events import RunAccepted, ToolFact
from actors.ports import Model, Tool
from actors.request import HostLimits, RunRequest, checked
from actors.session import Limits
from runstream.host import Options
from runstream.terms import Terms
from tests.actors.reviewing import ALL_FEATURES, SCHEMA, CountingTool
from tests.actors.runs import document
from tests.actors.support import INFO, saying

LENIENT = Budget(max_tokens=10, unknown_usage="allow")
APP: Mapping[str, Any] = {"name": "app", "description": "Does app.", "inputSchema": {"type": "object"}}
APPROVALS = {"mode": "interactive", "idlePolicy": "pause"}


async def _nowhere(_: object) -> None:
    """Take a usage record, and keep none."""


def model(account: str | None = "acct", models: Sequence[str] | None = None, **capabilities: bool) -> Model:
    found = saying("hi")
    found.info = msgspec.structs.replace(
        INFO,
        account=account,
        models=None if models is None else tuple(models),
        capabilities={**INFO.capabilities, **capabilities},
    )
    return found


def terms(of: Model | None = None, tools: Sequence[Tool] = (), **options: Any) -> Terms:
    """The terms of a host with one model and *tools*."""
    chosen = msgspec.structs.replace(Options(features=ALL_FEATURES), **options)
    return Terms({"fake": of or model()}, {tool.definition.name: tool for tool in tools}, chosen)


def asked(host: Terms, **members: Any) -> RunRequest:
    """The request with *members*, as *host* checks it."""
    return checked(document(**members), host.catalog)


def stored(host: Terms, **members: Any) -> RunAccepted:
    """A job as its log tells what *host* took on."""
    request = asked(host, **members)
    command = accept(request, host.bounds(request, "ann"), subject="ann", admitted=False, principal="p")
    return RunAccepted(
        1, "ann", "fake", request.model, Raw(msgspec.json.encode(request)), "job", account=command.account
    )


def code(problem: Problem | None) -> str | None:
    return None if problem is None else problem.code


# Bounds.


def test_a_request_may_use_what_it_asks_for_within_the_hosts_limits() -> None:
    host = terms(limits=HostLimits(max_steps=5, max_output_tokens=200, idle_timeout_ms=900, max_attempts=2))
    bounds = host.bounds(asked(host, maxSteps=9, maxOutputTokens=100, idleTimeoutMs=5_000), "ann")
    assert (bounds.max_steps, bounds.max_output_tokens, bounds.idle_timeout_ms) == (5, 100, 900)
    assert bounds.account == "acct"
    assert host.bounds(asked(host), "ann").max_attempts <= 2


def test_a_request_without_an_idle_limit_on_a_host_without_one_has_none() -> None:
    host = terms()
    assert host.bounds(asked(host), "ann").idle_timeout_ms == 0


def test_a_run_on_a_provider_without_an_account_is_refused_where_slots_are_bounded_by_account() -> None:
    host = terms(model(account=None), needs_account=True)
    with pytest.raises(Refused) as refused:
        host.bounds(asked(host), "ann")
    assert refused.value.code == "ADMISSION_IDENTITY_REQUIRED"
    bound = terms(needs_account=True)
    assert bound.bounds(asked(bound), "ann").account == "acct"


def test_a_run_without_an_account_is_seen_to_be_bound_by_no_budget_where_accounts_have_some() -> None:
    for account, unbound in ((None, True), ("acct", False)):
        host = terms(model(account), budgets=Budgets(accounts={"other": LENIENT}))
        assert host.bounds(asked(host), "ann").unbound == unbound
    assert not terms(model(None)).bounds(asked(terms()), "ann").unbound


def test_a_run_without_an_account_is_taken_on_where_nobody_asks_for_one() -> None:
    host = terms(model(account=None))
    assert host.bounds(asked(host), "ann").account == host.account_of("fake") == host.account_of("nobody") == ""


def test_every_budget_that_matches_binds_the_run() -> None:
    default, subjects, accounts = Budget(max_tokens=1), Budget(max_tokens=2), Budget(max_tokens=3)
    host = terms(budgets=Budgets(default=default, subjects={"ann": subjects}, accounts={"acct": accounts}))
    assert set(host.bounds(asked(host), "ann").budgets) == {default, subjects, accounts}
    assert set(host.bounds(asked(host), "bo").budgets) == {default, accounts}


def test_a_run_leaves_a_usage_record_where_there_is_a_place_for_it_and_is_kept_as_long_as_the_host_says() -> None:
    for host, accounted in ((terms(usage=_nowhere, run_kept_ms=7), True), (terms(run_kept_ms=7), False)):
        bounds = host.bounds(asked(host), "ann")
        assert (bounds.accounted, bounds.retention_ms) == (accounted, 7)


def test_the_facts_of_a_hosts_tools_are_those_of_the_host_in_the_order_of_the_request() -> None:
    host = terms(tools=[CountingTool("b", reviewed=True), CountingTool("a", idempotent=True)])
    bounds = host.bounds(asked(host, tools=["a", "b"], approvals=APPROVALS), "ann")
    assert bounds.tools == (
        ToolFact("a", "Does a.", SCHEMA, idempotent=True),
        ToolFact("b", "Does b.", SCHEMA, requires_approval=True),
    )
    assert host.bounds(asked(host), "ann").tools == ()


@pytest.mark.parametrize(
    ("host_reviews", "tool_asks", "waived", "reviewed"),
    [
        (False, False, True, False),
        (False, False, False, True),
        (False, True, True, True),
        (True, False, True, True),
    ],
)
def test_an_application_tool_is_reviewed_unless_host_definition_and_token_all_let_it_pass(
    *, host_reviews: bool, tool_asks: bool, waived: bool, reviewed: bool
) -> None:
    host = terms(application_tools_reviewed=host_reviews)
    defined = {**APP, "requiresApproval": tool_asks, "outputSchema": {"type": "integer"}}
    request = asked(host, tools=["app"], applicationTools=[defined], approvals=APPROVALS)
    (fact,) = host.bounds(request, "ann", frozenset({"app"} if waived else ())).tools
    assert (fact.application, fact.requires_approval) == (True, reviewed)
    assert msgspec.json.decode(msgspec.json.encode(fact.output_schema)) == {"type": "integer"}


# What a stored job meets when it is taken up.


def test_a_job_that_may_still_run_is_begun() -> None:
    host = terms(tools=[CountingTool()])
    assert host.why_not(stored(host, tools=["host"])) is None


def test_lost_authority_comes_before_all_else() -> None:
    lost = Problem("FORBIDDEN", "Fixed.")
    later = terms(model(account=None, models=[]), authority=lambda _: lost)
    assert later.why_not(stored(terms())) == lost


def test_the_authority_is_asked_about_the_job_as_it_was_accepted() -> None:
    seen: list[RunAccepted] = []
    host = terms(authority=seen.append)
    job = stored(host)
    assert host.why_not(job) is None
    assert seen == [job]


@pytest.mark.parametrize(
    ("later", "why_not"),
    [
        (terms(model(account=None, models=["n"])), "UNSUPPORTED_MODEL"),
        (Terms({}, {}, Options(features=ALL_FEATURES)), "UNKNOWN_PROVIDER"),
        (terms(model(tools=False), [CountingTool()]), "UNSUPPORTED_TOOLS"),
        (terms(), "UNKNOWN_TOOL"),
        (terms(model(account=None), [CountingTool()]), "JOB_ACCOUNT_REQUIRED"),
        (terms(model(account="other"), [CountingTool()]), "JOB_ACCOUNT_CHANGED"),
        (terms(tools=[CountingTool()]), None),
    ],
)
def test_what_changed_since_a_job_was_submitted_keeps_it_from_being_begun(later: Terms, why_not: str | None) -> None:
    job = stored(terms(tools=[CountingTool()]), tools=["host"])
    assert code(later.why_not(job)) == why_not


def test_sessions_are_offered_where_any_are_kept() -> None:
    turn = {"id": "0b6c2a52-7777-4f7e-9a41-5f2f5f3b7c10", "revision": 0}
    with pytest.raises(Refused) as refused:
        asked(terms(), session=turn)
    assert refused.value.code == "SESSIONS_UNAVAILABLE"
    host = terms(sessions=Limits(retention_ms=1))
    assert asked(host, session=turn).session is not None
