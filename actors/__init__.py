"""Runs, sessions and approvals: the rules, and the shell that carries them out."""
