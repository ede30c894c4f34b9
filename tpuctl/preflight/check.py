"""The static check: applies rules about XLA and TPUs to a script without running it."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.catalog import runtimes
from tpuctl.errors import Refused, Usage
from tpuctl.files import is_generated_folder
from tpuctl.model.scripts.dependency_sets import split_setting
from tpuctl.model.scripts.lock_files import form_of
from tpuctl.model.scripts.python_request import AUTO, PythonRequest, request_of
from tpuctl.model.scripts.script_metadata import read_script_metadata
from tpuctl.preflight.analysis.framework_wheels import python_minors
from tpuctl.preflight.analysis.program.source import (
    Module,
    ParsedFiles,
    Project,
    Upload,
    load,
)
from tpuctl.preflight.analysis.program.syntax import Function, title
from tpuctl.preflight.analysis.tracing.reachability import reachability_of
from tpuctl.preflight.analysis.tracing.traced import find_traced
from tpuctl.preflight.findings import (
    CheckNote,
    Finding,
    Report,
    Severity,
    Target,
    python_version,
)
from tpuctl.preflight.rules import FINDERS, JOB_RULES, NOT_PYTHON, codes_for, frameworks_of
from tpuctl.preflight.script_framework import framework_of
from tpuctl.preflight.submit_gate import Runnable, display_path, other_interpreter
from tpuctl.preflight.suppressions import Suppressions
from tpuctl.preflight.unread_requirements import unread_requirements
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.model.stack.stack import Stack

HOST_RULES = ("TPU3", "TPU4")  # rules about code that runs on the host
UploadOf = Callable[[Path, Path | None], Upload]
TargetOf = Callable[[Path, Path | None], Target]  # of a job with this folder and script
Progress = Callable[[str], None]  # receives what is being done, in words
MAIN_GUARD = b"__main__"  # found in most files that are run as scripts


def target_of(
    stack: Stack | None, folder: Path | None = None, script: Path | None = None
) -> Target:
    """The target of a job with this folder (default: the stack's) and script, without the
    network; without a stack, the default target.

    The Python is what stack file, folder or script ask for. Raises Usage for what is no version,
    Refused for one that does not exist.
    """
    if stack is None:
        request = request_of(AUTO, folder, script) if folder is not None else None
        return with_python(default_target(), request)
    setting = stack.file.job.python
    request = request_of(setting, folder or stack.folder, script, where=stack.python_where)
    return with_python(_image_target(stack), request)


def program_target(stack: Stack | None, program: Runnable) -> Target:
    """The target of a job that runs this program; see `target_of`."""
    return target_of(stack, program.folder, program.file if program.form == "script" else None)


def with_python(target: Target, request: PythonRequest | None) -> Target:
    """The target for a job that asks for a Python, if its image's is not allowed.

    The index may decide which of several it gets, so that it is checked for the oldest that is
    newer than the image's. Raises Refused if there is none.
    """
    if request is None or request.is_image or request.allows_image(target.python):
        return target
    minors = [minor for minor in python_minors() if request.allows_minor(minor)]
    if not minors:
        raise _no_such_python(request)
    image = python_version(target.python)
    python = next((minor for minor in minors if python_version(minor) > image), minors[-1])
    return replace(
        target,
        python=python,
        pythons=tuple(minors),
        asked_by=_asked_by(request),
        # A TPU node's TensorFlow has to be that of its version.
        tensorflow=target.tensorflow if target.kind == "node" else None,
    )


def _no_such_python(request: PythonRequest) -> Refused:
    minors = python_minors()
    minor = ".".join(request.exact.split(".")[:2])
    example = minor if minor in minors else minors[-3]
    return Refused(
        "No such Python",
        f"{request} does not exist: jobs can bring releases of Python {minors[0]} to {minors[-1]}",
        hint=f"Ask for one that exists, for example\n    {request.setting(example)}",
        where=request.where,
    )


def _asked_by(request: PythonRequest) -> str:
    """What asks for a Python: `job.python`, or `requires-python, pyproject.toml:4`."""
    file, _, line = request.where.rpartition(":")
    if not line.isdigit():
        return request.where
    where = f"{display_path(Path(file))}:{line}"
    return where if Path(file).name == ".python-version" else f"requires-python, {where}"


def _image_target(stack: Stack) -> Target:
    """The machines that a stack's jobs run on, with their image's software."""
    accelerator, job = stack.accelerator, stack.file.job
    requirements = job.requirements or AUTO
    file, names = split_setting(requirements)
    is_lock = form_of(Path(file)) is not None  # which has its extras, too
    return Target(
        stack.file.tpu.kind,
        stack.runtime.tensorflow,
        accelerator.devices,
        stack.worker_count,
        accelerator.generation,
        stack.runtime.version,
        stack.image_python,
        requirements=None if requirements == AUTO else requirements,
        installs_more=bool((names and not is_lock) or job.setup),
        environment=tuple(job.env.items()),
        framework=stack.framework.framework if stack.framework is not None else None,
    )


def default_target() -> Target:
    """The default: a TPU VM with the newest TensorFlow that a runtime has."""
    return Target(
        "vm", next((runtime.tensorflow for runtime in runtimes() if runtime.tensorflow), None)
    )


def describe_target(target: Target, name: str = "") -> str:
    """A target in words; `name` is the TPU's type."""
    kind = "TPU node" if target.kind == "node" else "TPU VM"
    parts = [f"a {kind}", *([name] if name else [])]
    software = f"TensorFlow {target.tensorflow}" if target.tensorflow else ""
    if target.brings_python:
        python = f"Python {target.python} of the job ({target.asked_by})"
        software = f"{software} and {python}" if software else python
    return " ".join(parts) + (f" with {software}" if software else "")


def _ignore(text: str) -> None:
    pass


def check_path(
    path: Path,
    target: Target | TargetOf,
    upload_of: UploadOf | None = None,
    progress: Progress = _ignore,
) -> Report:
    """Check a script and its imports from its folder, or all Python files below a folder.

    `upload_of` gives what is uploaded of a folder with a script in it.
    """
    if path.is_dir():
        return check_folder(path, target, upload_of and upload_of(path, None), progress)
    if other_interpreter(path):
        text = "not checked: its first line names an interpreter other than Python"
        return Report((), (path.absolute(),), notes=(CheckNote(path.absolute(), 1, text),))
    upload = upload_of and upload_of(path.parent, path)
    its_target = _target_for(target, path.parent, path)
    return check_project(path, its_target, upload=upload, progress=progress)


def _target_for(target: Target | TargetOf, folder: Path, script: Path | None) -> Target:
    return target if isinstance(target, Target) else target(folder, script)


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
    progress: Progress = _ignore,
) -> Report:
    """Check a script and the project files that it imports; `root` is the folder to ship,
    `module` the module name if the script is started with `python -m`, `upload` what is shipped.

    Never raises for invalid files.
    """
    with _garbage_collection_paused():
        project = load(script, root, module, upload)
        project.environment = dict(target.environment)
        return _check([project], target, progress)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Syntax trees are millions of objects and none of them garbage: looking for garbage among them
    takes 45 % of the check of 300 files. Without a threshold, there is none even if the command's
    timer enables it meanwhile.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _check(projects: Sequence[Project], target: Target, progress: Progress) -> Report:
    """Check the code of projects that share files, and each as a job."""
    findings: list[Finding] = []
    notes: list[CheckNote] = []
    joined = Project.joined(projects)

    def find(project: Project, codes: Iterable[str]) -> None:
        for code in codes:
            progress(f"Checking {counted(len(joined.modules), 'file')}: {code}")
            try:
                findings.extend(FINDERS[code](project, target))
            except RecursionError:
                text = "nested too deeply for some rules, which were skipped"
                notes.extend(CheckNote(script.path, 1, text) for script in project.programs)

    for project in projects:
        codes = codes_for(project, target) if project.programs else [NOT_PYTHON]
        find(project, (code for code in codes if code in JOB_RULES))
        if project.programs:
            notes += unread_requirements(project, target)
    if joined.programs:
        find(joined, (code for code in codes_for(joined, target) if code not in JOB_RULES))
    findings = list(dict.fromkeys(_adjust_severities(joined, target, findings)))
    remaining, suppressions = _apply_suppressions(joined, findings)
    notes += [note for suppression in suppressions for note in suppression.notes]
    files = [module.path for project in projects for module in project]
    files += [unreadable.path for project in projects for unreadable in project.unreadable]
    frameworks = {framework_of(project) for project in projects if project.programs}
    report = Report(tuple(remaining), tuple(files), len(findings) - len(remaining), tuple(notes))
    framework = frameworks.pop() if len(frameworks) == 1 else None
    return replace(Report.merge([report]), framework=framework)


