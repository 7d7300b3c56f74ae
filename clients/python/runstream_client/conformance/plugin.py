"""The options of the conformance tests, for `pytest -p runstream_client.conformance.plugin`."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parent


class Target(NamedTuple):
    """The host that is to be tried."""

    url: str
    token: str
    provider: str | None
    model: str | None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say which host is to be tried."""
    group = parser.getgroup("runstream-client", "a host that is to be tried")
    group.addoption("--host", help="base address, such as http://127.0.0.1:7433")
    group.addoption("--token", help="token for it; better given as RUNSTREAM_TOKEN")
    group.addoption("--provider", help="provider of the runs that are tried; the first one unless given")
    group.addoption("--model", help="model of the runs that are tried; the first one unless given")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests of a host out where none is named."""
    if collection_path == FOLDER / "test_host.py" and not config.getoption("--host"):
        return True
    return None


@pytest.fixture(scope="session")
def target(pytestconfig: pytest.Config) -> Target:
    """Give the host that was named."""
    option = pytestconfig.getoption
    token = option("--token") or os.environ.get("RUNSTREAM_TOKEN", "")
    if not token:
        pytest.exit("--host needs --token or RUNSTREAM_TOKEN", returncode=2)
    return Target(str(option("--host")), token, option("--provider"), option("--model"))
