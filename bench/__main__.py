"""Prints the table of docs/benchmarks.md; `python -m bench appends rebuild` measures those alone."""

import importlib
import sys

import uvloop

from bench.figures import HEADER

ALL = ("appends", "streams", "latency", "rebuild", "decisions", "jobs", "envelopes", "cluster")


async def main(names: list[str]) -> None:
    """Measure, and print rows as they come."""
    print(HEADER, flush=True)
    for name in names or ALL:
        for figure in await importlib.import_module(f"bench.{name}").figures():
            print(figure.row, flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1:]))
