"""A client of hosts that speak the AgenticDriver protocol 1.0, blocking (`Client`) and asynchronous (`AsyncClient`).

Requests are dictionaries as the wire has them; answers and events are frozen Structs, in which `UNSET` stands for what
the host did not say.
"""

from msgspec import UNSET

from runstream_client.async_client import AsyncClient, AsyncEventStream
from runstream_client.citations import cited
from runstream_client.client import Client, EventStream
from runstream_client.errors import (
    ClientError,
    ConnectionLost,
    Misuse,
    ProtocolBroken,
    Refused,
    RunError,
    Unreachable,
)
from runstream_client.events import (
    Approval,
    ApprovalRequested,
    ApprovalResolved,
    Execution,
    ExecutionRequested,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunProgress,
    RunStarted,
    StepStarted,
    TextDelta,
    TicketCall,
    ToolCalled,
    ToolCompleted,
    UsageReported,
)
from runstream_client.hands import AsyncReport, Report, Tool
from runstream_client.patience import Patience
from runstream_client.requests import Decision, RunRequest, SessionRequest
from runstream_client.results import RunResult, Usage

__all__ = [
    "UNSET",
    "Approval",
    "ApprovalRequested",
    "ApprovalResolved",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncReport",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Decision",
    "EventStream",
    "Execution",
    "ExecutionRequested",
    "Misuse",
    "Patience",
    "ProtocolBroken",
    "Refused",
    "Report",
    "RunCancelled",
    "RunCompleted",
    "RunError",
    "RunEvent",
    "RunFailed",
    "RunProgress",
    "RunRequest",
    "RunResult",
    "RunStarted",
    "SessionRequest",
    "StepStarted",
    "TextDelta",
    "TicketCall",
    "Tool",
    "ToolCalled",
    "ToolCompleted",
    "Unreachable",
    "Usage",
    "UsageReported",
    "cited",
]
