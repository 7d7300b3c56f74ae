"""Plays seeds and prints those that fail: `python -m tests.simulation --seeds 5000`, or one with `--seed N --trace`."""

import argparse
import gc
import os
import sys
import time

from tests.simulation.trouble import Verdict, played

HASH = "PYTHONHASHSEED"


def main() -> int:
    """Play what is asked for; 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="everything that happened in it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    asked = parser.parse_args()
    if os.environ.get(HASH) != "0":  # the order of sets of names would be another each time
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], os.environ | {HASH: "0"})  # noqa: S606
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    gc.freeze()  # what is loaded by now need not be looked through after each seed
    began, failed, count = time.monotonic(), 0, 0
    for seed in seeds:
        if time.monotonic() - began > asked.seconds:
            break
        verdict = played(seed)
        count += 1
        failed += bool(verdict.faults)
        _print(verdict, trace=asked.trace)
    _say(f"{count} seeds, {failed} failed, {time.monotonic() - began:.1f} s")
    return min(failed, 1)


def _print(verdict: Verdict, *, trace: bool) -> None:
    if trace:
        for line in verdict.lines:
            _say(str(line))
        _say(f"seed {verdict.seed}: {verdict.runs} actors, {verdict.at_s:.1f} s")
    for fault in verdict.faults:
        _say(f"seed {verdict.seed}: {fault}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
