"""TensorFlow among what is to be installed (TPU503, TPU504)."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.preflight.analysis.constants import Constants
from tpuctl.preflight.analysis.locations import found_at
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.findings import Finding, Severity, Target

__all__ = ["allows", "find"]

REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;#)]*)\)?\s*(;[^#]*)?")
CLAUSE = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?\S*\s*")
# Other packages that bring the module `tensorflow`.
BUILDS = {
    *("tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos"),
    *("tensorflow-rocm", "tensorflow-tpu", "intel-tensorflow", "tensorflow-cpu-aws"),
    *("tf-nightly", "tf-nightly-cpu", "tf-nightly-gpu", "tf-nightly-intel", "tf-nightly-tpu"),
}
STARTS = {"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen"}
STARTS |= {"subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen"}
UPGRADES = {"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed"}


@dataclass(frozen=True)
class _Wanted:
    """A line that asks for a package."""

    path: Path
    line: int
    name: str
    clauses: str
    column: int = 0


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what asks for another TensorFlow than the runtime's, where it has one."""
    if target.tensorflow is None:
        return
    for one in _wanted(project.root):
        yield from _judge(one, target)
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) in STARTS and call.args:
                yield from _installed(project, module, call, target)


def _judge(one: _Wanted, target: Target) -> Iterator[Finding]:
    version, shown = target.tensorflow or "", f"{one.name}{one.clauses.strip()}"
    if one.name in BUILDS:
        text = f"{one.name} takes the place of the image's TensorFlow {version}, and finds no TPU"
        hint = f"Take {one.name} out: jobs have the image's TensorFlow."
        yield Finding("TPU504", Severity.risk, one.path, one.line, one.column, text, hint)
    elif one.name == "tensorflow" and not allows(one.clauses, version):
        text = f"{shown} cannot be installed: jobs keep the runtime's TensorFlow {version}"
        hint = "Take TensorFlow out of the requirements, or choose another runtime."
        yield Finding("TPU503", Severity.error, one.path, one.line, one.column, text, hint)


def allows(clauses: str, version: str) -> bool:
    """Whether a requirement's clauses, such as `>=2.12,<2.16`, are met; those nobody knows are."""
    have = _numbers(version)
    return all(_meets(clause, have) for clause in clauses.split(",") if clause.strip())


def _meets(clause: str, have: tuple[int, ...]) -> bool:
    found = CLAUSE.fullmatch(clause)
    if found is None:
        return True
    sign, wanted, is_open = found[1], _numbers(found[2]), found[3] is not None
    length = max(len(have), len(wanted))
    a, b = _padded(have, length), _padded(wanted, length)
    begins = have[: len(wanted)] == wanted
    is_equal = begins if is_open else a == b
    compatible = a >= b and have[: len(wanted) - 1] == wanted[:-1]
    answers = {"==": is_equal, "===": is_equal, "!=": not is_equal, "~=": compatible}
    return {**answers, ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b}[sign]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


# Where requirements stand -----------------------------------------------------------------------


def _wanted(root: Path) -> list[_Wanted]:
    """What a job installs: of requirements.txt, else what pyproject.toml asks for."""
    file = root / "requirements.txt"
    if file.is_file():
        return list(_lines(file, root, set()))
    return list(_dependencies(root / "pyproject.toml"))


def _lines(file: Path, root: Path, seen: set[Path]) -> Iterator[_Wanted]:
    if file in seen or not file.resolve().is_relative_to(root.resolve()):
        return
    seen.add(file)
    for number, text in enumerate(_read(file).split("\n"), 1):
        other = re.match(r"\s*(?:-r|--requirement)[\s=]+(\S+)", text)
        if other is not None:
            yield from _lines(file.parent / other[1], root, seen)
            continue
        yield from _parsed(file, number, text)


def _parsed(file: Path, number: int, text: str) -> Iterator[_Wanted]:
    found = REQUIREMENT.match(text)
    if found is not None and found[3] is None and "@" not in found[2]:
        column = len(text) - len(text.lstrip())
        yield _Wanted(file, number, _normal(found[1]), found[2].partition(" --")[0], column)


def _dependencies(file: Path) -> Iterator[_Wanted]:
    text = _read(file)
    try:
        project = tomllib.loads(text).get("project", {})
        asked = project.get("dependencies", []) if isinstance(project, dict) else []
    except tomllib.TOMLDecodeError:
        return
    lines = text.split("\n")
    for one in asked if isinstance(asked, list) else []:
        number = next((n for n, line in enumerate(lines, 1) if str(one) in line), 1)
        for wanted in _parsed(file, number, str(one)):
            column = max(lines[number - 1].find(str(one)), 0)
            yield _Wanted(file, number, wanted.name, wanted.clauses, column)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# What a script installs by itself ---------------------------------------------------------------


def _installed(
    project: Project, module: Module, call: ast.Call, target: Target
) -> Iterator[Finding]:
    words = _words(project, module, call.args[0])
    if "install" not in words or not any(word.startswith("pip") for word in words):
        return
    version = target.tensorflow or ""
    asked = words[words.index("install") + 1 :]
    for word in asked:
        for one in _parsed(module.path, call.lineno, word):
            if one.name in BUILDS or (one.name == "tensorflow" and UPGRADES & set(asked)):
                text = f"pip puts {word} in the place of the image's TensorFlow {version}"
                hint = "Keep the image's: what PyPI has finds no TPU."
                yield found_at("TPU504", Severity.risk, module, call, text, hint)
            elif one.name == "tensorflow" and not allows(one.clauses, version):
                text = f"pip puts {word} in the place of the runtime's TensorFlow {version}"
                hint = "Keep the image's: what PyPI has finds no TPU."
                yield found_at("TPU503", Severity.error, module, call, text, hint)


def _words(project: Project, module: Module, command: ast.expr) -> list[str]:
    if isinstance(command, (ast.List, ast.Tuple)):
        several = [Constants.of(project).values(module, one) for one in command.elts]
        return [one[0].text for one in several if one]
    found = Constants.of(project).values(module, command)
    if len(found) != 1:
        return []
    try:
        return shlex.split(found[0].text)
    except ValueError:
        return found[0].text.split()
