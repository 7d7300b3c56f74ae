"""A request to run: what a host with these providers, tools and features refuses, and what it makes of the rest (runs §4).

Nothing here calls a provider, a tool, a resolver or a store; grants and admission come after.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.json import encode

from actors.context import preflight
from actors.errors import Refused
from actors.ports import Retry
from actors.request_parts import ApplicationTool, Reference, RunRequest, decoded_request, encoded_request
from actors.request_shape import shaped
from actors.schema import compiled

__all__ = [
    "Catalog",
    "Features",
    "HostLimits",
    "ProviderFacts",
    "RunRequest",
    "ToolFacts",
    "attempts",
    "checked",
    "decoded_request",
    "encoded_request",
    "idle_timeout_ms",
    "max_output_tokens",
    "max_steps",
    "retry_policy",
    "shaped",
    "validated",
]

SOURCES_MAX = 16
RETRIEVAL_LIMIT = 8
TOOL_DEFINITION_BYTES_MAX = 128_000


class ProviderFacts(Struct, frozen=True, kw_only=True):
    """What request checks need to know of one provider instance."""

    models: tuple[str, ...] | None = None
    """Models that may be asked for; None accepts every valid id, () none."""
    capabilities: Mapping[str, bool] = {}
    input_media_types: Mapping[str, tuple[str, ...]] = {}


class ToolFacts(Struct, frozen=True):
    """What request checks need to know of a host tool."""

    requires_approval: bool = False


class HostLimits(Struct, frozen=True, kw_only=True):
    """Upper bounds that the operator set; None leaves the protocol's own."""

    max_steps: int | None = None
    max_output_tokens: int | None = None
    idle_timeout_ms: int | None = None
    max_attempts: int | None = None


class Features(Struct, frozen=True, kw_only=True):
    """What this host can do beyond a plain run."""

    sessions: bool = False
    idempotency: bool = False
    approvals: bool = False
    approvals_may_pause: bool = True
    application_tools: bool = False
    retrieval: bool = False
    context_resolver: bool = False


class Catalog(Struct, frozen=True, kw_only=True):
    """All that a run request is checked against."""

    providers: Mapping[str, ProviderFacts] = {}
    tools: Mapping[str, ToolFacts] = {}
    limits: HostLimits = HostLimits()
    features: Features = Features()


def checked(document: object, catalog: Catalog) -> RunRequest:
    """The *document* as a request that this host can run: steps 1 to 15 of runs §4, in their order.

    Raises:
        Refused: with the code of the first rule that is broken.
    """
    return validated(shaped(document), catalog)


def validated(request: RunRequest, catalog: Catalog) -> RunRequest:
    """The *request*, whose shape is right, as one that this host can run: the rest of those steps.

    Raises:
        Refused: with the code of the first rule that is broken.
    """
    features = catalog.features
    _check_session(request, features)
    _check_retrieval(request, features)
    if request.idempotency_key is not None and not features.idempotency:
        raise Refused("IDEMPOTENCY_UNAVAILABLE", "This host keeps no idempotency keys")
    provider = catalog.providers.get(request.provider)
    if provider is None:
        raise Refused("UNKNOWN_PROVIDER", "There is no such provider instance")
    preflight(request.attachments or ())
    _check_modality(request, provider, features)
    _check_artifact(request)
    _check_provider(request, provider)
    _check_tools(request, catalog)
    _check_approvals(request, features)
    if request.output_schema is not None:
        compiled(bytes(request.output_schema))
    return request


def max_steps(request: RunRequest, limits: HostLimits) -> int:
    """How many model steps the run may take."""
    return min(request.max_steps or 8, limits.max_steps or 64)


def max_output_tokens(request: RunRequest, limits: HostLimits) -> int:
    """How many tokens the model may answer per step, before budgets."""
    return min(request.max_output_tokens or 4_096, limits.max_output_tokens or 65_536)


def idle_timeout_ms(request: RunRequest, limits: HostLimits) -> int | None:
    """After how long without progress the run is cancelled; None: never (runs §9)."""
    return min((each for each in (request.idle_timeout_ms, limits.idle_timeout_ms) if each), default=None)


def attempts(request: RunRequest, limits: HostLimits) -> int:
    """How often a rate-limited model call may be made (runs §10)."""
    wanted = request.retry.max_attempts if request.retry is not None else 1
    return min(wanted, limits.max_attempts or 5)


def retry_policy(request: RunRequest, limits: HostLimits) -> Retry:
    """The policy that a provider follows for a 429 before streaming."""
    base, most = (
        (request.retry.base_delay_ms, request.retry.max_delay_ms) if request.retry is not None else (None, None)
    )
    return Retry(attempts(request, limits), 500 if base is None else base, 30_000 if most is None else most)


