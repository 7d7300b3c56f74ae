"""Tests of the program: settings, wiring, command line."""
