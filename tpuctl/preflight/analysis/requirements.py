"""Packages that a job's script installs with pip."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.model.scripts.requirement_files import Requirement, parse_requirement
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.values.host_code import HostCode

PROCESS_STARTERS = {
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.Popen",
}
PROCESS_STARTERS |= {"subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen"}
UPGRADE_FLAGS = {"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed"}


@dataclass(frozen=True)
class Installed:
    """A package that the script installs with pip."""

    module: Module
    call: ast.Call
    word: str  # as passed to pip
    package: Requirement
    is_upgrade: bool  # whether pip replaces an installed version


def installed(project: Project) -> Iterator[Installed]:
    """The packages in the script's pip commands."""
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) in PROCESS_STARTERS and call.args:
                yield from _installed(project, module, call)


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
