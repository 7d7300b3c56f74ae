"""The section of the settings for the Agent Host protocol: its bounds, what completes a prompt, who uses the local adapters."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from actors import host_runs
from api.grants import Policy
from runstream.sections import Id, Many

Model: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}\Z",
        description="a model id: letters, digits and . _ : / [ ] -, at most 200 of them, a letter or digit first",
    ),
]
Tool: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}\Z", description="the name of a tool")]


class HostDefaults(Struct, frozen=True, kw_only=True):
    """What a run's input does not say that is only a prompt."""

    provider: Id | None = None
    model: Model | None = None
    instructions: Annotated[str, Meta(max_length=100_000)] | None = None
    tools: tuple[Tool, ...] = ()
    max_steps: Annotated[int, Meta(ge=1, le=64)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=65_536)] | None = None

    def members(self, provider: str, model: str) -> Mapping[str, Any]:
        """The members of a run request; *provider* and *model* where none are set."""
        members: dict[str, Any] = {
            "provider": self.provider or provider,
            "model": self.model or model,
            "instructions": self.instructions,
            "tools": list(self.tools) or None,
            "maxSteps": self.max_steps,
            "maxOutputTokens": self.max_output_tokens,
        }
        return {name: value for name, value in members.items() if value}


class HostSettings(Struct, frozen=True, kw_only=True):
    """The Agent Host protocol over the same runs."""

    enabled: bool = True
    max_runs: Many = 1_000
    max_runs_per_subject: Many = 100
    max_keys: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 100_000
    max_workers: Annotated[int, Meta(ge=1, le=1_000)] = 32
    defaults: HostDefaults | None = None
    principal: Policy | None = None
    """Who speaks through `runstream host`; over HTTP it is the token's."""

    def limits(self) -> host_runs.Limits:
        """The bounds as the runs know them."""
        return host_runs.Limits(
            max_runs=self.max_runs,
            max_runs_per_subject=self.max_runs_per_subject,
            max_keys=self.max_keys,
            max_workers=self.max_workers,
        )
