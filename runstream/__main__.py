"""`python -m runstream`: the command line."""

from runstream.cli import main

if __name__ == "__main__":
    main()
