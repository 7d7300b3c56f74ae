"""Works for a run while it is read: executes its tickets with local functions, and asks somebody about its approvals."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeAlias, cast

from msgspec import Struct

from runstream_client import calls
from runstream_client.calls import Call
from runstream_client.errors import ClientError, Misuse, Refused
from runstream_client.events import (
    ApprovalRequested,
    ApprovalResolved,
    Execution,
    ExecutionRequested,
    RunEvent,
    ToolCompleted,
)
from runstream_client.flows import Flow, Perform, asked
from runstream_client.polling import patiently
from runstream_client.records import RunPage
from runstream_client.requests import ApplicationTool, Decision, RunRequest
from runstream_client.streaming import Line

log = logging.getLogger(__name__)

SETTLED = frozenset({"APPROVAL_NOT_FOUND", "TOOL_EXECUTION_NOT_FOUND"})
"""Somebody was faster, or the run has ended, or the first copy of an answer arrived: the stream tells which."""


Report: TypeAlias = Callable[[], bool]
"""Tells the host that a call is still being worked on; false once nobody waits for its result any more."""
AsyncReport: TypeAlias = Callable[[], Awaitable[bool]]
"""The same for `AsyncClient`."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function of the application, as models are told of it; it has exactly one of the two."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    function: Callable[[dict[str, Any]], Any] | None = None
    """Takes the arguments of a call; what it returns, or what that becomes when awaited, must be JSON."""
    long_function: Callable[[dict[str, Any], Report], Any] | Callable[[dict[str, Any], AsyncReport], Any] | None = None
    """The same for what takes long: its second argument is a function to be called every now and then."""
    output_schema: Mapping[str, Any] | None = None
    requires_approval: bool | None = None

    @property
    def can_be_called(self) -> bool:
        """Whether it has a function, and not two."""
        given = [one for one in (self.function, self.long_function) if one is not None]
        return len(given) == 1 and callable(given[0])

    def performed(self, arguments: dict[str, Any], aside: Callable[[], Flow[bool]]) -> Perform:
        """The errand that calls it; a long one may have *aside* run meanwhile."""
        if self.long_function is not None:
            return Perform(self.long_function, (arguments,), aside)
        return Perform(cast("Callable[..., Any]", self.function), (arguments,))

    @property
    def definition(self) -> ApplicationTool:
        """What a request says of it."""
        given = {"outputSchema": self.output_schema, "requiresApproval": self.requires_approval}
        needed = {"name": self.name, "description": self.description, "inputSchema": self.input_schema}
        return cast("ApplicationTool", needed | {name: one for name, one in given.items() if one is not None})


class Hands(Struct, frozen=True, kw_only=True):
    """Who works for a run."""

    tools: Sequence[Tool] = ()
    approve: Callable[[Any], Any] | None = None
    """Asked with the `Approval`; it returns a decision, or `None` to leave that to others."""

    def checked(self) -> Self:
        """These hands.

        Raises:
            Misuse: `INVALID_CALLBACK` for what cannot be called.
        """
        if not all(tool.can_be_called for tool in self.tools) or not (self.approve is None or callable(self.approve)):
            raise Misuse("INVALID_CALLBACK", "a tool or an approver cannot be called")
        return self

    def request(self, request: RunRequest) -> RunRequest:
        """*request* with the tools defined and selected."""
        if not self.tools:
            return request
        names = [*request.get("tools", ()), *(tool.name for tool in self.tools)]
        definitions = [*request.get("applicationTools", ()), *(tool.definition for tool in self.tools)]
        return cast("RunRequest", {**request, "tools": [*dict.fromkeys(names)], "applicationTools": definitions})


class Work:
    """What *hands* do for one run."""

    def __init__(self, line: Line, hands: Hands) -> None:
        self._line = line
        self._hands = hands
        self._tools = {tool.name: tool for tool in hands.tools}
        self._done: set[str] = set()

    def caught_up(self, run_id: str, cursor: str) -> Flow[None]:
        """Look at what is settled already of a run that somebody else began, so that it is not done again."""
        more = True
        while more:
            page: RunPage = yield from patiently(self._line, partial(calls.run_events, run_id, cursor))
            self._done.update(settled_by(page.events))
            cursor, more = page.cursor, page.has_more

    def after(self, event: RunEvent) -> Flow[None]:
        """Do what *event* asks for."""
        match event:
            case ApprovalRequested(approval=approval) if approval.approval_id not in self._done:
                if self._hands.approve is None:
                    return
                decision: Decision | None = yield Perform(self._hands.approve, (approval,))
                if decision is not None:
                    yield from self._told(lambda: calls.decide_about(approval, decision))
            case ExecutionRequested(execution=ticket) if ticket.call.id not in self._done:
                if ticket.call.name in self._tools:
                    yield from self._executed(ticket)
            case _:
                pass

    def _executed(self, ticket: Execution) -> Flow[None]:
        """Execute a ticket, once, whatever becomes of it; what it raises stays here, in the log."""
        try:
            tool = self._tools[ticket.call.name]
            output = yield tool.performed(ticket.call.arguments, partial(self._reported, ticket))
            answer = calls.tool_result(ticket, output)
        except Exception:
            log.exception("the application's tool %s failed in run %s", ticket.call.name, ticket.run_id)
            answer = calls.tool_failed(ticket)
        yield from self._told(lambda: answer)

    def _reported(self, ticket: Execution) -> Flow[bool]:
        """Say once that a ticket is being worked on (application-tools §4.1); whether its result may still be awaited.

        A report only moves a timer, and the next one makes up for it: one that is lost must not fail the call.
        """
        exchange, judge = calls.progress_soon(ticket)
        try:
            yield from asked(self._line.nodes, exchange, judge)
        except ClientError as error:
            log.info("a report of progress was not taken: %s", error)
            return error.code not in SETTLED and not isinstance(error, Misuse)
        return True

    def _told(self, call: Callable[[], Call[Any]]) -> Flow[None]:
        try:
            yield from patiently(self._line, call)
        except Refused as error:
            if error.code not in SETTLED and error.outcome is None:
                raise
            log.info("an answer came too late, or was not taken: %s", error)


def settled_by(events: Sequence[RunEvent]) -> Iterator[str]:
    """The reviews and calls that are over, as *events* tell it."""
    for event in events:
        match event:
            case ApprovalResolved(resolution=resolution):
                yield resolution.approval_id
            case ToolCompleted(call_id=call_id):
                yield call_id
            case _:
                pass
