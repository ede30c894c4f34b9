"""Faults that strike calls, nodes and machines, and the journal of the calls they strike."""

__all__: list[str] = []
