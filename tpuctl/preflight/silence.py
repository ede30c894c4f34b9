"""Comments that silence a rule on a line: `# tpuctl: ignore[TPU101]`."""

from __future__ import annotations

import re

from tpuctl.preflight.source import Module

__all__ = ["silences"]

COMMENT = re.compile(r"#\s*tpuctl:\s*ignore(?:\[([^\]]*)\])?")


def silences(module: Module, line: int, code: str) -> bool:
    """Whether the line says that the code is meant; without codes it says so of all."""
    if not 0 < line <= len(module.lines):
        return False
    found = COMMENT.search(module.lines[line - 1])
    if found is None:
        return False
    codes = found[1]
    return codes is None or code in {one.strip() for one in codes.split(",")}
