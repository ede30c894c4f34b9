"""Packages that a job's requirements and its script install with pip."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.preflight.analysis.host_code import HostCode
from tpuctl.preflight.analysis.source import Module, Project

__all__ = ["Installed", "Requirement", "allows", "installed", "required"]

REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;#)]*)\)?\s*(;[^#]*)?")
CLAUSE = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?\S*\s*")
PROCESS_STARTERS = {
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.Popen",
}
PROCESS_STARTERS |= {"subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen"}
UPGRADE_FLAGS = {"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed"}


@dataclass(frozen=True)
class Requirement:
    """A requirement and where it is declared."""

    path: Path
    line: int
    name: str
    clauses: str
    column: int = 0


@dataclass(frozen=True)
class Installed:
    """A package that the script installs with pip."""

    module: Module
    call: ast.Call
    word: str  # as passed to pip
    package: Requirement
    is_upgrade: bool  # whether pip replaces an installed version


def allows(clauses: str, version: str) -> bool:
    """Whether a version meets a requirement's clauses, such as `>=2.12,<2.16`.

    Clauses that cannot be parsed count as met.
    """
    actual = _numbers(version)
    return all(_meets(clause, actual) for clause in clauses.split(",") if clause.strip())


def _meets(clause: str, actual: tuple[int, ...]) -> bool:
    match = CLAUSE.fullmatch(clause)
    if match is None:
        return True
    operator, expected, is_open = match[1], _numbers(match[2]), match[3] is not None
    length = max(len(actual), len(expected))
    a, b = _padded(actual, length), _padded(expected, length)
    has_prefix = actual[: len(expected)] == expected
    is_equal = has_prefix if is_open else a == b
    compatible = a >= b and actual[: len(expected) - 1] == expected[:-1]
    results = {"==": is_equal, "===": is_equal, "!=": not is_equal, "~=": compatible}
    return {**results, ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b}[operator]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


# Requirement files ------------------------------------------------------------------------------


def required(root: Path) -> list[Requirement]:
    """The requirements of a job: from requirements.txt, or otherwise from pyproject.toml."""
    file = root / "requirements.txt"
    if file.is_file():
        return list(_lines(file, root, set()))
    return list(_dependencies(root / "pyproject.toml"))


def _lines(file: Path, root: Path, visited: set[Path]) -> Iterator[Requirement]:
    if file in visited or not file.resolve().is_relative_to(root.resolve()):
        return
    visited.add(file)
    for number, text in enumerate(_read(file).split("\n"), 1):
        other = re.match(r"\s*(?:-r|--requirement)[\s=]+(\S+)", text)
        if other is not None:
            yield from _lines(file.parent / other[1], root, visited)
            continue
        yield from _parsed(file, number, text)


def _parsed(file: Path, number: int, text: str) -> Iterator[Requirement]:
    match = REQUIREMENT.match(text)
    if match is not None and match[3] is None and "@" not in match[2]:
        column = len(text) - len(text.lstrip())
        yield Requirement(file, number, _normal(match[1]), match[2].partition(" --")[0], column)


def _dependencies(file: Path) -> Iterator[Requirement]:
    text = _read(file)
    try:
        project = tomllib.loads(text).get("project", {})
        dependencies = project.get("dependencies", []) if isinstance(project, dict) else []
    except tomllib.TOMLDecodeError:
        return
    lines = text.split("\n")
    for dependency in dependencies if isinstance(dependencies, list) else []:
        number = next((n for n, line in enumerate(lines, 1) if str(dependency) in line), 1)
        for requirement in _parsed(file, number, str(dependency)):
            column = max(lines[number - 1].find(str(dependency)), 0)
            yield Requirement(file, number, requirement.name, requirement.clauses, column)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# Installations by the script --------------------------------------------------------------------


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
        for requirement in _parsed(module.path, call.lineno, word):
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
