"""Tools that leave a line in a file for each call: one that anybody may run, and one that a person must let pass."""

from actors.ports import ToolContext
from runstream.tools import tool
from tests.system.noted import note

__all__ = ["note", "reviewed"]


@tool(requires_approval=True)
def reviewed(n: int, context: ToolContext) -> dict[str, int]:
    """Leave a line, once a person said so."""
    return note(n, context)
