"""All fake vendors."""

from tests.providers.fake_anthropic import AnthropicDialect
from tests.providers.fake_chat import ChatDialect, XaiChatDialect
from tests.providers.fake_gemini import GeminiDialect
from tests.providers.fake_openai import ResponsesDialect, XaiDialect
from tests.providers.fake_vendor import Dialect

DIALECTS: tuple[Dialect, ...] = (
    ResponsesDialect(),
    ChatDialect(),
    AnthropicDialect(),
    GeminiDialect(),
    XaiDialect(),
    XaiChatDialect(),
)


def named(dialect: Dialect) -> str:
    """The kind, as the id of a test."""
    return str(dialect.kind)
