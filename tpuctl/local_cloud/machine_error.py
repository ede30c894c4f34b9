"""The error of machines and their images."""

from __future__ import annotations


class MachineError(Exception):
    """A machine could not be created or started; the text can be shown to the user."""
