"""The code in README and docs/ runs, and prints without an error; the settings in them are settings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runstream.sources import read_settings

pytestmark = pytest.mark.repo

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TABLES = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
]

TOMLS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(TABLES.findall(page.read_text(encoding="utf-8")), 1)
]
FILES = [pytest.param(path.read_text(encoding="utf-8"), id=path.name) for path in ROOT.glob("examples/*.toml")]
DIGEST = "0" * 64


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("text", [*TOMLS, *FILES])
async def test_the_settings_are_accepted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "runstream.toml"
    path.write_text(text.replace('digest = "…"', f'digest = "{DIGEST}"'), encoding="utf-8")
    assert (await read_settings(path, {}, tmp_path)).profile


def test_there_are_examples() -> None:
    assert EXAMPLES
    assert TOMLS
    assert FILES
