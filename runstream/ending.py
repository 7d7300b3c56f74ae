"""How a command ends: its exit code, and the lines on stderr that say why."""

import errno
from collections.abc import Sequence
from typing import NamedTuple

from runstream_client import ClientError

from actors.errors import Refused
from api.grants import InvalidPolicy
from api.server import NotServed
from eventstore.link import ConnectionLost, ReplyError, Unfit, passing
from eventstore.local import LocalServerError
from eventstore.store import HistoryLost, Unavailable
from runstream.instances import NoModels, UnknownInstance
from runstream.running import RunFailed
from runstream.settings import SettingsError
from runstream.tables import neutral, problem_line
from runstream.tools import ToolError

FAILED, UNUSABLE = 1, 2
"""The run or the question failed; the command or the settings cannot be used as they are."""


class Ending(NamedTuple):
    """An exit code and what stderr says."""

    code: int
    lines: Sequence[str] = ()


def ending_of(error: BaseException) -> Ending | None:
    """How *error* ends a command; None for one that nobody foresaw."""
    match error:
        case BaseExceptionGroup(exceptions=[one]):
            return ending_of(one)
        case BrokenPipeError():
            return Ending(FAILED)
        case KeyboardInterrupt():
            return Ending(FAILED, ["stopped"])
        case SettingsError():
            return Ending(UNUSABLE, [f"settings: {neutral(line, keep='')}" for line in str(error).splitlines()])
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EROFS, strerror=why):
            return Ending(FAILED, [f"cannot write: {why}"])
        case ReplyError() if passing(error):
            return Ending(FAILED, [f"Redis cannot serve at the moment: {_said(error)}"])
        case Refused(problem=problem):
            return Ending(FAILED, [problem_line({"code": problem.code, "message": problem.message})])
        case (
            InvalidPolicy()
            | UnknownInstance()
            | ToolError()
            | NotServed()
            | LocalServerError()
            | Unfit()
            | ReplyError()
        ):
            return Ending(UNUSABLE, [_said(error)])
        case ClientError(code=code, message=message, outcome=outcome):
            return Ending(FAILED, [problem_line({"code": code, "message": message, "outcome": outcome})])
        case RunFailed() | NoModels() | HistoryLost():
            return Ending(FAILED, [_said(error)])
        case Unavailable() | ConnectionLost():
            return Ending(FAILED, [f"Redis does not answer: {_said(error)}"])
        case _:
            return None


def _said(error: BaseException) -> str:
    return neutral(str(error) or type(error).__name__, keep="")
