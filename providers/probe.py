"""What an adapter's probe told, made fit to be shown; adapters are not trusted (providers §2).

Nothing here waits, reads a clock or rolls a die.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from actors.ports import Probe
from providers.listing import CATALOG_CODES, CONTROL, MODEL, MODELS_MAX, VERDICTS

_AROUND = re.compile(r"\A[\s\ufeff]+|[\s\ufeff]+\Z")
"""What some client trims off a text; the byte order mark is blank in browsers alone."""


class Malformed(ValueError):
    """Probe data of the wrong shape."""


def sound(probe: object) -> Probe:
    """*probe* with its models distinct and bounded and its connection clean; adapters are not trusted to type it.

    Raises:
        Malformed: it is no probe of a known code, or one of its members cannot be shown.
    """
    if not isinstance(probe, Probe):
        raise Malformed("no probe")
    code = _one_of(probe.code, *VERDICTS)
    connection = None if probe.connection is None else _connection(probe.connection)
    if code not in CATALOG_CODES:
        return Probe(code, connection=connection)
    models = _listed(probe.models)
    complete = _boolean(probe.complete) and len(models) <= MODELS_MAX
    return Probe(code, models[:MODELS_MAX], complete, connection)


def _listed(models: object) -> tuple[str, ...]:
    if not _is_sequence(models):
        raise Malformed("a catalog without models")
    return tuple(dict.fromkeys(_model(model) for model in models))


def _model(value: object) -> str:
    if not isinstance(value, str) or not MODEL.fullmatch(value):
        raise Malformed("no model id")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise Malformed("not a boolean")
    return value


def _connection(value: object) -> dict[str, Any]:
    given = _members(value)
    parts = {
        "source": _one_of(given.get("source"), "native-runtime", "provider-api"),
        "runtime": _strings(given.get("runtime"), required={"name": 100, "version": 80}, optional={}),
        "account": _account(given.get("account")),
    }
    return {name: part for name, part in parts.items() if part is not None}


def _account(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    status = _one_of(_members(value).get("status"), "signed-in", "signed-out", "unknown")
    texts = _strings(value, required={}, optional={"method": 80, "email": 320, "name": 200, "subscription": 120})
    return {"status": status, **(texts or {})}


def _strings(value: object, *, required: Mapping[str, int], optional: Mapping[str, int]) -> dict[str, str] | None:
    """The members of *value* that are shown, trimmed and within their bounds; an empty optional one is left out."""
    if value is None:
        return None
    given = _members(value)
    must = {name: _text(given.get(name), bound) for name, bound in required.items()}
    may = {name: _text(given[name], bound) for name, bound in optional.items() if given.get(name) is not None}
    if not all(must.values()):
        raise Malformed("an empty text")
    return must | {name: text for name, text in may.items() if text}


def _text(value: object, bound: int) -> str:
    if not isinstance(value, str):
        raise Malformed("not a text")
    text = _AROUND.sub("", value)
    if CONTROL.search(text) or len(text.encode("utf-16-le")) > 2 * bound:
        raise Malformed("a text that cannot be shown")
    return text


def _one_of(value: object, *allowed: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise Malformed("an unknown word")
    return value


def _members(value: object) -> Mapping[str, object]:
    if not _is_object(value):
        raise Malformed("not an object")
    return value


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _is_object(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
