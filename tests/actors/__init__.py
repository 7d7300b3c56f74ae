"""Tests of the rules, the shell and the executor."""
