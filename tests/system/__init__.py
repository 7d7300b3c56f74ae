"""Tests with real processes: killed, paused and cut off."""
