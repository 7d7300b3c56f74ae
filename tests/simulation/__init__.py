"""A whole deployment on virtual time: nodes, store, network and clients, and everything a function of one number.

The code under test is the host as a program opens it, over the reference store. Left out, and so for real processes to show:
the edge and its sockets, Redis itself (scripts, replication, failover, memory), threads (what they would do is done in
place), sinks for audit and usage, retention and erasing. A pause stops a node's calls and timers while its clock, and
what it had sent before, go on; a kill drops them without any cleaning up; clocks of nodes differ, but do not drift.
"""
