"""Names in metadata that stand for credentials, and metadata without them (Host protocol §10)."""

from collections.abc import Mapping

from actors.events import HostContext

_NAMES = "token secret password credential credentials authorization api_key access_key private_key secret_key cookie"
_EQUAL = frozenset((*_NAMES.split(), "proxy_authorization", "apikey", "set_cookie"))
_ENDS = tuple(f"_{name}" for name in _NAMES.split())
_LOWER, _UPPER, _DIGITS = frozenset(range(97, 123)), frozenset(range(65, 91)), frozenset(range(48, 58))
_UNDERSCORE = ord("_")
_IDENTIFIERS = (
    "run_id",
    "trace_id",
    "request_id",
    "tenant_id",
    "user_id",
    "application_id",
    "workspace_id",
    "conversation_id",
    "agent_id",
    "locale",
)


def normal(name: str) -> str:
    """*name* in lower case, its words joined by single underscores; byte by byte, as every other host does it."""
    made, after_small = bytearray(), False
    for byte in name.encode("utf-8", "surrogatepass"):
        if byte in _UPPER:
            if after_small and made and made[-1] != _UNDERSCORE:
                made.append(_UNDERSCORE)
            made.append(byte + 32)
            after_small = False
        elif byte in _LOWER or byte in _DIGITS:
            made.append(byte)
            after_small = True
        else:
            if made and made[-1] != _UNDERSCORE:
                made.append(_UNDERSCORE)
            after_small = False
    return made.decode().rstrip("_")


def is_sensitive(name: str) -> bool:
    """Whether *name* stands for a credential."""
    word = normal(name)
    return word in _EQUAL or word.endswith(_ENDS)


def first_sensitive(metadata: Mapping[str, str]) -> str | None:
    """The first name in *metadata*, in byte order, that stands for a credential."""
    return next((name for name in sorted(metadata, key=str.encode) if is_sensitive(name)), None)


def clean(metadata: Mapping[str, str]) -> dict[str, str]:
    """*metadata* without what stands for a credential."""
    return {name: value for name, value in metadata.items() if not is_sensitive(name)}


def attributes(context: HostContext, before: Mapping[str, str]) -> dict[str, str]:
    """*before* with the context laid over it, flat, as telemetry has it."""
    named = {name: str(getattr(context, name)) for name in _IDENTIFIERS if getattr(context, name)}
    marked = {f"context.metadata.{name}": value for name, value in clean(context.metadata).items()}
    return {**before, **named, **marked}


def subject_of(context: HostContext) -> str:
    """Who a context is about: the first of user, agent, application and run that it names."""
    return context.user_id or context.agent_id or context.application_id or context.run_id
