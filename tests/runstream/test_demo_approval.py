"""The demonstration of approvals, from the outside: two processes, one private Redis, and a decision."""

import subprocess
import sys
from pathlib import Path

import pytest


def shown(*words: str, answer: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "runstream", "demo-approval", *words]
    return subprocess.run(command, input=answer, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("word", "outcome", "says"), [("--yes", "approved", "pinned"), ("--no", "denied", "APPROVAL_DENIED")]
)
def test_a_call_of_one_node_is_decided_about_on_the_other(word: str, outcome: str, says: str, tmp_path: Path) -> None:
    ended = shown(word, "--state-dir", str(tmp_path / "kept"))
    assert ended.returncode == 0, ended.stderr
    for part in ('"board": "Canteen"', f"receipt: {outcome}", says, f'"outcome":"{outcome}"', "approval.resolved"):
        assert part in ended.stdout
    nodes = [line.split()[0] for line in ended.stdout.splitlines() if line.startswith(("A  ", "B  "))]
    assert (nodes[0], nodes[-1], nodes.count("B")) == ("A", "A", 1)
    assert str(tmp_path) in ended.stdout


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    ended = shown("--state-dir", str(tmp_path / "kept"), answer="")
    assert ended.returncode == 0, ended.stderr
    assert "nobody can be asked here" in ended.stdout
    assert "receipt: approved" in ended.stdout
