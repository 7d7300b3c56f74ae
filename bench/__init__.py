"""What is measured, each against the raw limit in one run: `python -m bench`."""
