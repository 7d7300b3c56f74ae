"""What a host offers: its version and features, its providers, and how a provider is signed in to (providers §1)."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType
from typing_extensions import override

from runstream_client.evidence import MediaType
from runstream_client.shapes import InstanceId, Label, Sha256, Shape, Text, Timestamp, UuidAnyCase, agreed, at_most


class ProtocolInfo(Shape, frozen=True, kw_only=True):
    """Which protocol the host speaks, and what it can do; the order of features says nothing."""

    protocol: Literal["agenticdriver"]
    version: Literal["1.0"]
    supported_versions: tuple[str, ...]
    features: tuple[str, ...]

    @override
    def agree(self) -> None:
        agreed("1.0" in self.supported_versions, "1.0 is not among the versions")


class Health(Shape, frozen=True, kw_only=True):
    status: Literal["ready", "unauthenticated", "unavailable", "unsupported", "unknown"]
    code: Text
    message: str
    checked_at: Timestamp


class ModelCatalog(Shape, frozen=True, kw_only=True):
    source: Literal["provider", "configured", "unavailable"]
    models: Annotated[tuple[str, ...], Meta(max_length=1000)]
    complete: bool


class Runtime(Shape, frozen=True, kw_only=True):
    name: Annotated[Label, at_most(100)]
    version: Annotated[Label, at_most(80)]


class Account(Shape, frozen=True, kw_only=True):
    status: Literal["signed-in", "signed-out", "unknown"]
    method: Annotated[Label, at_most(80)] | UnsetType = UNSET
    email: Annotated[Label, at_most(320)] | UnsetType = UNSET
    name: Annotated[Label, at_most(200)] | UnsetType = UNSET
    subscription: Annotated[Label, at_most(120)] | UnsetType = UNSET


class Connection(Shape, frozen=True, kw_only=True):
    source: Literal["native-runtime", "provider-api"]
    checked_at: Timestamp
    runtime: Runtime | UnsetType = UNSET
    account: Account | UnsetType = UNSET


class Provider(Shape, frozen=True, kw_only=True):
    """One configured instance that runs may name."""

    id: InstanceId
    name: Text
    vendor: Text
    auth_mode: Literal["api-key", "cli-session", "none"]
    capabilities: dict[str, bool]
    models: tuple[str, ...] | UnsetType = UNSET
    """What may be executed; every model where it is `UNSET`, none where it is empty."""
    input_media_types: dict[str, Annotated[tuple[MediaType, ...], Meta(max_length=6)]] | UnsetType = UNSET
    usage_stat_id: str | UnsetType = UNSET
    health: Health | UnsetType = UNSET
    model_catalog: ModelCatalog | UnsetType = UNSET
    connection: Connection | UnsetType = UNSET

    @override
    def agree(self) -> None:
        agreed({"tools", "textStreaming"} <= self.capabilities.keys(), "a capability is missing")
        for media in (self.input_media_types or {}).values():
            agreed(len(set(media)) == len(media), "a media type is named twice")


class ProviderList(Shape, frozen=True, kw_only=True):
    providers: tuple[Provider, ...]


class Interaction(Shape, frozen=True, kw_only=True):
    type: Literal["device-code"]
    verification_url: Literal["https://auth.openai.com/codex/device"]
    user_code: Annotated[str, Meta(pattern=r"\A[A-Z0-9-]{4,40}\Z")]


class SignedIn(Shape, frozen=True, kw_only=True):
    plan: Annotated[str, at_most(80, 1)]
    email: Annotated[str, at_most(320)] | UnsetType = UNSET
    provider_account_id: Annotated[str, at_most(256, 1)] | UnsetType = UNSET


class SetupError(Shape, frozen=True, kw_only=True):
    code: Annotated[str, at_most(80)]
    message: Annotated[str, at_most(512)]


class Attempt(Shape, frozen=True, kw_only=True):
    """One try to sign in to a provider."""

    id: UuidAnyCase
    provider_id: InstanceId
    account_id: InstanceId
    name: Annotated[str, at_most(100, 1)]
    revision: Sha256
    method: Literal["codex-device"]
    phase: Literal["starting", "waiting", "verifying", "ready", "succeeded", "failed", "cancelled", "expired"]
    created_at: Timestamp
    updated_at: Timestamp
    expires_at: Timestamp
    interaction: Interaction | UnsetType = UNSET
    account: SignedIn | UnsetType = UNSET
    error: SetupError | UnsetType = UNSET


class SetupSnapshot(Shape, frozen=True, kw_only=True):
    """The sign-in attempts of a host."""

    version: Literal[1]
    attempts: Annotated[tuple[Attempt, ...], Meta(max_length=32)]

    @override
    def agree(self) -> None:
        names = [attempt.id for attempt in self.attempts]
        agreed(len(set(names)) == len(names), "two attempts of one id")
