"""The vendors that the host knows: a row for each kind of instance (providers §6)."""

import uuid
from collections.abc import Mapping

from providers import catalog, vendor
from providers.anthropic import Messages
from providers.chat_completions import ChatCompletions
from providers.gemini import GenerateContent
from providers.openai_responses import Responses
from providers.vendor import Kind, Vendor

VENDORS: Mapping[Kind, Vendor] = {
    "openai": Vendor(
        vendor="openai",
        name="OpenAI",
        codec=lambda structured: Responses(strict=False, structured=structured),
        auth=vendor.bearer,
        listing=catalog.BEARER,
        base_url="https://api.openai.com/v1/",
        key_env="OPENAI_API_KEY",
        usage_stat_id="openai-api",
        native=True,
        documents=True,
    ),
    "openai-compatible": Vendor(
        vendor="openai-compatible",
        name="OpenAI-compatible server",
        codec=lambda structured: ChatCompletions(structured=structured),
        auth=vendor.bearer,
        listing=catalog.BEARER,
        usage_stat_id="openai-compatible",
        native=False,
        documents=False,
        structured=False,
    ),
    "anthropic": Vendor(
        vendor="anthropic",
        name="Anthropic",
        codec=lambda structured: Messages(structured=structured),
        auth=vendor.anthropic_key,
        listing=catalog.ANTHROPIC,
        base_url="https://api.anthropic.com/v1/",
        key_env="ANTHROPIC_API_KEY",
        usage_stat_id="claude",
        native=True,
        documents=True,
    ),
    "gemini": Vendor(
        vendor="gemini",
        name="Gemini",
        codec=lambda structured: GenerateContent(new_id=lambda: str(uuid.uuid4()), structured=structured),
        auth=vendor.google_key,
        listing=catalog.GEMINI,
        base_url="https://generativelanguage.googleapis.com/v1beta/",
        key_env="GEMINI_API_KEY",
        native=True,
        documents=True,
    ),
    "xai": Vendor(
        vendor="xai",
        name="xAI",
        codec=lambda structured: Responses(documents=False, structured=structured),
        auth=vendor.bearer,
        listing=catalog.BEARER,
        base_url="https://api.x.ai/v1/",
        key_env="XAI_API_KEY",
        native=True,
        documents=False,
    ),
    "xai-chat": Vendor(
        vendor="xai",
        name="xAI chat",
        codec=lambda structured: ChatCompletions(structured=structured),
        auth=vendor.bearer,
        listing=catalog.BEARER,
        base_url="https://api.x.ai/v1/",
        key_env="XAI_API_KEY",
        native=False,
        documents=False,
    ),
}