def check_folder(
    folder: Path,
    target: Target | TargetOf,
    upload: Upload | None = None,
    progress: Progress = _ignore,
) -> Report:
    """Check every Python file below a folder that is uploaded, those with a `__main__` guard first.

    Imported files are not checked again on their own. Scripts that share files are checked
    together, if they use the same frameworks.
    """
    seen: set[Path] = set()
    files = ParsedFiles()
    groups: dict[tuple[Target, tuple[bool, ...]], list[_Group]] = {}
    folder_target = _target_for(target, folder, None)
    with _garbage_collection_paused():
        for script in sorted(_scripts(folder), key=_is_started, reverse=True):
            if script.absolute() in seen or (
                upload is not None and upload.exclusion_of(script.absolute()) is not None
            ):
                continue
            its_target = _target_for(target, folder, script) if _asks(script) else folder_target
            progress(f"Reading files: {len(seen)}")
            project = load(script, folder, upload=upload, files=files)
            project.environment = dict(its_target.environment)
            seen.update(module.path for module in project)
            seen.update(unreadable.path for unreadable in project.unreadable)
            alike = groups.setdefault((its_target, frameworks_of(project, its_target)), [])
            group = next((group for group in alike if group.admits(project)), None)
            if group is None:
                group = _Group()
                alike.append(group)
            group.add(project)
        return Report.merge(
            _check(group.projects, its_target, progress)
            for (its_target, _), alike in groups.items()
            for group in alike
        )


@dataclass
class _Group:
    """Projects that share files, to be checked together."""

    projects: list[Project] = field(default_factory=list)
    paths: set[Path] = field(default_factory=set)
    names: dict[str, Path] = field(default_factory=dict)  # of the modules that are imported

    def add(self, project: Project) -> None:
        self.projects.append(project)
        self.paths.update(module.path for module in project)
        self.names.update(_imported_names(project))

    def admits(self, project: Project) -> bool:
        """Whether a project shares files with these, and none of its names is another file's."""
        return not self.paths.isdisjoint(module.path for module in project) and all(
            self.names.get(name, path) == path for name, path in _imported_names(project)
        )


def _imported_names(project: Project) -> list[tuple[str, Path]]:
    return [(module.name, module.path) for module in project if module not in project.programs]


def _asks(script: Path) -> bool:
    """Whether the metadata of a script asks for a Python."""
    try:
        metadata = read_script_metadata(script)
    except Usage:  # reported when a job's dependencies are read
        return False
    return metadata is not None and "requires-python" in metadata.document


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
