"""Tests of the stores; one contract suite runs on all of them."""
