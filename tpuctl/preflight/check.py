"""The static check: rules about XLA and TPUs, held against a script that is never run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tpuctl.preflight.findings import Finding, Report, Severity, Target
from tpuctl.preflight.rules import FAMILIES
from tpuctl.preflight.silence import silences
from tpuctl.preflight.source import Project, load

__all__ = ["check_project"]


def check_project(script: Path, target: Target, root: Path | None = None) -> Report:
    """Check a script and what it imports of its own; `root` is the folder that is shipped.

    Raises nothing for what stands in the files.
    """
    project = load(script, root)
    found = [
        Finding("TPU000", Severity.error, one.path, one.line, 0, f"not Python: {one.message}")
        for one in project.broken
    ]
    if "__main__" in project.modules:
        found += [one for family in FAMILIES for one in family(project, target)]
    kept, silenced = _heard(project, found)
    files = tuple(module.path for module in project)
    return Report(tuple(sorted(set(kept), key=_place)), files, silenced)


def _heard(project: Project, found: Iterable[Finding]) -> tuple[list[Finding], int]:
    modules = {module.path: module for module in project}
    kept: list[Finding] = []
    silenced = 0
    for one in found:
        module = modules.get(one.path)
        if module is not None and silences(module, one.line, one.code):
            silenced += 1
        else:
            kept.append(one)
    return kept, silenced


def _place(one: Finding) -> tuple[str, int, int, str, str]:
    return str(one.path), one.line, one.column, one.code, one.message
