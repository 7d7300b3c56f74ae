"""The pages in which vendors list their models (providers §2).

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Struct

from providers.probe import Malformed

PAGES_MAX = 20
BYTES_MAX = 2_000_000
"""Of all pages together."""
ENTRIES_MAX = 10_000
"""Of one page."""

STATUSES = {
    401: "AUTH_REJECTED",
    403: "ACCESS_DENIED",
    404: "DISCOVERY_UNSUPPORTED",
    405: "DISCOVERY_UNSUPPORTED",
    429: "RATE_LIMITED",
}
"""What a probe tells by its status; every other one that is no success is `DISCOVERY_FAILED`."""


class Page(NamedTuple):
    """The ids of one page, and the query that asks for the next, if there is one."""

    models: tuple[str, ...]
    following: str | None = None


class Listing(NamedTuple):
    """How a vendor lists: the query of the first page, and what reads a page."""

    first: str
    read: Callable[[bytes], Page]


class _Model(Struct):
    id: str


class _ById(Struct):
    data: list[_Model]


class _ByLast(Struct):
    data: list[_Model]
    has_more: bool = False
    last_id: str | None = None


class _Named(Struct):
    name: str


class _ByToken(Struct, rename="camel"):
    models: list[_Named] = []
    next_page_token: str = ""


_BY_ID = msgspec.json.Decoder(_ById)
_BY_LAST = msgspec.json.Decoder(_ByLast)
_BY_TOKEN = msgspec.json.Decoder(_ByToken)


def _one_page(data: bytes) -> Page:
    return Page(tuple(model.id for model in _BY_ID.decode(data).data))


def _page_by_last(data: bytes) -> Page:
    page = _BY_LAST.decode(data)
    if page.has_more and not page.last_id:
        raise Malformed("more pages, but nothing to ask for them by")
    following = f"limit=100&after_id={quote(page.last_id or '', safe='')}" if page.has_more else None
    return Page(tuple(model.id for model in page.data), following)


def _page_by_token(data: bytes) -> Page:
    page = _BY_TOKEN.decode(data)
    following = f"pageSize=100&pageToken={quote(page.next_page_token, safe='')}" if page.next_page_token else None
    return Page(tuple(model.name.removeprefix("models/") for model in page.models), following)


BEARER = Listing("", _one_page)
ANTHROPIC = Listing("limit=100", _page_by_last)
GEMINI = Listing("pageSize=100", _page_by_token)


def page(listing: Listing, data: bytes) -> Page:
    """The page in *data*.

    Raises:
        Malformed: it has another shape, or more entries than a page may.
    """
    try:
        read = listing.read(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Malformed("no page") from None
    if len(read.models) > ENTRIES_MAX:
        raise Malformed("too many entries")
    return read
