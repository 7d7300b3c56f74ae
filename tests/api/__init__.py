"""Tests of the edge, vectors of both protocols among them."""
