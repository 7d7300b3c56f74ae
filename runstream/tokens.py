"""A new bearer token, and the entry of the settings that lets it in."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from api.grants import ApplicationToolGrant, RetrievalGrant, TokenEntry, token_digest

TOKEN_BYTES = 32


class Made(NamedTuple):
    """A token, shown once, and what stands for it in the settings."""

    token: str
    entry: TokenEntry


async def fresh() -> str:
    """Make a token: 43 characters that a header and a shell can carry."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def entry_for(token: str, **policy: Any) -> TokenEntry:
    """The entry for *token*; raises `InvalidPolicy`."""
    return TokenEntry(digest=token_digest(token), **policy)


def toml(entry: TokenEntry) -> str:
    """*entry* as a `[[tokens]]` table of the settings file; what is empty is left out."""
    return "\n".join(("[[tokens]]", *_members(entry)))


def _members(entry: TokenEntry) -> Iterator[str]:
    yield f"digest = {_text(entry.digest)}"
    yield f"subject = {_text(entry.subject)}"
    yield f"providers = {_list(entry.providers)}"
    for name in ("tools", "approve_tools", "jobs", "sessions"):
        if values := getattr(entry, name):
            yield f"{name} = {_list(values)}"
    if entry.application_tools:
        yield f"application_tools = [{', '.join(map(_tool, entry.application_tools))}]"
    if entry.retrieval != RetrievalGrant():
        grants = {name: getattr(entry.retrieval, name) for name in ("search", "index", "delete")}
        yield f"retrieval = {{ {', '.join(f'{name} = {_list(ids)}' for name, ids in grants.items() if ids)} }}"
    for name in ("manage_providers", "read_metrics"):
        if getattr(entry, name):
            yield f"{name} = true"


def _tool(grant: ApplicationToolGrant) -> str:
    requires = "" if grant.requires_approval else ", requires_approval = false"
    return f"{{ name = {_text(grant.name)}{requires} }}"


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """*value* as a TOML string: JSON's, except that TOML takes no raw delete character."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
