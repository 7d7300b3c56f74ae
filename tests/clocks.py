"""Clocks that are off: what a process is started with so that its wall clock is ahead or behind; clocks that only run are not.

A library that is loaded into the process before all else answers for the system; Linux on x86-64 alone has it here.
"""

import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

_LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"
_SHARED = Path("/dev/shm")  # noqa: S108 - where the library keeps something, for each process by its number
MAY_BE_OFF = (sys.platform, platform.machine()) == ("linux", "x86_64")
CLOCKS = pytest.mark.skipif(
    not MAY_BE_OFF,
    reason="no library here lets the clock of one process be off: Linux on x86-64 has one",
)


def off_by(seconds: int) -> Mapping[str, str]:
    """The environment that puts a process's wall clock *seconds* ahead, or behind; none for a clock that is right."""
    if not seconds:
        return {}
    found = find_spec("libfaketime")
    assert found is not None
    assert found.origin is not None
    library = Path(found.origin).parent / _LIBRARY
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{seconds:+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def tidy(pid: int) -> None:
    """Remove what a process with such a clock leaves behind when it is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (_SHARED / name).unlink(missing_ok=True)
