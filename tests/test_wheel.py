"""The distribution holds what it should and nothing else."""

import os
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"actors", "api", "eventstore", "projections", "providers", "runstream"}

pytestmark = [pytest.mark.repo, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that RUNSTREAM_WHEEL names, or one built from the sources as they are."""
    if given := os.environ.get("RUNSTREAM_WHEEL"):
        return Path(given)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_installs_these_names_and_no_others(names: list[str]) -> None:
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_the_wheel_carries_every_file_of_the_packages(names: list[str]) -> None:
    kept = {".py", ".lua", ".typed", ".html", ".css", ".js"}
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in kept or path.name == "py.typed"
    }
    assert sources - set(names) == set()


def test_the_wheel_carries_the_scripts_that_run_in_redis(names: list[str]) -> None:
    for verb in ("append", "renew", "sweep", "ledger"):
        assert f"eventstore/{verb}.lua" in names


def test_the_wheel_says_that_each_package_is_typed(names: list[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_wheel_carries_its_licence(names: list[str]) -> None:
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")] != []


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "runstream = runstream.__main__:main" in archive.read(entry_points).decode()


def test_the_wheel_asks_for_no_address(wheel: Path) -> None:
    """A requirement by address would bypass the pins."""
    with ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    assert required
    assert [line for line in required if "@" in line or "://" in line] == []
