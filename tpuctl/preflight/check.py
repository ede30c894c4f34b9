"""The static check: rules about XLA and TPUs, held against a script that is never run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tpuctl.preflight.findings import Finding, Remark, Report, Severity, Target
from tpuctl.preflight.functions import title
from tpuctl.preflight.reachability import reachability_of
from tpuctl.preflight.rules import FAMILIES, reading
from tpuctl.preflight.silence import Silence
from tpuctl.preflight.source import Function, Module, Project, load
from tpuctl.preflight.traced import find_traced

__all__ = ["check_folder", "check_project"]

CALLED = ("TPU3", "TPU4")  # rules about what plain Python does
GUARD = b"__main__"  # what a file that is started usually has in it


def check_project(
    script: Path, target: Target, root: Path | None = None, module: str = ""
) -> Report:
    """Check a script and what it imports of its own; `root` is the folder that is shipped, and
    `module` the name by which `python -m` starts it.

    Raises nothing for what stands in the files.
    """
    project = load(script, root, module)
    found = list(reading.find(project, target))
    remarks = []
    if "__main__" in project.modules:
        for family in FAMILIES:
            try:
                found += family(project, target)
            except RecursionError:
                text = "nested too deeply for all rules: some did not look at it"
                remarks.append(Remark(project.script.path, 1, text))
    kept, silences = _heard(project, _weighed(project, target, found))
    remarks += [one for silence in silences for one in silence.remarks]
    files = (*(module.path for module in project), *(one.path for one in project.broken))
    report = Report(tuple(kept), files, len(found) - len(kept), tuple(remarks))
    return Report.joined([report])


def check_folder(folder: Path, target: Target) -> Report:
    """Check every file of Python below a folder, those first that look as if they are started.

    What one of them imports is not checked again by itself.
    """
    reports: list[Report] = []
    seen: set[Path] = set()
    for script in sorted(_scripts(folder), key=_is_started, reverse=True):
        if script.absolute() not in seen:
            reports.append(check_project(script, target, folder))
            seen.update(reports[-1].files)
    return Report.joined(reports)


def _weighed(project: Project, target: Target, found: Iterable[Finding]) -> list[Finding]:
    """Errors in functions that nothing is seen to call as risks. The rules about what is compiled
    know that already, and better: from steps on."""
    modules = {module.path: module for module in project}

    def weighed(finding: Finding) -> Finding:
        module = modules.get(finding.path)
        is_error = finding.severity is Severity.error and finding.code.startswith(CALLED)
        if not is_error or module is None:
            return finding
        find_traced(project, target)  # begins with what a library of steps offers
        function = _function_at(module, finding.line)
        if function is None or reachability_of(project).of(module, function):
            return finding
        text = f"{finding.message}; nothing is seen to call {title(function)}"
        return replace(finding, severity=Severity.risk, message=text)

    return [weighed(finding) for finding in found]


def _function_at(module: Module, line: int) -> Function | None:
    """The innermost function with a name that a line is of."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        function
        for function in module.nodes
        if isinstance(function, kinds)
        and function.body[0].lineno <= line <= (function.end_lineno or line)
    ]
    return max(around, key=lambda function: function.lineno, default=None)


def _heard(project: Project, found: Iterable[Finding]) -> tuple[list[Finding], list[Silence]]:
    """What no comment silences, and the comments of all files."""
    silences = {module.path: Silence.of_module(module) for module in project}
    broken = {one.path for one in project.broken}
    kept = []
    for one in found:
        if one.path not in silences and one.path not in broken:
            silences[one.path] = Silence.of_file(one.path)
        silence = silences.get(one.path)
        if silence is None or not silence.covers(one):
            kept.append(one)
    return kept, list(silences.values())


def _scripts(folder: Path) -> Iterator[Path]:
    """Files of Python, always in the same order; none of environments, none that are hidden."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not _is_foreign(here / name))
        named = [here / name for name in sorted(files) if name.endswith(".py")]
        # Broken links are reported; pipes and the like are no programs.
        yield from (path for path in named if path.is_file() or not path.exists())


def _is_foreign(folder: Path) -> bool:
    name = folder.name
    is_made = name.startswith(".") or name in ("__pycache__", "node_modules", "site-packages")
    return is_made or (folder / "pyvenv.cfg").exists()


def _is_started(script: Path) -> bool:
    try:
        return GUARD in script.read_bytes()
    except OSError:
        return False
