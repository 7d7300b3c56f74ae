"""Logs, feeds, leases, due times and permits in Redis."""
