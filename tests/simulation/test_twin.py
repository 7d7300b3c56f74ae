"""Deployments on virtual time, with everything befalling them that their seeds hold: nothing may ever be wrong."""

import os
import subprocess
import sys

from tests.simulation.trouble import played

SEEDS = 70
"""As many as some ten seconds take; `make twin` plays thousands."""


def test_whatever_befalls_a_deployment_every_law_holds_afterwards() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONHASHSEED": "0"}
    )
    assert done.returncode == 0, (
        f"replay one with: python -m tests.simulation --seed N --trace\n{done.stdout}{done.stderr}"
    )


def test_a_seed_is_played_the_same_each_time() -> None:
    first, second = played(7), played(7)
    assert first.lines
    assert list(map(str, first.lines)) == list(map(str, second.lines))
