"""On what terms a host takes runs on: their bounds, their tools, and whether a stored one may still be begun.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from actors.bounds import Bounds
from actors.errors import Problem, Refused
from actors.events import RunAccepted, ToolFact
from actors.ports import Model, Tool
from actors.request import (
    Catalog,
    ProviderFacts,
    RunRequest,
    ToolFacts,
    attempts,
    idle_timeout_ms,
    max_output_tokens,
    max_steps,
    validated,
)
from actors.request_parts import ApplicationTool

if TYPE_CHECKING:
    from runstream.host import Options

_ACCOUNT_REQUIRED = Problem("JOB_ACCOUNT_REQUIRED", "The provider instance is bound to no account.")
_ACCOUNT_CHANGED = Problem("JOB_ACCOUNT_CHANGED", "The provider instance is bound to another account by now.")


class Terms:
    """What this host grants to whom."""

    def __init__(self, models: Mapping[str, Model], tools: Mapping[str, Tool], options: "Options") -> None:
        self._models = models
        self._tools = tools
        self._options = options
        self.catalog = _catalog(models, tools, options)

    def account_of(self, provider: str) -> str:
        """The account that *provider* is bound to; empty for none, and for a provider that there is not."""
        model = self._models.get(provider)
        return "" if model is None else model.info.account or ""

    def bounds(self, request: RunRequest, subject: str, waived: frozenset[str] = frozenset()) -> Bounds:
        """What a checked *request* of *subject* may use.

        Raises:
            Refused: ADMISSION_IDENTITY_REQUIRED.
        """
        options, account = self._options, self.account_of(request.provider)
        if options.needs_account and not account:
            raise Refused("ADMISSION_IDENTITY_REQUIRED", "This provider instance is bound to no account.")
        return Bounds(
            max_steps=max_steps(request, options.limits),
            max_output_tokens=max_output_tokens(request, options.limits),
            max_attempts=attempts(request, options.limits),
            idle_timeout_ms=idle_timeout_ms(request, options.limits) or 0,
            account=account,
            tools=tuple(self._facts(request, waived)),
            budgets=options.budgets.of(subject, account),
            accounted=options.usage is not None,
            retention_ms=options.run_kept_ms,
            unbound=options.budgets.needs_account and not account,
        )

    def why_not(self, accepted: RunAccepted) -> Problem | None:
        """What keeps a stored job or Host run from being begun by now (jobs §4); nobody is told more than the code's meaning."""
        lost = self._options.authority(accepted)
        if lost is not None:
            return lost
        if accepted.host is not None and accepted.host.problem is not None:
            return accepted.host.problem
        try:
            validated(msgspec.json.decode(accepted.request, type=RunRequest), self.catalog)
        except Refused as refused:
            return refused.problem
        account = self.account_of(accepted.provider)
        if not account and accepted.host is None:
            return _ACCOUNT_REQUIRED
        return None if account == accepted.account else _ACCOUNT_CHANGED

    def _facts(self, request: RunRequest, waived: frozenset[str]) -> Iterator[ToolFact]:
        """What is known of the run's tools, in the order of the request."""
        defined = {tool.name: tool for tool in request.application_tools or ()}
        for name in request.tools or ():
            if name in defined:
                yield self._application_fact(defined[name], waived)
            else:
                yield _host_fact(self._tools[name])

    def _application_fact(self, tool: ApplicationTool, waived: frozenset[str]) -> ToolFact:
        reviewed = self._options.application_tools_reviewed or tool.requires_approval is True
        return ToolFact(
            tool.name,
            tool.description,
            tool.input_schema,
            application=True,
            requires_approval=reviewed or tool.name not in waived,
            output_schema=UNSET if tool.output_schema is None else tool.output_schema,
        )


def _host_fact(tool: Tool) -> ToolFact:
    definition = tool.definition
    return ToolFact(
        definition.name,
        definition.description,
        definition.input_schema,
        requires_approval=tool.requires_approval,
        idempotent=tool.idempotent,
    )


def _catalog(models: Mapping[str, Model], tools: Mapping[str, Tool], options: "Options") -> Catalog:
    facts = {
        name: ProviderFacts(
            models=model.info.models,
            capabilities=model.info.capabilities,
            input_media_types={one: tuple(kinds) for one, kinds in model.info.input_media_types.items()},
        )
        for name, model in models.items()
    }
    known = {name: ToolFacts(requires_approval=tool.requires_approval) for name, tool in tools.items()}
    features = msgspec.structs.replace(options.features, sessions=options.sessions is not None)
    return Catalog(providers=facts, tools=known, limits=options.limits, features=features)
