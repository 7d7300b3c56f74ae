"""The tool of `runstream demo-approval`: harmless, and yet a person must allow each call."""

from typing import Annotated, Any

from msgspec import Meta

from runstream.tools import tool


@tool(requires_approval=True)
def post_notice(
    board: Annotated[str, Meta(max_length=80, description="Where to pin it.")],
    text: Annotated[str, Meta(max_length=400, description="What it says.")],
) -> dict[str, Any]:
    """Pin a notice to a board, which in this demonstration is made of thin air."""
    return {"pinned": True, "board": board, "characters": len(text)}
