"""Bundles, shipping, the supervisor on the machine, and logs."""

__all__: list[str] = []
