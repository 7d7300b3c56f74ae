"""A tool that leaves a line in a file for each call and needs nobody's approval, so that a test sees what ran, and how often."""

import os
from pathlib import Path

from actors.ports import ToolContext
from runstream.tools import tool


@tool
def note(n: int, context: ToolContext) -> dict[str, int]:
    """Leave a line."""
    line = f"{context.run_id} {context.call_id} {os.getpid()}\n".encode()
    file = os.open(Path(os.environ["NOTED_CALLS"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
        os.fsync(file)
    finally:
        os.close(file)
    return {"n": n}
