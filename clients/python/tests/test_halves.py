"""The client that blocks is the one that awaits, without waiting: neither is written by hand twice."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "blocking.py"


def tool() -> Any:
    found = importlib.util.spec_from_file_location("blocking", TOOL)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def said(text: str) -> tuple[list[str], list[str]]:
    """The imports of a module, and all else that it says, without its comments and the way it is laid out."""
    tree = ast.parse(text)
    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    for one in imports:
        one.names.sort(key=lambda name: name.name)
    rest = [ast.unparse(one) for one in tree.body if one not in imports]
    return sorted(ast.unparse(one) for one in imports), rest


@pytest.mark.parametrize(("awaits", "blocks"), tool().HALVES.items())
def test_the_half_that_blocks_is_made_of_the_other(awaits: str, blocks: str) -> None:
    made = tool()
    written = (made.PACKAGE / blocks).read_text(encoding="utf-8")
    assert said(made.blocking((made.PACKAGE / awaits).read_text(encoding="utf-8"))) == said(written)


def test_no_word_for_waiting_is_left() -> None:
    for blocks in tool().HALVES.values():
        tree = ast.parse((tool().PACKAGE / blocks).read_text(encoding="utf-8"))
        assert not [one for one in ast.walk(tree) if isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncFunctionDef)]
