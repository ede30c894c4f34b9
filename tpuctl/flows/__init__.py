"""Flows: the steps of each command, such as `up`, `run` and `down`."""
