"""Tests of the Agent Host protocol."""
