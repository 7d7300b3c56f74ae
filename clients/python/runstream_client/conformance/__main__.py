"""Runs the conformance tests: `python -m runstream_client.conformance`, with the options of pytest after it."""

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    words = [sys.executable, "-m", "pytest", "-p", "runstream_client.conformance.plugin", "-p", "no:cacheprovider"]
    sys.exit(subprocess.call([*words, str(Path(__file__).parent), *sys.argv[1:]]))  # noqa: S603 - the words are the user's own
