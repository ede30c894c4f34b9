"""The parts of `make live`: settings, cost, recorder, comparison and cleanup."""
