"""What the program tells on stderr: a line for each record, for people or as JSON.

An exception is told by its type and the way it took, never by its text, which may hold a prompt or a secret.
A line of JSON says as well which node wrote it, and for which run and epoch, wherever the task that writes it knows.
"""

import logging
import traceback
from datetime import UTC, datetime
from typing import TextIO

import msgspec
from typing_extensions import override

from actors.telemetry import ABOUT
from runstream.settings import LogSettings
from runstream.tables import neutral

EXTRAS = ("run", "node", "epoch")
"""What a record may carry beside its message."""
_QUIET = ("asyncio", "uvicorn")
"""Libraries that tell of their own housekeeping."""
_DISCREET = ("httpcore2", "httpx2")
"""Libraries that would tell what vendors answer."""


class ForPeople(logging.Formatter):
    """Time, level, logger, message, then whatever else the record carries."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        told = [f"{name}={value}" for name, value in _told(record).items()]
        level = record.levelname.lower()
        return neutral(" ".join((_time(record)[11:23], f"{level:<7}", record.name, _message(record), *told)), keep="")


class AsJson(logging.Formatter):
    """One JSON object a line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        return msgspec.json.encode(_encodable(head | _about() | _told(record))).decode()


def handler(settings: LogSettings, stream: TextIO) -> logging.Handler:
    """What writes records to *stream* as *settings* want them."""
    made = logging.StreamHandler(stream)
    made.setFormatter(AsJson() if settings.json else ForPeople())
    return made


async def begin(settings: LogSettings, stream: TextIO) -> None:
    """Send the records of the whole program to *stream*, and nowhere else."""
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler(settings, stream))
    root.setLevel(settings.level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("DEBUG" if settings.level == "debug" else "WARNING")
    for name in _DISCREET:
        logging.getLogger(name).setLevel("WARNING")


def _message(record: logging.LogRecord) -> str:
    """The message of *record*; of several lines, such as a traceback that a library writes, the first."""
    first, more, _ = record.getMessage().partition("\n")
    return f"{first} …" if more else first


def _about() -> dict[str, object]:
    """What the task that writes works for, as far as it knows."""
    about = ABOUT.get()
    return {} if about is None else {name: value for name, value in about._asdict().items() if value}


def _told(record: logging.LogRecord) -> dict[str, object]:
    """The extras of *record*, and its exception."""
    told: dict[str, object] = {name: getattr(record, name) for name in EXTRAS if hasattr(record, name)}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        told["error"] = type(error).__name__
        told["way"] = " < ".join(
            f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__))
        )
    return told


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encodable(fields: dict[str, object]) -> dict[str, object]:
    """The fields as JSON can carry them: a lone surrogate becomes a question mark."""
    return {
        name: value if isinstance(value, int) else str(value).encode(errors="replace").decode()
        for name, value in fields.items()
    }
