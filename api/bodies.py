"""Request bodies, strict: bytes to a JSON value (wire overview §8).

Stricter than upstream on purpose: duplicate members, lone surrogates and deep nesting are refused, because another reader
of the same bytes would see something else.
"""

from actors.errors import Refused
from actors.jsontext import NotJson, OutOfRange, strict_json

BODY_BYTES_MAX = 1_000_000
QUICK_BODY_BYTES = 65_536
"""A larger body is checked in a thread, so that other clients of the node do not wait for it."""


def may_be_slow(body: bytes) -> bool:
    """Whether judging *body* as a run request may take long: it is large, or has a schema, whose name may be escaped."""
    return len(body) > QUICK_BODY_BYTES or b"chema" in body or b"\\u" in body


def parsed(body: bytes, *, out_of_range: str = "INVALID_REQUEST") -> object:
    """The JSON value of a request *body*.

    Raises:
        Refused: INVALID_REQUEST for anything but strict UTF-8 JSON, *out_of_range* for a number that no double holds,
            BODY_TOO_LARGE above the bound.
    """
    if len(body) > BODY_BYTES_MAX:
        raise Refused("BODY_TOO_LARGE", f"The body is larger than {BODY_BYTES_MAX} bytes")
    try:
        return strict_json(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Refused("INVALID_REQUEST", "The body is not UTF-8") from None
    except OutOfRange as error:
        raise Refused(out_of_range, f"The body is not what every reader sees: {error}") from None
    except NotJson as error:
        raise Refused("INVALID_REQUEST", f"The body is not strict JSON: {error}") from None
