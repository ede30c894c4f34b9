"""The command `ci`: pipelines that use tpuctl as their deploy steps."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Make it known."""
