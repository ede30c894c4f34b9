"""Machines of the local cloud: folders with an address, SSH and processes of their own."""

__all__: list[str] = []
