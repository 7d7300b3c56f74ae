"""The fingerprint of a request: two requests that say the same have the same one, on every node and after every upgrade.

Canonical form (idempotency §1): members sorted by UTF-16 units, absent members left out, arrays in order, numbers by value.
"""

from hashlib import sha256
from typing import cast

import msgspec

from actors.jsontext import encoded
from actors.request_parts import RunRequest


def fingerprint(request: RunRequest) -> str:
    """The hex SHA-256 over the canonical JSON of the validated *request*."""
    return sha256(canonical(msgspec.json.encode(request))).hexdigest()


def fingerprint_of_job(request: RunRequest, *, interactive: bool) -> str:
    """The fingerprint of a job that is to run *request*; of one that is not *interactive*, the request's own (jobs §3)."""
    if not interactive:
        return fingerprint(request)
    return sha256(canonical(msgspec.json.encode({"interactive": True, "request": request}))).hexdigest()


def canonical(document: bytes) -> bytes:
    """The one spelling of the JSON *document* that all equal documents share."""
    return encoded(_ordered(msgspec.json.decode(document)))


def canonical_apart(value: object) -> bytes:
    """The one spelling of the JSON *value* in which integers and fractions are kept apart (Host runtime §8)."""
    return encoded(_sorted(value))


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {name: _sorted(members[name]) for name in sorted(members, key=_utf16)}
    return [_sorted(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {name: _ordered(members[name]) for name in sorted(members, key=_utf16)}
    if isinstance(value, list):
        return [_ordered(item) for item in cast("list[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")
