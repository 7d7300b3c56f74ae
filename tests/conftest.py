"""What every test has: one event loop, asyncio's own, so that a green run does not hang on which loop is installed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

RULES = ("actors/", "eventstore/", "simulation/", "runstream/test_settings.py", "system/test_chaos.py")
"""What tries the rules, and the store, in every way there is: it says nothing about how the program was packed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix().startswith(RULES):
            item.add_marker("rules")


settings.register_profile("runstream", deadline=None, print_blob=True)
settings.load_profile("runstream")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}
