"""What there is to know of a vendor before an instance of it is configured.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from actors.ports import AuthMode, ProviderInfo
from providers.catalog import Listing
from providers.codec import Codec

Kind: TypeAlias = Literal["openai", "openai-compatible", "anthropic", "gemini", "xai", "xai-chat"]


class Vendor(Struct, frozen=True, kw_only=True):
    """One kind of API."""

    vendor: str
    name: str
    codec: Callable[[bool], Codec]
    """Its wire format, given whether it may use the vendor's own mode for structured output."""
    auth: Callable[[str], Mapping[str, str]]
    """The headers that carry a key."""
    listing: Listing
    base_url: str = ""
    """Empty where an instance must say it."""
    key_env: str = ""
    """The variable that holds the key unless an instance says otherwise; empty where none may be needed."""
    usage_stat_id: str | None = None
    native: bool
    """Whether a session may keep the vendor's own state."""
    documents: bool
    structured: bool = True

    def info(
        self,
        *,
        instance: str,
        name: str,
        auth_mode: AuthMode,
        models: tuple[str, ...] | None,
        media: Mapping[str, Sequence[str]],
        tools: bool,
        account: str | None,
    ) -> ProviderInfo:
        """How an *instance* shows itself, with the capabilities that it has (providers §5)."""
        enabled = {kind for kinds in media.values() for kind in kinds}
        return ProviderInfo(
            id=instance,
            name=name or self.name,
            vendor=self.vendor,
            auth_mode=auth_mode,
            capabilities={
                "tools": tools,
                "textStreaming": True,
                "safeRetries": True,
                "historyContinuation": True,
                "nativeContinuation": self.native,
                "images": any(kind.startswith("image/") for kind in enabled),
                "documents": "application/pdf" in enabled,
            },
            models=models,
            input_media_types=media,
            usage_stat_id=self.usage_stat_id,
            usage_source="provider-response",
            account=account,
        )


def bearer(key: str) -> Mapping[str, str]:
    """The header of most APIs."""
    return {"authorization": f"Bearer {key}"}


def anthropic_key(key: str) -> Mapping[str, str]:
    """Anthropic's headers."""
    return {"x-api-key": key, "anthropic-version": "2023-06-01"}


def google_key(key: str) -> Mapping[str, str]:
    """Google's header."""
    return {"x-goog-api-key": key}
