"""The static check: applies rules about XLA and TPUs to a script without running it."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.catalog import runtimes
from tpuctl.files import is_generated_folder
from tpuctl.preflight.analysis.program.source import Module, Project, Upload, load
from tpuctl.preflight.analysis.program.syntax import Function, title
from tpuctl.preflight.analysis.tracing.reachability import reachability_of
from tpuctl.preflight.analysis.tracing.traced import find_traced
from tpuctl.preflight.findings import CheckNote, Finding, Report, Severity, Target
from tpuctl.preflight.rules import FINDERS, NOT_PYTHON, codes_for
from tpuctl.preflight.script_framework import framework_of
from tpuctl.preflight.submit_gate import Runnable, other_interpreter
from tpuctl.preflight.suppressions import Suppressions
from tpuctl.preflight.unread_requirements import unread_requirements

if TYPE_CHECKING:
    from tpuctl.model.stack.stack import Stack

HOST_RULES = ("TPU3", "TPU4")  # rules about code that runs on the host
UploadOf = Callable[[Path, Path | None], Upload]
MAIN_GUARD = b"__main__"  # found in most files that are run as scripts


def target_of(stack: Stack) -> Target:
    """The target that a stack's jobs run on."""
    accelerator, job = stack.accelerator, stack.file.job
    file, bracket, _ = (job.requirements or "").partition("[")
    target = Target(
        stack.file.tpu.kind,
        stack.runtime.tensorflow,
        accelerator.devices,
        stack.worker_count,
        accelerator.generation,
        stack.runtime.version,
        requirements=None if file in ("", "auto") else file,
        installs_more=bool(bracket or job.setup),
    )
    return replace(target, python=stack.machine.python) if stack.is_compute else target


def default_target() -> Target:
    """The default: a TPU VM with the newest TensorFlow that a runtime has."""
    return Target(
        "vm", next((runtime.tensorflow for runtime in runtimes() if runtime.tensorflow), None)
    )


def describe_target(target: Target, name: str = "") -> str:
    """A target in words; `name` is the TPU's type."""
    kind = "TPU node" if target.kind == "node" else "TPU VM"
    parts = [f"a {kind}", *([name] if name else [])]
    with_ = f" with TensorFlow {target.tensorflow}" if target.tensorflow else ""
    return " ".join(parts) + with_


def check_path(path: Path, target: Target, upload_of: UploadOf | None = None) -> Report:
    """Check a script and its imports from its folder, or all Python files below a folder.

    `upload_of` gives what is uploaded of a folder with a script in it.
    """
    if path.is_dir():
        return check_folder(path, target, upload_of and upload_of(path, None))
    if other_interpreter(path):
        text = "not checked: its first line names an interpreter other than Python"
        return Report((), (path.absolute(),), notes=(CheckNote(path.absolute(), 1, text),))
    return check_project(path, target, upload=upload_of and upload_of(path.parent, path))


def check_program(runnable: Runnable, target: Target, upload_of: UploadOf | None = None) -> Report:
    """Check the program of a job, if it is a Python file in the folder to ship."""
    if runnable.file is None or runnable.form == "shell":
        return Report((), ())
    module = runnable.program if runnable.form == "module" else ""
    upload = upload_of and upload_of(runnable.folder, runnable.file)
    return check_project(runnable.file, target, runnable.folder, module, upload)


