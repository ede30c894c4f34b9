"""What packages a job's files and its script ask pip for."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.preflight.analysis.constants import Constants
from tpuctl.preflight.analysis.source import Module, Project

__all__ = ["Installed", "Requirement", "allows", "installed", "required"]

REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;#)]*)\)?\s*(;[^#]*)?")
CLAUSE = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?\S*\s*")
STARTS = {"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen"}
STARTS |= {"subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen"}
UPGRADES = {"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed"}


@dataclass(frozen=True)
class Requirement:
    """A line that asks for a package."""

    path: Path
    line: int
    name: str
    clauses: str
    column: int = 0


@dataclass(frozen=True)
class Installed:
    """A package that the script itself has pip install."""

    module: Module
    call: ast.Call
    word: str  # as pip is given it
    package: Requirement
    is_upgrade: bool  # whether pip replaces what is there


def allows(clauses: str, version: str) -> bool:
    """Whether a requirement's clauses, such as `>=2.12,<2.16`, are met; unknown ones are."""
    actual = _numbers(version)
    return all(_meets(clause, actual) for clause in clauses.split(",") if clause.strip())


def _meets(clause: str, actual: tuple[int, ...]) -> bool:
    match = CLAUSE.fullmatch(clause)
    if match is None:
        return True
    sign, expected, is_open = match[1], _numbers(match[2]), match[3] is not None
    length = max(len(actual), len(expected))
    a, b = _padded(actual, length), _padded(expected, length)
    begins = actual[: len(expected)] == expected
    is_equal = begins if is_open else a == b
    compatible = a >= b and actual[: len(expected) - 1] == expected[:-1]
    answers = {"==": is_equal, "===": is_equal, "!=": not is_equal, "~=": compatible}
    return {**answers, ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b}[sign]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


# Where requirements stand -----------------------------------------------------------------------


def required(root: Path) -> list[Requirement]:
    """What a job installs: of requirements.txt, else what pyproject.toml asks for."""
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


# What a script installs by itself ---------------------------------------------------------------


def installed(project: Project) -> Iterator[Installed]:
    """What its calls of pip name."""
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) in STARTS and call.args:
                yield from _installed(project, module, call)


def _installed(project: Project, module: Module, call: ast.Call) -> Iterator[Installed]:
    words = _words(project, module, call.args[0])
    if "install" not in words or not any(word.startswith("pip") for word in words):
        return
    arguments = words[words.index("install") + 1 :]
    is_upgrade = bool(UPGRADES & set(arguments))
    for word in arguments:
        for requirement in _parsed(module.path, call.lineno, word):
            yield Installed(module, call, word, requirement, is_upgrade)


def _words(project: Project, module: Module, command: ast.expr) -> list[str]:
    if isinstance(command, (ast.List, ast.Tuple)):
        groups = [Constants.of(project).values(module, element) for element in command.elts]
        return [values[0].text for values in groups if values]
    literals = Constants.of(project).values(module, command)
    if len(literals) != 1:
        return []
    try:
        return shlex.split(literals[0].text)
    except ValueError:
        return literals[0].text.split()
