"""JSON as the protocol has it: no `NaN`, no infinities, strict UTF-8; whatever breaks that is `Unsound`."""

import json
import math
from typing import Any, NoReturn


class Unsound(Exception):
    """A value that no host may send; the text says what is wrong with it."""


def parsed(data: bytes | str) -> Any:
    """The value that *data* holds.

    Raises:
        Unsound: it is not strict JSON.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8", "strict")
        return json.loads(text, parse_constant=_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Unsound(f"not JSON: {error}") from None


def encoded(value: Any) -> bytes:
    """*value* as compact JSON; a lone surrogate, which UTF-8 cannot carry, stays escaped.

    Raises:
        ValueError, TypeError, RecursionError: it is no JSON value.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is no finite number")
    return value
