"""Events and logs as lines for people, safe for a terminal whatever a model wrote.

Nothing here waits, reads a clock or rolls a die.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from actors import events
from eventstore.store import Entry

DETAIL_CHARS_MAX = 100
_ENVELOPE = ("type", "runId", "sequence", "timestamp", "optional")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def neutral(text: str, keep: str = "\n\t") -> str:
    """*text* without what would move a cursor, change colours, ring, or turn the direction of reading."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else _picture(found[0]), text)


def event_line(event: Mapping[str, Any]) -> str:
    """One wire event as a line: number, time, type, what it says."""
    moment = str(event.get("timestamp", ""))[11:23]
    return _row(f"{event.get('sequence', ''):>5}  {moment:<12}  {event.get('type', ''):<24}  {_event_detail(event)}")


def log_line(entry: Entry, event: events.RunEvent) -> str:
    """One log event as a line: version, time, type, number of the last feed item, what it says."""
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(event))
    kind, at_ms = told.pop("type"), told.pop("at_ms")
    moment = datetime.fromtimestamp(at_ms // 1_000, UTC)
    detail = " ".join(f"{name}={_compact(value)}" for name, value in told.items())
    return _row(
        f"{entry.version:>5}  {moment:%H:%M:%S}.{at_ms % 1_000:03}  {kind:<16}  {entry.feed_head:>5}  {cut(detail)}"
    )


def log_object(entry: Entry, event: events.RunEvent) -> bytes:
    """One log event with where it stands, as one line of JSON."""
    place = {"version": entry.version, "feedHead": entry.feed_head, "command": entry.command}
    return msgspec.json.encode(place | {"event": event})


EVENT_HEADER = f"{'#':>5}  {'time (UTC)':<12}  {'event':<24}  detail"
LOG_HEADER = f"{'#':>5}  {'time (UTC)':<12}  {'event':<16}  {'feed':>5}  detail"


def cut(text: str, most: int = DETAIL_CHARS_MAX) -> str:
    """*text*, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def problem_line(problem: Mapping[str, Any]) -> str:
    """A public error as one line."""
    uncertain = " (what it did is not known)" if problem.get("outcome") == "uncertain" else ""
    code, message = str(problem.get("code", "")), str(problem.get("message", ""))
    told = f"{code}: {message}" if message and message != code else code
    return neutral(told + uncertain, keep="")


def _event_detail(event: Mapping[str, Any]) -> str:
    match event:
        case {"type": "run.started", "provider": provider, "model": model}:
            return f"{provider} {model}"
        case {"type": "step.started", "step": step}:
            return f"step {step}"
        case {"type": "text.delta", "text": str(text)}:
            return cut(_compact(text))
        case {"type": "usage.reported", "usage": usage}:
            return _counted(usage)
        case {"type": "run.completed", "result": {"finishReason": reason, "steps": steps, "usage": usage}}:
            return f"{reason}, {steps} step{'' if steps == 1 else 's'}, {_counted(usage)}"
        case {"type": "run.failed" | "run.cancelled", "error": problem}:
            return cut(problem_line(problem))
        case _:
            return cut(" ".join(f"{name}={_compact(value)}" for name, value in event.items() if name not in _ENVELOPE))


def _counted(usage: Mapping[str, Any]) -> str:
    words = {"inputTokens": "tokens in", "outputTokens": "tokens out"}
    told = [f"{usage[name]} {word}" for name, word in words.items() if name in usage]
    return ", ".join(told) or "usage unknown"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _row(line: str) -> str:
    return neutral(line, keep="").rstrip()


def _picture(control: str) -> str:
    """A visible sign for a control character."""
    code = ord(control)
    if code < 0x20:  # noqa: PLR2004 - the C0 controls, whose pictures stand in the same order
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"  # noqa: PLR2004 - delete has a picture too