def check_project(
    script: Path,
    target: Target,
    root: Path | None = None,
    module: str = "",
    upload: Upload | None = None,
) -> Report:
    """Check a script and the project files that it imports; `root` is the folder to ship,
    `module` the module name if the script is started with `python -m`, `upload` what is shipped.

    Never raises for invalid files.
    """
    with _garbage_collection_paused():
        return _check(load(script, root, module, upload), target)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Syntax trees are millions of objects and none of them garbage: looking for garbage among them
    takes 45 % of the check of 300 files.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check(project: Project, target: Target) -> Report:
    findings: list[Finding] = []
    notes: list[CheckNote] = []
    is_readable = "__main__" in project.modules
    for code in codes_for(project) if is_readable else [NOT_PYTHON]:
        try:
            findings += FINDERS[code](project, target)
        except RecursionError:
            text = "nested too deeply for some rules, which were skipped"
            notes.append(CheckNote(project.script.path, 1, text))
    if is_readable:
        notes += unread_requirements(project, target)
    remaining, suppressions = _apply_suppressions(
        project, _adjust_severities(project, target, findings)
    )
    notes += [note for suppression in suppressions for note in suppression.notes]
    files = (
        *(module.path for module in project),
        *(unreadable.path for unreadable in project.unreadable),
    )
    report = Report(tuple(remaining), files, len(findings) - len(remaining), tuple(notes))
    framework = framework_of(project.script) if is_readable else None
    return replace(Report.merge([report]), framework=framework)


def check_folder(folder: Path, target: Target, upload: Upload | None = None) -> Report:
    """Check every Python file below a folder that is uploaded, those with a `__main__` guard first.

    Imported files are not checked again on their own.
    """
    reports: list[Report] = []
    seen: set[Path] = set()
    for script in sorted(_scripts(folder), key=_is_started, reverse=True):
        if script.absolute() in seen or (
            upload is not None and upload.exclusion_of(script.absolute()) is not None
        ):
            continue
        reports.append(check_project(script, target, folder, upload=upload))
        seen.update(reports[-1].files)
    return Report.merge(reports)


def _adjust_severities(
    project: Project, target: Target, findings: Iterable[Finding]
) -> list[Finding]:
    """Report errors in functions without known callers as risks.

    Rules about compiled code already do that, more precisely, starting from the steps.
    """
    modules = {module.path: module for module in project}

    def adjusted(finding: Finding) -> Finding:
        module = modules.get(finding.path)
        is_error = finding.severity is Severity.error and finding.code.startswith(HOST_RULES)
        if not is_error or module is None:
            return finding
        find_traced(project, target)  # may treat the script as a library
        function = _function_at(module, finding.line)
        if function is None or reachability_of(project).of(module, function):
            return finding
        text = f"{finding.message}; no call of {title(function)} was found"
        return replace(finding, severity=Severity.risk, message=text)

    return [adjusted(finding) for finding in findings]


def _function_at(module: Module, line: int) -> Function | None:
    """The innermost named function whose body contains a line."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        function
        for function in module.of_types(*kinds)
        if function.body[0].lineno <= line <= (function.end_lineno or line)
    ]
    return max(around, key=lambda function: function.lineno, default=None)


def _apply_suppressions(
    project: Project, findings: Iterable[Finding]
) -> tuple[list[Finding], list[Suppressions]]:
    """The findings that are not suppressed, and the suppressions of all files."""
    suppressions = {module.path: Suppressions.from_module(module) for module in project}
    broken = {unreadable.path for unreadable in project.unreadable}
    remaining = []
    for finding in findings:
        if finding.path not in suppressions and finding.path not in broken:
            suppressions[finding.path] = Suppressions.from_file(finding.path)
        suppression = suppressions.get(finding.path)
        if suppression is None or not suppression.covers(finding):
            remaining.append(finding)
    return remaining, list(suppressions.values())


def _scripts(folder: Path) -> Iterator[Path]:
    """Python files in a stable order, without hidden folders and virtual environments."""
    for folder_path, folders, files in os.walk(folder):
        here = Path(folder_path)
        folders[:] = sorted(name for name in folders if not is_generated_folder(here / name))
        scripts = [here / name for name in sorted(files) if name.endswith(".py")]
        # Broken links are reported; pipes and other special files are skipped.
        yield from (path for path in scripts if path.is_file() or not path.exists())


def _is_started(script: Path) -> bool:
    try:
        return MAIN_GUARD in script.read_bytes()
    except OSError:
        return False
