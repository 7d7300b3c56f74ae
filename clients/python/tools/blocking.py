"""Makes the half of the client that blocks of the half that awaits: `python clients/python/tools/blocking.py`, then `make fmt`.

The halves only say aloud which flow stands for which call, so the one is the other without its words for waiting.
"""

from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "runstream_client"
HALVES = {"async_client.py": "client.py", "async_groups.py": "groups.py"}
WORDS: Mapping[str, str] = {
    "The client that awaits; the same calls as `client`.": "The client that blocks, made of `async_client` by `tools/blocking.py`.",
    "that awaits, by what they are about; each says which of `calls` it is, and nothing else.": (
        "that blocks, made of `async_groups` by `tools/blocking.py`."
    ),
    "Awaitable[Decision | None] | Decision | None": "Decision | None",
    "Awaitable, ": "",
    "async def ": "def ",
    "async for ": "for ",
    "await ": "",
    "__anext__": "__next__",
    "anext(": "next(",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    ".aclose(": ".close(",
    "AsyncClient": "Client",
    "AsyncEventStream": "EventStream",
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "async_driver": "sync_driver",
    "async_groups import": "groups import",
    "RuntimeError": "ValueError",  # what a generator raises that runs elsewhere
    "tasks may share": "threads may share",
    "any task": "any thread",
    "another task": "another thread",
}
"""What is said in place of what, in this order."""


def blocking(text: str) -> str:
    """The module that blocks, of the one that awaits."""
    for word, other in WORDS.items():
        text = text.replace(word, other)
    return text


def main() -> None:
    """Write the half that blocks."""
    for awaits, blocks in HALVES.items():
        (PACKAGE / blocks).write_text(blocking((PACKAGE / awaits).read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
