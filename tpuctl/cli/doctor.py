"""The command `doctor`: whether everything that `up` needs is there."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Make it known."""