def _check_session(request: RunRequest, features: Features) -> None:
    if request.session is None:
        return
    if not features.sessions:
        raise Refused("SESSIONS_UNAVAILABLE", "This host keeps no sessions")
    if request.history is not None or request.instructions is not None:
        raise Refused("SESSION_HISTORY_CONFLICT", "A session brings its own history and instructions")
    if request.attachments or request.retrieval is not None:
        raise Refused("SESSION_CONTEXT_UNSUPPORTED", "A session turn takes no attachments and no retrieval")


def _check_retrieval(request: RunRequest, features: Features) -> None:
    if request.retrieval is None:
        return
    if not features.retrieval:
        raise Refused("RETRIEVAL_UNAVAILABLE", "This host has no retrieval")
    if len(request.attachments or ()) + (request.retrieval.limit or RETRIEVAL_LIMIT) > SOURCES_MAX:
        raise Refused("INVALID_RETRIEVAL", f"Attachments and retrieved passages together are at most {SOURCES_MAX}")


def _check_modality(request: RunRequest, provider: ProviderFacts, features: Features) -> None:
    enabled = provider.input_media_types.get(request.model, ())
    for attachment in request.attachments or ():
        if isinstance(attachment, Reference) and not features.context_resolver:
            raise Refused("CONTEXT_UNAVAILABLE", "This host resolves no references")
        if not attachment.media_type.startswith("text/") and attachment.media_type not in enabled:
            raise Refused("UNSUPPORTED_MODALITY", f"This model takes no {attachment.media_type}")


def _check_artifact(request: RunRequest) -> None:
    artifact = request.output_artifact
    if artifact is None:
        return
    if artifact.name in {".", ".."}:
        raise Refused("INVALID_ARTIFACT", "An artifact's name is a file name")
    if artifact.media_type == "application/json" and request.output_schema is None:
        raise Refused("INVALID_ARTIFACT", "A JSON artifact needs an outputSchema")


def _check_provider(request: RunRequest, provider: ProviderFacts) -> None:
    if request.retry is not None and request.retry.max_attempts > 1 and not _can(provider, "safeRetries"):
        raise Refused("UNSUPPORTED_CAPABILITY", "This provider cannot repeat a call safely")
    if provider.models is not None and request.model not in provider.models:
        raise Refused("UNSUPPORTED_MODEL", "This provider instance does not offer that model")
    for name in request.required_capabilities or ():
        if not _can(provider, name):
            raise Refused("UNSUPPORTED_CAPABILITY", f"This provider lacks the capability {name}")
    if request.tools and not _can(provider, "tools"):
        raise Refused("UNSUPPORTED_TOOLS", "This provider cannot use tools")


def _check_tools(request: RunRequest, catalog: Catalog) -> None:
    names = request.tools or ()
    if len(set(names)) != len(names):
        raise Refused("INVALID_REQUEST", "tools: must not repeat an item")
    defined = request.application_tools or ()
    if defined and not catalog.features.application_tools:
        raise Refused("APPLICATION_TOOLS_UNAVAILABLE", "This host runs no application tools")
    taken = Counter(list(catalog.tools))
    for tool in defined:
        taken[tool.name] += 1
        _check_definition(tool, names, taken[tool.name])
    for name in names:
        if name not in taken:
            raise Refused("UNKNOWN_TOOL", f"There is no tool {name}")


def _check_definition(tool: ApplicationTool, names: tuple[str, ...], uses: int) -> None:
    if uses > 1:
        raise Refused("TOOL_DEFINITION_CONFLICT", f"There is another tool {tool.name}")
    if tool.name not in names:
        raise Refused("INVALID_REQUEST", f"applicationTools: {tool.name} is not listed in tools")
    if len(encode(tool)) > TOOL_DEFINITION_BYTES_MAX:
        raise Refused("TOOL_DEFINITION_LIMIT", f"The definition of {tool.name} is too large")
    compiled(bytes(tool.input_schema))
    if tool.output_schema is not None:
        compiled(bytes(tool.output_schema))


def _check_approvals(request: RunRequest, features: Features) -> None:
    if request.approvals is None:
        return
    if not features.approvals:
        raise Refused("APPROVAL_UNAVAILABLE", "This host has no interactive approvals")
    if request.approvals.idle_policy == "pause" and not features.approvals_may_pause:
        raise Refused("APPROVAL_POLICY", "This host does not stop the idle timer for an approval")


def _can(provider: ProviderFacts, capability: str) -> bool:
    return provider.capabilities.get(capability) is True
