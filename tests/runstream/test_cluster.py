"""`runstream cluster`: what it writes for its programs, and a cluster of processes that is started, harmed and ended."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest

from runstream import cluster, tokens

pytestmark = pytest.mark.anyio

PLAN = cluster.Plan(Path("kept"), 7_440, 2, "nginx", restarts=True)


async def test_each_node_listens_after_the_balancer_and_shares_one_redis() -> None:
    entry = tokens.toml(tokens.entry_for(await tokens.fresh(), subject="me", providers=("scripted",)))
    read = [tomllib.loads(cluster.settings_of(PLAN, number, Path("s.sock"), entry)) for number in (1, 2)]
    assert [one["listen"]["port"] for one in read] == [7_441, 7_442]
    assert {one["redis"]["socket"] for one in read} == {"s.sock"}
    assert len({one["state_dir"] for one in read}) == 2


async def test_the_balancer_passes_events_as_they_come_and_no_request_twice() -> None:
    told = cluster.balancer_of(PLAN)
    assert re.findall(r"server 127\.0\.0\.1:(\d+);", told) == ["7441", "7442"]
    assert "listen 127.0.0.1:7440;" in told
    assert "proxy_buffering off;" in told
    assert "non_idempotent" not in told


def test_a_node_that_is_killed_comes_back_and_all_end_when_told_to(tmp_path: Path) -> None:
    words = ("--nodes", "1", "--port", str(20_000 + os.getpid() % 20_000), "--state-dir", str(tmp_path / "kept"))
    command = [sys.executable, "-m", "runstream", "cluster", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            first = started(program)
            os.kill(int(first[1]), signal.SIGKILL)
            again = started(program)
            assert again[1] != first[1]
            with urlopen(f"{again[2]}/health", timeout=10) as answer:  # noqa: S310 - an address that the program told
                assert answer.status == 200
        finally:
            program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0


def started(program: "subprocess.Popen[str]") -> re.Match[str]:
    """What the next line says that tells of a node's start: its process id and its address."""
    assert program.stdout is not None
    lines = (re.match(r"node 1 pid (\d+)  (\S+)", line) for line in program.stdout)
    return next(found for found in lines if found is not None)
