"""What every test has: one event loop, asyncio's own, so that a green run does not hang on which loop is installed."""

from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("runstream", deadline=None, print_blob=True)
settings.load_profile("runstream")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}
