"""A process that serves: its memory."""

import gc
from collections.abc import Iterator

import pytest

from runstream import remembering


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_what_is_there_when_a_host_begins_to_serve_is_not_looked_through_again() -> None:
    remembering.settle()
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[0] == remembering.FRESH_MAX
