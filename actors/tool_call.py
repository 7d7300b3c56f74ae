"""One call of a host tool: its progress on the way to the feed, its idle clock, and what its output is worth (runs §8)."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Literal, TypeAlias, cast

from msgspec import Raw, Struct

from actors.activity import Activity, Phase
from actors.events import ToolCall
from actors.jsontext import encoded, is_json, strict_json
from actors.ports import Tool, ToolContext

log = logging.getLogger(__name__)


class Output(Struct, frozen=True):
    """The tool gave *value*, as compact JSON."""

    value: Raw


class Failed(Struct, frozen=True):
    """The tool gave nothing that the run can use; whether it did anything is not known."""

    code: Literal["TOOL_FAILED", "TOOL_OUTPUT_LIMIT"]


class Idle(Struct, frozen=True):
    """The tool reported nothing for longer than the run's idle limit."""


Outcome: TypeAlias = Output | Failed | Idle

_FAILED = Failed("TOOL_FAILED")


class Call(Activity[Outcome]):
    """Makes one call; used once."""

    phase: ClassVar[Phase] = "tool"

    async def made(self, tool: Tool, call: ToolCall, subject: str) -> Outcome:
        """Make the call; the tool is not waited for once the outcome is known, or this is cancelled.

        What the feed does not have at the end is left in `hold.pending`, to go with the outcome's fact.

        Raises:
            Fenced: the run is not ours any more.
        """
        context = ToolContext(
            run_id=self._hold.actor,
            call_id=call.id,
            subject=subject,
            cancelled=lambda: self._outcome is not None,
            report_progress=_from_any_thread(self._report_progress),
        )
        return await self._carried_out(self._ask(tool, call, context), idle=Idle(), lost=_FAILED)

    async def _ask(self, tool: Tool, call: ToolCall, context: ToolContext) -> Outcome:
        try:
            arguments = cast("dict[str, Any]", strict_json(bytes(call.arguments).decode()))
            return _checked(await tool.call(arguments, context), tool.output_bytes_max)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the run must remember it, and a tool must not end the host
            # Only the type is logged: the text may hold what the tool works on.
            log.error("tool %s failed on run %s: %s", call.name, self._hold.actor, type(error).__qualname__)
            return _FAILED


def _checked(output: object, bytes_max: int) -> Outcome:
    try:
        text = encoded(output)  # before the walk, because it notices a value that contains itself
    except (TypeError, ValueError, RecursionError):
        return _FAILED
    if len(text) > bytes_max:
        return Failed("TOOL_OUTPUT_LIMIT")
    return Output(Raw(text)) if is_json(output) else _FAILED


def _from_any_thread(report: Callable[[], None]) -> Callable[[], None]:
    """Return *report* for any thread; however often it is called, one call of it waits for the loop at most."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiting = threading.Event()

    def now() -> None:
        waiting.clear()
        report()

    def reported() -> None:
        if threading.get_ident() == thread:
            report()
        elif not waiting.is_set():
            waiting.set()
            with suppress(RuntimeError):  # the loop is gone, and the run with it
                loop.call_soon_threadsafe(now)

    return reported
