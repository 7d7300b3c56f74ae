"""Ids that are derived, so that a key and its run are one fact (DESIGN §3)."""

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache

import msgspec


def derived(id_key: bytes, parts: Sequence[str]) -> str:
    """The lower-case UUIDv8 that stands for *parts* in the deployment of *id_key*."""
    digest = bytearray(hmac.new(id_key, msgspec.json.encode(list(parts)), hashlib.sha256).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def run_of_key(id_key: bytes, subject: str, key: str) -> str:
    """The id of the foreground run that *subject*'s idempotency *key* stands for (idempotency §1)."""
    return derived(id_key, ["run", subject, key])


def job_of_key(id_key: bytes, subject: str, key: str) -> str:
    """The id of the detached job that *subject*'s *key* stands for (jobs §3); these keys are a namespace of their own."""
    return derived(id_key, ["job", subject, key])


@lru_cache(maxsize=4_096)
def run_of_host(id_key: bytes, subject: str, name: str) -> str:
    """The id of the run that *subject* calls *name* through the Host."""
    return derived(id_key, ["host", subject, name])


def host_key(id_key: bytes, subject: str, operation: str, key: str) -> str:
    """The id of the record of *subject*'s Host *key* for *operation*; also that of the command that it stands for."""
    return derived(id_key, ["host-key", subject, operation, key])


def sibling(run_id: str, fresh_id: str) -> str:
    """*fresh_id* in the partition of *run_id*: with its first 32 bits."""
    return run_id[:8] + fresh_id[8:]
