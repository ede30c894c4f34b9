"""Faults of calls, nodes and machines, and the journal of calls."""
