"""What a request lets its answer be: the rules between the two (clients §3, §4).

Nothing here waits; a rule that is broken is `Unsound`.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import UNSET

from runstream_client.evidence import ContextManifest, Hit, RetrievalResult
from runstream_client.results import RunResult, SessionInfo
from runstream_client.strict_json import Unsound

_LIMIT, _CONTEXT_BYTES, _LEAST_SCORE = 8, 65_536, -1


class Asked(NamedTuple):
    """What answers are measured by; *request* is `None` for a run that somebody else began."""

    request: Mapping[str, Any] | None
    of_job: bool = False
    """Whether the request is known by its job alone, which does not say if evidence was asked for."""

    @property
    def approvals(self) -> bool:
        """Whether the run may ask for decisions."""
        return self.request is None or bool(self.request.get("approvals"))

    @property
    def application_tools(self) -> bool:
        """Whether the run may hand out tickets."""
        return self.request is None or bool(self.request.get("applicationTools"))

    def offers(self, tool: str) -> bool:
        """Whether the application both defined and selected *tool*."""
        if self.request is None:
            return True
        defined = [one["name"] for one in self.request.get("applicationTools") or ()]
        return tool in defined and tool in (self.request.get("tools") or ())


def same(said: object, expected: object, what: str) -> None:
    """Nothing, if what was *said* is what was *expected*."""
    needed(said == expected, f"another {what}")


def needed(holds: object, otherwise: str) -> None:
    """Nothing, if it *holds*."""
    if not holds:
        raise Unsound(otherwise)


def check_result(asked: Asked, result: RunResult) -> None:
    """Nothing, if *result* may be what the request comes to."""
    check_evidence(result)
    if asked.request is None:
        return
    same(result.provider, asked.request["provider"], "provider")
    same(result.model, asked.request["model"], "model")
    session, retrieval = asked.request.get("session"), asked.request.get("retrieval")
    needed((result.session is not UNSET) == (session is not None), "a session, or none, against the request")
    if asked.of_job:
        return
    needed((result.retrieval is not UNSET) == (retrieval is not None), "evidence, or none, against the request")
    if session is not None and result.session is not UNSET:
        _check_turn(session, result.session, result)
    if retrieval is not None and result.retrieval is not UNSET:
        check_retrieval(retrieval, result.retrieval)


def _check_turn(option: Mapping[str, Any], session: SessionInfo, result: RunResult) -> None:
    same(session.id, option["id"], "session")
    same(session.revision, option["revision"] + 1, "revision")
    same(session.provider, result.provider, "provider of the session")
    same(session.model, result.model, "model of the session")
    same(session.state, "ready", "state of the session")


def check_retrieval(option: Mapping[str, Any], found: RetrievalResult) -> None:
    """Nothing, if what was *found* is within what was asked."""
    same(found.corpus, option["corpus"], "corpus")
    needed(len(found.hits) <= option.get("limit", _LIMIT), "more passages than asked")
    size = sum(len(_utf8(hit)) for hit in found.hits)
    needed(size <= option.get("maxContextBytes", _CONTEXT_BYTES), "more text than asked")
    chosen = option.get("sourceIds")
    for hit in found.hits:
        needed(hit.score >= option.get("minScore", _LEAST_SCORE), "a passage below the least score")
        needed(chosen is None or hit.source.id in chosen, "a passage of a source that was not chosen")


def check_evidence(result: RunResult) -> None:
    """Nothing, if each passage of *result* is among its sources, and no other (retrieval §14)."""
    hits = result.retrieval.hits if result.retrieval is not UNSET else ()
    given = [source for source in result.sources or () if source.origin == "retrieval"]
    needed(len(given) == len(hits), "not one source for each passage")
    for hit in hits:
        needed(any(_stands_for(source, hit) for source in given), "a passage without its source")


def _stands_for(source: ContextManifest, hit: Hit) -> bool:
    text = _utf8(hit)
    return (source.id, source.revision, source.location, source.bytes, source.sha256) == (
        hit.chunk_id,
        hit.source.revision,
        hit.source.location,
        len(text),
        hashlib.sha256(text).hexdigest(),
    )


def _utf8(hit: Hit) -> bytes:
    return hit.text.encode("utf-8", "surrogatepass")
