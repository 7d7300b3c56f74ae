"""The six operations for one principal: what it may do, what the run's log says of it, and what it is told.

The order is authorization, key, run, revision, state, approval (Host runtime §4); only a run's log can refuse a revision.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import anyio
import msgspec
from msgspec import Raw, Struct

from actors import by_hand
from actors.errors import Problem, Refused
from actors.events import HostRun
from actors.fingerprint import canonical_apart
from actors.host_input import requested
from actors.host_runs import Creator, Found, HostRuns, Keyed, Outcome
from actors.jsontext import encoded
from actors.request import Catalog, RunRequest
from api import problems
from api.bodies import may_be_slow
from api.grants import HostAccess
from api.host import encoding
from api.host.encoding import EventPage, Submission
from api.host.failures import FORBIDDEN, NOT_FOUND, Failure, failure_of
from api.host.reading import Reading, Seen
from api.host.requests import Call, CancelRun, CreateRun, GetRun, ListEvents, Operation, ResolveApproval, ResumeRun
from eventstore.store import Unavailable
from projections.host_feed import HostEvent
from projections.views import HostView, host_view

PAGE_BYTES_MAX = 1_500_000
"""Of a page's events together, but always one event."""


@dataclass(frozen=True, kw_only=True)
class HostParts:
    """What the service works with, for every principal."""

    runs: HostRuns
    reading: Reading
    catalog: Catalog
    defaults: Mapping[str, Any]
    """The members that complete a prompt."""
    fresh_id: Callable[[], str]


