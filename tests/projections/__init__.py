"""Tests of the feeds, views and lists."""
