"""What a job installs: by a file with requirements, and by pip commands in its script."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import NamedTuple, TypeVar

from tpuctl.errors import Usage
from tpuctl.files import is_file
from tpuctl.model.scripts.dependency_sets import split_setting
from tpuctl.model.scripts.lock_files import lock_of_script
from tpuctl.model.scripts.requirement_files import (
    Requirement,
    parse_requirement,
    possibly_required,
    usual_file,
)
from tpuctl.model.scripts.script_metadata import ScriptMetadata, read_script_metadata
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Target

PROCESS_STARTERS = {
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.Popen",
}
PROCESS_STARTERS |= {"subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen"}
PIP = re.compile(r"\bpip(?!eline)")
UPGRADE_FLAGS = {"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed"}
Result = TypeVar("Result")


class Installed(NamedTuple):
    """A package that the script installs with pip."""

    module: Module
    call: ast.Call
    word: str  # as passed to pip
    package: Requirement
    is_upgrade: bool  # whether pip replaces an installed version


def once_per_folder(
    find: Callable[[Project, Target], Iterable[Result]],
) -> Callable[[Project, Target], Sequence[Result]]:
    """What a script and the files of its folder say of a job: found once for all scripts of the
    folder without metadata, for which it is the same."""

    @wraps(find)
    def results(project: Project, target: Target) -> Sequence[Result]:
        if metadata_of(project) is not None:
            return list(find(project, target))
        key = find, project.root, target
        if key not in project.shared:
            project.shared[key] = list(find(project, target))
        of_folder: Sequence[Result] = project.shared[key]
        return of_folder

    return results


@once_per_folder
def requirements_of(project: Project, target: Target) -> Iterable[Requirement]:
    """The requirements of the job, also those that have a marker."""
    return possibly_required(project.root, target.requirements, project.script.path)


def required_by(project: Project, target: Target) -> list[Requirement]:
    """The requirements of the job that apply everywhere, without those that have a marker."""
    requirements = requirements_of(project, target)
    return [requirement for requirement in requirements if not requirement.is_conditional]


def metadata_of(project: Project) -> ScriptMetadata | None:
    """The script's metadata; None without any, or if it is invalid, which is reported when the
    job's dependencies are read."""
    if ScriptMetadata not in project.cache:
        try:
            project.cache[ScriptMetadata] = read_script_metadata(project.script.path)
        except Usage:
            project.cache[ScriptMetadata] = None
    metadata: ScriptMetadata | None = project.cache[ScriptMetadata]
    return metadata


def requirements_file(project: Project, setting: str | None) -> Path | None:
    """The file that says what the job installs: a lock, a requirements file, or a pyproject.toml.
    `setting` is `job.requirements`, None for the usual one. None if there is none, or the script's
    metadata stands for it."""
    if setting is not None:
        return project.root / split_setting(setting)[0]
    metadata = metadata_of(project)
    if metadata is not None and metadata.has_dependencies:
        lock = lock_of_script(project.script.path)
        return lock if is_file(lock) else None
    name = usual_file(project.root)
    return project.root / name if name is not None else None


def installed(project: Project) -> list[Installed]:
    """The packages in the script's pip commands."""
    if Installed not in project.cache:
        project.cache[Installed] = list(_all_installed(project))
    packages: list[Installed] = project.cache[Installed]
    return packages


def _all_installed(project: Project) -> Iterator[Installed]:
    if not any(_mentions_pip(module) for module in project):
        return
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) in PROCESS_STARTERS and call.args:
                yield from _installed(project, module, call)


def _mentions_pip(module: Module) -> bool:
    if PIP not in module.cache:
        module.cache[PIP] = any(map(PIP.search, module.texts))
    mentions: bool = module.cache[PIP]
    return mentions


def _installed(project: Project, module: Module, call: ast.Call) -> Iterator[Installed]:
    words = _words(project, module, call.args[0])
    if "install" not in words or not any(word.startswith("pip") for word in words):
        return
    arguments = words[words.index("install") + 1 :]
    is_upgrade = bool(UPGRADE_FLAGS & set(arguments))
    for word in arguments:
        for requirement in parse_requirement(module.path, call.lineno, word):
            if requirement.is_conditional:
                continue
            yield Installed(module, call, word, requirement, is_upgrade)


def _words(project: Project, module: Module, command: ast.expr) -> list[str]:
    if isinstance(command, (ast.List, ast.Tuple)):
        groups = [HostCode.of(project).constants(module, element) for element in command.elts]
        return [values[0].text for values in groups if values]
    literals = HostCode.of(project).constants(module, command)
    if len(literals) != 1:
        return []
    try:
        return shlex.split(literals[0].text)
    except ValueError:
        return literals[0].text.split()