class HostService:
    """Serves one principal."""

    def __init__(self, parts: HostParts, access: HostAccess) -> None:
        self._parts = parts
        self._access = access

    async def create_run(self, call: Call, asked: CreateRun) -> Submission | Failure:
        """Accept and start a run; any node with room takes it up."""
        given = encoded(asked.input)
        slow = may_be_slow(given)
        request = await anyio.to_thread.run_sync(self._requested, asked) if slow else self._requested(asked)
        if not self._access.may_create(request if isinstance(request, RunRequest) else None):
            return FORBIDDEN
        context = asked.context
        if not context.trace_id:
            context = msgspec.structs.replace(context, trace_id=f"trace-{self._parts.fresh_id().replace('-', '')}")
        problem = request if isinstance(request, Problem) else None
        host = HostRun(context, Raw(given), asked.metadata, problem)
        who = Creator(self._access.subject, self._access.credential, self._access.waived)
        work = self._parts.runs.create(
            who, self._keyed(call, "create_run", asked), host, request if isinstance(request, RunRequest) else None
        )
        return await _submitted(asked.context.run_id, work)

    async def get_run(self, call: Call, asked: GetRun) -> HostView | Failure:
        """Fold a run's log into its view."""
        del call
        seen = await self._seen(asked.run_id)
        view = host_view(seen.feed) if isinstance(seen, Seen) else None
        return view or (seen if isinstance(seen, Failure) else NOT_FOUND)

    async def cancel_run(self, call: Call, asked: CancelRun) -> Submission | Failure:
        """End a run at once; whoever works on it stops afterwards."""
        found = await self._found(asked.run_id)
        if isinstance(found, Failure):
            return found
        command = by_hand.Cancel(asked.expected_revision, asked.reason)
        keyed = self._keyed(call, "cancel_run", asked)
        return await _submitted(asked.run_id, self._parts.runs.cancel(keyed, asked.run_id, found, command))

    async def resolve_approval(self, call: Call, asked: ResolveApproval) -> Submission | Failure:
        """Decide about a call, as whoever `approveTools` lets."""
        found = await self._found(asked.run_id)
        if isinstance(found, Failure):
            return found
        if not self._may_decide(found):
            return FORBIDDEN
        command = by_hand.Resolve(
            expected=asked.expected_revision,
            approval_id=asked.approval_id,
            outcome=asked.resolution,
            by=self._access.subject,
            reason=asked.reason,
            metadata=asked.metadata,
        )
        keyed = self._keyed(call, "resolve_approval", asked)
        return await _submitted(asked.run_id, self._parts.runs.resolve(keyed, asked.run_id, found, command))

    async def resume_run(self, call: Call, asked: ResumeRun) -> Submission | Failure:
        """Claim the approved call, here or wherever there is room."""
        found = await self._found(asked.run_id)
        if isinstance(found, Failure):
            return found
        command = by_hand.Resume(
            asked.expected_revision, asked.approval_id, self._access.subject, Raw(encoded(asked.input))
        )
        keyed = self._keyed(call, "resume_run", asked)
        return await _submitted(asked.run_id, self._parts.runs.resume(keyed, asked.run_id, found, command))

    async def list_events(self, call: Call, asked: ListEvents) -> EventPage | Failure:
        """Read events after a cursor; one beyond the log finds nothing, and is handed back."""
        del call
        seen = await self._seen(asked.run_id)
        if isinstance(seen, Failure):
            return seen
        if asked.after_sequence >= seen.feed.sequence:
            return EventPage((), asked.after_sequence, has_more=False)
        try:
            return page_of(await self._parts.reading.events(seen), asked)
        except Unavailable:
            return failure_of(problems.STORE)

    async def visible(self, run_id: str) -> Seen | Failure:
        """Look up a run that the principal may follow."""
        return await self._seen(run_id)

    def _requested(self, asked: CreateRun) -> RunRequest | Problem:
        """What the input asks for, or why that is nothing this host could run: the run ends by it when it is taken up."""
        try:
            return requested(asked.input, self._parts.defaults, self._parts.catalog)
        except Refused as refused:
            return refused.problem

    async def _seen(self, run_id: str) -> Seen | Failure:
        try:
            seen = await self._parts.reading.found(self._access.subject, run_id)
        except Unavailable:
            return failure_of(problems.STORE)
        if seen is None:
            return NOT_FOUND
        return seen if self._access.may_see(seen.accepted) else FORBIDDEN

    async def _found(self, run_id: str) -> Found | Failure | None:
        """Look up a run that the principal may change; that there is none is for the key's record to tell."""
        try:
            found = await self._parts.runs.found(self._access.subject, run_id)
        except Unavailable:
            return failure_of(problems.STORE)
        return found if found is None or self._access.may_see(found.accepted) else FORBIDDEN

    def _may_decide(self, found: Found | None) -> bool:
        """Whether the principal may decide what a run waits for; where that is nothing, nothing is denied."""
        call = None if found is None else found.under_review
        return found is None or call is None or self._access.may_decide(found.accepted.provider, call.name)

    def _keyed(self, call: Call, operation: Operation, body: tuple[Any, ...]) -> Keyed:
        """The key, with the fingerprint of what it is used for: operation and body with all defaults (Host runtime §8)."""
        document = [operation, *(msgspec.to_builtins(one) if isinstance(one, Struct) else one for one in body)]
        return Keyed(self._access.subject, call.idempotency_key, sha256(canonical_apart(document)).hexdigest())


def page_of(events: list[HostEvent], asked: ListEvents) -> EventPage:
    """The events of a page: at most as many as were *asked* for, and no more bytes than a page may have."""
    rest = [one for one in events if one.sequence > asked.after_sequence]
    taken: list[HostEvent] = []
    size = 0
    for one in rest[: asked.limit]:
        size += len(encoding.compact(encoding.event(one)))
        if taken and size > PAGE_BYTES_MAX:
            break
        taken.append(one)
    following = taken[-1].sequence if taken else asked.after_sequence
    return EventPage(taken, following, has_more=len(taken) < len(rest))


async def _submitted(run_id: str, work: Awaitable[Outcome]) -> Submission | Failure:
    try:
        outcome = await work
    except Refused as refused:
        return failure_of(refused.problem)
    except Unavailable:
        return failure_of(problems.STORE)
    if outcome.code == "not_found":
        return NOT_FOUND
    if outcome.code == "conflict":
        details = {"revision": outcome.revision, "status": outcome.status} if outcome.revision else {}
        return Failure("conflict", "The run is not at that revision, or not in a state for this.", details=details)
    return Submission(run_id, outcome.revision, outcome.status)
