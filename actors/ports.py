"""What the shell and the executor need of the world: models, and later tools. Implementations live outside.

Shapes follow the adapter contract of the wire protocol (providers §1 to §3).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Raw, Struct

from actors.events import ToolCall, Usage

__all__ = [
    "AssistantMessage",
    "AuditSink",
    "AuthMode",
    "Media",
    "Message",
    "Model",
    "ModelContext",
    "ModelRequest",
    "Policy",
    "PolicyContext",
    "Probe",
    "ProviderInfo",
    "Retry",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolMessage",
    "Turn",
    "Usage",
    "UserMessage",
]

AuthMode: TypeAlias = Literal["api-key", "cli-session", "none"]


class ToolDefinition(Struct, frozen=True):
    """A tool as a model sees it; *input_schema* is a JSON Schema."""

    name: str
    description: str
    input_schema: Raw


class Media(Struct, frozen=True):
    """A binary attachment of the user's message; *source* is its manifest as JSON."""

    media_type: str
    data: bytes
    source: Raw


class UserMessage(Struct, frozen=True, tag="user"):
    """What a person said; text evidence is already inside."""

    content: str
    attachments: tuple[Media, ...] = ()


class AssistantMessage(Struct, frozen=True, tag="assistant"):
    """What the model answered in an earlier turn, with the state its own adapter left there."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    native: Raw | None = None


class ToolMessage(Struct, frozen=True, tag="tool"):
    """What a tool gave; *content* is the compact JSON of its output."""

    call_id: str
    name: str
    content: str


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class Retry(Struct, frozen=True, rename="camel"):
    """The effective policy for a 429 before streaming (runs §10)."""

    max_attempts: int = 1
    base_delay_ms: int = 500
    max_delay_ms: int = 30_000


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One model step."""

    model: str
    messages: tuple[Message, ...]
    instructions: str | None = None
    tools: tuple[ToolDefinition, ...] = ()
    max_output_tokens: int = 4_096
    retry: Retry = Retry()
    output_schema: Raw | None = None
    """What the final answer must meet; *instructions* ask for it too, and the run judges it whatever an adapter does."""


class Turn(Struct, frozen=True, kw_only=True):
    """What one step answered; *text* is the whole visible text, streamed or not."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Mapping[str, Any] | None = None
    """As the vendor reported it, in the wire's names; sanitised by the run (runs §11). None: not reported."""
    native: Raw | None = None
    finish_reason: Literal["stop", "length"] = "stop"


class ModelContext(Struct, frozen=True):
    """What a model call may do while it runs; both functions return at once and are ignored after the call ended."""

    run_id: str
    subject: str
    emit_text: Callable[[str], None]
    """Append-only increments of the turn's text; concatenated they equal `Turn.text`."""
    report_progress: Callable[[], None]
    """Real work without text. Protocol pings are none."""


class ProviderInfo(Struct, frozen=True, kw_only=True):
    """One configured instance as discovery shows it (providers §1)."""

    id: str
    name: str
    vendor: str
    auth_mode: AuthMode
    capabilities: Mapping[str, bool]
    models: tuple[str, ...] | None = None
    """Execution allowlist; None accepts every valid model id, () none."""
    input_media_types: Mapping[str, Sequence[str]] = {}
    usage_stat_id: str | None = None
    usage_source: Literal["provider-response", "cli-report", "adapter-report", "synthetic"] = "adapter-report"
    account: str | None = None
    """The account this instance is bound to, for limits per account (scheduling)."""


class ToolContext(Struct, frozen=True):
    """What a host tool may know and do while it runs."""

    run_id: str
    call_id: str
    subject: str
    cancelled: Callable[[], bool]
    """Whether nobody waits for the result any more; a tool in a thread should look now and then."""
    report_progress: Callable[[], None]
    """Real work; puts the idle limit off. May be called from any thread."""


class Tool(Protocol):
    """A function of the host that models may use."""

    definition: ToolDefinition
    requires_approval: bool
    idempotent: bool
    """Whether a call that may or may not have happened can be made again under the same call id."""
    output_bytes_max: int

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Carry out one call and return a JSON value. What it raises is never shown to anyone but the log's operator."""
        ...


class PolicyContext(Struct, frozen=True):
    """Whose call a policy is asked about."""

    run_id: str
    subject: str
    provider: str


class Policy(Protocol):
    """The host's own say about a call that needs approval; it comes before any person's, and does not replace it."""

    async def __call__(self, call: ToolCall, context: PolicyContext, /) -> bool:
        """Answer whether the call may go on; what it raises refuses it."""
        ...


class AuditSink(Protocol):
    """Keeps records of approvals outside (approvals §9); nothing is asked and nothing is decided that it did not take."""

    async def __call__(self, record: Mapping[str, Any], /) -> None:
        """Keep *record*, for good, before returning; whatever is raised, or returned but None, says that it was not kept.

        A record may come again under the same `id`, and is the same then.
        """
        ...


class Probe(Struct, frozen=True):
    """What looking at an instance told (providers §2)."""

    code: str
    models: tuple[str, ...] | None = None
    complete: bool = False
    connection: Mapping[str, Any] | None = None
    """`source`, and what is known of `runtime` and `account`, as clients see them (providers §1); the time is added."""


class Model(Protocol):
    """A provider instance. Cancellation is anyio's: a call is cancelled, and the host stops waiting regardless."""

    info: ProviderInfo

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        """Answer one step. Raises `actors.errors.Failed` for what the vendor did; anything else is `INTERNAL_ERROR`."""
        ...

    async def inspect(self) -> Probe | None:
        """Probe health and catalog without generating anything; None where the instance has no probe."""
        ...
