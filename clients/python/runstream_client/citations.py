"""Checks which sources a text cites, as `[source:ID]` (retrieval §15); it proves that they exist, not that they support."""

from collections.abc import Collection

from runstream_client.errors import ProtocolBroken

_MARK = "[source:"


def cited(text: str, known: Collection[str], *, required: bool = False) -> list[str]:
    """The sources that *text* cites, each once, in the order of their first use.

    Raises:
        ProtocolBroken: `INVALID_CITATION` for one that is not *known*, or for none where one is *required*.
    """
    found: dict[str, None] = {}
    for part in text.split(_MARK)[1:]:
        name, closed, _ = part.partition("]")
        if not closed or name not in known:
            raise ProtocolBroken("INVALID_CITATION", f"no source is called {name[:128]!r}")
        found[name] = None
    if required and not found:
        raise ProtocolBroken("INVALID_CITATION", "nothing is cited")
    return list(found)
