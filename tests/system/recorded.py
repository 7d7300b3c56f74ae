"""A tool that leaves a line in a file for each call, so that a test sees what ran in which process."""

import os
from pathlib import Path

from actors.ports import ToolContext
from runstream.tools import tool


@tool(requires_approval=True)
def reviewed(n: int, context: ToolContext) -> dict[str, int]:
    """Leave a line."""
    with Path(os.environ["RECORDED_CALLS"]).open("a") as lines:
        lines.write(f"{context.run_id} {context.call_id} {os.getpid()}\n")
    return {"n": n}
