"""One model call: its text on the way to the feed, and what its answer or failure means to the run."""

import logging
from typing import ClassVar, TypeAlias

import anyio
import msgspec
from msgspec import Struct
from typing_extensions import override

from actors import run
from actors.activity import DELTA_GAP_S, IDLE, PROGRESS_GAP_S, Activity, FeedItems, Phase
from actors.errors import Failed, Problem
from actors.ports import Model, ModelContext, ModelRequest, Turn

__all__ = ["DELTA_GAP_S", "PENDING_BYTES_MAX", "PROGRESS_GAP_S", "Answered", "Call", "FeedItems", "Outcome"]

log = logging.getLogger(__name__)

PENDING_BYTES_MAX = 2_000_000
"""Text a model may be ahead of the store; beyond it the run ends with OUTPUT_BUFFER_LIMIT (runs §8)."""

_INTERNAL = Problem("INTERNAL_ERROR", "The provider failed unexpectedly.")
_MALFORMED = Problem("INVALID_PROVIDER_RESPONSE", "The provider's answer is malformed.")
UNFIT = Problem("INVALID_PROVIDER_RESPONSE", "The provider's own state is no JSON.")
_BUFFER = Problem("OUTPUT_BUFFER_LIMIT", "The output came faster than it could be stored.")


class Answered(Struct, frozen=True):
    """The model answered; *streamed* if any of its text was shown before."""

    turn: Turn
    streamed: bool


Outcome: TypeAlias = Answered | run.Fail | run.Cancel


class Call(Activity[Outcome]):
    """Makes one call; used once."""

    phase: ClassVar[Phase] = "model"
    _pending_bytes = 0

    async def made(self, model: Model, request: ModelRequest, subject: str) -> Outcome:
        """Make the call and stream it; the model is not waited for once the outcome is known.

        What the feed does not have at the end is left in `hold.pending`, to go with the outcome's fact.

        Raises:
            Fenced: the run is not ours any more.
        """
        self._streamed: list[str] = []
        context = ModelContext(self._hold.actor, subject, self._emit_text, self._report_progress)
        asking = self._ask(model, request, context)
        return await self._carried_out(asking, idle=run.Cancel(IDLE, "idle"), lost=run.Fail(_INTERNAL))

    async def _ask(self, model: Model, request: ModelRequest, context: ModelContext) -> Outcome:
        try:
            return self._checked(await model.complete(request, context))
        except Failed as failed:
            return run.Fail(failed.problem)
        except Exception as error:  # noqa: BLE001 - whatever a provider raises, the run must remember that it failed
            # Only the type is logged: the text may hold a vendor's answer or a key.
            log.error("provider %s failed on run %s: %s", model.info.id, self._hold.actor, type(error).__qualname__)
            return run.Fail(_INTERNAL)

    def _checked(self, turn: Turn) -> Outcome:
        shown = "".join(self._streamed)
        if (shown and shown != turn.text) or not _is_storable(turn):
            return run.Fail(_MALFORMED)
        if turn.native is not None and not _is_json(turn.native):
            return run.Fail(UNFIT)
        return Answered(turn, streamed=bool(shown))

    def _emit_text(self, text: str) -> None:
        if self._outcome is not None or not text:
            return
        try:
            self._pending_bytes += len(text.encode())
        except UnicodeEncodeError:
            self._end(run.Fail(_MALFORMED))
            return
        self._progress_s = anyio.current_time()
        self._entries.append(text)
        self._streamed.append(text)
        self._news.set()
        if self._pending_bytes > PENDING_BYTES_MAX:
            self._end(run.Cancel(_BUFFER, "buffer"))

    @override
    def _taken(self) -> list[bytes]:
        self._pending_bytes = 0
        return super()._taken()


def _is_storable(turn: Turn) -> bool:
    """Tell whether what *turn* says can be written to a log and read again."""
    try:
        turn.text.encode()
        for call in turn.tool_calls:
            (call.id + call.name).encode()
    except UnicodeEncodeError:
        return False
    return all(_is_json(call.arguments) for call in turn.tool_calls)


def _is_json(raw: object) -> bool:
    """Tell whether *raw* is what it says: an adapter may hand over anything."""
    if not isinstance(raw, msgspec.Raw):
        return False
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
