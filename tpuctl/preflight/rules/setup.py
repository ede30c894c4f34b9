"""Strategies and what is made within them (TPU401 to TPU404)."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.findings import Finding, Rule, Target
from tpuctl.preflight.source import Project

__all__ = ["RULES", "find"]

RULES: tuple[Rule, ...] = ()


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules."""
    yield from ()
