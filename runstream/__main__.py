"""`runstream`, and `python -m runstream`: the command line."""

import sys
from io import TextIOWrapper
from typing import cast


def main() -> None:
    """Run the command line; Ctrl-C may come while its modules load."""
    if not all((sys.stdin, sys.stdout, sys.stderr)):
        # What is opened next would take the place of the one that is closed.
        print("standard input, output and error must be open; /dev/null will do", file=sys.stderr or sys.stdout)
        sys.exit(2)
    # A terminal gets what it can show; a program that reads gets UTF-8, as its JSON has to be.
    output = cast("TextIOWrapper", sys.stdout)
    output.reconfigure(encoding=None if output.isatty() else "utf-8", errors="replace")
    try:
        from runstream.cli import cli  # noqa: PLC0415 - the try is what it is for
    except KeyboardInterrupt:
        sys.exit("stopped")
    cli(prog_name="runstream")


if __name__ == "__main__":
    main()
