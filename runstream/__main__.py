"""`runstream`, and `python -m runstream`: the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C may come while its modules load."""
    try:
        from runstream.cli import cli  # noqa: PLC0415 - the try is what it is for
    except KeyboardInterrupt:
        sys.exit("stopped")
    cli(prog_name="runstream")


if __name__ == "__main__":
    main()
