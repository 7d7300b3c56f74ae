"""The shape of a script that a model follows, read strictly from JSON or TOML data.

Nothing here waits, reads a clock or rolls a die.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=3_600_000)]
Piece: TypeAlias = Annotated[str, Meta(min_length=1)]

_MODEL = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}")


class InvalidScript(ValueError):
    """A script that cannot be followed; the text names the model and the place."""


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool use to ask for; without a name the first tool that the run offers, without an id one of its turn."""

    name: Piece | None = None
    arguments: dict[str, Any] = {}
    id: str | None = None


class Repeat(Struct, frozen=True, forbid_unknown_fields=True):
    """The same increment many times."""

    text: Piece
    times: Annotated[int, Meta(ge=1, le=100_000)]


class Fail(Struct, frozen=True, forbid_unknown_fields=True):
    """A failure of the vendor once *after* increments were streamed; unsaid, a code is retryable as providers §5 says."""

    code: Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9_]{0,79}\Z")]
    retryable: bool | None = None
    uncertain: bool = False
    after: Annotated[int, Meta(ge=0, le=100_000)] = 0


class RateLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """How many attempts of one call are answered 429 before one is served."""

    times: Annotated[int, Meta(ge=1)]
    retry_after_ms: Milliseconds = 0


class ScriptTurn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename={"raises": "raise"}):
    """What one model step does, in this order: be refused, wait, report progress, speak, end."""

    rate_limit: RateLimit | None = None
    wait_ms: Milliseconds = 0
    progress: Annotated[int, Meta(ge=0, le=100_000)] = 0
    every_ms: Milliseconds = 0

    stream: tuple[Piece, ...] | None = None
    repeat: Repeat | None = None
    reply: str | None = None
    """Streamed; `$input`, `$opening`, `$words`, `$lines` and `$result` stand for what the request holds."""
    echo: bool = False
    text: str | None = None
    """Answered whole, without streaming."""
    json: Any = UNSET
    """Answered whole, as compact JSON."""
    tokens: bool = False
    """A reply or an echo comes in pieces of up to four characters instead of words."""
    delay_ms: Milliseconds = 0
    """Before each increment."""

    tool_calls: Annotated[tuple[Call, ...], Meta(max_length=64)] = ()
    usage: dict[str, Any] | Literal["words"] | None = None
    """As the vendor reports it, sound or not; `words` counts the words of the messages and of the answer."""
    native: Any | UnsetType = UNSET
    finish_reason: Literal["stop", "length"] = "stop"

    hang: bool = False
    fail: Fail | None = None
    raises: str | None = None
    """An exception that no adapter understands, with this text."""
    ignore_cancel: bool = False
    """The whole turn goes on although it was cancelled; a hang then ends after a minute."""

    def __post_init__(self) -> None:
        """Refuse what cannot be followed: two texts, two ends, or text that UTF-8 cannot carry."""
        if len(self.texts) > 1:
            raise ValueError(f"only one of {', '.join(self.texts)} can be the text")
        if self.hang + (self.fail is not None) + (self.raises is not None) > 1:
            raise ValueError("only one of hang, fail, raise can be the end")
        try:
            msgspec.json.encode(self)
        except UnicodeEncodeError as error:
            raise ValueError("text holds a lone surrogate") from error

    @property
    def texts(self) -> list[str]:
        """The members that say what the text is."""
        said = {
            "stream": self.stream is not None,
            "repeat": self.repeat is not None,
            "reply": self.reply is not None,
            "echo": self.echo,
            "text": self.text is not None,
            "json": self.json is not UNSET,
        }
        return [name for name, there in said.items() if there]


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """The turns of a model, the last of which repeats."""

    turns: Annotated[tuple[ScriptTurn, ...], Meta(min_length=1, max_length=1_000)]


def scripts(data: Mapping[str, Any]) -> dict[str, Script]:
    """The scripts that *data*, as read from JSON or TOML, holds by model name.

    Raises:
        InvalidScript: a name is no model id, or a script has the wrong shape.
    """
    return {model: _script(model, value) for model, value in data.items()}


def _script(model: str, value: Any) -> Script:
    if not _MODEL.fullmatch(model):
        raise InvalidScript(f"{model!r} is no model id")
    try:
        return msgspec.convert(value, Script)
    except msgspec.ValidationError as error:
        raise InvalidScript(f"model {model}: {error}") from error
