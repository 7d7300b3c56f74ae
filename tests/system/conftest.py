"""Two hosts on one Redis, for all tests that do not end either."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system.processes import Host, Redis, redis_in, served, settings_text


class Pair(NamedTuple):
    one: Host
    two: Host
    redis: Redis


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[Pair]:
    with redis_in(folder) as redis:
        paths = [folder / f"{name}.toml" for name in ("one", "two")]
        for path in paths:
            path.write_text(settings_text("standard", redis.socket, folder / path.stem))
        with served(paths[0]) as one, served(paths[1]) as two:
            yield Pair(one, two, redis)
