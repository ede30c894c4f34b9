"""Machines of the local cloud: folders with an address, SSH and processes of their own."""
