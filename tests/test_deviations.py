"""`docs/deviations.md` says exactly what `api/problems.py` does."""

import re
from pathlib import Path

import pytest

from api import problems

DOCUMENT = Path(__file__).parent.parent / "docs" / "deviations.md"

pytestmark = pytest.mark.repo


def section(title: str) -> str:
    return re.split(r"^## ", DOCUMENT.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1], flags=re.MULTILINE)[0]


def test_every_status_that_differs_from_the_protocol_is_a_row_of_the_document() -> None:
    rows = re.findall(r"^\| `(\w+)` \| 502 \| (\d{3}) \|", section("Statuses"), re.MULTILINE)
    ours = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", section("Codes of our own"), re.MULTILINE)
    different = {code: status for status, codes in problems.DEVIATIONS.items() for code in codes.split()}
    assert {code: int(status) for code, status in (*rows, *ours)} == different


def test_every_code_that_the_document_leaves_at_502_answers_502() -> None:
    kept = re.findall(r"`([A-Z_]+)`", section("Statuses").split("keep 502:", 1)[1])
    assert kept
    assert {problems.status_of(code) for code in kept} == {502}
