"""What every test has: one event loop, asyncio's own, so that a green run does not hang on which loop is installed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

EXHAUSTIVE = (
    "actors/test_crash.py",
    "actors/test_host_properties.py",
    "actors/test_host_runtime.py",
    "actors/test_job_crash.py",
    "actors/test_races.py",
    "actors/test_run_properties.py",
    "actors/test_schema_suite.py",
    "actors/test_session_crash.py",
    "actors/test_session_properties.py",
    "actors/test_tools_crash.py",
    "api/host/test_host_crash.py",
    "api/host/test_hostile.py",
    "api/host/test_vectors.py",
    "eventstore/test_barrier.py",
    "eventstore/test_cluster.py",
    "eventstore/test_differential.py",
    "eventstore/test_interleavings.py",
    "eventstore/test_ledger.py",
    "eventstore/test_ledger_queue.py",
    "eventstore/test_sentinel.py",
    "eventstore/test_shapes.py",
    "runstream/test_settings.py",
    "simulation/",
    "system/test_chaos.py",
    "system/test_jobs_soak.py",
)
"""What tries rules in every way there is: it says nothing about how the program was packed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix().startswith(EXHAUSTIVE):
            item.add_marker("exhaustive")


settings.register_profile("runstream", deadline=None, print_blob=True)
settings.load_profile("runstream")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}
