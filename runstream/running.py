"""`runstream run`: one run, here or on another host, shown as it happens."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal, TypeAlias

import msgspec

from projections.wire_feed import numbered
from runstream.client import remote_events
from runstream.host import Host
from runstream.output import Output
from runstream.tables import event_line, problem_line

Show: TypeAlias = Literal["text", "json", "events", "table"]
Events: TypeAlias = AsyncGenerator[bytes]
SUBJECT = "local"
"""Who owns what is run without a token on this machine."""
TERMINAL = ("run.completed", "run.failed", "run.cancelled")

__all__ = ["SUBJECT", "RunFailed", "Show", "document_of", "local_events", "remote_events", "run"]


class RunFailed(Exception):
    """The run ended without a result; the text is its public error."""


def document_of(
    text: str,
    *,
    provider: str,
    model: str,
    max_steps: int | None = None,
    schema: Any = None,
    key: str | None = None,
) -> dict[str, Any]:
    """The request for a run of *text*; what is not given is left out."""
    more = {"maxSteps": max_steps, "outputSchema": schema, "idempotencyKey": key}
    given = {name: value for name, value in more.items() if value is not None}
    return {"provider": provider, "model": model, "input": text, **given}


async def local_events(host: Host, document: Mapping[str, Any]) -> Events:
    """Start a run on *host* and yield its events; closing this early cancels the run."""
    async with host.attend(document, subject=SUBJECT) as attended:
        async for batch in attended.items():
            for item in batch:
                yield numbered(item.number, item.data)


async def run(events: Events, output: Output, show: Show, started: Callable[[str], None]) -> None:
    """Show *events* until the run has ended; *started* is told the run's id first.

    Raises:
        RunFailed: it ended without a result.
    """
    last: Mapping[str, Any] = {}
    silent = True
    async with aclosing(events) as coming:
        async for data in coming:
            last = msgspec.json.decode(data)
            if last.get("type") == "run.started":
                started(str(last.get("runId", "")))
            silent = silent and last.get("type") != "text.delta"
            await _shown(last, data, output, show)
    if show == "text" and silent:
        await output.text(_replayed(last))
    await output.ended()
    match last:
        case {"type": "run.completed"}:
            return
        case {"type": "run.failed" | "run.cancelled", "error": problem}:
            raise RunFailed(problem_line(problem))
        case _:
            raise RunFailed("INCOMPLETE_STREAM: the connection ended before the run did")


async def _shown(event: Mapping[str, Any], data: bytes, output: Output, show: Show) -> None:
    match show, event:
        case "events", _:
            await output.json(data)
        case "table", _:
            await output.line(event_line(event))
        case "text", {"type": "text.delta", "text": str(text)}:
            await output.text(text)
        case "json", {"type": "run.completed"}:
            await output.pretty(bytes(_Completed.decode(data).result))
        case _:
            pass


def _replayed(last: Mapping[str, Any]) -> str:
    """The text of a result that came without its pieces, as that of a key which was used before does."""
    match last:
        case {"type": "run.completed", "result": {"text": str(text)}}:
            return text
        case _:
            return ""


class _Ended(msgspec.Struct):
    result: msgspec.Raw


_Completed = msgspec.json.Decoder(_Ended)
